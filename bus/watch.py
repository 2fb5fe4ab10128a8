"""A watch of a bucket: an ordered consumer that re-attaches, since it can end without an error (facts.md n36)."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import structlog

from bus.attachment import keep_attached
from bus.buckets import FORGET_SECONDS
from bus.connection import Bus, Epoch
from bus.errors import BusError, UnavailableError
from bus.feed import Feed
from bus.interruptions import Interruptions
from bus.record_kind import Handler, hand_on

log = structlog.get_logger(__name__)

WATCHDOG_BEATS = 4
"""After so many heartbeats (2 s) the last applied sequence is compared with the stream."""

AWAY_SECONDS = FORGET_SECONDS / 2
"""After so long without its feed, or without running, a watch reads the bucket again: tombstones may be purged."""


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """The state of a watch.

    Attributes:
        epoch: The current epoch; None before the first.
        applied: The last handled stream sequence.
        caught_up: Whether all entries that were stored when the watch attached to this epoch have been delivered.
        lag: By how many sequences the watch is behind the stream; None if unknown.
        attached: Since when no revision can have been missed, in seconds since 1970; infinite without a feed.
    """

    epoch: Epoch | None
    applied: int
    caught_up: bool
    lag: int | None
    attached: float

    def has_all(self, now: Epoch, *, written: Collection[int] = ()) -> bool:
        """Whether a watch of all keys has delivered everything that the stream stored up to `now`.

        `written` are the sequences that are known without their delivery.
        """
        if self.epoch is None or now.created != self.epoch.created or not self.caught_up:
            return False
        return all(sequence in written for sequence in range(self.applied + 1, now.last_sequence + 1))


class Watch:
    """Delivers all records of a bucket and then every change, also after the loss of connection, server or store.

    Each entry goes to the handler of its kind, tombstones included, in stream order and never twice within an epoch.
    All handlers are of one bucket; entries of other kinds are ignored. Invalid keys are logged and counted here,
    invalid values when they are read. `on_epoch` is called before the first entry of each epoch, also of the first: the
    caller must keep what it knows until `_synced` of the new epoch is stored. The epoch begins again if the watch was
    away for so long that it may have missed deletions. `on_batch` is called after each burst of
    entries, and when `caught_up` becomes true. An exception of these functions is a bug and ends `run`. With a `pace`,
    entries that follow another one arrive together, at most so many seconds later (`bus.feed`).
    """

    def __init__(
        self,
        bus: Bus,
        *handlers: Handler[Any, Any],
        on_epoch: Callable[[Epoch], None],
        on_batch: Callable[[], None] | None = None,
        pace: float = 0.0,
    ) -> None:
        kind = handlers[0].kind
        self._bus = bus
        self._pace = pace
        self._bucket = kind.bucket
        self._keys = kind.keys if len(handlers) == 1 else ">"  # the other keys are not even sent
        self._on_entry = partial(hand_on, kind.bucket, handlers, bus.on_invalid)
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
        self._present = _Present()
        self._interruptions = Interruptions(log, "watch_interrupted", bucket=self._bucket.name)

    @property
    def status(self) -> WatchStatus:
        """The current state of this watch."""
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
        await keep_attached(self._bus, self._follow, on_failure=self._log_interruption)

    def _log_interruption(self, error: BusError) -> None:
        self._interruptions.note(error, applied=self._applied)

    async def _follow(self) -> None:
        """Follows one feed until it fails. Raises BusError."""
        feed = await self._bus.feed(self._bucket, keys=self._keys, after=self._applied_before, pace=self._pace)
        try:
            if feed.from_start:
                self._caught_up = False
                self._applied = 0
                self._epoch = feed.epoch
                self._present = _Present()
                self._on_epoch(feed.epoch)
            self._last_sequence = feed.epoch.last_sequence
            self._attached = time.time()
            self._feed = feed
            await feed.release(self._on_entry, self._on_batch)
            if self._previous is not None:  # its consumer remains if its connection was lost (facts.md b47)
                await self._previous.remove(self._bus.link)
            self._previous = feed
            await self._keep(feed)
        finally:
            self._feed = None
            self._applied = max(self._applied, feed.applied)
            self._caught_up = self._caught_up or feed.is_caught_up
            await feed.close()

    def _applied_before(self, now: Epoch) -> int | None:
        """The sequence after which to continue in this epoch of the stream; None if the epoch is another one."""
        if self._epoch is None or now.created != self._epoch.created or self._present.was_away:
            return None
        if now.last_sequence >= self._applied:
            self._was_behind = False
            return self._applied
        if self._was_behind:
            self._was_behind = False
            return None
        # In a cluster the leader may briefly be behind the replica that served the feed: check once more.
        self._was_behind = True
        raise UnavailableError(
            f"{self._bucket.stream} ends at sequence {now.last_sequence}, but {self._applied} was already applied"
        )

    async def _keep(self, feed: Feed) -> None:
        """Compares the feed with the stream, and raises a BusError when the feed has ended or is behind."""
        stuck_at: int | None = None
        while True:
            for _ in range(WATCHDOG_BEATS):
                self._present.note()
                if self._present.was_away:
                    raise UnavailableError(f"{self._bucket.stream}: this process did not run for a long time")
                await feed.beat()
            applied = feed.applied
            try:
                now = await self._bus.epoch(self._bucket)
                last = now.last_sequence
                if self._keys != ">":
                    last = await self._bus.last_revision(self._bucket, self._keys)
            except UnavailableError:
                self._last_sequence = None
                continue  # `feed.beat` detects the end of the feed
            self._last_sequence = last
            if applied == stuck_at:
                raise UnavailableError(f"{self._bucket.stream} is at sequence {last}, the watch still at {applied}")
            stuck_at = applied if applied < last else None


class _Present:
    """Whether a watch has ever been away for `AWAY_SECONDS`, by the clock that has moved further.

    The monotonic clock of Linux stops while the machine sleeps, and the time of day may be set back.
    """

    def __init__(self) -> None:
        self._at = _clocks()
        self._was_away = False

    @property
    def was_away(self) -> bool:
        """Whether the watch was away once, or is away since the last `note`."""
        return self._was_away or self._is_away()

    def note(self) -> None:
        """Notes that the watch is running now, with a feed."""
        self._was_away = self.was_away
        self._at = _clocks()

    def _is_away(self) -> bool:
        return max(now - at for now, at in zip(_clocks(), self._at, strict=True)) > AWAY_SECONDS


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.time()
