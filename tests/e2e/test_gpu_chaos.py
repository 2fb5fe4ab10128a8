"""Three binders of GPU cards on the real control plane, from a seed: they are killed and paused while a real scheduler
places pods of mixed shapes, pods are deleted, and the bus is wiped once. In the end only the API objects count.

`TAS_GPU_CLUSTER_SEEDS=7-9` runs the seeds 7 to 9 with 1,000 pods on 50 nodes, as `make nightly` does with others.
Without it, one seed runs with fewer pods. A seed determines the pods and the faults, but not the order in which
processes run.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tas.gpu.adoption import adopt
from tas.gpu.assigning import fits
from tas.gpu.claim import Claim, DevicePod, Options, read_claim
from tas.gpu.hold import EMPTY
from tests.integration.replicas import Replica, replica, tas
from tests.integration.servers import Server, eventually
from tests.integration.workers.gpu.test_gpu import NODE, SHAPES, judge, started_in_order
from tests.unit.tas.gpu import notation
from workers.kubernetes.resources import GpuPod

from .api import ApiError, Object
from .cluster import Cluster
from .processes import free_ports
from .test_gpu import entry

pytestmark = [pytest.mark.nightly, pytest.mark.seeded]

BINDERS = 3
HISTORY_SECONDS = 40.0
NEW_BUS_SECONDS = 15.0
"""A binder sends no Binding whose reads are older than 2 s, and the API server answers within 10 s here."""

SETTLED_SECONDS = 300.0
"""A reservation ends after 65 s, and the scheduler tries a pod again within a minute, on a busy machine later."""

RESOURCES = ("i915", "tiles", "millicores")


class Size(NamedTuple):
    nodes: int
    pods: int
    deleted: int


SMALL, FULL = Size(nodes=8, pods=160, deleted=10), Size(nodes=50, pods=1000, deleted=50)
_SEEDS = os.environ.get("TAS_GPU_CLUSTER_SEEDS", "")


def seeds() -> range:
    first, dash, last = (_SEEDS or "1").partition("-")
    return range(int(first), int(last) + 1) if dash else range(1, int(first) + 1)


@pytest.fixture
def size() -> Size:
    return FULL if _SEEDS else SMALL


@pytest.fixture
def nodes(cluster: Cluster, size: Size) -> Iterator[list[str]]:
    """Nodes of four cards with four tiles, as node feature discovery and the device plugin describe them."""
    names = [f"gpu-chaos-{number:02}" for number in range(size.nodes)]
    node = notation.Node(NODE)
    cluster.create_nodes(*names, labels=node.labels)
    for name in names:
        amounts = dict(node.allocatable)
        cluster.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
    yield names
    cluster.delete_nodes(*names)


def container(name: str, requests: dict[str, Any]) -> Object:
    amounts = {each: str(amount) for each, amount in requests.items()}
    return {"name": name.lower(), "image": "pause", "resources": {"limits": amounts, "requests": amounts}}


def create_pod(cluster: Cluster, namespace: str, name: str, shape: str) -> None:
    containers = [container(each.name, dict(each.requests)) for each in notation.pod(shape).containers]
    cluster.create_pod(namespace, name, managed=False, containers=containers)


def pods_of(cluster: Cluster, namespace: str) -> list[Object]:
    found = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def device_pod(pod: Object) -> DevicePod:
    return msgspec.convert(pod, GpuPod).as_device_pod()


def names_with_room(pods: list[Object], nodes: list[str]) -> list[str]:
    """The pods without a node for which a node has room, by the annotations of all others."""
    found = [device_pod(pod) for pod in pods]
    node = notation.Node(NODE)
    holds = {}
    for name in nodes:
        holds[name], problems = adopt(EMPTY, [pod for pod in found if pod.node == name], verified=True)
        assert problems == {}
    with_room = []
    for pod in found:
        if pod.node is None:
            claim = read_claim(pod, Options())
            assert isinstance(claim, Claim)
            if any(fits(holds[name], node.inventory, node.facts, claim, Options()) for name in nodes):
                with_room.append(pod.key.name)
    return with_room


async def torment(one: Replica, chance: random.Random) -> None:
    """Kills or pauses a binder until cancelled."""
    while True:
        await asyncio.sleep(chance.uniform(1.0, 5.0))
        if chance.random() < 0.5:
            one.kill()
            one.start()
        else:
            one.pause()
            try:
                await asyncio.sleep(chance.choice((0.1, 1.0, 3.0)))
            finally:
                one.resume()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A cluster with nodes that have cards, a bus, the product, and a scheduler that asks its binders."""

    cluster: Cluster
    namespace: str
    nodes: list[str]
    size: Size
    server: Server
    inventories: list[Replica]
    binders: list[Replica]

    @property
    def workers(self) -> list[Replica]:
        return [*self.inventories, *self.binders]

    async def ready(self) -> None:
        for one in self.workers:
            await one.ready()

    async def pods(self) -> list[Object]:
        return await asyncio.to_thread(pods_of, self.cluster, self.namespace)

    async def delete(self, number: int) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/p{number}"
        await asyncio.to_thread(self.cluster.api.delete, path)

    async def create(self, shapes: list[str]) -> None:
        """Creates a pod of each shape, all through the history."""
        began = time.monotonic()
        for number, shape in enumerate(shapes):
            await asyncio.sleep(max(0.0, began + number / len(shapes) * HISTORY_SECONDS - time.monotonic()))
            await asyncio.to_thread(create_pod, self.cluster, self.namespace, f"p{number}", shape)

    async def history(self, chance: random.Random) -> int:
        """Pods come and go while everything fails; returns how many were placed before the wipe of the bus."""
        shapes = [chance.choice(SHAPES) for _ in range(self.size.pods)]
        tasks = [asyncio.create_task(torment(one, random.Random(chance.random()))) for one in self.binders]
        creating = asyncio.create_task(self.create(shapes))
        await asyncio.sleep(HISTORY_SECONDS * chance.uniform(0.2, 0.5))
        before = 0

        async def some_are_placed() -> bool:
            nonlocal before
            before = sum("nodeName" in pod["spec"] for pod in await self.pods())
            return before > 0

        await eventually(some_are_placed)
        await self.server.restart(wiped=True)
        self.inventories[0].kill()  # perhaps the one that holds the lease
        self.inventories[0].start()
        await creating
        for number in chance.sample(range(self.size.pods), self.size.deleted):
            await self.delete(number)
            await asyncio.sleep(chance.uniform(0, 0.1))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.ready()
        return before

    async def all_is_placed(self) -> bool:
        try:
            return not names_with_room(await self.pods(), self.nodes)
        except ApiError:
            return False


@pytest.fixture
async def scene(cluster: Cluster, namespace: str, nodes: list[str], size: Size, tmp_path: Path) -> AsyncIterator[Scene]:
    (port,) = free_ports(1)
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    async with AsyncExitStack() as stack:
        server = Server(tmp_path / "store")
        await server.start()
        stack.push_async_callback(server.stop)
        commands = {
            "inventory": tas("inventory", *kubeconfig, "--new-bus-wait", f"{NEW_BUS_SECONDS:g}s", bus=server.url),
            "gpu": tas("gpu", *kubeconfig, "--listen", f"127.0.0.1:{port}", "--share-listen", "on", bus=server.url),
        }
        inventories, binders = (
            [
                stack.enter_context(replica(f"{name}-{number}", commands[name], folder=tmp_path))
                for number in range(count)
            ]
            for name, count in (("inventory", 2), ("gpu", BINDERS))
        )
        scene = Scene(
            cluster=cluster,
            namespace=namespace,
            nodes=nodes,
            size=size,
            server=server,
            inventories=inventories,
            binders=binders,
        )
        await scene.ready()
        managed = [{"name": f"gpu.intel.com/{each}", "ignoredByScheduler": False} for each in RESOURCES]
        url = f"http://127.0.0.1:{port}/scheduler"
        stack.enter_context(cluster.scheduler(entry(url) | {"managedResources": managed}))
        yield scene


@pytest.mark.parametrize("seed", seeds())
async def test_no_card_is_given_twice_by_real_binders_whatever_happens_to_them(
    scene: Scene, measured: Callable[[str], None], seed: int
) -> None:
    print(f"again: TAS_GPU_CLUSTER_SEEDS={seed}-{seed} python -m pytest tests/e2e/test_gpu_chaos.py")
    before_wipe = await scene.history(random.Random(seed))
    settled = await eventually(scene.all_is_placed, within=SETTLED_SECONDS, every=1.0)
    found = await scene.pods()
    for one in scene.workers:
        one.must_run()
    judge(found)
    started_in_order(found)
    placed = sum("nodeName" in pod["spec"] for pod in found)
    assert len(found) == scene.size.pods - scene.size.deleted
    assert 0 < before_wipe < placed, "the wipe was in the middle"
    assert placed < len(found), "there was room for all"
    measured(
        f"gpu chaos, seed {seed}: {placed} of {len(found)} pods on {len(scene.nodes)} nodes, {before_wipe} before the "
        f"wipe; no pod waits for which there is room {settled:.0f} s after the last fault"
    )
