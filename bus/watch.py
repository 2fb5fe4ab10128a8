"""A watch of a bucket: all records, and then every change. All watches of one connection share what is delivered."""

import asyncio
from collections.abc import Callable, Collection
from math import inf
from typing import Any

from bus.bucket_feed import BucketFeed, Reader
from bus.connection import Bus, Epoch
from bus.record_kind import Handler


class WatchStatus:
    """The state of a watch at the time of each question.

    Each attribute is read when it is asked for: some callers ask several times for each entry.

    Attributes:
        feed: From which the watch gets entries now; None before its beginning.
        reader: The reader of this feed that the watch is.
    """

    def __init__(self, reader: Reader) -> None:
        self.feed: BucketFeed | None = None
        self.reader = reader

    @property
    def epoch(self) -> Epoch | None:
        """The current epoch; None before the first."""
        return None if self.feed is None else self.feed.epoch

    @property
    def applied(self) -> int:
        """The last handled stream sequence."""
        return 0 if self.feed is None else max(self.feed.applied, self.reader.seen)

    @property
    def caught_up(self) -> bool:
        """Whether every key that was stored when the watch attached to this epoch has been delivered."""
        return self.feed is not None and self.feed.caught_up

    @property
    def lag(self) -> int | None:
        """By how many sequences the watch is behind the stream; None if unknown."""
        return None if self.feed is None else self.feed.lag

    @property
    def attached(self) -> float:
        """Since when no revision can have been missed, in seconds since 1970; infinite without a feed."""
        return inf if self.feed is None else max(self.feed.attached, self.reader.since)

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
    away for so long that it may have missed deletions. `on_batch` is called after each burst of entries, and when
    `caught_up` becomes true. An exception of these functions is a bug, and ends `run`, also of the other watches of the
    bucket. With a `pace`, entries that follow another one arrive together, at most so many seconds later (`bus.feed`),
    unless another watch of the bucket is faster.

    Attributes:
        status: The state of this watch.
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
        self._bus = bus = bus.readers
        self._bucket = kind.bucket
        self._on_epoch = on_epoch
        self._on_batch = on_batch or (lambda: None)
        if (shared := bus.bucket_feeds.get(kind.bucket)) is None:
            shared = bus.bucket_feeds[kind.bucket] = BucketFeed(bus, kind.bucket)
        self._shared = shared
        self._joined = asyncio.Event()
        self._reader = Reader(
            handlers=handlers,
            on_epoch=self._begin_epoch,
            on_batch=self._note_batch,
            keys=kind.keys if len(handlers) == 1 else ">",  # the other keys are not even sent
            pace=pace,
        )
        self.status = WatchStatus(self._reader)
        self._shared.expected.add(self._reader)

    async def run(self) -> None:
        """Follows until cancelled; never returns by itself."""
        await self._shared.settle()
        self.status.feed, self.status.reader = self._shared, self._reader
        self._reader.held, self._reader.seen, self._reader.since = None, 0, 0.0
        if not self._shared.began:
            await self._shared.run(self._reader)
            return
        own = self._begin_own()
        following = asyncio.create_task(self._shared.run(self._reader))
        catching_up = asyncio.create_task(self._catch_up(own))
        try:
            await asyncio.wait((following, catching_up), return_when=asyncio.FIRST_COMPLETED)
            if catching_up.done():
                catching_up.result()
            await asyncio.wait((following,))
        finally:
            try:
                await _end(following, catching_up)
            finally:
                self._reader.held = None

    # Who comes after the beginning reads the bucket by a consumer of its own, until it has all that the others have

    def _begin_own(self) -> BucketFeed:
        self._joined.clear()
        self._reader.held = {}
        own = self.status.feed = BucketFeed(self._bus, self._bucket)
        self.status.reader = Reader(
            handlers=self._reader.handlers,
            on_epoch=self._on_epoch,
            on_batch=self._note_own_batch,
            keys=self._reader.keys,
            pace=self._reader.pace,
        )
        return own

    async def _catch_up(self, own: BucketFeed) -> None:
        await self._shared.covers(self._reader.keys)
        if self._reader.held is None:
            return
        self._reader.held.clear()  # from here on nothing is missing in it, and the own consumer begins later
        own.complement(self._shared, self._reader)
        reading = asyncio.create_task(own.run(self.status.reader))
        joined = asyncio.create_task(self._joined.wait())
        try:
            await asyncio.wait((reading, joined), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(reading, joined)

    def _begin_epoch(self, epoch: Epoch) -> None:
        """All begin again, this watch with the others."""
        own = self.status.feed
        if own is None or own is self._shared or own.epoch is None or own.epoch.created != epoch.created:
            self._leave_own()
            self._on_epoch(epoch)
        else:  # the own consumer was first: it has begun this epoch already, and got its entries as far as this
            self._reader.seen = own.applied
            self._leave_own()
        # Whatever the own consumer missed since: the others begin to read now, and none later.
        self._reader.since = 0.0
        self._joined.set()

    def _note_batch(self) -> None:
        if self._reader.held is None:
            self._on_batch()
        else:
            self._join_if_level()

    def _note_own_batch(self) -> None:
        self._on_batch()
        self._join_if_level()

    def _join_if_level(self) -> None:
        """Goes on with the others once the own consumer has delivered all that came before the held entries."""
        own, shared, held = self.status.feed, self._shared, self._reader.held
        if (
            held is None
            or own is None
            or own.epoch is None
            or shared.epoch is None
            or own.epoch.created != shared.epoch.created
        ):
            return
        if own.caught_up and shared.caught_up and own.attached < inf:
            self._reader.seen, self._reader.since, self._reader.held = own.applied, own.attached, None
            self._leave_own()
            for raw in held.values():
                shared.deliver(raw, to=self._reader)
            self._on_batch()
            self._joined.set()  # at the end: until then an exception of a handler ends this watch

    def _leave_own(self) -> None:
        if self.status.feed is not None and self.status.feed is not self._shared:
            self.status.feed.leave(self.status.reader)
        self.status.feed, self.status.reader = self._shared, self._reader


async def _end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels them. Raises the exception of one that has failed: it may have failed at this moment."""
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)
    for each in tasks:
        if not each.cancelled():
            each.result()
