"""The history of the verdicts: purged before it costs a server much more than the verdicts themselves.

Who reads the last verdicts makes a server read each block of the stream that has one of them, with all the history in
it. Two read the history: the server, which copies it to VERDICT_LOG, and `events`, while it compares what all verdicts
were at one revision. What they have not read yet stays, until the bucket is full. Replicas need no agreement: what one
has purged is not there for the next one.
"""

import time

import structlog

from bus.buckets import VERDICTS
from bus.connection import Bus
from bus.errors import BusError, ForbiddenError, FullError
from bus.event_position import compared_at
from bus.history import purge_history
from bus.kinds import NODE_VERDICTS
from bus.record_kind import Packed
from bus.ticks import tick
from bus.verdict_log import copied_up_to
from tas.verdict.verdict import NodeVerdict
from workers.following.records import Records
from workers.process.logs import ThrottledLog

log = structlog.get_logger("evaluate")

CHECK_SECONDS = 10.0
"""How often the size of the bucket is looked at, while verdicts change."""

FORBIDDEN_SECONDS = 3600.0
"""So long nothing is purged if the right to see what was read is missing: each attempt is in the log of the server."""

FREE_BYTES = 32 << 20
"""Up to this size of the bucket its history stays: four blocks of a server, so that small clusters never purge."""

MULTIPLE = 3
"""How many times as large as the verdicts the bucket may be: so there is at most one purge of a key for two writes."""

PURGE_INTERVAL_SECONDS = 5.0
"""The shortest time between two purges of a full bucket."""


class VerdictHistory:
    """Purges it, for a worker that writes verdicts. `verdicts` has them packed."""

    def __init__(self, bus: Bus, verdicts: Records[str, NodeVerdict]) -> None:
        self._bus = bus
        self._verdicts = verdicts
        self._looked_up_to = 0
        self._is_forbidden = False
        self._purge_after = float("-inf")
        self._throttled = ThrottledLog(log)

    async def run(self) -> None:
        """Purges what was read, whenever there is much, until cancelled."""
        pause = CHECK_SECONDS
        while True:
            await tick(pause)
            pause = CHECK_SECONDS
            try:
                await self._look()
            except ForbiddenError as error:
                if not self._is_forbidden:
                    log.info("verdict_history_kept", error=str(error))
                self._is_forbidden, pause = True, FORBIDDEN_SECONDS
            except BusError as error:
                if self._bus.connected:  # else the connection reports it
                    self._throttled.warning("verdict_history_not_purged", error=str(error))

    async def make_room(self, full: FullError) -> None:
        """Purges all history of a full bucket: VERDICT_LOG may lose entries, but the verdicts stay complete."""
        now = time.monotonic()
        if now < self._purge_after:
            return
        self._purge_after = now + PURGE_INTERVAL_SECONDS
        try:
            forgotten = await purge_history(self._bus, VERDICTS)
        except BusError as error:
            self._throttled.warning("verdict_not_written", error=f"{full}; the history could not be purged: {error}")
            return
        self._throttled.warning("verdicts_full", error=str(full), forgotten=forgotten)

    async def _look(self) -> None:
        """Purges if there is much; asks nothing if no verdict has changed since all were read. Raises BusError."""
        known, epoch = self._verdicts.applied, self._verdicts.epoch
        if not self._verdicts.caught_up or epoch is None or known == self._looked_up_to:
            return
        now = await self._bus.epoch(VERDICTS)
        if now.created != epoch.created or now.last_sequence < known:
            return  # another epoch, or a server that has lost the last revisions: what is known may not be stored
        read = known
        if now.stored_bytes > FREE_BYTES and now.stored_bytes > MULTIPLE * self._verdict_bytes():
            read = await self._read_up_to(now.created)
            if self._verdicts.epoch is not epoch or not self._verdicts.caught_up:
                return  # what was read is of another epoch than what is known now
            await self._purge(read)
        if read >= known:
            self._looked_up_to = known

    async def _purge(self, read: int) -> None:
        """Purges what was replaced up to a revision. A later verdict keeps its history: it may be the last one read."""
        last = {NODE_VERDICTS.key(node): stored.revision for node, stored in self._verdicts.stored.items()}
        before = {key: revision for key, revision in last.items() if revision <= read}
        if before:
            purged = await purge_history(self._bus, VERDICTS, before=before)
            log.debug("verdict_history_purged", forgotten=purged)

    async def _read_up_to(self, epoch: str) -> int:
        """Up to which revision nobody needs what was replaced any more. Raises BusError."""
        copied, compared = await copied_up_to(self._bus), await compared_at(self._bus, epoch)
        return copied if compared is None else min(copied, compared)

    def _verdict_bytes(self) -> int:
        contents = (stored.content for stored in self._verdicts.stored.values())
        return sum(len(content.value) for content in contents if isinstance(content, Packed))
