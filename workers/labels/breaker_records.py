"""The records of BREAKERS: what this replica knows of them, and how old that is; it writes them, and restores freezes.

After a wipe, a replica that knows the freezes of the epoch before writes them again, and then `_synced`: who only
follows the freezes waits for it (`workers.following.freezes`).

A watch keeps the records up to date, but nobody knows how far a watch is behind. So before they are relied on, one
request asks the stream's leader for its last sequence: if the watch has delivered all up to there, all records are
current, of however many policies. Only if it has not, the records are read.

The rules of the breaker are in `tas.enforcing.breaker`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from math import inf
from typing import NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import BREAKERS, PAUSED
from bus.connection import Bus, Epoch
from bus.errors import BusError, ConflictError, UnavailableError
from bus.kinds import BREAKER_RECORDS, OUTSTANDING, PAUSE_RECORDS, synced_of
from bus.record_kind import Entry, Unreadable
from bus.records.synced import Synced
from bus.watch import Watch
from tas.enforcing.limits import IN_FLIGHT_SECONDS
from tas.verdict.freeze import ALL, Breaker, Pause
from tas.verdict.outstanding import HOLD_SECONDS, Announcements
from workers.following.synced import write_synced
from workers.process.tasks import set_within, together

log = structlog.get_logger("labels")

FRESH_SECONDS = 1.0
"""The largest age of what is known when it is relied on: the rest of `READ_AGE_SECONDS` is for the patch."""

STRANGER_SECONDS = 5.0
"""How long a replica that does not know the freezes of the epoch before waits for one that does, before it writes
`_synced`. A replica connects again within a second."""

RETRY_SECONDS = 0.5
"""The wait after a failed write of freezes or of `_synced`."""


class _Known(NamedTuple):
    """A record at a revision; `at`: the monotonic time at which it was certainly the last one."""

    record: Breaker | Pause | Unreadable | None
    revision: int
    at: float = -inf

    @property
    def breaker(self) -> Breaker:
        return self.record if isinstance(self.record, Breaker) else Breaker()

    @property
    def freezes(self) -> bool:
        """An unreadable record freezes: the breaker may have tripped."""
        if isinstance(self.record, Breaker):
            return self.record.trip is not None
        return self.record is not None


class BreakerRecords:
    """The breakers and the pause, followed by a watch.

    `on_thaw` is called when frozen labels may change again, `on_loss` when the bucket was lost, or may have been lost
    less than `new_bus_wait` seconds ago: its records were the only ones of what was admitted. `on_loss` gets the rest
    of these seconds, or `IN_FLIGHT_SECONDS` if the loss is seen only now. `on_batch` is called after a burst of
    records.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        registry: CollectorRegistry,
        on_thaw: Callable[[], None],
        on_loss: Callable[[float], None],
        new_bus_wait: float,
        on_batch: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._on_thaw = on_thaw
        self._on_loss = on_loss
        self._new_bus_wait = new_bus_wait
        self._known: dict[str, _Known] = {}
        self._carried: dict[str, _Known] = {}  # freezes of a lost bucket that are still to be written again
        self._all_at = -inf  # the monotonic time at which all that is known was certainly current
        self._written: set[int] = set()  # own revisions that the watch may not have delivered yet
        self._refreshing = asyncio.Lock()
        self._watch = Watch(
            bus,
            PAUSE_RECORDS.to(lambda entry: self._note(PAUSED, _Known(entry.read(), entry.revision))),
            BREAKER_RECORDS.to(lambda entry: self._note(entry.key, _Known(entry.read(), entry.revision))),
            synced_of(BREAKERS).to(self._take_in_synced),
            OUTSTANDING.to(self._take_in_outstanding),
            on_epoch=self._start_epoch,
            on_batch=self._take_in_batch,
        )
        self._on_batch = on_batch
        self._outstanding: dict[str, tuple[float, float]] = {}  # since when, and when it was first received
        self._epoch: Epoch | None = None
        self._synced_epoch = ""  # the last one whose `_synced` is known
        self._knows_all = False  # whether all freezes up to this epoch are known here
        self._complete_at = inf  # the monotonic time at which `_synced` of this epoch is to be written
        self._epoch_began = asyncio.Event()
        self._trips = Counter("tas_breaker_trips", "Breakers that this replica has tripped.", registry=registry)
        tripped = Gauge("tas_breakers_tripped", "Breakers that are tripped: labels are frozen.", registry=registry)
        tripped.set_function(lambda: sum(map(self.freezes, {*self.breakers, *self._carried} - {PAUSED})))
        paused = Gauge("tas_labels_paused", "1 while all labels are paused, else 0.", registry=registry)
        paused.set_function(lambda: float(self.freezes(PAUSED)))

    def unready(self) -> str | None:
        """Why no record may be relied on yet."""
        return None if self._watch.status.caught_up else f"{BREAKERS.name}: not caught up with the bus"

    async def run(self) -> None:
        """Follows, and restores what a wipe has lost, until cancelled."""
        await together(self._watch.run(), self._complete_each_epoch())

    @property
    def is_paused(self) -> bool:
        """Whether all labels are paused."""
        return self.freezes(PAUSED)

    @property
    def breakers(self) -> list[str]:
        """The keys of all known breakers."""
        return [key for key in self._known if key != PAUSED]

    def breaker(self, key: str) -> Breaker:
        """A breaker as it is known; an empty one without a record."""
        return self._known.get(key, _NOTHING).breaker

    def freezes(self, key: str) -> bool:
        """Whether the record of this key freezes labels."""
        return key in self._carried or self._known.get(key, _NOTHING).freezes

    def outstanding_until(self, now: float) -> float:
        """Until when verdicts may be outstanding, by what `evaluate` has announced; both times are monotonic."""
        return max((at + HOLD_SECONDS for _, at in self._outstanding.values()), default=now)

    def has_all(self, epoch: Epoch) -> bool:
        """Whether everything up to the last sequence of an epoch was delivered by the watch, or written here."""
        status = self._watch.status
        self._written = {revision for revision in self._written if revision > status.applied}
        return status.has_all(epoch, written=self._written)

    def current_at(self, policy: str) -> float:
        """The monotonic time at which all that is known about labels of a policy was certainly current."""
        return min(map(self._current_at, _keys({policy})))

    async def refresh(self, policies: Collection[str]) -> None:
        """Makes all that is known about labels of these policies current, unless it is younger than `FRESH_SECONDS`.

        Raises BusError.
        """
        if not self._is_old(policies):
            return
        async with self._refreshing:
            if not self._is_old(policies):
                return  # another node has asked meanwhile
            read_at = time.monotonic()
            if self.has_all(await self._bus.epoch(BREAKERS)):
                self._all_at = read_at
            else:
                await all_of(*(self._read(key) for key in _keys(policies)))
        if any(self.current_at(policy) == -inf for policy in policies):
            raise UnavailableError(f"{BREAKERS.name} was lost while it was read")

    async def write(self, key: str, breaker: Breaker) -> None:
        """Writes a breaker unless it is as known. Raises BusError."""
        known, read_at = self._known.get(key, _NOTHING), self._current_at(key)
        if read_at == -inf:
            return  # the bucket was lost meanwhile
        if breaker is known.record or (known.record is None and breaker == Breaker()):
            return
        await self._put(key, breaker, revision=known.revision, read_at=read_at)
        if breaker.trip is not None and known.breaker.trip is None:
            self._trips.inc()

    async def replace(self, key: str, change: Callable[[Breaker], Breaker | None]) -> None:
        """Writes what `change` makes of a known breaker, unless it is the same; None: deletes it. Raises BusError."""
        known, read_at = self._known.get(key, _NOTHING), time.monotonic()
        if not isinstance(known.record, Breaker):
            return
        changed = change(known.record)
        if changed is not known.record:
            await self._put(key, changed, revision=known.revision, read_at=read_at)

    async def restore(self) -> None:
        """Writes the freezes of a lost bucket again, unless the key exists in the new one. Raises BusError."""
        for key, carried in list(self._carried.items()):
            await self._read(key)  # a record of the new bucket replaces what is carried
            if key not in self._carried:
                continue
            record = carried.record
            with suppress(ConflictError):
                if isinstance(record, Pause):
                    await self._put(key, record, revision=0, read_at=self._known[key].at)
                elif isinstance(record, Breaker):
                    await self._put(key, Breaker(trip=record.trip), revision=0, read_at=self._known[key].at)
            self._carried.pop(key, None)

    async def _complete_each_epoch(self) -> None:
        """Writes lost freezes again in each new epoch, and then `_synced`. Never ends."""
        while True:
            wait = None if self._complete_at == inf else max(0.0, self._complete_at - time.monotonic())
            await set_within(self._epoch_began, wait)
            self._epoch_began.clear()
            epoch = self._epoch
            try:
                await self.restore()
                if epoch is None or time.monotonic() < self._complete_at:
                    continue
                if self._synced_epoch != epoch.created:
                    await write_synced(self._bus, BREAKERS, epoch, count=0, writer="labels", cluster=True)
                if self._epoch is epoch:
                    self._complete_at = inf
            except BusError as error:
                log.debug("breaker_not_written", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._epoch_began.set()

    def _current_at(self, key: str) -> float:
        return max(self._all_at, self._known.get(key, _NOTHING).at)

    def _is_old(self, policies: Collection[str]) -> bool:
        return any(time.monotonic() - self.current_at(policy) > FRESH_SECONDS for policy in policies)

    async def _put(self, key: str, record: Breaker | Pause | None, *, revision: int, read_at: float) -> None:
        """Writes or deletes a record. Raises BusError; after a conflict nothing that is known counts as current."""
        try:
            if record is None:
                new = await BREAKER_RECORDS.delete(self._bus, key, revision=revision, read_at=read_at)
            elif isinstance(record, Pause):
                new = await PAUSE_RECORDS.put(self._bus, key, record, revision=revision, read_at=read_at)
            else:
                new = await BREAKER_RECORDS.put(self._bus, key, record, revision=revision, read_at=read_at)
        except ConflictError:
            self._all_at = -inf
            if key in self._known:
                self._known[key] = self._known[key]._replace(at=-inf)
            raise
        self._written.add(new)
        self._note(key, _Known(record, new, read_at))

    async def _read(self, key: str) -> None:
        read_at = time.monotonic()
        entry: Entry[str, Pause] | Entry[str, Breaker]
        if key == PAUSED:
            entry = await PAUSE_RECORDS.get(self._bus, key)
        else:
            entry = await BREAKER_RECORDS.get(self._bus, key)
        self._note(key, _Known(entry.read(), entry.revision, read_at))

    def _take_in_synced(self, entry: Entry[str, Synced]) -> None:
        if (synced := entry.readable()) is not None:
            self._synced_epoch = synced.epoch

    def _take_in_outstanding(self, entry: Entry[str, Announcements]) -> None:
        now, before = time.monotonic(), self._outstanding
        self._outstanding = {}
        for replica, announcement in (entry.readable() or {}).items():
            known = before.get(replica)
            is_new = known is None or known[0] != announcement.since
            self._outstanding[replica] = (announcement.since, now) if is_new or known is None else known

    def _take_in_batch(self) -> None:
        epoch = self._epoch
        if epoch is not None and self._synced_epoch == epoch.created and self._watch.status.caught_up:
            self._knows_all = True
        self._on_batch()

    def _note(self, key: str, known: _Known) -> None:
        """Stores what was read, written or received, unless a later revision is known."""
        before, was_frozen = self._known.get(key, _NOTHING), self.freezes(key)
        if known.revision < before.revision:
            return
        if known.revision == before.revision:
            known = before._replace(at=max(before.at, known.at))
        self._known[key] = known
        if known.revision:
            self._carried.pop(key, None)
        if known.freezes and not was_frozen:
            _log_freeze(key, known)
        elif was_frozen and not self.freezes(key):
            if key == PAUSED:
                log.info("labels_resumed")
            else:
                log.info("breaker_reset", policy=key)
            self._on_thaw()

    def _start_epoch(self, epoch: Epoch) -> None:
        """A new epoch: the freezes of the last one are written again (`_complete_each_epoch`)."""
        before, self._epoch = self._epoch, epoch
        if before is not None and before.created == epoch.created:
            return  # only the watch has begun anew
        if before is not None:
            self._carried |= {key: known for key, known in self._known.items() if known.freezes}
            log.warning("breakers_lost", frozen=sorted(self._carried))
        self._known.clear()
        self._outstanding.clear()
        self._written.clear()
        self._all_at = -inf
        self._complete_at = time.monotonic() + (0.0 if self._knows_all else STRANGER_SECONDS)
        self._epoch_began.set()
        if before is not None:
            self._on_loss(IN_FLIGHT_SECONDS)
        elif epoch.age < self._new_bus_wait:
            self._on_loss(self._new_bus_wait - epoch.age)


_NOTHING = _Known(None, 0)


def _keys(policies: Collection[str]) -> list[str]:
    """The keys of BREAKERS that concern labels of these policies; "" stands for labels of no policy."""
    return [PAUSED, ALL, *sorted(each for each in policies if each)]


def _log_freeze(key: str, known: _Known) -> None:
    if isinstance(known.record, Pause):
        log.warning("labels_paused", by=known.record.by, reason=known.record.reason)
    elif isinstance(known.record, Breaker) and (trip := known.record.trip) is not None:
        log.error("breaker_tripped", policy=key, limit=trip.limit, wanted=trip.wanted, selected=trip.selected)
    elif isinstance(known.record, Unreadable):
        log.error("breaker_unreadable", policy=key, error=str(known.record.error))


async def all_of(*calls: Awaitable[None]) -> None:
    """Waits for all calls, and raises the first error."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
