"""Waking: has the scheduler try the pods again that policies kept away (`tas.enforcing.waking`).

It follows waiting pods, gets the verdicts that `Labels` follows, and needs no list of nodes: a verdict has the uid of
its node.
"""

import time
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.connection import Bus
from bus.kinds import POD_RECORDS
from bus.record_kind import Entry, Unreadable
from bus.records.pods import PodRecord
from tas.enforcing.pod import PodKey
from tas.enforcing.waking import Wakes
from tas.policy.policy import PolicyKey
from tas.verdict.verdict import NodeVerdict
from workers.following.synced import SyncedWatch
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.node_waker import NodeWaker
from workers.process.tasks import together


class Waking:
    """Part of the worker `labels`. Only the replica that holds the lease (`is_active`) annotates nodes."""

    def __init__(
        self, bus: Bus, client: KubernetesClient, registry: CollectorRegistry, *, is_active: Callable[[], bool]
    ) -> None:
        self._wakes = Wakes()  # outlives a wiped bus: the next verdict of a node is compared with the last
        self._pod_watch = SyncedWatch(
            bus,
            POD_RECORDS.to(self._take_in_pod),
            on_epoch=lambda _: self._wakes.drop_pods(),
            on_complete=lambda _: None,
        )
        counter = partial(Counter, registry=registry)
        self._waker = NodeWaker(
            client,
            self._wakes,
            logger="labels",
            sent=counter("tas_node_wakes", "Annotations of nodes that wake waiting pods."),
            failed=counter("tas_node_wakes_failed", "Attempts to annotate a node that failed."),
            is_active=is_active,
        )
        waiting = Gauge("tas_pods_waiting", "Pods that wait for their policy to pass a node.", registry=registry)
        waiting.set_function(lambda: self._wakes.waiting)

    async def run(self) -> None:
        """Follows until cancelled."""
        await together(self._pod_watch.run(), self._waker.run())

    def take_in_verdict(self, entry: Entry[str, NodeVerdict]) -> None:
        """Applies a change of the verdict of a node; an unreadable verdict changes nothing."""
        verdict = entry.read()
        if isinstance(verdict, Unreadable):
            return
        if verdict is None:
            self._wakes.drop_node(entry.key)
        else:
            self._wakes.set_node(entry.key, verdict.node_uid, verdict.policies, at=time.monotonic())
        self._waker.note_change()

    def _take_in_pod(self, entry: Entry[PodKey, PodRecord]) -> None:
        pod = entry.readable()
        if pod is None or pod.waiting_since is None:
            self._wakes.drop_pod(entry.key)
            return
        policy = PolicyKey(entry.key.namespace, pod.policy)
        self._wakes.set_pod(entry.key, policy, pod.waiting_since.timestamp(), at=time.monotonic())
        self._waker.note_change()
