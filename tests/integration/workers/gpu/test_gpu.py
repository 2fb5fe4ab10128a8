"""The extender for GPU cards over a real nats-server and the sandbox: what the API objects say in the end."""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import HOLDS, NODES, POLICIES, SYNCED
from bus.connection import Bus
from bus.kinds import NODE_ALLOCATION, NODE_HOLDS, synced_of
from bus.records.synced import Synced
from lab.sandbox.resources import PODS, Object
from tas.allocation.node import NodeAllocation
from tas.extender.decision import Binding
from tas.extender.gpu import CardsDecider
from tas.gpu.card_score import CardScore
from tas.gpu.claim import Options
from tas.gpu.hold import EMPTY, Phase
from tas.gpu.pod_annotations import parse_cards, parse_tiles
from tests.e2e.processes import free_ports
from tests.integration.bus.limits import long_limits
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.gpu.gpu import NAMESPACE, Extender, Gpus, gpus
from tests.integration.workers.running import running
from tests.sandbox import Call, Drop, Faults
from tests.unit.tas.gpu.device_plugin import DevicePlugin, Pending
from workers.extender.worker import ExtenderWorker
from workers.following.followed_allocations import FollowedAllocations
from workers.following.followed_view import FollowedView
from workers.following.synced import write_synced
from workers.gpu.binder import CardBinder, Result
from workers.http.address import Address
from workers.kubernetes.client import KubernetesClient
from workers.scheduler.server import SchedulerServer

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")


@pytest.fixture
async def world(server: Server, bus: Bus, tmp_path: Path) -> AsyncIterator[Gpus]:
    async with gpus(server, bus, tmp_path) as found:
        yield found


def annotations(pod: Object) -> dict[str, str]:
    """The annotations that the binder writes, without the time."""
    found = pod["metadata"].get("annotations", {})
    return {name: found[name] for name in ("gas-container-cards", "gas-container-tiles") if name in found}


async def test_a_pod_gets_its_cards_with_its_binding(world: Gpus) -> None:
    await world.add_nodes(
        full="N(0) i1 ; card0: i1", free="N(0,1) i4 t4 mc2000", preferred="N(0,1) i4 t4 prefer-gpu=card1"
    )
    await world.complete()
    pod = world.add_pod("p", "A{i1 t1} B{} C{i2 t2}")
    plain = world.add_pod("plain", "A{}")
    never = world.add_pod("never", "A{i1} B{i1 t1}")
    began = time.time_ns()
    async with world.extender() as extender:
        answer = await extender.filter(pod, "full", "free", "preferred", "unknown")
        assert answer["NodeNames"] == ["free", "preferred"]
        assert answer["FailedNodes"].keys() == {"full", "unknown"}
        assert "not known yet" in answer["FailedNodes"]["unknown"]
        _, scores = await extender.ask("prioritize", {"Pod": pod, "NodeNames": ["free", "preferred"]})
        by_node = {each["Host"]: each["Score"] for each in scores}
        assert by_node["preferred"] > by_node["free"]
        answer = await extender.filter(never, "free", "unknown")
        assert answer["FailedAndUnresolvableNodes"].keys() == {"free", "unknown"}
        assert "device plugin" in answer["FailedAndUnresolvableNodes"]["free"]
        assert (await extender.filter(plain, "full", "unknown"))["NodeNames"] == ["full", "unknown"]
        assert extender.metric("tas_gpu_refused_nodes_total", why="will_not_fit") == 1
        assert extender.metric("tas_gpu_refused_nodes_total", why="unknown_node") == 1
        assert extender.metric("tas_gpu_refused_nodes_total", why="never") == 2

        assert await extender.bind(pod, "free") == ""
        bound = world.pod("p")
        assert bound["spec"]["nodeName"] == "free"
        assert annotations(bound) == {
            "gas-container-cards": "card0||card0,card1",
            "gas-container-tiles": "card0:gt0||card0:gt1,card1:gt0",
        }
        assert began <= int(bound["metadata"]["annotations"]["gas-ts"]) <= time.time_ns()
        held = (await world.hold("free")).pods[pod["metadata"]["uid"]]
        assert (held.phase, held.until, str(held.pod)) == (Phase.BOUND, None, "default/p")
        assert str(held.nanoseconds) == bound["metadata"]["annotations"]["gas-ts"]

        # BND-05: the same bind again has the same answer, and books nothing.
        assert await extender.bind(pod, "free") == ""
        assert world.pod("p") == bound
        assert len((await world.hold("free")).pods) == 1
        # FIT-10: a pod without GPU requests is bound without annotations, known from filter or not.
        assert await extender.bind(plain, "full") == ""
        assert world.pod("plain")["spec"]["nodeName"] == "full"
        assert "gas-ts" not in world.pod("plain")["metadata"].get("annotations", {})
        # What filter would have refused is refused by bind: nothing is sent.
        third = world.add_pod("third", "A{i1}")
        assert "no card has room for container A" in await extender.bind(third, "full")
        assert "not known yet" in await extender.bind(third, "unknown")
        assert "device plugin" in await extender.bind(never, "free")
        assert "nodeName" not in world.pod("third")["spec"]
        assert extender.metric("tas_gpu_binds_total", result="bound") == 3
        assert extender.metric("tas_gpu_binds_total", result="refused") == 2
        assert extender.metric("tas_gpu_binds_total", result="retry") == 1
        assert extender.metric("tas_gpu_bind_seconds_count") == 6
    creations = [call for call in world.sandbox.calls if call.verb == "create"]
    assert [(call.subresource, call.name) for call in creations] == [("binding", "p"), ("binding", "plain")]
    assert world.sandbox.count()["patch", "pods"] == 0


async def test_BND_01_a_pod_that_no_filter_request_showed_is_read_and_must_have_the_uid(world: Gpus) -> None:
    await world.add_nodes(a="N(0) i2")
    await world.complete()
    pod = world.add_pod("p", "A{i1}")
    async with world.extender() as extender:
        other = pod | {"metadata": pod["metadata"] | {"uid": "other"}}
        assert "other was to be bound" in await extender.bind(other, "a")
        assert "not found" in await extender.bind(pod | {"metadata": pod["metadata"] | {"name": "absent"}}, "a")
        await extender.filter(pod, "a")
        renamed = world.add_pod("renamed", "A{i1}")
        with_its_name = pod | {"metadata": pod["metadata"] | {"name": "renamed"}}
        text = await extender.bind(with_its_name, "a")
        assert f"has the uid {renamed['metadata']['uid']}" in text
        assert (await world.hold("a")).pods == {}
        assert await extender.bind(pod, "a") == ""
    assert annotations(world.pod("p")) == {"gas-container-cards": "card0"}


async def test_the_hold_of_another_node_of_the_name_gives_no_cards(world: Gpus) -> None:
    world.sandbox.add_node("a")
    await world.add_records("a", "N(0) i2", EMPTY, uid="of the node before")
    await world.complete()
    pod = world.add_pod("p", "A{i1}")
    async with world.extender() as extender:
        assert (await extender.filter(pod, "a"))["FailedNodes"].keys() == {"a"}
        assert "not known yet" in await extender.bind(pod, "a")
    assert "nodeName" not in world.pod("p")["spec"]


async def test_a_binder_that_has_not_noticed_a_wipe_gives_no_cards(world: Gpus, tmp_path: Path) -> None:
    """The hold of the new epoch may lack pods that a binder of the old epoch has just bound."""
    await world.add_nodes(a="N(0) i2")
    pod = world.add_pod("p", "A{i1}")
    known = Synced(epoch="of the epoch before", count=1, time=datetime.now(UTC), writer="test", cluster=True)
    metadata = pod["metadata"]
    asked = Binding(namespace=NAMESPACE, name="p", uid=metadata["uid"], node="a")
    async with KubernetesClient.connect(world.sandbox.kubeconfig(tmp_path / "config"), worker="gpu") as client:
        synced: list[Synced | None] = [known]
        binder = CardBinder(
            world.bus,
            client,
            CardsDecider({}, options=Options(), by=CardScore.PACK),
            options=Options(),
            synced=lambda: synced[0],
            registry=CollectorRegistry(),
        )
        assert "after a wipe of the bus the holds are not complete" in str(await binder.bind(asked, 0.0))
        await world.complete()
        assert "after a wipe of the bus the holds are not complete" in str(await binder.bind(asked, 0.0))
        synced[0] = (await answered(lambda: synced_of(HOLDS).get(world.bus, SYNCED))).readable()
        assert await binder.bind(asked, 0.0) is None
        synced[0] = None
        assert "after a wipe of the bus the holds are not complete" in str(
            await binder.bind(msgspec.structs.replace(asked, node="b"), 0.0)
        )
    assert world.pod("p")["spec"]["nodeName"] == "a"


async def test_LIF_04_nobody_answers_before_the_holds_of_this_epoch_are_complete(world: Gpus, server: Server) -> None:
    await world.add_nodes(a="N(0) i2")
    pod = world.add_pod("p", "A{i1}")
    async with world.extender(ready=False) as extender:

        async def refused(verb: str, body: Object) -> str:
            status, answer = await extender.ask(verb, body)
            assert status == 503
            return str(answer["error"])

        asked = {"Pod": pod, "NodeNames": ["a"]}
        await eventually(lambda: extender.worker.unready() == "HOLDS: no complete list yet (key _synced)")
        binding = {"PodName": "p", "PodNamespace": NAMESPACE, "PodUID": pod["metadata"]["uid"], "Node": "a"}
        for verb, body in (("filter", asked), ("prioritize", asked), ("bind", binding)):
            assert "no complete list yet" in await refused(verb, body)
        await world.complete()
        await eventually(lambda: extender.worker.unready() is None)
        assert (await extender.filter(pod, "a"))["NodeNames"] == ["a"]

        await server.restart(wiped=True)
        await eventually(lambda: extender.worker.unready() is not None)
        assert "HOLDS" in await refused("filter", asked)
        assert "HOLDS" in await refused("bind", binding)
        await world.bus.wait_connected()
        await answered(lambda: world.add_records("b", "N(0) i2", EMPTY))
        await world.complete()
        await eventually(lambda: extender.worker.unready() is None)
        # Nothing of the old epoch counts: node a has no hold yet.
        assert (await extender.filter(pod, "a", "b"))["NodeNames"] == ["b"]
    assert "nodeName" not in world.pod("p")["spec"]


def of_binding(call: Call) -> bool:
    return (call.verb, call.subresource) == ("create", "binding")


def answers(status: int, **more: Any) -> Callable[[Faults], object]:
    return lambda faults: faults.answer(status, which=of_binding, **more)


def drops(when: Drop) -> Callable[[Faults], object]:
    return lambda faults: faults.drop(when, which=of_binding)


@pytest.mark.parametrize(
    ("fault", "result", "is_bound"),
    [
        pytest.param(answers(403), Result.FAILED, False, id="403"),
        pytest.param(answers(404), Result.FAILED, False, id="404"),
        pytest.param(answers(409), Result.FAILED, False, id="409"),
        pytest.param(answers(410), Result.FAILED, False, id="410"),
        pytest.param(answers(422), Result.FAILED, False, id="422"),
        pytest.param(answers(429, retry_after=1), Result.FAILED, False, id="429"),
        pytest.param(answers(500), Result.UNKNOWN, False, id="500"),
        pytest.param(answers(504), Result.UNKNOWN, False, id="504"),
        pytest.param(drops(Drop.BEFORE), Result.UNKNOWN, False, id="connection lost before"),
        pytest.param(drops(Drop.WITHIN), Result.UNKNOWN, True, id="half of the answer"),
        pytest.param(drops(Drop.AFTER), Result.UNKNOWN, True, id="no answer"),
    ],
)
async def test_a_failed_binding_frees_the_cards_and_an_unknown_outcome_keeps_them(
    world: Gpus, fault: Callable[[Faults], object], result: Result, is_bound: bool
) -> None:
    await world.add_nodes(a="N(0,1) i2")
    await world.complete()
    pod = world.add_pod("p", "A{i1}")
    uid = pod["metadata"]["uid"]
    async with world.extender() as extender:
        await extender.filter(pod, "a")
        fault(world.sandbox.faults)
        assert await extender.bind(pod, "a") != ""
        assert world.sandbox.faults.waiting == 0
        assert extender.metric("tas_gpu_binds_total", result=result) == 1
        assert ("nodeName" in world.pod("p")["spec"]) is is_bound
        held = (await world.hold("a")).pods
        assert held.keys() == ({uid} if result is Result.UNKNOWN else set())
        if result is Result.UNKNOWN:
            assert held[uid].phase is Phase.RESERVED
            # BND-04: meanwhile nobody else gets the card.
            other = world.add_pod("other", "A{i1}")
            assert await extender.bind(other, "a") == ""
            assert annotations(world.pod("other")) == {"gas-container-cards": "card1"}

        # The scheduler tries again, and the pod has the cards of the first time.
        assert await extender.bind(pod, "a") == ""
        assert annotations(world.pod("p")) == {"gas-container-cards": "card0"}
        assert (await world.hold("a")).pods[uid].phase is Phase.BOUND


async def test_a_binding_without_an_answer_leaves_the_reservation(world: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.add_nodes(a="N(0) i1")
    await world.complete()
    pod = world.add_pod("p", "A{i1}")
    async with world.extender() as extender:
        await extender.filter(pod, "a")  # so the Binding is the only call with the short limit
        monkeypatch.setattr("workers.kubernetes.client.CALL_SECONDS", 0.3)
        world.sandbox.faults.delay(30.0, which=of_binding)
        assert "no data" in await extender.bind(pod, "a")
        assert extender.metric("tas_gpu_binds_total", result=Result.UNKNOWN) == 1
        (held,) = (await world.hold("a")).pods.values()
        assert held.phase is Phase.RESERVED
        assert held.until is not None
        assert held.until > time.time() + 60


async def test_a_binding_is_not_sent_when_its_reads_are_old(world: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A binder may be stopped at any line: the reservation must not end, or be lost in a wipe, before its Binding."""
    monkeypatch.setattr("workers.kubernetes.client.WRITE_SECONDS", 0.0)
    await world.add_nodes(a="N(0) i1")
    await world.complete()
    pod = world.add_pod("p", "A{i1}")
    async with world.extender() as extender:
        await extender.filter(pod, "a")
        assert re.search(r"read \d+\.\d s ago", await extender.bind(pod, "a"))
        assert (await world.hold("a")).pods == {}
    assert "nodeName" not in world.pod("p")["spec"]


def extender_with(
    extensions: Sequence[EntryPoint], followed: FollowedView, listen: Address, *, world: Gpus, only: str | None = None
) -> tuple[ExtenderWorker, CollectorRegistry]:
    registry = CollectorRegistry()
    server = SchedulerServer("extender", listen, registry)
    return ExtenderWorker(world.bus, followed, server, registry=registry, extensions=extensions, only=only), registry


async def test_an_installed_extension_is_asked_once_what_it_reads_is_complete(
    world: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_follow = asyncio.Event()
    follow = FollowedAllocations.run

    async def follow_later(self: FollowedAllocations) -> None:
        await may_follow.wait()
        await follow(self)

    monkeypatch.setattr(FollowedAllocations, "run", follow_later)
    for bucket in (NODES, POLICIES):
        epoch = await answered(partial(world.bus.epoch, bucket))
        await write_synced(world.bus, bucket, epoch, count=0, writer="test", cluster=False)
    await world.add_nodes(full="N(0) i1 ; card0: i1", free="N(0) i1")
    await NODE_ALLOCATION.put(world.bus, "full", NodeAllocation(uid="u"), revision=0, read_at=time.monotonic())
    extensions = [
        EntryPoint(name, f"tests.integration.workers.gpu.gpu:{kind}", "tas.extenders")
        for name, kind in (("cards", "UnusedCards"), ("allocations", "Allocated"), ("plain", "Three"))
    ]
    listen = Address("127.0.0.1", *free_ports(1))
    followed = FollowedView(world.bus, default_stale_after=60.0, pods=True)
    worker, registry = extender_with(extensions, followed, listen, world=world)
    alone = [
        extender_with(extensions, followed, Address("127.0.0.1", *free_ports(1)), world=world, only=name)[0]
        for name in ("cards", "allocations", "plain")
    ]
    asked = {"Pod": world.add_pod("p", "A{i1}"), "Nodes": None, "NodeNames": ["full", "free", "unknown"]}
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        for each in (worker, *alone):
            await stack.enter_async_context(running(each))

        async def ask(path: str) -> tuple[int, Any]:
            try:
                async with session.post(f"http://{listen}{path}", json=asked) as answer:
                    return answer.status, await answer.json()
            except aiohttp.ClientError:
                return 0, {}

        async def telemetry_answers() -> bool:
            return (await ask("/scheduler/filter"))[0] == 200

        await eventually(telemetry_answers)
        assert (await ask("/plain/prioritize"))[0] == 200
        for name, reason in (("cards", "HOLDS: no complete list yet"), ("allocations", "NODES: not caught up")):

            async def says_why(path: str = f"/{name}/filter", why: str = f"extension {name} filter: {reason}") -> bool:
                status, answer = await ask(path)
                assert status == 503, answer
                return bool(answer["error"].startswith(why))

            await eventually(says_why)  # before it has caught up with HOLDS, that is the reason
            assert registry.get_sample_value("tas_extension_mounted", {"extension": name}) == 0
        await eventually(lambda: [each.unready() is None for each in alone] == [False, False, True])

        await world.complete()
        may_follow.set()

        async def all_answer() -> bool:
            status, answer = await ask("/cards/filter")
            other, known = await ask("/allocations/filter")
            return (status, other) == (200, 200) and (answer["NodeNames"], known["NodeNames"]) == (["free"], ["full"])

        await eventually(all_answer)
        await eventually(lambda: all(each.unready() is None for each in alone))
        assert registry.get_sample_value("tas_extension_mounted", {"extension": "allocations"}) == 1


async def test_a_pod_that_is_another_one_or_elsewhere_by_now_gets_no_cards(world: Gpus) -> None:
    await world.add_nodes(a="N(0) i1 t2", b="N(0) i1")
    await world.complete()
    replaced, elsewhere, gone, ours = (world.add_pod(name, "A{i1}") for name in ("replaced", "else", "gone", "ours"))
    tiled = world.add_pod("tiled", "A{i1 t1}")
    async with world.extender() as extender:
        for pod in (replaced, elsewhere, gone, ours, tiled):
            await extender.filter(pod, "a")
        for pod in (replaced, gone):
            world.sandbox.cluster.delete(PODS, NAMESPACE, pod["metadata"]["name"])
        world.add_pod("replaced", "A{i1}")
        same = {"name": "else", "annotations": {"gas-container-cards": "card0"}}
        target: Object = {"metadata": same, "target": {"kind": "Node", "name": "b"}}
        world.sandbox.cluster.bind(NAMESPACE, "else", target, manager="test")
        # Somebody else has bound them to our node, with another card, and with another tile of the card.
        for name, cards, tiles in (("ours", "card7", ""), ("tiled", "card0", "card0:gt1")):
            other: Object = {"gas-container-cards": cards, "gas-container-tiles": tiles}
            target = {"metadata": {"name": name, "annotations": other}, "target": {"kind": "Node", "name": "a"}}
            world.sandbox.cluster.bind(NAMESPACE, name, target, manager="test")
        for pod, text in (
            (replaced, "UID in precondition"),
            (elsewhere, 'already assigned to node "b"'),
            (gone, "not found"),
            (ours, 'already assigned to node "a"'),
            (tiled, 'already assigned to node "a"'),
        ):
            assert text in await extender.bind(pod, "a")
            assert (await world.hold("a")).pods == {}, text
        assert extender.metric("tas_gpu_binds_total", result=Result.FAILED) == 5


@pytest.mark.parametrize("status", [500, 404])
async def test_a_conflict_that_cannot_be_looked_into_keeps_the_reservation(world: Gpus, status: int) -> None:
    """A plain 404 says that the path is not served, and nothing about the pod."""
    await world.add_nodes(a="N(0) i1")
    await world.complete()
    pod = world.add_pod("p", "A{i1}")
    async with world.extender() as extender:
        await extender.filter(pod, "a")
        world.sandbox.faults.answer(409, which=of_binding)
        world.sandbox.faults.answer(status, which=lambda call: call.verb == "get")
        assert await extender.bind(pod, "a") != ""
        assert extender.metric("tas_gpu_binds_total", result=Result.UNKNOWN) == 1
        assert len((await world.hold("a")).pods) == 1


async def test_a_second_bind_of_a_pod_does_not_free_what_the_first_may_still_use(world: Gpus) -> None:
    """The first Binding is on its way when the second one is refused: the cards stay reserved."""
    await world.add_nodes(a="N(0) i1")
    await world.complete()
    pod = world.add_pod("p", "A{i1}")
    async with world.extender() as first, world.extender() as second:
        world.sandbox.faults.answer(500, which=of_binding)
        assert await first.bind(pod, "a") != ""
        world.sandbox.faults.answer(429, which=of_binding)
        assert await second.bind(pod, "a") != ""
        assert second.metric("tas_gpu_binds_total", result=Result.FAILED) == 1
        assert len((await world.hold("a")).pods) == 1
        assert [*await asyncio.gather(first.bind(pod, "a"), second.bind(pod, "a"))] == ["", ""]
        assert len((await world.hold("a")).pods) == 1


async def test_a_replica_that_shares_a_port_listens_only_when_it_is_ready(world: Gpus) -> None:
    await world.add_nodes(a="N(0) i1")
    async with world.extender(ready=False, share_listen=True) as extender:
        await eventually(lambda: all(watch.caught_up for watch in extender.worker._followed.watches.values()))
        assert extender.worker.unready() is not None
        assert not await extender.listens()
        await world.complete()
        await eventually(extender.listens)
        assert extender.worker.unready() is None
        assert (await extender.filter(world.add_pod("p", "A{i1}"), "a"))["NodeNames"] == ["a"]


async def test_with_one_start_a_node_gets_its_next_pod_when_the_last_has_started(world: Gpus) -> None:
    await world.add_nodes(a="N(0) i9")
    await world.complete()
    world.sandbox.cluster.starts_pods = False
    first, second = world.add_pod("first", "A{i1}"), world.add_pod("second", "A{i1}")
    async with world.extender(one_start=True) as extender:
        assert await extender.bind(first, "a") == ""
        assert "pod default/first with GPU cards has not started" in await extender.bind(second, "a")
        assert "nodeName" not in world.pod("second")["spec"]
        status = {"status": {"phase": "Running"}}
        world.sandbox.cluster.patch(PODS, NAMESPACE, "first", status, manager="kubelet", status=True)
        assert await extender.bind(second, "a") == ""
        assert len((await world.hold("a")).pods) == 2


@pytest.mark.parametrize("one_start", [False, True])
async def test_facts_g6_with_one_start_no_order_of_starts_gives_a_pod_the_cards_of_another(
    world: Gpus, one_start: bool
) -> None:
    """Six pods want one node at once. Whichever of the bound pods starts next, the device plugin picks its cards."""
    world.sandbox.cluster.starts_pods = False
    await world.add_nodes(a="N(0..2) i6 mc3000")
    await world.complete()
    waiting = {f"p-{number}": world.add_pod(f"p-{number}", "A{i1 mc500}") for number in range(6)}
    bound: dict[str, Pending] = {}
    plugin, order = DevicePlugin(), random.Random(1)
    mixed_up: list[tuple[str, str]] = []
    async with world.extender(one_start=one_start) as extender:
        while waiting or bound:
            names = order.sample([*waiting], len(waiting))
            errors = await asyncio.gather(*(extender.bind(waiting[name], "a") for name in names))
            for name, error in zip(names, errors, strict=True):
                if not error:
                    del waiting[name]
                    bound[name] = Pending(world.pod(name)["metadata"]["annotations"], 1)
            assert bound, errors
            assert len(bound) == 1 or not one_start
            # The kubelet starts them in any order: here the one that was bound last comes first.
            starting = max(bound, key=lambda name: bound[name].annotations["gas-ts"])
            with suppress(LookupError):  # the cards of this pod were given to another one before
                if (picked := plugin.allocate(bound).pod) != starting:
                    mixed_up.append((starting, picked))
            del bound[starting]
            status = {"status": {"phase": "Running"}}
            world.sandbox.cluster.patch(PODS, NAMESPACE, starting, status, manager="kubelet", status=True)
    assert bool(mixed_up) == (not one_start), mixed_up


SHAPES = ("A{i1 mc300}", "A{i1 t1}", "A{i1 t1 mc100} B{i1 t1}", "A{i2 t2 mc400}", "A{i1 mc900} B{} C{i1 mc200}")
NODE = "N(0..3) i16 t16 mc4000"
CAPACITY = {"i": 4, "t": 4, "mc": 1000}


def judge(pods: list[Object]) -> None:
    """What the annotations and the requests of all pods say: no card too full, no tile with two owners."""
    used: Counter[tuple[str, int, str]] = Counter()
    tiles: Counter[tuple[str, int, int]] = Counter()
    for pod in pods:
        node = pod["spec"].get("nodeName")
        found = pod["metadata"].get("annotations", {})
        assert (node is None) == ("gas-container-cards" not in found), pod["metadata"]["name"]
        if node is None:
            continue
        cards, card_problems = parse_cards(found["gas-container-cards"])
        card_tiles, tile_problems = parse_tiles(found.get("gas-container-tiles", ""))
        assert not card_problems
        assert not tile_problems
        for index, container in enumerate(pod["spec"]["containers"]):
            requests = {
                name.removeprefix("gpu.intel.com/"): int(n)
                for name, n in container["resources"].get("requests", {}).items()
            }
            assert len(cards[index]) == requests.get("i915", 0)
            for card in cards[index]:
                used[node, card, "i"] += 1
                used[node, card, "mc"] += requests.get("millicores", 0) // len(cards[index])
                own = card_tiles[index].get(card, ()) if index < len(card_tiles) else ()
                assert len(own) == requests.get("tiles", 0) // len(cards[index])
                used[node, card, "t"] += len(own)
                tiles.update((node, card, tile) for tile in own)
    assert used
    assert {key: amount for key, amount in used.items() if amount > CAPACITY[key[2]]} == {}
    assert set(tiles.values()) == {1}


def started_in_order(pods: list[Object]) -> None:
    """The device plugin of each node gives each container its own cards, when pods start in the order of `gas-ts`."""
    by_node: dict[str, dict[str, Object]] = {}
    for pod in pods:
        if node := pod["spec"].get("nodeName"):
            by_node.setdefault(node, {})[pod["metadata"]["name"]] = pod["metadata"]["annotations"]
    for found in by_node.values():
        assert len({each["gas-ts"] for each in found.values()}) == len(found)
        waiting = {
            name: Pending(each, sum(1 for segment in each["gas-container-cards"].split("|") if segment))
            for name, each in found.items()
        }
        plugin = DevicePlugin()
        for name in sorted(waiting, key=lambda name: found[name]["gas-ts"]):
            for segment in filter(None, found[name]["gas-container-cards"].split("|")):
                given = plugin.allocate(waiting)
                assert (given.pod, given.cards) == (name, segment.split(","))


@pytest.mark.parametrize("seed", range(2))
async def test_BND_04_many_binders_never_give_a_card_twice(world: Gpus, server: Server, seed: int) -> None:
    """Three binders with connections of their own, whose clients leave at any line; the API server sometimes fails."""
    chance = random.Random(seed)
    nodes = [f"n{number}" for number in range(3)]
    await world.add_nodes(**dict.fromkeys(nodes, NODE))
    await world.complete()
    pods = [world.add_pod(f"p{number}", chance.choice(SHAPES)) for number in range(60)]
    async with AsyncExitStack() as stack:
        extenders: list[Extender] = []
        for number in range(3):
            bus = await stack.enter_async_context(Bus.connect(server.url, name=f"binder-{number}"))
            extenders.append(await stack.enter_async_context(world.extender(bus=bus)))
        for status in (429, 500, 409):
            world.sandbox.faults.answer(status, times=3, which=of_binding)
        world.sandbox.faults.drop(Drop.AFTER, times=3, which=of_binding)

        async def place(pod: Object) -> str:
            """What the scheduler does with a pod: it is filtered by one replica, and bound by another."""
            error = ""
            for _ in range(20):  # on a busy machine a binder has no time for so many at once, and most tries fail
                passed = (await chance.choice(extenders).filter(pod, *nodes))["NodeNames"]
                if not passed:
                    return "no node"
                binding = asyncio.create_task(chance.choice(extenders).bind(pod, chance.choice(passed)))
                if chance.random() < 0.1:  # the scheduler does not wait, and a process may end at any line
                    await asyncio.sleep(chance.random() / 100)
                    binding.cancel()
                error = str(*await asyncio.gather(binding, return_exceptions=True))
                if not error or "nodeName" in world.pod(pod["metadata"]["name"])["spec"]:
                    return ""
            return error

        errors = await asyncio.gather(*map(place, pods))
        found = [world.pod(pod["metadata"]["name"]) for pod in pods]
        judge(found)
        started_in_order(found)
        conflicts = sum(each.metric("tas_gpu_bind_conflicts_total") for each in extenders)
        assert conflicts > 0, "the binders have never met"
        assert errors.count("no node") > 0, "there was room for all"
        assert world.sandbox.faults.waiting == 0

        # Every bound pod has exactly one claim on its node, with the cards of its annotations.
        for node in nodes:
            stored = (await answered(lambda node=node: NODE_HOLDS.get(world.bus, node))).readable()  # type: ignore[misc]
            assert stored is not None
            on_node = {each["metadata"]["uid"] for each in found if each["spec"].get("nodeName") == node}
            assert on_node <= stored.pods.keys()
            assert all(stored.pods[uid].verified for uid in on_node)
