"""The worker `evictions` over the sandbox and a real nats-server, also while things go wrong.

The test is `inventory`: it writes what the bus says of nodes and their cards.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.kinds import NODE_HOLDS, NODE_INVENTORY
from bus.records.devices import NodeHold, NodeInventory
from lab.sandbox.resources import NODES, PODS
from tas.enforcing.pod import PodKey
from tas.gpu.names import EVICTION_LABEL, EVICTION_VALUE
from tas.values.backoff import Backoff
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.gpu.gpu import complete
from tests.integration.workers.running import running
from tests.sandbox import Call, Drop, Sandbox, Which
from tests.unit.tas.gpu import notation
from workers.evictions.worker import PATCHES, Evictions
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.metrics import RequestMetrics

NAMESPACE = "default"
CARDS = "N(0,1) i4"
EMPTIED = "deschedule-pods-card0"


class World:
    """Nodes with two cards and a pod on each, as the API server has them, and what the bus says of them.

    The pods of the node `a` are `a0` on card 0 and `a1` on card 1.
    """

    def __init__(self, sandbox: Sandbox, bus: Bus) -> None:
        self.sandbox = sandbox
        self.bus = bus

    async def add_node(self, name: str, facts: str = "") -> None:
        body = {"metadata": {"name": name, "labels": notation.Node(f"{CARDS} {facts}").labels}}
        self.sandbox.cluster.create(NODES, "", body, manager="nfd")
        for number in (0, 1):
            self.add_pod(f"{name}{number}")
        await self.tell(name, facts)

    def add_pod(self, name: str) -> None:
        spec = {"containers": [{"name": "main", "image": "x"}]}
        body = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
        self.sandbox.cluster.create(PODS, NAMESPACE, body, manager="test")

    def label_node(self, name: str, facts: str) -> None:
        """The labels of policies on a node, at the API server."""
        before = self.sandbox.cluster.get(NODES, "", name)["metadata"]["labels"]
        patch = dict.fromkeys(before) | notation.Node(f"{CARDS} {facts}").labels
        self.sandbox.cluster.patch(NODES, "", name, {"metadata": {"labels": patch}}, manager="test")

    async def tell(self, name: str, facts: str, *, cards: str = "card0: i1 ; card1: i1") -> None:
        """What the bus says of a node."""
        node = notation.Node(f"{CARDS} {facts} ; {cards}")
        uid = self.sandbox.cluster.get(NODES, "", name)["metadata"]["uid"]
        held = ((self.pod(f"{name}{number}"), held) for number, held in enumerate(node.hold.pods.values()))
        pods = {
            pod["metadata"]["uid"]: msgspec.structs.replace(each, pod=PodKey(NAMESPACE, pod["metadata"]["name"]))
            for pod, each in held
        }
        await self._put(NODE_INVENTORY, name, NodeInventory(uid=uid, inventory=node.inventory, facts=node.facts))
        await self._put(NODE_HOLDS, name, NodeHold(uid=uid, pods=pods))

    async def tell_facts(self, name: str, facts: str) -> None:
        """What the bus says of the policies of a node; the rest is as before."""
        stored = (await answered(partial(NODE_INVENTORY.get, self.bus, name))).readable()
        assert stored is not None
        found = notation.Node(f"{CARDS} {facts}").facts
        await self._put(NODE_INVENTORY, name, msgspec.structs.replace(stored, facts=found))

    async def _put(self, kind: Any, key: str, record: object) -> None:
        """Writes a record unless it is stored."""

        async def write() -> None:
            read_at, stored = time.monotonic(), await kind.get(self.bus, key)
            if stored.readable() != record:
                await kind.put(self.bus, key, record, revision=stored.revision, read_at=read_at)

        await answered(write)

    def pod(self, name: str) -> Any:
        return self.sandbox.cluster.get(PODS, NAMESPACE, name)

    def label_pod(self, name: str, value: str | None) -> None:
        """Somebody else labels a pod."""
        patch = {"metadata": {"labels": {EVICTION_LABEL: value}}}
        self.sandbox.cluster.patch(PODS, NAMESPACE, name, patch, manager="kubectl")

    @property
    def labels(self) -> dict[str, str]:
        """The eviction labels by the name of the pod."""
        pods = self.sandbox.cluster.store.items(PODS)
        found = ((pod["metadata"]["name"], pod["metadata"].get("labels", {}).get(EVICTION_LABEL)) for pod in pods)
        return {name: value for name, value in found if value is not None}

    def has(self, *names: str) -> Callable[[], bool]:
        """Whether exactly these pods are to be evicted."""
        return lambda: self.labels == dict.fromkeys(names, EVICTION_VALUE)

    def calls(self, worker: str = "evictions") -> Counter[str]:
        """How often the worker has asked for what, besides lists and watches."""
        return Counter(
            f"{call.verb} {call.resource}"
            for call in self.sandbox.calls
            if call.user_agent == f"tas-on-nats/{worker}" and call.verb not in ("list", "watch")
        )


class Running:
    """A running worker."""

    def __init__(self, worker: Evictions, registry: CollectorRegistry) -> None:
        self.worker = worker
        self._registry = registry

    def count(self, metric: str, **labels: str) -> float:
        return self._registry.get_sample_value(metric, labels) or 0.0


@asynccontextmanager
async def evictions(world: World, kubeconfig: Path, *, name: str = "evictions") -> AsyncIterator[Running]:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    async with KubernetesClient.connect(kubeconfig, worker=name, metrics=metrics) as client:
        worker = Evictions(world.bus, client, registry=registry)
        async with running(worker):
            yield Running(worker, registry)


@pytest.fixture
async def world(sandbox: Sandbox, bus: Bus) -> World:
    world = World(sandbox, bus)
    for name in ("a", "b"):
        await world.add_node(name)
    return world


async def test_pods_of_an_emptied_card_carry_the_label_while_the_node_confirms_the_reason(
    world: World, server: Server, kubeconfig: Path
) -> None:
    world.label_node("a", EMPTIED)
    await world.tell("a", EMPTIED)
    world.label_pod("b0", EVICTION_VALUE)
    async with evictions(world, kubeconfig) as worker:
        await eventually(lambda: worker.worker.unready() == "HOLDS: no complete list yet (key _synced)")
        assert world.has("b0")(), "holds may be missing"
        world.sandbox.cluster.patch(PODS, NAMESPACE, "b1", {"metadata": {"labels": {"other": "x"}}}, manager="test")
        await complete(world.bus)
        await eventually(world.has("a0", "b0"))
        await eventually(lambda: worker.count("tas_eviction_labels") == 2)

        def events() -> float:
            return worker.count("tas_kubernetes_events_total", worker="evictions", resource="pods")

        await eventually(lambda: events() >= 1)  # a0 has the label
        assert events() == 1, "only pods with the label are followed"
        assert world.calls() == {"get nodes": 1, "get pods": 1, "patch pods": 1}
        assert [each["manager"] for each in world.pod("a0")["metadata"]["managedFields"]] == ["test", "tas-on-nats"]

    async with evictions(world, kubeconfig, name="later") as worker:
        await eventually(lambda: worker.worker.unready() is None)
        await server.kill()
        world.label_pod("a0", None)
        await eventually(lambda: worker.count("tas_eviction_nodes_failing") == 1)
        assert world.has("b0")(), "what the view has may be long ago"
        assert not world.calls("later")
        await server.start()
        await eventually(world.has("a0", "b0"))
        before = world.calls("later")

        # The bus says so, but the node does not: `inventory` is behind, or does not run.
        await world.tell("b", "deschedule-pods-card1")
        await eventually(lambda: worker.count("tas_eviction_unconfirmed_total") == 1)
        await world.tell("a", "")
        await eventually(lambda: worker.count("tas_eviction_unconfirmed_total") == 2)
        assert world.has("a0", "b0")()
        assert world.calls("later") - before == {"get nodes": 2}

        await server.restart(wiped=True)
        await world.bus.wait_connected()
        world.label_node("a", "")
        world.label_node("b", "deschedule-pods-card1")
        for name, facts in (("a", ""), ("b", "deschedule-pods-card1")):
            await world.tell(name, facts)
        await eventually(lambda: {"a", "b"} <= worker.worker._view.nodes.keys())
        await eventually(lambda: len(worker.worker._queue) == 0)  # both were added, and handled
        assert worker.worker.unready() is not None
        assert world.has("a0", "b0")(), "holds may be missing"
        await complete(world.bus)
        await eventually(world.has("b0", "b1"))  # that of b0 is somebody else's
        for change, count in (("set", 2), ("removed", 1)):
            await eventually(
                lambda change=change, count=count: (  # type: ignore[misc]
                    worker.count("tas_eviction_label_changes_total", change=change) == count
                )
            )
        await eventually(lambda: worker.count("tas_eviction_labels") == 2)

        world.sandbox.cut_watches()
        world.label_pod("b1", None)  # the watch does not tell this
        world.sandbox.forget_history()
        await eventually(world.has("b0", "b1"))


async def test_a_label_is_set_after_each_fault_and_a_refused_one_is_left_alone(
    world: World, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def empty(name: str, *, card: int = 0) -> None:
        """A policy empties a card."""
        world.label_node(name, f"deschedule-pods-card{card}")
        await world.tell(name, f"deschedule-pods-card{card}")

    async def settled() -> None:
        """Everything before was handled: a later node has its turn."""
        await world.add_node(last := f"last{time.monotonic_ns()}x", EMPTIED)
        await eventually(lambda: f"{last}0" in world.labels)

    monkeypatch.setattr("workers.reconcile.work_queue.RETRY", Backoff(first=0.02, longest=0.1))
    monkeypatch.setattr("workers.kubernetes.errors.RETRY_AFTER_SECONDS", 0.1)
    await complete(world.bus)
    faults, cluster = world.sandbox.faults, world.sandbox.cluster
    async with evictions(world, kubeconfig) as worker:

        def results(result: str) -> float:
            return worker.count("tas_eviction_patches_total", result=result)

        await eventually(lambda: worker.worker.unready() is None)
        for name, verb in (("a", "get"), ("b", "patch")):
            for status in (404, 409, 410, 429, 500):  # 404: the path is not served
                faults.answer(status, which=ours(verb, "pods"))
            if verb == "patch":
                faults.drop(Drop.AFTER, which=ours(verb, "pods"))
            await empty(name)
            await eventually(lambda name=name: f"{name}0" in world.labels)  # type: ignore[misc]
            assert faults.waiting == 0
        await settled()
        assert (results("failed"), results("conflict")) == (9, 2)
        # Nobody knew the outcome of the last patch of b0. So the pod was read again, and it was right.
        assert patches(world, "b0") == 6

        await world.add_node("c")
        faults.answer(422, which=ours("patch", "pods"))
        await empty("c")
        await eventually(lambda: results("refused") == 1)
        await world.tell("c", EMPTIED)
        await settled()
        assert "c0" not in world.labels
        assert patches(world, "c0") == 1

        patch = cluster.patch

        def without_label(resource: Any, namespace: str, name: str, body: Any, **options: Any) -> Any:
            """As a webhook that removes the label."""
            body = {"metadata": body["metadata"] | {"labels": {}}} if name == "c1" else body
            return patch(resource, namespace, name, body, **options)

        monkeypatch.setattr(cluster, "patch", without_label)
        await empty("c", card=1)
        await eventually(lambda: results("refused") == 2)
        assert world.pod("c1")["metadata"].get("labels") is None

        # Another pod has got the name of one that was to be labelled, and the other one is being deleted.
        await world.add_node("d")
        before = world.pod("d0")["metadata"]["uid"]
        cluster.delete(PODS, NAMESPACE, "d0")
        cluster.store.put(PODS, deleted(world.pod("d1")))
        world.add_pod("d0")
        assert world.pod("d0")["metadata"]["uid"] != before
        facts = f"{EMPTIED} deschedule-pods-card1"
        world.label_node("d", facts)
        await world.tell_facts("d", facts)
        await eventually(lambda: results("gone") == 2)
        await settled()
        assert patches(world, "d0") == patches(world, "d1") == 0

        # Another node has got the name.
        await world.add_node("f")
        cluster.delete(NODES, "", "f")
        cluster.create(
            NODES, "", {"metadata": {"name": "f", "labels": notation.Node(f"{CARDS} {EMPTIED}").labels}}, manager="nfd"
        )
        await world.tell_facts("f", EMPTIED)
        await eventually(lambda: worker.count("tas_eviction_unconfirmed_total") == 1)
        assert patches(world, "f0") == 0

        # Somebody takes the key for something else, between the read of the pod and the patch.
        await world.add_node("g")
        faults.answer(500, which=before_the_first(named("patch", "g0"), lambda: world.label_pod("g0", "soon")))
        await empty("g")
        await eventually(lambda: results("conflict") == 3)
        await settled()
        assert world.labels["g0"] == "soon"
        assert patches(world, "g0") == 1

        # The node was read too long ago.
        monkeypatch.setattr("workers.kubernetes.client.WRITE_SECONDS", 0.0)
        await world.add_node("h", EMPTIED)
        await eventually(lambda: results("conflict") >= 5)
        assert "h0" not in world.labels
        monkeypatch.setattr("workers.kubernetes.client.WRITE_SECONDS", 2.0)
        await eventually(lambda: "h0" in world.labels)

        # The API server has an error with one of two pods of a node.
        await world.add_node("i")
        first, second = sorted(("i0", "i1"), key=lambda name: world.pod(name)["metadata"]["uid"])
        faults.answer(500, times=10_000, which=named("patch", first))
        world.label_node("i", facts)
        await world.tell("i", facts)
        await eventually(lambda: second in world.labels)
        assert first not in world.labels
        faults.clear()
        await eventually(lambda: first in world.labels)

        # Somebody removes the label again and again.
        await world.add_node("e", EMPTIED)
        for _ in range(PATCHES):
            await eventually(lambda: "e0" in world.labels)
            world.label_pod("e0", None)
        await settled()
        assert "e0" not in world.labels
        assert patches(world, "e0") == PATCHES


def ours(verb: str, resource: str) -> Which:
    """Requests of the worker for single objects."""
    return lambda call: (call.verb, call.resource, call.user_agent) == (verb, resource, "tas-on-nats/evictions")


def named(verb: str, name: str) -> Which:
    """Requests of the worker for one pod."""
    return lambda call: ours(verb, "pods")(call) and call.name == name


def before_the_first(which: Which, happens: Callable[[], object]) -> Which:
    """Matches nothing; calls `happens` once, when the first such request arrives."""
    done: list[Call] = []

    def note(call: Call) -> bool:
        if not done and which(call):
            done.append(call)
            happens()
        return False

    return note


def deleted(pod: Any) -> Any:
    """The pod while it is being deleted."""
    return pod | {"metadata": pod["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}


def patches(world: World, name: str) -> int:
    """How often the worker has tried to patch a pod."""
    return sum(map(named("patch", name), world.sandbox.calls))
