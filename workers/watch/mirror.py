"""A mirror: keeps a bucket equal to a resource of the API server.

Any number of replicas may do this. Each follows the API server and the bucket, and corrects differences by conditional
writes. The worker's part lives here: what was reported, what is written when, and when a complete list is requested.
`observation` decides which of two is right. If a difference remains for a while, the replica requests a complete list
before it writes, so nothing is written or deleted because of old data.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Generic, TypeVar

import structlog

from bus.buckets import SYNCED
from bus.connection import WRITE_SECONDS, Bus, Epoch
from bus.errors import BusError, ConflictError, ExpiredError
from bus.record_kind import RecordKind
from tas.values.backoff import Backoff
from tas.values.nouns import counted
from workers.following.records import Records, Write
from workers.following.synced import write_synced
from workers.kubernetes.client import Change, ChangeType, Listing
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import Object, version_number
from workers.process.logs import ThrottledLog
from workers.process.tasks import set_within, together
from workers.watch.observation import Observation, Step, Versioned, agree, next_step

log = structlog.get_logger("watch")

RETRY = Backoff(first=0.05, longest=2.0)
"""The waits after passes with failed writes."""

GRACE_SECONDS = 1.0
"""How long the bucket may be newer than the last observation: the watch may deliver the change late."""

RELIST = Backoff(first=1.0, longest=300.0)
"""The waits between two lists that are requested because of such a difference.

After the longest wait without such a list, the waits start again with the first. So two versions of this program, which
may encode a record differently, do not overwrite each other all the time.
"""

KEY_BATCH = 256
"""So many keys are compared before their differences are written.

Other tasks run in between: an extender may answer requests in the same process. And a write follows its list soon, even
if the comparison of all keys would take longer than `WRITE_SECONDS`.
"""


K = TypeVar("K")
R = TypeVar("R", bound=Versioned)
T = TypeVar("T", bound=Object)


@dataclass(slots=True)
class _Bucket(Generic[K, R]):
    """What is known since the last complete list, in one epoch of the bucket.

    Attributes:
        dirty: The keys that may differ, in the order in which they are compared.
        waiting: The keys whose difference may be resolved by a later report, and since when.
        relisting: Whether another complete list is requested.
    """

    epoch: Epoch | None = None
    observed: dict[K, Observation[R]] = field(default_factory=dict)
    dirty: dict[K, None] = field(default_factory=dict)
    waiting: dict[K, float] = field(default_factory=dict)
    relisting: bool = False


def _settle(now: _Bucket[K, R], key: K) -> None:
    """Notes that the bucket agrees with the observation of the key."""
    now.dirty.pop(key, None)
    now.waiting.pop(key, None)
    observed = now.observed.get(key)
    if observed is not None and observed.record is None:
        del now.observed[key]


class Mirror(Generic[T, K, R]):
    """One resource in one bucket.

    `record_of` returns an object's key and record, or None for an object without a record. `on_written` is called for
    each write with the new record (None for a deletion) and the previous record. Tombstones are purged one or two times
    `forget_seconds` after the deletion, and not while `before_forget` returns False for the key. A pass begins at once,
    but no sooner than `gather_seconds` after the one before, so that the changes of a burst are written together.
    `completed` gets a key, its record and the stored one, and adds to the record what the reports do not have.
    `on_deleted` gets each object whose deletion the watch reports.
    """

    def __init__(
        self,
        bus: Bus,
        reflector: Reflector[T],
        kind: RecordKind[K, R],
        *,
        record_of: Callable[[T], tuple[K, R] | None],
        on_written: Callable[[K, R | None, R | None], None],
        forget_seconds: float,
        before_forget: Callable[[K], Awaitable[bool]] | None = None,
        gather_seconds: float = 0.0,
        completed: Callable[[K, R, R | None], R] = lambda _key, record, _stored: record,
        on_deleted: Callable[[T], None] = lambda _: None,
        writer: str,
    ) -> None:
        self._bus = bus
        self._resource = reflector.resource
        self._kind = kind
        self._record_of = record_of
        self._writer = writer
        self._forget_seconds = forget_seconds
        self._before_forget = before_forget
        self._gather_seconds = gather_seconds
        self._completed = completed
        self._on_deleted = on_deleted
        self._records = Records(
            bus,
            kind,
            on_epoch=self._start_epoch,
            on_entry=self._note,
            on_batch=self._wake_up,
            on_written=on_written,
        )
        self._objects = reflector.consumer(on_list=self._listed, on_change=self._changed, before_list=self._before_list)
        self._now: _Bucket[K, R] = _Bucket()
        # The bucket's epoch and revision when the list was requested.
        self._list_base: tuple[Epoch | None, int] = (None, 0)
        self._wake = asyncio.Event()
        self._new_list = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._synced_list = 0
        self._synced_epoch: Epoch | None = None
        self._failure: str | None = None
        self._next_list_at = self._next_fresh_list_at = float("-inf")
        self._lists_in_a_row = 0
        self._throttled = ThrottledLog(log, bucket=kind.bucket.name)

    def __len__(self) -> int:
        """The number of objects of the API server."""
        return sum(observed.record is not None for observed in self._now.observed.values())

    def records(self) -> Iterator[tuple[K, R]]:
        """All keys and records, as last reported by the API server."""
        return ((key, observed.record) for key, observed in self._now.observed.items() if observed.record is not None)

    def unready(self) -> str | None:
        """Why the bucket may differ from the API server."""
        name = self._kind.bucket.name
        if self._objects.problem is not None and self._records.caught_up:
            return f"{self._resource}: {self._objects.problem}"
        if self._synced_epoch is not None and self._synced_epoch is self._records.epoch:
            return None
        if not self._records.caught_up:
            return f"{name}: not caught up with the bus"
        return f"{name}: {self._failure or 'not all written yet'}"

    def renew(self, keys: Iterable[K]) -> None:
        """Compares these keys again, as `completed` may add something else to their records now.

        The rest of the records is as reported before: whatever has a later resource version stays.
        """
        at = time.monotonic()
        for key in keys:
            observed = self._now.observed.get(key)
            if observed is not None and observed.record is not None:
                applied = max(self._records.applied, self._records.get(key).revision)
                self._now.observed[key] = replace(observed, at=at, applied=applied)
                self._note(key)

    async def run(self) -> None:
        """Follows until cancelled."""
        await together(
            self._records.run(),
            self._objects.run(),
            self._reconcile(),
            self._records.forget_deleted(self._forget_seconds, self._throttled, may_forget=self._may_forget),
        )

    def _start_epoch(self) -> None:
        self._now.epoch = None
        self._now.dirty.clear()
        self._now.waiting.clear()
        self._objects.relist()

    def _note(self, key: K) -> None:
        self._now.dirty[key] = None
        self._wake.set()

    def _wake_up(self) -> None:
        if self._records.caught_up:
            self._caught_up.set()
        self._wake.set()

    async def _before_list(self) -> None:
        """Waits until the bucket is known: then the list shows which keys must be deleted."""
        while not self._records.caught_up:
            self._caught_up.clear()
            await self._caught_up.wait()
        self._list_base = (self._records.epoch, self._records.applied)

    def _listed(self, listing: Listing[T]) -> None:
        at = time.monotonic()
        epoch, applied = self._list_base
        version = version_number(listing.resource_version)
        observed: dict[K, Observation[R]] = {}
        for each in listing.items:
            found = self._record_of(each)
            if found is not None:
                observed[found[0]] = Observation(record=found[1], version=version, at=at, applied=applied)
        for key, stored in self._records.stored.items():
            if key not in observed and stored.present:
                observed[key] = Observation(record=None, version=version, at=at, applied=applied)
            if stored.record is not None and stored.revision <= applied and key in observed:
                # The record has a later version than this later list: the API server was restored from an earlier
                # state, and the list is right.
                known = version_number(stored.record.resource_version)
                if known > version:
                    observed[key] = Observation(
                        record=observed[key].record, version=known, at=at, applied=stored.revision
                    )
        # First the keys that the last list left: else keys at the end would wait for ever if every list expires.
        left = (key for key in self._now.dirty if key in observed)
        self._now = _Bucket(epoch=epoch, observed=observed, dirty=dict.fromkeys((*left, *observed)))
        self._new_list.set()
        self._wake.set()

    def _changed(self, change: Change[T]) -> None:
        found = self._record_of(change.object)
        if change.type is ChangeType.DELETED:
            self._on_deleted(change.object)
        if found is None:
            return
        key, record = found
        self._now.observed[key] = Observation(
            record=None if change.type is ChangeType.DELETED else record,
            version=version_number(change.resource_version),
            at=time.monotonic(),
            applied=self._records.applied,
        )
        self._note(key)

    async def _reconcile(self) -> None:
        """A pass at each wake. Runs until cancelled."""
        failures = 0
        ready_at = -inf
        while True:
            await set_within(self._wake, GRACE_SECONDS if self._now.waiting else None)
            await asyncio.sleep(max(0.0, ready_at - time.monotonic()))
            ready_at = time.monotonic() + self._gather_seconds
            self._wake.clear()
            self._new_list.clear()
            if await self._pass():
                failures = 0
            else:
                failures += 1
                # Not after a new list: its writes must follow within `WRITE_SECONDS`.
                await set_within(self._new_list, RETRY.after(failures))
                self._wake.set()

    async def _pass(self) -> bool:
        """Writes the differences. Returns whether the bucket is complete, or a new list has replaced the last one."""
        now, listed = self._now, self._objects.listed
        if now.epoch is None or now.epoch is not self._records.epoch:
            return True  # the next list wakes this task
        failures: dict[K, BusError] = {}
        dirty = list(now.dirty)
        for start in range(0, len(dirty), KEY_BATCH):
            failures |= await self._write_differing(now, dirty[start : start + KEY_BATCH])
            await asyncio.sleep(0)
            if now is not self._now or now.epoch is not self._records.epoch:
                return True  # the new list wakes this task
            if failures and now.relisting:
                break  # so that no write is pending when the new list arrives
        self._list_if_overdue(now)
        if failures:
            self._report_others(failures)
            return False
        return await self._write_synced(now, listed)

    async def _write_differing(self, now: _Bucket[K, R], keys: Sequence[K]) -> dict[K, BusError]:
        """Writes the differences of these keys, and returns the errors of failed writes."""
        observed = self._differing(now, keys)
        writes = {
            key: Write(record=each.record, revision=self._records.get(key).revision, read_at=each.at)
            for key, each in observed.items()
        }
        failures = await self._records.write(writes)
        for key in observed.keys() - failures.keys():
            if now.observed.get(key) is observed[key]:  # no later observation
                _settle(now, key)
        if any(isinstance(error, ExpiredError) for error in failures.values()):
            self._list_if_expired(now)
        return failures

    def _differing(self, now: _Bucket[K, R], keys: Sequence[K]) -> dict[K, Observation[R]]:
        """The observations that must be written; notes which keys agree, and which must wait."""
        differing: dict[K, Observation[R]] = {}
        for key in keys:
            stored = self._records.get(key)
            observed = self._with_completed(now, key, stored.record)
            step = next_step(observed, stored, same=agree(self._kind, key, observed, stored))
            if step is Step.WRITE and observed is not None:
                differing[key] = observed
            elif step is Step.WAIT:
                now.waiting.setdefault(key, time.monotonic())
                now.dirty.pop(key, None)
            else:
                _settle(now, key)
        return differing

    def _with_completed(self, now: _Bucket[K, R], key: K, stored: R | None) -> Observation[R] | None:
        observed = now.observed.get(key)
        if observed is None or observed.record is None:
            return observed
        record = self._completed(key, observed.record, stored)
        if record is not observed.record:
            observed = now.observed[key] = replace(observed, record=record)
        return observed

    def _list_if_expired(self, now: _Bucket[K, R]) -> None:
        """Requests a complete list because reports were too old to be written."""
        monotonic = time.monotonic()
        if monotonic > self._next_fresh_list_at:
            self._next_fresh_list_at = monotonic + RELIST.first
            self._request_list(now, f"the last report of the API server is more than {WRITE_SECONDS:g} s old")

    def _list_if_overdue(self, now: _Bucket[K, R]) -> None:
        """Requests a complete list if a key has waited too long."""
        monotonic = time.monotonic()
        if now.waiting and monotonic > self._next_list_at and monotonic - min(now.waiting.values()) > GRACE_SECONDS:
            first = monotonic - self._next_list_at > RELIST.longest
            self._lists_in_a_row = 1 if first else self._lists_in_a_row + 1
            self._next_list_at = monotonic + RELIST.after(self._lists_in_a_row)
            self._request_list(now, "the bucket differs from what the API server reported")

    def _request_list(self, now: _Bucket[K, R], reason: str) -> None:
        """Requests a list, unless one is requested already, or has been received since."""
        if now.relisting or now is not self._now:
            return
        now.relisting = True
        log.info("watch_relisted", bucket=self._kind.bucket.name, resource=str(self._resource), reason=reason)
        self._objects.relist()

    def _report_others(self, failures: dict[K, BusError]) -> None:
        """Reports failures that are neither of a conflict nor of a report that was too old."""
        others = [error for error in failures.values() if not isinstance(error, ConflictError | ExpiredError)]
        if others:
            self._report_failure(f"{counted(len(others), 'record')} not written: {others[0]}")

    async def _write_synced(self, now: _Bucket[K, R], listed: int) -> bool:
        """Writes `_synced`, once for each list. Returns whether it is written."""
        self._failure = None
        if self._synced_list == listed or now.epoch is None:
            return True
        try:
            await write_synced(
                self._bus, self._kind.bucket, now.epoch, count=len(self), writer=self._writer, cluster=True
            )
        except ConflictError:
            return False  # another replica wrote it first
        except BusError as error:
            self._report_failure(f"{SYNCED} not written: {error}")
            return False
        self._synced_list = listed
        if self._synced_epoch is not now.epoch:
            self._synced_epoch = now.epoch
            log.info("watch_synced", bucket=self._kind.bucket.name, resource=str(self._resource), count=len(self))
        return True

    async def _may_forget(self, key: K) -> bool:
        return key not in self._now.observed and (self._before_forget is None or await self._before_forget(key))

    def _report_failure(self, failure: str) -> None:
        self._failure = failure
        self._throttled.warning("records_not_written", error=failure)
