"""Binders of GPU cards under fire, from a seed: three processes are killed and paused, the API server fails, and the
bus is wiped once. In the end only the API objects count: the annotations of pods, and the amounts of nodes.

`TAS_GPU_SEEDS=50` runs the seeds 1 to 50, `TAS_GPU_SEEDS=7-9` those three; without it, `make nightly` runs them. A seed
determines the pods and the faults, but not the order in which processes run.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from bus.buckets import HOLDS
from bus.connection import Bus
from bus.kinds import NODE_HOLDS
from bus.records.devices import NodeHold
from sandbox.faults import Drop
from sandbox.resources import PODS, Object
from tas.devices.adoption import adopt
from tas.devices.assigning import fits
from tas.devices.claim import Claim, ContainerRequest, DevicePod, Options, read_claim
from tas.devices.hold import EMPTY, Hold, Phase, confirm, remove
from tas.enforcing.pod import PodKey
from tests.integration.bus.limits import long_limits
from tests.integration.extender.gpu import NAMESPACE, Gpus, gpus
from tests.integration.extender.test_gpu import NODE, SHAPES, judge, of_binding, started_in_order
from tests.integration.replicas import Replica, replica, tas
from tests.integration.servers import Server, answered, eventually
from tests.unit.tas.devices import notation

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

NODES = tuple(f"n{number}" for number in range(4))
PODS_PER_SEED = 90
HISTORY_SECONDS = 6.0
BINDERS = 3
BINDING_SECONDS = 2.5
"""A binder sends no Binding whose reads are older than 2 s, and the sandbox answers at once."""


def seeds() -> range:
    first, dash, last = os.environ.get("TAS_GPU_SEEDS", "0").partition("-")
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


class Books:
    """What `inventory` does for the holds, as far as this test needs it."""

    def __init__(self, world: Gpus) -> None:
        self._world = world

    def pods(self) -> list[DevicePod]:
        return [device_pod(each) for each in self._world.sandbox.cluster.store.items(PODS, NAMESPACE)]

    def adopted(self, node: str) -> Hold:
        """The hold of a node by the annotations of its pods."""
        hold, problems = adopt(EMPTY, [pod for pod in self.pods() if pod.node == node], verified=True)
        assert problems == {}
        return hold

    async def build_again(self) -> None:
        """After a wipe: the holds by the annotations, once no earlier Binding can take effect any more."""
        await self._world.bus.wait_connected()
        await answered(lambda: self._world.bus.epoch(HOLDS))
        await asyncio.sleep(BINDING_SECONDS)
        for name in NODES:
            await self._world.add_records(name, NODE, self.adopted(name))
        await self._world.complete()

    async def reap(self) -> None:
        """Ends every reservation by what its pod says, as if its time were over."""
        by_uid = {pod.uid: pod for pod in self.pods()}
        for node in NODES:

            async def settle(node: str = node) -> None:
                entry, read_at = await NODE_HOLDS.get(self._world.bus, node), time.monotonic()
                stored = entry.readable()
                assert stored is not None
                hold = stored.hold()
                for uid, held in stored.pods.items():
                    if held.phase is Phase.RESERVED:
                        hold = confirm(hold, uid) if by_uid[uid].node == node else remove(hold, uid)
                following = NodeHold(uid=stored.uid, pods=hold.pods)
                await NODE_HOLDS.put(self._world.bus, node, following, revision=entry.revision, read_at=read_at)

            await answered(settle)


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


async def torment(one: Replica, chance: random.Random) -> None:
    """Kills or pauses a binder until cancelled."""
    while True:
        await asyncio.sleep(chance.uniform(0.3, 2.0))
        if chance.random() < 0.5:
            one.kill()
            one.start()
        else:
            one.pause()
            try:
                await asyncio.sleep(chance.choice((0.05, 0.5, 2.3)))
            finally:
                one.resume()


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
    chance, books = random.Random(seed), Books(world)
    await world.add_nodes(**dict.fromkeys(NODES, NODE))
    await world.complete()
    pods = [world.add_pod(f"p{number}", chance.choice(SHAPES)) for number in range(PODS_PER_SEED)]
    command = tas("gpu", "--kubeconfig", str(tmp_path / "kubeconfig"), "--listen", "127.0.0.1:0", bus=server.url)
    async with AsyncExitStack() as stack:
        binders = [stack.enter_context(replica(f"gpu-{number}", command, folder=tmp_path)) for number in range(BINDERS)]
        for one in binders:
            await one.ready()
        timeout = aiohttp.ClientTimeout(total=5.0)  # as of the scheduler
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        placing = Placing(world, binders, chance, session)
        until = time.monotonic() + HISTORY_SECONDS
        tasks = [asyncio.create_task(torment(one, random.Random(chance.random()))) for one in binders]
        tasks.append(asyncio.create_task(disturb(world, random.Random(chance.random()))))
        attempts = [
            asyncio.create_task(placing.place(pod, until, after=chance.uniform(0, HISTORY_SECONDS))) for pod in pods
        ]
        await asyncio.sleep(chance.uniform(0.2, 0.6) * HISTORY_SECONDS)
        bound_before = sum(placing.is_bound(pod["metadata"]["name"]) for pod in pods)
        await server.restart(wiped=True)
        await books.build_again()
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        world.sandbox.faults.clear()
        for one in binders:
            await one.ready()
        await asyncio.gather(*attempts)
        await books.reap()

        # Whatever could not be placed before is tried again, now that everything works.
        async def all_is_placed() -> bool:
            left = [pod for pod in pods if not placing.is_bound(pod["metadata"]["name"])]
            await asyncio.gather(*(placing.place(pod, 0.0) for pod in left))
            return not any(fits_somewhere(pod) for pod in left if not placing.is_bound(pod["metadata"]["name"]))

        def fits_somewhere(pod: Object) -> bool:
            claim = read_claim(device_pod(pod), Options())
            assert isinstance(claim, Claim)
            node = notation.Node(NODE)
            return any(fits(books.adopted(name), node.inventory, node.facts, claim, Options()) for name in NODES)

        await eventually(all_is_placed)
        found = [world.pod(pod["metadata"]["name"]) for pod in pods]
        judge(found)
        started_in_order(found)
        bound = sum(1 for pod in found if "nodeName" in pod["spec"])
        assert 0 < bound_before < bound, "the wipe was in the middle"
        assert bound < len(pods), "there was room for all"
        for name in NODES:
            hold = await world.hold(name)
            on_node = {pod["metadata"]["uid"] for pod in found if pod["spec"].get("nodeName") == name}
            assert {uid for uid, held in hold.pods.items() if held.phase is Phase.BOUND} <= on_node
            assert on_node <= hold.pods.keys()
