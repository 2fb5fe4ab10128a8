"""What a connection delivers of one bucket to all its watches: one consumer on the server, and one decoding.

It re-attaches, since a consumer can end without an error (facts.md n36).
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import structlog

from bus.attachment import keep_attached
from bus.buckets import FORGET_SECONDS, TOMBSTONE_SECONDS, Bucket
from bus.entry import Epoch, RawEntry
from bus.errors import BusError, UnavailableError
from bus.feed import Feed
from bus.interruptions import REPEAT_SECONDS, Interruptions
from bus.record_kind import Entry, Handler, RecordKind
from bus.shared_task import SharedTask
from tas.errors import InvalidInputError, line_of
from tas.values.throttle import Throttle

if TYPE_CHECKING:
    from bus.connection import Bus

log = structlog.get_logger("bus.watch")

WATCHDOG_BEATS = 5
"""After so many heartbeats (5 s) the last applied sequence is compared with the stream."""

SUSPICIOUS_BEATS = 2
"""After so many the sequence is compared again, if the stream was ahead (mostly an entry is on its way) or silent."""

AWAY_SECONDS = FORGET_SECONDS / 2
"""After so long without its feed, or without running, a watch reads the bucket again: tombstones may be purged.

Of a bucket whose keys expire, after half of `TOMBSTONE_SECONDS`.
"""

ALL_KEYS = frozenset({">"})

MAX_NAMED, NAME_CHARACTERS = 5, 100
"""So many of the keys that do not come are named in a line of the log, each with at most so many characters."""

INCOMPLETE_MEND = "if this stays, start this process again, then nats-server (docs/reference/log-events.md)"

REPLACEMENT_CHARACTER = "\ufffd"
"""Server and client put it into subjects that are not UTF-8, but not always equally many."""


@dataclass(eq=False, kw_only=True)
class Reader:
    """Who reads of a bucket: the functions of a watch, as in `bus.watch.Watch`.

    Attributes:
        keys: A pattern of the keys that it needs.
        seen: Up to which revision it has got all entries elsewhere; it gets only later ones.
        since: Since when it reads here, in seconds since 1970.
        held: The newest entry of each key that waits until it has got the ones before it elsewhere, in the order of
            their revisions; None: it gets each at once.
        is_due: Whether `on_batch` has not been called since its last entry, or since the feed was opened.
    """

    handlers: tuple[Handler[Any, Any], ...]
    on_epoch: Callable[[Epoch], None]
    on_batch: Callable[[], None]
    keys: str
    pace: float
    seen: int = 0
    since: float = 0.0
    held: dict[str, RawEntry] | None = None
    is_due: bool = True

    def reports(self, key: str) -> bool:
        """Whether it gets this key, and one of its kinds finds it invalid."""
        wanted, tokens = self.keys.split("."), key.split(".")
        if self.keys != ">" and (
            len(wanted) != len(tokens)
            or any(each not in ("*", token) for each, token in zip(wanted, tokens, strict=True))
        ):
            return False
        return any(_is_invalid(handler.kind, key) for handler in self.handlers)

    def wants(self, key: str) -> bool:
        """Whether one of its functions is for entries of this key."""
        for handler in self.handlers:
            with suppress(InvalidInputError):
                if handler.kind.parse_key(key) is not None:
                    return True
        return False


class BucketFeed:
    """Delivers all records of a bucket and then every change, in stream order and never twice within an epoch.

    It runs while a reader does. One consumer serves all of them, at the shortest of their paces.

    Attributes:
        expected: The readers that may come, so that the consumer has what they need from its beginning.
        epoch: The current epoch; None before the first.
    """

    def __init__(self, bus: "Bus", bucket: Bucket) -> None:
        self.bus = bus
        self.expected: WeakSet[Reader] = WeakSet()
        self.epoch: Epoch | None = None
        self._bucket = bucket
        self._began = False
        self._opened = asyncio.Event()
        self._readers: list[Reader] = []
        self._receivers: dict[RecordKind[Any, Any], list[tuple[Reader, Callable[[Entry[Any, Any]], None]]]] = {}
        self._keys = ALL_KEYS
        self._pace = 0.0
        self._applied = 0
        self._caught_up = False
        self._listed_keys = ALL_KEYS  # of which keys the list of this epoch is
        self._listed: set[str] = set()  # those that were delivered, until it is complete
        # Those that the leader has, and that were not delivered when it was asked; None: it was not asked yet.
        self._missing: set[str] | None = None
        self._looks = 0  # how often it was asked for this list, with or without an answer
        self._incomplete = Throttle(seconds=REPEAT_SECONDS)
        self._feed: Feed | None = None
        self._previous: Feed | None = None
        self._last_sequence: int | None = None
        self._attached = inf
        self._was_behind = False
        self._present = _Present(bucket)
        self._interruptions = Interruptions(log, "watch_interrupted", bucket=bucket.name)
        self._following = SharedTask(self._follow_on)
        self._delivered: Epoch | None = None  # by the feed that it complements
        self._others: tuple[Reader, ...] = ()  # who read there

    @property
    def applied(self) -> int:
        """The last handled stream sequence."""
        return self._applied if self._feed is None else self._feed.applied

    @property
    def caught_up(self) -> bool:
        """Whether every key that was stored when the feed attached to this epoch has been delivered."""
        return self._caught_up

    @property
    def lag(self) -> int | None:
        """By how many sequences it is behind the stream; None if unknown."""
        unknown = self._feed is None or self._last_sequence is None
        return None if unknown else max(0, (self._last_sequence or 0) - self.applied)

    @property
    def attached(self) -> float:
        """Since when no revision can have been missed, in seconds since 1970; infinite without a feed."""
        return inf if self._feed is None else self._attached

    @property
    def began(self) -> bool:
        """Whether a reader that comes now misses entries that others have got."""
        return self._began and self._following.users > 0

    async def covers(self, keys: str) -> None:
        """Waits until all entries of these keys are delivered."""
        while self._feed is None or self._keys.isdisjoint({">", keys}):
            self._opened.clear()
            await self._opened.wait()

    def complement(self, other: "BucketFeed", reader: Reader) -> None:
        """Has it deliver what another feed has delivered before `reader` came there. To be called before `run`.

        A leader that is behind the other feed is not believed, and an invalid key is reported by one of the two.
        """
        assert other.epoch is not None
        self._delivered = replace(other.epoch, last_sequence=other.applied)
        self._others = tuple(each for each in other._readers if each is not reader)

    async def settle(self) -> None:
        """To be awaited before `run`: without a reader, nothing that it has delivered earlier counts any more."""
        await self._following.settled()
        if self._following.users == 0:
            self._began, self.epoch, self._applied, self._caught_up = False, None, 0, False

    async def run(self, reader: Reader) -> None:
        """Delivers to a reader until cancelled. Who comes after the beginning only gets what follows."""
        self._readers.append(reader)
        self._sort()
        try:
            await self._following.run()
        finally:
            self.leave(reader)

    def leave(self, reader: Reader) -> None:
        """Ends the delivery to a reader."""
        if reader in self._readers:
            self._readers.remove(reader)
            self._sort()

    def _sort(self) -> None:
        self._receivers = {}  # a new one: the old one may be in use
        for reader in self._readers:
            for handler in reader.handlers:
                self._receivers.setdefault(handler.kind, []).append((reader, handler.handle))

    def deliver(self, raw: RawEntry, *, to: Reader | None = None) -> None:
        """Hands an entry to everybody who reads its kind, or only `to` one; it is decoded once for all of them."""
        is_invalid = False
        for kind, receivers in self._receivers.items():
            try:
                key = kind.parse_key(raw.key)
            except InvalidInputError as error:
                if not is_invalid and to is None and not self._is_reported(raw):
                    self.bus.on_invalid(self._bucket, raw.key, error)
                is_invalid = True
                continue
            if key is None:
                continue
            entry = Entry(kind, key, raw, self.bus.on_invalid)
            entry.keep_decoded(keeps=len(receivers) > 1)
            for reader, handle in receivers:
                if reader.held is None and reader.seen < raw.revision and to in (None, reader):
                    reader.is_due = True
                    handle(entry)
            entry.keep_decoded(keeps=False)

    def _is_reported(self, raw: RawEntry) -> bool:
        """Whether the feed that it complements reports that a key is invalid: if it comes later, or others got it."""
        if self._delivered is None:
            return False
        return raw.revision > self._delivered.last_sequence or any(each.reports(raw.key) for each in self._others)

    def _deliver(self, raw: RawEntry) -> None:
        for reader in self._readers:
            if reader.held is not None and reader.wants(raw.key):
                reader.held.pop(raw.key, None)  # the newest of a key is enough, and comes last
                reader.held[raw.key] = raw
        self.deliver(raw)
        if not self._caught_up:
            self._listed.add(raw.key)
            if self._missing is not None:
                self._missing.discard(raw.key)  # `_note_batch` follows, when `applied` has this entry

    def _note_batch(self) -> None:
        if self._missing is not None and not self._missing and not self._caught_up:
            self._caught_up, self._listed = True, set()
        for reader in tuple(self._readers):
            if reader.is_due or reader.held is not None:
                # Until it has been told that all was delivered, it is called for the entries of others, too.
                reader.is_due = not self.caught_up
                reader.on_batch()

    async def _follow_on(self) -> None:
        await keep_attached(self.bus, self._bucket.stream, self._follow, on_failure=self._log_interruption)

    def _log_interruption(self, error: BusError) -> None:
        self._interruptions.note(error, applied=self._applied)

    def _choose(self) -> tuple[frozenset[str], float]:
        """The keys and the pace that serve all."""
        readers = {*self.expected, *self._readers}
        keys = frozenset(each.keys for each in readers)
        return ALL_KEYS if ">" in keys else keys, min((each.pace for each in readers), default=self._pace)

    def _serves_all(self) -> bool:
        """Whether the feed has the keys of all."""
        return self._keys == ALL_KEYS or self._choose()[0] <= self._keys

    async def _follow(self) -> None:
        """Follows one feed until it fails, or no longer serves all. Raises BusError."""
        self._keys, self._pace = self._choose()
        feed = await self.bus.feed(self._bucket, keys=self._keys, after=self._applied_before, pace=self._pace)
        try:
            if feed.from_start and not self._serves_all():
                return  # who came meanwhile would not get what is stored under its keys
            if feed.from_start:
                self._caught_up = False
                self._listed_keys, self._listed, self._missing, self._looks = self._keys, set(), None, 0
                self._applied = 0
                self.epoch = feed.epoch
                self._present = _Present(self._bucket)
                for reader in tuple(self._readers):
                    reader.seen, reader.held = 0, None
                    reader.on_epoch(feed.epoch)
            elif self._keys != ALL_KEYS:  # who needed other keys has left, and no consumer delivers them any more
                self._listed_keys = self._keys if self._listed_keys == ALL_KEYS else self._listed_keys & self._keys
            for reader in self._readers:
                reader.is_due = True
            self._last_sequence = feed.epoch.last_sequence
            self._attached = time.time()
            self._feed = feed
            self._began = True
            self._opened.set()
            await feed.release(self._deliver, self._note_batch)
            if self._previous is not None:  # its consumer remains if its connection was lost (facts.md b47)
                await self._previous.remove(self.bus.link)
            self._previous = feed
            await self._keep(feed)
        finally:
            self._feed = None
            self._applied = max(self._applied, feed.applied)
            await feed.close()

    async def _look_what_is_missing(self) -> None:
        """Asks what is missing. From the second answer on the log says so, unless entries may be on their way.

        After a long list there are many: those of keys that were written again meanwhile.
        """
        error, is_known = "", self._missing is not None
        try:
            await self._ask_what_is_missing()
        except UnavailableError as unavailable:  # asks again soon
            error = str(unavailable)
        self._looks += 1
        if self._caught_up or self._looks == 1 or not (error or (is_known and self.lag == 0)):
            return
        if (suppressed := self._incomplete.admit(None, time.monotonic())) is not None:
            missing = self._missing or ()
            log.warning(
                "watch_incomplete",
                bucket=self._bucket.name,
                missing=len(missing),
                keys=[line_of(key, NAME_CHARACTERS) for key in heapq.nsmallest(MAX_NAMED, missing)],
                error=error or f"the server has these keys, and does not deliver them: {INCOMPLETE_MEND}",
                suppressed=suppressed,
            )

    async def _ask_what_is_missing(self) -> None:
        """Asks the leader which keys there are, those of tombstones included. Each of them comes, or is gone later.

        A key that is written again before its delivery moves behind the others, maybe behind the point at which the
        feed has caught up (facts.md n166). A key that is not UTF-8 is invalid, and has not the same text when it comes.
        """
        listed = [key for keys in self._listed_keys for key in await self.bus.keys(self._bucket, keys)]
        stored = {key for key in listed if REPLACEMENT_CHARACTER not in key}
        self._missing = stored - self._listed if self._missing is None else self._missing & stored
        if not self._missing and not self._caught_up:
            self._note_batch()

    def _applied_before(self, now: Epoch) -> int | None:
        """The sequence after which to continue in this epoch of the stream; None if the epoch is another one."""
        known = self._delivered
        if known is not None and now.created == known.created and now.last_sequence < known.last_sequence:
            raise UnavailableError(
                f"{self._bucket.stream} ends at sequence {now.last_sequence}, but {known.last_sequence} was delivered"
            )
        if self.epoch is None or now.created != self.epoch.created or self._present.was_away:
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
        """Compares the feed with the stream until it no longer serves all; raises a BusError if it is behind."""
        stuck_at: int | None = None
        beats = WATCHDOG_BEATS
        while True:
            for beat in range(beats):
                self._present.note()
                if self._present.was_away:
                    raise UnavailableError(f"{self._bucket.stream}: this process did not run for a long time")
                if not self._serves_all() or self._choose()[1] < self._pace:
                    return
                # Again only for keys that are gone, and seldom: the server then looks at each key of the bucket.
                if feed.is_caught_up and not self._caught_up and (self._missing is None or beat == 0):
                    await self._look_what_is_missing()
                await feed.beat()
            applied = feed.applied
            try:
                last = (await self.bus.epoch(self._bucket)).last_sequence
                if applied < last and self._keys != ALL_KEYS:
                    last = max([await self.bus.last_revision(self._bucket, keys) for keys in sorted(self._keys)])
            except UnavailableError:
                self._last_sequence, beats = None, SUSPICIOUS_BEATS
                continue  # `feed.beat` detects the end of the feed
            self._last_sequence = last
            if applied == stuck_at:
                raise UnavailableError(f"{self._bucket.stream} is at sequence {last}, the watch still at {applied}")
            stuck_at, beats = (applied, SUSPICIOUS_BEATS) if applied < last else (None, WATCHDOG_BEATS)


def _is_invalid(kind: RecordKind[Any, Any], key: str) -> bool:
    try:
        kind.parse_key(key)
    except InvalidInputError:
        return True
    return False


class _Present:
    """Whether a watch of a bucket has ever been away for too long, by the clock that has moved further.

    The monotonic clock of Linux stops while the machine sleeps, and the time of day may be set back.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._longest = TOMBSTONE_SECONDS / 2 if bucket.ttl else AWAY_SECONDS
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
        return max(now - at for now, at in zip(_clocks(), self._at, strict=True)) > self._longest


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.time()
