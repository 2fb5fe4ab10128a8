"""A lease: one holder at a time of a named thing, by a key with a TTL and conditional writes (n11).

A lease alone keeps no late write away (n37): whoever holds one still writes on conditions.
"""

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import structlog

from bus.buckets import LEASES
from bus.connection import Bus, Entry
from bus.errors import BusError, ConflictError, UnavailableError

log = structlog.get_logger(__name__)

SAFETY = 0.9
"""The part of its TTL after which a lease counts as lost: two clocks need not run equally fast."""

RENEWALS = 3
"""How often a lease is renewed in its TTL: one answer may be lost."""

LOOKS = 4
"""How often in its TTL a lease that others hold is looked at, but at least once a second."""


class _Held(msgspec.Struct):
    """The value of a lease's key. `token` tells two holds of one holder apart."""

    holder: str
    token: str


class Lease:
    """Held by at most one holder whose clock runs; others stand by."""

    def __init__(self, bus: Bus, key: str, holder: str, *, ttl_seconds: int = 5) -> None:
        """`holder` is shown to people; `ttl_seconds` (at least 1) is when it is free again after its holder's end."""
        self._bus = bus
        self._key = key
        self._holder = holder
        self._ttl = ttl_seconds
        self._token = ""
        self._revision = 0
        self._until = 0.0  # by the event loop's clock

    @property
    def held(self) -> bool:
        """Whether it is ours for certain now: judged by our own monotonic clock, earlier than the server's expiry."""
        return asyncio.get_running_loop().time() < self._until

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Waits until it is ours, renews it in the background, gives it up on leaving.

        The body is cancelled (and UnavailableError raised) as soon as it cannot be shown to be ours any more.
        """
        self._token = secrets.token_hex(8)
        try:
            await self._acquire()
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
            await self._give_up()

    async def _acquire(self) -> None:
        while True:
            try:
                entry = await self._bus.get(LEASES, self._key)
                if entry is None or entry.value is None or self._is_ours(entry.value):
                    # Where an expired lease left a marker, only a write on the marker's revision is let in.
                    self._revision = 0 if entry is None else entry.revision
                    await self._write()
                    log.info("lease_acquired", key=self._key, holder=self._holder)
                    return
            except ConflictError:  # another was first
                pass
            except BusError as error:
                log.debug("lease_unknown", key=self._key, error=str(error))
            await asyncio.sleep(min(self._ttl / LOOKS, 1.0) * random.uniform(0.5, 1))  # noqa: S311 - spreads the looks

    async def _renew(self, limit: asyncio.Timeout) -> None:
        """Renews for ever, and moves the limit; ends when the lease is another's."""
        while True:
            await asyncio.sleep(self._ttl / RENEWALS)
            try:
                await self._write()
            except ConflictError:
                if not await self._still_ours():
                    self._until = 0.0
                    limit.reschedule(asyncio.get_running_loop().time())
                    return
            except BusError as error:
                log.warning("lease_not_renewed", key=self._key, holder=self._holder, error=str(error))
            if not limit.expired():
                limit.reschedule(self._until)

    async def _write(self) -> None:
        """Writes on the known revision. Raises BusError."""
        sent_at = asyncio.get_running_loop().time()  # the server counts from later on
        self._revision = await self._bus.put(
            LEASES,
            self._key,
            msgspec.json.encode(_Held(holder=self._holder, token=self._token)),
            revision=self._revision,
            read_at=time.monotonic(),
            ttl_seconds=self._ttl,
        )
        self._until = sent_at + self._ttl * SAFETY

    async def _still_ours(self) -> bool:
        """Whether the revision that we did not know was our own write, whose answer was lost."""
        entry: Entry | None
        try:
            entry = await self._bus.get(LEASES, self._key)
        except BusError:
            return True  # not known: the limit stands, and the next renewal asks again
        if entry is None or entry.value is None or not self._is_ours(entry.value):
            return False
        self._revision = entry.revision
        return True

    async def _give_up(self) -> None:
        with suppress(BusError):
            if self._revision:
                await self._bus.delete(LEASES, self._key, revision=self._revision, read_at=time.monotonic())
        self._revision = 0

    def _is_ours(self, value: bytes) -> bool:
        try:
            return msgspec.json.decode(value, type=_Held).token == self._token
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False  # somebody else's, whatever it says
