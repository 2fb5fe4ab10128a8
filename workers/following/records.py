"""The records of one kind in a bucket, followed by a watch and changed by conditional writes.

What is stored, since when and in which epoch lives here, for the workers that write a bucket of which several replicas
may write: they compare without requests.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from bus.connection import Bus, Epoch
from bus.errors import BusError, ConflictError
from bus.history import purge_tombstone
from bus.record_kind import Entry, Packed, RecordKind
from bus.watch import Watch
from workers.process.logs import ThrottledLog
from workers.process.tasks import together

WRITES_AT_ONCE = 64

K = TypeVar("K")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Stored(Generic[R]):
    """A key at `revision` (0: no such key). `present` without a record means an invalid value.

    `content` is the record, possibly packed. `known_since` is when this process read or wrote the revision, in seconds
    since 1970.
    """

    revision: int
    content: R | Packed[Any, R] | None = None
    present: bool = False
    known_since: float = 0.0

    @property
    def record(self) -> R | None:
        """The record, if any."""
        return self.content.read() if isinstance(self.content, Packed) else self.content


@dataclass(frozen=True, slots=True, kw_only=True)
class Write(Generic[R]):
    """A record to be put, or for None a key to be deleted, if the key is still at `revision`.

    `read_at` is the monotonic time of the reads behind it.
    """

    record: R | None
    revision: int
    read_at: float


class Records(Generic[K, R]):
    """The records of a bucket, followed and written.

    `on_epoch` is called when a new epoch of the bucket begins, before the known records are dropped; `on_entry` when
    another writer has changed a record; `on_batch` after a burst of changes, and when all stored records are known;
    `on_written`, if given, for each write of this object, with the record that was stored before.

    Attributes:
        stored: The records by key, with the deleted keys whose tombstones are not purged yet.
        epoch: The bucket's current epoch; None before the first.
    """

    def __init__(
        self,
        bus: Bus,
        kind: RecordKind[K, R],
        *,
        on_epoch: Callable[[], None] = lambda: None,
        on_entry: Callable[[K], None] = lambda _: None,
        on_batch: Callable[[], None] = lambda: None,
        on_written: Callable[[K, R | None, R | None], None] | None = None,
        packed: bool = False,
    ) -> None:
        """With `packed`, the records take little memory, but are decoded when they are read."""
        self.stored: dict[K, Stored[R]] = {}
        self.epoch: Epoch | None = None
        self._bus = bus
        self._kind = kind
        self._packed = packed
        self._on_epoch = on_epoch
        self._on_entry = on_entry
        self._on_written = on_written
        self._never: Stored[R] = Stored(0)
        self._writing: dict[K, int] = {}  # how many writes of a key have no answer yet
        self._arrived: dict[K, int] = {}  # the revision that came during a write
        self._watch = Watch(bus, kind.to(self._apply), on_epoch=self._begin_epoch, on_batch=on_batch)

    @property
    def caught_up(self) -> bool:
        """Whether all records of the current epoch have been read."""
        return self.epoch is not None and self._watch.status.caught_up

    @property
    def applied(self) -> int:
        """Up to which revision the bucket is known."""
        return self._watch.status.applied

    def get(self, key: K) -> Stored[R]:
        """The stored state of a key."""
        return self.stored.get(key, self._never)

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._watch.run()

    async def write(self, writes: Mapping[K, Write[R]]) -> dict[K, BusError]:
        """Writes all, and returns the errors of failed writes by key."""
        failures: dict[K, BusError] = {}
        left = iter(writes.items())

        async def write_on() -> None:
            for key, what in left:
                try:
                    await self.write_one(key, what)
                except BusError as error:
                    failures[key] = error
                    if isinstance(error, ConflictError):
                        await self._drop_forgotten(key)

        await together(*(write_on() for _ in range(min(WRITES_AT_ONCE, len(writes)))))
        return failures

    async def write_one(self, key: K, what: Write[R]) -> int:
        """Writes one key, and returns its new revision. Raises BusError."""
        epoch, before = self.epoch, self.get(key)
        content = self._kind.packed(key, what.record) if self._packed and what.record is not None else what.record
        revision = 0
        self._writing[key] = self._writing.get(key, 0) + 1
        try:
            if content is None:
                revision = await self._kind.delete(self._bus, key, revision=what.revision, read_at=what.read_at)
            else:
                revision = await self._kind.put(self._bus, key, content, revision=what.revision, read_at=what.read_at)
        finally:
            self._end_write(key, revision)
        self._remember(key, Stored(revision, content, content is not None, time.time()), epoch)
        if self._on_written is not None:
            self._on_written(key, what.record, before.record)
        return revision

    def _end_write(self, key: K, revision: int) -> None:
        """Reports what came meanwhile, unless it is this write: the watch is often faster than the answer."""
        self._writing[key] -= 1
        if not self._writing[key]:
            del self._writing[key]
        if self._arrived.pop(key, 0) > revision:  # revisions of a new epoch are higher, too
            self._on_entry(key)

    async def read(self, key: K) -> Stored[R]:
        """The key as the stream's leader has it: the watch may be behind. Raises BusError.

        If nothing is newer, it is the object that `get` returned.
        """
        epoch = self.epoch
        entry = await self._kind.get(self._bus, key)
        if entry.revision == 0:
            return self._never
        if entry.revision == self.get(key).revision:
            return self.get(key)
        stored = self._stored(entry)
        self._remember(key, stored, epoch)
        return stored

    def _remember(self, key: K, stored: Stored[R], epoch: Epoch | None) -> None:
        """Keeps what is stored, unless the epoch has changed since, or a later revision is known."""
        if epoch is self.epoch and self.get(key).revision < stored.revision:
            self.stored[key] = stored

    async def forget(self, key: K) -> None:
        """Purges the tombstone of a deleted key, here and in the bucket. Raises BusError."""
        deleted = self.get(key)
        await purge_tombstone(self._bus, self._kind.bucket, self._kind.key(key), revision=deleted.revision)
        self._drop(key, deleted)

    async def forget_deleted(
        self, every: float, log: ThrottledLog, *, may_forget: Callable[[K], Awaitable[bool]] | None = None
    ) -> None:
        """Purges tombstones that already existed at the previous check. Runs until cancelled.

        `every`: the seconds between two checks. A key for which `may_forget` returns False is asked for again.
        """
        deleted: dict[K, Stored[R]] = {}
        while True:
            await asyncio.sleep(every)
            try:
                for key, stored in deleted.items():
                    if self.get(key) is stored and (may_forget is None or await may_forget(key)):
                        await self.forget(key)
            except BusError as error:
                log.warning("tombstones_not_removed", error=str(error))
            deleted = {key: stored for key, stored in self.stored.items() if not stored.present}

    async def _drop_forgotten(self, key: K) -> None:
        """After a conflict: another replica may have purged the tombstone, which no watch delivers."""
        known, epoch, bucket = self.get(key), self.epoch, self._kind.bucket
        with suppress(BusError):  # the write is tried again, and this with it
            if (await self._kind.get(self._bus, key)).revision or epoch is None:
                return
            # Else the bucket was wiped, and the watch reports the new epoch.
            if (await self._bus.epoch(bucket)).created == epoch.created:
                self._drop(key, known)

    def _drop(self, key: K, known: Stored[R]) -> None:
        if self.stored.get(key) is known:
            del self.stored[key]

    def _begin_epoch(self, epoch: Epoch) -> None:
        self._on_epoch()
        self.stored.clear()
        self.epoch = epoch

    def _apply(self, entry: Entry[K, R]) -> None:
        known = self.get(entry.key)
        if known.revision >= entry.revision:  # our own write
            if self._packed and known.revision == entry.revision and known.content is not None:
                # Other readers of this process keep the delivered bytes: these are in memory once.
                self.stored[entry.key] = replace(known, content=entry.packed())
            return
        self.stored[entry.key] = self._stored(entry)
        if entry.key in self._writing:
            self._arrived[entry.key] = entry.revision  # perhaps our own write
        else:
            self._on_entry(entry.key)

    def _stored(self, entry: Entry[K, R]) -> Stored[R]:
        record = entry.readable()
        content = entry.packed() if self._packed and record is not None else record
        return Stored(entry.revision, content, entry.present, time.time())
