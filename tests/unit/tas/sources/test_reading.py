"""Readings: what is taken of an answer, what is refused, and how it becomes scrapes."""

import pytest

from tas.quantity import NANO
from tas.sample import Scrape
from tas.sources.reading import (
    MAX_METRICS_PER_SCRAPE,
    Batch,
    Gathering,
    Reading,
    Refusal,
    Refused,
    combined,
    scrapes,
    timely,
)


def batch_of(*values: tuple[str, str, str]) -> Batch:
    """What becomes of values given as node, metric, value."""
    gathering = Gathering()
    for node, metric, value in values:
        gathering.add(node=node, metric=metric, value=value, measured=100.0)
    return gathering.batch()


def reading(node: str = "a", metric: str = "m", *, measured: float | None = 100.0) -> Reading:
    return Reading(node=node, metric=metric, value=NANO, measured=measured)  # type: ignore[arg-type]


def test_values_are_taken_as_quantities() -> None:
    batch = batch_of(("a", "m", "1500m"), ("b.example", "m", "2Gi"), ("a", "n", "-1e3"))
    assert [(each.node, each.metric, each.value / NANO, each.measured) for each in batch.readings] == [
        ("a", "m", 1.5, 100.0),
        ("b.example", "m", 2**31, 100.0),
        ("a", "n", -1000, 100.0),
    ]
    assert batch.refusals == {}
    assert batch.missing == {}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "", "many", "1e400", "0x10"])
def test_what_is_no_quantity_is_refused_alone(value: str) -> None:
    batch = batch_of(("a", "m", value), ("b", "m", "1"))
    assert [each.node for each in batch.readings] == ["b"]
    assert batch.refusals[Refused.VALUE].count == 1
    assert batch.refusals[Refused.VALUE].example.startswith(f"m of a: value = {value!r}: ")


@pytest.mark.parametrize("node", ["", "Node-1", "a_b", "a..b", "-a", "x" * 254])
def test_a_name_that_no_node_can_have_is_refused_alone(node: str) -> None:
    batch = batch_of((node, "m", "1"), ("b", "m", "1"))
    assert [each.node for each in batch.readings] == ["b"]
    assert batch.refusals[Refused.NODE].count == 1


@pytest.mark.parametrize(("times", "values"), [(2, ["1", "2"]), (2, ["1", "1"]), (5, ["1", "2", "1", "3", "1"])])
def test_of_several_values_for_one_node_none_counts(times: int, values: list[str]) -> None:
    batch = batch_of(*(("a", "m", value) for value in values), ("a", "n", "7"), ("b", "m", "8"))
    assert [(each.node, each.metric) for each in batch.readings] == [("a", "n"), ("b", "m")]
    assert batch.refusals[Refused.TWICE].count == times
    assert "m of a" in batch.refusals[Refused.TWICE].example


def test_refusals_are_counted_and_the_first_is_told() -> None:
    gathering = Gathering()
    for kind in ("Pod", "Service", "Pod"):
        gathering.refuse(Refused.NODE, "m", "describedObject.kind", kind, "must be Node")
    assert gathering.batch().refusals == {
        Refused.NODE: Refusal(count=3, example="m: describedObject.kind = 'Pod': must be Node")
    }


def test_batches_of_several_questions_become_one() -> None:
    first, second = Gathering(), Gathering()
    first.add(node="a", metric="m", value="1")
    first.add(node="b", metric="m", value="x")
    second.add(node="a", metric="n", value="y")
    second.miss("n", "unknown there (404)")
    batch = combined([first.batch(), second.batch()])
    assert [each.metric for each in batch.readings] == ["m"]
    assert batch.refusals[Refused.VALUE].count == 2
    assert "m of b" in batch.refusals[Refused.VALUE].example
    assert batch.missing == {"n": "unknown there (404)"}


def test_times_that_cannot_be_are_refused() -> None:
    now = 10_000.0
    batch = Batch(
        readings=(
            reading("ahead", measured=now + 10.1),
            reading("nearly", measured=now + 10),
            reading("old", measured=now - 3600.1),
            reading("aged", measured=now - 3600),
            reading("silent", measured=None),
        ),
        missing={"other": "why"},
    )
    kept = timely(batch, now=now)
    assert [each.node for each in kept.readings] == ["nearly", "aged", "silent"]
    assert kept.refusals[Refused.TIME].count == 2
    assert "m of ahead: measured = 10010.1" in kept.refusals[Refused.TIME].example
    assert kept.missing == {"other": "why"}


def test_a_batch_in_time_stays_as_it_is() -> None:
    batch = Batch(readings=(reading(),))
    assert timely(batch, now=100.0) is batch


def test_a_node_gets_one_scrape_for_all_that_was_measured_together() -> None:
    readings = [reading("a", "m"), reading("b", "m"), reading("a", "n"), reading("a", "o", measured=90.0)]
    found = list(scrapes(readings, source="s", asked=200.0))
    assert [(node, each.measured, sorted(each.metrics)) for node, each in found] == [
        ("a", 100.0, ["m", "n"]),
        ("b", 100.0, ["m"]),
        ("a", 90.0, ["o"]),
    ]
    assert found[1][1] == Scrape(
        source="s",
        measured=100.0,
        arrived=100.0,
        sequence=0,
        metrics={"m": NANO},  # type: ignore[dict-item]
    )


def test_what_has_no_time_was_measured_when_it_was_asked() -> None:
    ((_, scrape),) = scrapes([reading(measured=None)], source="s", asked=200.0)
    assert scrape.measured == 200.0


def test_no_scrape_is_larger_than_a_message_may_be() -> None:
    many = [reading("a", f"m{number}") for number in range(MAX_METRICS_PER_SCRAPE + 1)]
    assert [len(scrape.metrics) for _, scrape in scrapes(many, source="s", asked=1.0)] == [MAX_METRICS_PER_SCRAPE, 1]
