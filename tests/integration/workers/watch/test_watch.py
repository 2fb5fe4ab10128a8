"""The worker `watch` with a sandbox, also with faults."""

import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import FORGET_SECONDS, NODES, PODS, POLICIES, SYNCED, Bucket
from bus.connection import Bus, Epoch, RawEntry
from bus.errors import BusError
from bus.kinds import NODE_FACTS, NODE_SAMPLES, NODE_TABLES, POLICY_RECORDS
from bus.records.codec import encode
from bus.records.nodes import NodeFacts
from bus.records.pods import decode_pod
from bus.records.policies import decode_policy
from bus.subjects import parse_policy_key, pod_key, policy_key
from tas.enforcing.pod import PodKey
from tas.policy.policy import PolicyKey, StrategyType
from tests.integration.bus.followers import raw_watch
from tests.integration.servers import Server, answered, eventually
from tests.integration.tables import put_tables
from tests.integration.workers.materialize.test_stored_tables import publish
from tests.integration.workers.running import put, running, synced_on
from tests.kubernetes.admin import Admin, AdminError
from tests.kubernetes.watch_scenarios import Watched, WatchScenarios, strategies, watched, watching
from tests.sandbox import Call, Sandbox
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.reflector import Consumer
from workers.kubernetes.reflectors import Reflectors
from workers.kubernetes.resources import PolicyObject
from workers.materialize.worker import Materialize
from workers.watch.observation import agree
from workers.watch.worker import WatchWorker

__all__ = ["watched"]

pytestmark = pytest.mark.usefixtures("long_limits")

FOR_LONG = 10**6

ADMISSION_SECONDS = 0.2
"""So soon, in a test, policies are listed again for which there is room now."""


def ours(call: Call) -> bool:
    return call.user_agent.startswith("tas-on-nats/")


def policies_of_ours(call: Call) -> bool:
    return ours(call) and call.resource == "taspolicies"


class TestWatch(WatchScenarios):
    """What also holds for a real API server."""


async def test_only_facts_of_nodes_are_followed_and_no_samples(admin: Admin, bus: Bus, namespace: str) -> None:
    async with watching(bus, admin) as watched:
        await watched.ready()
        found = (await bus.api(f"CONSUMER.LIST.{NODES.stream}"))["consumers"]
        assert {each["config"]["filter_subject"] for each in found} == {"$KV.NODES.*.facts"}


async def test_facts_D38_missed_changes_are_applied_after_a_list(
    sandbox: Sandbox, admin: Admin, watched: Watched, namespace: str
) -> None:
    for name in ("goes", "stays"):
        await admin.create_policy(namespace, name, strategies=strategies())
        await watched.has_policy(namespace, name, lambda _: True)
    with capture_logs() as logs:
        sandbox.faults.drop(times=FOR_LONG, which=ours)
        sandbox.cut_watches()
        await admin.delete_policy(namespace, "goes")
        await admin.create_policy(namespace, "comes", strategies=strategies())
        sandbox.forget_history()
        sandbox.faults.clear()
        await watched.lacks_policy(namespace, "goes")
        await watched.has_policy(namespace, "comes", lambda _: True)
        assert await watched.policy(namespace, "stays") is not None
        await watched.ready()
    assert "kubernetes_watch_expired" in {line["event"] for line in logs}


@pytest.mark.parametrize("status", [401, 403, 404, 410, 429, 500, 503, None])
async def test_an_unreachable_api_server_removes_nothing(
    sandbox: Sandbox, admin: Admin, watched: Watched, namespace: str, status: int | None
) -> None:
    await admin.create_policy(namespace, "one", strategies=strategies())
    await admin.create_pod(namespace, "web", "one")
    await admin.create_node("another")
    await watched.has_policy(namespace, "one", lambda _: True)
    await watched.has_pod(namespace, "web")
    await watched.has_facts("another")
    before = await records_on(watched.bus)
    with capture_logs() as logs:
        if status is None:
            sandbox.faults.drop(times=FOR_LONG, which=ours)
        else:
            sandbox.faults.answer(status, times=FOR_LONG, which=ours, retry_after=1 if status == 429 else None)
        asked = len(sandbox.calls)
        sandbox.cut_watches()
        await eventually(lambda: all(part in (watched.worker.unready() or "") for part in ("nodes: ", "pods: ")))
        # Each of the three reflectors has tried again.
        await eventually(lambda: len(sandbox.calls) > asked + 6)
        assert await records_on(watched.bus) == before
        sandbox.faults.clear()
        await watched.ready()
    assert await records_on(watched.bus) == before
    events = {line["event"] for line in logs}
    assert ("kubernetes_permission_missing" in events) == (status in (401, 403))
    assert "kubernetes_request_recovered" in events
    await admin.delete_policy(namespace, "one")
    await watched.lacks_policy(namespace, "one")


async def records_on(bus: Bus) -> list[RawEntry]:
    """All stored entries, with their revisions."""
    found = [await answered(partial(bus.entries, bucket)) for bucket in (POLICIES, NODES, PODS)]
    return [entry for entries in found for entry in entries if entry.key != SYNCED]


async def test_retry_after_of_a_429_is_respected(sandbox: Sandbox, watched: Watched) -> None:
    arrivals: defaultdict[str, list[float]] = defaultdict(list)

    def arrived(call: Call) -> bool:
        if ours(call):
            arrivals[call.resource].append(time.monotonic())
        return ours(call)

    sandbox.faults.answer(429, times=FOR_LONG, which=arrived, retry_after=2)
    sandbox.cut_watches()
    await eventually(lambda: len(arrivals) == 3 and all(len(times) > 1 for times in arrivals.values()))
    assert all(second - first >= 2.0 for first, second, *_ in arrivals.values())


async def test_policies_stay_while_the_collection_is_not_served(
    sandbox: Sandbox, admin: Admin, watched: Watched, namespace: str, node: str
) -> None:
    await admin.create_policy(namespace, "one", strategies=strategies())
    await watched.has_policy(namespace, "one", lambda _: True)
    sandbox.faults.answer(404, times=FOR_LONG, which=policies_of_ours)
    sandbox.cut_watches()
    await eventually(lambda: "404" in (watched.worker.unready() or ""))
    await admin.label_node(node, {"colour": "red"})
    await watched.has_facts(node, lambda facts: facts.labels.get("colour") == "red")  # nodes are still followed
    assert await watched.policy(namespace, "one") is not None
    sandbox.faults.clear()
    await watched.ready()
    assert await watched.policy(namespace, "one") is not None


async def test_without_an_api_server_no_list_is_complete(
    sandbox: Sandbox, admin: Admin, server: Server, bus: Bus, namespace: str
) -> None:
    await admin.create_policy(namespace, "one", strategies=strategies())
    sandbox.faults.drop(times=FOR_LONG, which=ours)
    async with watching(bus, admin) as watched:
        asked = len(sandbox.calls)
        await eventually(lambda: len(sandbox.calls) > asked + 6)
        await eventually(lambda: "nodes: list nodes" in (watched.worker.unready() or ""))
        for bucket in (POLICIES, NODES, PODS):
            assert (await bus.epoch(bucket)).last_sequence == await first_sequence(bus, bucket)
        sandbox.faults.clear()
        await watched.ready()
        sandbox.faults.drop(times=FOR_LONG, which=ours)
        sandbox.cut_watches()
        await server.restart(wiped=True)
        await bus.wait_connected()
        asked = len(sandbox.calls)
        await eventually(lambda: len(sandbox.calls) > asked + 6)
        for bucket in (POLICIES, NODES, PODS):
            assert await synced_on(bus, bucket) is None
        sandbox.faults.clear()
        await watched.has_policy(namespace, "one", lambda _: True)
        await watched.ready()


async def first_sequence(bus: Bus, bucket: Any) -> int:
    """The last sequence of a stream that nothing was ever written to."""
    answer = await bus.api(f"STREAM.INFO.{bucket.stream}")
    assert answer["state"]["messages"] == 0
    return int(answer["state"]["last_seq"])


class Generations:
    """The generations of each policy in POLICIES, in order; None: deleted."""

    def __init__(self, bus: Bus) -> None:
        self.seen: dict[str, list[int | None]] = {}
        self.watch = raw_watch(bus, POLICIES, on_entry=self._take, on_epoch=self._begin)

    def _begin(self, _epoch: Epoch) -> None:
        self.seen.clear()

    def _take(self, entry: RawEntry) -> None:
        if entry.key != SYNCED:
            key = parse_policy_key(entry.key)
            generation = None if entry.value is None else decode_policy(key, entry.value).generation
            self.seen.setdefault(key.name, []).append(generation)


@asynccontextmanager
async def replica(
    bus: Bus, admin: Admin, name: str, *, forget_seconds: float = FORGET_SECONDS
) -> AsyncIterator[Watched]:
    """A replica whose calls have a user agent of their own."""
    registry = CollectorRegistry()
    async with KubernetesClient.connect(admin.kubeconfig, worker=name) as client:
        worker = WatchWorker(bus, Reflectors(client), registry=registry, forget_seconds=forget_seconds)
        async with running(worker):
            yield Watched(bus, worker, registry)


def called_by(name: str, verb: str) -> Callable[[Call], bool]:
    return lambda call: call.user_agent.endswith(f"/{name}") and call.verb == verb


async def test_after_the_restore_of_an_earlier_state_of_the_api_server_its_list_counts(admin: Admin, bus: Bus) -> None:
    later = NodeFacts(uid="uid-gone", labels={}, resource_version=str(10**15))
    await put(bus, NODES, NODE_FACTS.key("gone"), encode(later))
    async with replica(bus, admin, "restored") as restored:
        await restored.ready()
    assert not (await answered(partial(NODE_FACTS.get, bus, "gone"))).present


async def test_a_delayed_replica_reverts_nothing(
    sandbox: Sandbox, admin: Admin, server: Server, bus: Bus, namespace: str
) -> None:
    generations = Generations(bus)
    following = asyncio.create_task(generations.watch.run())
    async with Bus.connect(server.url, name="lagging") as other, replica(bus, admin, "quick") as quick:
        await quick.ready()
        await admin.create_policy(namespace, "edited", strategies=strategies())
        await admin.create_policy(namespace, "deleted", strategies=strategies())
        await quick.has_policy(namespace, "deleted", lambda _: True)
        async with replica(other, admin, "lagging") as lagging:
            await lagging.ready()
            # From here on the replica is late: its next watch is answered late, and so is every list.
            sandbox.faults.delay(3.0, times=FOR_LONG, which=called_by("lagging", "watch"))
            sandbox.faults.delay(3.0, times=FOR_LONG, which=called_by("lagging", "list"))
            sandbox.cut_watches()
            for target in range(2, 6):
                await admin.change_policy(namespace, "edited", {"spec": {"strategies": strategies(target)}})
                await quick.has_policy(namespace, "edited", lambda record, at=target: record.generation == at)  # type: ignore[misc]
            await admin.delete_policy(namespace, "deleted")
            await quick.lacks_policy(namespace, "deleted")
            sandbox.faults.clear()
            for name in ("next", "last"):
                await admin.create_policy(namespace, name, strategies=strategies())
                await quick.has_policy(namespace, name, lambda _: True)
            # `edited`, `next` and `last`: the replica has read every change.
            await eventually(lambda: lagging.objects("taspolicies") == 3)
            await lagging.ready()
            await admin.create_policy(namespace, "barrier", strategies=strategies())
            await eventually(lambda: lagging.objects("taspolicies") == 4)
            await eventually(lambda: "barrier" in generations.seen)
    following.cancel()
    await asyncio.wait([following])
    assert generations.seen == {
        "edited": [1, 2, 3, 4, 5],
        "deleted": [1, None],
        "next": [1],
        "last": [1],
        "barrier": [1],
    }


async def test_a_policy_beyond_a_bound_is_stored_with_the_problem_and_without_its_rules(
    admin: Admin, watched: Watched, namespace: str
) -> None:
    rule = {"metricname": "m" * 250, "operator": "Equals", "target": 1}
    await admin.create_policy(namespace, "large", strategies={"dontschedule": {"rules": [rule] * 2000}})
    await watched.has_policy(namespace, "large", lambda record: bool(record.problems))
    record = await watched.policy(namespace, "large")
    assert record is not None
    assert [(each.field, each.value) for each in record.problems] == [
        ("spec.strategies.dontschedule.rules", "'2000 rules'")
    ]
    assert not record.policy.strategies[StrategyType.DONTSCHEDULE].readable
    await watched.ready()


async def test_a_namespace_full_of_policies_takes_no_room_of_others_and_each_of_its_policies_says_so(
    sandbox: Sandbox, admin: Admin, bus: Bus, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest ones count. Those in excess are small on the bus, and count once there is room; two replicas agree."""
    monkeypatch.setattr("workers.kubernetes.reflector.ADMISSION_SECONDS", ADMISSION_SECONDS)
    asked: list[Consumer[PolicyObject]] = []
    relist_later = Consumer.relist_later

    def noted(consumer: Consumer[PolicyObject]) -> None:
        asked.append(consumer)
        relist_later(consumer)

    monkeypatch.setattr(Consumer, "relist_later", noted)
    rule = {"metricname": "m" * 200, "operator": "Equals", "target": 1}
    large = {"deschedule": {"rules": [rule] * 64}}
    await admin.create_policy(namespace, "p-00", strategies=large)
    async with watching(bus, admin) as first, watching(bus, admin) as second:
        await first.has_policy(namespace, "p-00", lambda _: True)
        oldest = await first.policy(namespace, "p-00")
        assert oldest is not None
        size = len(json.dumps(large))
        monkeypatch.setattr("tas.policy.room.NAMESPACE_BYTES", 3 * size + size // 2)
        names = [f"p-{number:02}" for number in range(12)]
        for name in names[1:]:
            await admin.create_policy(namespace, name, strategies=large)
        await admin.create_policy("default", "honest", strategies=large)

        async def counting() -> dict[str, bool]:
            records = {name: await first.policy(namespace, name) for name in names}
            return {
                name: each.policy.strategies[StrategyType.DESCHEDULE].readable
                for name, each in records.items()
                if each is not None
            }

        async def count_as_expected(expected: Sequence[str]) -> bool:
            found = await counting()
            return found.keys() == set(names) and [name for name, counts in found.items() if counts] == expected

        await eventually(partial(count_as_expected, names[:3]))
        await first.has_policy("default", "honest", lambda record: not record.problems)
        last = await first.policy(namespace, names[-1])
        assert last is not None
        assert POLICY_RECORDS.size(last) * 10 < size
        assert "older ones of" in str(last.problems)
        for each in (first, second):
            await each.ready()

        await admin.delete_policy(namespace, "p-01")
        names.remove("p-01")
        await eventually(partial(count_as_expected, ["p-00", "p-02", "p-03"]))

        def has_all(count: int) -> bool:
            return all(len(each.worker._policies) == count for each in (first, second))

        await eventually(lambda: len(set(asked)) == 2 and has_all(len(names) + 1))
        before = len(asked)
        for number, name in enumerate(("later", "latest"), 2):
            await admin.create_policy("default", name, strategies=large)
            await first.has_policy("default", name, lambda record: not record.problems)
            await eventually(partial(has_all, len(names) + number))
        assert len(asked) == before, "no list because of a policy of another namespace"


@pytest.mark.parametrize("seed", range(4))
async def test_after_any_history_the_bus_equals_the_api_server(
    sandbox: Sandbox, admin: Admin, server: Server, namespace: str, seed: int
) -> None:
    chance = random.Random(seed)
    async with (
        Bus.connect(server.url, name="one") as one,
        Bus.connect(server.url, name="other") as other,
        watching(one, admin),
        watching(other, admin) as watched,
    ):
        for _ in range(120):
            await something(chance, sandbox, admin, server, namespace)
        sandbox.faults.clear()

        async def agrees() -> bool:
            return watched.worker.unready() is None and await on_the_bus(other) == await in_the_api(admin)

        await eventually(agrees)


async def something(chance: random.Random, sandbox: Sandbox, admin: Admin, server: Server, namespace: str) -> None:
    name = f"it-{chance.randrange(6)}"
    kind = chance.choices(
        ["policy", "node", "pod", "cut", "forget", "fault", "bus", "wipe", "pause"], [30, 30, 30, 6, 4, 10, 1, 1, 8]
    )[0]
    if kind == "cut":
        sandbox.cut_watches()
    elif kind == "forget":
        sandbox.forget_history()
        sandbox.cut_watches()
    elif kind == "fault":
        sandbox.faults.answer(chance.choice([404, 410, 429, 500]), times=chance.randrange(1, 4), which=ours)
    elif kind in ("bus", "wipe"):
        await server.restart(wiped=kind == "wipe")
    elif kind == "pause":
        await asyncio.sleep(chance.random() * 0.2)
    else:
        await change(chance, admin, kind, namespace, name)


async def change(chance: random.Random, admin: Admin, kind: str, namespace: str, name: str) -> None:
    """Creates the object, or changes or deletes it if it exists."""
    paths = {
        "policy": f"{admin.policies(namespace)}/{name}",
        "node": f"/api/v1/nodes/{name}",
        "pod": f"/api/v1/namespaces/{namespace}/pods/{name}",
    }
    try:
        await admin.get(paths[kind])
    except AdminError:
        if kind == "policy":
            await admin.create_policy(namespace, name, strategies=strategies(chance.randrange(3)))
        elif kind == "node":
            await admin.create_node(name, colour=chance.choice(["red", "blue"]))
        else:
            await admin.create_pod(namespace, name, chance.choice(["one", "two"]))
        return
    if chance.random() < 0.4:
        await admin.delete(paths[kind])
    elif kind == "policy":
        await admin.change_policy(namespace, name, {"spec": {"strategies": strategies(chance.randrange(3))}})
    else:
        label = chance.choice(["red", "blue", None])
        key = "telemetry-policy" if kind == "pod" else "colour"
        await admin.patch(paths[kind], {"metadata": {"labels": {key: label}}})


async def on_the_bus(bus: Bus) -> dict[str, str] | None:
    try:
        entries = {
            f"{bucket.name}/{entry.key}": entry.value
            for bucket in (POLICIES, NODES, PODS)
            for entry in await bus.entries(bucket)
            if entry.key != SYNCED
        }
    except BusError:
        return None
    return {key: uid_and_labels(key, value) for key, value in entries.items() if value is not None}


def uid_and_labels(key: str, value: bytes) -> str:
    found = json.loads(value)
    what = {"POLICIES": "generation", "NODES": "labels", "PODS": "policy"}[key.partition("/")[0]]
    return f"{found['uid']} {json.dumps(found[what], sort_keys=True)}"


async def in_the_api(admin: Admin) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in (await admin.get("/apis/telemetry.intel.com/v1alpha1/taspolicies"))["items"]:
        meta = each["metadata"]
        key = policy_key(PolicyKey(meta["namespace"], meta["name"]))
        found[f"POLICIES/{key}"] = f"{meta['uid']} {meta['generation']}"
    for each in (await admin.get("/api/v1/nodes"))["items"]:
        meta = each["metadata"]
        labels = json.dumps(meta.get("labels", {}), sort_keys=True)
        found[f"NODES/{NODE_FACTS.key(meta['name'])}"] = f"{meta['uid']} {labels}"
    for each in (await admin.get("/api/v1/pods"))["items"]:
        meta = each["metadata"]
        if "telemetry-policy" in meta.get("labels", {}):
            key = pod_key(PodKey(meta["namespace"], meta["name"]))
            found[f"PODS/{key}"] = f"{meta['uid']} {json.dumps(meta['labels']['telemetry-policy'])}"
    return found


async def keys_of(bus: Bus, bucket: Bucket) -> set[str]:
    """All keys with an entry, tombstones included."""
    answer = await bus.api(f"STREAM.INFO.{bucket.stream}", {"subjects_filter": bucket.subject(">")})
    return {bucket.key(subject) for subject in answer["state"].get("subjects") or ()}


async def test_deleted_policies_leave_no_entry(admin: Admin, bus: Bus, namespace: str) -> None:
    async with replica(bus, admin, "watch", forget_seconds=0.05) as watched:
        await watched.ready()

        async def no_policies() -> bool:
            return await keys_of(bus, POLICIES) == {SYNCED}

        for _ in range(2):  # the second one has the name of a forgotten one
            await admin.create_policy(namespace, "one", strategies=strategies())
            await watched.has_policy(namespace, "one", lambda _: True)
            await admin.delete_policy(namespace, "one")
            await eventually(no_policies)


async def test_deleted_nodes_leave_no_entry_but_their_deletion_is_known_while_they_have_samples(
    admin: Admin, bus: Bus
) -> None:
    """Without the deletion `materialize` would keep the samples for ever."""
    async with replica(bus, admin, "watch", forget_seconds=0.05) as watched:
        await watched.ready()
        before = await keys_of(bus, NODES)

        async def come_and_go(node: str) -> None:
            await admin.create_node(node)
            await watched.has_facts(node)
            await admin.delete_node(node)
            await watched.lacks_facts(node)

        async def has_keys(*keys: str) -> bool:
            return await keys_of(bus, NODES) == {*before, *keys}

        for _ in range(2):  # the second one has the name of a forgotten one
            await put(bus, NODES, NODE_SAMPLES.key("gone"), b"samples")
            await come_and_go("gone")
            for _ in range(2):
                await come_and_go("without-samples")
                # When these are forgotten, the others have been checked as well.
                await eventually(partial(has_keys, NODE_FACTS.key("gone"), NODE_SAMPLES.key("gone")))
            await put(bus, NODES, NODE_SAMPLES.key("gone"), None)
            await eventually(has_keys)


async def test_rows_of_a_deleted_node_do_not_keep_its_deletion_and_are_found_without_it(admin: Admin, bus: Bus) -> None:
    await admin.create_node("stays")
    async with replica(bus, admin, "watch", forget_seconds=0.05) as watched:
        await watched.ready()
        await put_tables(bus, {"gone": {"load": "1"}, "stays": {"load": "1"}})
        before = await keys_of(bus, NODES)
        await admin.create_node("gone")
        await watched.has_facts("gone")
        await admin.delete_node("gone")

        async def is_forgotten() -> bool:
            return await keys_of(bus, NODES) == before

        async def rows() -> set[str]:
            tables = [await NODE_TABLES.get(bus, key) for key in await NODE_TABLES.listed(bus)]
            return {node for each in tables if (table := each.readable()) is not None for node in table.nodes}

        async def are_removed() -> bool:
            return await rows() == {"stays"}

        await watched.lacks_facts("gone")
        await eventually(is_forgotten)
        assert await rows() == {"gone", "stays"}
        async with running(Materialize(bus, registry=CollectorRegistry())):  # it did not run until now
            await eventually(are_removed)


async def test_deleted_tables_leave_no_entry_and_their_source_may_publish_again(
    admin: Admin, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same `materialize`: what it knows of the table is the tombstone."""
    monkeypatch.setattr("workers.materialize.stored_tables.GATHER_SECONDS", 0.0)

    async def is_stored() -> bool:
        await publish(bus, {"comes-and-goes": {"load": "1"}})
        entry = await bus.get(NODES, "_table.poll.1-0")
        return entry is not None and entry.value is not None

    async def is_forgotten() -> bool:
        return "_table.poll.1-0" not in await keys_of(bus, NODES)

    async with replica(bus, admin, "watch", forget_seconds=0.5) as watched:
        await watched.ready()
        async with running(Materialize(bus, registry=CollectorRegistry())):
            for _ in range(2):
                await admin.create_node("comes-and-goes")
                await watched.has_facts("comes-and-goes")
                await eventually(is_stored)
                await admin.delete_node("comes-and-goes")
                await eventually(is_forgotten)


async def test_deleted_pods_leave_no_entry(admin: Admin, bus: Bus, namespace: str) -> None:
    """A tombstone for each deleted pod would fill the bus and the memory of every replica within weeks."""
    async with replica(bus, admin, "watch", forget_seconds=0.05) as watched:
        await watched.ready()

        async def only_stays() -> bool:
            return await keys_of(bus, PODS) == {SYNCED, stays}

        stays = pod_key(PodKey(namespace, "stays"))
        await admin.create_pod(namespace, "stays", "policy")
        for number in range(10):
            name = f"job-{number % 5}"  # names are used again, as by a StatefulSet
            await admin.create_pod(namespace, name, "policy")
            await watched.has_pod(namespace, name)
            await admin.delete_pod(namespace, name)
            await watched.lacks_pod(namespace, name)
        await eventually(only_stays)
        await admin.create_pod(namespace, "job-0", "policy")
        await watched.has_pod(namespace, "job-0")


async def test_the_changes_of_a_pod_in_a_burst_are_written_together(
    admin: Admin, bus: Bus, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered, changes = 1.0, 30
    monkeypatch.setattr("workers.watch.worker.GATHER_SECONDS", gathered)
    async with replica(bus, admin, "watch") as watched:
        await watched.ready()
        await admin.create_pod(namespace, "web", "policy")
        await watched.has_pod(namespace, "web")
        before, began = watched.writes("pods", "put"), time.monotonic()
        for number in range(changes):
            labels = {"telemetry-policy": f"policy-{number}"}
            await admin.patch(f"/api/v1/namespaces/{namespace}/pods/web", {"metadata": {"labels": labels}})
        await watched.has_pod(namespace, "web", lambda record: record.policy == f"policy-{changes - 1}")
        passes = (time.monotonic() - began) / gathered + 2
        await eventually(lambda: watched.writes("pods", "put") > before)  # counted after the answer of the bus
        assert watched.writes("pods", "put") - before <= passes < changes


async def test_a_pod_bound_without_its_condition_keeps_the_time_at_which_it_was_first_seen(
    admin: Admin, bus: Bus, namespace: str
) -> None:
    """Also for a second replica, and after a restart; until its kubelet tells."""
    async with replica(bus, admin, "first") as first:
        await first.ready()
        await admin.create_pod(namespace, "web", "policy", nodeName="node-1")
        await admin.refuse(namespace, "web", "0/3 nodes are available: 3 Insufficient cpu.")
        await first.has_pod(namespace, "web", lambda record: record.bound_seen)
        entry = await bus.get(PODS, pod_key(PodKey(namespace, "web")))
        assert entry is not None
    seen = decode_pod(entry.value or b"").bound_since
    async with replica(bus, admin, "second") as second, replica(bus, admin, "third") as third:
        await second.ready()
        await third.ready()
        before = second.writes("pods", "put") + third.writes("pods", "put")
        labels = {"telemetry-policy": "other"}
        await admin.patch(f"/api/v1/namespaces/{namespace}/pods/web", {"metadata": {"labels": labels}})
        await second.has_pod(
            namespace,
            "web",
            lambda record: (record.policy, record.bound_since, record.bound_seen) == ("other", seen, True),
        )
        await second.ready()
        await third.ready()
        # A write is counted after the answer of the bus.
        await eventually(lambda: second.writes("pods", "put") + third.writes("pods", "put") == before + 1)
        status = {"status": {"startTime": "2026-01-01T00:00:09Z"}}
        await admin.patch(f"/api/v1/namespaces/{namespace}/pods/web/status", status)
        await second.has_pod(namespace, "web", lambda record: not record.bound_seen and record.bound_since != seen)


async def test_a_recreated_pod_is_written_after_another_replica_dropped_its_tombstone(
    admin: Admin, server: Server, bus: Bus, namespace: str
) -> None:
    async def forgotten() -> bool:
        return await bus.get(PODS, pod_key(PodKey(namespace, "web-0"))) is None

    async with Bus.connect(server.url, name="another") as other, replica(bus, admin, "remembers") as remembers:
        await remembers.ready()
        async with replica(other, admin, "forgets", forget_seconds=0.05) as forgets:
            await forgets.ready()
            await admin.create_pod(namespace, "web-0", "policy")
            await remembers.has_pod(namespace, "web-0")
            await admin.delete_pod(namespace, "web-0")
            await eventually(forgotten)
        await admin.create_pod(namespace, "web-0", "another-policy")
        await remembers.has_pod(namespace, "web-0", lambda record: record.policy == "another-policy")


async def test_a_pod_whose_tombstone_was_missed_is_written_when_it_changes(
    admin: Admin, watched: Watched, namespace: str
) -> None:
    """As for a replica that was paused until the tombstone was purged."""
    await admin.create_pod(namespace, "web-0", "policy")
    await watched.has_pod(namespace, "web-0")
    subject = PODS.subject(pod_key(PodKey(namespace, "web-0")))
    await watched.bus.api(f"STREAM.PURGE.{PODS.stream}", {"filter": subject})
    await admin.delete_pod(namespace, "web-0")
    await admin.create_pod(namespace, "web-0", "another-policy")
    await watched.has_pod(namespace, "web-0", lambda record: record.policy == "another-policy")


class SlowBus(Bus):
    """A connection over which policies are written one after the other, each some time after the last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._free = asyncio.Lock()

    async def put(self, bucket: Bucket, *args: Any, **kwargs: Any) -> int:
        return await self._slowly(bucket, super().put(bucket, *args, **kwargs))

    async def delete(self, bucket: Bucket, *args: Any, **kwargs: Any) -> int:
        return await self._slowly(bucket, super().delete(bucket, *args, **kwargs))

    async def _slowly(self, bucket: Bucket, write: Coroutine[Any, Any, int]) -> int:
        if bucket is not POLICIES:
            return await write
        async with self._free:
            revision = await write  # a write that is too old is not sent, and takes no time
            await asyncio.sleep(0.06)
            return revision


@pytest.fixture(params=["writes", "comparisons"])
async def slow_bus(
    request: pytest.FixtureRequest, server: Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bus]:
    """A connection for a replica of which 24 writes or comparisons take three times longer than a list is valid."""
    monkeypatch.setattr("bus.connection.WRITE_SECONDS", 0.5)
    kind: type[Bus] = SlowBus
    if request.param == "comparisons":
        kind = Bus

        def slow_agree(*args: Any, **kwargs: Any) -> bool:
            time.sleep(0.06)  # as on a busy processor: no other task runs
            return agree(*args, **kwargs)

        monkeypatch.setattr("workers.watch.mirror.agree", slow_agree)
        monkeypatch.setattr("workers.watch.mirror.KEY_BATCH", 1)
    async with kind.connect(server.url, name="slow") as bus:
        yield bus


async def test_a_slow_replica_writes_and_deletes_all_objects_with_few_lists(
    sandbox: Sandbox, admin: Admin, slow_bus: Bus, namespace: str
) -> None:
    count = 24
    names = [f"many-{number}" for number in range(count)]
    for name in names:
        await admin.create_policy(namespace, name, strategies=strategies())

    def lists() -> list[float]:
        """When each list was answered; 0: not yet."""
        return [call.answered for call in sandbox.calls if policies_of_ours(call) and call.verb == "list"]

    async def stored() -> int:
        return sum(entry.key != SYNCED for entry in await slow_bus.entries(POLICIES))

    # This list arrives late, and is not requested again meanwhile.
    sandbox.faults.delay(1.5, times=1, which=lambda call: policies_of_ours(call) and len(lists()) > 1)
    with capture_logs() as logs:
        async with watching(slow_bus, admin) as watched:
            await watched.ready()
            assert await stored() == count
    requested = [line["bucket"] for line in logs if line["event"] == "watch_relisted"].count(POLICIES.name)
    assert requested > 1
    assert len(lists()) == 1 + requested <= count
    # Each list is requested when the last one has expired.
    assert all(later - earlier > 0.45 for earlier, later in pairwise(lists()))
    for name in names:
        await admin.delete_policy(namespace, name)
    before = len(lists())
    async with watching(slow_bus, admin) as watched:
        await watched.ready()
        assert await stored() == 0
    assert 2 < len(lists()) - before <= count
