"""Records of one kind in a bucket, as they stand, and brought to what they should be by conditional writes.

For whoever keeps a bucket the same as a source elsewhere: a directory, an API server. It follows the bucket, so that
it knows what differs without asking, and each write stands on the revision that was compared: so several may do it.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from bus.buckets import SYNCED, Bucket
from bus.connection import Bus, Entry, Epoch
from bus.errors import BusError, ConflictError
from bus.history import forget_deleted
from bus.watch import Watch
from tas.errors import InvalidInputError

log = structlog.get_logger("records")

WRITES_AT_ONCE = 64

K = TypeVar("K")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind(Generic[K, R]):
    """How records of a kind stand in their bucket.

    `parse_key` gives what a key names, None for a key of another kind, and raises InvalidInputError for one of none;
    so does `decode` for a value that nobody can read. `keys` is a pattern of their keys, where others have the rest.
    """

    bucket: Bucket
    key: Callable[[K], str]
    parse_key: Callable[[str], K | None]
    encode: Callable[[R], bytes]
    decode: Callable[[K, bytes], R]
    keys: str = ">"

    def same(self, key: K, record: R, stored: R | None) -> bool:
        """Whether `stored` is `record`, read back as everybody reads it."""
        return stored is not None and (stored == record or stored == self.decode(key, self.encode(record)))


@dataclass(frozen=True, slots=True)
class Stored(Generic[R]):
    """A key at `revision` (0: it never was). `present` without a record: a value that nobody can read."""

    revision: int
    record: R | None = None
    present: bool = False


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

    `on_epoch` comes when the bucket begins anew, before what was known of it is dropped; `on_entry` when a record has
    changed, by whomever but ourselves; `on_batch` after a burst of changes, and when all that stood there is known;
    `on_written` for each write of ours with what stood there before.

    Attributes:
        stored: What stands, also of keys that are deleted and not forgotten yet.
        epoch: The bucket's present life; None before the first.
    """

    def __init__(
        self,
        bus: Bus,
        kind: RecordKind[K, R],
        *,
        on_epoch: Callable[[], None] = lambda: None,
        on_entry: Callable[[K], None] = lambda _: None,
        on_batch: Callable[[], None] = lambda: None,
        on_written: Callable[[K, R | None, R | None], None] = lambda *_: None,
    ) -> None:
        self.stored: dict[K, Stored[R]] = {}
        self.epoch: Epoch | None = None
        self._bus = bus
        self._kind = kind
        self._on_epoch = on_epoch
        self._on_entry = on_entry
        self._on_written = on_written
        self._never: Stored[R] = Stored(0)
        self._watch = Watch(
            bus,
            kind.bucket,
            on_entry=self._apply,
            on_epoch=self._begin_epoch,
            on_batch=on_batch,
            keys=kind.keys,
        )

    @property
    def caught_up(self) -> bool:
        """Whether all that stood in the bucket has been read in its present life."""
        return self.epoch is not None and self._watch.status.caught_up

    @property
    def applied(self) -> int:
        """Up to which revision the bucket is known."""
        return self._watch.status.applied

    def get(self, key: K) -> Stored[R]:
        """What stands of a key."""
        return self.stored.get(key, self._never)

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._watch.run()

    async def write(self, writes: Mapping[K, Write[R]]) -> dict[K, BusError]:
        """Writes all, and gives what could not be written, with the reason."""
        failures: dict[K, BusError] = {}
        left = iter(writes.items())

        async def write_on() -> None:
            for key, what in left:
                try:
                    await self._write(key, what)
                except BusError as error:
                    failures[key] = error
                    if isinstance(error, ConflictError):
                        await self._drop_forgotten(key)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(WRITES_AT_ONCE, len(writes))):
                tasks.create_task(write_on())
        return failures

    async def _write(self, key: K, what: Write[R]) -> None:
        epoch, before = self.epoch, self.get(key).record
        bucket, text = self._kind.bucket, self._kind.key(key)
        if what.record is None:
            revision = await self._bus.delete(bucket, text, revision=what.revision, read_at=what.read_at)
        else:
            value = self._kind.encode(what.record)
            revision = await self._bus.put(bucket, text, value, revision=what.revision, read_at=what.read_at)
        if epoch is self.epoch and self.get(key).revision < revision:
            self.stored[key] = Stored(revision, what.record, what.record is not None)
        self._on_written(key, what.record, before)

    async def forget(self, key: K) -> None:
        """Lets go of what a deletion has left, here and in the bucket. Raises BusError."""
        deleted = self.get(key)
        if not deleted.present:
            await forget_deleted(self._bus, self._kind.bucket, self._kind.key(key), revision=deleted.revision)
            self._drop(key, deleted)

    async def _drop_forgotten(self, key: K) -> None:
        """After a conflict: another may have let go of what a deletion left, which no watch tells."""
        known, epoch, bucket = self.get(key), self.epoch, self._kind.bucket
        with suppress(BusError):  # the write is tried again, and this with it
            if await self._bus.get(bucket, self._kind.key(key)) is not None or epoch is None:
                return
            if (await self._bus.epoch(bucket)).created == epoch.created:  # else all is gone, which the watch will tell
                self._drop(key, known)

    def _drop(self, key: K, known: Stored[R]) -> None:
        if self.stored.get(key) is known:
            del self.stored[key]

    def _begin_epoch(self, epoch: Epoch) -> None:
        self._on_epoch()
        self.stored.clear()
        self.epoch = epoch

    def _apply(self, entry: Entry) -> None:
        if entry.key == SYNCED:
            return
        try:
            key = self._kind.parse_key(entry.key)
        except InvalidInputError as error:
            log.warning("entry_invalid", object=error.subject, field=error.field, value=error.value)
            return
        if key is None or self.get(key).revision >= entry.revision:
            return  # another kind of record, or our own write
        record = None
        if entry.value is not None:
            try:
                record = self._kind.decode(key, entry.value)
            except InvalidInputError as error:
                log.warning("entry_invalid", object=error.subject, field=error.field, reason=error.reason)
        self.stored[key] = Stored(entry.revision, record, entry.value is not None)
        self._on_entry(key)
