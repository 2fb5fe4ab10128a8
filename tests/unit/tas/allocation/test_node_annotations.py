"""What is written to annotations of a node: sums of requests, measured use, and only what has changed."""

import msgspec
import pytest

from tas.allocation.node import NodeAllocation
from tas.allocation.node_annotations import MEASURED, STEP, WRITTEN, Amount, amounts, needed, needed_of_table, to_write
from tas.samples.freshness import DEFAULT_STALE_AFTER
from tas.samples.sample import Scrape
from tas.samples.table import Column, Reading, Table
from tas.sources.annotations import NAMES
from tas.values.quantity import parse_quantity

NOW = 1_000_000.0
ALLOCATION = NodeAllocation(
    uid="u",
    allocatable={"cpu": 4000, "memory": 8 << 30, "pods": 110},
    requested={"cpu": 855, "memory": 1 << 30, "pods": 12},
)


def scrape(source: str = "prometheus", *, ago: float = 1.0, **metrics: str) -> Scrape:
    values = {name.replace("_", ":"): parse_quantity(text) for name, text in metrics.items()}
    return Scrape(source=source, measured=NOW - ago, arrived=NOW - ago, sequence=1, metrics=values)


def values(*scrapes: Scrape, allocation: NodeAllocation = ALLOCATION) -> dict[str, int]:
    return {name: amount.value for name, amount in amounts(allocation, needed(scrapes), NOW).items()}


SUMS = {
    "requested-cpu": 855,
    "free-cpu": 3145,
    "requested-memory": 1 << 30,
    "free-memory": 7 << 30,
    "requested-pods": 12,
    "free-pods": 98,
}


def test_without_samples_only_sums_of_requests_are_known() -> None:
    assert values() == SUMS


def test_what_is_used_is_taken_from_the_allocatable_amount_in_the_units_of_the_original() -> None:
    used = scrape(cpu_mean_5m="1.5", cpu_std_5m="0.25", memory_mean_5m="9Gi", memory_std_5m="1Mi")
    assert values(used) == SUMS | {
        "mean-free-cpu": 2500,
        "std-free-cpu": 250,
        "mean-free-memory": 0,
        "std-free-memory": 1 << 20,
    }


def test_a_stale_value_a_negative_one_and_one_from_an_annotation_are_not_written() -> None:
    assert values(scrape(ago=DEFAULT_STALE_AFTER, cpu_mean_5m="1")) == SUMS
    assert values(scrape(cpu_mean_5m="-1")) == SUMS
    factor = msgspec.structs.replace(scrape(), metrics={"congestion-factor": parse_quantity("3")})
    assert values(factor) == SUMS | {"congestion-factor": 3}
    assert values(msgspec.structs.replace(factor, source="annotations")) == SUMS


def test_only_the_samples_that_are_written_are_kept() -> None:
    metrics = dict.fromkeys((*MEASURED, "other"), parse_quantity("1"))
    every = [msgspec.structs.replace(scrape(source), metrics=metrics) for source in ("annotations", "prometheus")]
    other = scrape("zz", other="3")
    (kept,) = needed((*every, other))
    assert (kept.source, set(kept.metrics)) == ("prometheus", set(MEASURED))
    assert needed((other,)) == needed(()) == ()


def test_pods_that_cannot_be_read_leave_the_sums_unknown() -> None:
    unreadable = msgspec.structs.replace(ALLOCATION, unreadable=1)
    assert values(scrape(cpu_mean_5m="1"), allocation=unreadable) == {"mean-free-cpu": 3000}


@pytest.mark.parametrize(
    ("current", "is_written"),
    [
        (None, True),
        ("much", True),
        ("2500", False),
        ("2540", False),  # one part in a hundred of the node
        ("2541", True),
        ("2459", True),
        ("2500.0", False),
    ],
)
def test_a_measured_value_is_written_if_it_differs_enough(current: str | None, is_written: bool) -> None:
    there = {} if current is None else {"mean-free-cpu": current, "other": "x"}
    wanted = {"mean-free-cpu": Amount(2500, STEP * 4000)}
    assert to_write(there, wanted) == ({"mean-free-cpu": "2500"} if is_written else {})


def test_a_sum_is_written_if_it_differs_at_all_and_nothing_is_removed() -> None:
    assert to_write({"requested-cpu": "856", "mean-free-cpu": "1"}, {"requested-cpu": Amount(855)}) == {
        "requested-cpu": "855"
    }
    assert to_write({"mean-free-cpu": "1"}, {}) == {}


def test_every_written_name_is_one_that_is_read() -> None:
    assert set(WRITTEN) <= set(NAMES)
    everything = scrape(cpu_mean_5m="1", cpu_std_5m="1", memory_mean_5m="1", memory_std_5m="1")
    assert values(everything).keys() <= set(WRITTEN)


def test_of_a_table_only_rows_and_columns_that_are_written_are_kept() -> None:
    columns = {
        metric: Column(tuple(None if text is None else parse_quantity(text) for text in texts), Reading(NOW, NOW, 1))
        for metric, texts in {"cpu:mean:5m": ("1.5", None), "load1": ("1", "2")}.items()
    }
    kept = needed_of_table(Table("prometheus", ("a", "b"), columns))
    assert (kept.nodes, set(kept.columns)) == (("a",), {"cpu:mean:5m"})
    assert values(*kept.scrapes("a")) == SUMS | {"mean-free-cpu": 2500}
    assert needed_of_table(Table("annotations", ("a", "b"), columns)).nodes == ()
    assert needed_of_table(Table("prometheus", ("a", "b"), {"load1": columns["load1"]})).nodes == ()
