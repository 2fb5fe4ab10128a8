"""A bucket followed for ever: an ordered consumer that re-attaches, since a dead watch is silent (n36)."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import structlog

from bus.buckets import Bucket
from bus.connection import Bus, Entry, Epoch
from bus.errors import BusError, UnavailableError
from bus.feed import Feed

log = structlog.get_logger(__name__)

WATCHDOG_BEATS = 4
"""Every so many heartbeats (2 s) what was applied is compared with what the stream holds."""

RETRY_SECONDS = (0.1, 1.0)
"""The first and the longest wait after a failure to attach."""

STEADY_SECONDS = 2.0
"""A feed that held so long had nothing wrong with it: the next one is opened without waiting."""


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """Where a watch stands.

    `applied` is the last stream sequence handled; `caught_up` is true once it reached the last sequence noted when the
    watch attached to this epoch, and stays so; `lag` compares with the stream for ever (None: not known now). Since
    `attached` (since 1970; infinite: it is not) no revision of a key can have been missed.
    """

    epoch: Epoch | None
    applied: int
    caught_up: bool
    lag: int | None
    attached: float


class Watch:
    """Every entry of a bucket, in order, then every change, through losses of connection, server and store.

    `on_entry` gets each entry, deletions included, in stream order and never twice within an epoch. `on_epoch` is
    called before the first entry of a new life of the bucket (also the first one seen): what was known before must be
    held, not dropped, until `_synced` of the new epoch stands. `on_batch` is called after each burst of entries, and
    when `caught_up` has become true.
    `keys` is a pattern of the keys that are wanted, with NATS's wildcards: the rest is not even sent.
    All are plain functions, called on the event loop; an exception in them is a bug and ends `run`.
    """

    def __init__(
        self,
        bus: Bus,
        bucket: Bucket,
        *,
        on_entry: Callable[[Entry], None],
        on_epoch: Callable[[Epoch], None],
        on_batch: Callable[[], None] | None = None,
        keys: str = ">",
    ) -> None:
        self._bus = bus
        self._bucket = bucket
        self._keys = keys
        self._on_entry = on_entry
        self._on_epoch = on_epoch
        self._on_batch = on_batch or (lambda: None)
        self._epoch: Epoch | None = None
        self._applied = 0
        self._caught_up = False
        self._feed: Feed | None = None
        self._previous: Feed | None = None
        self._last_sequence: int | None = None
        self._attached = inf
        self._was_behind = False

    @property
    def status(self) -> WatchStatus:
        """Where this watch stands now."""
        applied = self._applied if self._feed is None else self._feed.applied
        return WatchStatus(
            epoch=self._epoch,
            applied=applied,
            caught_up=self._caught_up or (self._feed is not None and self._feed.is_caught_up),
            lag=None if self._feed is None or self._last_sequence is None else max(0, self._last_sequence - applied),
            attached=inf if self._feed is None else self._attached,
        )

    async def run(self) -> None:
        """Follows until cancelled; never returns by itself."""
        loop = asyncio.get_running_loop()
        wait, longest = RETRY_SECONDS
        while True:
            await self._bus.wait_connected()
            began = loop.time()
            try:
                await self._follow()
            except BusError as error:
                log.info("watch_interrupted", bucket=self._bucket.name, error=str(error), applied=self._applied)
            if loop.time() - began > STEADY_SECONDS:
                wait, _ = RETRY_SECONDS
            else:
                await asyncio.sleep(wait)
                wait = min(2 * wait, longest)

    async def _follow(self) -> None:
        """Follows one feed to its end, which is always an error."""
        feed = await self._bus.feed(self._bucket, keys=self._keys, after=self._applied_before)
        try:
            if feed.fresh:
                self._caught_up = False
                self._applied = 0
                self._epoch = feed.epoch
                self._on_epoch(feed.epoch)
            self._last_sequence = feed.epoch.last_sequence
            self._attached = time.time()
            self._feed = feed
            await feed.release(self._on_entry, self._on_batch)
            if self._previous is not None:  # its connection was lost, so nobody could take its consumer away (b47)
                await self._previous.remove(self._bus.link)
            self._previous = feed
            await self._keep(feed)
        finally:
            self._feed = None
            self._applied = max(self._applied, feed.applied)
            self._caught_up = self._caught_up or feed.is_caught_up
            await feed.close()

    def _applied_before(self, now: Epoch) -> int | None:
        """After which sequence to go on in this life of the stream; None if it is another one."""
        if self._epoch is None or now.created != self._epoch.created:
            return None
        if now.last_sequence >= self._applied:
            self._was_behind = False
            return self._applied
        if self._was_behind:
            self._was_behind = False
            return None
        # In a cluster the leader may for a moment lag behind the replica that we read from: look once more.
        self._was_behind = True
        raise UnavailableError(f"{self._bucket.stream} ends at {now.last_sequence}, and {self._applied} was applied")

    async def _keep(self, feed: Feed) -> None:
        """Compares with the stream for ever, and raises a BusError when the feed has ended or fallen behind."""
        stuck_at: int | None = None
        while True:
            for _ in range(WATCHDOG_BEATS):
                await feed.beat()
            applied = feed.applied
            try:
                now = await self._bus.epoch(self._bucket)
                last = now.last_sequence
                if self._keys != ">":
                    last = await self._bus.last_revision(self._bucket, self._keys)
            except UnavailableError:
                self._last_sequence = None
                continue  # whether the feed itself still lives is told by its heartbeats
            self._last_sequence = last
            if now.created != feed.epoch.created or now.last_sequence < applied:
                raise UnavailableError(f"{self._bucket.stream} is not the one that was followed")
            if applied == stuck_at:
                raise UnavailableError(f"{self._bucket.stream} has gone on to {last}, the watch has not")
            stuck_at = applied if applied < last else None
