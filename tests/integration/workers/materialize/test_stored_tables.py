"""Tables on a real bus: what `materialize` stores of them, what it refuses, and what each costs."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from zlib import crc32

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import NODES, TABLES
from bus.connection import Bus
from bus.consumer import Message
from bus.kinds import NODE_TABLES
from bus.record_kind import Entry
from bus.tables import encoded_tables, publish_tables
from bus.watch import Watch
from cli.queries.query import stored_nodes
from tas.samples import new_nodes
from tas.samples.parts import Part, divided
from tas.samples.table import Table, TableKey
from tas.sources.result import Sample
from tas.sources.tables import tables_of
from tas.values.quantity import NANO, Quantity
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.materialize.test_materialize import (
    Materialized,
    delete_facts,
    list_nodes,
    materializing,
)
from tests.integration.workers.materialize.test_materialize import publish as publish_scrape_of
from tests.integration.workers.running import all_handled, running
from workers.following.followed_view import FollowedView
from workers.following.node_samples import NodeSamplesReads
from workers.materialize import stored_tables
from workers.materialize.stored_tables import MAX_SOURCES
from workers.materialize.worker import Materialize

WHOLE = Part(1, 0)
"""The only part of a source with few nodes."""

NAMES = [f"node-{number:04}" for number in range(1000)]


def at(seconds: float = 0.0) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()


async def publish(
    bus: Bus,
    rows: Mapping[str, Mapping[str, object]],
    *,
    source: str = "poll",
    part: str = "1-0",
    ago: float = 0.0,
) -> int:
    """Publishes a table as a program in another language does: from the values of each node."""
    metrics = sorted({metric for values in rows.values() for metric in values})
    body = {
        "nodes": list(rows),
        "measured": at(-ago),
        "metrics": {metric: [values.get(metric) for values in rows.values()] for metric in metrics},
    }
    return await answered(lambda: bus.publish(TABLES, f"tas.tables.{source}.{part}", json.dumps(body).encode()))


async def stored(bus: Bus, source: str = "poll", part: Part = WHOLE) -> Entry[TableKey, Table]:
    return await answered(lambda: NODE_TABLES.get(bus, TableKey(source, part)))


async def values(bus: Bus, metric: str, source: str = "poll", part: Part = WHOLE) -> dict[str, float]:
    """The stored value of each node."""
    table = (await stored(bus, source, part)).readable()
    if table is None or metric not in table.columns:
        return {}
    column = table.columns[metric]
    return {node: value / NANO for node, value in zip(table.nodes, column.values, strict=True) if value is not None}


async def have(bus: Bus, metric: str, expected: Mapping[str, float], source: str = "poll") -> None:
    async def are_stored() -> bool:
        return await values(bus, metric, source) == expected

    await eventually(are_stored)


@pytest.fixture
async def materialized(bus: Bus) -> AsyncIterator[Materialized]:
    async with materializing(bus) as materialized:
        await eventually(lambda: materialized.worker.unready() is None)
        yield materialized


async def test_a_table_of_a_thousand_nodes_costs_one_message_and_one_write(materialized: Materialized) -> None:
    bus = materialized.bus
    before = (await answered(lambda: bus.epoch(NODES))).last_sequence
    for poll in range(3):
        await publish(bus, {node: {"load": str(poll)} for node in NAMES})
        await have(bus, "load", dict.fromkeys(NAMES, float(poll)))
    assert (await answered(lambda: bus.epoch(NODES))).last_sequence == before + 3
    assert materialized.metric("tas_table_writes_total") == 3
    assert materialized.metric("tas_table_messages_total") == 3
    assert materialized.refusals() == {}


async def test_each_cell_has_its_newest_value(materialized: Materialized) -> None:
    bus = materialized.bus
    await publish(bus, {"a": {"load": "1", "free": "1"}, "b": {"load": "1"}}, ago=10)
    await publish(bus, {"b": {"load": "2"}, "c": {"load": "3"}}, ago=5)
    await publish(bus, {"a": {"load": "0"}, "b": {"load": "0"}}, ago=20)  # late
    await have(bus, "load", {"a": 1, "b": 2, "c": 3})
    await have(bus, "free", {"a": 1})


async def test_a_table_that_is_delivered_again_writes_nothing(materialized: Materialized) -> None:
    bus = materialized.bus
    await publish(bus, {"a": {"load": "1"}})
    await have(bus, "load", {"a": 1})
    revision = (await stored(bus)).revision
    (message,) = await answered(lambda: bus.last_messages(TABLES, "tas.tables.poll.1-0"))
    again = [message]
    await materialized.worker._tables._merge_all(again)  # type: ignore[arg-type] # what it reads of a message is there
    assert (await stored(bus)).revision == revision


async def test_only_invalid_cells_rows_and_columns_are_refused(materialized: Materialized) -> None:
    bus = materialized.bus
    other_part = next(name for name in NAMES if crc32(name.encode()) % 2)
    ours = [name for name in NAMES if crc32(name.encode()) % 2 == 0][:3]
    body = {
        "nodes": [ours[0], other_part, "Not-A-Name", ours[1], ours[1], ours[2]],
        "measured": at(),
        "metrics": {"load": ["1", "1", "1", "1", "1", "NaN"], "free": [1, 2, 3, 4, 5, 6], "short": ["1"]},
    }
    await answered(lambda: bus.publish(TABLES, "tas.tables.poll.2-0", json.dumps(body).encode()))

    async def is_stored() -> bool:
        return await values(bus, "free", part=Part(2, 0)) == {ours[0]: 1, ours[2]: 6}

    await eventually(is_stored)
    assert await values(bus, "load", part=Part(2, 0)) == {ours[0]: 1}
    await eventually(lambda: materialized.refusals() == {"names": 4, "value": 2})


@pytest.mark.parametrize(
    ("subject", "body", "reason"),
    [
        ("tas.tables.poll.3-0", {}, "subject"),
        ("tas.tables.poll.1-0", [], "body"),
        ("tas.tables.poll.1-0", {"nodes": ["a"] * 1001, "metrics": {}}, "names"),
        ("tas.tables.poll.1-0", {"nodes": ["a"], "metrics": {"m": ["1"]}, "measured": "2020-01-01T00:00:00Z"}, "time"),
    ],
    ids=["subject", "body", "rows", "time"],
)
async def test_a_bad_table_is_refused_and_counted(
    materialized: Materialized, subject: str, body: object, reason: str
) -> None:
    await answered(lambda: materialized.bus.publish(TABLES, subject, json.dumps(body).encode()))
    await eventually(lambda: materialized.refusals() == {reason: 1})
    await publish(materialized.bus, {"a": {"load": "1"}})
    await have(materialized.bus, "load", {"a": 1})


async def test_rows_of_nodes_that_kubernetes_does_not_have_are_refused(materialized: Materialized) -> None:
    bus = materialized.bus
    await list_nodes(bus, "a", "b")
    await eventually(lambda: materialized.worker._cluster is True)
    await publish(bus, {"a": {"load": "1"}, "x": {"load": "1"}, "b": {"load": "2"}, "y": {"load": "1"}})
    await have(bus, "load", {"a": 1, "b": 2})
    assert materialized.refusals() == {"unknown_node": 2}


async def test_without_a_cluster_nodes_that_a_publisher_invents_are_bounded_counted_and_named(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As samples and as rows of tables; a process that starts knows the nodes that are stored."""
    monkeypatch.setattr(new_nodes, "MAX_NODES_OF_SOURCE", 30)
    monkeypatch.setattr(new_nodes, "MAX_NODES", 50)
    async with materializing(bus) as first:
        await list_nodes(bus, cluster=False)
        await eventually(lambda: first.worker._cluster is False)
        await publish(bus, {"a": {"load": "1"}, "b": {"load": "2"}})
        for number in range(20):
            await publish_scrape_of(bus, f"single-{number}", "bad", load=1)
        await all_handled(bus)
        await publish(bus, {f"row-{number}": {"load": "1"} for number in range(100)}, source="bad")
        await eventually(lambda: first.refusals() == {"capacity": 90})
        for number in range(20, 60):
            await publish_scrape_of(bus, f"single-{number}", "bad", load=1)
        await eventually(lambda: first.refusals() == {"capacity": 130})
        assert len((await stored_nodes(bus)).samples) == 32
        await publish_scrape_of(bus, "c", "good", load=1)
        await first.has("c", "load", "1")
        (refused,) = first.worker.refused_samples()
        assert (refused.source, refused.reason, refused.count) == ("bad", "capacity", 130)
        assert "bad brought 30, at most 30" in refused.example
    async with materializing(bus) as second:
        await eventually(lambda: second.worker._cluster is False)
        await publish_scrape_of(bus, "single-3", "bad", load=7)
        await second.has("single-3", "load", "7")
        for number in range(100, 140):
            await publish_scrape_of(bus, f"single-{number}", "third", load=1)
        await publish_scrape_of(bus, "c", "good", load=2)
        await second.has("c", "load", "2")
        assert 20 <= second.refusals()["capacity"] < 40, "the bus has a bound for all sources together"


async def test_in_a_cluster_no_names_of_nodes_are_kept_for_the_bound_of_invented_ones(bus: Bus) -> None:
    """Else the names of all nodes that ever were would stay, for as long as the process runs."""
    async with materializing(bus) as materialized:
        for node in NAMES[:10]:
            await publish_scrape_of(bus, node, "machine", load=1)
            await materialized.has(node, "load", "1")
        assert materialized.worker._new_nodes._brought_by, "no list of nodes says that there is a cluster"
        await list_nodes(bus, *NAMES[:20])
        await eventually(lambda: materialized.worker._cluster is True)
        for node in NAMES[10:20]:
            await publish_scrape_of(bus, node, "machine", load=1)
        for node in NAMES[:20]:
            await materialized.has(node, "load", "1")
        assert not materialized.worker._new_nodes._brought_by


async def test_rows_of_deleted_nodes_are_removed_together(
    materialized: Materialized, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tables, "GATHER_SECONDS", 0.5)
    bus = materialized.bus
    await list_nodes(bus, *NAMES[:20])
    await eventually(lambda: materialized.worker._cluster is True)
    await publish(bus, {node: {"load": "1"} for node in NAMES[:20]})
    await have(bus, "load", dict.fromkeys(NAMES[:20], 1.0))
    written = materialized.metric("tas_table_writes_total")
    await asyncio.gather(*(delete_facts(bus, node) for node in NAMES[:10]))
    await have(bus, "load", dict.fromkeys(NAMES[10:20], 1.0))
    assert materialized.metric("tas_table_writes_total") - written <= 2  # most were gathered
    await asyncio.gather(*(delete_facts(bus, node) for node in NAMES[10:20]))

    async def is_deleted() -> bool:
        return not (await stored(bus)).present

    await eventually(is_deleted)


async def test_without_a_cluster_deleted_facts_remove_no_rows(
    materialized: Materialized, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tables, "GATHER_SECONDS", 0.0)
    bus = materialized.bus
    await list_nodes(bus, "a", cluster=False)
    await publish(bus, {"a": {"load": "1"}})
    await have(bus, "load", {"a": 1})
    await delete_facts(bus, "a")
    await publish(bus, {"b": {"load": "2"}})
    await have(bus, "load", {"a": 1, "b": 2})


async def test_conflicting_replicas_lose_no_cell(bus: Bus, server: Server) -> None:
    chance = random.Random(1)
    async with (
        Bus.connect(server.url, name="other") as other_bus,
        materializing(bus) as one,
        materializing(other_bus) as other,
    ):
        await eventually(lambda: one.worker.unready() is None and other.worker.unready() is None)
        newest: dict[str, float] = {}
        for number in range(60):
            rows = {node: {"load": str(number)} for node in chance.sample(NAMES[:10], 4)}
            newest |= dict.fromkeys(rows, float(number))
            await publish(bus, rows, ago=60 - number)
        await have(bus, "load", newest)

        def handled() -> list[float]:
            return [each.metric("tas_table_messages_total") for each in (one, other)]

        await eventually(lambda: sum(handled()) >= 60)  # the last ones are counted after their values are stored
        assert min(handled()) > 0, "one replica got everything"


async def test_tables_published_after_a_wipe_are_stored(materialized: Materialized, server: Server) -> None:
    await publish(materialized.bus, {"a": {"load": "1"}})
    await have(materialized.bus, "load", {"a": 1})
    await server.restart(wiped=True)
    await materialized.bus.wait_connected()

    async def is_stored_again() -> bool:
        await publish(materialized.bus, {"b": {"load": "2"}})
        return await values(materialized.bus, "load") == {"b": 2}

    await eventually(is_stored_again)


async def test_a_source_beyond_the_limit_is_refused_and_the_others_go_on(materialized: Materialized) -> None:
    bus = materialized.bus
    for number in range(MAX_SOURCES + 1):
        await publish(bus, {"a": {"load": "1"}, "b": {"load": "1"}}, source=f"s-{number}")
    await eventually(lambda: materialized.refusals() == {"capacity": 2})
    await publish(bus, {"a": {"load": "5"}}, source="s-0")
    await have(bus, "load", {"a": 5, "b": 1}, source="s-0")


async def test_an_invalid_stored_table_is_replaced(materialized: Materialized) -> None:
    bus = materialized.bus
    invalid = b'{"nodes": ["a"], "readings": [], "metrics": {}, "x": '
    await answered(lambda: bus.put(NODES, "_table.poll.1-0", invalid, revision=0, read_at=time.monotonic()))
    await publish(bus, {"a": {"load": "1"}})
    await have(bus, "load", {"a": 1})


async def test_a_table_without_a_value_that_can_count_is_deleted(
    materialized: Materialized, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tables, "MAX_SAMPLE_AGE", 0.0)
    monkeypatch.setattr(stored_tables, "CHECK_SECONDS", 0.05)
    bus = materialized.bus
    await publish(bus, {"a": {"load": "1"}})
    async with materializing(bus):  # with the short time from its start

        async def is_deleted() -> bool:
            entry = await stored(bus)
            return entry.revision > 0 and not entry.present

        await eventually(is_deleted)


async def test_a_source_may_change_to_samples_of_nodes_and_back_and_publish_both(
    materialized: Materialized, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each node and metric the newest value counts, and a table without one goes."""
    monkeypatch.setattr(stored_tables, "CHECK_SECONDS", 0.05)
    bus = materialized.bus

    async def newest(node: str) -> dict[str, float]:
        samples = (await answered(lambda: NodeSamplesReads(bus).read(node))).readable
        return {metric: value / NANO for scrape in samples for metric, value in scrape.metrics.items()}

    async def is_gone() -> bool:
        return not (await stored(bus)).present

    async with materializing(bus) as other:  # with the short time from its start
        await publish(bus, {"a": {"load": 1, "heat": 1}, "b": {"load": 1}}, ago=3)
        await have(bus, "load", {"a": 1, "b": 1})
        await publish_scrape_of(bus, "a", "poll", ago=2, load=2, heat=2)
        await publish_scrape_of(bus, "b", "another", ago=2, load=9)  # not of this source
        await other.has("b", "load", "9")
        await other.has("a", "load", "2")
        await publish(bus, {"a": {"load": 3}}, ago=1)  # both, in turn
        await have(bus, "load", {"a": 3, "b": 1})
        assert await newest("a") == {"load": 3, "heat": 2}
        await publish_scrape_of(bus, "a", "poll", load=4, heat=4)
        await publish_scrape_of(bus, "b", "poll", load=4)
        await eventually(is_gone)
        assert await newest("a") == {"load": 4, "heat": 4}
        await publish(bus, {"a": {"load": 5}, "b": {"load": 5}})
        await have(bus, "load", {"a": 5, "b": 5})
        assert await newest("a") == {"load": 5, "heat": 4}


async def test_replicas_publish_parts_in_turn_and_the_layout_changes_within_a_poll(materialized: Materialized) -> None:
    """A replica ends in the middle of a poll, and the next one, which knows of no layout, begins with fewer parts."""
    bus, now = materialized.bus, time.time()
    expected: dict[str, float] = {}

    async def poll(value: int, parts: int, *, only: int, to: int | None = None) -> None:
        """Publishes the tables of a poll from number `only` to number `to`."""
        samples = [Sample(node=node, metric="load", value=Quantity(value * NANO)) for node in NAMES[:200]]
        divided = tables_of(samples, source="poll", requested_at=now - 60 + value, parts=parts)
        assert len(divided.tables) == parts
        tables, _ = encoded_tables(divided.tables[only:to], most=1 << 18)
        await answered(lambda: publish_tables(bus, tables))
        expected.update(dict.fromkeys((node for each in tables for node in each.table.nodes), value))

    await poll(1, 4, only=0)
    await poll(2, 4, only=0, to=2)  # it ends here
    await poll(3, 2, only=0, to=1)
    await poll(4, 8, only=6)  # grown meanwhile, and the first parts come last
    await poll(4, 8, only=0, to=1)
    assert set(expected.values()) == {1, 2, 3, 4}

    async def are_newest() -> bool:
        samples = (await answered(lambda: stored_nodes(bus))).samples
        return {node: scrape.metrics["load"] / NANO for node, (scrape,) in samples.items()} == expected

    await eventually(are_newest)


async def test_two_programs_with_one_name_overwrite_only_what_both_have(materialized: Materialized) -> None:
    bus = materialized.bus
    for number in range(3):
        await publish(bus, {"a": {"load": number}, "b": {"load": number}}, ago=9 - 2 * number)
        await publish(bus, {"b": {"load": 10 + number}, "c": {"heat": number}}, ago=8 - 2 * number)
    await have(bus, "load", {"a": 2, "b": 12})
    await have(bus, "heat", {"c": 2})


BACKLOG = 200


async def test_of_a_backlog_the_newest_counts_and_no_table_is_skipped_unread(bus: Bus) -> None:
    """A value that only an older table has counts; all others are left out, and that is said."""
    await publish(bus, {"a": {"load": "1"}, "b": {"load": "1"}, "c": {"load": "1"}}, ago=2 * BACKLOG)
    for number in range(BACKLOG):
        rows: dict[str, Mapping[str, object]] = {"a": {"load": str(number)}, "b": {"load": None}, "c": {"load": "bad"}}
        if number == BACKLOG // 2:
            rows |= {"b": {"load": "99"}, "c": {"load": "98"}, "d": {"load": "97", "free": "96"}}
        await publish(bus, rows, ago=BACKLOG - number)
    async with materializing(bus) as materialized:
        await have(bus, "load", {"a": BACKLOG - 1, "b": 99, "c": 98, "d": 97})
        await have(bus, "free", {"d": 96})
        await eventually(lambda: materialized.metric("tas_table_messages_total") == BACKLOG + 1)
        writes, superseded = (
            materialized.metric(f"tas_table_{name}_total") for name in ("writes", "messages_superseded")
        )
        assert writes + superseded >= BACKLOG + 1
        assert writes <= BACKLOG // 8, "the values in between were written, too"
        table = (await stored(bus)).readable()
        assert table is not None
        assert table.left_out == {"load"}
        await publish(bus, {node: {"load": "5"} for node in "abcd"})
        await have(bus, "load", dict.fromkeys("abcd", 5.0))
        table = (await stored(bus)).readable()
        assert table is not None
        assert table.left_out == frozenset(), "every value since the last version is in this one"


@pytest.mark.parametrize("knows", [True, False], ids=["knows the newer values", "finds them by a conflict"])
async def test_a_replica_that_comes_with_older_tables_says_once_that_nobody_has_seen_their_values(
    bus: Bus, *, knows: bool
) -> None:
    """Another replica has stored newer values: nothing is new, but a violation may have come and gone."""
    registry = CollectorRegistry()
    replica = Materialize(bus, registry=registry)  # without a watch it knows only what it has written or read
    newest = replica if knows else Materialize(bus, registry=CollectorRegistry())

    now = time.time()  # of all messages: a later one with a smaller number must be older

    def message(sequence: int, rows: Mapping[str, str], metric: str = "load") -> Message:
        measured = datetime.fromtimestamp(now + sequence - 100, UTC).isoformat()
        body = {"nodes": list(rows), "measured": measured, "metrics": {metric: list(rows.values())}}
        data = json.dumps(body).encode()
        return Message("tas.tables.poll.1-0", data, sequence, arrived=time.time(), deliveries=1, reply="")

    def writes() -> float:
        return registry.get_sample_value("tas_table_writes_total") or 0

    async def left_out() -> frozenset[str]:
        table = (await stored(bus)).readable()
        assert table is not None
        return table.left_out

    await newest._tables.handle([message(9, {"a": "1", "b": "1"}), message(8, {"a": "1"}, "heat")])
    before = writes()
    await replica._tables.handle([message(4, {"a": "99"}), message(3, {"b": "98"})])
    assert await left_out() == {"load"}
    assert writes() == before + 1
    for sequence in (4, 2, 8):  # one is delivered again, two were published before the version that says it
        await replica._tables.handle([message(sequence, {"a": "1", "b": "1"})])
    assert writes() == before + 1, "readers know it already"
    assert registry.get_sample_value("tas_table_messages_superseded_total") == (5 if knows else 3)
    await replica._tables.handle([message(10, {"a": "1", "b": "1"})])
    assert await left_out() == frozenset()
    await replica._tables.handle([message(7, {"b": "99"})])
    assert writes() == before + 2, "they have known it since an earlier version"
    have = (await stored(bus)).readable()
    await replica._tables.handle([message(5, {"a": "99"}, "heat")])
    assert await left_out() == {"heat"}, "what is said of one metric says nothing of another"
    assert (await stored(bus)).readable() == have
    await replica._tables.handle([message(6, {"a": "1", "c": "1"})])
    assert await left_out() == {"load"}
    assert await values(bus, "load") == {"a": 1, "b": 1, "c": 1}


async def test_a_source_with_64_parts_that_publishes_as_fast_as_it_can_delays_no_other(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By counting: the value of the other source is stored while nearly all of the backlog still waits."""
    monkeypatch.setattr("bus.overtaking.BEHIND_BYTES", 128 << 10)
    names = divided((f"node-{number:05}" for number in range(64 * 100)), 64)
    assert len(names) == 64
    rounds = 8
    for number in range(rounds):
        for part, nodes in names.items():
            rows = {node: {metric: str(number) for metric in "abcde"} for node in nodes}
            await publish(bus, rows, source="hostile", part=str(part))
    await publish(bus, {"a": {"load": "7"}}, source="honest")
    async with materializing(bus) as materialized:
        await have(bus, "load", {"a": 7}, source="honest")
        handled = materialized.metric("tas_table_messages_total")
        writes = materialized.metric("tas_table_writes_total")
        assert handled < 64 * rounds / 2, "the other source had to wait for the backlog"
        assert writes < 64 * rounds / 2, "the backlog was handled first, but not counted"
        await eventually(lambda: materialized.metric("tas_table_messages_total") == 64 * rounds + 1)
        for part, nodes in names.items():
            table = (await stored(bus, "hostile", part)).readable()
            assert table is not None
            assert {node: samples[0].metrics["a"] for node in nodes if (samples := table.scrapes(node))} == (
                dict.fromkeys(nodes, (rounds - 1) * NANO)
            )


async def test_every_watch_of_a_table_gets_one_entry_for_each_poll(materialized: Materialized) -> None:
    """What a view costs is counted in entries, not in nodes."""
    bus, entries = materialized.bus, list[str]()
    watch = Watch(bus, NODE_TABLES.to(lambda entry: entries.append(str(entry.key.part))), on_epoch=lambda _: None)
    followed = FollowedView(bus, default_stale_after=60)
    async with running(watch), running(followed):
        for poll in range(1, 5):
            await publish(bus, {node: {"load": str(poll)} for node in NAMES})
            await eventually(partial(has_load, followed, poll))
            # The view is another reader, and may have the entry first. With one too many the next poll is never equal.
            await eventually(partial(has_entries, entries, poll))


def has_entries(entries: Sequence[str], count: int) -> bool:
    return len(entries) == count


def has_load(followed: FollowedView, value: int) -> bool:
    found = [followed.view.samples(node) for node in NAMES]
    return [samples[0].metrics["load"] for samples in found if samples] == [value * NANO] * len(NAMES)
