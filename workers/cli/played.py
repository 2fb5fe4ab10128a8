"""Played parts for `tas up`: nodes that report, pods that come and go. All that decides about them is real."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.errors import BusError
from bus.messages import encode_samples
from bus.subjects import samples_subject
from sandbox.cluster import Cluster
from sandbox.errors import StatusError
from sandbox.fitting import meets_affinity
from sandbox.resources import NODES, PODS, TASPOLICIES, Object
from tas.pod import PodKey
from tas.policy import POD_LABEL
from tas.quantity import Quantity, parse_quantity
from tas.sample import NodeSamples, Scrape, newest
from tas.verdict import VIOLATING
from workers.followed_view import FollowedView

log = structlog.get_logger("played")

SOURCE = "played"
GIB = 2**30

PLAYED_PODS = 6
"""How many pods there are at most."""

DESCHEDULE_SECONDS = 0.25
"""How often is looked for pods that run where they must not any more."""


class PlayedNodes:
    """Nodes that report once a second, and give way: what somebody else said of a metric is not talked over.

    So a sample published by hand stays in force until it is stale.
    """

    name = "played-nodes"

    def __init__(self, bus: Bus, followed: FollowedView, nodes: Sequence[str], *, seed: int = 1) -> None:
        self._bus = bus
        self._followed = followed
        self._nodes = {node: _Walk(random.Random(f"{seed}/{node}")) for node in nodes}  # noqa: S311 - a play, no secret

    def unready(self) -> str | None:
        """A play is always ready."""
        return None

    async def run(self) -> None:
        """Reports until cancelled."""
        await self._bus.wait_connected()
        while True:
            now = time.time()
            for node, walk in self._nodes.items():
                metrics = self._unclaimed(node, walk.step(now), now)
                if not metrics:
                    continue
                scrape = Scrape(source=SOURCE, measured=now, arrived=now, sequence=0, metrics=metrics)
                try:
                    await self._bus.publish(SAMPLES, samples_subject(node, SOURCE), encode_samples(scrape))
                except BusError as error:
                    log.warning("publish_failed", node=node, error=str(error))
            await asyncio.sleep(1.0)

    def _unclaimed(self, node: str, metrics: Mapping[str, Quantity], now: float) -> dict[str, Quantity]:
        samples = self._followed.view.samples(node)
        return unclaimed(metrics, samples, since=now - self._followed.view.default_stale_after)


def unclaimed(metrics: Mapping[str, Quantity], samples: NodeSamples, *, since: float) -> dict[str, Quantity]:
    """What of `metrics` is to be said, where others have spoken since a time: nothing of what they speak of.

    But a value of ours that crossed theirs on its way, and so is newer, is replaced by theirs.
    """
    others = tuple(scrape for scrape in samples if scrape.source != SOURCE)
    said: dict[str, Quantity] = {}
    for name, value in metrics.items():
        last, theirs = newest(samples, name), newest(others, name)
        if theirs is None or theirs.time <= since:
            said[name] = value
        elif last is not theirs:
            said[name] = theirs.metrics[name]
    return said


class _Walk:
    """Values of one node that wander as real ones do."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._cpu = chance.uniform(10, 60)
        self._memory = chance.uniform(4, 28)
        self._phase = chance.uniform(0, 40)

    def step(self, now: float) -> dict[str, Quantity]:
        self._cpu = min(99.0, max(1.0, self._cpu + self._chance.gauss(0, 3)))
        self._memory = min(30.0, max(1.0, self._memory + self._chance.gauss(0, 0.4)))
        unwell = (now + self._phase) % 60 < 10  # ten seconds of each minute, each node at another time
        return {
            "health_metric": parse_quantity("1" if unwell else "0"),
            "cpu_percent": parse_quantity(f"{self._cpu:.1f}"),
            "memory_available_bytes": parse_quantity(str(int(self._memory * GIB))),
            "disk_used_percent": parse_quantity("40"),
        }


class PlayedPods:
    """Pods that come and go, of each policy in turn, and what moves them: a descheduler, and who replaces the evicted.

    Where they run is the scheduler's to say.
    """

    name = "played-pods"

    def __init__(self, cluster: Cluster, *, period_seconds: float = 3.0) -> None:
        self._cluster = cluster
        self._period_seconds = period_seconds
        self._number = 0
        self._ours: dict[PodKey, str] = {}  # oldest first; the policy of each

    def unready(self) -> str | None:
        """A play is always ready."""
        return None

    async def run(self) -> None:
        """Plays until cancelled."""
        due = time.monotonic()
        while True:
            self._deschedule()
            if time.monotonic() >= due:
                due += self._period_seconds
                self._come_and_go()
            await asyncio.sleep(DESCHEDULE_SECONDS)

    def _come_and_go(self) -> None:
        policies = sorted((each["metadata"]["namespace"], each["metadata"]["name"]) for each in self._policies())
        if policies:
            self._create(*policies[self._number % len(policies)])
        while len(self._ours) > PLAYED_PODS:
            self._delete(next(iter(self._ours)))

    def _policies(self) -> list[Object]:
        return self._cluster.store.items(TASPOLICIES)

    def _create(self, namespace: str, policy: str) -> None:
        self._number += 1
        key = PodKey(namespace, f"played-{self._number}")
        avoids = {"key": policy, "operator": "NotIn", "values": [VIOLATING]}
        affinity = {"nodeSelectorTerms": [{"matchExpressions": [avoids]}]}
        container = {"name": "main", "image": "pause", "resources": {"limits": {"telemetry/scheduling": "1"}}}
        pod = {
            "metadata": {"name": key.name, "labels": {POD_LABEL: policy}},
            "spec": {
                "containers": [container],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": affinity}},
            },
        }
        try:
            self._cluster.create(PODS, namespace, pod, manager=SOURCE)
        except StatusError as error:  # a policy's name need be no label's value
            log.warning("played_pod_refused", pod=str(key), error=error.message)
            return
        self._ours[key] = policy

    def _delete(self, key: PodKey) -> None:
        del self._ours[key]
        with suppress(StatusError):  # somebody else was first
            self._cluster.delete(PODS, key.namespace, key.name)

    def _deschedule(self) -> None:
        """Evicts what runs where it must not any more, and creates another in its place."""
        for key, policy in list(self._ours.items()):
            pod = self._cluster.store.get(PODS, key.namespace, key.name)
            if pod is None:
                del self._ours[key]
                continue
            node = self._cluster.store.get(NODES, "", pod["spec"].get("nodeName", ""))
            if node is not None and not meets_affinity(pod, node):
                log.info("played_pod_evicted", pod=str(key), node=node["metadata"]["name"])
                self._delete(key)
                self._create(key.namespace, policy)
