"""What a process has written comes back as the object that it has; anything else is decoded."""

import gc
from dataclasses import replace

from bus.kinds import NODE_SAMPLES, NODE_TABLES
from bus.records.nodes import StoredSamples, decode_node_samples
from bus.records.tables import decode_stored_table, encode_stored_table
from tas.samples.parts import Part
from tas.samples.sample import Scrape
from tas.samples.table import Column, Reading, Table, TableKey
from tas.values.quantity import NANO, Quantity

KEY = TableKey("poll", Part(1, 0))
OTHER = TableKey("other", Part(1, 0))


def table(value: int, source: str = "poll") -> Table:
    reading = Reading(1_800_000_000.0, 1_800_000_000.5, 7)
    return Table(source, ("a", "b"), {"load": Column((Quantity(value * NANO), Quantity(5)), reading)})


def samples(value: int) -> StoredSamples:
    at = 1_800_000_000.0
    metrics = {"load": Quantity(value * NANO)}
    return StoredSamples((Scrape(source="s", measured=at, arrived=at + 0.5, sequence=7, metrics=metrics),))


def test_a_written_table_is_not_decoded_again() -> None:
    one, two = table(1), table(2)
    datas = [NODE_TABLES.encode(each) for each in (one, two)]
    assert [NODE_TABLES.decode(KEY, data) for data in datas] == [one, two]
    assert NODE_TABLES.decode(KEY, datas[0]) is one
    assert NODE_TABLES.decode(KEY, datas[1]) is two


def test_another_source_with_the_same_values_has_its_own_table() -> None:
    one, other = table(1), table(1, "other")
    data = NODE_TABLES.encode(one)
    assert NODE_TABLES.decode(OTHER, data) == other
    assert data == NODE_TABLES.encode(other)
    assert NODE_TABLES.decode(KEY, data) == one
    assert NODE_TABLES.decode(OTHER, data) is other


def test_what_was_left_out_belongs_to_the_version() -> None:
    one = table(1)
    later = replace(one, left_out=frozenset({"load"}))
    datas = [NODE_TABLES.encode(each) for each in (one, later)]
    assert [NODE_TABLES.decode(KEY, data).left_out for data in datas] == [frozenset(), {"load"}]


def test_the_written_samples_of_a_node_are_not_decoded_again() -> None:
    one, two = samples(1), samples(2)
    datas = [NODE_SAMPLES.encode(each) for each in (one, two)]
    assert NODE_SAMPLES.decode("a", datas[0]) is one
    assert NODE_SAMPLES.decode("a", datas[1]) is two
    assert decode_node_samples(datas[0]) == one
    marked = replace(one, left_out=frozenset({"load"}))
    assert NODE_SAMPLES.decode("a", NODE_SAMPLES.encode(marked)) is marked
    assert NODE_SAMPLES.decode("a", datas[0]).left_out == frozenset()
    del marked, one
    gc.collect()
    assert NODE_SAMPLES.decode("a", datas[0]) == samples(1), "nobody has it any more"


def test_a_table_that_nobody_has_any_more_is_decoded() -> None:
    data = encode_stored_table(table(3))
    assert NODE_TABLES.decode(KEY, data) == decode_stored_table(KEY, data) == table(3)
    NODE_TABLES.encode(table(3))
    gc.collect()
    assert NODE_TABLES.decode(KEY, data) == table(3)
