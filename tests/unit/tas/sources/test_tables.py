"""The samples of a poll as tables: every sample is in one of them or left over, and nodes keep their parts."""

from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.records.tables import MAX_TABLE_METRICS, decode_table
from bus.subjects import tables_subject
from bus.tables import encoded_tables
from tas.samples.parts import MAX_PARTS, MAX_ROWS
from tas.sources.result import Sample
from tas.sources.tables import Divided, tables_of
from tas.values.quantity import Quantity

NOW = 1_000_000.0

SAMPLES = st.lists(
    st.builds(
        Sample,
        node=st.sampled_from([f"n-{number}" for number in range(12)]),
        metric=st.sampled_from(["a", "b", "c"]),
        value=st.integers(-5, 5).map(Quantity),
        measured=st.sampled_from([None, NOW - 1, NOW - 2]),
        window=st.sampled_from([None, 30.0]),
        ends=st.sampled_from([None, NOW + 9]),
    ),
    max_size=30,
    unique_by=lambda sample: (sample.node, sample.metric),
)


def samples_in(divided: Divided) -> list[Sample]:
    """The samples of all tables."""
    return [
        Sample(
            node=node,
            metric=metric,
            value=value,
            measured=scrape.measured,
            window=scrape.window,
            ends=scrape.ends,
        )
        for _, table in divided.tables
        for node in table.nodes
        for scrape in table.scrapes(node)
        for metric, value in scrape.metrics.items()
    ]


@given(SAMPLES, st.sampled_from([1, 2, 8]))
def test_every_sample_is_in_exactly_one_table(samples: list[Sample], parts: int) -> None:
    divided = tables_of(samples, source="s", requested_at=NOW, parts=parts)
    timed = [
        Sample(
            node=each.node,
            metric=each.metric,
            value=each.value,
            measured=NOW if each.measured is None else each.measured,
            window=each.window,
            ends=each.ends,
        )
        for each in samples
    ]
    assert Counter(samples_in(divided)) == Counter(timed)
    assert not divided.left
    for key, table in divided.tables:
        assert key.source == table.source == "s"
        assert {crc32(node.encode()) % parts for node in table.nodes} == {key.part.number}
        assert len({(each.window, each.ends) for node in table.nodes for each in table.scrapes(node)}) == 1


def poll(nodes: int) -> list[Sample]:
    return [Sample(node=f"node-{number}", metric="m", value=Quantity(number)) for number in range(nodes)]


@pytest.mark.parametrize(("nodes", "at_least", "at_most"), [(1000, 1, 1), (1001, 2, 2), (5000, 8, 8), (15000, 16, 32)])
def test_a_cluster_has_about_a_table_for_a_thousand_nodes(nodes: int, at_least: int, at_most: int) -> None:
    divided = tables_of(poll(nodes), source="s", requested_at=NOW)
    assert at_least <= divided.parts <= at_most
    assert len(divided.tables) == divided.parts
    assert max(len(table.nodes) for _, table in divided.tables) <= MAX_ROWS
    assert sum(len(table.nodes) for _, table in divided.tables) == nodes


def test_the_parts_of_an_earlier_poll_stay() -> None:
    assert tables_of(poll(10), source="s", requested_at=NOW, parts=8).parts == 8


def test_nodes_for_which_the_parts_have_no_room_are_left() -> None:
    divided = tables_of(poll(80_000), source="s", requested_at=NOW)
    assert divided.parts == MAX_PARTS
    assert len(divided.left) + sum(len(table.nodes) for _, table in divided.tables) == 80_000
    assert len(divided.left) >= 80_000 - MAX_PARTS * MAX_ROWS


def test_readers_refuse_no_message_however_many_metrics_policies_use() -> None:
    metrics = [f"m{number}" for number in range(2 * MAX_TABLE_METRICS + 1)]
    samples = [Sample(node=node, metric=metric, value=Quantity(1)) for node in "ab" for metric in metrics]
    divided = tables_of(samples, source="s", requested_at=NOW)
    encoded, too_large = encoded_tables(divided.tables, most=1 << 20)
    assert not too_large
    found: set[str] = set()
    for each in encoded:
        _, table, refused = decode_table(tables_subject(each.key), each.message, arrived=NOW, sequence=1)
        assert refused.errors == ()
        assert table is not None
        assert table.nodes == ("a", "b")
        found |= table.columns.keys()
    assert found == set(metrics)
