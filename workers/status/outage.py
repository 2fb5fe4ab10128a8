"""Says in the status of each policy that the bus cannot be reached: whoever else writes it reads the bus.

Each replica may do it, since the lease of the others is on the bus, too. One policy is the first. If another replica
writes its status again, only this replica has lost the bus, and it writes no more until the bus has answered it. Each
time that the bus was away each policy gets at most one patch by a replica. Why so:
docs/decisions/2026-11-29-status-without-a-bus.md.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf

import structlog

from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import LEASE_RECORDS
from bus.lease import LEASE_SECONDS
from bus.ticks import tick
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.verdict.status import says_bus_unreachable, status_without_bus
from workers.kubernetes.client import Change, ChangeType, Listing
from workers.kubernetes.reflectors import Reflectors
from workers.kubernetes.resources import PolicyObject
from workers.status.patches import StatusPatches, Unpatched

log = structlog.get_logger("status")

LEASE_KEY = "status"

OUTAGE_SECONDS = 25.0
"""So long the bus must be away: a restart of nats-server, or of one of three, takes less."""

STANDBY_SECONDS = 10.0
"""So much later a replica begins that did not have the lease: then there is mostly nothing left to write."""

FIRST_SECONDS = 10.0
"""How long the first patch waits for another replica to undo it. With the lease, one takes `PATCH_SECONDS` and less."""

BACK_SECONDS = 5.0
"""So long the bus must answer again until the outage is over: a bad network comes and goes."""

HELD_SECONDS = float(LEASE_SECONDS)
"""A lease that was not renewed for so long is held by nobody."""

CHECK_SECONDS = 0.5
RETRY_SECONDS = 5.0
"""The pause after a patch that failed."""


class Outage:
    """Since when the bus has been away, in seconds of any clock."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._back: float | None = None

    def seconds(self, now: float, *, reachable: bool) -> float:
        """For how long the bus has been away; 0 if it is not, which takes `BACK_SECONDS` to be true again."""
        if not reachable:
            self._since, self._back = now if self._since is None else self._since, None
        elif self._back is None:
            self._back = now
        if self._back is not None and now - self._back >= BACK_SECONDS:
            self._since = None
        return 0.0 if self._since is None else now - self._since


def fewest_failures_first(keys: Iterable[PolicyKey], failures: Mapping[PolicyKey, int]) -> list[PolicyKey]:
    """The policies in the order in which they are tried: one that the API server always refuses holds up no other."""
    return sorted(keys, key=lambda key: (failures.get(key, 0), key))


class StatusWithoutBus:
    """A part of `PolicyStatus`, which runs beside it."""

    def __init__(
        self,
        bus: Bus,
        patches: StatusPatches,
        reflectors: Reflectors,
        *,
        had_lease: Callable[[], bool],
    ) -> None:
        """`had_lease`: whether this replica wrote the statuses last."""
        self._bus = bus
        self._patches = patches
        self._had_lease = had_lease
        self._policies: dict[PolicyKey, PolicyObject] = {}
        self._written: set[str] = set()  # uids
        self._failures: dict[PolicyKey, int] = {}  # of this outage
        self._is_undone = False
        self._seen: int | None = None  # the revision of the lease
        self._renewed_at = -inf
        self._objects = reflectors.policies.consumer(on_list=self._listed, on_change=self._change)

    async def run(self) -> None:
        """Runs until cancelled."""
        outage = Outage()
        while True:
            await tick(CHECK_SECONDS)
            limit = OUTAGE_SECONDS + (0.0 if self._had_lease() else STANDBY_SECONDS)
            if await self._away(outage) >= limit:
                await self._say_it(outage)

    async def _away(self, outage: Outage) -> float:
        return outage.seconds(time.monotonic(), reachable=await self._is_reachable())

    async def _is_reachable(self) -> bool:
        """Whether the bus answers right now."""
        return self._answers or (self._bus.connected and await self._is_held())

    @property
    def _answers(self) -> bool:
        """As `_is_reachable`, but without a call: a bus that gives no answer would hold up each policy."""
        return self._bus.connected and (not self._bus.unavailable or LEASE_KEY in self._bus.leases)

    async def _is_held(self) -> bool:
        """Whether somebody renews the lease, whatever else has no answer: a full disk is read, and takes no write."""
        try:
            revision = (await LEASE_RECORDS.get(self._bus, LEASE_KEY)).revision
        except BusError:
            return False
        if self._seen != revision:
            self._seen, self._renewed_at = revision, time.monotonic()
        return time.monotonic() - self._renewed_at < HELD_SECONDS

    async def _say_it(self, outage: Outage) -> None:
        """Writes until the bus is back."""
        log.warning("status_without_bus")
        try:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._objects.run())
                await self._write_until_back(outage)
                following.cancel()
        finally:
            self._policies.clear()
            self._written.clear()
            self._failures.clear()
            self._is_undone = False
            self._patches.forget()  # whoever has the lease writes now, and knows what fails

    async def _write_until_back(self, outage: Outage) -> None:
        listed, first_at = self._objects.listed, inf
        while await self._away(outage):
            await asyncio.sleep(CHECK_SECONDS)
            if await self._is_reachable():
                # Whoever writes a status meanwhile says nothing about the time when the bus is away again.
                first_at, self._is_undone = inf, False
                self._written.clear()
                continue
            if self._objects.listed == listed or self._is_undone:
                continue
            due = self._due()
            if first_at == inf and len(due) < len(self._policies):  # one says it
                first_at = time.monotonic()
            is_first = time.monotonic() < first_at + FIRST_SECONDS
            for key in due[:1] if first_at == inf else [] if is_first else due:
                if self._is_undone or self._answers:
                    break
                if not await self._write(key):
                    self._failures[key] = self._failures.get(key, 0) + 1
                    await asyncio.sleep(RETRY_SECONDS)
                    break

    def _due(self) -> list[PolicyKey]:
        due = (
            key
            for key, found in self._policies.items()
            if found.metadata.uid not in self._written and not says_bus_unreachable(found.status)
        )
        return fewest_failures_first(due, self._failures)

    async def _write(self, key: PolicyKey) -> bool:
        """Writes one status, unless it has changed since it was read. Returns whether there was an answer."""
        found = self._policies.get(key)
        if found is None:
            return True
        metadata, read_at = found.metadata, time.monotonic()
        policy, problems = parse_policy(key, found.spec)
        status = status_without_bus(
            policy, generation=metadata.generation, problems=problems, before=found.status, now=time.time()
        )
        after = await self._patches.send(metadata, status, spec=found.spec, read_at=read_at)
        if isinstance(after, PolicyObject):
            self._written.add(metadata.uid)
            if self._policies.get(key) is found:
                self._policies[key] = after
        return after is not Unpatched.FAILED

    def _listed(self, listing: Listing[PolicyObject]) -> None:
        self._policies.clear()
        for found in listing.items:
            self._take(found)

    def _change(self, change: Change[PolicyObject]) -> None:
        if change.type is ChangeType.DELETED:
            key = change.object.key
            self._policies.pop(key, None)
            self._failures.pop(key, None)
            self._patches.settle(key)
        else:
            self._take(change.object)

    def _take(self, found: PolicyObject) -> None:
        self._policies[found.key] = found
        is_changed = found.metadata.uid in self._written and not says_bus_unreachable(found.status)
        if is_changed and not (self._is_undone or self._answers):
            log.info("status_written_by_another", policy=str(found.key))
            self._is_undone = True
