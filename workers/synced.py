"""A bucket followed with the knowledge of whether its whole list has been taken in.

A watch that has caught up with an empty bucket knows nothing: the source may not have written yet. Only `_synced` of
the bucket's present life says that a complete list stands there, and only once the watch has caught up with it is the
list taken in (an entry written again after `_synced` stands behind it in the stream).
"""

import time
from collections.abc import Callable
from contextlib import suppress

from bus.buckets import SYNCED, Bucket
from bus.connection import Bus, Entry, Epoch
from bus.messages import Synced, decode_synced, encode_synced
from bus.watch import Watch, WatchStatus
from tas.errors import InvalidInputError


class SyncedWatch:
    """A `Watch` that keeps `_synced` to itself and reports when it counts.

    `on_entry` gets every other entry, deletions included. `on_epoch` comes before the first entry of a new life of the
    bucket. `on_complete` comes once in each life, when its list has been taken in: what it did not name is gone.
    """

    def __init__(
        self,
        bus: Bus,
        bucket: Bucket,
        *,
        on_entry: Callable[[Entry], None],
        on_epoch: Callable[[Epoch], None],
        on_complete: Callable[[Synced], None],
        on_invalid: Callable[[InvalidInputError], None],
    ) -> None:
        self._bucket = bucket
        self._on_entry = on_entry
        self._on_epoch = on_epoch
        self._on_complete = on_complete
        self._on_invalid = on_invalid
        self._synced: Synced | None = None
        self._complete = False
        self._watch = Watch(
            bus, bucket, on_entry=self._entry, on_epoch=self._epoch_began, on_batch=self._complete_if_taken_in
        )

    @property
    def status(self) -> WatchStatus:
        """Where the watch stands."""
        return self._watch.status

    @property
    def synced(self) -> Synced | None:
        """`_synced` of the present life once its list has been taken in, else None."""
        return self._synced if self._complete else None

    def unready(self) -> str | None:
        """Why a reader cannot rely on this bucket yet; None once it can."""
        if self._complete:
            return None
        if not self._watch.status.caught_up:
            return f"{self._bucket.name}: not caught up with the bus"
        return f"{self._bucket.name}: no complete list yet (key {SYNCED})"

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._watch.run()

    def _epoch_began(self, epoch: Epoch) -> None:
        self._synced = None
        self._complete = False
        self._on_epoch(epoch)

    def _entry(self, entry: Entry) -> None:
        if entry.key == SYNCED:
            self._take_synced(entry)
        else:
            self._on_entry(entry)
        self._complete_if_taken_in()

    def _take_synced(self, entry: Entry) -> None:
        if entry.value is None:
            return
        try:
            synced = decode_synced(entry.value)
        except InvalidInputError as error:
            self._on_invalid(error)
            return
        epoch = self._watch.status.epoch
        if epoch is not None and synced.epoch == epoch.created:
            self._synced = synced

    def _complete_if_taken_in(self) -> None:
        if self._complete or self._synced is None or not self._watch.status.caught_up:
            return
        self._complete = True
        self._on_complete(self._synced)


async def write_synced(bus: Bus, bucket: Bucket, epoch: Epoch, *, count: int, by: str, cluster: bool) -> None:
    """Says that a complete list of `count` objects stands in this life of the bucket, unless that is said already.

    Raises:
        BusError: if it is not said; a ConflictError means that another has just said something.
    """
    read_at = time.monotonic()
    stored = await bus.get(bucket, SYNCED)
    said = None
    if stored is not None and stored.value is not None:
        with suppress(InvalidInputError):
            said = decode_synced(stored.value)
    if said is not None and (said.epoch, said.count, said.cluster) == (epoch.created, count, cluster):
        return
    synced = Synced(epoch=epoch.created, count=count, time=time.time(), by=by, cluster=cluster)
    revision = 0 if stored is None else stored.revision
    await bus.put(bucket, SYNCED, encode_synced(synced), revision=revision, read_at=read_at)
