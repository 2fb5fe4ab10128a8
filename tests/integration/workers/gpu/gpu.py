"""Extenders for GPU cards over a sandbox and a real nats-server, and what `inventory` would write for them."""

import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from bus.buckets import HOLDS
from bus.connection import Bus
from bus.kinds import NODE_HOLDS, NODE_INVENTORY
from bus.records.devices import NodeHold, NodeInventory
from lab.sandbox.resources import PODS, Object
from tas.extension import NodeView, Pod
from tas.gpu.claim import Options
from tas.gpu.hold import Hold
from tests.e2e.processes import free_ports
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.running import running
from tests.sandbox import Sandbox
from tests.unit.tas.gpu import notation
from workers.following.synced import write_synced
from workers.gpu.worker import GpuExtender
from workers.http.address import Address
from workers.kubernetes.client import KubernetesClient
from workers.scheduler.server import SchedulerServer

NAMESPACE = "default"


class Extender:
    """One running extender for GPU cards."""

    def __init__(self, worker: GpuExtender, url: str, session: aiohttp.ClientSession, registry: CollectorRegistry):
        self.worker = worker
        self._url = url
        self._session = session
        self._registry = registry

    async def listens(self) -> bool:
        try:
            async with self._session.get(f"{self._url}/version"):
                return True
        except aiohttp.ClientError:
            return False

    async def ask(self, verb: str, body: Object) -> tuple[int, Any]:
        async with self._session.post(f"{self._url}/scheduler/{verb}", json=body) as answer:
            return answer.status, await answer.json()

    async def filter(self, pod: Object, *nodes: str) -> Any:
        status, answer = await self.ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        assert status == 200, answer
        return answer

    async def bind(self, pod: Object, node: str) -> str:
        """The error of the answer; empty if the pod is bound."""
        metadata = pod["metadata"]
        body = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        status, answer = await self.ask("bind", body | {"Node": node})
        assert status == 200, answer
        return str(answer["Error"])

    def metric(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(name, labels) or 0.0


class Gpus:
    """A sandbox with nodes that have cards, and the records of `inventory`."""

    def __init__(self, sandbox: Sandbox, bus: Bus, kubeconfig: Path) -> None:
        self.sandbox = sandbox
        self.bus = bus
        self._kubeconfig = kubeconfig

    async def add_nodes(self, **nodes: str) -> None:
        """Nodes by name in the notation of tests of cards, with their records."""
        for name, text in nodes.items():
            self.sandbox.add_node(name)
            await self.add_records(name, text, notation.Node(text).hold)

    async def add_records(self, name: str, text: str, hold: Hold, *, uid: str = "") -> None:
        """The inventory and the hold of a node; the hold is of a node with this uid, if one is given."""
        await add_records(self.bus, name, text, hold, uid=uid)

    async def complete(self) -> None:
        """All holds of this epoch are stored."""
        await complete(self.bus)

    def add_pod(self, name: str, text: str) -> Object:
        """A pod as the scheduler sends it, in the notation of tests of cards."""
        described = notation.pod(text)
        containers = [
            {
                "name": each.name,
                "image": "x",
                "resources": {"limits": dict(each.requests), "requests": dict(each.requests)},
            }
            for each in described.containers
        ]
        body = {
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": dict(described.annotations)},
            "spec": {"containers": containers},
        }
        return self.sandbox.cluster.create(PODS, NAMESPACE, body, manager="test")

    def pod(self, name: str) -> Object:
        return self.sandbox.cluster.get(PODS, NAMESPACE, name)

    async def hold(self, node: str) -> Hold:
        stored = (await answered(partial(NODE_HOLDS.get, self.bus, node))).readable()
        assert stored is not None
        return stored.hold

    @asynccontextmanager
    async def extender(
        self,
        *,
        bus: Bus | None = None,
        ready: bool = True,
        options: Options | None = None,
        one_start: bool = False,
        share_listen: bool = False,
    ) -> AsyncIterator[Extender]:
        registry = CollectorRegistry()
        listen = Address("127.0.0.1", *free_ports(1))
        async with (
            KubernetesClient.connect(self._kubeconfig, worker="gpu") as client,
            aiohttp.ClientSession() as session,
        ):
            worker = GpuExtender(
                bus or self.bus,
                client,
                SchedulerServer("gpu", listen, registry, shared=share_listen),
                registry=registry,
                options=options or Options(),
                one_start=one_start,
            )
            async with running(worker):
                extender = Extender(worker, f"http://{listen}", session, registry)
                if not share_listen:
                    await eventually(extender.listens)
                if ready:
                    await eventually(lambda: worker.unready() is None)
                yield extender


async def add_records(bus: Bus, name: str, text: str, hold: Hold, *, uid: str = "") -> None:
    """As `Gpus.add_records`."""
    node = notation.Node(text)
    inventory = NodeInventory(uid=f"uid-{name}", inventory=node.inventory, facts=node.facts)
    read_at = time.monotonic()
    await NODE_INVENTORY.put(bus, name, inventory, revision=0, read_at=read_at)
    await NODE_HOLDS.put(bus, name, NodeHold(uid=uid or inventory.uid, pods=hold.pods), revision=0, read_at=read_at)


async def complete(bus: Bus) -> None:
    """As `Gpus.complete`."""
    epoch = await answered(partial(bus.epoch, HOLDS))
    await answered(partial(write_synced, bus, HOLDS, epoch, count=1, writer="test", cluster=True))


class UnusedCards:
    """An extension: only nodes of which nobody uses a card."""

    def __init__(self, nodes: NodeView) -> None:
        self._cards = nodes.cards()

    def filter(self, _pod: Pod, candidates: Collection[str], _now: float) -> dict[str, str]:
        return {node: "in use" for node in candidates if (found := self._cards.get(node)) is None or found.hold.pods}


class Allocated:
    """An extension: only nodes whose allocation is known."""

    def __init__(self, nodes: NodeView) -> None:
        self._allocations = nodes.allocations()

    def filter(self, _pod: Pod, candidates: Collection[str], _now: float) -> dict[str, str]:
        return {node: "not known" for node in candidates if node not in self._allocations}


class Three:
    """An extension that reads nothing."""

    def __init__(self, nodes: NodeView) -> None:
        pass

    def score(self, _pod: Pod, candidates: Collection[str], _now: float) -> dict[str, int]:
        return dict.fromkeys(candidates, 3)


@asynccontextmanager
async def gpus(server: Server, bus: Bus, folder: Path) -> AsyncIterator[Gpus]:
    async with Sandbox.start() as sandbox:
        yield Gpus(sandbox, bus, sandbox.kubeconfig(folder / "kubeconfig"))
