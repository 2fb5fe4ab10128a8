"""Values that jump for one scrape: of tables, of nodes, and of series."""

import itertools
from collections.abc import Sequence

import pytest

from tas.samples.sample import Scrape
from tas.samples.table import Column, Reading, Table, table_of
from tas.sources.jumps import FACTOR, LONGEST, MAX_RAISED, Jumps
from tas.sources.result import SuspectReason
from tas.values.quantity import Quantity, parse_quantity

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"


def quantity(text: str | None) -> Quantity | None:
    return None if text is None else parse_quantity(text)


def table(values: Sequence[str | None], *, metric: str = "m", nodes: Sequence[str] = ()) -> Table:
    names = tuple(nodes or (f"n{number}" for number in range(len(values))))
    return table_of("s", names, {metric: Column(tuple(map(quantity, values)), Reading(1.0, 1.0, 0))})


def jumps_of(*values: str | None, metric: str = "m", seconds: float = 1.0) -> int:
    """The number of jumps of one node beside a steady one, which is the same in each form."""
    jumps = Jumps()
    tables = [table((value, "7"), metric=metric) for value in values]
    for number, (before, after) in enumerate(itertools.pairwise(tables)):
        jumps.add_tables((before,), (after,), number * seconds)
    found = jumps.taken()
    by_node = Jumps()
    if None not in values:
        scrapes = [
            Scrape(source="s", measured=1.0, arrived=1.0, sequence=0, metrics={metric: parse_quantity(value or "")})
            for value in values
        ]
        for number, (first, second) in enumerate(itertools.pairwise(scrapes)):
            by_node.add_scrapes("n0", (first,), (second,), number * seconds)
        assert by_node.taken() == found
    return found[SuspectReason.JUMP].count if found else 0


def test_a_value_of_one_scrape_that_is_orders_of_magnitude_higher_is_a_jump_facts_n62() -> None:
    jumps = Jumps()
    scrapes = [table(("35", value, "36"), metric=TEMPERATURE) for value in ("35", "644245923", "34")]
    jumps.add_tables((scrapes[0],), (scrapes[1],), 1.0)
    assert jumps.taken() == {}  # it may stay so high
    jumps.add_tables((scrapes[1],), (scrapes[2],), 2.0)
    found = jumps.taken()
    assert found[SuspectReason.JUMP].count == 1
    assert found[SuspectReason.JUMP].example == (
        f"{TEMPERATURE} of n1: value = 644245923: jumped for one scrape, from 35 and back to 34"
    )
    assert jumps.taken() == {}


@pytest.mark.parametrize(
    "values",
    [
        ("35", "644245923", "34"),
        ("35", "644245923", "644245923", "644245923", "34"),  # polled more often than measured
        ("35", "644245923", None, "34"),
        ("2", str(2 * FACTOR), "2"),
        ("-3", "-400000", "-3"),
        ("0.5", "1000", "0.5"),
    ],
)
def test_these_are_jumps(values: tuple[str | None, ...]) -> None:
    assert jumps_of(*values) == 1


@pytest.mark.parametrize(
    "values",
    [
        ("35", "644245923"),
        ("35", "644245923", "644245900", "34"),  # two scrapes
        ("35", "644245923", "700000"),  # it came back by less
        ("2", str(2 * FACTOR - 1), "2"),
        ("0.001", "2", "0.001"),  # a load
        ("0", "5000000", "0"),  # a rate of bytes
        ("1000000", "1000100", "1000200"),  # a counter
        ("1000000", "0", "200"),  # a counter that begins anew
        (None, "644245923", "34"),
    ],
)
def test_these_are_none(values: tuple[str | None, ...]) -> None:
    assert jumps_of(*values) == 0


def test_of_dcgm_a_value_from_0_can_jump_facts_n62() -> None:
    assert jumps_of("0", "808334905", "0", metric="DCGM_FI_DEV_GPU_UTIL") == 1
    assert jumps_of("0", "100", "0", metric="DCGM_FI_DEV_GPU_UTIL") == 0


def test_a_value_that_stays_for_long_has_not_jumped_for_one_scrape() -> None:
    assert jumps_of("35", "644245923", "644245923", "34", seconds=LONGEST / 2) == 1
    assert jumps_of("35", "644245923", "644245923", "34", seconds=LONGEST) == 0


def test_rows_that_move_are_compared_by_node() -> None:
    jumps = Jumps()
    first = table(("35", "36"), nodes=("a", "b"))
    second = table(("36", "644245923"), nodes=("b", "a"))
    third = table(("34", "37", "1"), nodes=("a", "c", "b"))
    jumps.add_tables((first,), (second,), 1.0)
    jumps.add_tables((second,), (third,), 2.0)
    assert jumps.taken()[SuspectReason.JUMP].example.startswith("m of a: value = 644245923")


def test_series_of_one_node_are_compared_each_with_itself() -> None:
    jumps = Jumps()
    one, other, high = map(parse_quantity, ("35", "80000", "644245923"))
    for series, values in {"gpu0": (one, high, one), "gpu1": (other, other, other)}.items():
        for before, after in itertools.pairwise(values):
            jumps.add_value("a", "m", before, after, 1.0, series=series)
    assert jumps.taken()[SuspectReason.JUMP].count == 1


def test_what_is_kept_is_bounded() -> None:
    jumps = Jumps()
    steps = [table((value,) * (MAX_RAISED + 5)) for value in ("35", "644245923", "34")]
    for number in range(2):
        jumps.add_tables((steps[number],), (steps[number + 1],), float(number))
    assert jumps.taken()[SuspectReason.JUMP].count == MAX_RAISED


def test_nodes_that_end_with_a_raised_value_take_no_place_for_ever() -> None:
    jumps, low, high = Jumps(), quantity("35"), quantity("644245923")
    assert low is not None
    assert high is not None
    for number in range(MAX_RAISED):
        jumps.add_value(f"n{number}", "m", low, high, 0.0)
    for node, at in (("soon", LONGEST), ("later", LONGEST + 1)):
        jumps.add_value(node, "m", low, high, at)
        jumps.add_value(node, "m", high, low, at + 1)
    assert jumps.taken()[SuspectReason.JUMP].example.startswith("m of later: ")
