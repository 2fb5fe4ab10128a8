"""Writes the labels and marks that the API server refuses to REFUSALS, where the status of policies finds them."""

import time
from collections.abc import Callable
from math import inf

import structlog

from bus.connection import Bus
from bus.errors import BusError, RefusedError
from bus.record_kind import RecordKind
from bus.ticks import tick
from tas.enforcing.refusals import Refusals, combined
from tas.verdict.refused import RefusedLabel

log = structlog.get_logger("labels")

CHECK_SECONDS = 1.0
"""How often changed records are written."""

WRITE_SECONDS = 5.0
"""The shortest time between two writes of a record: many nodes become few writes."""

CHECK_ALL_SECONDS = 30.0
"""How often all records are compared: the bus may have lost some, or others have written some."""

EXPIRE_SECONDS = 1800
"""When a record expires that no replica renews."""

RENEW_SECONDS = 600.0
"""After this time an unchanged record is written again, before it expires."""


class RefusalRecords:
    """Part of the workers `labels` and `marks`, each with a `kind` of records.

    Only the replica that holds the lease (`is_active`) writes. A record only grows, and is not renewed, until the
    refusals are complete.
    """

    def __init__(
        self,
        bus: Bus,
        refusals: Refusals,
        kind: RecordKind[str, tuple[RefusedLabel, ...]],
        *,
        is_active: Callable[[], bool],
    ) -> None:
        self._bus = bus
        self._kind = kind
        self._refusals = refusals
        self._is_active = is_active
        self._all_checked_at = -inf
        self._written: dict[str, float] = {}

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await tick(CHECK_SECONDS)
            if not self._is_active():
                self.check_all()
                continue
            try:
                await self._check(time.monotonic())
            except RefusedError as error:  # passes seldom: all are compared again in `CHECK_ALL_SECONDS`, none before
                log.debug("refused_labels_not_written", error=str(error))
            except BusError as error:
                log.debug("refused_labels_not_written", error=str(error))
                self.check_all()

    def check_all(self) -> None:
        """Compares all records at the next check."""
        self._all_checked_at = -inf

    async def _check(self, now: float) -> None:
        """Writes what has changed. Raises BusError; after RefusedError all others are written."""
        changed = self._refusals.changed
        if now - self._all_checked_at >= CHECK_ALL_SECONDS:
            changed.update(entry.key for entry in await self._kind.entries(self._bus))
            changed.update(self._refusals.names)
            self._all_checked_at = now
        refused: RefusedError | None = None
        for name in sorted(changed):
            if now - self._written.get(name, -inf) >= WRITE_SECONDS:
                changed.discard(name)
                try:
                    await self._write(name, now)
                except RefusedError as error:  # others may be smaller, or are to be deleted
                    refused = error
        if refused is not None:
            raise refused

    async def _write(self, name: str, now: float) -> None:
        """Writes or deletes a record if it differs. Raises BusError."""
        read_at = time.monotonic()
        stored = await self._kind.get(self._bus, name)
        current = stored.readable() or ()
        refused, is_complete = self._refusals.of(name, current), self._refusals.is_complete
        if not is_complete:
            refused = combined(current, refused)
        is_due = is_complete and time.time() - stored.created >= RENEW_SECONDS
        if refused and (refused != current or is_due):
            await self._kind.put(
                self._bus, name, refused, revision=stored.revision, read_at=read_at, ttl_seconds=EXPIRE_SECONDS
            )
            self._written[name] = now
        elif stored.present and not refused and is_complete:
            await self._kind.delete(self._bus, name, revision=stored.revision, read_at=read_at)
            self._written.pop(name, None)
