"""The brake of `labels`: pause, breakers (`tas.enforcing.breaker`) and the flap budget.

Before a patch, `labels` asks for a permit. For a permit, what is known of BREAKERS is made current
(`workers.labels.breaker_records`). A node that gets its first label must be admitted; if it is not yet, it is *asked
for* (`workers.labels.admissions`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from math import inf, nan
from typing import NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Gauge

from bus.buckets import PAUSED
from bus.connection import Bus
from bus.record_kind import Entry
from bus.records.policies import PolicyRecord
from bus.watch import WatchStatus
from tas.enforcing.breaker import LabelledNodes, is_over, names_on, version_of
from tas.enforcing.label_rate import ALL_RATE, POLICY_RATE, LabelRate, Rate
from tas.enforcing.labels import policy_name
from tas.enforcing.limits import ALL_DEFAULT, POLICY_DEFAULT, DefaultLimit, KeptLimits, Limits
from tas.enforcing.memory import FlapBudget
from tas.policy.policy import PolicyKey
from tas.values.names import is_subdomain
from tas.verdict.brake import ALL
from workers.labels.admissions import Admissions
from workers.labels.breaker_records import BreakerRecords
from workers.labels.settling import Settling
from workers.process.logs import ThrottledLog
from workers.reconcile.node_patches import NodeLabels

log = structlog.get_logger("labels")

FLAP_SECONDS = 300.0
"""The time in which the changes of the flap budget are counted."""

FLAPS = 4
"""So many changes within this time are flapping: a label was set and removed twice."""


class BrakeSettings(NamedTuple):
    """The operator's limits: of a policy without its own, of all policies, and of changes of a policy on a node.

    `label_rate` and `label_rate_all` are how fast nodes get their first label of a policy, and of any policy.

    None or 0: no limit. `new_bus_wait`: for how many seconds after the creation of the bus no node gets its first
    label, since replicas that start now cannot know what was admitted on an earlier bus.
    """

    policy: DefaultLimit | None = POLICY_DEFAULT
    over_all: DefaultLimit | None = ALL_DEFAULT
    flap_budget: int = 20
    label_rate: Rate | None = POLICY_RATE
    label_rate_all: Rate | None = ALL_RATE
    new_bus_wait: float = 0.0


DEFAULTS = BrakeSettings()


class Permit(NamedTuple):
    """Which labels of a node may change now.

    `read_at` is the monotonic time of the oldest read behind this. `wait` are the seconds until the flap budget allows
    another label; None: no label waits for that. `is_asked`: the node waits to be admitted, and is handled again then.
    """

    labels: frozenset[str]
    read_at: float
    wait: float | None
    is_asked: bool


class Brake:
    """Part of the worker `labels`.

    `on_answer` is called for each node after a round, with seconds to wait; `on_thaw` when frozen labels may change
    again; `relist` has all nodes listed again; `verdicts` is the state of the watch of VERDICTS.

    Attributes:
        settling: What is known of outstanding verdicts.
    """

    def __init__(
        self,
        bus: Bus,
        settings: BrakeSettings,
        *,
        registry: CollectorRegistry,
        on_answer: Callable[[str, float], None],
        on_thaw: Callable[[], None],
        on_caught_up: Callable[[], None],
        relist: Callable[[], None],
        is_ready: Callable[[], bool],
        is_active: Callable[[], bool],
        verdicts: Callable[[], WatchStatus],
    ) -> None:
        self._on_thaw = on_thaw
        self._limits = Limits(settings.policy, settings.over_all)
        self._seen = LabelledNodes()
        self._flaps = FlapBudget(settings.flap_budget, seconds=FLAP_SECONDS)
        self._flapping = FlapBudget(FLAPS, seconds=FLAP_SECONDS)
        self._rate = LabelRate(settings.label_rate, settings.label_rate_all)
        self._kept_limits = KeptLimits(self._limits)
        self._throttled = ThrottledLog(log)
        self._records = BreakerRecords(
            bus,
            registry=registry,
            on_thaw=on_thaw,
            on_loss=self._note_loss,
            new_bus_wait=settings.new_bus_wait,
            on_caught_up=on_caught_up,
            on_batch=self._note_batch,
        )
        self.settling = Settling(bus, self._records, verdicts)
        self._admissions = Admissions(
            self._records,
            self._limits,
            self._seen,
            self.settling,
            on_answer=on_answer,
            relist=relist,
            is_ready=is_ready,
            is_active=is_active,
        )
        self._export(registry)

    @property
    def flapping(self) -> int:
        """How many labels of a policy on a node have changed again and again."""
        return self._flapping.exhausted(time.monotonic())

    def unready(self) -> str | None:
        """Why no permit is given yet."""
        return self._records.unready()

    async def run(self) -> None:
        """Follows and answers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._records.run())
            tasks.create_task(self._admissions.run())

    def waiting(self) -> dict[str, int]:
        """By name of the policies, how many nodes wait for their turn to get their first label."""
        return self._rate.waiting(time.monotonic())

    # What `labels` follows

    def take_in_policy(self, entry: Entry[PolicyKey, PolicyRecord]) -> None:
        """Applies a change of a policy."""
        self._kept_limits.forget(entry.key.name)
        if entry.present:
            record = entry.readable()
            self._limits.take_in(entry.key, None if record is None else record.policy)
        elif self._limits.drop(entry.key) and self._records.freezes(entry.key.name):
            self._on_thaw()  # a deleted policy freezes nothing
        self._seen.set_policy(entry.key.name, exists=self._limits.is_policy(entry.key.name))

    def forget_policies(self) -> None:
        """Forgets all policies, before a new complete list."""
        self._kept_limits.clear()
        self._limits.clear()
        self._seen.forget_policies()

    def begin_list(self, resource_version: str) -> None:
        """Begins a new complete list of nodes; `take_in_node` gets each of them."""
        self._seen.begin_list(version_of(resource_version))
        self._admissions.note_list()

    def take_in_node(self, name: str, node: NodeLabels) -> None:
        """Applies a state of a node."""
        for policy in self._seen.take_in(name, version_of(node.resource_version), node.labels):
            self._flaps.changed(name, policy, at=time.monotonic())
            self._flapping.changed(name, policy, at=time.monotonic())
            self._rate.end(name, policy, time.monotonic(), is_used=True)

    def drop_node(self, name: str, resource_version: str) -> None:
        """Applies the deletion of a node that the API server has shown at this version."""
        self._seen.drop(name, version_of(resource_version))
        self._admissions.withdraw(name)
        self._rate.keep(name, (), time.monotonic())
        self.settling.note_handled(name)
        self._flaps.forget(name)
        self._flapping.forget(name)

    def _export(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        flapping = gauge(
            "tas_labels_flapping",
            f"Labels of a policy on a node that have changed {FLAPS} times or more within {FLAP_SECONDS:g} seconds.",
        )
        flapping.set_function(lambda: self.flapping)
        waiting = gauge(
            "tas_labels_waiting",
            "Nodes that wait for their first label of a policy, for outstanding verdicts or for the rate.",
            ["reason"],
        )
        waiting.labels("verdicts").set_function(lambda: float(self._admissions.held))
        waiting.labels("rate").set_function(lambda: float(sum(self.waiting().values())))
        labelled = gauge("tas_labelled_nodes", "Nodes with labels of policies; NaN before the first list of nodes.")
        labelled.set_function(lambda: self._seen.with_labels if self._seen.version else nan)

    def _note_batch(self) -> None:
        self.settling.note_change()

    def _note_loss(self, seconds: float | None) -> None:
        self._admissions.note_loss(seconds)

    # Permits

    async def permit(self, name: str, node: NodeLabels, values: Mapping[str, str | None]) -> Permit:
        """Which of the changes `values` a patch of the state `node` may have. Raises BusError.

        If the node must be admitted first, it is asked for, and nothing may change until the answer: so all changes of
        a node are one patch. While it is asked for and verdicts are outstanding, only what needs the admission waits.
        """
        by_policy: dict[str, list[str]] = {}
        for label in values:
            policy = policy_name(label)
            by_policy.setdefault(policy if is_subdomain(policy) else "", []).append(label)
        await self._records.refresh([policy for policy in by_policy if not self._is_frozen(policy)])
        now = time.monotonic()
        allowed: set[str] = set()
        read_at, wait = inf, inf
        version, names = version_of(node.resource_version), names_on(node.labels)
        asked: set[str] = set()
        needed: set[str] = set()
        for policy, labels in by_policy.items():
            if self._is_frozen(policy):
                continue
            if (pause := self._flaps.wait(name, policy, at=now)) > 0:
                self._throttled.warning(
                    "label_flapping", (name, policy), node=name, policy=policy, seconds=round(pause)
                )
                wait = min(wait, pause)
                continue
            sets = any(values[label] is not None for label in labels)
            if sets and policy not in names and (pause := self._rate.pending(name, policy, now)) > 0:
                # Not asked for again: each patch of another label is a new version, for which breakers write once more.
                wait = min(wait, pause)
                continue
            admissions = self._limits.admitting(policy, node.labels, names) if sets else set()
            if all(self._is_admitted(key, name, version, now) for key in admissions):
                if sets and policy not in names and (pause := self._rate.wait(name, policy, now)) > 0:
                    wait = min(wait, pause)
                    continue
                allowed.update(labels)
                read_at = min(read_at, self._records.current_at(policy))
            else:
                asked.add(policy)
                needed |= admissions
        self._rate.keep(name, by_policy, now)
        if asked:
            self._admissions.ask(name, version, asked, needed)
        else:
            self._admissions.withdraw(name)
        return Permit(
            labels=frozenset() if asked and not self._admissions.is_holding else frozenset(allowed),
            read_at=read_at,
            wait=None if wait == inf else wait,
            is_asked=bool(asked),
        )

    def _is_admitted(self, key: str, name: str, version: int, now: float) -> bool:
        """Whether a breaker has admitted a node for a patch of this version, and the limit still has room for it."""
        breaker = self._records.breaker(key)
        if breaker.nodes.get(name) != version:
            return False
        limit = self._kept_limits.of(key, self._seen, now)
        return limit is None or not is_over(breaker, self._seen.unrecorded(key, breaker), limit.nodes)

    def _is_frozen(self, policy: str) -> bool:
        """Whether no label of a policy changes. Orphans of a deleted policy are not frozen by its breaker."""
        freezes = self._records.freezes
        return freezes(PAUSED) or freezes(ALL) or (self._limits.is_policy(policy) and freezes(policy))
