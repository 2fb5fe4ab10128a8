"""Waking: annotates nodes so that the scheduler tries the pods again that policies kept away (`tas.enforcing.waking`).

It follows waiting pods, gets the verdicts that `Labels` follows, and needs no list of nodes: a verdict has the uid of
its node, and the patch has this uid, so the patch cannot create a node or change another node of the same name.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.connection import Bus
from bus.kinds import POD_RECORDS
from bus.record_kind import Entry, Unreadable
from bus.records.pods import PodRecord
from tas.enforcing.managers import FIELD_MANAGER
from tas.enforcing.pod import PodKey
from tas.enforcing.waking import ANNOTATION, Wake, Wakes
from tas.policy.policy import PolicyKey
from tas.verdict.verdict import NodeVerdict
from workers.enforcing.node_patches import is_outdated
from workers.following.synced import SyncedWatch
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import KubernetesError
from workers.kubernetes.resources import NODES
from workers.process.logs import ThrottledLog

log = structlog.get_logger("labels")

STANDBY_SECONDS = 1.0
"""How often a replica on standby checks whether it holds the lease, while a wake is due."""


class Waking:
    """Part of the worker `labels`. Only the replica that holds the lease (`is_active`) annotates nodes.

    On standby nothing is taken off the schedule, so a wake is due at once when the replica gets the lease.
    """

    def __init__(
        self, bus: Bus, client: KubernetesClient, registry: CollectorRegistry, *, is_active: Callable[[], bool]
    ) -> None:
        self._client = client
        self._is_active = is_active
        self._wakes = Wakes()  # outlives a wiped bus: the next verdict of a node is compared with the last
        self._changed = asyncio.Event()
        self._throttled = ThrottledLog(log)
        self._pod_watch = SyncedWatch(
            bus,
            POD_RECORDS.to(self._take_in_pod),
            on_epoch=lambda _: self._wakes.drop_pods(),
            on_complete=lambda _: None,
        )
        counter = partial(Counter, registry=registry)
        self._sent = counter("tas_node_wakes", "Annotations of nodes that wake waiting pods.")
        self._failed = counter("tas_node_wakes_failed", "Attempts to annotate a node that failed.")
        waiting = Gauge("tas_pods_waiting", "Pods that wait for their policy to pass a node.", registry=registry)
        waiting.set_function(lambda: self._wakes.waiting)

    async def run(self) -> None:
        """Follows until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self._pod_watch.run(), self._wake_when_due()):
                tasks.create_task(part)

    def take_in_verdict(self, entry: Entry[str, NodeVerdict]) -> None:
        """Applies a change of the verdict of a node; an unreadable verdict changes nothing."""
        verdict = entry.read()
        if isinstance(verdict, Unreadable):
            return
        if verdict is None:
            self._wakes.drop_node(entry.key)
        else:
            self._wakes.set_node(entry.key, verdict.node_uid, verdict.policies, at=time.monotonic())
        self._changed.set()

    async def _wake_when_due(self) -> None:
        while True:
            self._changed.clear()
            wait = self._seconds_to_wait()
            if wait is None or wait > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._changed.wait()
            elif (wake := self._wakes.take(time.monotonic())) is not None:
                await self._send(wake)

    def _seconds_to_wait(self) -> float | None:
        """The seconds until a wake may be due; None: until something changes."""
        due = self._wakes.due
        if due is None:
            return None
        return due - time.monotonic() if self._is_active() else STANDBY_SECONDS

    async def _send(self, wake: Wake) -> None:
        # The value is new, else the patch would change nothing and wake nobody.
        value = datetime.now(UTC).isoformat()
        patch = {"metadata": {"uid": wake.uid, "annotations": {ANNOTATION: value}}}
        try:
            await self._client.merge_patch(NODES, wake.node, patch, field_manager=FIELD_MANAGER)
        except KubernetesError as error:
            self._failed.inc()
            self._throttled.warning("node_not_woken", node=wake.node, error=str(error))
            if is_outdated(error, wake.node):
                self._wakes.drop_node(wake.node)
            self._wakes.soon(time.monotonic())
            return
        self._sent.inc()
        log.info("node_woken", node=wake.node, waiting=self._wakes.waiting)

    def _take_in_pod(self, entry: Entry[PodKey, PodRecord]) -> None:
        pod = entry.readable()
        if pod is None or pod.waiting_since is None:
            self._wakes.drop_pod(entry.key)
            return
        policy = PolicyKey(entry.key.namespace, pod.policy)
        self._wakes.set_pod(entry.key, policy, pod.waiting_since.timestamp(), at=time.monotonic())
        self._changed.set()
