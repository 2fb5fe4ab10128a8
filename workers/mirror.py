"""A resource of the API server kept in a bucket: what it lists and tells stands there, and nothing else does.

Any number of replicas may do this at once. Each follows both the API server and the bucket, and where they differ
writes on the revision that it has seen. Who is right of two is told by the resource version that a record carries:
a replica whose watch lags behind leaves alone what another has read later. Where the two still differ after a while,
it asks for a complete list before it writes: nothing is put or deleted by what was heard long ago.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog

from bus.buckets import SYNCED
from bus.connection import WRITE_SECONDS, Bus, Epoch
from bus.errors import BusError, ConflictError, ExpiredError
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import Object, Resource
from workers.logs import Throttle
from workers.records import RecordKind, Records, Stored, Write
from workers.synced import write_synced

log = structlog.get_logger("watch")

RETRY_SECONDS = (0.05, 2.0)
"""The first and the longest wait after a pass that could not write all it should."""

GRACE_SECONDS = 1.0
"""How long the API server and the bucket may differ where the bucket may know better: the watch may yet bring it."""

LIST_AGAIN_SECONDS = (1.0, 300.0)
"""The shortest and the longest time between two lists that are asked for because of that.

It doubles from one to the next, and begins anew after the longest: so two versions of this program, which may word a
record differently, do not overwrite each other for ever at the speed of the API server.
"""

FORGET_SECONDS = 1800.0
"""How often it is looked for what can be let go of keys that are deleted: that stands so long at least, and at most
twice as long. Who hears nothing from the bus for longer has to read it anew."""

KEYS_AT_ONCE = 256
"""So many keys are looked at before others get their turn: in one process an extender answers beside us."""


class Versioned(Protocol):
    """A record that says which resource version it was read from; empty: none of an API server."""

    @property
    def resource_version(self) -> str: ...  # noqa: D102


K = TypeVar("K")
R = TypeVar("R", bound=Versioned)
T = TypeVar("T", bound=Object)


def version_number(resource_version: str) -> int:
    """A resource version as a number that grows with time (Kubernetes KEP-5504); 0 for what is none."""
    return int(resource_version) if resource_version.isascii() and resource_version.isdigit() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Generic[R]):
    """What the API server said of a key.

    Attributes:
        record: What stands for the object; None if it said that there is none.
        version: The resource version of which it is true: the object's own, or that of a whole list.
        at: When it was said, as monotonic time.
        applied: Up to which revision the bucket was known when it was asked, or told it by itself.
    """

    record: R | None
    version: int
    at: float
    applied: int


class Step(Enum):
    """What is to be done about a key."""

    LEAVE = auto()
    WRITE = auto()
    WAIT = auto()
    """They differ, and the bucket may know better."""


def next_step(told: Told[R] | None, stored: Stored[R], *, same: bool) -> Step:
    """What to do about a key of which the API server said `told` (None: nothing yet), with `stored` in the bucket.

    `same` says whether what stands is what should stand.
    """
    if same:
        return Step.LEAVE
    if told is None:
        return Step.WAIT if stored.present else Step.LEAVE  # another replica may have heard of it before us
    later = stored.revision > told.applied
    if stored.record is None:
        # A deletion does not say as of which version. One that came after what we were told may be of a later one.
        return Step.WAIT if later else Step.WRITE
    version = version_number(stored.record.resource_version)
    if version > told.version or (version == told.version and later):
        return Step.WAIT
    return Step.WRITE


@dataclass(slots=True)
class _Bucket(Generic[K, R]):
    """What is known in one life of the bucket."""

    epoch: Epoch | None = None
    told: dict[K, Told[R]] = field(default_factory=dict)
    dirty: dict[K, None] = field(default_factory=dict)  # in the order in which they became so
    waiting: dict[K, float] = field(default_factory=dict)


def _settle(now: _Bucket[K, R], key: K) -> None:
    """The bucket says of the key what was told."""
    now.dirty.pop(key, None)
    now.waiting.pop(key, None)
    told = now.told.get(key)
    if told is not None and told.record is None:
        del now.told[key]


class Mirror(Generic[T, K, R]):
    """One resource in one bucket.

    `record_of` gives an object's key and record, or None for one that has none. `on_written` comes for each write with
    the record (None for a deletion) and what stood there before. With `forget_seconds` that a key was there is let go
    some time after its deletion: for objects that come and go without end.
    """

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        resource: Resource[T],
        kind: RecordKind[K, R],
        *,
        record_of: Callable[[T], tuple[K, R] | None],
        on_written: Callable[[K, R | None, R | None], None],
        label_selector: str = "",
        forget_seconds: float | None = None,
        by: str,
    ) -> None:
        self._bus = bus
        self._resource = resource
        self._kind = kind
        self._record_of = record_of
        self._by = by
        self._forget_seconds = forget_seconds
        self._records = Records(
            bus,
            kind,
            on_epoch=self._begin_epoch,
            on_entry=self._note,
            on_batch=self._wake_up,
            on_written=on_written,
        )
        self._reflector = Reflector(
            client,
            resource,
            on_list=self._listed,
            on_change=self._changed,
            before_list=self._before_list,
            label_selector=label_selector,
        )
        self._now: _Bucket[K, R] = _Bucket()
        self._asked_in: tuple[Epoch | None, int] = (None, 0)  # where the bucket stood when the list was asked for
        self._wake = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._synced_list = 0
        self._synced_epoch: Epoch | None = None
        self._failure: str | None = None
        self._next_list_at = float("-inf")
        self._list_wait = LIST_AGAIN_SECONDS[0]
        self._lines = Throttle()

    def __len__(self) -> int:
        """How many objects the API server has."""
        return sum(told.record is not None for told in self._now.told.values())

    def records(self) -> Iterator[tuple[K, R]]:
        """What should stand, as the API server said last."""
        return ((key, told.record) for key, told in self._now.told.items() if told.record is not None)

    def unready(self) -> str | None:
        """Why the bucket may not be as the API server says."""
        name = self._kind.bucket.name
        if self._reflector.problem is not None and self._records.caught_up:
            return f"{self._resource}: {self._reflector.problem}"
        if self._synced_epoch is not None and self._synced_epoch is self._records.epoch:
            return None
        if not self._records.caught_up:
            return f"{name}: not caught up with the bus"
        return f"{name}: {self._failure or 'not all written yet'}"

    async def run(self) -> None:
        """Follows until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._records.run())
            tasks.create_task(self._reflector.run())
            tasks.create_task(self._reconcile())
            if self._forget_seconds is not None:
                tasks.create_task(self._forget_deleted(self._forget_seconds))

    # What the bucket says

    def _begin_epoch(self) -> None:
        self._now.epoch = None
        self._now.dirty.clear()
        self._now.waiting.clear()
        self._reflector.list_again()

    def _note(self, key: K) -> None:
        self._now.dirty[key] = None
        self._wake.set()

    def _wake_up(self) -> None:
        if self._records.caught_up:
            self._caught_up.set()
        self._wake.set()

    # What the API server says

    async def _before_list(self) -> None:
        """What stands has to be known before the list: only so the list can say what has to go."""
        while not self._records.caught_up:
            self._caught_up.clear()
            await self._caught_up.wait()
        self._asked_in = (self._records.epoch, self._records.applied)

    def _listed(self, listing: Listing[T]) -> None:
        at = time.monotonic()
        epoch, applied = self._asked_in
        version = version_number(listing.resource_version)
        told: dict[K, Told[R]] = {}
        for each in listing.items:
            found = self._record_of(each)
            if found is not None:
                told[found[0]] = Told(record=found[1], version=version, at=at, applied=applied)
        for key, stored in self._records.stored.items():
            if key not in told and stored.present:
                told[key] = Told(record=None, version=version, at=at, applied=applied)
            if stored.record is not None and stored.revision <= applied and key in told:
                # Who wrote it had read a version that this later list does not know: the API server has begun anew
                # from an earlier state, and the list is right.
                known = version_number(stored.record.resource_version)
                if known > version:
                    told[key] = Told(record=told[key].record, version=known, at=at, applied=stored.revision)
        self._now = _Bucket(epoch=epoch, told=told, dirty=dict.fromkeys(told))
        self._wake.set()

    def _changed(self, change: Change[T]) -> None:
        found = self._record_of(change.object)
        if found is None:
            return
        key, record = found
        self._now.told[key] = Told(
            record=None if change.type is ChangeType.DELETED else record,
            version=version_number(change.resource_version),
            at=time.monotonic(),
            applied=self._records.applied,
        )
        self._note(key)

    # Making the bucket the same

    async def _reconcile(self) -> None:
        """A pass at each wake. Runs until cancelled."""
        wait, longest = RETRY_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS if self._now.waiting else None):
                    await self._wake.wait()
            self._wake.clear()
            if await self._pass():
                wait, _ = RETRY_SECONDS
            else:
                await asyncio.sleep(wait)
                wait = min(2 * wait, longest)
                self._wake.set()

    async def _pass(self) -> bool:
        """Writes what differs. Returns whether all stands that should."""
        now, listed = self._now, self._reflector.listed
        if now.epoch is None or now.epoch is not self._records.epoch:
            return True  # whoever changes that wakes us
        told = await self._differing(now)
        writes = {
            key: Write(record=each.record, revision=self._records.get(key).revision, read_at=each.at)
            for key, each in told.items()
        }
        failures = await self._records.write(writes)
        for key in told.keys() - failures.keys():
            if now.told.get(key) is told[key]:  # nothing else was told meanwhile
                _settle(now, key)
        self._list_if_overdue(now)
        if failures:
            self._take_failures(failures, len(writes))
            return False
        return now is not self._now or await self._say_synced(now, listed)

    async def _differing(self, now: _Bucket[K, R]) -> dict[K, Told[R]]:
        """What is to be written; of the rest is noted what agrees, and what has to wait."""
        differing: dict[K, Told[R]] = {}
        for number, key in enumerate(list(now.dirty), 1):
            if number % KEYS_AT_ONCE == 0:
                await asyncio.sleep(0)
            told, stored = now.told.get(key), self._records.get(key)
            step = next_step(told, stored, same=self._same(key, told, stored))
            if step is Step.WRITE and told is not None:
                differing[key] = told
            elif step is Step.WAIT:
                now.waiting.setdefault(key, time.monotonic())
                now.dirty.pop(key, None)
            else:
                _settle(now, key)
        return differing

    def _same(self, key: K, told: Told[R] | None, stored: Stored[R]) -> bool:
        if told is None or told.record is None:
            return told is not None and not stored.present
        if stored.record is None:
            return False
        # That it was read from a later version changes nothing of what it says.
        as_read_before = msgspec.structs.replace(told.record, resource_version=stored.record.resource_version)  # type: ignore[type-var]
        return self._kind.same(key, as_read_before, stored.record)

    def _list_if_overdue(self, now: _Bucket[K, R]) -> None:
        """Asks for a complete list where waiting alone did not help."""
        monotonic = time.monotonic()
        if now.waiting and monotonic > self._next_list_at and monotonic - min(now.waiting.values()) > GRACE_SECONDS:
            shortest, longest = LIST_AGAIN_SECONDS
            wait = shortest if monotonic - self._next_list_at > longest else min(2 * self._list_wait, longest)
            self._ask_for_list("the bucket does not say what the API server said", wait)

    def _ask_for_list(self, reason: str, wait: float) -> None:
        """Asks for a list, and for no other within the next `wait` seconds."""
        log.info("watch_lists_again", bucket=self._kind.bucket.name, resource=str(self._resource), reason=reason)
        self._next_list_at, self._list_wait = time.monotonic() + wait, wait
        self._reflector.list_again()

    def _take_failures(self, failures: dict[K, BusError], of: int) -> None:
        expired = [error for error in failures.values() if isinstance(error, ExpiredError)]
        if expired and time.monotonic() > self._next_list_at:
            self._ask_for_list(f"what it said is more than {WRITE_SECONDS:g} s old", LIST_AGAIN_SECONDS[0])
        others = [error for error in failures.values() if not isinstance(error, ConflictError | ExpiredError)]
        if others:
            self._tell_failure(f"{len(failures)} of {of} records not written: {others[0]}")

    async def _say_synced(self, now: _Bucket[K, R], listed: int) -> bool:
        """Says that all of a list stands, once for each list. Returns whether it is said."""
        self._failure = None
        if self._synced_list == listed or now.epoch is None:
            return True
        try:
            await write_synced(self._bus, self._kind.bucket, now.epoch, count=len(self), by=self._by, cluster=True)
        except ConflictError:
            return False  # another replica has just said it, or something else
        except BusError as error:
            self._tell_failure(f"{SYNCED} not written: {error}")
            return False
        self._synced_list = listed
        if self._synced_epoch is not now.epoch:
            self._synced_epoch = now.epoch
            log.info("watch_synced", bucket=self._kind.bucket.name, resource=str(self._resource), count=len(self))
        return True

    # Letting go of what is deleted

    async def _forget_deleted(self, every: float) -> None:
        """Lets go of keys that were deleted at the last look already. Runs until cancelled."""
        deleted: dict[K, Stored[R]] = {}
        while True:
            await asyncio.sleep(every)
            try:
                for key, stored in deleted.items():
                    if self._records.get(key) is stored and key not in self._now.told:
                        await self._records.forget(key)
            except BusError as error:
                held_back = self._lines.admit("forget", time.monotonic())
                if held_back is not None:
                    log.warning(
                        "markers_not_removed",
                        bucket=self._kind.bucket.name,
                        error=str(error),
                        alike_before=held_back,
                    )
            deleted = {key: stored for key, stored in self._records.stored.items() if not stored.present}

    def _tell_failure(self, failure: str) -> None:
        self._failure = failure
        held_back = self._lines.admit("failure", time.monotonic())
        if held_back is not None:
            log.warning("records_not_written", bucket=self._kind.bucket.name, error=failure, alike_before=held_back)
