"""The loop of the brake (`tas.enforcing.brake`): it reads and writes BREAKERS, and waits.

Before a patch, `labels` asks for a permit. For a permit, what is known of BREAKERS is made current
(`workers.labels.breaker_records`). The nodes that are asked for are admitted in rounds. A round waits until no verdict
is outstanding that follows from the same change as others (`tas.verdict.outstanding`): the breaker counts the nodes
that want a label, so it must know all of them first.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf

import structlog
from prometheus_client import CollectorRegistry, Gauge

from bus.buckets import BREAKERS, VERDICTS
from bus.connection import Bus
from bus.errors import BusError, ConflictError
from tas.enforcing.brake import FLAP_SECONDS, FLAPS, Brake, BrakeSettings, Permit
from tas.verdict.outstanding import HOLD_SECONDS
from workers.kubernetes.reflector import Consumer
from workers.kubernetes.resources import LabelledNode
from workers.labels.breaker_records import BreakerRecords, all_of
from workers.process.logs import ThrottledLog
from workers.process.tasks import set_within, together
from workers.reconcile.inputs import Inputs
from workers.reconcile.lease_first import LeaseFirst
from workers.reconcile.node_patches import NodeLabels

log = structlog.get_logger("labels")

BATCH_SECONDS = 0.002
"""The wait before a round for each node of the last round: so a burst of nodes shares few rounds."""

LONGEST_BATCH_SECONDS = 0.1
"""The longest wait before a round."""

TIDY_SECONDS = 10.0
"""How often the lease holder removes the nodes from the records that have left."""


class BrakeLoop:
    """Part of the worker `labels`.

    Nodes that are answered are added to the queue of `lease`, and all nodes when frozen labels may change again. After
    a loss of the records `nodes` lists all of them again. `on_change` is called after a burst of records.

    Attributes:
        state: What policies and nodes change.
    """

    def __init__(
        self,
        bus: Bus,
        settings: BrakeSettings,
        *,
        registry: CollectorRegistry,
        lease: LeaseFirst,
        nodes: Consumer[LabelledNode],
        inputs: Inputs,
        is_ready: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._lease = lease
        self._nodes = nodes
        self._inputs = inputs
        self._is_ready = is_ready
        self._on_change = on_change
        self._records = BreakerRecords(
            bus,
            registry=registry,
            new_bus_wait=settings.new_bus_wait,
            on_thaw=self.add_all,
            on_loss=self.lose_records,
            on_batch=self._note_batch,
        )
        self.state = Brake(settings, self._records)
        self._unhandled: set[str] = set()  # nodes whose verdict has changed, and that were not asked for since
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._throttled = ThrottledLog(log)
        self._export(registry)

    @property
    def flapping(self) -> int:
        """How many labels of a policy on a node have changed again and again."""
        return self.state.flapping(time.monotonic())

    def unready(self) -> str | None:
        """Why no permit is given yet."""
        return self._records.unready()

    def waiting(self) -> dict[str, int]:
        """By name of the policies, how many nodes wait for their turn to get their first label."""
        return self.state.waiting(time.monotonic())

    async def run(self) -> None:
        """Follows, answers, and tidies the records, until cancelled."""
        await together(self._records.run(), self._answer(), self._tidy())

    async def permit(self, name: str, node: NodeLabels, values: Mapping[str, str | None]) -> Permit:
        """Which of the changes `values` a patch of the state `node` may have: `Brake.permit`. Raises BusError."""
        await self._records.refresh(self.state.concerned(values))
        permit = self.state.permit(name, node.resource_version, node.labels, values, time.monotonic())
        for policy, seconds in permit.flapping.items():
            self._throttled.warning("label_flapping", (name, policy), node=name, policy=policy, seconds=round(seconds))
        if permit.is_asked:
            self._wake.set()
        return permit

    # Events

    def add_all(self) -> None:
        """Has all nodes handled again."""
        for name in self.state.nodes:
            self.add(name)

    def add(self, name: str) -> None:
        """Has a node handled again: its verdict has changed, or what is known beside it."""
        self._unhandled.add(name)
        self._changed.set()
        self._lease.add(name)

    def note_handled(self, name: str) -> None:
        """Applies that a node was handled by its verdict, or has failed, or is gone."""
        if name in self._unhandled:
            self._unhandled.discard(name)
            self._changed.set()

    def note_change(self) -> None:
        """Applies that something else has come from the bus."""
        self._changed.set()

    def begin_list(self, resource_version: str, asked_at: float) -> None:
        """Applies that all nodes are listed again; at `asked_at` (monotonic) the list was not requested yet."""
        self.state.begin_list(resource_version, asked_at)
        self._wake.set()

    def lose_records(self, seconds: float) -> None:
        """Applies a loss of the records: for so many seconds a patch for a lost admission may still arrive."""
        self.state.lose_records(time.monotonic() + seconds)
        asyncio.get_running_loop().call_later(seconds, self._nodes.relist)

    def _note_batch(self) -> None:
        self._on_change()
        self._changed.set()

    # Rounds

    async def _answer(self) -> None:
        """Answers the nodes that are asked for, in rounds. Never ends."""
        nodes, ended_at = 0, -inf
        while True:
            await set_within(self._wake, self.state.retry_after(time.monotonic()))
            due = ended_at + min(LONGEST_BATCH_SECONDS, nodes * BATCH_SECONDS)
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            self._wake.clear()
            if not self.state.asked:
                continue
            nodes, answers = self.state.end_round(is_answered=await self._round())
            ended_at = time.monotonic()
            for node, after in answers.items():
                self._lease.queue.add(node, after=after)

    async def _round(self) -> bool:
        """Admits the nodes that are asked for. Returns whether all is written."""
        try:
            await self._settle()
            policies = self.state.begin_round()
            await self._records.restore()
            await self._records.refresh(policies)
            if self._is_ready():
                changed = self.state.admit(now=time.monotonic(), clock=time.time())
                await all_of(*(self._records.write(key, breaker) for key, breaker in changed.items()))
        except ConflictError as error:  # another replica was first
            log.debug("breaker_not_written", error=str(error))
            self._wake.set()
            return False
        except BusError as error:
            self._throttled.warning("breaker_not_written", error=str(error))
            return False
        return True

    async def _settle(self) -> None:
        """Waits until no verdict is outstanding, until the first node has waited `HOLD_SECONDS`. Raises BusError."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self.state.asked_since + HOLD_SECONDS - time.monotonic())):
                    await self._until_settled()
        finally:
            self.state.end_hold()

    async def _until_settled(self) -> None:
        """Returns when nothing is outstanding. Raises BusError.

        Three steps are in this order, since `evaluate` ends an announcement after it has stored the verdicts, and a
        node is asked for after its verdict has come.
        """
        while True:
            verdicts, breakers = await asyncio.gather(self._bus.epoch(VERDICTS), self._bus.epoch(BREAKERS))
            while not (self._inputs.verdicts.status.has_all(verdicts) and self._records.has_all(breakers)):
                await self._until_changed()
            if not self._is_announced() and not self._unhandled:
                return
            self._hold()
            while self._is_announced():
                await self._until_changed(self._records.outstanding_until(now := time.monotonic()) - now)
            while self._unhandled:
                await self._until_changed()

    def _hold(self) -> None:
        """Has the nodes handled once more: while they wait, their labels of other policies may change."""
        if not self.state.is_holding:
            self.state.hold()
            for node in self.state.asked:
                self._lease.queue.add(node)

    def _is_announced(self) -> bool:
        return self._records.outstanding_until(now := time.monotonic()) > now

    async def _until_changed(self, seconds: float | None = None) -> None:
        self._changed.clear()
        await set_within(self._changed, seconds)

    async def _tidy(self) -> None:
        """Removes what is no longer needed from the records. Never ends."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            try:
                for key in self._records.breakers:
                    # Asked for each: without the policies a breaker that has tripped would seem to be of none.
                    if self._lease.held and self._is_ready():
                        await self._records.replace(key, partial(self.state.without_left, key))
            except BusError as error:
                log.debug("breaker_not_written", error=str(error))

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
        waiting.labels("verdicts").set_function(lambda: len(self.state.asked) if self.state.is_holding else 0)
        waiting.labels("rate").set_function(lambda: sum(self.waiting().values()))
        labelled = gauge("tas_labelled_nodes", "Nodes with labels of policies; NaN before the first list of nodes.")
        labelled.set_function(lambda: self.state.labelled)
