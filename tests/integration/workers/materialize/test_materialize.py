"""The worker `materialize` on a real bus: which scrapes are stored, and which are refused."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import NODES, SAMPLES, SYNCED, TABLES, Bucket
from bus.connection import Bus, RawEntry
from bus.consumer import Message
from bus.errors import RefusedError, UnavailableError
from bus.history import purge_tombstone
from bus.kinds import NODE_FACTS, NODE_RELEASES, NODE_SAMPLES, NODE_TABLES
from bus.overtaking import is_overtaken
from bus.records.codec import encode
from bus.records.nodes import NodeFacts, NodeRelease, decode_node_samples
from bus.records.samples import encode_samples
from bus.records.synced import Synced
from bus.scrapes import publish_scrapes
from bus.subjects import samples_subject
from tas.samples.capacity import SOURCE_LIMIT
from tas.samples.parts import Part
from tas.samples.sample import Scrape, metric_count, newest
from tas.samples.table import TableKey
from tas.values.quantity import NANO, Quantity, format_quantity
from tests.integration.servers import Server, all_answered, answered, eventually
from tests.integration.workers.running import (
    all_handled,
    both_wait_for_messages,
    consumer_state,
    entry_on,
    epoch_on,
    put,
    running,
    samples_on,
)
from workers.following.followed_view import FollowedView
from workers.materialize.worker import MAX_REFUSED_OBJECTS, Materialize

REASONS = (
    "body",
    "capacity",
    "metrics",
    "names",
    "other",
    "subject",
    "time",
    "unknown_node",
    "value",
    "window",
    "write",
)


class Materialized:
    """A running worker, the bus it works on, and its metrics."""

    def __init__(self, bus: Bus, worker: Materialize, registry: CollectorRegistry) -> None:
        self.bus = bus
        self.worker = worker
        self._registry = registry

    def metric(self, name: str, **labels: str) -> float:
        value = self._registry.get_sample_value(name, labels)
        assert value is not None, name
        return value

    def refusals(self) -> dict[str, float]:
        """The counts of refused samples by reason, without zeros."""
        counts = {reason: self.metric("tas_samples_refused_total", reason=reason) for reason in REASONS}
        return {reason: count for reason, count in counts.items() if count}

    async def value(self, node: str, metric: str, source: str | None = None) -> str | None:
        scrape = newest(await samples_on(self.bus, node) or (), metric, source)
        return None if scrape is None else format_quantity(scrape.metrics[metric])

    async def has(self, node: str, metric: str, value: str | None) -> None:
        """Waits until this is the newest value, and every message on SAMPLES was handled."""

        async def stored() -> bool:
            return await self.value(node, metric) == value

        await eventually(stored)
        await all_handled(self.bus)


@asynccontextmanager
async def materializing(bus: Bus) -> AsyncIterator[Materialized]:
    registry = CollectorRegistry()
    worker = Materialize(bus, registry=registry)
    async with running(worker):
        yield Materialized(bus, worker, registry)


@pytest.fixture
async def materialized(bus: Bus) -> AsyncIterator[Materialized]:
    async with materializing(bus) as materialized:
        await eventually(lambda: materialized.worker.unready() is None)
        yield materialized


async def publish(bus: Bus, node: str, source: str = "test", *, ago: float = 0.0, **metrics: float) -> int:
    measured = time.time() - ago
    scrape = Scrape(
        source=source,
        measured=measured,
        arrived=measured,
        sequence=0,
        metrics={metric: Quantity(round(value * NANO)) for metric, value in metrics.items()},
    )
    return await answered(lambda: bus.publish(SAMPLES, samples_subject(node, source), encode_samples(scrape)))


async def publish_text(bus: Bus, text: str | bytes, subject: str = "tas.samples.node-1.test") -> int:
    body = text.encode() if isinstance(text, str) else text
    return await answered(lambda: bus.publish(SAMPLES, subject, body))


def at(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def list_nodes(bus: Bus, *nodes: str, cluster: bool = True, created: Mapping[str, datetime] = {}) -> None:
    """Writes what `watch` would write: facts, then `_synced`."""
    for node in nodes:
        facts = encode(NodeFacts(uid=f"uid-{node}", labels={}, created=created.get(node)))
        await put(bus, NODES, NODE_FACTS.key(node), facts)
    synced = Synced(
        epoch=(await epoch_on(bus, NODES)).created,
        count=len(nodes),
        time=datetime.now(UTC),
        writer="watch",
        cluster=cluster,
    )
    await put(bus, NODES, SYNCED, encode(synced))


async def delete_facts(bus: Bus, node: str) -> None:
    await put(bus, NODES, NODE_FACTS.key(node), None)


async def test_a_sample_is_stored_as_published(materialized: Materialized) -> None:
    sequence = await publish(materialized.bus, "ip-10-0-0-1.ec2.internal", "exporter", ago=3, load1=1.5, zero=0)
    await materialized.has("ip-10-0-0-1.ec2.internal", "load1", "1.5")
    (scrape,) = await samples_on(materialized.bus, "ip-10-0-0-1.ec2.internal") or ()
    assert (scrape.source, scrape.sequence) == ("exporter", sequence)
    assert 2.5 < scrape.arrived - scrape.measured < 30
    assert set(scrape.metrics) == {"load1", "zero"}
    assert materialized.metric("tas_node_writes_total") == 1
    assert materialized.metric("tas_nodes") == 1
    assert materialized.metric("tas_sample_write_seconds_count") == 1
    assert 0 < materialized.metric("tas_sample_write_seconds_sum") < 60
    assert materialized.refusals() == {}


async def test_the_newest_measured_sample_wins_in_any_order(materialized: Materialized) -> None:
    await publish(materialized.bus, "node-1", ago=10, load1=10)
    await publish(materialized.bus, "node-1", ago=30, load1=30)
    await publish(materialized.bus, "node-1", ago=20, load1=20, other=1)
    await all_handled(materialized.bus)
    assert await materialized.value("node-1", "load1") == "10"
    assert await materialized.value("node-1", "other") == "1"


async def test_samples_of_several_sources_are_kept(materialized: Materialized) -> None:
    await publish(materialized.bus, "node-1", "a", ago=5, load1=1)
    await publish(materialized.bus, "node-1", "b", load1=2)
    await all_handled(materialized.bus)
    assert await materialized.value("node-1", "load1", "a") == "1"
    assert await materialized.value("node-1", "load1", "b") == "2"


async def test_a_message_delivered_twice_writes_nothing(materialized: Materialized) -> None:
    await publish(materialized.bus, "node-1", load1=1)
    await all_handled(materialized.bus)
    entry = await entry_on(materialized.bus, NODES, NODE_SAMPLES.key("node-1"))
    (scrape,) = await samples_on(materialized.bus, "node-1") or ()
    again = Message(
        subject="tas.samples.node-1.test",
        data=encode_samples(scrape),
        sequence=scrape.sequence,
        arrived=scrape.arrived,
        deliveries=2,
        reply="",
    )
    await materialized.worker.handle([again, again])
    assert await entry_on(materialized.bus, NODES, NODE_SAMPLES.key("node-1")) == entry
    assert materialized.metric("tas_node_writes_total") == 1


def message_of(
    sequence: int, metrics: dict[str, str], node: str = "node-1", *, now: float, source: str = "test"
) -> Message:
    """A message of which the values were measured in the order of the sequences."""
    body = {"metrics": metrics, "measured": datetime.fromtimestamp(now + sequence - 100, UTC).isoformat()}
    subject = samples_subject(node, source)
    return Message(subject, json.dumps(body).encode(), sequence, arrived=now, deliveries=1, reply="")


async def left_out_of(bus: Bus, node: str = "node-1") -> frozenset[str]:
    """The metrics of which the record of a node says that values were left out."""
    entry = await entry_on(bus, NODES, NODE_SAMPLES.key(node))
    assert entry is not None
    assert entry.value is not None
    return decode_node_samples(entry.value).left_out


async def test_a_record_says_of_which_metrics_values_were_left_out(materialized: Materialized) -> None:
    """Of values that come together only the newest is stored: a reader must know that it has not seen each."""
    bus, now = materialized.bus, time.time()

    def message(sequence: int, metrics: dict[str, str], node: str = "node-1") -> Message:
        return message_of(sequence, metrics, node, now=now)

    async def left_out(node: str = "node-1") -> frozenset[str]:
        return await left_out_of(bus, node)

    batch = [message(1, {"load": "1", "heat": "1"}), message(2, {"load": "99"}), message(3, {"load": "1"})]
    await materialized.worker.handle([*batch, message(3, {"load": "1"}, "node-2")])
    assert await materialized.value("node-1", "load") == await materialized.value("node-1", "heat") == "1"
    assert await left_out() == {"load"}
    assert await left_out("node-2") == frozenset()
    await materialized.worker.handle([message(4, {"load": "1", "heat": "1"})])
    assert await left_out() == frozenset(), "every value since the last version is in this one"


@pytest.mark.parametrize("knows", [True, False], ids=["knows the newer values", "finds them by a conflict"])
async def test_a_replica_that_comes_with_older_messages_says_once_that_nobody_has_seen_their_values(
    bus: Bus, *, knows: bool
) -> None:
    """Another replica has stored newer values: nothing is new, but a violation may have come and gone."""
    registry, now = CollectorRegistry(), time.time()
    replica = Materialize(bus, registry=registry)  # without a watch it knows only what it has written or read
    newest = replica if knows else Materialize(bus, registry=CollectorRegistry())

    def writes() -> float:
        return registry.get_sample_value("tas_node_writes_total") or 0

    for node in ("node-1", "node-2"):
        await newest.handle([message_of(9, {"load": "1", "heat": "1"}, node, now=now)])
    before = writes()
    await replica.handle([message_of(4, {"load": "99"}, now=now), message_of(3, {"load": "98"}, now=now)])
    assert await left_out_of(bus) == {"load"}
    assert writes() == before + 1
    for sequence in (4, 2, 8, 9):  # one is delivered again, two were published before the version that says it
        await replica.handle([message_of(sequence, {"load": "1"}, now=now)])
    assert writes() == before + 1, "readers know it already"
    await replica.handle([message_of(10, {"load": "1"}, now=now)])
    assert await left_out_of(bus) == frozenset()
    await replica.handle([message_of(7, {"load": "99"}, now=now)])
    assert writes() == before + 2, "they have known it since an earlier version"
    samples = await samples_on(bus, "node-1")
    await replica.handle([message_of(5, {"heat": "99", "load": "99"}, now=now)])
    assert await left_out_of(bus) == {"heat"}, "what is said of one metric says nothing of another"
    assert writes() == before + 3
    assert await samples_on(bus, "node-1") == samples
    late = message_of(10, {"load": "99"}, "node-2", now=now - 50)
    await replica.handle([late])
    assert await left_out_of(bus, "node-2") == frozenset(), "it came late: it never counted"
    await replica.handle([message_of(8, {"load": "99"}, "node-2", now=now, source="other")])
    assert await left_out_of(bus, "node-2") == frozenset(), "nothing is left out of another source"


async def test_a_process_that_stores_samples_and_reads_them_has_them_in_memory_once(materialized: Materialized) -> None:
    """As `run all`: what it has written is not decoded again, with one message for each node or for many."""
    nodes = [f"node-{number}" for number in range(20)]
    followed = FollowedView(materialized.bus, default_stale_after=60.0)
    async with running(followed):
        await eventually(lambda: followed.watches[NODES.name].caught_up)
        for node in nodes:
            await publish(materialized.bus, node, load1=1)
        await eventually(lambda: all(followed.view.samples(node) for node in nodes))
        for node in nodes:
            (stored,), (seen,) = materialized.worker._nodes[node].samples, followed.view.samples(node)
            assert stored is seen


async def test_many_messages_of_a_node_are_merged_into_few_writes(bus: Bus) -> None:
    for number in range(500):
        await publish(bus, f"node-{number % 5}", ago=(500 - number) / 100, load1=number)
    async with materializing(bus) as materialized:
        await all_handled(materialized.bus)
        for node in range(5):
            assert await materialized.value(f"node-{node}", "load1") == str(495 + node)
        assert materialized.metric("tas_node_writes_total") <= 100
        assert materialized.metric("tas_sample_messages_total") == 500
        assert 5 <= materialized.metric("tas_sample_write_seconds_count") <= 100


async def test_messages_published_before_the_start_are_merged(bus: Bus) -> None:
    await publish(bus, "node-1", load1=1)
    async with materializing(bus) as materialized:
        assert materialized.worker.unready() is not None
        await materialized.has("node-1", "load1", "1")
        await eventually(lambda: materialized.worker.unready() is None)


GOOD = '"metrics": {"good": "1"}'
REFUSED_WHOLE: dict[str, tuple[str | bytes, str]] = {
    "not-json": ("{", "body"),
    "empty": ("", "body"),
    "a-list": ("[]", "body"),
    "binary": (b"\xff\xfe\x00", "body"),
    "deep": ('{"metrics":' * 20_000, "body"),
    "no-metrics": ("{}", "metrics"),
    "metrics-are-a-list": ('{"metrics": [1]}', "metrics"),
    "a-day-ahead": (f'{{{GOOD}, "measured": "{at(86400)}"}}', "time"),
    "a-day-old": (f'{{{GOOD}, "measured": "{at(-86400)}"}}', "time"),
    "no-time": (f'{{{GOOD}, "measured": "yesterday"}}', "time"),
    "time-without-zone": (f'{{{GOOD}, "measured": "2026-01-01T00:00:00"}}', "time"),
    "window-backwards": (f'{{{GOOD}, "window": -1}}', "window"),
    "another-node": (f'{{{GOOD}, "node": "node-2"}}', "names"),
    "another-source": (f'{{{GOOD}, "source": "other"}}', "names"),
    "1001-metrics": (json.dumps({"metrics": {f"m{number}": 1 for number in range(1001)}}), "metrics"),
}


@pytest.mark.parametrize("case", REFUSED_WHOLE)
async def test_a_bad_message_is_refused_counted_and_logged(materialized: Materialized, case: str) -> None:
    text, reason = REFUSED_WHOLE[case]
    with capture_logs() as logs:
        await publish_text(materialized.bus, text)
        await all_handled(materialized.bus)
        await publish(materialized.bus, "node-3", load1=3)
        await all_handled(materialized.bus)
    assert materialized.refusals() == {reason: 1}
    (line,) = [line for line in logs if line["event"] == "sample_refused"]
    assert line["object"] == "sample node-1/test"
    assert line["field"]
    assert line["reason"]
    assert len(line["value"]) <= 80
    # Nothing else is changed, and it is not tried again.
    assert await samples_on(materialized.bus, "node-1") is None
    assert await samples_on(materialized.bus, "node-2") is None
    assert await materialized.value("node-3", "load1") == "3"


REFUSED_METRICS = {
    "nan": ('{"metrics": {"good": 1, "bad": NaN}}', "value"),
    "nan-text": ('{"metrics": {"good": 1, "bad": "NaN"}}', "value"),
    "infinity": ('{"metrics": {"good": 1, "bad": Infinity}}', "value"),
    "minus-infinity": ('{"metrics": {"good": 1, "bad": -Infinity}}', "value"),
    "inf-text": ('{"metrics": {"good": 1, "bad": "+Inf"}}', "value"),
    "1e400": ('{"metrics": {"good": 1, "bad": 1e400}}', "value"),
    "1e400-text": ('{"metrics": {"good": 1, "bad": "1e400"}}', "value"),
    "null": ('{"metrics": {"good": 1, "bad": null}}', "value"),
    "object": ('{"metrics": {"good": 1, "bad": {"value": 1}}}', "value"),
    "no-quantity": ('{"metrics": {"good": 1, "bad": "2 Gi"}}', "value"),
    "empty-name": ('{"metrics": {"good": 1, "": 1}}', "metrics"),
    "dotted-name": ('{"metrics": {"good": 1, "a.b": 1}}', "metrics"),
    "name-with-space": ('{"metrics": {"good": 1, "a b": 1}}', "metrics"),
    "emoji-name": ('{"metrics": {"good": 1, "\U0001f600": 1}}', "metrics"),
    "long-name": (json.dumps({"metrics": {"good": 1, "x" * 254: 1}}), "metrics"),
}


@pytest.mark.parametrize("case", REFUSED_METRICS)
async def test_a_bad_metric_is_refused_alone(materialized: Materialized, case: str) -> None:
    text, reason = REFUSED_METRICS[case]
    await publish_text(materialized.bus, text)
    await all_handled(materialized.bus)
    assert materialized.refusals() == {reason: 1}
    (refused,) = materialized.worker.refused_samples()
    assert (refused.source, refused.reason, refused.count) == ("test", reason, 1)
    assert refused.example.startswith("sample node-1/test: metrics")
    (scrape,) = await samples_on(materialized.bus, "node-1") or ()
    assert scrape.metrics == {"good": NANO}


@pytest.mark.parametrize(
    "subject",
    [
        "tas.samples.Node-1.test",
        "tas.samples.-node.test",
        "tas.samples.\U0001f600.test",
        "tas.samples.node-1.Source",
        "tas.samples.node-1.a_b",
        f"tas.samples.{'n' * 254}.test",
        f"tas.samples.node-1.{'s' * 64}",
    ],
)
async def test_a_bad_subject_is_refused(materialized: Materialized, subject: str) -> None:
    await publish_text(materialized.bus, '{"metrics": {"good": 1}}', subject)
    await all_handled(materialized.bus)
    assert materialized.refusals() == {"subject": 1}
    assert await answered(lambda: materialized.bus.entries(NODES)) == []


async def test_a_megabyte_of_metrics_is_refused_by_the_bus(materialized: Materialized) -> None:
    megabyte = json.dumps({"metrics": {f"metric_{number:06}": number for number in range(40_000)}})
    with pytest.raises(RefusedError, match=r"tas\.samples\.node-1\.test"):
        await publish_text(materialized.bus, megabyte)
    await publish(materialized.bus, "node-1", load1=1)
    await materialized.has("node-1", "load1", "1")


async def test_refusals_of_many_nodes_and_sources_are_logged_in_few_lines(materialized: Materialized) -> None:
    began = time.monotonic()
    with capture_logs() as logs:
        for batch in range(15):
            messages = [(f"tas.samples.node-{number}.test-{batch}", b"{") for number in range(100)]
            await answered(partial(materialized.bus.publish_all, SAMPLES, messages))
        await publish_text(materialized.bus, '{"metrics": {"load1": "NaN"}}')
        await all_handled(materialized.bus)
    intervals = 1 + (time.monotonic() - began) // 10
    assert materialized.refusals()["body"] >= 1500
    lines = [line for line in logs if line["event"] == "sample_refused"]
    assert len([line for line in lines if line["field"] == "body"]) <= (MAX_REFUSED_OBJECTS + 1) * intervals
    assert "metrics.load1" in {line["field"] for line in lines}  # another fault is not hidden


async def test_a_source_has_a_share_of_the_metrics_of_a_node(materialized: Materialized) -> None:
    def body(start: int, count: int) -> str:
        return json.dumps({"metrics": {f"m{number}": number for number in range(start, start + count)}})

    with capture_logs() as logs:
        await publish_text(materialized.bus, body(0, 990))
        await publish_text(materialized.bus, body(985, 1000))
        await publish(materialized.bus, "node-1", "prometheus", load1=2)
        await all_handled(materialized.bus)
    samples = await samples_on(materialized.bus, "node-1") or ()
    assert metric_count(samples) == SOURCE_LIMIT.pairs + 1
    assert {"m0", "m985", "m999", "load1"} <= {metric for scrape in samples for metric in scrape.metrics}
    assert materialized.refusals() == {"capacity": 1}
    (line,) = (line for line in logs if line["event"] == "sample_refused")
    assert (line["object"], line["value"]) == ("samples node-1/test", "'m1000'")
    assert "and 984 more: source test has 1000 metrics" in line["reason"]
    await publish_text(materialized.bus, '{"metrics": {"m5": 55, "new": 1}}')
    await all_handled(materialized.bus)
    assert await materialized.value("node-1", "m5") == "55"
    assert await materialized.value("node-1", "new") is None


async def test_a_full_bucket_refuses_writes_and_recovers(new_server: Server) -> None:
    small = replace(NODES, max_bytes=1 << 20)
    async with Bus.connect(new_server.url, name="creator", streams=(small,)) as creator:
        await creator.wait_connected()
    async with Bus.connect(new_server.url, name="test") as bus:
        await bus.wait_connected()
        async with materializing(bus) as materialized:
            await publish(bus, "node-1", load1=1)
            await materialized.has("node-1", "load1", "1")
            filler = [("f", 100_000), ("g", 1000), ("h", 10)]
            for prefix, size in filler:
                with suppress(RefusedError):  # full, but for what is smaller
                    for number in range(200):
                        await put(bus, NODES, f"{prefix}{number}.metrics", bytes(size))
            await publish(bus, "node-2", load1=2)
            await all_handled(materialized.bus)
            assert materialized.refusals() == {"write": 1}
            assert await samples_on(bus, "node-2") is None
            assert await materialized.value("node-1", "load1") == "1"
            purge = {"filter": NODES.subject("f0.metrics")}
            await answered(lambda: bus.api(f"STREAM.PURGE.{NODES.stream}", purge))
            await publish(bus, "node-2", load1=3)
            await materialized.has("node-2", "load1", "3")


async def test_once_a_cluster_is_listed_samples_of_other_nodes_are_refused_and_deleted(
    materialized: Materialized,
) -> None:
    await publish(materialized.bus, "stranger", load1=1)
    await materialized.has("stranger", "load1", "1")
    with capture_logs() as logs:
        await list_nodes(materialized.bus, "node-1")
        await eventually(lambda: any(line["event"] == "nodes_complete" for line in logs))
        await publish(materialized.bus, "stranger", load1=2)
        await publish(materialized.bus, "node-1", load1=3)
        await all_handled(materialized.bus)
    assert materialized.refusals() == {"unknown_node": 1}
    await materialized.has("stranger", "load1", None)
    assert await materialized.value("node-1", "load1") == "3"


async def test_without_a_cluster_every_valid_name_is_a_node(materialized: Materialized) -> None:
    await list_nodes(materialized.bus, cluster=False)
    await publish(materialized.bus, "node-1", load1=1)
    await materialized.has("node-1", "load1", "1")
    assert materialized.refusals() == {}


async def test_samples_of_a_deleted_node_are_deleted_and_a_new_node_is_accepted(materialized: Materialized) -> None:
    await list_nodes(materialized.bus, "node-1", "node-2")
    for node in ("node-1", "node-2"):
        await publish(materialized.bus, node, load1=1)
        await materialized.has(node, "load1", "1")
    await delete_facts(materialized.bus, "node-1")
    await materialized.has("node-1", "load1", None)
    entry = await entry_on(materialized.bus, NODES, NODE_SAMPLES.key("node-1"))
    assert entry is not None
    assert entry.value is None
    assert await materialized.value("node-2", "load1") == "1"
    worker = materialized.worker
    await eventually(lambda: not worker._deleted)
    assert worker._nodes.keys() == {"node-2"}, "a cluster may have new names every day"
    await publish(materialized.bus, "node-1", load1=2)
    await all_handled(materialized.bus)
    assert materialized.refusals() == {"unknown_node": 1}
    for key in (NODE_SAMPLES.key("node-1"), NODE_FACTS.key("node-1")):  # as `watch` does, some time later
        tombstone = await entry_on(materialized.bus, NODES, key)
        assert tombstone is not None
        await purge_tombstone(materialized.bus, NODES, key, revision=tombstone.revision)
    value = encode(NodeFacts(uid="another", labels={}))
    await put(materialized.bus, NODES, NODE_FACTS.key("node-1"), value)

    async def taken() -> bool:
        await publish(materialized.bus, "node-1", load1=3)
        return await materialized.value("node-1", "load1") == "3"

    await eventually(taken)


async def test_without_a_cluster_deleted_facts_delete_no_samples(materialized: Materialized) -> None:
    await list_nodes(materialized.bus, "node-1", cluster=False)
    await publish(materialized.bus, "node-1", load1=1)
    await materialized.has("node-1", "load1", "1")
    await delete_facts(materialized.bus, "node-1")
    await publish(materialized.bus, "node-1", load1=2)
    await materialized.has("node-1", "load1", "2")


@pytest.mark.parametrize("purged", [False, True])
async def test_samples_of_nodes_deleted_before_the_start_are_deleted(bus: Bus, purged: bool) -> None:
    await list_nodes(bus, "node-1", "node-2")
    async with materializing(bus) as materialized:
        for node in ("node-1", "node-2"):
            await publish(bus, node, load1=1)
            await materialized.has(node, "load1", "1")
    await delete_facts(bus, "node-1")
    if purged:
        purge = {"filter": NODES.subject(NODE_FACTS.key("node-1"))}
        await answered(lambda: bus.api(f"STREAM.PURGE.{NODES.stream}", purge))
    async with materializing(bus) as materialized:
        await materialized.has("node-1", "load1", None)
        assert await materialized.value("node-2", "load1") == "1"
        await eventually(lambda: materialized.worker._nodes.keys() == {"node-2"})
    async with materializing(bus) as materialized:  # the bucket still has the tombstones
        await eventually(lambda: materialized.worker.unready() is None)
        await eventually(lambda: materialized.worker._nodes.keys() == {"node-2"})


async def test_an_invalid_entry_is_replaced(materialized: Materialized) -> None:
    await put(materialized.bus, NODES, "node-1.metrics", b"{")
    await publish(materialized.bus, "node-1", load1=1)
    await all_handled(materialized.bus)
    assert await materialized.value("node-1", "load1") == "1"


async def test_conflicting_replicas_lose_nothing(bus: Bus, server: Server) -> None:
    async with Bus.connect(server.url, name="second") as second_bus:
        await second_bus.wait_connected()
        # Without watches their caches are empty: every write is a conflict with the other's.
        registries = (CollectorRegistry(), CollectorRegistry())
        replicas = (
            Materialize(bus, registry=registries[0]),
            Materialize(second_bus, registry=registries[1]),
        )

        def message(number: int, source: str) -> Message:
            now = time.time()
            metrics: Mapping[str, Quantity] = {f"m{number}": Quantity(number)}
            scrape = Scrape(source=source, measured=now, arrived=now, sequence=number, metrics=metrics)
            return Message(
                subject=samples_subject("node-1", source),
                data=encode_samples(scrape),
                sequence=number,
                arrived=now,
                deliveries=1,
                reply="",
            )

        for number in range(20):
            await all_answered(
                partial(replica.handle, [message(number, f"s{place}")]) for place, replica in enumerate(replicas)
            )
        samples = await samples_on(bus, "node-1") or ()
        assert {(scrape.source, metric) for scrape in samples for metric in scrape.metrics} == {
            (f"s{place}", f"m{number}") for place in (0, 1) for number in range(20)
        }
        conflicts = sum(registry.get_sample_value("tas_node_write_conflicts_total") or 0 for registry in registries)
        assert conflicts >= 1


async def test_samples_published_after_a_wipe_are_stored(materialized: Materialized, server: Server) -> None:
    await publish(materialized.bus, "node-1", load1=1)
    await materialized.has("node-1", "load1", "1")
    await server.restart(wiped=True)
    await materialized.bus.wait_connected()

    async def stands_again() -> bool:
        await publish(materialized.bus, "node-1", load1=2)
        return await materialized.value("node-1", "load1") == "2"

    await eventually(stands_again)


async def test_after_a_wipe_it_writes_what_it_remembers_of_the_nodes_that_are_still_there(
    materialized: Materialized, server: Server
) -> None:
    """A silent source sends nothing again. Both forms; a new node of the name, and one that is gone, get nothing."""
    bus, names = materialized.bus, ("same", "newer", "gone", "undated")
    before = datetime.now(UTC) - timedelta(minutes=10)
    await list_nodes(bus, *names, created=dict.fromkeys(names, before))
    for name in names:
        await publish(bus, name, ago=300.0, load1=2)
        await materialized.has(name, "load1", "2")
    table = {"nodes": names, "measured": at(-300.0), "metrics": {"load5": ["3"] * 4}}
    await answered(lambda: bus.publish(TABLES, "tas.tables.poll.1-0", json.dumps(table).encode()))
    await eventually_rows(bus, set(names))
    await server.restart(wiped=True)
    await eventually(lambda: bus.connected)
    with capture_logs() as logs:
        await list_nodes(
            bus, "same", "newer", "undated", created={"same": before, "newer": datetime.now(UTC) - timedelta(minutes=1)}
        )
        await materialized.has("same", "load1", "2")
        await eventually_rows(bus, {"same"})
        await eventually(lambda: any(line["event"] == "remembered_samples_written" for line in logs))
    assert [await materialized.value(name, "load1") for name in ("newer", "gone", "undated")] == [None] * 3
    (written,) = (line for line in logs if line["event"] == "remembered_samples_written")
    assert (written["nodes"], written["tables"]) == (1, 1)


async def test_after_a_wipe_a_newer_sample_stays_and_a_released_node_gets_nothing(
    materialized: Materialized, server: Server
) -> None:
    bus = materialized.bus
    await list_nodes(bus, cluster=False)
    for name in ("current", "released", "released-later", "silent"):
        await publish(bus, name, ago=300.0, load1=2)
        await materialized.has(name, "load1", "2")
    release = encode(NodeRelease(time=datetime.now(UTC) - timedelta(minutes=1)))
    await put(bus, NODES, NODE_RELEASES.key("released"), release)
    await publish(bus, "last", load1=2)
    await materialized.has("last", "load1", "2")
    ahead = encode(NodeRelease(time=datetime.now(UTC) + timedelta(hours=1)))
    await put(bus, NODES, NODE_RELEASES.key("ahead"), ahead)
    await eventually(lambda: {"released", "ahead"} <= materialized.worker._released.keys())
    await publish(bus, "ahead", load1=3)
    await materialized.has("ahead", "load1", "3")
    await server.restart(wiped=True)
    await eventually(lambda: bus.connected)
    await publish(bus, "current", load1=1)
    await put(bus, NODES, NODE_RELEASES.key("released-later"), release)
    await list_nodes(bus, cluster=False)
    await materialized.has("silent", "load1", "2")
    await materialized.has("last", "load1", "2")
    await materialized.has("current", "load1", "1")
    await materialized.has("ahead", "load1", "3")  # released by a clock that is ahead: what came after it stays
    assert [await materialized.value(name, "load1") for name in ("released", "released-later")] == [None] * 2


async def eventually_rows(bus: Bus, nodes: set[str]) -> None:
    """Waits until the table of the source `poll` has these nodes."""

    async def are_stored() -> bool:
        table = (await answered(lambda: NODE_TABLES.get(bus, TableKey("poll", Part(1, 0))))).readable()
        return table is not None and set(table.nodes) == nodes

    await eventually(are_stored)


async def test_messages_published_before_the_server_was_killed_are_not_lost(
    materialized: Materialized, server: Server
) -> None:
    for number in range(200):
        await publish(materialized.bus, f"node-{number % 20}", load1=number)
    await server.restart()
    await materialized.bus.wait_connected()
    for node in range(20):
        await materialized.has(f"node-{node}", "load1", str(180 + node))


async def test_any_order_on_any_replica_stores_the_newest(bus: Bus, server: Server) -> None:
    generator = random.Random(3)
    now = time.time()
    wanted: dict[tuple[str, str], float] = {}
    bodies: list[tuple[str, bytes]] = []
    for number in range(600):
        node, source = f"node-{generator.randrange(12)}", generator.choice(("a", "b"))
        measured = now - generator.random() * 100
        if wanted.get((node, source), 0.0) < measured:
            wanted[(node, source)] = measured
        value = Quantity(number * NANO)
        scrape = Scrape(source=source, measured=measured, arrived=now, sequence=0, metrics={"number": value})
        bodies.append((samples_subject(node, source), encode_samples(scrape)))
    async with (
        Bus.connect(server.url, name="second") as second_bus,
        materializing(bus) as first,
        materializing(second_bus) as second,
    ):
        await eventually(lambda: both_wait_for_messages(bus))
        await all_answered(partial(bus.publish, SAMPLES, subject, body) for subject, body in bodies)
        await all_handled(bus)
        assert first.metric("tas_sample_messages_total")
        assert second.metric("tas_sample_messages_total")
        found = {
            (node, scrape.source): scrape.measured
            for node in {node for node, _ in wanted}
            for scrape in await samples_on(bus, node) or ()
        }
        assert found == {key: pytest.approx(measured, abs=1e-5) for key, measured in wanted.items()}


async def test_a_stop_finishes_the_current_batch(bus: Bus) -> None:
    async with materializing(bus) as materialized:
        await eventually(lambda: materialized.worker.unready() is None)
        for number in range(100):
            await publish(bus, f"node-{number}", load1=number)
        await eventually(lambda: materialized.metric("tas_sample_messages_total") > 0)
    taken = int(materialized.metric("tas_sample_messages_total"))
    # All that was taken is stored and acknowledged; the rest is for another replica.
    assert len(await answered(lambda: bus.entries(NODES))) == taken

    async def acknowledged() -> bool:
        state = await consumer_state(bus)
        return state is not None and bool(state["ack_floor"]["consumer_seq"] >= taken)

    await eventually(acknowledged)


async def test_the_nodes_of_an_earlier_epoch_are_no_nodes_of_this_one(
    materialized: Materialized, server: Server
) -> None:
    with capture_logs() as logs:

        def complete() -> int:
            return sum(line["event"] == "nodes_complete" for line in logs)

        await list_nodes(materialized.bus, "node-1", "node-2")
        await eventually(lambda: complete() == 1)
        await server.restart(wiped=True)
        await eventually(lambda: materialized.bus.connected)
        await list_nodes(materialized.bus, "node-1")
        await eventually(lambda: complete() == 2)
        await publish(materialized.bus, "node-2", load1=1)
        await publish(materialized.bus, "node-1", load1=2)
        await materialized.has("node-1", "load1", "2")
        await eventually(lambda: materialized.refusals() == {"unknown_node": 1})
    assert await materialized.value("node-2", "load1") is None


async def test_samples_that_another_replica_wrote_late_for_a_deleted_node_are_deleted(
    materialized: Materialized,
) -> None:
    await list_nodes(materialized.bus, "node-1")
    await publish(materialized.bus, "node-1", load1=1)
    await materialized.has("node-1", "load1", "1")
    written = await materialized.bus.get(NODES, NODE_SAMPLES.key("node-1"))
    assert written is not None
    assert written.value is not None
    await delete_facts(materialized.bus, "node-1")
    await materialized.has("node-1", "load1", None)
    deleted = await materialized.bus.get(NODES, written.key)
    assert deleted is not None
    await materialized.bus.put(NODES, written.key, written.value, revision=deleted.revision, read_at=time.monotonic())
    await materialized.has("node-1", "load1", None)


class Interrupted(Bus):
    """A bus whose first `failures` deletions fail; something happens when a node's samples are read or written."""

    failures = 0
    before_get: Callable[[], Awaitable[None]] | None = None
    before_put: Callable[[], Awaitable[None]] | None = None

    async def delete(self, bucket: Bucket, key: str, *, revision: int, read_at: float, ttl_seconds: int = 0) -> int:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("not now")
        return await super().delete(bucket, key, revision=revision, read_at=read_at, ttl_seconds=ttl_seconds)

    async def get(self, bucket: Bucket, key: str) -> RawEntry | None:
        found = await super().get(bucket, key)
        if key == NODE_SAMPLES.key("node-1") and self.before_get is not None:
            happens, self.before_get = self.before_get, None
            await happens()
        return found

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, revision: int, read_at: float, ttl_seconds: int = 0
    ) -> int:
        if key == NODE_SAMPLES.key("node-1") and self.before_put is not None:
            happens, self.before_put = self.before_put, None
            await happens()
        return await super().put(bucket, key, value, revision=revision, read_at=read_at, ttl_seconds=ttl_seconds)


async def test_a_deletion_that_failed_is_tried_again(server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.materialize.worker.RETRY_SECONDS", 0.05)
    async with Interrupted.connect(server.url, name="failing") as failing:
        assert isinstance(failing, Interrupted)
        await failing.wait_connected()
        async with materializing(failing) as materialized:
            await list_nodes(bus, "node-1")
            await publish(bus, "node-1", load1=1)
            await materialized.has("node-1", "load1", "1")
            failing.failures = 3
            await delete_facts(bus, "node-1")
            await materialized.has("node-1", "load1", None)
            assert failing.failures == 0


async def test_samples_of_a_node_that_has_come_back_are_not_deleted(server: Server, bus: Bus) -> None:
    """It comes back when its deletion is known already, and its samples are about to be deleted."""
    come_back = asyncio.Event()

    async def comes_back() -> None:
        deleted = await answered(lambda: bus.get(NODES, NODE_FACTS.key("node-1")))
        assert deleted is not None
        assert deleted.value is None
        value = encode(NodeFacts(uid="another", labels={}))
        await bus.put(NODES, deleted.key, value, revision=deleted.revision, read_at=time.monotonic())
        come_back.set()

    async with Interrupted.connect(server.url, name="interrupted") as interrupted:
        assert isinstance(interrupted, Interrupted)
        await interrupted.wait_connected()
        async with materializing(interrupted) as materialized:
            await list_nodes(bus, "node-1")
            await publish(bus, "node-1", load1=1)
            await eventually(lambda: materialized.metric("tas_nodes") == 1)
            written = await answered(lambda: bus.get(NODES, NODE_SAMPLES.key("node-1")))
            interrupted.before_get = comes_back
            await delete_facts(bus, "node-1")
            await asyncio.wait_for(come_back.wait(), 60)
            for _ in range(20):  # exchanges with the server, in which it could have deleted
                assert await answered(lambda: bus.get(NODES, NODE_SAMPLES.key("node-1"))) == written


async def test_samples_of_a_node_that_is_deleted_while_they_are_written_are_refused(server: Server, bus: Bus) -> None:
    async with Interrupted.connect(server.url, name="interrupted") as interrupted:
        assert isinstance(interrupted, Interrupted)
        await interrupted.wait_connected()
        async with materializing(interrupted) as materialized:

            async def is_deleted() -> None:
                await delete_facts(bus, "node-1")
                await eventually(lambda: materialized.metric("tas_nodes") == 0)

            await list_nodes(bus, "node-1")
            await publish(bus, "node-1", load1=1)
            await eventually(lambda: materialized.metric("tas_nodes") == 1)
            interrupted.before_put = is_deleted
            await publish(bus, "node-1", load1=2)
            await all_handled(bus)
            assert materialized.refusals() == {"unknown_node": 1}


class Behind(Materialize):
    """A worker whose shared consumer stops at the first backlog that is overtaken, until `gate` is set."""

    def __init__(self, bus: Bus, *, registry: CollectorRegistry) -> None:
        super().__init__(bus, registry=registry)
        self.gate = asyncio.Event()

    async def handle(self, messages: Sequence[Message]) -> None:
        if is_overtaken(messages):
            await self._overtaking.give_way(messages)
            await self.gate.wait()
        await super().handle(messages)


@pytest.mark.parametrize("far_behind", [10_000, 100], ids=["from the backlog on", "the last message of each subject"])
async def test_samples_behind_a_burst_are_stored_first_and_nothing_of_the_burst_is_lost(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, far_behind: int
) -> None:
    monkeypatch.setattr("bus.overtaking.BEHIND_MESSAGES", 50)
    monkeypatch.setattr("bus.overtaking.FAR_BEHIND_MESSAGES", far_behind)
    registry = CollectorRegistry()
    worker = Behind(bus, registry=registry)
    materialized = Materialized(bus, worker, registry)

    async def stored(node: str, metric: str, value: str) -> None:
        async def is_stored() -> bool:
            return await materialized.value(node, metric) == value

        await eventually(is_stored)

    common = {f"common{number}": float(number) for number in range(100)}
    now = time.time()
    scrapes = [
        Scrape(
            source="test",
            measured=now + number / 1e6,
            arrived=now,
            sequence=0,
            metrics={name: Quantity(number * NANO) for name in ({"once"} if number == 300 else {*common, "number"})},
        )
        for number in range(1000)
    ]
    for start in range(0, len(scrapes), 200):
        await publish_scrapes(bus, [("noisy", scrape) for scrape in scrapes[start : start + 200]])
    await publish(bus, "honest", load1=1)
    async with running(worker):
        await stored("honest", "load1", "1")
        await publish(bus, "honest", load1=2)  # also while the burst is overtaken
        await stored("honest", "load1", "2")
        await stored("noisy", "number", "999")
        state = await consumer_state(bus)
        assert state is not None
        assert state["num_pending"] > 50
        assert not worker.gate.is_set()
        worker.gate.set()
        await all_handled(bus)
        await stored("noisy", "once", "300")
        await stored("noisy", "number", "999")
