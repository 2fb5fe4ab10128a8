"""The product's workers over any API server: policies and samples in, labels and status out."""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import NODES, POLICIES, SAMPLES
from bus.connection import Bus
from bus.errors import UnavailableError
from bus.records.nodes import decode_node_facts
from bus.records.policies import PolicyRecord, decode_policy
from bus.records.samples import encode_samples
from bus.subjects import node_facts_key, policy_key, samples_subject
from tas.policy.policy import PolicyKey
from tas.samples.sample import Scrape, newest
from tas.values.quantity import parse_quantity
from tests.integration.servers import Server, eventually
from tests.integration.workers.running import running, samples_on
from tests.kubernetes.admin import Admin
from tests.kubernetes.world import STALE_SECONDS, World, deschedule, labeling, rule
from workers.enforcing.evaluate import Evaluate
from workers.enforcing.labels import Labels
from workers.ingest.materialize import Materialize
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import NODES as NODE_OBJECTS
from workers.kubernetes.resources import Object
from workers.process.runtime import Worker
from workers.watching.status import PolicyStatus
from workers.watching.watch import WatchWorker

__all__ = ["Enforced", "enforced"]

WITHIN = 60.0
"""Generous: a machine may be busy, and an API server slow."""

VIOLATING = "violating"
PREFIX = "telemetry.aware.scheduling."


class Enforced(World):
    """A world in which the workers do what a test would play otherwise; a test acts as users and sources do.

    Attributes:
        seen: Every state of each node's labels that the API server has told, in order.
    """

    def __init__(self, admin: Admin, bus: Bus, *, kubeconfig: Path, url: str) -> None:
        super().__init__(admin, bus)
        self.seen: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
        self._kubeconfig = kubeconfig
        self._url = url
        self._registry = CollectorRegistry()
        self._workers = AsyncExitStack()

    async def start(self) -> None:
        """Runs the workers, each with a client of its own, until `stop`; returns when all are ready."""
        self._registry = registry = CollectorRegistry()
        enter = self._workers.enter_async_context
        bus = await enter(Bus.connect(self._url, name="enforced"))
        client = {
            worker: await enter(KubernetesClient.connect(self._kubeconfig, worker=worker))
            for worker in ("watch", "labels", "status", "test")
        }
        stale = STALE_SECONDS
        workers: list[Worker] = [
            WatchWorker(bus, client["watch"], registry=registry),
            Materialize(bus, registry=registry),
            Evaluate(bus, registry=registry, default_stale_after=stale),
            Labels(bus, client["labels"], registry=registry, default_stale_after=stale),
            PolicyStatus(bus, client["status"], registry=registry, default_stale_after=stale),
            NodeHistory(client["test"], self.seen),
        ]
        for worker in workers:
            await enter(running(worker))
        await eventually(lambda: all(worker.unready() is None for worker in workers), within=WITHIN)

    async def stop(self) -> None:
        await self._workers.aclose()

    def count(self, metric: str, **labels: str) -> float:
        return self._registry.get_sample_value(metric, labels) or 0.0

    # As users and sources do

    async def facts(self, node: str, created: Mapping[str, Any]) -> None:
        async def stand() -> bool:
            entry = await self.bus.get(NODES, node_facts_key(node))
            uid = created["metadata"]["uid"]
            return entry is not None and entry.value is not None and decode_node_facts(entry.value).uid == uid

        await eventually(stand, within=WITHIN)

    async def record(self, key: PolicyKey, stored: Mapping[str, Any]) -> None:
        generation = stored["metadata"]["generation"]

        async def stands() -> bool:
            found = await self.stored(key)
            return found is not None and found.generation >= generation

        await eventually(stands, within=WITHIN)

    async def stored(self, key: PolicyKey) -> PolicyRecord | None:
        """How a policy stands on the bus."""
        entry = await self.bus.get(POLICIES, policy_key(key))
        return None if entry is None or entry.value is None else decode_policy(key, entry.value)

    async def delete_policy(self, key: PolicyKey) -> None:
        await self.admin.delete_policy(key.namespace, key.name)

    async def sample(self, node: str, *, age: float = 0.0, **metrics: str | int) -> None:
        """Publishes until it stands: who has not heard of the node yet refuses it."""
        values = {metric: parse_quantity(str(value)) for metric, value in metrics.items()}
        measured = round(time.time() - age, 6)
        scrape = Scrape(source="test", measured=measured, arrived=0.0, sequence=0, metrics=values)

        async def stands() -> bool:
            with suppress(UnavailableError):
                await self.bus.publish(SAMPLES, samples_subject(node, "test"), encode_samples(scrape))
            for _ in range(20):
                samples = await samples_on(self.bus, node) or ()
                if all((each := newest(samples, name, None)) and each.measured > measured - 1e-5 for name in values):
                    return True
            return False

        await eventually(stands, within=WITHIN, every=0.1)

    # What is so

    async def becomes(self, node: str, labels: Mapping[str, str | None]) -> None:
        """Waits until these labels of a node have these values, None: until they are not there."""

        async def so() -> bool:
            found = await self.labels(node)
            return all(found.get(label) == value for label, value in labels.items())

        await eventually(so, within=WITHIN, every=0.02)

    async def says(self, key: PolicyKey, **expected: tuple[str, str]) -> dict[str, Any]:
        """Waits until the status has these conditions (status and reason by type), and gives it."""
        status: dict[str, Any] = {}

        async def so() -> bool:
            nonlocal status
            status = (await self.admin.get(f"{self.admin.policies(key.namespace)}/{key.name}")).get("status", {})
            found = {each["type"]: (each["status"], each["reason"]) for each in status.get("conditions", ())}
            return expected.items() <= found.items()

        await eventually(so, within=WITHIN, every=0.05)
        return status

    async def values(self, node: str, label: str) -> list[str | None]:
        """All values that a label has had in turn, None for none, up to now."""
        await self._told_up_to_now(node)
        values: list[str | None] = []
        for labels in self.seen[node]:
            if not values or values[-1] != labels.get(label):
                values.append(labels.get(label))
        return values

    async def _told_up_to_now(self, node: str) -> None:
        mark = {"seen": str(time.monotonic_ns())}
        await self.admin.label_node(node, mark)
        await eventually(lambda: mark.items() <= self.seen[node][-1].items(), within=WITHIN)

    @asynccontextmanager
    async def undisturbed(self) -> AsyncIterator[None]:
        """What the body does touches nobody else: another policy's labels stand through it, and follow samples after.

        No label of it is ever away, or ever on a node that meets the rules, or another node's.
        """
        name = self.name("good")
        ours = {name: VIOLATING, f"{PREFIX}{name}/card": "card0"}
        none: dict[str, str | None] = dict.fromkeys(ours)
        ill, well = await self.node("ill", **{"example.com/own": "1"}), await self.node("well")
        rules = [rule("good", 1, "Equals", "card=card0")]
        await self.policy(await self.namespace("good"), name, deschedule(rule("good")) | labeling(*rules))
        for node, health in ((ill, 1), (well, 0)):
            await self.sample(node, good=health)
        await self.becomes(ill, ours)
        yield
        for label, value in ours.items():
            assert await self.values(ill, label) == [None, value]
            assert await self.values(well, label) == [None]
        assert (await self.labels(ill))["example.com/own"] == "1"
        for node, health in ((ill, 0), (well, 1)):
            await self.sample(node, good=health)
        await self.becomes(ill, none)
        await self.becomes(well, ours)


class NodeHistory:
    """Notes every state of every node's labels."""

    name = "history"

    def __init__(self, client: KubernetesClient, seen: defaultdict[str, list[dict[str, str]]]) -> None:
        self._seen = seen
        self._reflector = Reflector(client, NODE_OBJECTS, on_list=self._listed, on_change=self._changed)

    def unready(self) -> str | None:
        return self._reflector.problem

    async def run(self) -> None:
        await self._reflector.run()

    def _listed(self, listing: Listing[Object]) -> None:
        for each in listing.items:
            self._seen[each.metadata.name].append(each.metadata.labels)

    def _changed(self, change: Change[Object]) -> None:
        if change.type is not ChangeType.DELETED:
            self._seen[change.object.metadata.name].append(change.object.metadata.labels)


@pytest.fixture
async def enforced(kubeconfig: Path, server: Server, bus: Bus) -> AsyncIterator[Enforced]:
    """The workers run, on a bus where nothing was before."""
    async with Admin.connect(kubeconfig) as admin:
        enforced = Enforced(admin, bus, kubeconfig=kubeconfig, url=server.url)
        await enforced.served()
        await enforced.start()
        try:
            yield enforced
        finally:
            await enforced.end()
            await enforced.stop()
