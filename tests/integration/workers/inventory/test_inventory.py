"""`inventory` with a real nats-server and the sandbox, beside a real binder."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import HOLDS, SYNCED, Bucket
from bus.connection import FULL_SECONDS, Bus
from bus.errors import ForbiddenError, FullError
from bus.kinds import NODE_HOLDS, NODE_INVENTORY, synced_of
from bus.records.devices import NodeHold
from lab.sandbox.resources import NODES, PODS, Object
from tas.enforcing.pod import PodKey
from tas.enforcing.waking import ANNOTATION
from tas.gpu.assignment import Assignment, Share, SlotAssignment
from tas.gpu.hold import Held, Phase
from tas.gpu.keeping import Ending
from tas.gpu.pod_annotations import annotations
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.gpu.gpu import NAMESPACE, Gpus, gpus
from tests.integration.workers.halting_inventory import InterruptedBus
from tests.integration.workers.running import put, running
from tests.sandbox import Call
from tests.unit.tas.gpu import notation
from workers.inventory.card_holds import RETRY_SECONDS
from workers.inventory.cards import CHECK_ALL_SECONDS
from workers.inventory.worker import Inventory
from workers.kubernetes.client import KubernetesClient

CARDS = "gas-container-cards"
LONG = 1e6
"""Longer than any run: HOLDS has the age of a server that is kept for many tests."""

# Writes that are not repeated, and a bind, wait for the bus.
pytestmark = pytest.mark.usefixtures("long_limits")


@pytest.fixture(autouse=True)
def _nothing_is_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is handled when it comes, however busy the machine is: not when every node is compared again."""
    monkeypatch.setattr("workers.inventory.cards.CHECK_ALL_SECONDS", LONG)
    monkeypatch.setattr("workers.inventory.allocations.CHECK_ALL_SECONDS", LONG)


@pytest.fixture
async def world(server: Server, bus: Bus, tmp_path: Path) -> AsyncIterator[Gpus]:
    async with gpus(server, bus, tmp_path) as world:
        yield world


class Running:
    """A running worker."""

    def __init__(self, worker: Inventory, registry: CollectorRegistry) -> None:
        self._worker = worker
        self._registry = registry

    @property
    def is_ready(self) -> bool:
        return self._worker.unready() is None

    def wait_no_longer(self, age: float) -> None:
        """No Binding for a reservation of before takes effect any more: the bus is old enough at this age."""
        assert self._worker._cards is not None
        self._worker._cards.holds._new_bus_wait = age

    def knows_until(self, node: str, uid: str) -> float | None:
        """Until when a pod has a reservation, as far as the worker knows."""
        assert self._worker._cards is not None
        record = self._worker._cards.holds.get(node).record
        assert record is not None
        return record.pods[uid].until

    def metric(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def inventory(
    world: Gpus,
    tmp_path: Path,
    *,
    new_bus_wait: float = 0.0,
    reserved_seconds: float = LONG,
    forget_seconds: float = LONG,
    bus: Bus | None = None,
) -> AsyncIterator[Running]:
    registry = CollectorRegistry()
    async with KubernetesClient.connect(tmp_path / "kubeconfig", worker="inventory") as client:
        worker = Inventory(
            bus or world.bus,
            client,
            registry=registry,
            card_metrics=10,
            new_bus_wait=new_bus_wait,
            reserved_seconds=reserved_seconds,
            forget_seconds=forget_seconds,
        )
        async with running(worker):
            yield Running(worker, registry)


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
        with capture_logs() as logs:
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
            await eventually(lambda: worker.metric("tas_inventory_released_total", reason="gone") == 2)
            assert worker.metric("tas_inventory_pods") == 1
            world.sandbox.cluster.delete(PODS, NAMESPACE, "second")  # the last pod that was on the node
            assert await extender.bind(third, "a") == ""
            world.sandbox.cluster.delete(PODS, NAMESPACE, "third")
            await eventually(has(world, "a"))  # type: ignore[arg-type]
        # What happens to every pod some day is no news.
        assert {each["log_level"] for each in logs if each["event"] == "hold_changed"} == {"debug"}


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
        # The hold comes over the bus, and not before the pod, which comes over the API server.
        of_card = {"node": "a", "card": "card0", "resource": "i915"}
        await eventually(lambda: worker.metric("tas_card_free", **of_card) == 0)
        assert worker.metric("tas_card_capacity", **of_card) == 1
        before = worker.metric("tas_card_wakes_total")
        world.sandbox.cluster.delete(PODS, NAMESPACE, "first")
        await eventually(has(world, "a"))  # type: ignore[arg-type]
        await eventually(lambda: worker.metric("tas_card_wakes_total") > before)
        assert worker.metric("tas_card_wakes_failed_total") == 0
        annotated = world.sandbox.cluster.get(NODES, "", "a")
        assert annotated["metadata"]["uid"] == node["metadata"]["uid"]
        assert ANNOTATION in annotated["metadata"]["annotations"]
        await eventually(lambda: worker.metric("tas_cards_free", resource="i915") == 1)
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


def held(name: str, card: int, phase: Phase, **amounts: int) -> Held:
    named = {f"{notation.GPU}{resource}": amount for resource, amount in {"i915": 1, **amounts}.items()}
    share = Share(card=card, amounts=named)
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
    node = add_node(world, "a", "N(0,1,2,3,4,5,6) i7")
    add_node(world, "b", "N(0) i1")
    names = ("waiting", "bound", "others", "elsewhere", "unseen", "leaving")
    reserved = {name: held(name, card, Phase.RESERVED) for card, name in enumerate((*names, "gone"))}
    # A pod without requests stands for one that the watch has not shown yet: the worker does not remember it.
    texts = {name: "A{i1}" if name != "unseen" else "A{}" for name in names}
    uids = {name: world.add_pod(name, text)["metadata"]["uid"] for name, text in texts.items()} | {"gone": "x"}
    bind(world, "bound", "a", annotations(reserved["bound"].assignment, reserved["bound"].nanoseconds))
    bind(world, "others", "a", {CARDS: "card4", "gas-ts": "9"})
    bind(world, "elsewhere", "b", {CARDS: "card0", "gas-ts": "9"})
    await add_hold(world, node, **{uids[name]: each for name, each in reserved.items()})
    await world.complete()
    async with inventory(world, tmp_path, reserved_seconds=LONG) as worker:

        async def released(**wanted: int) -> None:
            """Waits until so many pods have lost their cards, for these reasons."""
            for reason in Ending:
                await eventually(
                    lambda reason=reason: (  # type: ignore[misc]
                        worker.metric("tas_inventory_released_total", reason=reason) == wanted.get(reason, 0)
                    )
                )

        # No Binding can take effect for a pod that is bound or gone, so nobody waits for the end of its reservation.
        waits = dict.fromkeys(("waiting", "unseen", "leaving"), Phase.RESERVED)
        stays = dict.fromkeys(("bound", "others"), Phase.BOUND)
        await eventually(has(world, "a", **waits, **stays))  # type: ignore[arg-type]
        await released(gone=1, elsewhere=2)
        found = await pods_of(world, "a")
        assert (found["bound"].verified, found["others"].verified) == (True, False)
        assert [share.card for share in found["others"].assignment.shares()] == [4]
        world.sandbox.cluster.delete(PODS, NAMESPACE, "leaving")
        del waits["leaving"]
        await eventually(has(world, "a", **waits, **stays))  # type: ignore[arg-type]
        await released(gone=2, elsewhere=2)
        asked = [call.name for call in world.sandbox.calls if (call.verb, call.resource) == ("get", "pods")]
        assert sorted(asked) == ["bound", "elsewhere", "gone", "leaving", "others", "unseen"]
    async with inventory(world, tmp_path, reserved_seconds=0.2) as worker:
        await eventually(has(world, "a", **stays))  # type: ignore[arg-type]
        await eventually(lambda: worker.metric("tas_inventory_released_total", reason="expired") == 2)


async def test_a_reservation_that_is_renewed_while_others_are_asked_for_stays(
    world: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another pod would get the cards of a Binding that is on its way."""
    monkeypatch.setattr("workers.inventory.card_holds.NODES_AT_ONCE", 1)
    seconds = 1.5
    first, second = add_node(world, "a", "N(0) i1"), add_node(world, "b", "N(0) i1")
    uids = {name: world.add_pod(name, "A{i1}")["metadata"]["uid"] for name in ("slow", "renewed")}
    await add_hold(world, first, **{uids["slow"]: held("slow", 0, Phase.RESERVED)})
    reservation = held("renewed", 0, Phase.RESERVED)
    await add_hold(world, second, **{uids["renewed"]: reservation})
    await world.complete()
    released = world.sandbox.faults.hold(which=lambda call: call.verb == "get" and call.name == "slow")
    async with inventory(world, tmp_path, reserved_seconds=seconds) as worker, world.extender() as extender:
        await eventually(lambda: any(call.name == "slow" for call in world.sandbox.calls))
        # The API server does not answer for the first pod. A bind of the other pod has no outcome.
        world.sandbox.faults.answer(500, which=lambda call: (call.verb, call.subresource) == ("create", "binding"))
        assert await extender.bind(world.pod("renewed"), "b") != ""
        renewed = time.monotonic()
        await eventually(lambda: worker.knows_until("b", uids["renewed"]) != reservation.until)
        released.set()
        await eventually(lambda: worker.metric("tas_inventory_released_total", reason="expired") == 2)
        assert time.monotonic() - renewed >= seconds


async def add_hold(world: Gpus, node: Object, **pods: Held) -> None:
    """The hold of a node, by the uids of pods."""
    record = NodeHold(uid=node["metadata"]["uid"], pods=pods)
    await NODE_HOLDS.put(world.bus, node["metadata"]["name"], record, revision=0, read_at=time.monotonic())


async def test_a_pod_that_the_api_server_cannot_be_asked_for_keeps_its_cards(world: Gpus, tmp_path: Path) -> None:
    """As after a restart of an API server whose first list is empty. It holds up no other pod."""
    node, other = add_node(world, "a", "N(0,1) i2"), add_node(world, "b", "N(0) i1")
    await add_hold(world, node, x=held("ghost", 0, Phase.BOUND), y=held("gone", 1, Phase.BOUND))
    await add_hold(world, other, z=held("late", 0, Phase.BOUND))
    await world.complete()

    def asks(call: Call) -> bool:
        return call.verb == "get" and call.name == "ghost"

    def asked() -> int:
        return sum(asks(call) for call in world.sandbox.calls)

    world.sandbox.faults.answer(500, times=10**6, which=asks)
    began = time.monotonic()
    async with inventory(world, tmp_path):
        await eventually(lambda: asked() >= 2)
        assert time.monotonic() - began >= RETRY_SECONDS
        await eventually(has(world, "a", ghost=Phase.BOUND))  # type: ignore[arg-type]
        await eventually(has(world, "b"))  # type: ignore[arg-type]
        world.sandbox.faults.clear()
        await eventually(has(world, "a"))  # type: ignore[arg-type]


async def test_what_a_binder_has_written_meanwhile_stays(world: Gpus, server: Server, tmp_path: Path) -> None:
    """Between the answer about a pod that is gone, and the write that takes its cards."""
    await add_hold(world, add_node(world, "a", "N(0,1) i2"), x=held("ghost", 0, Phase.BOUND))
    await world.complete()
    pod = world.add_pod("p", "A{i1}")
    answers = []
    async with InterruptedBus.connect(server.url, name="inventory") as bus, world.extender() as extender:
        assert isinstance(bus, InterruptedBus)

        async def bind_first() -> None:
            answers.append(await extender.bind(pod, "a"))

        bus.interruption = bind_first
        async with inventory(world, tmp_path, bus=bus) as worker:
            await eventually(lambda: worker.metric("tas_inventory_released_total", reason="gone") == 1)
            (found,) = (await pods_of(world, "a")).values()
    assert answers == [""]
    assert (found.pod.name, found.verified) == ("p", True)


async def is_disabled(world: Gpus, node: str, card: int) -> bool:
    found = (await answered(partial(NODE_INVENTORY.get, world.bus, node))).readable()
    return found is not None and card in found.facts.disabled


async def disable(world: Gpus, node: str, card: int) -> None:
    """Sets the label of a policy, and waits until the bus has it."""
    label = f"telemetry.aware.scheduling.p/gas-disable-card{card}"
    world.sandbox.cluster.patch(NODES, "", node, {"metadata": {"labels": {label: "true"}}}, manager="tas")
    await eventually(partial(is_disabled, world, node, card))


async def test_what_changes_while_a_pass_waits_is_not_forgotten(
    world: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.kubernetes.client.CALL_SECONDS", LONG)  # the request ends when the test ends it
    node = add_node(world, "a", "N(0,1) i2")
    stays = world.add_pod("stays", "A{i1}")
    bind(world, "stays", "a", {CARDS: "card1", "gas-ts": "9"})
    uid = stays["metadata"]["uid"]
    await add_hold(world, node, x=held("ghost", 0, Phase.BOUND), **{uid: held("stays", 1, Phase.BOUND)})
    await add_hold(world, add_node(world, "b", "N(0) i1"), y=held("other", 0, Phase.BOUND))
    await world.complete()
    released = world.sandbox.faults.hold(which=lambda call: call.verb == "get" and call.name == "ghost")
    async with inventory(world, tmp_path) as worker:
        await eventually(lambda: any(call.name == "ghost" for call in world.sandbox.calls))
        # Pods of other nodes do not wait for the answer, nor for the end of the request.
        await eventually(has(world, "b"))  # type: ignore[arg-type]
        assert not await is_disabled(world, "a", 0)
        labels = {f"telemetry.aware.scheduling.p/gas-disable-{each}": "true" for each in ("card0", "x")}
        world.sandbox.cluster.patch(NODES, "", "a", {"metadata": {"labels": labels}}, manager="tas")
        world.sandbox.cluster.delete(PODS, NAMESPACE, "stays")
        # The worker has seen both: the second label is a problem.
        await eventually(lambda: worker.metric("tas_inventory_pods") == 0)
        await eventually(lambda: worker.metric("tas_inventory_problems") == 1)
        released.set()
        await eventually(has(world, "a"))  # type: ignore[arg-type]
        await eventually(partial(is_disabled, world, "a", 0))


async def test_a_list_that_is_on_its_way_is_not_requested_again(world: Gpus, tmp_path: Path) -> None:
    """After a wipe: a list that began when no earlier Binding can take effect any more."""
    add_node(world, "a", "N(0,1,2) i3")

    def lists(call: Call) -> bool:
        return call.verb == "list" and call.resource == "pods"

    def listed() -> int:
        return sum(map(lists, world.sandbox.calls))

    released = world.sandbox.faults.hold(which=lambda call: lists(call) and listed() == 2)
    async with inventory(world, tmp_path, new_bus_wait=LONG) as worker:
        await eventually(lambda: listed() == 1 and worker.is_ready)
        worker.wait_no_longer((await answered(partial(world.bus.epoch, HOLDS))).age)
        await eventually(lambda: listed() == 2)
        for card in range(3):  # so many passes, of which two are complete
            await disable(world, "a", card)
        assert not await is_complete(world)
        released.set()
        await eventually(partial(is_complete, world))
        world.add_pod("stray", "A{i1}")
        bind(world, "stray", "a", {CARDS: "card0"})
        await eventually(has(world, "a", stray=Phase.BOUND))  # type: ignore[arg-type]
        assert listed() == 2


async def test_holds_are_complete_only_when_each_is_right(world: Gpus, tmp_path: Path) -> None:
    """The amounts of two pods on a card are above all bounds: a hold cannot have both."""
    huge = "A{i1 mc9223372036854775807}"
    nodes = {name: add_node(world, name, "N(0) i1") for name in ("begun", "other", "unreadable", "without")}
    for name in ("begun", "without"):
        for number in (1, 2):
            world.add_pod(f"{name}-{number}", huge)
            bind(world, f"{name}-{number}", name, {CARDS: "card0", "gas-ts": "9"})
    begun = held("begun-1", 0, Phase.BOUND, millicores=2**63 - 1)
    await add_hold(world, nodes["begun"], **{world.pod("begun-1")["metadata"]["uid"]: begun})
    await put(world.bus, HOLDS, "unreadable", b"{}")
    with capture_logs() as logs:
        async with inventory(world, tmp_path), world.extender(ready=False) as extender:
            await eventually(lambda: any(each["event"] == "hold_not_changed" for each in logs))
            await eventually(partial(has_hold, world, "other"))
            assert not await is_complete(world)
            world.sandbox.cluster.delete(PODS, NAMESPACE, "begun-2")
            await eventually(partial(is_complete, world))
            # Nobody gets cards of the nodes whose hold is not known.
            assert not await has_hold(world, "without")
            assert not await has_hold(world, "unreadable")
            pod = world.add_pod("p", "A{i1}")
            await eventually(lambda: extender.worker.unready() is None)
            for name in ("without", "unreadable"):
                assert "not known yet" in await extender.bind(pod, name)
            assert await extender.bind(pod, "other") == ""
    assert {each["node"] for each in logs if each["event"] == "hold_not_changed"} == {"begun", "without"}


async def test_annotations_for_which_no_record_has_room_hold_up_no_other_node(world: Gpus, tmp_path: Path) -> None:
    """60 containers with 512 cards each: 240 kB of annotations, which are 1.4 MB of a hold."""
    for name in ("a", "b"):
        add_node(world, name, "N(0) i1")
    world.add_pod("stranger", " ".join(f"c{number}{{i1}}" for number in range(60)))
    cards = ",".join(f"card{number}" for number in range(512))
    bind(world, "stranger", "a", {CARDS: "|".join([cards] * 60), "gas-ts": "9"})
    with capture_logs() as logs:
        async with inventory(world, tmp_path), world.extender(ready=False) as extender:
            await eventually(partial(is_complete, world))
            assert not await has_hold(world, "a")  # nobody gets its cards
            await eventually(lambda: extender.worker.unready() is None)
            assert await extender.bind(world.add_pod("p", "A{i1}"), "b") == ""
            world.sandbox.cluster.delete(PODS, NAMESPACE, "stranger")
            await eventually(partial(has_hold, world, "a"))
    assert {each["node"] for each in logs if each["event"] == "hold_not_changed"} == {"a"}
    assert not any(each["event"] == "inventory_lease_lost" for each in logs)


async def test_an_adopted_pod_that_makes_a_hold_too_large_with_assigned_ones_holds_up_no_other_node(
    world: Gpus, tmp_path: Path
) -> None:
    """Binders have assigned pods with thousands of containers, which are 700 KB of the hold."""
    nodes = {name: add_node(world, name, "N(0) i2") for name in ("a", "b")}
    world.add_pod("assigned", "A{i1}")
    bind(world, "assigned", "a", {CARDS: "card0", "gas-ts": "9"})
    assigned = held("assigned", 0, Phase.BOUND)
    more = tuple(SlotAssignment(container=f"{'c' * 56}-{number}") for number in range(9000))
    slots = (*assigned.assignment.slots, *more)
    assigned = msgspec.structs.replace(assigned, assignment=Assignment(slots=slots))
    await add_hold(world, nodes["a"], **{world.pod("assigned")["metadata"]["uid"]: assigned})
    await add_hold(world, nodes["b"])
    await world.complete()
    with capture_logs() as logs:
        async with inventory(world, tmp_path), world.extender() as extender:
            world.add_pod("stranger", " ".join(f"c{number}{{i1}}" for number in range(20)))
            cards = ",".join(f"card{number}" for number in range(512))
            bind(world, "stranger", "a", {CARDS: "|".join([cards] * 20), "gas-ts": "9"})
            await eventually(lambda: any(each["event"] == "hold_not_changed" for each in logs))
            assert await extender.bind(world.add_pod("p", "A{i1}"), "b") == ""
            world.sandbox.cluster.delete(PODS, NAMESPACE, "p")
            await eventually(has(world, "b"))  # type: ignore[arg-type]
    assert {each["node"] for each in logs if each["event"] == "hold_not_changed"} == {"a"}
    assert not any(each["event"] == "inventory_lease_lost" for each in logs)


async def test_a_node_whose_cards_no_record_has_room_for_holds_up_no_other(world: Gpus, tmp_path: Path) -> None:
    """Its kubelet says what resources it has: of 510 cards 31 with names of 63 characters are 1.4 MB."""
    texts = ["Z" + "".join(f".{number}" for number in range(start, start + 15)) for start in range(0, 510, 15)]
    texts[0] = texts[0].removeprefix("Z.")
    labels = {f"{notation.GPU}gpu-numbers{number if number > 1 else ''}": each for number, each in enumerate(texts, 1)}
    amounts = {f"{notation.GPU}{'r' * 60}{number}": "510" for number in range(100, 200)}
    amounts[f"{notation.GPU}i915"] = "510"
    body = {"metadata": {"name": "a", "labels": labels}, "status": {"allocatable": amounts}}
    world.sandbox.cluster.create(NODES, "", body, manager="nfd")
    add_node(world, "b", "N(0) i1")
    with capture_logs() as logs:
        async with inventory(world, tmp_path), world.extender(ready=False) as extender:
            await eventually(partial(is_complete, world))
            await eventually(lambda: extender.worker.unready() is None)
            for name in ("first", "second"):
                pod = world.add_pod(name, "A{i1}")
                assert await extender.bind(pod, "b") == ""
                world.sandbox.cluster.delete(PODS, NAMESPACE, name)
                await eventually(has(world, "b"))  # type: ignore[arg-type]
    assert {each["node"] for each in logs if each["event"] == "cards_of_node_not_written"} == {"a"}
    assert not any(each["event"] == "inventory_lease_lost" for each in logs)


async def test_a_replica_that_may_not_write_the_cards_of_nodes_gives_its_lease_back(
    world: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a closed bus another replica may have the right: it has newer credentials."""
    add_node(world, "a", "N(0) i1")
    original, forbidden = world.bus.put, ["NODES"]

    async def put_if_allowed(bucket: Bucket, key: str, value: bytes, **options: Any) -> int:
        if bucket.name in forbidden:
            raise ForbiddenError(f"no permission to write {key}")
        return await original(bucket, key, value, **options)

    monkeypatch.setattr(world.bus, "put", put_if_allowed)
    with capture_logs() as logs:
        async with inventory(world, tmp_path):
            await eventually(lambda: any(each["event"] == "inventory_lease_lost" for each in logs))
            forbidden.clear()
            await eventually(partial(has_inventory, world, "a"))
    assert not any(each["event"] == "cards_of_node_not_written" for each in logs)


async def test_the_alert_about_refusals_fires_while_a_full_bucket_has_no_room_for_cards(
    world: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`TasBusRefuses` waits for two minutes, and one refusal counts for one: so each pass must be refused anew."""
    assert CHECK_ALL_SECONDS < FULL_SECONDS
    monkeypatch.setattr("workers.inventory.cards.CHECK_ALL_SECONDS", 0.0)
    config = (await world.bus.api("STREAM.INFO.KV_NODES"))["config"]
    await world.bus.api("STREAM.UPDATE.KV_NODES", config | {"max_bytes": 1})
    original, refused = world.bus.put, 0

    async def counted(bucket: Bucket, key: str, value: bytes, **options: Any) -> int:
        nonlocal refused
        try:
            return await original(bucket, key, value, **options)
        except FullError:
            refused += key == NODE_INVENTORY.key("a")
            raise

    monkeypatch.setattr(world.bus, "put", counted)
    add_node(world, "a", "N(0) i1")
    async with inventory(world, tmp_path):
        await eventually(lambda: refused > 2)
        assert str(world.bus.problem).startswith("NODES has no room")
        assert world.bus.refusing


async def has_inventory(world: Gpus, node: str) -> bool:
    return (await answered(partial(NODE_INVENTORY.get, world.bus, node))).readable() is not None


async def has_hold(world: Gpus, node: str) -> bool:
    return (await answered(partial(NODE_HOLDS.get, world.bus, node))).readable() is not None


async def test_a_hold_that_somebody_deletes_is_built_again_when_no_binding_is_on_its_way(
    world: Gpus, tmp_path: Path
) -> None:
    node = add_node(world, "a", "N(0,1) i2")
    world.add_pod("bound", "A{i1}")
    bind(world, "bound", "a", {CARDS: "card1", "gas-ts": "9"})
    await add_hold(world, node, x=held("reserved", 0, Phase.RESERVED))
    await world.complete()
    await put(world.bus, HOLDS, "a", None)
    async with inventory(world, tmp_path, new_bus_wait=LONG):
        add_node(world, "b", "N(0) i1")  # a node that never had a hold gets it at once
        await eventually(partial(has_hold, world, "b"))
        for card in range(2):
            await disable(world, "a", card)
        assert not await has_hold(world, "a")
    async with inventory(world, tmp_path):
        await eventually(has(world, "a", bound=Phase.BOUND))  # type: ignore[arg-type]


async def test_what_cannot_be_read_or_has_no_claim_is_reported(world: Gpus, tmp_path: Path) -> None:
    add_node(world, "a", "N(0,1) i2 numa=0-0.1_1")
    world.add_pod("stray", "A{i1}")
    bind(world, "stray", "a", {})
    async with inventory(world, tmp_path, forget_seconds=0.2) as worker:
        await eventually(lambda: worker.metric("tas_inventory_drifting_pods") == 1)
        assert worker.metric("tas_inventory_problems") == 1
        assert worker.metric("tas_inventory_nodes") == 1
        record = (await answered(partial(NODE_INVENTORY.get, world.bus, "a"))).readable()
        assert record is not None
        assert [each.field for each in record.inventory.problems] == ["gpu.intel.com/numa-gpu-map"]
        # A policy disables a card, and the node loses its cards.
        await disable(world, "a", 0)
        world.sandbox.cluster.delete(NODES, "", "a")

        async def is_forgotten() -> bool:
            """Without a tombstone."""
            return (await answered(partial(NODE_INVENTORY.get, world.bus, "a"))).revision == 0

        await eventually(is_forgotten)
        assert worker.metric("tas_inventory_drifting_pods") == 1
    assert worker.metric("tas_inventory_drifting_pods") == 0  # without the lease: another replica reports the pod


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
