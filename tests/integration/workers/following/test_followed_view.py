"""The view that follows the bus."""

import asyncio
import time
from functools import partial
from types import SimpleNamespace

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from bus.buckets import NODES, PODS, POLICIES
from bus.connection import Bus
from bus.kinds import NODE_FACTS, NODE_SAMPLES, POD_RECORDS
from bus.records.codec import encode, time_of
from bus.records.nodes import NodeFacts, encode_node_samples
from bus.records.pods import PodRecord
from bus.records.policies import PolicyRecord, encode_policy
from bus.records.tables import encode_stored_table
from bus.subjects import node_table_key, pod_key, policy_key
from tas.enforcing.pod import PodKey
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.parts import Part, parse_part
from tas.samples.sample import Scrape
from tas.samples.table import Column, Reading, Table, TableKey
from tas.values.quantity import NANO, Quantity, parse_quantity
from tas.view.indices import MetricKey
from tests.integration.bus.limits import long_limits
from tests.integration.servers import answered, eventually
from tests.integration.workers.running import epoch_on, put, running
from workers.following.followed_view import FollowedView
from workers.following.synced import write_synced
from workers.following.view_metrics import ValueAges

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

KEY = PolicyKey("a", "p")
TABLE, OTHER_TABLE = TableKey("poll", Part(1, 0)), TableKey("other", Part(1, 0))


@pytest.mark.parametrize(("uid", "generation"), [("other", 1), ("u", 2)])
async def test_a_policy_with_another_uid_or_generation_is_evaluated_again_although_its_rules_are_equal(
    bus: Bus, uid: str, generation: int
) -> None:
    """A verdict with an earlier uid confirms no removal: the label would stay."""
    policy, _ = parse_policy(KEY, {"strategies": {"deschedule": {"rules": []}}})
    record = PolicyRecord(policy=policy, uid="u", generation=1)
    await put(bus, POLICIES, policy_key(KEY), encode_policy(record))
    await put(bus, NODES, NODE_FACTS.key("node-1"), encode(NodeFacts(uid="n", labels={})))
    for bucket in (NODES, POLICIES):
        epoch = await epoch_on(bus, bucket)
        await answered(partial(write_synced, bus, bucket, epoch, count=1, writer="test", cluster=True))
    followed = FollowedView(bus, default_stale_after=60.0, verdicts=True)
    async with running(followed):
        await eventually(lambda: followed.unready() is None)
        followed.view.touched.clear()
        record = PolicyRecord(policy=policy, uid=uid, generation=generation)
        await put(bus, POLICIES, policy_key(KEY), encode_policy(record))
        await eventually(lambda: KEY in followed.view.touched.get("node-1", ()))


async def test_only_a_complete_list_of_a_new_epoch_drops_what_it_lacks(bus: Bus) -> None:
    policy, _ = parse_policy(KEY, {"strategies": {"deschedule": {"rules": []}}})
    await put(bus, POLICIES, policy_key(KEY), encode_policy(PolicyRecord(policy=policy, uid="u", generation=1)))
    await put(bus, NODES, NODE_FACTS.key("node-1"), encode(NodeFacts(uid="n", labels={})))
    followed = FollowedView(bus, default_stale_after=60.0)

    async def complete(count: int) -> None:
        for bucket in (NODES, POLICIES):
            epoch = await epoch_on(bus, bucket)
            await answered(partial(write_synced, bus, bucket, epoch, count=count, writer="test", cluster=True))
        await eventually(lambda: followed.unready() is None)

    async with running(followed):
        await complete(1)
        for bucket in (NODES, POLICIES):
            before = followed.watches[bucket.name].epoch
            await answered(partial(bus.api, f"STREAM.DELETE.{bucket.stream}"))
            await eventually(lambda name=bucket.name, before=before: followed.watches[name].epoch is not before)  # type: ignore[misc]
        assert (list(followed.records), list(followed.node_uids)) == ([KEY], ["node-1"])
        assert not followed.node_revisions
        await complete(0)
        assert not followed.records
        assert not followed.view.policies
        assert not followed.node_uids


async def test_a_view_is_advanced_at_its_deadlines_and_after_changes_and_not_in_between(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.following.followed_view.IDLE_SECONDS", 3600.0)
    monkeypatch.setattr("workers.following.followed_view.ADVANCE_SECONDS", 0.01)
    loop = asyncio.get_running_loop()
    policy, _ = parse_policy(
        KEY, {"strategies": {"deschedule": {"rules": [{"metricname": "m", "operator": "LessThan", "target": 1}]}}}
    )
    await put(bus, POLICIES, policy_key(KEY), encode_policy(PolicyRecord(policy=policy, uid="u", generation=1)))
    await put(bus, NODES, NODE_FACTS.key("node-1"), encode(NodeFacts(uid="n", labels={})))
    for bucket in (NODES, POLICIES):
        epoch = await epoch_on(bus, bucket)
        await answered(partial(write_synced, bus, bucket, epoch, count=1, writer="test", cluster=True))
    followed = FollowedView(bus, default_stale_after=3.0, verdicts=True)
    advances: list[float] = []
    advance = followed.view.advance

    def noted(now: float) -> None:
        advances.append(now)
        advance(now)

    monkeypatch.setattr(followed.view, "advance", noted)
    async with running(followed):
        await eventually(lambda: followed.unready() is None)
        ends = loop.time() + 0.2
        await eventually(lambda: loop.time() > ends)  # what the last change has left to do
        before, ends = len(advances), loop.time() + 0.5
        await eventually(lambda: loop.time() > ends)
        assert len(advances) == before
        for _ in range(2):  # the second time, a change ends the wait
            now = time.time()
            scrape = Scrape(source="test", measured=now, arrived=now, sequence=1, metrics={"m": parse_quantity("1")})
            await put(bus, NODES, NODE_SAMPLES.key("node-1"), encode_node_samples((scrape,)))
            await eventually(lambda now=now: advances[-1] >= now + 3.0)  # type: ignore[misc]


@pytest.mark.parametrize("form", ["table", "node"])
async def test_values_that_have_become_stale_are_told_before_the_next_ones_count(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """As if the process had been paused meanwhile: `clearFor` must not count the time without a fresh value."""
    clock = 1000.0
    monkeypatch.setattr(
        "workers.following.followed_view.time", SimpleNamespace(time=lambda: clock, monotonic=time.monotonic)
    )
    monkeypatch.setattr(FollowedView, "_advance", lambda _: asyncio.Event().wait())
    policy, _ = parse_policy(
        KEY, {"strategies": {"deschedule": {"rules": [{"metricname": "m", "operator": "LessThan", "target": 1}]}}}
    )
    await put(bus, POLICIES, policy_key(KEY), encode_policy(PolicyRecord(policy=policy, uid="u", generation=1)))
    for bucket in (NODES, POLICIES):
        epoch = await epoch_on(bus, bucket)
        await answered(partial(write_synced, bus, bucket, epoch, count=1, writer="test", cluster=False))

    async def measure(sequence: int) -> None:
        if form == "node":
            one = Scrape(source="s", measured=clock, arrived=clock, sequence=sequence, metrics={"m": Quantity(NANO)})
            await put(bus, NODES, NODE_SAMPLES.key("node-1"), encode_node_samples((one,)))
        else:
            column = Column((Quantity(NANO),), Reading(clock, clock, sequence))
            table = Table(TABLE.source, ("node-1",), {"m": column})
            await put(bus, NODES, node_table_key(TABLE), encode_stored_table(table))
        await eventually(lambda: [each.sequence for each in followed.view.samples("node-1")] == [sequence])

    followed = FollowedView(bus, default_stale_after=60.0, verdicts=True)
    values = followed.view.metric(MetricKey("m", None, 60.0), clock)
    async with running(followed):
        await eventually(followed.completed.is_set)
        await measure(1)
        told: list[Quantity | None] = []
        followed.call(lambda: told.append(values.get("node-1")))
        clock += 61.0
        await measure(2)
        await eventually(lambda: told[-1:] == [Quantity(NANO)])
    assert told[0] is None


async def test_nothing_is_kept_of_a_node_without_facts_and_samples(bus: Bus) -> None:
    """In either order of the two deletions."""
    now = time.time()
    scrape = Scrape(source="test", measured=now, arrived=now, sequence=1, metrics={"m": parse_quantity("1")})
    followed = FollowedView(bus, default_stale_after=60.0)
    async with running(followed):
        for node in ("node-1", "node-2"):
            await put(bus, NODES, NODE_FACTS.key(node), encode(NodeFacts(uid="n", labels={})))
            await put(bus, NODES, NODE_SAMPLES.key(node), encode_node_samples((scrape,)))
        await eventually(lambda: set(followed.view.sampled_nodes) == {"node-1", "node-2"})
        for first, second in ((NODE_FACTS.key, NODE_SAMPLES.key), (NODE_SAMPLES.key, NODE_FACTS.key)):
            node = "node-1" if first is NODE_FACTS.key else "node-2"
            before = followed.node_revisions[node]
            await put(bus, NODES, first(node), None)
            await eventually(lambda node=node, before=before: followed.node_revisions[node] > before)  # type: ignore[misc]
            await put(bus, NODES, second(node), None)
            await eventually(lambda node=node: node not in followed.node_revisions)  # type: ignore[misc]
        assert not followed.view.nodes


def table_of_loads(measured: float, **loads: int) -> Table:
    reading = Reading(measured, measured, 1)
    values = tuple(Quantity(load * NANO) for load in loads.values())
    return Table("poll", tuple(loads), {"load": Column(values, reading)})


async def test_nothing_is_kept_of_a_node_without_facts_whose_row_was_removed(bus: Bus) -> None:
    now = time.time()
    followed = FollowedView(bus, default_stale_after=60.0)
    async with running(followed):
        await put(bus, NODES, NODE_FACTS.key("a"), encode(NodeFacts(uid="n", labels={})))
        await put(bus, NODES, node_table_key(TABLE), encode_stored_table(table_of_loads(now, a=1, b=2)))
        await eventually(lambda: set(followed.view.sampled_nodes) == {"a", "b"})
        assert followed.node_revisions["a"] == followed.node_revisions["b"] > 0
        await put(bus, NODES, node_table_key(TABLE), encode_stored_table(table_of_loads(now, a=1)))
        await eventually(lambda: set(followed.node_revisions) == {"a"})
        await put(bus, NODES, NODE_FACTS.key("a"), None)
        await put(bus, NODES, node_table_key(TABLE), None)
        await eventually(lambda: not followed.node_revisions)
        assert not followed.view.nodes


async def test_the_age_of_the_newest_value_of_each_source_is_a_metric(bus: Bus) -> None:
    now = time.time() // 1
    followed = FollowedView(bus, default_stale_after=60.0)
    registry = CollectorRegistry()
    registry.register(ValueAges(lambda: followed.value_times))

    def age(source: str) -> float | None:
        return registry.get_sample_value("tas_view_value_age_seconds", {"source": source})

    async with running(followed):
        for source, part, ago in (("a", "1-0", 90), ("a", "2-0", 30), ("a", "2-1", 10), ("b", "1-0", 20)):
            at = parse_part(part)
            assert at is not None
            table = table_of_loads(now - ago, node=1)
            await put(bus, NODES, node_table_key(TableKey(source, at)), encode_stored_table(table))
        await eventually(lambda: followed.value_times == {"a": now - 30, "b": now - 20})
        assert (age("b") or 0) >= 20
        assert (age("a") or 0) >= 30
        await put(bus, NODES, node_table_key(TableKey("b", Part(1, 0))), None)
        await eventually(lambda: age("b") is None)
        for node, source, ago in (("node-1", "n", 40), ("node-2", "n", 25), ("node-3", "a", 5), ("node-4", "z", 3601)):
            load = {"load": parse_quantity("1")}
            scrape = Scrape(source=source, measured=now - ago, arrived=now, sequence=1, metrics=load)
            await put(bus, NODES, NODE_SAMPLES.key(node), encode_node_samples((scrape,)))
        # A source that goes over from tables to nodes, or back, is as old as its newest value.
        await eventually(lambda: followed.value_times == {"a": now - 5, "n": now - 25})
        assert (age("n") or 0) >= 25


@pytest.mark.parametrize("facts_first", [True, False])
async def test_a_row_that_was_measured_before_its_node_was_created_does_not_count(
    bus: Bus, *, facts_first: bool
) -> None:
    """The row is of an earlier node of this name."""
    now = time.time()
    followed = FollowedView(bus, default_stale_after=60.0)
    facts = encode(NodeFacts(uid="new", labels={}, created=time_of(now - 5)))
    writes = [(NODE_FACTS.key("a"), facts), (node_table_key(TABLE), encode_stored_table(table_of_loads(now - 9, a=1)))]
    async with running(followed):
        for key, value in writes if facts_first else writes[::-1]:
            await put(bus, NODES, key, value)
        await eventually(lambda: followed.node_revisions.keys() == {"a"} and "a" in followed.view.labelled_nodes)
        await put(bus, NODES, node_table_key(OTHER_TABLE), encode_stored_table(table_of_loads(now, b=1)))
        await eventually(lambda: followed.view.samples("b") != ())
        assert followed.view.samples("a") == ()
        await put(bus, NODES, node_table_key(TABLE), encode_stored_table(table_of_loads(now - 4, a=2)))
        await eventually(lambda: [each.metrics["load"] for each in followed.view.samples("a")] == [2 * NANO])


async def test_labels_that_the_record_lacks_are_not_known(bus: Bus) -> None:
    followed = FollowedView(bus, default_stale_after=60.0, verdicts=False)
    async with running(followed):
        for node, left_out in (("all", 0), ("some", 1)):
            facts = NodeFacts(uid="n", labels={"zone": "a"}, labels_left_out=left_out)
            await put(bus, NODES, NODE_FACTS.key(node), encode(facts))
        await eventually(lambda: set(followed.view.labelled_nodes) == {"all", "some"})
        assert [followed.view.labels(node) for node in ("all", "some")] == [{"zone": "a"}, None]


async def test_pods_count_once_a_policy_has_a_cost(bus: Bus) -> None:
    """PODS is read from its beginning then: the pod was bound before."""
    now = time.time()
    bound = PodRecord(policy="p", uid="u", node="node-1", bound_since=time_of(now))
    await put(bus, PODS, pod_key(PodKey("a", "web")), encode(bound))
    sample = Scrape(source="s", measured=now, arrived=now, sequence=1, metrics={"m": parse_quantity("1")})
    await put(bus, NODES, NODE_SAMPLES.key("node-1"), encode_node_samples((sample,)))
    for bucket in (NODES, POLICIES):
        epoch = await epoch_on(bus, bucket)
        await answered(partial(write_synced, bus, bucket, epoch, count=0, writer="test", cluster=True))

    async def set_cost(**cost: int) -> None:
        rules = [{"metricname": "m", "operator": "LessThan", **cost}]
        policy, _ = parse_policy(KEY, {"strategies": {"scheduleonmetric": {"rules": rules}}})
        await put(bus, POLICIES, policy_key(KEY), encode_policy(PolicyRecord(policy=policy, uid="u", generation=1)))
        await eventually(lambda: KEY in followed.view.policies and followed.view.policies[KEY].policy == policy)

    def values() -> dict[str, int]:
        (found,) = followed.view.policies[KEY].score_values(["node-1"])
        return {node: value // NANO for node, value in found.items()}

    followed = FollowedView(bus, default_stale_after=3600.0, pods=True)  # longer than a test on a busy machine
    async with running(followed):
        await eventually(lambda: followed.unready() is None)
        await set_cost()
        assert values() == {"node-1": 1}
        await set_cost(podCost=5)
        await eventually(lambda: values() == {"node-1": 6})
        await put(bus, PODS, pod_key(PodKey("a", "web")), encode(structs.replace(bound, bound_since=None)))
        await eventually(lambda: values() == {"node-1": 1})
        await put(bus, PODS, pod_key(PodKey("a", "other")), encode(bound))
        await eventually(lambda: values() == {"node-1": 6})
        stored = await POD_RECORDS.get(bus, PodKey("a", "other"))
        await POD_RECORDS.delete(bus, PodKey("a", "other"), revision=stored.revision, read_at=time.monotonic())
        await eventually(lambda: values() == {"node-1": 1})
