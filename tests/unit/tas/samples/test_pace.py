"""A metric is late by its own pace, whatever other metrics of its source do."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import pytest

from tas.samples.pace import MAX_LATE, LateMetric, Newest, Paces, Series, newest_late

LOOK = 5
"""Seconds between two looks."""

STALE_AFTER = 120.0

Values = Sequence[tuple[float, float]]
"""When each newest value comes, and when it was measured."""


def every(seconds: float, *, since: float = 0, until: float = 1000, lag: float = 0.5) -> Values:
    """New values that come `lag` after they were measured."""
    count = int((until - since) / seconds)
    return [(since + each * seconds + lag, since + each * seconds) for each in range(count)]


def together(*values: Values) -> Values:
    return sorted(chain.from_iterable(values))


def play(
    metrics: Mapping[str, Values], *, until: float = 1000, stale_after: float = STALE_AFTER
) -> Iterator[tuple[float, list[LateMetric]]]:
    """What is late at each look."""
    paces = Paces()
    waiting = {metric: list(reversed(values)) for metric, values in metrics.items()}
    newest: dict[Series, Newest] = {}
    for now in range(0, int(until), LOOK):
        for metric, values in waiting.items():
            while values and values[-1][0] <= now:
                newest[metric, None] = Newest(values.pop()[1], "s")
        yield now, paces.late(newest, dict.fromkeys(newest, stale_after), float(now))


@pytest.mark.parametrize(
    ("values", "stale_after"),
    [
        pytest.param(every(1), 120, id="polled each second"),
        pytest.param(every(1, lag=14), 120, id="each second, and always 14 s late"),
        pytest.param(every(15), 120, id="scraped each 15 s"),
        pytest.param(every(15, lag=10), 120, id="scraped each 15 s, and read 10 s later"),
        pytest.param(every(60), 120, id="remote write once a minute"),
        pytest.param(every(60, lag=30), 120, id="once a minute, and half a minute later"),
        pytest.param(every(300), 600, id="a program that measures each five minutes"),
        pytest.param([(at, at) for at in range(0, 1000, 15) if at != 315], 120, id="one failed scrape"),
        pytest.param([(at, at) for at in range(0, 1000, 60) if at != 300], 121, id="one failed scrape of a minute"),
        pytest.param(
            together(*(every(60, since=offset) for offset in range(9))), 120, id="nine nodes, one after the other"
        ),
        pytest.param(every(200), 600, id="statistics of a window, written seldom"),
        pytest.param([(0.0, 0.0)], 2000, id="an annotation that nobody changes, with a long staleAfter"),
    ],
)
def test_a_metric_that_comes_as_before_is_never_late(values: Values, stale_after: float) -> None:
    assert [now for now, late in play({"m": values, "other": every(1)}, stale_after=stale_after) if late] == []


def test_a_pace_that_becomes_slower_is_late_once() -> None:
    values = together(every(15, until=390), every(60, since=390))
    late = [now for now, found in play({"m": values, "other": every(1)}) if found]
    assert (min(late), max(late)) == (425, 450), "until the next value comes"


def test_values_that_always_come_late_are_late_once_the_pace_is_known() -> None:
    late = [now for now, found in play({"m": every(1, lag=67), "other": every(1)}) if found]
    assert late == [*range(130, 1000, LOOK)]


@pytest.mark.parametrize(
    ("values", "by"),
    [
        pytest.param(together(every(1, until=600)), 625, id="polled each second, and not written any more"),
        pytest.param([*every(1, until=600), *((at, 599.0) for at in range(600, 1000))], 625, id="does not move on"),
        pytest.param([*every(1, until=600), *((at, at - 67.0) for at in range(667, 1000))], 625, id="67 s late"),
        pytest.param(every(15, until=600), 625, id="scraped each 15 s"),
        pytest.param(every(60, until=600), 660 + 10, id="once a minute: when it is stale"),
        pytest.param(every(1, until=30), 29 + 125, id="its pace is not known yet: when it is stale"),
    ],
)
def test_a_metric_that_stops_is_late_while_another_one_of_its_source_is_fresh(values: Values, by: float) -> None:
    stopped = max(measured for _, measured in values if measured < 600)
    found = dict(play({"m": values, "fresh": every(1)}))
    first = min(now for now, late in found.items() if late)
    assert stopped < first <= by
    assert {each.metric for late in found.values() for each in late} == {"m"}
    assert all(late for now, late in found.items() if now >= first), "and stays so"
    (late,) = found[first]
    assert (late.source, late.measured, late.others_come) == ("s", stopped, True)


def test_the_pace_is_what_a_reader_is_told() -> None:
    (late,) = [found for _, found in play({"m": every(15, until=600), "fresh": every(1)})][-1]
    assert late == LateMetric("m", "s", 585.0, 15.0, True)


def test_of_a_source_that_gives_nothing_at_all_no_metric_is_an_exception() -> None:
    found = [late for _, late in play({"m": every(1, until=600), "n": every(1, until=600)})][-1]
    assert [(each.metric, each.others_come) for each in found] == [("m", False), ("n", False)]


def test_a_metric_that_no_policy_reads_any_more_or_that_has_no_value_is_not_late() -> None:
    paces = Paces()
    old: dict[Series, Newest] = {("m", None): Newest(0.0, "s")}
    limits: dict[Series, float] = {("m", None): 60.0}
    assert paces.late(old, limits, 100.0)
    assert paces.late(old, {}, 100.0) == []
    assert paces.late({}, limits, 100.0) == []


def test_a_metric_that_another_source_gives_is_late_only_for_rules_that_name_the_silent_one() -> None:
    """It was moved from one source to another: rules without a source read the newest value."""
    newest: dict[Series, Newest] = {("m", None): Newest(99.0, "new"), ("m", "old"): Newest(0.0, "old")}
    assert Paces().late(newest, {("m", None): 60.0}, 100.0) == []
    (late,) = Paces().late(newest, dict.fromkeys(newest, 60.0), 100.0)
    assert (late.metric, late.source) == ("m", "old")


def test_what_is_stale_is_late_whatever_its_pace() -> None:
    values = {"m": every(60, until=600), "fresh": every(1)}
    late = [now for now, found in play(values, stale_after=70) if found]
    assert late[0] == 540 + 75


def test_two_values_are_no_pace() -> None:
    """A program starts, and has measured all within a second; then it measures each two minutes and a half."""
    values = together([(0.0, 0.0), (61.0, 61.0), (62.0, 62.0)], every(150, since=212))
    assert [now for now, late in play({"m": values, "other": every(1)}, stale_after=600) if late] == []


def test_of_a_node_that_is_deleted_the_newest_value_is_gone_and_changes_no_pace() -> None:
    paces, limits = Paces(), dict[Series, float]({("m", None): 120.0})
    for second in range(0, 400, LOOK):
        assert paces.late({("m", None): Newest(float(second), "s")}, limits, float(second)) == []
    other: dict[Series, Newest] = {("m", None): Newest(360.0, "s")}
    (late,) = paces.late(other, limits, 400.0)
    assert (late.measured, late.every) == (360.0, LOOK)
    other = {("m", None): Newest(401.0, "s")}
    assert paces.late(other, limits, 402.0) == []


def test_the_pace_of_a_metric_that_is_stale_sooner_than_one_looks_is_known() -> None:
    paces, series = Paces(), ("m", None)
    for second in range(0, 400, LOOK):
        paces.late({series: Newest(float(second), "s")}, {series: 3.0}, float(second))
    (late,) = paces.late({series: Newest(395.0, "s")}, {series: 600.0}, 420.0)
    assert late.every == LOOK, "after an edit of staleAfter"


def test_after_an_outage_its_length_is_not_taken_for_the_pace() -> None:
    values = [*every(1, until=300), *every(1, since=500, until=700)]
    found = {now: bool(late) for now, late in play({"m": values, "fresh": every(1)})}
    assert found[400]
    assert not found[650]
    assert found[725]


def test_their_number_is_bounded_and_the_oldest_are_kept_with_the_newest_of_a_silent_source() -> None:
    newest: dict[Series, Newest] = {(f"m{number:02}", None): Newest(float(number), "s") for number in range(50)}
    late = Paces().late(newest, dict.fromkeys(newest, 60.0), 1000.0)
    assert [each.metric for each in late] == [*(f"m{number:02}" for number in range(MAX_LATE - 1)), "m49"]


def test_a_source_that_gives_nothing_hides_no_late_metric_of_another_one() -> None:
    newest: dict[Series, Newest] = {(f"m{number:02}", None): Newest(0.0, "dead") for number in range(MAX_LATE + 5)}
    newest |= {("heat", None): Newest(900.0, "well"), ("load", None): Newest(999.0, "well")}
    late = Paces().late(newest, dict.fromkeys(newest, 60.0), 1000.0)
    assert len(late) == MAX_LATE
    assert [(each.metric, each.source) for each in late if each.others_come] == [("heat", "well")]
    assert late[-1].metric == "heat", "the oldest are first"
    other = Paces().late({("n", None): Newest(1.0, "dead")}, {("n", None): 60.0}, 1000.0)
    assert newest_late([*late, *other])[-1].metric == "heat"


def test_a_source_that_gives_nothing_hides_no_other_one_that_gives_nothing() -> None:
    newest: dict[Series, Newest] = {(f"m{number:02}", None): Newest(0.0, "dead") for number in range(MAX_LATE + 5)}
    newest |= {("power", None): Newest(800.0, "agent")}
    late = Paces().late(newest, dict.fromkeys(newest, 60.0), 1000.0)
    assert (len(late), {each.source for each in late}) == (MAX_LATE, {"dead", "agent"})


def test_of_what_two_replicas_say_the_newest_value_counts() -> None:
    one, other = LateMetric("m", "s", 10.0, 1.0), LateMetric("m", "s", 12.0, 2.0)
    another = LateMetric("n", "s", 11.0)
    assert newest_late([one, another, other]) == [another, other]


def test_many_late_metrics_of_a_source_that_speaks_hide_no_silent_one_nor_its_newest_value() -> None:
    speaks = [LateMetric(f"m{number}", "speaks", 100.0 + number, others_come=True) for number in range(30)]
    silent = [LateMetric(f"m{number}", "silent", 500.0 + number) for number in range(30)]
    kept = newest_late([*speaks, *silent])
    assert len(kept) == MAX_LATE
    assert [each.measured for each in kept if each.source == "silent"] == [529.0]
