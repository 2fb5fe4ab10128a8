"""The metrics that policies use, followed on the bus: sources are polled for these only."""

import asyncio
from collections.abc import Collection, Mapping

from bus.connection import Bus
from bus.kinds import POLICY_RECORDS
from bus.record_kind import Entry
from bus.records.policies import PolicyRecord
from bus.records.synced import Synced
from tas.policy.policy import PolicyKey
from tas.values.window import window_of
from tas.verdict.status import MetricUse, metrics_of
from tas.view.epoch_keys import EpochKeys
from workers.following.synced import SyncedWatch
from workers.process.tasks import set_within

WINDOWS = "windows"
"""The source of the statistics that the worker `windows` computes."""


class WantedMetrics:
    """The metrics in all policies. After a wipe of the bus they stay the same until the new list is complete.

    The metrics of a suspended policy are included: values are available at once when it is resumed, and its status
    shows whether its metrics are seen.

    Attributes:
        version: The number of changes so far.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        default_stale_after: float,
        always: Collection[str] = (),
        computing: Collection[str] = (),
    ) -> None:
        """The metrics `always` are wanted from every source, whatever policies use.

        The sources `computing` compute statistics of windows themselves.
        """
        self._computing = frozenset(computing)
        self._default_stale_after = default_stale_after
        self._always = frozenset(always)
        self._uses: dict[PolicyKey, Mapping[MetricUse, float]] = {}
        self._found: dict[str, Mapping[str, float]] = {}  # by source, until the next change
        self._policy_keys: EpochKeys[PolicyKey] = EpochKeys()
        self._known = asyncio.Event()
        self._changed = asyncio.Event()
        self.version = 0
        self._watch = SyncedWatch(
            bus,
            POLICY_RECORDS.to(self._apply),
            on_epoch=lambda epoch: self._policy_keys.start_epoch(epoch.created),
            on_complete=self._complete,
        )

    def unready(self) -> str | None:
        """Why the metrics are not known yet; None after the first complete list."""
        return None if self._known.is_set() else self._watch.unready()

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._watch.run()

    def of(self, source: str) -> Mapping[str, float]:
        """The metrics that policies read from a source or from any, and those always wanted.

        Of a statistic of a window a source brings the metric itself, from which `windows` computes the statistic,
        unless the source is in `computing`, and the policy does not ask for the source `windows`.
        They are known once `wait_until_known` has returned.

        With each metric the longest time in seconds after which a policy counts its samples as stale.
        """
        if source not in self._found:
            self._found[source] = self._find(source)
        return self._found[source]

    def _find(self, source: str) -> dict[str, float]:
        found: dict[str, float] = {}

        def want(metric: str, of: str, stale_after: float) -> None:
            window = window_of(metric)
            if window is not None and (source not in self._computing or of == WINDOWS) and source != WINDOWS:
                metric, of = window.metric, "" if of == WINDOWS else of
            if of in ("", source):
                found[metric] = max(stale_after, found.get(metric, 0.0))

        for metric in self._always:
            want(metric, "", self._default_stale_after)
        for uses in self._uses.values():
            for use, stale_after in uses.items():
                want(use.metric, use.source, stale_after)
        return found

    def namespaces(self, source: str) -> Mapping[str, frozenset[str]]:
        """The namespaces of the policies that read each metric from a source or from any; none if always wanted."""
        found: dict[str, set[str]] = {}
        for key, uses in self._uses.items():
            for use in uses:
                if use.source in ("", source):
                    found.setdefault(use.metric, set()).add(key.namespace)
        return {metric: frozenset() if metric in self._always else frozenset(each) for metric, each in found.items()}

    async def wait_until_known(self) -> None:
        """Waits for the first complete list of policies."""
        await self._known.wait()

    async def wait_for_change(self, *, after: int, seconds: float) -> None:
        """Returns when `version` differs from `after`, or after `seconds`."""
        if self.version != after:
            return
        await set_within(self._changed, max(0.0, seconds))

    def _apply(self, entry: Entry[PolicyKey, PolicyRecord]) -> None:
        key = entry.key
        if not entry.present:
            self._policy_keys.discard(key)
            self._set_uses(key, {})
            return
        self._policy_keys.add(key)
        record = entry.readable()
        if record is not None:
            stale_after = record.policy.stale_after_or(self._default_stale_after)
            self._set_uses(key, dict.fromkeys(metrics_of(record.policy), stale_after))

    def _complete(self, synced: Synced) -> None:
        for key in self._policy_keys.complete_epoch(synced.epoch, self._uses.keys()):
            self._set_uses(key, {})
        self._known.set()
        self._notify()

    def _set_uses(self, key: PolicyKey, uses: Mapping[MetricUse, float]) -> None:
        if self._uses.get(key, {}) == uses:
            return
        if uses:
            self._uses[key] = uses
        else:
            del self._uses[key]
        self._notify()

    def _notify(self) -> None:
        self.version += 1
        self._found.clear()
        self._changed.set()
        self._changed = asyncio.Event()
