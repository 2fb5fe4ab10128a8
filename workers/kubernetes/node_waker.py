"""Wakes rejected pods: annotates nodes, so that the scheduler tries the pods again (facts.md c29).

Which node, and when, is the decision of `tas.enforcing.waking` and `tas.gpu.card_waking`. The patch has the uid of its
node, so the patch cannot create a node or change another node of the same name.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import structlog
from prometheus_client import Counter

from tas.enforcing.managers import FIELD_MANAGER
from tas.enforcing.waking import ANNOTATION, Wake
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import KubernetesError, is_outdated
from workers.kubernetes.resources import NODES
from workers.process.logs import ThrottledLog
from workers.process.tasks import set_within

STANDBY_SECONDS = 1.0
"""How often a replica on standby checks whether it holds the lease, while a wake is due."""


class DueWakes(Protocol):
    """Decides which node is annotated, and when. Times are monotonic seconds."""

    @property
    def waiting(self) -> int:
        """The number of pods that wait."""

    @property
    def due(self) -> float | None:
        """When `take` must be called; None: not before something changes."""

    def take(self, at: float) -> Wake | None:
        """The node to annotate now, if any."""

    def drop_node(self, name: str) -> None:
        """Forgets a deleted node."""

    def soon(self, at: float) -> None:
        """Has a wake due soon: the last one has failed."""


class NodeWaker:
    """Sends the wakes that are due. Only the replica that holds the lease (`is_active`) annotates nodes.

    On standby nothing is taken off the schedule, so a wake is due at once when the replica gets the lease.
    """

    def __init__(
        self,
        client: KubernetesClient,
        wakes: DueWakes,
        *,
        logger: str,
        sent: Counter,
        failed: Counter,
        is_active: Callable[[], bool],
    ) -> None:
        """`logger` is the name of the worker in the log; `sent` and `failed` count patches."""
        self._client = client
        self._wakes = wakes
        self._is_active = is_active
        self._sent = sent
        self._failed = failed
        self._changed = asyncio.Event()
        self._log = structlog.get_logger(logger)
        self._throttled = ThrottledLog(self._log)

    def note_change(self) -> None:
        """To be called after each change of the wakes."""
        self._changed.set()

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            self._changed.clear()
            wait = self._seconds_to_wait()
            if wait is None or wait > 0:
                await set_within(self._changed, wait)
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
        self._log.info("node_woken", node=wake.node, waiting=self._wakes.waiting)
