"""The worker `watch` between any API server and a real bus."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import NODES, PODS, POLICIES, Bucket
from bus.connection import Bus
from bus.records.nodes import NodeFacts, decode_node_facts
from bus.records.pods import PodRecord, decode_pod
from bus.records.policies import PolicyRecord, decode_policy
from bus.subjects import node_facts_key, pod_key, policy_key
from tas.enforcing.pod import PodKey
from tas.policy.policy import PolicyKey, StrategyType
from tests.integration.servers import Server, eventually
from tests.integration.workers.running import running, synced_on
from tests.kubernetes.admin import Admin
from workers.kubernetes.client import KubernetesClient
from workers.watching.watch import WatchWorker


def strategies(target: int = 1) -> dict[str, Any]:
    return {"dontschedule": {"rules": [{"metricname": "health_metric", "operator": "Equals", "target": target}]}}


class Watched:
    """A running worker, and the entries of its bus."""

    def __init__(self, bus: Bus, worker: WatchWorker, registry: CollectorRegistry) -> None:
        self.bus = bus
        self.worker = worker
        self.registry = registry

    def writes(self, resource: str, operation: str) -> float:
        labels = {"resource": resource, "operation": operation}
        value = self.registry.get_sample_value("tas_watch_writes_total", labels)
        assert value is not None
        return value

    async def ready(self) -> None:
        await eventually(lambda: self.worker.unready() is None)

    async def policy(self, namespace: str, name: str) -> PolicyRecord | None:
        key = PolicyKey(namespace, name)
        entry = await self.bus.get(POLICIES, policy_key(key))
        return None if entry is None or entry.value is None else decode_policy(key, entry.value)

    async def facts(self, node: str) -> NodeFacts | None:
        entry = await self.bus.get(NODES, node_facts_key(node))
        return None if entry is None or entry.value is None else decode_node_facts(entry.value)

    async def pod(self, namespace: str, name: str) -> PodRecord | None:
        entry = await self.bus.get(PODS, pod_key(PodKey(namespace, name)))
        return None if entry is None or entry.value is None else decode_pod(entry.value)

    async def has_policy(self, namespace: str, name: str, holds: Callable[[PolicyRecord], bool]) -> None:
        async def so() -> bool:
            record = await self.policy(namespace, name)
            return record is not None and holds(record)

        await eventually(so)

    async def has_facts(self, node: str, holds: Callable[[NodeFacts], bool] = lambda _: True) -> None:
        async def so() -> bool:
            facts = await self.facts(node)
            return facts is not None and holds(facts)

        await eventually(so)

    async def has_pod(self, namespace: str, name: str, holds: Callable[[PodRecord], bool] = lambda _: True) -> None:
        async def so() -> bool:
            record = await self.pod(namespace, name)
            return record is not None and holds(record)

        await eventually(so)

    async def lacks_policy(self, namespace: str, name: str) -> None:
        async def so() -> bool:
            return await self.policy(namespace, name) is None

        await eventually(so)

    async def lacks_facts(self, node: str) -> None:
        async def so() -> bool:
            return await self.facts(node) is None

        await eventually(so)

    async def lacks_pod(self, namespace: str, name: str) -> None:
        async def so() -> bool:
            return await self.pod(namespace, name) is None

        await eventually(so)

    async def last_sequences(self) -> list[int]:
        return [(await self.bus.epoch(bucket)).last_sequence for bucket in (POLICIES, NODES, PODS)]


def target_of(record: PolicyRecord) -> str:
    return str(record.policy.strategies[StrategyType.DONTSCHEDULE])


@asynccontextmanager
async def watching(bus: Bus, admin: Admin) -> AsyncIterator[Watched]:
    """A replica, with a connection of its own to the API server."""
    registry = CollectorRegistry()
    async with KubernetesClient.connect(admin.kubeconfig, worker="watch") as client:
        worker = WatchWorker(bus, client, registry=registry)
        async with running(worker):
            yield Watched(bus, worker, registry)


@pytest.fixture
async def watched(bus: Bus, admin: Admin) -> AsyncIterator[Watched]:
    async with watching(bus, admin) as watched:
        await watched.ready()
        yield watched


class WatchScenarios:
    """For subclasses with the fixtures `server`, `bus`, `namespace` and those of `tests.kubernetes`."""

    async def test_existing_objects_are_written_before_synced(
        self, admin: Admin, bus: Bus, namespace: str, node: str
    ) -> None:
        created = await admin.create_policy(namespace, "one", strategies=strategies())
        await admin.create_pod(namespace, "web.1", "one")
        await admin.create_pod(namespace, "other", None)
        async with watching(bus, admin) as watched:
            await watched.ready()
            record = await watched.policy(namespace, "one")
            assert record is not None
            assert (record.uid, record.generation, record.problems, record.origin) == (
                created["metadata"]["uid"],
                1,
                (),
                "",
            )
            assert target_of(record) == "health_metric Equals 1"
            assert await watched.facts(node) is not None
            pod = await watched.pod(namespace, "web.1")
            assert pod is not None
            assert (pod.policy, pod.node) == ("one", None)
            assert pod.waiting_since is not None
            assert await watched.pod(namespace, "other") is None
            for bucket in (POLICIES, NODES, PODS):
                synced = await synced_on(bus, bucket)
                assert synced is not None
                assert (synced.epoch, synced.writer, synced.cluster) == (
                    (await bus.epoch(bucket)).created,
                    "watch",
                    True,
                )
                assert synced.count >= 1

    async def test_created_changed_and_deleted_policies_are_followed(
        self, admin: Admin, watched: Watched, namespace: str
    ) -> None:
        await admin.create_policy(namespace, "one", strategies=strategies())
        await watched.has_policy(namespace, "one", lambda record: record.generation == 1)
        await admin.change_policy(namespace, "one", {"spec": {"strategies": strategies(7)}})
        await watched.has_policy(namespace, "one", lambda record: target_of(record) == "health_metric Equals 7")
        await watched.has_policy(namespace, "one", lambda record: record.generation == 2)
        await admin.delete_policy(namespace, "one")
        await watched.lacks_policy(namespace, "one")
        again = await admin.create_policy(namespace, "one", strategies=strategies(3))
        await watched.has_policy(namespace, "one", lambda record: record.uid == again["metadata"]["uid"])

    async def test_an_edit_that_changes_nothing_writes_nothing(
        self, admin: Admin, watched: Watched, namespace: str, node: str
    ) -> None:
        await admin.create_policy(namespace, "one", strategies=strategies())
        await watched.has_policy(namespace, "one", lambda _: True)
        await admin.create_pod(namespace, "web", "one")
        await watched.has_pod(namespace, "web")
        before = await watched.last_sequences()
        await admin.change_policy(namespace, "one", {"metadata": {"annotations": {"note": "1"}}})
        await admin.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {"note": "1"}}})
        await admin.patch(f"/api/v1/namespaces/{namespace}/pods/web", {"metadata": {"annotations": {"note": "1"}}})
        # What comes after it has been written, so that it has been looked at.
        await admin.create_policy(namespace, "two", strategies=strategies())
        await watched.has_policy(namespace, "two", lambda _: True)
        await admin.label_node(node, {"colour": "red"})
        await watched.has_facts(node, lambda facts: facts.labels.get("colour") == "red")
        await admin.create_pod(namespace, "web-2", "one")
        await watched.has_pod(namespace, "web-2")
        assert await watched.last_sequences() == [sequence + 1 for sequence in before]

    async def test_created_changed_deleted_and_recreated_nodes_are_followed(
        self, admin: Admin, watched: Watched, node: str
    ) -> None:
        await watched.has_facts(node)
        first = await watched.facts(node)
        assert first is not None
        await admin.label_node(node, {"zone": "a"})
        await watched.has_facts(node, lambda facts: facts.labels.get("zone") == "a" and facts.uid == first.uid)
        await admin.label_node(node, {"zone": None})
        await watched.has_facts(node, lambda facts: "zone" not in facts.labels)
        await admin.delete_node(node)
        await watched.lacks_facts(node)
        await admin.create_node(node)
        await watched.has_facts(node, lambda facts: facts.uid != first.uid)

    async def test_a_pod_waits_until_it_is_bound_or_loses_its_label(
        self, admin: Admin, watched: Watched, namespace: str, node: str
    ) -> None:
        await admin.create_pod(namespace, "web", "one")
        await watched.has_pod(namespace, "web", lambda pod: pod.waiting_since is not None)
        await admin.bind(namespace, "web", node)
        await watched.has_pod(namespace, "web", lambda pod: (pod.node, pod.waiting_since) == (node, None))
        path = f"/api/v1/namespaces/{namespace}/pods/web"
        await admin.patch(path, {"metadata": {"labels": {"telemetry-policy": "two"}}})
        await watched.has_pod(namespace, "web", lambda pod: pod.policy == "two")
        await admin.patch(path, {"metadata": {"labels": {"telemetry-policy": None}}})
        await watched.lacks_pod(namespace, "web")
        await admin.patch(path, {"metadata": {"labels": {"telemetry-policy": "three"}}})
        await watched.has_pod(namespace, "web", lambda pod: pod.policy == "three")
        await admin.delete_pod(namespace, "web")
        await watched.lacks_pod(namespace, "web")

    async def test_a_gated_pod_does_not_wait(self, admin: Admin, watched: Watched, namespace: str) -> None:
        await admin.create_pod(namespace, "gated", "one", schedulingGates=[{"name": "example.com/later"}])
        await watched.has_pod(namespace, "gated", lambda pod: pod.waiting_since is None)

    async def test_changes_while_no_replica_ran_are_followed(
        self, admin: Admin, bus: Bus, namespace: str, node: str
    ) -> None:
        for name in ("stays", "changes", "goes"):
            await admin.create_policy(namespace, name, strategies=strategies())
        await admin.create_pod(namespace, "web", "stays")
        async with watching(bus, admin) as watched:
            await watched.ready()
        stays = await bus.get(POLICIES, policy_key(PolicyKey(namespace, "stays")))
        await admin.delete_policy(namespace, "goes")
        await admin.change_policy(namespace, "changes", {"spec": {"strategies": strategies(9)}})
        await admin.delete_pod(namespace, "web")
        await admin.delete_node(node)
        async with watching(bus, admin) as watched:
            await watched.ready()
            assert await watched.policy(namespace, "goes") is None
            assert await watched.facts(node) is None
            assert await watched.pod(namespace, "web") is None
            changed = await watched.policy(namespace, "changes")
            assert changed is not None
            assert target_of(changed) == "health_metric Equals 9"
        assert await bus.get(POLICIES, policy_key(PolicyKey(namespace, "stays"))) == stays

    async def test_a_start_with_nothing_new_writes_nothing(
        self, admin: Admin, bus: Bus, namespace: str, node: str
    ) -> None:
        await admin.create_policy(namespace, "one", strategies=strategies())
        async with watching(bus, admin) as watched:
            await watched.ready()
            await watched.has_facts(node)
            before = await watched.last_sequences()
        async with watching(bus, admin) as watched:
            await watched.ready()
            assert await watched.last_sequences() == before

    async def test_a_wiped_bus_is_filled_again(
        self, admin: Admin, server: Server, watched: Watched, namespace: str, node: str
    ) -> None:
        await admin.create_policy(namespace, "one", strategies=strategies())
        await watched.has_policy(namespace, "one", lambda _: True)
        await server.restart(wiped=True)
        await watched.bus.wait_connected()

        async def filled() -> bool:
            if any([await synced_on(watched.bus, bucket) is None for bucket in (POLICIES, NODES, PODS)]):
                return False
            # Whoever sees _synced finds all of it.
            assert await watched.policy(namespace, "one") is not None
            assert await watched.facts(node) is not None
            return True

        await eventually(filled, within=30)
        await watched.ready()
        await admin.delete_policy(namespace, "one")
        await watched.lacks_policy(namespace, "one")

    async def test_foreign_changes_of_the_bucket_are_corrected(
        self, admin: Admin, watched: Watched, namespace: str, node: str
    ) -> None:
        await admin.create_policy(namespace, "one", strategies=strategies())
        await watched.has_policy(namespace, "one", lambda _: True)
        key = policy_key(PolicyKey(namespace, "one"))
        await overwrite(watched.bus, POLICIES, key, None)
        await watched.has_policy(namespace, "one", lambda _: True)
        await overwrite(watched.bus, POLICIES, key, b"no policy")
        await eventually_decodes(watched, namespace, "one")
        stranger = policy_key(PolicyKey(namespace, "stranger"))
        value = (await watched.bus.get(POLICIES, key)).value  # type: ignore[union-attr]
        assert value is not None
        await overwrite(watched.bus, POLICIES, stranger, value.replace(b'"one"', b'"stranger"'))
        await watched.lacks_policy(namespace, "stranger")
        await overwrite(watched.bus, NODES, node_facts_key("nobody"), b'{"uid": "u", "labels": {}}')
        await watched.lacks_facts("nobody")

    async def test_two_replicas_write_once(self, admin: Admin, bus: Bus, namespace: str, node: str) -> None:
        async with AsyncExitStack() as stack:
            replicas = [await stack.enter_async_context(watching(bus, admin)) for _ in range(2)]
            for replica in replicas:
                await replica.ready()
            before = await replicas[0].last_sequences()
            names = [f"policy-{number}" for number in range(20)]
            for name in names:
                await admin.create_policy(namespace, name, strategies=strategies())
            for name in names:
                await replicas[0].has_policy(namespace, name, lambda _: True)
            for name in names:
                await admin.delete_policy(namespace, name)
            for name in names:
                await replicas[0].lacks_policy(namespace, name)
            await admin.label_node(node, {"last": "yes"})
            for replica in replicas:
                await replica.has_facts(node, lambda facts: facts.labels.get("last") == "yes")
                await eventually(lambda replica=replica: replica.worker.unready() is None)  # type: ignore[misc]
            after = await replicas[0].last_sequences()
            assert after[0] - before[0] == 2 * len(names)
            assert sum(replica.writes("taspolicies", "put") for replica in replicas) >= len(names)

    async def test_a_policy_with_problems_is_written_with_its_problems(
        self, admin: Admin, watched: Watched, namespace: str
    ) -> None:
        odd = strategies() | {"unheard-of": {"rules": []}}
        await admin.create_policy(namespace, "odd", strategies=odd)
        await watched.has_policy(namespace, "odd", lambda record: bool(record.problems))
        record = await watched.policy(namespace, "odd")
        assert record is not None
        assert record.problems[0].field == "spec.strategies.unheard-of"
        assert target_of(record) == "health_metric Equals 1"

    async def test_many_policies_at_once(self, admin: Admin, watched: Watched, namespace: str) -> None:
        names = [f"many-{number}" for number in range(100)]
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(admin.create_policy(namespace, name, strategies=strategies()))
        for name in names:
            await watched.has_policy(namespace, name, lambda _: True)
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(admin.delete_policy(namespace, name))
        for name in names:
            await watched.lacks_policy(namespace, name)


async def overwrite(bus: Bus, bucket: Bucket, key: str, value: bytes | None) -> None:
    """As somebody with the `nats` command."""
    entry = await bus.get(bucket, key)
    revision = 0 if entry is None else entry.revision
    read_at = asyncio.get_running_loop().time()
    if value is None:
        await bus.delete(bucket, key, revision=revision, read_at=read_at)
    else:
        await bus.put(bucket, key, value, revision=revision, read_at=read_at)


async def eventually_decodes(watched: Watched, namespace: str, name: str) -> None:
    async def so() -> bool:
        entry = await watched.bus.get(POLICIES, policy_key(PolicyKey(namespace, name)))
        return entry is not None and entry.value is not None and entry.value.startswith(b"{")

    await eventually(so)
