"""A watch that knows when it has received a complete list.

A watch that has caught up with an empty bucket knows nothing: its writer may not have written yet. Only `_synced` of
the current epoch says that a complete list is stored. The watch has received the list once it has caught up as well,
since an entry that was written again after `_synced` comes later in the stream.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from bus.buckets import POLICIES, SYNCED, Bucket
from bus.connection import Bus, Epoch
from bus.kinds import synced_of
from bus.record_kind import Entry, Handler
from bus.records.synced import Synced
from bus.watch import Watch
from tas.policy.directory import FileProblems

NO_PROBLEMS = FileProblems()


class SyncedWatch:
    """A `Watch` that handles `_synced` itself, and reports when a complete list has been received.

    `handlers` get every other entry, deletions included. `on_epoch` is called before the first entry of a new epoch of
    the bucket. `on_complete` is called once in each epoch: keys that were not in the list no longer exist. It is called
    again if the list changes between one of a cluster and one of none. Without handlers `bucket` names the bucket.
    `on_batch` and `pace` are those of the watch.

    Attributes:
        status: The state of the watch.
    """

    def __init__(
        self,
        bus: Bus,
        *handlers: Handler[Any, Any],
        on_epoch: Callable[[Epoch], None],
        on_complete: Callable[[Synced], None],
        bucket: Bucket | None = None,
        on_batch: Callable[[], None] = lambda: None,
        pace: float = 0.0,
    ) -> None:
        self._on_batch = on_batch
        self._bucket = bucket or handlers[0].kind.bucket
        self._on_epoch = on_epoch
        self._on_complete = on_complete
        self._synced: Synced | None = None
        self._complete = False
        self._watch = Watch(
            bus,
            synced_of(self._bucket).to(self._take_synced),
            *handlers,
            on_epoch=self._epoch_began,
            on_batch=self._batch_ended,
            pace=pace,
        )
        self.status = self._watch.status

    @property
    def synced(self) -> Synced | None:
        """`_synced` of the current epoch when its list has been read completely, else None."""
        return self._synced if self._complete else None

    def unready(self) -> str | None:
        """Why this bucket is not complete yet, or None."""
        if self._complete:
            return None
        if not self.status.caught_up:
            return f"{self._bucket.name}: not caught up with the bus"
        return f"{self._bucket.name}: no complete list yet (key {SYNCED})"

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._watch.run()

    def _epoch_began(self, epoch: Epoch) -> None:
        self._synced = None
        self._complete = False
        self._on_epoch(epoch)

    def _take_synced(self, entry: Entry[str, Synced]) -> None:
        synced, epoch = entry.readable(), self.status.epoch
        if synced is not None and epoch is not None and synced.epoch == epoch.created:
            if self._synced is not None and synced.cluster != self._synced.cluster:
                self._complete = False
            self._synced = synced
        self._complete_if_taken_in()

    def _batch_ended(self) -> None:
        self._complete_if_taken_in()
        self._on_batch()

    def _complete_if_taken_in(self) -> None:
        if self._complete or self._synced is None or not self.status.caught_up:
            return
        self._complete = True
        self._on_complete(self._synced)


async def write_synced(
    bus: Bus,
    bucket: Bucket,
    epoch: Epoch,
    *,
    count: int,
    writer: str,
    cluster: bool,
    file_problems: FileProblems = NO_PROBLEMS,
) -> None:
    """Writes that a complete list of `count` objects is stored in this epoch, unless `_synced` says so already.

    Raises BusError if it was not written; ConflictError if another writer was first.
    """
    kind, read_at = synced_of(bucket), time.monotonic()
    stored = await kind.get(bus, SYNCED)
    synced = Synced(
        epoch=epoch.created,
        count=count,
        time=datetime.now(UTC),
        writer=writer,
        cluster=cluster,
        file_problems=file_problems,
    )
    current = stored.readable()
    if current is None or msgspec.structs.replace(current, time=synced.time, writer=writer) != synced:
        await kind.put(bus, SYNCED, synced, revision=stored.revision, read_at=read_at)


async def write_file_problems(bus: Bus, file_problems: FileProblems) -> None:
    """Writes the problems of files into `_synced` of POLICIES, unless it has them; not before there is a list.

    For files that are applied to a cluster: the writer of the list knows only the cluster. Raises as `write_synced`.
    """
    kind, read_at = synced_of(POLICIES), time.monotonic()
    stored = await kind.get(bus, SYNCED)
    current = stored.readable()
    if current is not None and current.file_problems != file_problems:
        synced = msgspec.structs.replace(current, file_problems=file_problems)
        await kind.put(bus, SYNCED, synced, revision=stored.revision, read_at=read_at)
