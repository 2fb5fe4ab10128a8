"""The addresses of nodes in their facts, and how many requests `watch` sends for them."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.kinds import NODE_FACTS
from bus.records.nodes import NodeFacts
from tests.integration.servers import answered, eventually
from tests.integration.workers.running import running
from tests.kubernetes.admin import Admin
from tests.kubernetes.watch_scenarios import Watched
from tests.sandbox import Call, Sandbox
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.reflectors import Reflectors
from workers.watch.worker import WatchWorker

SELDOM = 3600.0


@pytest.fixture(autouse=True)
def _seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that counts lists may take longer than a minute on a busy machine."""
    monkeypatch.setattr("workers.watch.node_addresses.SOONEST_SECONDS", SELDOM)


@asynccontextmanager
async def watching(bus: Bus, admin: Admin, *, name: str = "watch", seconds: float = SELDOM) -> AsyncIterator[Watched]:
    registry = CollectorRegistry()
    async with KubernetesClient.connect(admin.kubeconfig, worker=name) as client:
        worker = WatchWorker(bus, Reflectors(client), registry=registry, address_seconds=seconds)
        async with running(worker):
            yield Watched(bus, worker, registry)


async def create(admin: Admin, name: str, *addresses: str) -> None:
    await admin.create_node(name)
    await move(admin, name, *addresses)


async def move(admin: Admin, name: str, *addresses: str) -> None:
    """Sets the addresses of a node, and removes those that it had."""
    found = [{"type": "InternalIP" if each[0].isdigit() else "Hostname", "address": each} for each in addresses]
    await admin.patch(f"/api/v1/nodes/{name}/status", {"status": {"addresses": found}})


async def has(watched: Watched, node: str, *addresses: str) -> None:
    await watched.has_facts(node, lambda facts: facts.addresses == addresses)


def requests(sandbox: Sandbox, verb: str, name: str = "watch") -> list[Call]:
    return [
        call
        for call in sandbox.calls
        if call.user_agent == f"tas-on-nats/{name}" and (call.verb, call.resource) == (verb, "nodes")
    ]


async def test_one_list_at_the_start_and_one_request_for_each_new_node(
    sandbox: Sandbox, admin: Admin, bus: Bus
) -> None:
    for number in range(5):
        await create(admin, f"old-{number}", f"10.0.0.{number}", f"old-{number}.example")
    async with watching(bus, admin) as watched:
        for number in range(5):
            await has(watched, f"old-{number}", f"10.0.0.{number}", f"old-{number}.example")
        assert requests(sandbox, "get") == []
        for number in range(3):
            await create(admin, f"new-{number}", f"10.0.1.{number}")
            await watched.has_facts(f"new-{number}")
        for value in range(10):
            await admin.label_node("old-1", {"changes": str(value)})
            await admin.label_node("new-1", {"changes": str(value)})
        for node in ("old-1", "new-1"):
            await watched.has_facts(node, lambda facts: facts.labels.get("changes") == "9")
        await has(watched, "old-1", "10.0.0.1", "old-1.example")
        read = [call.name for call in requests(sandbox, "get")]
        assert (set(read), len(read) <= 6) == ({"new-0", "new-1", "new-2"}, True)  # the status is written later
        assert len(requests(sandbox, "list")) == 2  # one of metadata, one of whole nodes


async def test_another_node_of_the_same_name_has_its_own_addresses(sandbox: Sandbox, admin: Admin, bus: Bus) -> None:
    await create(admin, "again", "10.0.0.1")
    async with watching(bus, admin) as watched:
        await has(watched, "again", "10.0.0.1")
        facts = await watched.facts("again")
        assert facts is not None
        await admin.delete_node("again")
        await watched.lacks_facts("again")
        gets = len(requests(sandbox, "get"))
        await admin.create("/api/v1/nodes", {"metadata": {"name": "again"}, "status": {"addresses": []}})
        await watched.has_facts("again", lambda new: new.uid != facts.uid and new.addresses == ())
        assert len(requests(sandbox, "get")) == gets + 1


async def test_an_address_that_moved_when_a_heartbeat_was_due_follows_with_the_next_list(
    sandbox: Sandbox, admin: Admin, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.watch.node_addresses.ChangedNodes.note", lambda *_: False)
    await create(admin, "one", "10.0.0.1")
    await create(admin, "other", "10.0.0.2")
    async with watching(bus, admin, seconds=0.3) as watched:
        await has(watched, "one", "10.0.0.1")
        await move(admin, "one", "10.0.0.9")
        await move(admin, "other", "10.0.0.1")
        await has(watched, "one", "10.0.0.9")
        await has(watched, "other", "10.0.0.1")
        assert requests(sandbox, "get") == []


async def test_two_nodes_that_restart_with_each_others_addresses_are_read_again_before_the_next_list(
    sandbox: Sandbox, admin: Admin, bus: Bus
) -> None:
    """In a large cluster the next list comes in an hour, and so long each had the values of the other one.

    The status of each is written once, when no heartbeat is due.
    """
    for name, address in (("one", "10.0.0.1"), ("other", "10.0.0.2"), ("third", "10.0.0.3")):
        await create(admin, name, address)
    async with watching(bus, admin) as watched:
        for name, address in (("one", "10.0.0.1"), ("other", "10.0.0.2"), ("third", "10.0.0.3")):
            await has(watched, name, address)
        await watched.ready()
        for name, address in (("one", "10.0.0.2"), ("other", "10.0.0.1")):
            await move(admin, name, address)
        await has(watched, "one", "10.0.0.2")
        await has(watched, "other", "10.0.0.1")
        assert sorted(call.name for call in requests(sandbox, "get")) == ["one", "other"]
        assert len(requests(sandbox, "list")) == 2


async def test_a_node_whose_annotations_change_and_one_that_is_deleted_are_not_read_again(
    sandbox: Sandbox, admin: Admin, bus: Bus
) -> None:
    await admin.create_node("one")  # without a write to its status: the times of writes are whole seconds
    for name in ("other", "third"):
        await create(admin, name, "10.0.0.1")
    async with watching(bus, admin) as watched:
        await watched.ready()
        for name in ("other", "third"):
            await has(watched, name, "10.0.0.1")
        for value in range(5):
            await admin.patch("/api/v1/nodes/one", {"metadata": {"annotations": {"changes": str(value)}}})
        await admin.delete_node("other")
        await watched.lacks_facts("other")
        await move(admin, "third", "10.0.0.4")
        await has(watched, "third", "10.0.0.4")  # it changed last, so no other is left
        assert [call.name for call in requests(sandbox, "get")] == ["third"]


async def test_a_list_without_a_change_writes_nothing(sandbox: Sandbox, admin: Admin, bus: Bus) -> None:
    await create(admin, "one", "10.0.0.1")
    async with watching(bus, admin, seconds=0.05) as watched:
        await has(watched, "one", "10.0.0.1")
        await watched.ready()
        before, lists = await watched.last_sequences(), len(requests(sandbox, "list"))
        await eventually(lambda: len(requests(sandbox, "list")) > lists + 5)
        assert await watched.last_sequences() == before


async def test_two_replicas_agree_and_each_lists_once(sandbox: Sandbox, admin: Admin, bus: Bus) -> None:
    await create(admin, "one", "10.0.0.1")
    async with watching(bus, admin, name="first") as watched:
        await has(watched, "one", "10.0.0.1")
        await move(admin, "one", "10.0.0.2")
        await has(watched, "one", "10.0.0.2")
        async with watching(bus, admin, name="second") as second:
            await has(second, "one", "10.0.0.2")
            await second.ready()
            await eventually(lambda: (watched.worker.unready(), second.worker.unready()) == (None, None))
            await admin.label_node("one", {"changed": "yes"})
            await watched.has_facts("one", lambda facts: facts.labels.get("changed") == "yes")
            await has(watched, "one", "10.0.0.2")
            assert [call.name for call in requests(sandbox, "get", "first")] == ["one"]
            assert requests(sandbox, "get", "second") == []


async def test_facts_without_addresses_of_a_version_before_get_them(sandbox: Sandbox, admin: Admin, bus: Bus) -> None:
    await create(admin, "one", "10.0.0.1")
    created = await admin.get("/api/v1/nodes/one")
    metadata = created["metadata"]
    old = NodeFacts(uid=metadata["uid"], labels={}, resource_version=metadata["resourceVersion"])
    assert b"addresses" not in NODE_FACTS.encode(old)
    await answered(lambda: NODE_FACTS.put(bus, "one", old, revision=0, read_at=time.monotonic()))
    async with watching(bus, admin) as watched:
        await has(watched, "one", "10.0.0.1")
        assert requests(sandbox, "get") == []


async def test_without_the_right_to_get_a_node_the_next_list_brings_its_addresses(
    sandbox: Sandbox, admin: Admin, bus: Bus
) -> None:
    sandbox.faults.answer(
        403,
        times=1000,
        which=lambda call: (call.verb, call.resource) == ("get", "nodes") and call.user_agent == "tas-on-nats/watch",
    )
    async with watching(bus, admin) as watched:
        await watched.ready()
        await create(admin, "new", "10.0.0.1")
        await eventually(lambda: len(requests(sandbox, "get")) == 1)
        for value in range(5):
            await admin.label_node("new", {"changes": str(value)})

            async def is_written(value: str = str(value)) -> bool:
                facts = await watched.facts("new")
                return facts is not None and facts.labels.get("changes") == value

            await eventually(is_written)
        # However often the node changes, it is requested once.
        assert [call.status for call in requests(sandbox, "get")] == [403]
    async with watching(bus, admin) as watched:
        await has(watched, "new", "10.0.0.1")
        assert len(requests(sandbox, "get")) == 1
    sandbox.faults.clear()


async def test_a_failing_request_is_repeated(sandbox: Sandbox, admin: Admin, bus: Bus) -> None:
    async with watching(bus, admin) as watched:
        await watched.ready()
        sandbox.faults.answer(
            500,
            times=1,
            which=lambda call: (
                (call.verb, call.resource) == ("get", "nodes") and call.user_agent == "tas-on-nats/watch"
            ),
        )
        await create(admin, "new", "10.0.0.1")
        await watched.has_facts("new")
        assert [call.status for call in requests(sandbox, "get")][:2] == [500, 200]
