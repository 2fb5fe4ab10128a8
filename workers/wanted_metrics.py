"""Which metrics policies use, followed on the bus: sources are asked for these and for nothing else."""

import asyncio
from contextlib import suppress

import structlog

from bus.buckets import POLICIES
from bus.connection import Bus, Entry, Epoch
from bus.messages import Synced, decode_policy
from bus.subjects import parse_policy_key
from tas.epoch import Survivors
from tas.errors import InvalidInputError
from tas.policy import PolicyKey
from tas.status import MetricUse, metrics_of
from workers.synced import SyncedWatch

log = structlog.get_logger("collect")


class WantedMetrics:
    """What the rules of all policies read. Through a wipe of the bus it stays what it was, until a new list stands.

    A suspended policy counts as well: so there are values at once when it is resumed, and its status says whether
    its metrics are seen.

    Attributes:
        version: How often it has changed.
    """

    def __init__(self, bus: Bus) -> None:
        self._uses: dict[PolicyKey, frozenset[MetricUse]] = {}
        self._named: Survivors[PolicyKey] = Survivors()
        self._known = asyncio.Event()
        self._changed = asyncio.Event()
        self.version = 0
        self._watch = SyncedWatch(
            bus,
            POLICIES,
            on_entry=self._entry,
            on_epoch=self._begin,
            on_complete=self._complete,
            on_invalid=self._invalid,
        )

    def unready(self) -> str | None:
        """Why it is not known yet what policies use; None once it was known."""
        return None if self._known.is_set() else self._watch.unready()

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._watch.run()

    async def known(self) -> None:
        """Waits until the first complete list of policies has been taken in."""
        await self._known.wait()

    def of(self, source: str) -> frozenset[str]:
        """The metrics that are wanted of a source: of any source, or of this one by name. Empty while not known."""
        if not self._known.is_set():
            return frozenset()
        return frozenset(use.metric for uses in self._uses.values() for use in uses if use.source in ("", source))

    async def change(self, *, after: int, seconds: float) -> None:
        """Returns when this is not `version` any more, and at the latest after so long."""
        if self.version != after:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()

    def _begin(self, epoch: Epoch) -> None:
        self._named.begin(epoch.created)

    def _entry(self, entry: Entry) -> None:
        try:
            key = parse_policy_key(entry.key)
            if entry.value is None:
                self._named.unname(key)
                self._take(key, frozenset())
                return
            self._named.name(key)
            self._take(key, metrics_of(decode_policy(key, entry.value).policy))
        except InvalidInputError as error:
            self._invalid(error)

    def _complete(self, synced: Synced) -> None:
        for key in self._named.finish(synced.epoch, self._uses.keys()):
            self._take(key, frozenset())
        self._known.set()
        self._tell()

    def _take(self, key: PolicyKey, uses: frozenset[MetricUse]) -> None:
        if self._uses.get(key, frozenset()) == uses:
            return
        if uses:
            self._uses[key] = uses
        else:
            del self._uses[key]
        self._tell()

    def _tell(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _invalid(self, error: InvalidInputError) -> None:
        log.warning("entry_invalid", object=error.subject, field=error.field, value=error.value, reason=error.reason)
