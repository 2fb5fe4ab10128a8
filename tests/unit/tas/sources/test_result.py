"""The result of a poll: accepted samples, refused values, and the scrapes made of them."""

import pytest

from tas.samples.sample import Scrape
from tas.sources.result import (
    MAX_METRICS_PER_SCRAPE,
    RefusalCount,
    RefusalReason,
    ResultBuilder,
    Sample,
    SourceResult,
    SuspectReason,
    combined,
    scrapes,
    with_valid_times,
)
from tas.values.quantity import NANO


def result_of(*values: tuple[str, str, str]) -> SourceResult:
    """The result of values given as node, metric, value."""
    builder = ResultBuilder()
    for node, metric, value in values:
        builder.add(node=node, metric=metric, value=value, measured=100.0)
    return builder.result()


def sample(node: str = "a", metric: str = "m", *, measured: float | None = 100.0) -> Sample:
    return Sample(node=node, metric=metric, value=NANO, measured=measured)  # type: ignore[arg-type]


def test_values_become_quantities() -> None:
    result = result_of(("a", "m", "1500m"), ("b.example", "m", "2Gi"), ("a", "n", "-1e3"))
    assert [(each.node, each.metric, each.value / NANO, each.measured) for each in result.samples] == [
        ("a", "m", 1.5, 100.0),
        ("b.example", "m", 2**31, 100.0),
        ("a", "n", -1000, 100.0),
    ]
    assert result.refusals == {}
    assert result.missing == {}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "", "many", "1e400", "0x10"])
def test_a_value_that_is_no_quantity_is_refused_alone(value: str) -> None:
    result = result_of(("a", "m", value), ("b", "m", "1"))
    assert [each.node for each in result.samples] == ["b"]
    assert result.refusals[RefusalReason.VALUE].count == 1
    assert result.refusals[RefusalReason.VALUE].example.startswith(f"m of a: value = {value!r}: ")


@pytest.mark.parametrize("node", ["", "Node 1", "a_b", "a..b", "-a", "x" * 254])
def test_a_value_with_an_invalid_node_name_is_refused_alone(node: str) -> None:
    result = result_of((node, "m", "1"), ("b", "m", "1"))
    assert [each.node for each in result.samples] == ["b"]
    assert result.refusals[RefusalReason.NODE].count == 1


@pytest.mark.parametrize(("times", "values"), [(2, ["1", "2"]), (2, ["1", "1"]), (5, ["1", "2", "1", "3", "1"])])
def test_several_values_of_one_metric_and_node_are_all_refused(times: int, values: list[str]) -> None:
    result = result_of(*(("a", "m", value) for value in values), ("a", "n", "7"), ("b", "m", "8"))
    assert [(each.node, each.metric) for each in result.samples] == [("a", "n"), ("b", "m")]
    assert result.refusals[RefusalReason.DUPLICATE].count == times
    assert "m of a" in result.refusals[RefusalReason.DUPLICATE].example


@pytest.mark.parametrize(
    "value", ["2147483632", "2147483647", "140737488355328", "140737488355331", "1.40737488355328e14"]
)
def test_a_small_blank_is_accepted_and_suspect_if_nothing_says_dcgm_facts_n61(value: str) -> None:
    result = result_of(("a", "memory", value), ("b", "memory", value), ("c", "memory", "2147483648"))
    assert len(result.samples) == 3
    assert result.refusals == {}
    assert result.suspect[SuspectReason.BLANK].count == 2
    assert result.suspect[SuspectReason.BLANK].example.startswith("memory of a: value = ")
    of_dcgm = result_of(("a", "dcgm_fb_used", value))
    assert (of_dcgm.samples, of_dcgm.suspect) == ((), {})
    assert of_dcgm.refusals[RefusalReason.VALUE].count == 1


def test_refusals_are_counted_and_the_first_is_the_example() -> None:
    builder = ResultBuilder()
    for kind in ("Pod", "Service", "Pod"):
        builder.refuse(RefusalReason.NODE, "m", "describedObject.kind", kind, "must be Node")
    assert builder.result().refusals == {
        RefusalReason.NODE: RefusalCount(count=3, example="m: describedObject.kind = 'Pod': must be Node")
    }


def test_results_of_several_requests_become_one() -> None:
    first, second = ResultBuilder(), ResultBuilder()
    first.add(node="a", metric="m", value="1")
    first.add(node="b", metric="m", value="x")
    second.add(node="a", metric="n", value="y")
    second.add_missing("n", "unknown there (404)")
    second.add_missing("n:mean:1h", "not covered yet", warming=True)
    result = combined([first.result(), second.result()])
    assert [each.metric for each in result.samples] == ["m"]
    assert result.refusals[RefusalReason.VALUE].count == 2
    assert "m of b" in result.refusals[RefusalReason.VALUE].example
    assert result.missing == {"n": "unknown there (404)", "n:mean:1h": "not covered yet"}
    assert result.warming == {"n:mean:1h"}


def test_samples_with_an_invalid_time_are_refused() -> None:
    now = 10_000.0
    result = SourceResult(
        samples=(
            sample("ahead", measured=now + 10.1),
            sample("nearly", measured=now + 10),
            sample("old", measured=now - 3600.1),
            sample("aged", measured=now - 3600),
            sample("silent", measured=None),
        ),
        missing={"other": "why"},
    )
    kept = with_valid_times(result, now=now)
    assert [each.node for each in kept.samples] == ["nearly", "aged", "silent"]
    assert kept.refusals[RefusalReason.TIME].count == 2
    assert "m of ahead: measured = 10010.1" in kept.refusals[RefusalReason.TIME].example
    assert kept.missing == {"other": "why"}


def test_a_result_with_valid_times_is_unchanged() -> None:
    result = SourceResult(samples=(sample(),))
    assert with_valid_times(result, now=100.0) is result


def test_samples_of_one_node_and_time_become_one_scrape() -> None:
    samples = [sample("a", "m"), sample("b", "m"), sample("a", "n"), sample("a", "o", measured=90.0)]
    found = list(scrapes(samples, source="s", requested_at=200.0))
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


def test_a_sample_without_a_time_gets_the_time_of_the_request() -> None:
    ((_, scrape),) = scrapes([sample(measured=None)], source="s", requested_at=200.0)
    assert scrape.measured == 200.0


def test_a_scrape_fits_into_a_message() -> None:
    many = [sample("a", f"m{number}") for number in range(MAX_METRICS_PER_SCRAPE + 1)]
    assert [len(scrape.metrics) for _, scrape in scrapes(many, source="s", requested_at=1.0)] == [
        MAX_METRICS_PER_SCRAPE,
        1,
    ]
