"""A watch that records everything it delivers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatchcase

from bus.buckets import Bucket, Stream
from bus.connection import Bus, Epoch, RawEntry
from bus.record_kind import Entry, RecordKind
from bus.watch import Watch
from tests.integration.servers import eventually


def raw_watch(
    bus: Bus,
    bucket: Bucket,
    *,
    on_entry: Callable[[RawEntry], None],
    on_epoch: Callable[[Epoch], None],
    on_batch: Callable[[], None] | None = None,
    keys: str = ">",
    pace: float = 0.0,
) -> Watch:
    """A watch of bytes: every key and every value is valid."""
    kind: RecordKind[str, bytes] = RecordKind(
        bucket=bucket,
        key=str,
        parse_key=lambda key: key if keys == ">" or fnmatchcase(key, keys) else None,
        encode=bytes,
        decode=lambda _, data: data,
        keys=keys,
    )

    def take(entry: Entry[str, bytes]) -> None:
        on_entry(RawEntry(entry.key, entry.readable(), entry.revision, entry.created, entry.previous))

    return Watch(bus, kind.to(take), on_epoch=on_epoch, on_batch=on_batch, pace=pace)


class Follower:
    """What a watch delivered, and the view that results."""

    def __init__(self, bus: Bus, bucket: Bucket, keys: str = ">", pace: float = 0.0) -> None:
        self.epochs: list[Epoch] = []
        self.entries: list[RawEntry] = []
        self.batches = 0
        self.caught_up_at_epochs: list[bool] = []
        self.view: dict[str, bytes] = {}
        self.watch = raw_watch(
            bus, bucket, on_entry=self._entry, on_epoch=self._epoch, on_batch=self._batch, keys=keys, pace=pace
        )

    def _epoch(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        self.caught_up_at_epochs.append(self.watch.status.caught_up)
        self.view = {}

    def _entry(self, entry: RawEntry) -> None:
        assert self.epochs, "an entry before its epoch"
        self.entries.append(entry)
        if entry.value is None:
            self.view.pop(entry.key, None)
        else:
            self.view[entry.key] = entry.value

    def _batch(self) -> None:
        self.batches += 1

    async def caught_up(self) -> None:
        await eventually(lambda: self.watch.status.caught_up)


@asynccontextmanager
async def following(bus: Bus, bucket: Bucket, *, keys: str = ">", pace: float = 0.0) -> AsyncIterator[Follower]:
    """Runs a watch as long as the body does."""
    follower = Follower(bus, bucket, keys, pace)
    task = asyncio.create_task(follower.watch.run())
    try:
        yield follower
        assert not task.done(), f"the watch ended: {task}"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def consumers(bus: Bus, of: Stream | Bucket) -> int:
    """How many consumers a stream has."""
    count: int = (await bus.api(f"STREAM.INFO.{of.stream}"))["state"]["consumer_count"]
    return count
