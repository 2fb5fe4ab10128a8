"""The simulated parts of `tas up`: nodes that publish samples, and pods that are created, evicted and deleted.

The workers, the extender and the bus are real.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from bus.connection import Bus
from bus.errors import BusError
from bus.scrapes import publish_scrape
from lab.sandbox.cluster import Cluster
from lab.sandbox.errors import StatusError
from lab.sandbox.fitting import meets_affinity
from lab.sandbox.resources import NODES, PODS, TASPOLICIES
from lab.sandbox.store import key_of
from tas.enforcing.pod import PodKey
from tas.policy.policy import POD_LABEL, StrategyType
from tas.samples.freshness import is_fresh
from tas.samples.sample import NodeSamples, Scrape, newest
from tas.values.quantity import Quantity, parse_quantity
from tas.verdict.verdict import VIOLATING
from workers.following.followed_view import FollowedView

log = structlog.get_logger("simulated")

SIMULATED_NODES = ("node-1", "node-2", "node-3")

SOURCE = "simulated"
HEALTHY = {"health_metric": parse_quantity("0")}
GIB = 2**30

MAX_PODS = 6
"""How many simulated pods exist at the same time."""

DESCHEDULE_SECONDS = 0.25
"""How often pods are checked for a violated node affinity."""


def _avoiding(policy: str) -> dict[str, object]:
    """The fields of a pod that may not be on a node with the label of a policy."""
    avoids = {"key": policy, "operator": "NotIn", "values": [VIOLATING]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [avoids]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _labels_nodes(policy: Mapping[str, Any]) -> bool:
    """Whether a policy has the strategy `deschedule`; its file may have a spec of any form."""
    spec = policy.get("spec")
    strategies = spec.get("strategies") if isinstance(spec, dict) else None
    return isinstance(strategies, dict) and StrategyType.DESCHEDULE in strategies


class SimulatedNodes:
    """Publishes samples of the nodes every second, except for metrics for which another source has a fresh sample.

    So a sample that a user publishes counts until it is stale. The `healthy` nodes have telemetry of their own, and
    need nothing but their health.
    """

    name = "simulated-nodes"

    def __init__(
        self, bus: Bus, followed: FollowedView, nodes: Sequence[str], *, healthy: Sequence[str] = (), seed: int = 1
    ) -> None:
        self._bus = bus
        self._followed = followed
        self._steps: dict[str, Callable[[float], dict[str, Quantity]]] = dict.fromkeys(healthy, lambda _: HEALTHY)
        self._steps |= {node: _Walk(random.Random(f"{seed}/{node}")).step for node in nodes}  # noqa: S311 - no secret

    def unready(self) -> str | None:
        """Always ready."""
        return None

    async def run(self) -> None:
        """Publishes until cancelled."""
        await self._bus.wait_connected()
        while True:
            now = time.time()
            for node, step in self._steps.items():
                view = self._followed.view
                metrics = unclaimed(step(now), view.samples(node), stale_after=view.default_stale_after, now=now)
                if not metrics:
                    continue
                scrape = Scrape(source=SOURCE, measured=now, arrived=now, sequence=0, metrics=metrics)
                try:
                    await publish_scrape(self._bus, node, scrape)
                except BusError as error:
                    log.warning("publish_failed", node=node, error=str(error))
            await asyncio.sleep(1.0)


def unclaimed(
    metrics: Mapping[str, Quantity], samples: NodeSamples, *, stale_after: float, now: float
) -> dict[str, Quantity]:
    """The metrics to publish: those for which no other source has a fresh sample.

    If both sources published at the same time and our sample is newer, the other source's value is published again: so
    the other source's value counts.
    """
    others = tuple(scrape for scrape in samples if scrape.source != SOURCE)
    published: dict[str, Quantity] = {}
    for name, value in metrics.items():
        last, other = newest(samples, name), newest(others, name)
        if other is None or not is_fresh(other, stale_after, now):
            published[name] = value
        elif last is not other:
            published[name] = other.metrics[name]
    return published


class _Walk:
    """The metrics of one node as a random walk."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._cpu = chance.uniform(10, 60)
        self._memory = chance.uniform(4, 28)
        self._phase = chance.uniform(0, 40)

    def step(self, now: float) -> dict[str, Quantity]:
        self._cpu = min(99.0, max(1.0, self._cpu + self._chance.gauss(0, 3)))
        self._memory = min(30.0, max(1.0, self._memory + self._chance.gauss(0, 0.4)))
        unhealthy = (now + self._phase) % 60 < 10  # ten seconds of each minute, each node at another time
        return {
            "health_metric": parse_quantity("1" if unhealthy else "0"),
            "cpu_percent": parse_quantity(f"{self._cpu:.1f}"),
            "memory_available_bytes": parse_quantity(str(int(self._memory * GIB))),
            "disk_used_percent": parse_quantity("40"),
        }


class SimulatedPods:
    """Creates and deletes pods, for each policy in turn; evicts and replaces them as a descheduler and a controller do.

    The sandbox's scheduler places the pods.
    """

    name = "simulated-pods"

    def __init__(self, cluster: Cluster, *, period_seconds: float = 3.0) -> None:
        self._cluster = cluster
        self._period_seconds = period_seconds
        self._number = 0
        self._pods: dict[PodKey, str] = {}  # the policy of each pod, the oldest pod first

    def unready(self) -> str | None:
        """Always ready."""
        return None

    async def run(self) -> None:
        """Creates and deletes pods until cancelled."""
        due = time.monotonic()
        while True:
            self._deschedule()
            if time.monotonic() >= due:
                due += self._period_seconds
                self._create_and_delete()
            await asyncio.sleep(DESCHEDULE_SECONDS)

    def _create_and_delete(self) -> None:
        policies = sorted(map(key_of, self._cluster.store.items(TASPOLICIES)))
        if policies:
            self._create(*policies[self._number % len(policies)])
        while len(self._pods) > MAX_PODS:
            self._delete(next(iter(self._pods)))

    def _create(self, namespace: str, policy: str) -> None:
        self._number += 1
        key = PodKey(namespace, f"simulated-{self._number}")
        # Without `deschedule` no node gets the label: an affinity for it is a mistake that `tas doctor` finds.
        labels = _labels_nodes(self._cluster.store.get(TASPOLICIES, namespace, policy) or {})
        container = {"name": "main", "image": "pause", "resources": {"limits": {"telemetry/scheduling": "1"}}}
        pod = {
            "metadata": {"name": key.name, "labels": {POD_LABEL: policy}},
            "spec": {
                "containers": [container],
                **(_avoiding(policy) if labels else {}),
            },
        }
        try:
            self._cluster.create(PODS, namespace, pod, manager=SOURCE)
        except StatusError as error:  # a policy's name is not always a valid value of a label
            log.warning("simulated_pod_refused", pod=str(key), error=error.message)
            return
        self._pods[key] = policy

    def _delete(self, key: PodKey) -> None:
        del self._pods[key]
        with suppress(StatusError):  # the pod is already deleted
            self._cluster.delete(PODS, key.namespace, key.name)

    def _deschedule(self) -> None:
        """Evicts pods whose required node affinity is violated, and creates a new pod for each."""
        for key, policy in list(self._pods.items()):
            pod = self._cluster.store.get(PODS, key.namespace, key.name)
            if pod is None:
                del self._pods[key]
                continue
            node = self._cluster.store.get(NODES, "", pod["spec"].get("nodeName", ""))
            if node is not None and not meets_affinity(pod, node):
                log.info("simulated_pod_evicted", pod=str(key), node=node["metadata"]["name"])
                self._delete(key)
                self._create(key.namespace, policy)
