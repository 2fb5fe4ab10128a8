"""`inventory` with a real nats-server and the sandbox, beside a real binder."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import HOLDS, SYNCED
from bus.connection import Bus
from bus.kinds import NODE_HOLDS, NODE_INVENTORY, synced_of
from bus.records.devices import NodeHold
from sandbox.faults import Call
from sandbox.resources import NODES, PODS, Object
from tas.devices.annotations import annotations
from tas.devices.assignment import Assignment, Share, SlotAssignment
from tas.devices.hold import Held, Phase
from tas.enforcing.pod import PodKey
from tas.enforcing.waking import ANNOTATION
from tests.integration.extender.gpu import NAMESPACE, Gpus, gpus
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.running import running
from tests.unit.tas.devices import notation
from workers.kubernetes.client import KubernetesClient
from workers.watching.inventory import Inventory

CARDS = "gas-container-cards"
LONG = 600.0


@pytest.fixture
async def world(server: Server, bus: Bus, tmp_path: Path) -> AsyncIterator[Gpus]:
    async with gpus(server, bus, tmp_path) as world:
        yield world


class Running:
    """A running worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def metric(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def inventory(
    world: Gpus, tmp_path: Path, *, new_bus_wait: float = 0.0, reserved_seconds: float = LONG
) -> AsyncIterator[Running]:
    registry = CollectorRegistry()
    async with KubernetesClient.connect(tmp_path / "kubeconfig", worker="inventory") as client:
        worker = Inventory(
            world.bus, client, registry=registry, new_bus_wait=new_bus_wait, reserved_seconds=reserved_seconds
        )
        async with running(worker):
            yield Running(registry)


def add_node(world: Gpus, name: str, text: str) -> Object:
    """A node as node feature discovery and the device plugin describe it."""
    node = notation.Node(text)
    body = {"metadata": {"name": name, "labels": node.labels}, "status": {"allocatable": node.allocatable}}
    return world.sandbox.cluster.create(NODES, "", body, manager="nfd")


async def pods_of(world: Gpus, node: str) -> dict[str, Held]:
    """What each pod of a node has, by its name."""
    stored = (await answered(partial(NODE_HOLDS.get, world.bus, node))).readable()
    return {} if stored is None else {each.pod.name: each for each in stored.pods.values()}


def has(world: Gpus, node: str, **wanted: Phase) -> Callable[[], object]:
    """Whether exactly these pods have something of a node."""

    async def check() -> bool:
        return {name: each.phase for name, each in (await pods_of(world, node)).items()} == wanted

    return check


async def is_complete(world: Gpus) -> bool:
    epoch = await answered(partial(world.bus.epoch, HOLDS))
    synced = (await answered(partial(synced_of(HOLDS).get, world.bus, SYNCED))).readable()
    return synced is not None and synced.epoch == epoch.created


async def test_pods_get_cards_and_lose_them_when_they_are_gone_or_have_ended(world: Gpus, tmp_path: Path) -> None:
    add_node(world, "a", "N(0,1) i2 t2")
    async with inventory(world, tmp_path) as worker, world.extender() as extender:
        first, second, third = (world.add_pod(name, "A{i1 t1}") for name in ("first", "second", "third"))
        assert await extender.bind(first, "a") == ""
        assert await extender.bind(second, "a") == ""
        assert "Not enough GPU-resources" in await extender.bind(third, "a")
        world.sandbox.cluster.delete(PODS, NAMESPACE, "first")
        await eventually(has(world, "a", second=Phase.BOUND))  # type: ignore[arg-type]
        world.sandbox.cluster.patch(
            PODS, NAMESPACE, "second", {"status": {"phase": "Succeeded"}}, manager="kubelet", status=True
        )
        await eventually(has(world, "a"))  # type: ignore[arg-type]
        assert worker.metric("tas_inventory_released_total", reason="gone") == 2
        assert await extender.bind(third, "a") == ""


async def test_a_pod_that_waits_for_cards_is_woken_when_cards_are_free(world: Gpus, tmp_path: Path) -> None:
    node = add_node(world, "a", "N(0) i1")
    async with inventory(world, tmp_path) as worker, world.extender() as extender:
        first, second = (world.add_pod(name, "A{i1}") for name in ("first", "second"))
        assert await extender.bind(first, "a") == ""
        (reason,) = (await extender.filter(second, "a"))["FailedNodes"].values()
        message = f"0/1 nodes are available: 1 {reason}. no new claims to deallocate."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        world.sandbox.cluster.patch(
            PODS, NAMESPACE, "second", {"status": {"conditions": [condition]}}, manager="scheduler", status=True
        )
        await eventually(lambda: worker.metric("tas_pods_waiting_for_cards") == 1)
        before = worker.metric("tas_card_wakes_total")
        world.sandbox.cluster.delete(PODS, NAMESPACE, "first")
        await eventually(has(world, "a"))  # type: ignore[arg-type]
        await eventually(lambda: worker.metric("tas_card_wakes_total") > before)
        assert worker.metric("tas_card_wakes_failed_total") == 0
        annotated = world.sandbox.cluster.get(NODES, "", "a")
        assert annotated["metadata"]["uid"] == node["metadata"]["uid"]
        assert ANNOTATION in annotated["metadata"]["annotations"]
        assert await extender.bind(second, "a") == ""
        await eventually(lambda: worker.metric("tas_pods_waiting_for_cards") == 0)


async def test_after_a_wipe_pods_keep_the_cards_of_their_annotations(
    world: Gpus, server: Server, tmp_path: Path
) -> None:
    add_node(world, "a", "N(0,1) i2")
    async with inventory(world, tmp_path) as worker, world.extender() as extender:
        one, two, three = (world.add_pod(name, "A{i1}") for name in ("one", "two", "three"))
        assert await extender.bind(one, "a") == ""
        await server.restart(wiped=True)
        await world.bus.wait_connected()
        await eventually(partial(is_complete, world))
        assert (await pods_of(world, "a"))["one"].verified is False
        assert worker.metric("tas_inventory_adopted_total") >= 1
        await eventually(lambda: extender.worker.unready() is None)
        assert await extender.bind(two, "a") == ""
        assert await extender.bind(three, "a") != ""
    cards = [world.pod(name)["metadata"]["annotations"][CARDS] for name in ("one", "two")]
    assert sorted(cards) == ["card0", "card1"]


async def test_holds_are_not_complete_while_a_binding_may_be_on_its_way(world: Gpus, tmp_path: Path) -> None:
    add_node(world, "a", "N(0) i1")
    pod = world.add_pod("p", "A{i1}")
    with capture_logs() as logs:

        def decided() -> bool:
            return any(each["event"] in ("holds_wait", "holds_complete") for each in logs)

        async with inventory(world, tmp_path, new_bus_wait=LONG), world.extender(ready=False) as extender:
            await eventually(decided)
            assert not await is_complete(world)
            assert await pods_of(world, "a") == {}
            assert (await answered(partial(NODE_INVENTORY.get, world.bus, "a"))).present
            status, _ = await extender.ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": ["a"]})
            assert status == 503
    async with inventory(world, tmp_path):
        await eventually(partial(is_complete, world))


def held(name: str, card: int, phase: Phase) -> Held:
    share = Share(card=card, amounts={f"{notation.GPU}i915": 1})
    slots = (SlotAssignment(container="A", shares=(share,)),)
    until = None if phase is Phase.BOUND else time.time() + 1
    return Held(
        pod=PodKey(NAMESPACE, name), assignment=Assignment(slots=slots), phase=phase, until=until, nanoseconds=card + 1
    )


def bind(world: Gpus, name: str, node: str, cards: dict[str, str]) -> None:
    """A Binding of somebody."""
    pod = world.pod(name)["metadata"]
    body = {
        "metadata": {"name": name, "uid": pod["uid"], "annotations": cards},
        "target": {"kind": "Node", "name": node},
    }
    world.sandbox.cluster.bind(NAMESPACE, name, body, manager="somebody")


async def test_a_reservation_ends_as_the_api_server_says(world: Gpus, tmp_path: Path) -> None:
    node = add_node(world, "a", "N(0,1,2,3,4) i5")
    add_node(world, "b", "N(0) i1")
    names = ("waiting", "bound", "others", "elsewhere")
    reserved = {name: held(name, card, Phase.RESERVED) for card, name in enumerate((*names, "gone"))}
    uids = {name: world.add_pod(name, "A{i1}")["metadata"]["uid"] for name in names} | {"gone": "x"}
    bind(world, "bound", "a", annotations(reserved["bound"].assignment, reserved["bound"].nanoseconds))
    bind(world, "others", "a", {CARDS: "card4", "gas-ts": "9"})
    bind(world, "elsewhere", "b", {CARDS: "card0", "gas-ts": "9"})
    hold = NodeHold(uid=node["metadata"]["uid"], pods={uids[name]: each for name, each in reserved.items()})
    await NODE_HOLDS.put(world.bus, "a", hold, revision=0, read_at=time.monotonic())
    await world.complete()
    async with inventory(world, tmp_path, reserved_seconds=LONG):
        # The pods of other binders are adopted at once; no reservation has ended.
        await eventually(has(world, "b", elsewhere=Phase.BOUND))  # type: ignore[arg-type]
        found = await pods_of(world, "a")
        assert {name: each.phase for name, each in found.items()} == dict.fromkeys(reserved, Phase.RESERVED)
    async with inventory(world, tmp_path, reserved_seconds=0.2) as worker:
        await eventually(has(world, "a", bound=Phase.BOUND, others=Phase.BOUND))  # type: ignore[arg-type]
        found = await pods_of(world, "a")
        assert (found["bound"].verified, found["others"].verified) == (True, False)
        assert [share.card for share in found["others"].assignment.shares()] == [4]
        for reason, count in (("expired", 1), ("gone", 1), ("elsewhere", 2)):
            assert worker.metric("tas_inventory_released_total", reason=reason) == count


async def test_a_pod_that_the_api_server_cannot_be_asked_for_keeps_its_cards(world: Gpus, tmp_path: Path) -> None:
    """As after a restart of an API server whose first list is empty."""
    node = add_node(world, "a", "N(0,1) i2")
    hold = NodeHold(uid=node["metadata"]["uid"], pods={"x": held("ghost", 0, Phase.BOUND)})
    await NODE_HOLDS.put(world.bus, "a", hold, revision=0, read_at=time.monotonic())
    await world.complete()

    def asks(call: Call) -> bool:
        return call.verb == "get" and call.name == "ghost"

    def asked() -> int:
        return sum(asks(call) for call in world.sandbox.calls)

    world.sandbox.faults.answer(500, times=10**6, which=asks)
    async with inventory(world, tmp_path):
        await eventually(lambda: asked() >= 2)
        assert set(await pods_of(world, "a")) == {"ghost"}
        world.sandbox.faults.clear()
        await eventually(has(world, "a"))  # type: ignore[arg-type]


async def test_what_cannot_be_read_or_has_no_claim_is_reported(world: Gpus, tmp_path: Path) -> None:
    add_node(world, "a", "N(0,1) i2 numa=0-0.1_1")
    world.add_pod("stray", "A{i1}")
    bind(world, "stray", "a", {})
    async with inventory(world, tmp_path) as worker:
        await eventually(lambda: worker.metric("tas_inventory_drifting_pods") == 1)
        assert worker.metric("tas_inventory_problems") == 1
        assert worker.metric("tas_inventory_nodes") == 1
        record = (await answered(partial(NODE_INVENTORY.get, world.bus, "a"))).readable()
        assert record is not None
        assert [each.field for each in record.inventory.problems] == ["gpu.intel.com/numa-gpu-map"]
        # A policy disables a card, and the node loses its cards.
        label = "telemetry.aware.scheduling.p/gas-disable-card0"
        world.sandbox.cluster.patch(NODES, "", "a", {"metadata": {"labels": {label: "true"}}}, manager="tas")

        async def is_disabled() -> bool:
            found = (await answered(partial(NODE_INVENTORY.get, world.bus, "a"))).readable()
            return found is not None and set(found.facts.disabled) == {0}

        await eventually(is_disabled)
        world.sandbox.cluster.delete(NODES, "", "a")

        async def is_forgotten() -> bool:
            return not (await answered(partial(NODE_INVENTORY.get, world.bus, "a"))).present

        await eventually(is_forgotten)


async def test_a_node_that_is_created_again_keeps_its_pods(world: Gpus, tmp_path: Path) -> None:
    add_node(world, "a", "N(0,1) i2")
    async with inventory(world, tmp_path), world.extender() as extender:
        assert await extender.bind(world.add_pod("p", "A{i1}"), "a") == ""
        before = (await answered(partial(NODE_HOLDS.get, world.bus, "a"))).readable()
        world.sandbox.cluster.delete(NODES, "", "a")
        uid = add_node(world, "a", "N(0,1) i2")["metadata"]["uid"]

        async def has_new_uid() -> bool:
            stored = (await answered(partial(NODE_HOLDS.get, world.bus, "a"))).readable()
            return stored is not None and stored.uid == uid

        await eventually(has_new_uid)
        after = (await answered(partial(NODE_HOLDS.get, world.bus, "a"))).readable()
        assert before is not None
        assert after is not None
        assert before.uid != uid
        assert msgspec.structs.replace(after, uid=before.uid) == before
