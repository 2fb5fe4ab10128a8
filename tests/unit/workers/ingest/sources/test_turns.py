"""The order of metrics of which one poll cannot read all."""

from workers.ingest.sources.base import Turns

METRICS = frozenset({"a", "b", "c", "d", "e", "f", "g"})


def test_of_more_metrics_than_three_polls_can_read_each_has_its_turn() -> None:
    turns = Turns()
    read: list[str] = []
    for _ in range(7):
        for metric in turns.order(METRICS)[:2]:
            turns.had(metric)
            read.append(metric)
    assert read == [*"abcdefg"] * 2


def test_a_new_metric_comes_first_and_a_skipped_one_keeps_its_place() -> None:
    turns = Turns()
    for metric in turns.order(frozenset("abc")):
        turns.had(metric)
    assert turns.order(frozenset("abcd"), skipped={"a"}) == [*"dbc"]
    assert turns.order(frozenset("abcd")) == [*"dabc"]
    assert turns.order(frozenset("cd")) == [*"dc"]
    assert turns.order(frozenset("abc")) == [*"abc"], "of a metric that is no longer asked for something is kept"
