"""Merging scrapes: the same result in any order, any grouping, any number of times."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.samples.sample import (
    MAX_SAMPLE_AGE,
    NodeSamples,
    Scrape,
    kept_metrics,
    merge,
    metric_count,
    newest,
    newest_of_series,
    replaced_metrics,
)
from tas.values.quantity import Quantity

SOURCES = ("agent", "machine", "prometheus")


def scrape(source: str, time: float, sequence: int = 0, *, arrived: float | None = None, **metrics: int) -> Scrape:
    values = {name: Quantity(value) for name, value in metrics.items()}
    return Scrape(
        source=source, measured=time, arrived=time if arrived is None else arrived, sequence=sequence, metrics=values
    )


# Few times, sequences and names, so that ties and scrapes that outdate each other in part are common, and times
# on either side of the horizon.
scrapes = st.builds(
    Scrape,
    source=st.sampled_from(SOURCES),
    measured=st.sampled_from([0.0, 1.0, 2.0, 3600.0, 3601.0, 3602.5, 7300.0]),
    arrived=st.sampled_from([0.5, 2.0, 3600.0, 3601.0, 7300.0]),
    sequence=st.integers(0, 3),
    window=st.sampled_from([None, 0.0, 60.0]),
    ends=st.sampled_from([None, 3600.0]),
    metrics=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3).map(Quantity)),
)

# Of one source and nearly one time: only the last tie-breakers decide between these scrapes.
ties = st.builds(
    Scrape,
    source=st.just("machine"),
    measured=st.sampled_from([1.0, 2.0]),
    arrived=st.sampled_from([1.0, 2.0]),
    sequence=st.just(1),
    window=st.sampled_from([None, 0.0]),
    ends=st.sampled_from([None, 5.0]),
    metrics=st.dictionaries(st.sampled_from("ab"), st.integers(0, 1).map(Quantity), min_size=1),
)
several_scrapes = st.lists(scrapes, max_size=8) | st.lists(ties, max_size=5)


def naive(several: Sequence[Scrape]) -> dict[tuple[str, str], tuple[Any, ...]]:
    """For each source and metric the greatest order, and its value, found one by one."""
    found: dict[tuple[str, str], tuple[Any, ...]] = {}
    latest = max((each.time for each in several if each.metrics), default=0.0)
    for each in several:
        for metric, value in each.metrics.items():
            if latest - each.time <= MAX_SAMPLE_AGE:
                window = -1.0 if each.window is None else each.window
                ends = inf if each.ends is None else each.ends
                account = (each.order, each.measured, each.arrived, window, ends, value)
                found[each.source, metric] = max(found.get((each.source, metric), account), account)
    return found


def merged(*groups: Sequence[Scrape]) -> NodeSamples:
    known: NodeSamples = ()
    for group in groups:
        known = merge(known, group)
    return known


@given(several_scrapes)
def test_the_newest_of_each_source_and_metric_counts(several: list[Scrape]) -> None:
    assert naive(merged(several)) == naive(several)


@given(several_scrapes)
def test_result_is_sorted_and_without_duplicates(several: list[Scrape]) -> None:
    result = merged(several)
    assert all(a.source < b.source or (a.source == b.source and a.order <= b.order) for a, b in pairwise(result))
    pairs = [(each.source, metric) for each in result for metric in each.metrics]
    assert len(pairs) == len(set(pairs)) == metric_count(result)
    assert all(each.metrics for each in result)


@given(st.data(), several_scrapes)
def test_merging_is_commutative_and_associative(data: st.DataObject, several: list[Scrape]) -> None:
    """Any permutation, one by one or in groups, and groups that were merged separately first."""
    expected = merged(several)
    shuffled = data.draw(st.permutations(several))
    assert merged(*([each] for each in shuffled)) == expected
    cut = data.draw(st.integers(0, len(shuffled)))
    first, second = shuffled[:cut], shuffled[cut:]
    assert merged(first, second) == expected
    assert merged(merged(first), merged(second)) == expected


@given(st.data(), several_scrapes)
def test_merging_again_gives_the_same_object(data: st.DataObject, several: list[Scrape]) -> None:
    result = merged(several)
    again = data.draw(st.lists(st.sampled_from([*several, *result]))) if several else []
    assert merge(result, again) is result
    assert merge(result, ()) is result
    for each in several:
        assert merge(result, [each]) is result


def test_a_newer_scrape_replaces_the_one_before() -> None:
    others = (scrape("agent", 5, a=1), scrape("prometheus", 5, a=1))
    before, after = scrape("machine", 10, a=1, b=1), scrape("machine", 20, a=2, b=2, c=2)
    known = merged(others, [before])
    result = merge(known, [after])
    assert result == (others[0], after, others[1])
    assert result[1] is after
    assert result[0] is others[0]


def test_a_scrape_replaces_several_with_the_same_metrics() -> None:
    known = merged([scrape("machine", 10, b=1)], [scrape("machine", 20, a=1)])
    assert len(known) == 2
    assert merge(known, [scrape("machine", 30, a=2, b=2)]) == (scrape("machine", 30, a=2, b=2),)


def test_metrics_missing_in_a_newer_scrape_keep_their_time() -> None:
    before, after = scrape("machine", 10, a=1, b=1), scrape("machine", 20, a=2)
    assert merged([before], [after]) == (scrape("machine", 10, b=1), after)


def test_facts_C8_a_partial_answer_makes_no_metric_unknown() -> None:
    known = merged([scrape("adapter", 10, a=1)], [scrape("adapter", 12, b=1)])
    assert newest(known, "a") == scrape("adapter", 10, a=1)


def test_for_equal_times_the_higher_sequence_counts() -> None:
    first, second = scrape("machine", 10, 1, a=1), scrape("machine", 10, 2, a=2)
    assert merged([first], [second]) == merged([second], [first]) == (second,)


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({"measured": 3.0, "arrived": 2.0}, {"measured": 2.0, "arrived": 2.0}),
        ({"measured": 2.0, "arrived": 3.0}, {"measured": 2.0, "arrived": 2.0}),
        ({"window": 0.0}, {}),
        ({"metrics": {"a": 2}}, {}),
        ({"metrics": {"a": 2, "b": 1}}, {"metrics": {"a": 1, "c": 1}}),
    ],
)
def test_for_equal_orders_the_order_of_arrival_does_not_matter(changes: Any, others: Any) -> None:
    """No two messages have the same sequence number; if two scrapes do, replicas must still agree."""
    winner, loser = (msgspec.structs.replace(scrape("machine", 2, 1, a=1), **each) for each in (changes, others))
    result = merged([winner], [loser])
    assert merged([loser], [winner]) == merged([winner, loser]) == result
    counts = newest(result, "a")
    assert counts is not None
    assert (counts.measured, counts.arrived, counts.window) == (winner.measured, winner.arrived, winner.window)
    assert counts.metrics["a"] == winner.metrics["a"]


def test_a_time_in_the_future_counts_only_until_the_next_arrival() -> None:
    ahead = scrape("machine", 109, 1, arrived=100, a=1)
    assert ahead.time == 100
    following = scrape("machine", 101, 2, arrived=101, a=2)
    assert merged([ahead], [following]) == (following,)


def test_scrapes_too_old_for_any_policy_are_removed() -> None:
    old, edge = scrape("agent", 0.9, a=1), scrape("machine", 1, a=1)
    newer = scrape("prometheus", 1 + MAX_SAMPLE_AGE, a=1)
    assert merged([old, edge], [newer]) == (edge, newer)
    assert merged([newer], [old]) == (newer,)
    known = merged([newer])
    assert merge(known, [old]) is known


def test_the_arrival_of_a_late_scrape_does_not_make_others_too_old() -> None:
    """The arrival is removed together with the outdated scrape, so it must not matter before either."""
    late = scrape("machine", 1500, 1, arrived=5000, a=1)
    outdating = scrape("machine", 4900, 2, a=2)
    other = scrape("agent", 1395, 3, a=3)
    assert merged([late], [outdating], [other]) == merged([late, outdating, other]) == (other, outdating)


def test_a_scrape_without_metrics_changes_nothing() -> None:
    known = merged([scrape("machine", 1, a=1)])
    assert merge(known, [scrape("machine", 9999, 1)]) is known


TWO_SOURCES = merged([scrape("agent", 10, a=1, b=1), scrape("machine", 20, a=2), scrape("machine", 15, c=2)])


def test_the_metrics_of_a_scrape_are_kept_if_it_or_a_newer_one_of_its_source_is_stored() -> None:
    sent = scrape("agent", 10, a=1, b=1, c=1)
    known = merged([scrape("agent", 10, 5, a=1), scrape("agent", 11, 4, b=2), scrape("machine", 12, 6, c=3)])
    assert kept_metrics(known, sent, 5) == {"a", "b"}
    assert kept_metrics(known, sent, 6) == {"b"}


def test_a_metric_is_replaced_by_a_value_of_its_source_that_was_measured_and_published_later() -> None:
    known = (scrape("agent", 30, 9, a=1, b=1), scrape("agent", 10, 8, c=1), scrape("machine", 30, 9, d=1))
    sent = dict.fromkeys("abcde", 1)
    assert replaced_metrics(known, scrape("agent", 20, 5, **sent)) == {"a", "b"}
    assert replaced_metrics(known, scrape("agent", 20, 9, **sent)) == set()
    assert replaced_metrics(known, scrape("agent", 30, 8, **sent)) == {"a", "b"}
    assert replaced_metrics(known, scrape("agent", 31, 5, **sent)) == set()


@pytest.mark.parametrize(
    ("metric", "source", "found"),
    [
        ("a", None, scrape("machine", 20, a=2)),
        ("a", "agent", scrape("agent", 10, a=1, b=1)),
        ("b", None, scrape("agent", 10, a=1, b=1)),
        ("b", "machine", None),
        ("c", None, scrape("machine", 15, c=2)),
        ("a", "other", None),
        ("z", None, None),
        ("", None, None),
    ],
)
def test_newest_by_metric_and_source(metric: str, source: str | None, found: Scrape | None) -> None:
    assert newest(TWO_SOURCES, metric, source) == found


def test_for_equal_times_the_first_source_name_counts_at_any_sequence() -> None:
    known = merged([scrape("machine", 10, 2, a=2), scrape("agent", 10, 1, a=1)])
    assert newest(known, "a") == scrape("agent", 10, 1, a=1)


@given(st.lists(scrapes, max_size=8), st.sampled_from("abcd"))
def test_newest_has_the_latest_time(several: list[Scrape], metric: str) -> None:
    known = merged(several)
    holding = [each for each in known if metric in each.metrics]
    found = newest(known, metric)
    assert found is (min(holding, key=lambda each: (-each.time, each.source)) if holding else None)
    series = newest_of_series(known)
    assert series.get((metric, None)) is found
    for source in {each.source for each in several}:
        assert series.get((metric, source)) is newest(known, metric, source)
