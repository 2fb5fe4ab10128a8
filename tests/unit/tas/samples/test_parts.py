"""Parts of the nodes of a source: every node has one, which follows from its name alone."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.samples.parts import (
    FORGET_SECONDS,
    MAX_PARTS,
    MAX_ROWS,
    Layout,
    Part,
    divided,
    parse_part,
    part_number,
)
from tests.unit.tas.generators import matching

PARTS = [1, 2, 4, 8, 16, 32, 64]
names = matching(r"[a-z0-9]([a-z0-9-]{0,9}[a-z0-9])?")


@pytest.mark.parametrize(
    ("node", "parts", "number"),
    [("node-1", 1, 0), ("node-1", 4, 3), ("node-2", 4, 1), ("ip-10-0-0-1.ec2.internal", 64, 55)],
)
def test_the_part_of_a_node_is_fixed(node: str, parts: int, number: int) -> None:
    """Programs in other languages compute it too."""
    assert part_number(node, parts) == number == crc32(node.encode()) % parts
    assert [each for each in range(parts) if Part(parts, each).has(node)] == [number]


@pytest.mark.parametrize("of", PARTS)
def test_every_part_reads_back(of: int) -> None:
    for number in range(of):
        assert parse_part(str(Part(of, number))) == (of, number)
    assert parse_part(str(Part(of, of))) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "1", "1-", "-0", "1-1", "0-0", "3-0", "6-1", "64-64", "128-0", "01-0", "1-00", "4-+1", "+4-1"),
        *("4--1", "4-1-0", "4-1 ", " 4-1", "4_1", "4-1\n", "\u0664-1", "4-\u00b2", "4-x", "100-1", f"4-{'1' * 5000}"),
    ],
)
def test_any_other_text_names_no_part(text: str) -> None:
    assert parse_part(text) is None


def test_the_most_parts_have_names() -> None:
    assert parse_part(f"{MAX_PARTS}-{MAX_PARTS - 1}") == (MAX_PARTS, MAX_PARTS - 1)
    assert parse_part(f"{2 * MAX_PARTS}-0") is None


@given(st.lists(names, unique=True), st.sampled_from(PARTS))
def test_divided_nodes_keep_their_order_and_each_is_in_its_part(nodes: list[str], parts: int) -> None:
    found = divided(nodes, parts)
    assert sorted(node for each in found.values() for node in each) == sorted(nodes)
    for part, some in found.items():
        assert part.of == parts
        assert some == [node for node in nodes if part.has(node)] != []


@given(names, st.sampled_from(PARTS[:-1]))
def test_twice_as_many_parts_divide_each_part_in_two(node: str, parts: int) -> None:
    assert part_number(node, 2 * parts) % parts == part_number(node, parts)


def test_many_nodes_are_divided_evenly() -> None:
    found = divided((f"node-{number}" for number in range(6400)), MAX_PARTS)
    assert len(found) == MAX_PARTS
    assert max(map(len, found.values())) <= 150


class TestLayout:
    def test_it_has_as_many_parts_as_all_nodes_need_however_they_become_known(self) -> None:
        names = [f"node-{number}" for number in range(5000)]
        at_once, by_ten = Layout(), Layout()
        at_once.add(names, 0.0)
        for start in range(0, len(names), 10):
            by_ten.add(names[start : start + 10], float(start))
        assert by_ten.parts == at_once.parts == 8
        assert max(map(len, divided(names, 8).values())) <= MAX_ROWS < max(map(len, divided(names, 4).values()))
        assert by_ten.nodes == len(names)

    @pytest.mark.parametrize(("count", "parts"), [(MAX_ROWS, 1), (MAX_ROWS + 1, 2)])
    def test_a_part_that_is_just_full_is_not_divided(self, count: int, parts: int) -> None:
        layout = Layout()
        layout.add([f"node-{number}" for number in range(count)], 0.0)
        assert layout.parts == parts

    def test_nodes_that_are_gone_are_forgotten_and_the_parts_stay(self) -> None:
        layout = Layout()
        layout.add([f"node-{number}" for number in range(1200)], 0.0)
        assert layout.parts == 2
        for hour in range(1, 10):
            layout.add([f"new-{hour}-{number}" for number in range(300)], hour * FORGET_SECONDS)
        assert layout.nodes == 600
        assert layout.parts == 2

    def test_it_keeps_no_more_than_all_parts_have_rows(self) -> None:
        layout = Layout()
        for start in range(0, 3 * MAX_PARTS * MAX_ROWS, 10_000):
            layout.add((f"invented-{start + number}" for number in range(10_000)), 1.0)
        assert layout.parts == MAX_PARTS
        assert layout.nodes == MAX_PARTS * MAX_ROWS
