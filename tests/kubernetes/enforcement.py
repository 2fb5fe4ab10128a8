"""The workers from `watch` to `labels` with any API server: policies and samples in, labels and status out."""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import NODES, POLICIES, REFUSALS, SAMPLES
from bus.connection import Bus
from bus.entry import RawEntry
from bus.errors import UnavailableError
from bus.kinds import NODE_FACTS
from bus.records.nodes import decode_node_facts
from bus.records.policies import PolicyRecord, decode_policy
from bus.records.samples import encode_samples
from bus.subjects import policy_key, refusals_key, samples_subject
from tas.enforcing.brake import BrakeSettings
from tas.policy.policy import PolicyKey
from tas.samples.sample import Scrape, newest
from tas.values.quantity import parse_quantity
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.running import running, samples_on
from tests.kubernetes.admin import Admin
from tests.kubernetes.status_scenarios import wait_for_status
from tests.kubernetes.world import STALE_SECONDS, World, deschedule, labeling, rule
from workers.evaluate.worker import Evaluate
from workers.following.followed_view import FollowedView
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.reflectors import Reflectors
from workers.kubernetes.resources import NODES as NODE_OBJECTS
from workers.kubernetes.resources import Object
from workers.labels.worker import Labels
from workers.materialize.worker import Materialize
from workers.runtime import Worker
from workers.status.worker import PolicyStatus
from workers.watch.worker import WatchWorker

__all__ = ["Enforced", "Refusing", "enforced", "quick_refusals"]

VIOLATING = "violating"
PREFIX = "telemetry.aware.scheduling."

Refusing = Callable[[str, str], AbstractAsyncContextManager[str]]
"""While in the context, the API server refuses a label of a node with a reason that contains the text."""


class Enforced(World):
    """A world in which the workers run; a test only does what users and sources do.

    Attributes:
        seen: Every state of each node's labels that a watch has delivered, in order.
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
            WatchWorker(bus, Reflectors(client["watch"]), registry=registry),
            Materialize(bus, registry=registry),
            Evaluate(bus, FollowedView(bus, default_stale_after=stale, verdicts=True), registry=registry),
            Labels(
                bus,
                client["labels"],
                Reflectors(client["labels"]),
                registry=registry,
                default_stale_after=stale,
                brake=BrakeSettings(label_rate=None, label_rate_all=None),  # 500 labels would wait for 4 minutes
            ),
            PolicyStatus(
                bus, client["status"], Reflectors(client["status"]), registry=registry, default_stale_after=stale
            ),
            NodeHistory(client["test"], self.seen),
        ]
        for worker in workers:
            await enter(running(worker))
        await eventually(lambda: all(worker.unready() is None for worker in workers))

    async def stop(self) -> None:
        await self._workers.aclose()

    def count(self, metric: str, **labels: str) -> float:
        return self._registry.get_sample_value(metric, labels) or 0.0

    # As users and sources do

    async def facts(self, node: str, created: Mapping[str, Any]) -> None:
        async def is_stored() -> bool:
            entry = await answered(partial(self.bus.get, NODES, NODE_FACTS.key(node)))
            uid = created["metadata"]["uid"]
            return entry is not None and entry.value is not None and decode_node_facts(entry.value).uid == uid

        await eventually(is_stored)

    async def record(self, key: PolicyKey, stored: Mapping[str, Any]) -> None:
        generation = stored["metadata"]["generation"]

        async def is_stored() -> bool:
            found = await self.stored(key)
            return found is not None and found.generation >= generation

        await eventually(is_stored)

    async def stored(self, key: PolicyKey) -> PolicyRecord | None:
        """The record of a policy on the bus."""
        entry = await answered(partial(self.bus.get, POLICIES, policy_key(key)))
        return None if entry is None or entry.value is None else decode_policy(key, entry.value)

    async def refusals(self, policy: str) -> RawEntry | None:
        """The record of the refused labels of a policy."""
        return await answered(partial(self.bus.get, REFUSALS, refusals_key(policy)))

    async def delete_policy(self, key: PolicyKey) -> None:
        await self.admin.delete_policy(key.namespace, key.name)

    async def sample(self, node: str, *, age: float = 0.0, **metrics: str | int) -> None:
        """Publishes until the samples are stored: `materialize` refuses samples of a node that it does not know yet."""
        scrape = _scrape(age, metrics)

        async def is_stored() -> bool:
            with suppress(UnavailableError):
                await self._publish(node, scrape)
                for _ in range(20):
                    found = await samples_on(self.bus, node) or ()
                    if all(
                        (each := newest(found, name, None)) and each.measured > scrape.measured - 1e-5
                        for name in scrape.metrics
                    ):
                        return True
            return False

        await eventually(is_stored, every=0.1)

    async def refused_sample(self, node: str, *, age: float, **metrics: str | int) -> None:
        """Publishes samples, and waits until they are refused because of their time."""
        refused = partial(self.count, "tas_samples_refused_total", reason="time")
        before = refused()
        await answered(partial(self._publish, node, _scrape(age, metrics)))
        await eventually(lambda: refused() > before)

    async def _publish(self, node: str, scrape: Scrape) -> None:
        await self.bus.publish(SAMPLES, samples_subject(node, "test"), encode_samples(scrape))

    # Labels and status

    async def wait_for_labels(self, node: str, labels: Mapping[str, str | None]) -> None:
        """Waits until these labels of a node have these values (None: absent)."""

        async def are_set() -> bool:
            found = await self.labels(node)
            return all(found.get(label) == value for label, value in labels.items())

        await eventually(are_set, every=0.02)

    async def wait_for_status(self, key: PolicyKey, **conditions: tuple[str, str]) -> dict[str, Any]:
        """Waits until a status has these conditions (status and reason by type), and returns the status."""
        return await wait_for_status(self, key, **conditions)

    async def values(self, node: str, label: str) -> list[str | None]:
        """All values that a label has had until now, in order; None: absent."""
        values: list[str | None] = []
        for labels in await self.history(node):
            if not values or values[-1] != labels.get(label):
                values.append(labels.get(label))
        return values

    async def history(self, node: str) -> list[dict[str, str]]:
        """Every state of a node's labels until now. Sets a label of the node and waits until the watch delivers it."""
        mark = {"seen": str(time.monotonic_ns())}
        await self.admin.label_node(node, mark)
        await eventually(lambda: any(mark.items() <= labels.items() for labels in self.seen[node]))
        return self.seen[node]

    @asynccontextmanager
    async def undisturbed(self) -> AsyncIterator[None]:
        """Asserts that the body has no effect on another policy: its labels stay, and follow samples afterwards."""
        name = self.name("good")
        ours = {name: VIOLATING, f"{PREFIX}{name}/card": "card0"}
        none: dict[str, str | None] = dict.fromkeys(ours)
        violating, met = await self.node("violating", **{"example.com/own": "1"}), await self.node("met")
        rules = [rule("good", 1, "Equals", "card=card0")]
        await self.policy(await self.namespace("good"), name, deschedule(rule("good")) | labeling(*rules))
        for node, good in ((violating, 1), (met, 0)):
            await self.sample(node, good=good)
        await self.wait_for_labels(violating, ours)
        yield
        for label, value in ours.items():
            assert await self.values(violating, label) == [None, value]
            assert await self.values(met, label) == [None]
        assert (await self.labels(violating))["example.com/own"] == "1"
        for node, good in ((violating, 0), (met, 1)):
            await self.sample(node, good=good)
        await self.wait_for_labels(violating, none)
        await self.wait_for_labels(met, ours)


def _scrape(age: float, metrics: Mapping[str, str | int]) -> Scrape:
    values = {metric: parse_quantity(str(value)) for metric, value in metrics.items()}
    return Scrape(source="test", measured=round(time.time() - age, 6), arrived=0.0, sequence=0, metrics=values)


class NodeHistory:
    """Keeps every state of every node's labels."""

    name = "history"

    def __init__(self, client: KubernetesClient, seen: defaultdict[str, list[dict[str, str]]]) -> None:
        self._seen = seen
        self._nodes = Reflector(client, NODE_OBJECTS).consumer(on_list=self._listed, on_change=self._changed)

    def unready(self) -> str | None:
        return self._nodes.problem

    async def run(self) -> None:
        await self._nodes.run()

    def _listed(self, listing: Listing[Object]) -> None:
        for each in listing.items:
            self._seen[each.metadata.name].append(each.metadata.labels)

    def _changed(self, change: Change[Object]) -> None:
        if change.type is not ChangeType.DELETED:
            self._seen[change.object.metadata.name].append(change.object.metadata.labels)


@pytest.fixture
async def enforced(kubeconfig: Path, server: Server, bus: Bus) -> AsyncIterator[Enforced]:
    """The workers run, on a new bus."""
    async with Admin.connect(kubeconfig) as admin:
        enforced = Enforced(admin, bus, kubeconfig=kubeconfig, url=server.url)
        await enforced.served()
        await enforced.start()
        try:
            yield enforced
        finally:
            await enforced.stop()
            await enforced.end()


@pytest.fixture
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused label is tried again after 1 s, not 10 minutes; its record is written every 1 s at most, not 5 s."""
    monkeypatch.setattr("workers.labels.worker.RESYNC_SECONDS", 1.0)
    monkeypatch.setattr("workers.reconcile.refusal_records.WRITE_SECONDS", 1.0)
