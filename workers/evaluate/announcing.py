"""Announces outstanding verdicts (`tas.verdict.outstanding`). Part of the worker `evaluate`.

An announcement is stored before the first verdict that sets a label. So who reads the leader's last verdict finds the
announcement, too, or has all the verdicts that it was about.
"""

import asyncio
import time
import uuid
from collections.abc import Callable

import structlog

from bus.buckets import OUTSTANDING_KEY
from bus.connection import Bus
from bus.errors import BusError, ConflictError
from bus.kinds import OUTSTANDING
from tas.verdict.outstanding import HOLD_SECONDS, Announcement, with_announcement
from workers.process.logs import ThrottledLog
from workers.process.tasks import set_within

log = structlog.get_logger("evaluate")

CHECK_SECONDS = 0.02
"""How often an announcement is compared with what is outstanding, if nothing else tells."""

TRIES = 5
"""How often a write is tried: other replicas write the same key."""


class Announcing:
    """`are_outstanding` says whether more verdicts are outstanding than those of which the answer must be sure."""

    def __init__(self, bus: Bus, are_outstanding: Callable[[], bool]) -> None:
        self._bus = bus
        self._are_outstanding = are_outstanding
        self._replica = uuid.uuid4().hex[:12]
        self._revision = 0
        self._known: dict[str, Announcement] = {}
        self._announced_at: float | None = None
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._throttled = ThrottledLog(log)

    async def announce(self) -> None:
        """Announces, unless that is done already. After an error verdicts are stored without it."""
        async with self._writing:
            at = self._announced_at
            if at is not None and time.monotonic() - at < HOLD_SECONDS:
                return
            if await self._put(Announcement(since=time.time())):
                self._announced_at = time.monotonic()
                self._wake.set()

    def note_handled(self) -> None:
        """Applies that a verdict is not outstanding any more."""
        if self._announced_at is not None:
            self._wake.set()

    async def run(self) -> None:
        """Ends each announcement. Never ends."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._announced_at is None:
                continue
            if self._are_outstanding():
                await set_within(self._wake, CHECK_SECONDS)
                self._wake.set()
                continue
            async with self._writing:
                if not self._are_outstanding():  # else somebody relies on the announcement since
                    await self._put(None)
                    self._announced_at = None
                self._wake.set()

    async def _put(self, announcement: Announcement | None) -> bool:
        """Writes; whether that has succeeded. What cannot be ended is not counted by `labels` after a while."""
        for _ in range(TRIES):
            read_at = time.monotonic()
            try:
                record = with_announcement(self._known, self._replica, announcement)
                self._revision = await OUTSTANDING.put(
                    self._bus, OUTSTANDING_KEY, record, revision=self._revision, read_at=read_at
                )
            except ConflictError:
                if not await self._read():
                    return False
            except BusError as error:
                self._throttled.warning("verdicts_not_announced", error=str(error))
                return False
            else:
                self._known = record
                return True
        return False

    async def _read(self) -> bool:
        try:
            entry = await OUTSTANDING.get(self._bus, OUTSTANDING_KEY)
        except BusError as error:
            self._throttled.warning("verdicts_not_announced", error=str(error))
            return False
        self._revision, self._known = entry.revision, dict(entry.readable() or {})
        return True
