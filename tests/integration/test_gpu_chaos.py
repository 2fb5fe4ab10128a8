"""Binders and keepers of GPU cards under fire, from a seed: their processes are killed and paused, the API server
fails, pods end, and the bus is wiped once. In the end only the API objects count: the annotations of pods, and the
amounts of nodes; and the holds must say the same.

`TAS_GPU_SEEDS=50` runs the seeds 1 to 50, `TAS_GPU_SEEDS=7-9` those three; without it seed 1 runs, and `make nightly`
runs 60. A seed determines the pods and the faults, but not the order in which processes run.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from math import inf
from pathlib import Path

import aiohttp
import pytest

from bus.buckets import HOLDS
from bus.connection import Bus
from bus.kinds import NODE_HOLDS
from lab.sandbox.resources import PODS, Object
from tas.enforcing.pod import ENDED, PodKey
from tas.gpu.adoption import adopt, uses_cards
from tas.gpu.assigning import fits
from tas.gpu.claim import Claim, ContainerRequest, DevicePod, Options, read_claim
from tas.gpu.hold import EMPTY, Hold, Phase
from tests.integration.bus.limits import long_limits
from tests.integration.replicas import Replica, replica, tas
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.gpu.gpu import NAMESPACE, Gpus, gpus
from tests.integration.workers.gpu.test_gpu import NODE, SHAPES, judge, of_binding, started_in_order
from tests.integration.workers.inventory.test_inventory import add_hold, add_node, has, held, pods_of
from tests.integration.workers.running import put
from tests.sandbox import Drop
from tests.unit.tas.gpu import notation

__all__ = ["long_limits"]

pytestmark = [pytest.mark.seeded, pytest.mark.ci, pytest.mark.usefixtures("long_limits")]

NODES = tuple(f"n{number}" for number in range(4))
PODS_PER_SEED = 100
ENDING_PODS = 6
HISTORY_SECONDS = 14.0
"""Long enough that after the wipe the holds are complete again before the end."""
BINDERS = 3
KEEPERS = 2
PAUSES = (0.05, 0.5, 2.3)
LONG = (0.5, 2.3, 6.0)
"""The last one is longer than the lease."""
BINDING_SECONDS = 2.5
"""A binder sends no Binding whose reads are older than 2 s, and the sandbox answers at once."""


def seeds() -> range:
    first, dash, last = os.environ.get("TAS_GPU_SEEDS", "1").partition("-")
    return range(int(first), int(last) + 1) if dash else range(1, int(first) + 1)


def device_pod(pod: Object) -> DevicePod:
    metadata, spec = pod["metadata"], pod["spec"]
    requests = [
        ContainerRequest(name=each["name"], requests=each["resources"]["requests"]) for each in spec["containers"]
    ]
    return DevicePod(
        key=PodKey(NAMESPACE, metadata["name"]),
        uid=metadata["uid"],
        containers=tuple(requests),
        annotations=metadata.get("annotations", {}),
        node=spec.get("nodeName"),
        phase=pod["status"]["phase"],
    )


def device_pods(world: Gpus) -> list[DevicePod]:
    return [device_pod(each) for each in world.sandbox.cluster.store.items(PODS, NAMESPACE)]


def hold_of(world: Gpus, node: str) -> Hold:
    """The hold of a node by the annotations of its pods."""
    hold, problems = adopt(EMPTY, [pod for pod in device_pods(world) if pod.node == node], verified=True)
    assert problems == {}
    return hold


def inventory(url: str, kubeconfig: Path) -> list[str]:
    """The command of `inventory`, for which a Binding is on its way for a short time."""
    _, _, *arguments = tas("inventory", "--kubeconfig", str(kubeconfig), bus=url)
    quick = f"import tas.gpu.reserving as reserving; reserving.RESERVED_SECONDS = {BINDING_SECONDS}"
    wait = ("--new-bus-wait", f"{BINDING_SECONDS}s")
    return ["-c", f"{quick}; import cli; cli.main()", *arguments, *wait]


class Placing:
    """A scheduler that is in a hurry: it asks one binder, lets another one bind, and does not always wait."""

    def __init__(
        self, world: Gpus, binders: list[Replica], chance: random.Random, session: aiohttp.ClientSession
    ) -> None:
        self._world = world
        self._binders = binders
        self._chance = chance
        self._session = session

    async def _ask(self, verb: str, body: Object) -> Object | None:
        url = await self._chance.choice(self._binders).address("extender")
        try:
            async with self._session.post(f"{url}/{verb}", json=body) as answer:
                return await answer.json() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    def is_bound(self, name: str) -> bool:
        return "nodeName" in self._world.pod(name)["spec"]

    def bound_of(self, pods: list[Object]) -> int:
        """How many of these pods are bound."""
        return sum(self.is_bound(pod["metadata"]["name"]) for pod in pods)

    async def place(self, pod: Object, until: float, *, after: float = 0.0) -> bool:
        """Whether the pod is bound. Without a node for it, the pod is tried again until the time is over."""
        metadata = pod["metadata"]
        await asyncio.sleep(after)
        while not self.is_bound(metadata["name"]):
            passed = await self._ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(NODES)})
            if passed is not None and passed["NodeNames"]:
                node = self._chance.choice(passed["NodeNames"])
                body = {"PodName": metadata["name"], "PodNamespace": NAMESPACE, "PodUID": metadata["uid"], "Node": node}
                await self._ask("bind", body)
            elif time.monotonic() > until:
                break
            await asyncio.sleep(0.02 + self._chance.random() / 20)
        return self.is_bound(metadata["name"])


async def torment(
    one: Replica, chance: random.Random, *, every: tuple[float, float], pauses: tuple[float, ...]
) -> None:
    """Kills or pauses a process until cancelled."""
    while True:
        await asyncio.sleep(chance.uniform(*every))
        if chance.random() < 0.5:
            one.kill()
            one.start()
        else:
            one.pause()
            try:
                await asyncio.sleep(chance.choice(pauses))
            finally:
                one.resume()


async def end_pods(world: Gpus, chance: random.Random) -> None:
    """Lets some pods end, one after another."""
    for _ in range(ENDING_PODS):
        await asyncio.sleep(chance.uniform(0, 2 * HISTORY_SECONDS / ENDING_PODS))
        if running := sorted(pod.key.name for pod in device_pods(world) if uses_cards(pod)):
            body = {"status": {"phase": chance.choice(("Succeeded", "Failed"))}}
            name = chance.choice(running)
            world.sandbox.cluster.patch(PODS, NAMESPACE, name, body, manager="kubelet", status=True)


async def disturb(world: Gpus, chance: random.Random) -> None:
    """Lets Bindings fail until cancelled."""
    faults = world.sandbox.faults
    while True:
        status = chance.choice((409, 429, 500, None))
        if status is None:
            faults.drop(chance.choice((Drop.BEFORE, Drop.AFTER)), which=of_binding)
        else:
            faults.answer(status, which=of_binding)
        await asyncio.sleep(chance.uniform(0.02, 0.3))


@pytest.fixture
async def world(server: Server, bus: Bus, tmp_path: Path) -> AsyncIterator[Gpus]:
    async with gpus(server, bus, tmp_path) as found:
        yield found


@pytest.mark.parametrize("seed", seeds())
async def test_no_card_is_given_twice_whatever_ends_stops_or_is_wiped(
    world: Gpus, server: Server, tmp_path: Path, seed: int
) -> None:
    print(f"again: TAS_GPU_SEEDS={seed}-{seed} python -m pytest tests/integration/test_gpu_chaos.py")
    chance = random.Random(seed)
    for name in NODES:
        add_node(world, name, NODE)
    pods = [world.add_pod(f"p{number}", chance.choice(SHAPES)) for number in range(PODS_PER_SEED)]
    kubeconfig = tmp_path / "kubeconfig"
    command = tas("gpu", "--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0", bus=server.url)
    async with AsyncExitStack() as stack:
        keepers = [
            stack.enter_context(replica(f"inventory-{number}", inventory(server.url, kubeconfig), folder=tmp_path))
            for number in range(KEEPERS)
        ]
        binders = [stack.enter_context(replica(f"gpu-{number}", command, folder=tmp_path)) for number in range(BINDERS)]
        for one in (*keepers, *binders):
            await one.ready()
        timeout = aiohttp.ClientTimeout(total=5.0)  # as of the scheduler
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        placing = Placing(world, binders, chance, session)
        # Before the faults: on a busy machine they may leave no binder time to start before the wipe.
        assert await placing.place(pods[0], inf)
        until = time.monotonic() + HISTORY_SECONDS
        faults = [torment(one, random.Random(chance.random()), every=(0.3, 2.0), pauses=PAUSES) for one in binders]
        faults += [torment(one, random.Random(chance.random()), every=(2.0, 5.0), pauses=LONG) for one in keepers]
        faults += [each(world, random.Random(chance.random())) for each in (disturb, end_pods)]
        tasks = [asyncio.create_task(each) for each in faults]
        attempts = [
            asyncio.create_task(placing.place(pod, until, after=chance.uniform(0, HISTORY_SECONDS))) for pod in pods[1:]
        ]
        await asyncio.sleep(chance.uniform(0.1, 0.4) * HISTORY_SECONDS)
        bound_before = placing.bound_of(pods)
        await server.restart(wiped=True)
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        world.sandbox.faults.clear()
        for one in (*keepers, *binders):
            await one.ready()
        await asyncio.gather(*attempts)

        # Whatever could not be placed before is tried again, now that everything works.
        async def all_is_placed() -> bool:
            left = [pod for pod in pods if not placing.is_bound(pod["metadata"]["name"])]
            await asyncio.gather(*(placing.place(pod, 0.0) for pod in left))
            return not any(fits_somewhere(pod) for pod in left if not placing.is_bound(pod["metadata"]["name"]))

        def fits_somewhere(pod: Object) -> bool:
            claim = read_claim(device_pod(pod), Options())
            assert isinstance(claim, Claim)
            node = notation.Node(NODE)
            return any(fits(hold_of(world, name), node.inventory, node.facts, claim, Options()) for name in NODES)

        await eventually(all_is_placed)

        async def holds_are_right() -> bool:
            """Each hold has the pods that use cards of its node, all of them bound, with their cards."""
            for name in NODES:
                hold, wanted = await world.hold(name), hold_of(world, name)
                if any(held.phase is Phase.RESERVED for held in hold.pods.values()) or hold.cards != wanted.cards:
                    return False
            return True

        await eventually(holds_are_right)
        found = [world.pod(pod["metadata"]["name"]) for pod in pods]
        running = [pod for pod in found if pod["status"]["phase"] not in ENDED]
        judge(running)
        started_in_order(running)
        bound = sum(1 for pod in found if "nodeName" in pod["spec"])
        assert 0 < bound_before < bound, "the wipe was in the middle"
        assert bound < len(pods), "there was room for all"
        assert len(running) < len(found), "no pod has ended"


@pytest.mark.skipif(len(seeds()) < 2, reason="it takes 12 s: make nightly runs it")
async def test_a_keeper_that_was_stopped_undoes_nothing_and_takes_over_from_one_that_is_killed(
    world: Gpus, server: Server, tmp_path: Path
) -> None:
    """It is stopped just before it sends a hold, beyond its lease."""
    await add_hold(world, add_node(world, "a", "N(0) i1"), x=held("ghost", 0, Phase.BOUND))
    await world.complete()

    async def revision() -> int:
        return (await answered(partial(NODE_HOLDS.get, world.bus, "a"))).revision

    def has_lost_its_lease() -> bool:
        return any(each["event"] == "inventory_lease_lost" for each in first.events())

    kubeconfig = str(tmp_path / "kubeconfig")
    halting = ["-m", "tests.integration.workers.halting_inventory", server.url, kubeconfig]
    plain = tas("inventory", "--kubeconfig", kubeconfig, bus=server.url)
    with replica("first", halting, folder=tmp_path) as first:
        await eventually(lambda: first.paused)
        with replica("second", plain, folder=tmp_path) as second:
            await eventually(has(world, "a"))  # type: ignore[arg-type]
            async with world.extender() as extender:
                assert await extender.bind(world.add_pod("p", "A{i1}"), "a") == ""
            newer = await revision()
            assert (await pods_of(world, "a")).keys() == {"p"}
            assert not has_lost_its_lease()
            first.resume()
            await eventually(has_lost_its_lease)
            await put(world.bus, HOLDS, "after", b"{}")  # the write of the first, if any, was before this one
            assert await revision() == newer
            second.kill()
        world.sandbox.cluster.delete(PODS, NAMESPACE, "p")
        await eventually(has(world, "a"))  # type: ignore[arg-type]
        first.must_run()
