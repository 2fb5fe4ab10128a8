"""The worker `watch` between any API server and a real bus."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import NODES, PODS, POLICIES, Bucket
from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import NODE_FACTS
from bus.records.nodes import NodeFacts, decode_node_facts
from bus.records.pods import PodRecord, decode_pod
from bus.records.policies import PolicyRecord, decode_policy
from bus.subjects import pod_key, policy_key
from tas.enforcing.pod import PodKey
from tas.policy.policy import PolicyKey, StrategyType
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.running import running, synced_on
from tests.kubernetes.admin import Admin
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.reflectors import Reflectors
from workers.watch.worker import WatchWorker

REFUSED = "0/1 nodes are available: 1 Node violates one: health_metric Equals 1."


def strategies(target: int = 1) -> dict[str, Any]:
    return {"dontschedule": {"rules": [{"metricname": "health_metric", "operator": "Equals", "target": target}]}}


class Watched:
    """A running worker, and the records on its bus."""

    def __init__(self, bus: Bus, worker: WatchWorker, registry: CollectorRegistry) -> None:
        self.bus = bus
        self.worker = worker
        self.registry = registry

    def writes(self, resource: str, operation: str) -> float:
        labels = {"resource": resource, "operation": operation}
        value = self.registry.get_sample_value("tas_watch_writes_total", labels)
        assert value is not None
        return value

    def objects(self, resource: str) -> float | None:
        """How many objects of the API server the worker knows."""
        return self.registry.get_sample_value("tas_watch_objects", {"resource": resource})

    def newest_pod(self, state: str) -> float:
        """When the newest pod of this state was created about which the scheduler has asked filter, or has to ask."""
        value = self.registry.get_sample_value("tas_watch_newest_pod_timestamp_seconds", {"state": state})
        assert value is not None
        return value

    async def ready(self) -> None:
        await eventually(lambda: self.worker.unready() is None)

    async def policy(self, namespace: str, name: str) -> PolicyRecord | None:
        key = PolicyKey(namespace, name)
        entry = await answered(partial(self.bus.get, POLICIES, policy_key(key)))
        return None if entry is None or entry.value is None else decode_policy(key, entry.value)

    async def facts(self, node: str) -> NodeFacts | None:
        entry = await answered(partial(self.bus.get, NODES, NODE_FACTS.key(node)))
        return None if entry is None or entry.value is None else decode_node_facts(entry.value)

    async def pod(self, namespace: str, name: str) -> PodRecord | None:
        entry = await answered(partial(self.bus.get, PODS, pod_key(PodKey(namespace, name))))
        return None if entry is None or entry.value is None else decode_pod(entry.value)

    async def has_policy(self, namespace: str, name: str, holds: Callable[[PolicyRecord], bool]) -> None:
        async def is_written() -> bool:
            record = await self.policy(namespace, name)
            return record is not None and holds(record)

        await eventually(is_written)

    async def has_facts(self, node: str, holds: Callable[[NodeFacts], bool] = lambda _: True) -> None:
        """Waits for facts with the addresses, which come with a second write for a new node."""

        async def is_written() -> bool:
            facts = await self.facts(node)
            return facts is not None and facts.addresses is not None and holds(facts)

        await eventually(is_written)

    async def has_pod(self, namespace: str, name: str, holds: Callable[[PodRecord], bool] = lambda _: True) -> None:
        async def is_written() -> bool:
            record = await self.pod(namespace, name)
            return record is not None and holds(record)

        await eventually(is_written)

    async def lacks_policy(self, namespace: str, name: str) -> None:
        async def is_deleted() -> bool:
            return await self.policy(namespace, name) is None

        await eventually(is_deleted)

    async def lacks_facts(self, node: str) -> None:
        async def is_deleted() -> bool:
            return await self.facts(node) is None

        await eventually(is_deleted)

    async def lacks_pod(self, namespace: str, name: str) -> None:
        async def is_deleted() -> bool:
            return await self.pod(namespace, name) is None

        await eventually(is_deleted)

    async def revisions(self, keys: Mapping[Bucket, str]) -> dict[str, int]:
        """The revision of each of these keys, which must be stored."""
        found = {}
        for bucket, key in keys.items():
            entry = await answered(partial(self.bus.get, bucket, key))
            assert entry is not None
            found[key] = entry.revision
        return found

    async def last_sequences(self) -> list[int]:
        return [(await answered(partial(self.bus.epoch, bucket))).last_sequence for bucket in (POLICIES, NODES, PODS)]


def target_of(record: PolicyRecord) -> str:
    return str(record.policy.strategies[StrategyType.DONTSCHEDULE])


@asynccontextmanager
async def watching(bus: Bus, admin: Admin) -> AsyncIterator[Watched]:
    """A replica with its own connection to the API server."""
    registry = CollectorRegistry()
    async with KubernetesClient.connect(admin.kubeconfig, worker="watch") as client:
        worker = WatchWorker(bus, Reflectors(client), registry=registry)
        async with running(worker):
            yield Watched(bus, worker, registry)


@pytest.fixture
async def watched(bus: Bus, admin: Admin) -> AsyncIterator[Watched]:
    async with watching(bus, admin) as watched:
        await watched.ready()
        yield watched


class WatchScenarios:
    """For subclasses with the fixtures `server`, `bus`, `namespace` and those of `tests.kubernetes`."""

    @pytest.mark.real_api
    async def test_existing_objects_are_written_before_synced(
        self, admin: Admin, bus: Bus, namespace: str, node: str
    ) -> None:
        created = await admin.create_policy(namespace, "one", strategies=strategies())
        await admin.create_pod(namespace, "web.1", "one")
        await admin.refuse(namespace, "web.1", REFUSED)
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
                synced = await answered(partial(synced_on, bus, bucket))
                assert synced is not None
                assert (synced.epoch, synced.writer, synced.cluster) == (
                    (await answered(partial(bus.epoch, bucket))).created,
                    "watch",
                    True,
                )
                assert synced.count >= 1

    @pytest.mark.real_api
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

    @pytest.mark.real_api
    async def test_a_deleted_crd_deletes_its_policies_and_later_policies_are_followed(
        self, admin: Admin, watched: Watched, namespace: str
    ) -> None:
        await admin.create_policy(namespace, "one", strategies=strategies())
        await watched.has_policy(namespace, "one", lambda _: True)
        async with admin.without_policies():  # the API server deletes the policies, and reports it
            await watched.lacks_policy(namespace, "one")
            await eventually(lambda: "taspolicies" in (watched.worker.unready() or ""))
        await admin.create_policy(namespace, "two", strategies=strategies())
        await watched.has_policy(namespace, "two", lambda _: True)
        await watched.ready()
        assert await watched.policy(namespace, "one") is None

    @pytest.mark.real_api
    async def test_an_edit_of_an_annotation_writes_no_record(
        self, bus: Bus, admin: Admin, namespace: str, node: str
    ) -> None:
        # The node has its status already: else its addresses may come while this test looks for writes.
        async with watching(bus, admin) as watched:
            await admin.create_policy(namespace, "one", strategies=strategies())
            await watched.has_policy(namespace, "one", lambda _: True)
            await admin.create_pod(namespace, "web", "one")
            await watched.has_pod(namespace, "web")
            status = (await admin.get(f"/api/v1/nodes/{node}"))["status"]
            addresses = {each["address"] for each in status.get("addresses", ()) if each["address"]}
            await watched.has_facts(node, lambda facts: set(facts.addresses or ()) == addresses)
            # Only of these: other nodes may get their addresses meanwhile.
            keys = {
                POLICIES: policy_key(PolicyKey(namespace, "one")),
                NODES: NODE_FACTS.key(node),
                PODS: pod_key(PodKey(namespace, "web")),
            }
            before = await watched.revisions(keys)
            note = {"metadata": {"annotations": {"note": "1"}}}
            await admin.change_policy(namespace, "one", note)
            await admin.patch(f"/api/v1/nodes/{node}", note)
            await admin.patch(f"/api/v1/namespaces/{namespace}/pods/web", note)
            # Each watch is in order: when a later change is written, the worker has handled the earlier one.
            await admin.create_policy(namespace, "two", strategies=strategies())
            await watched.has_policy(namespace, "two", lambda _: True)
            other = f"after-{node}"
            await admin.create_node(other)
            await watched.has_facts(other)
            await admin.create_pod(namespace, "web-2", "one")
            await watched.has_pod(namespace, "web-2")
            after = await watched.revisions(keys)
            await admin.delete_node(other)
            assert after == before, f"{before} became {after}"

    @pytest.mark.real_api
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

    @pytest.mark.real_api
    async def test_a_pod_waits_since_its_policy_kept_it_away_until_it_is_bound_or_loses_its_label(
        self, admin: Admin, watched: Watched, namespace: str, node: str
    ) -> None:
        before = watched.newest_pod("placed")
        assert watched.newest_pod("waiting") == 0.0
        created = await admin.create_pod(namespace, "web", "one")
        await watched.has_pod(namespace, "web", lambda pod: pod.waiting_since is None)
        since = datetime.fromisoformat(created["metadata"]["creationTimestamp"]).timestamp()
        assert watched.newest_pod("waiting") == since, "the scheduler has to ask about it"
        await admin.refuse(namespace, "web", "0/1 nodes are available: 1 Insufficient cpu.")
        await eventually(lambda: watched.newest_pod("waiting") == 0.0)  # filter is not asked about such a pod
        assert watched.newest_pod("placed") == before
        await admin.refuse(namespace, "web", REFUSED)
        await watched.has_pod(namespace, "web", lambda pod: pod.waiting_since is not None)
        await admin.bind(namespace, "web", node)
        await watched.has_pod(namespace, "web", lambda pod: (pod.node, pod.waiting_since) == (node, None))
        assert watched.newest_pod("placed") == since
        path = f"/api/v1/namespaces/{namespace}/pods/web"
        await admin.patch(path, {"metadata": {"labels": {"telemetry-policy": "two"}}})
        await watched.has_pod(namespace, "web", lambda pod: pod.policy == "two")
        await admin.patch(path, {"metadata": {"labels": {"telemetry-policy": None}}})
        await watched.lacks_pod(namespace, "web")
        await admin.patch(path, {"metadata": {"labels": {"telemetry-policy": "three"}}})
        await watched.has_pod(namespace, "web", lambda pod: pod.policy == "three")
        await admin.delete_pod(namespace, "web")
        await watched.lacks_pod(namespace, "web")
        assert watched.newest_pod("placed") == since, "a placed pod counts also after its end"

    async def test_changes_while_no_replica_ran_are_followed(
        self, admin: Admin, bus: Bus, namespace: str, node: str
    ) -> None:
        for name in ("stays", "changes", "goes"):
            await admin.create_policy(namespace, name, strategies=strategies())
        await admin.create_pod(namespace, "web", "stays")
        async with watching(bus, admin) as watched:
            await watched.ready()
        stays = await answered(partial(bus.get, POLICIES, policy_key(PolicyKey(namespace, "stays"))))
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
        assert await answered(partial(bus.get, POLICIES, policy_key(PolicyKey(namespace, "stays")))) == stays

    async def test_a_restart_without_changes_writes_no_record(
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

        async def is_filled() -> bool:
            try:
                if any([await synced_on(watched.bus, bucket) is None for bucket in (POLICIES, NODES, PODS)]):
                    return False
            except BusError:
                return False  # not connected yet
            # `_synced` promises a complete list.
            assert await watched.policy(namespace, "one") is not None
            assert await watched.facts(node) is not None
            return True

        await eventually(is_filled)
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
        await has_valid_record(watched, namespace, "one")
        stranger = policy_key(PolicyKey(namespace, "stranger"))
        value = (await answered(partial(watched.bus.get, POLICIES, key))).value  # type: ignore[union-attr]
        assert value is not None
        await overwrite(watched.bus, POLICIES, stranger, value.replace(b'"one"', b'"stranger"'))
        await watched.lacks_policy(namespace, "stranger")
        await overwrite(watched.bus, NODES, NODE_FACTS.key("nobody"), b'{"uid": "u", "labels": {}}')
        await watched.lacks_facts("nobody")

    async def test_two_replicas_write_each_change_once(self, admin: Admin, bus: Bus, namespace: str, node: str) -> None:
        async with AsyncExitStack() as stack:
            replicas = [await stack.enter_async_context(watching(bus, admin)) for _ in range(2)]
            for replica in replicas:
                await replica.ready()

            def writes() -> dict[str, float]:
                operations = ("put", "delete")
                return {each: sum(replica.writes("taspolicies", each) for replica in replicas) for each in operations}

            before = writes()
            names = [f"policy-{number}" for number in range(20)]
            for name in names:
                await admin.create_policy(namespace, name, strategies=strategies())
            for name in names:
                await replicas[0].has_policy(namespace, name, lambda _: True)
            for name in names:
                await admin.delete_policy(namespace, name)
            for name in names:
                await replicas[0].lacks_policy(namespace, name)
            # Watch and bus keep the order: a second write of an earlier policy would come before these.
            await admin.create_policy(namespace, "last", strategies=strategies())
            await replicas[0].has_policy(namespace, "last", lambda _: True)
            await admin.delete_policy(namespace, "last")
            await replicas[0].lacks_policy(namespace, "last")
            for operation, count in writes().items():
                assert count - before[operation] <= len(names) + 1

    @pytest.mark.real_api
    async def test_a_policy_with_problems_is_written_with_its_problems(
        self, admin: Admin, watched: Watched, namespace: str
    ) -> None:
        odd = strategies() | {"unknown": {"rules": []}}
        await admin.create_policy(namespace, "odd", strategies=odd)
        await watched.has_policy(namespace, "odd", lambda record: bool(record.problems))
        record = await watched.policy(namespace, "odd")
        assert record is not None
        assert record.problems[0].field == "spec.strategies.unknown"
        assert target_of(record) == "health_metric Equals 1"

    async def test_100_policies_at_once_are_written_and_deleted(
        self, admin: Admin, watched: Watched, namespace: str
    ) -> None:
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
    """Writes or deletes (None) a record, as a person can with the command `nats`."""

    async def write() -> None:
        read_at, entry = time.monotonic(), await bus.get(bucket, key)
        revision = 0 if entry is None else entry.revision
        if value is None:
            await bus.delete(bucket, key, revision=revision, read_at=read_at)
        else:
            await bus.put(bucket, key, value, revision=revision, read_at=read_at)

    await answered(write)


async def has_valid_record(watched: Watched, namespace: str, name: str) -> None:
    async def is_valid() -> bool:
        entry = await answered(partial(watched.bus.get, POLICIES, policy_key(PolicyKey(namespace, name))))
        return entry is not None and entry.value is not None and entry.value.startswith(b"{")

    await eventually(is_valid)
