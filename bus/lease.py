"""A lease: at most one holder at a time, by a key with a TTL and conditional writes (facts.md n11).

A lease does not prevent late writes (facts.md n37), so a holder's writes are conditional, too.
"""

import asyncio
import os
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from bus.connection import Bus
from bus.errors import BusError, ConflictError, RefusedError, UnavailableError
from bus.kinds import LEASE_RECORDS
from bus.record_kind import Entry
from bus.records.leases import LeaseRecord
from bus.ticks import tick
from tas.values.throttle import Throttle

log = structlog.get_logger(__name__)

LEASE_SECONDS = 5
"""The default TTL: the time after a holder's crash until another replica can have the lease."""

SAFETY = 0.9
"""The fraction of its TTL after which a lease counts as lost, since two clocks can differ in speed."""

RENEWALS_PER_TTL = 3
"""How often a lease is renewed within its TTL: a bus or a process may stand still for half of it."""

ATTEMPTS_PER_TTL = 6
"""How often that is tried while it fails, so that a connection can be lost."""

CHECKS_PER_TTL = 4
"""How often a standby checks the lease within its TTL; at least once a second."""

UNANSWERED = 2
"""After so many attempts without an answer the connection has a problem: one may be slow."""

ABANDONED_TTLS = 2
"""After so many TTLs without a renewal a lease is free: only a key without a TTL is still there then."""


def process_identity() -> str:
    """The name of this process in leases and source reports: host and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


class Lease:
    """A lease of which this process is the holder or on standby."""

    def __init__(self, bus: Bus, key: str, holder: str | None = None, *, ttl_seconds: int = LEASE_SECONDS) -> None:
        """`ttl_seconds` is at least 1; `holder` is a name for people."""
        self._bus = bus
        self._key = key
        self._holder = holder or process_identity()
        self._ttl = ttl_seconds
        self._token = ""
        self._revision = 0
        self._until = 0.0  # by the event loop's clock
        self._acquisitions = Throttle()
        self._last_token = ""  # with which this process had the lease last
        self._was_last = False

    @property
    def was_last(self) -> bool:
        """Whether this process is the last known holder: it has the lease, or nobody else was seen with it since."""
        return self._was_last

    @property
    def held(self) -> bool:
        """Whether this process certainly holds the lease: its own clock expires earlier than the server's."""
        return asyncio.get_running_loop().time() < self._until

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Waits until this process holds the lease, renews it in the background, and releases it on exit.

        The body is cancelled (and UnavailableError raised) as soon as the lease may belong to another.
        """
        self._token = secrets.token_hex(8)
        try:
            await self._acquire()
            self._bus.leases.add(self._key)
            try:
                async with asyncio.timeout_at(self._until) as limit:
                    renewal = asyncio.create_task(self._renew(limit))
                    try:
                        yield
                    finally:
                        renewal.cancel()
                        await asyncio.wait([renewal])
            except TimeoutError as error:
                if limit.expired():
                    raise UnavailableError(f"lease {self._key}: lost by {self._holder}") from error
                raise
        finally:
            self._until = 0.0
            self._bus.leases.discard(self._key)
            self._report(None)
            await self._release()

    async def _acquire(self) -> None:
        clock = asyncio.get_running_loop().time
        seen, since, unanswered = -1, clock(), 0
        while True:
            try:
                entry = await LEASE_RECORDS.get(self._bus, self._key)
                if entry.revision != seen:
                    seen, since = entry.revision, clock()
                if entry.present and not self._has_token(entry, self._last_token):
                    self._was_last = False
                is_abandoned = clock() - since > self._ttl * ABANDONED_TTLS
                if not entry.present or is_abandoned or self._is_ours(entry):
                    # An expired lease leaves a tombstone: then the write must expect the tombstone's revision.
                    self._revision = entry.revision
                    await self._write()
                    self._last_token, self._was_last = self._token, True
                    self._report(None)
                    self._log_acquisition()
                    return
                unanswered = 0
                self._report(None)
            except ConflictError:  # another process acquired it first
                unanswered = 0
                self._report(None)
            except RefusedError as error:
                self._report(error)
            except BusError as error:
                # With a full disk a server answers reads and no write: then nobody has the lease, and all looks well.
                unanswered += 1
                is_stuck = unanswered >= UNANSWERED and self._bus.connected
                self._report(UnavailableError("no answer") if is_stuck else None)  # one text, one line of the log
                log.debug("lease_unknown", key=self._key, error=str(error))
            await asyncio.sleep(min(self._ttl / CHECKS_PER_TTL, 1.0) * random.uniform(0.5, 1))  # noqa: S311 - spreads the checks

    def _log_acquisition(self) -> None:
        """Throttled: a holder whose work fails gives the lease back and gets it again, many times a minute."""
        suppressed = self._acquisitions.admit(None, time.monotonic())
        if suppressed is not None:
            log.info("lease_acquired", key=self._key, holder=self._holder, suppressed=suppressed)

    def _report(self, problem: RefusedError | UnavailableError | None) -> None:
        """Sets or clears the problem of the bus: a process that never gets the lease seems to be on standby."""
        found: BusError | None = None
        if isinstance(problem, RefusedError):
            found = RefusedError(f"lease {self._key}: {problem}", code=problem.code)
        elif problem is not None:
            found = UnavailableError(f"lease {self._key}: {problem}")
        self._bus.report(f"lease {self._key}", found)

    async def _renew(self, limit: asyncio.Timeout) -> None:
        """Renews the lease and moves the limit, until another process has the lease."""
        per_ttl = RENEWALS_PER_TTL
        while True:
            await tick(self._ttl / per_ttl)
            per_ttl = ATTEMPTS_PER_TTL
            try:
                await self._renew_once()
                per_ttl = RENEWALS_PER_TTL
            except ConflictError:
                self._until = 0.0
                if not limit.expired():
                    limit.reschedule(asyncio.get_running_loop().time())
                return
            except BusError as error:
                log.warning("lease_not_renewed", key=self._key, holder=self._holder, error=str(error))
            if not limit.expired():
                limit.reschedule(self._until)

    async def _write(self) -> None:
        """Writes the lease, if its revision is the known one. Raises BusError."""
        sent_at = asyncio.get_running_loop().time()  # the server's TTL starts later
        self._revision = await LEASE_RECORDS.put(
            self._bus,
            self._key,
            LeaseRecord(holder=self._holder, token=self._token),
            revision=self._revision,
            read_at=time.monotonic(),
            ttl_seconds=self._ttl,
        )
        self._until = sent_at + self._ttl * SAFETY

    async def _renew_once(self) -> None:
        """Renews once. Raises ConflictError if another process has the lease, other BusErrors if that is not known."""
        try:
            await self._write()
        except ConflictError:
            entry = await LEASE_RECORDS.get(self._bus, self._key)
            if not self._is_ours(entry):
                raise
            # The last write succeeded, but its answer was lost. Renew now: the next renewal may come after the limit.
            self._revision = entry.revision
            await self._write()

    async def _release(self) -> None:
        with suppress(BusError):
            if self._revision:
                await LEASE_RECORDS.delete(self._bus, self._key, revision=self._revision, read_at=time.monotonic())
        self._revision = 0

    def _is_ours(self, entry: Entry[str, LeaseRecord]) -> bool:
        return self._has_token(entry, self._token)

    def _has_token(self, entry: Entry[str, LeaseRecord], token: str) -> bool:
        record = entry.readable()  # an invalid record belongs to another process
        return record is not None and record.token == token
