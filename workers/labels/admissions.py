"""Admissions: which nodes the breakers admit, in rounds; and which nodes leave the breakers.

All nodes that are asked for meanwhile share one round: they are admitted by one conditional write for each record, and
are added to the work queue again. An admission lasts: nodes of a large round that wait for their patch ask only once.

A round waits until no verdict is outstanding that may follow from the same change (`workers.labels.settling`).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf

import structlog

from bus.buckets import PAUSED
from bus.errors import BusError, ConflictError
from tas.enforcing.breaker import LabelledNodes, admit, without_leavers
from tas.enforcing.limits import IN_FLIGHT_SECONDS, Limits
from tas.verdict.brake import ALL, Breaker, Trip
from tas.verdict.outstanding import HOLD_SECONDS
from workers.labels.breaker_records import BreakerRecords, all_of
from workers.labels.settling import Settling
from workers.process.logs import ThrottledLog

log = structlog.get_logger("labels")

BATCH_SECONDS = 0.002
"""The wait before a round for each node of the last round: so a burst of nodes shares few rounds."""

LONGEST_BATCH_SECONDS = 0.1
"""The longest wait before a round."""

RETRY_SECONDS = 0.5
"""The wait after a round that failed because of the bus."""

PATIENCE_SECONDS = 1.0
"""A breaker trips after the limit was exceeded for so long: nodes that recover at the same time leave the set first.
Until then the nodes wait."""

BEHIND_SECONDS = 0.1
"""The wait for the watch, if another replica has admitted a node at a later version."""

TIDY_SECONDS = 10.0
"""How often the lease holder removes the nodes from the records that have left."""


@dataclass(slots=True)
class _Asked:
    """A node that is asked for, since when, at which version, for which policies, and which breakers must admit it."""

    since: float
    version: int
    policies: frozenset[str]
    admissions: frozenset[str]  # names of policies, and `ALL`


class Admissions:
    """Part of the brake.

    `on_answer` is called for each node after a round, with seconds to wait; `relist` has all nodes listed again.

    Attributes:
        is_holding: Whether the round waits for outstanding verdicts.
    """

    def __init__(
        self,
        records: BreakerRecords,
        limits: Limits,
        seen: LabelledNodes,
        settling: Settling,
        *,
        on_answer: Callable[[str, float], None],
        relist: Callable[[], None],
        is_ready: Callable[[], bool],
        is_active: Callable[[], bool],
    ) -> None:
        self._records = records
        self._limits = limits
        self._seen = seen
        self._settling = settling
        self.is_holding = False
        self._on_answer = on_answer
        self._relist = relist
        self._is_ready = is_ready
        self._is_active = is_active
        self._admit_at = -inf
        self._is_relisted = True
        self._asked: dict[str, _Asked] = {}
        self._in_round: dict[str, _Asked] = {}
        self._full: dict[str, tuple[float, float]] = {}  # the first and the last attempt beyond the limit, by key
        self._wake = asyncio.Event()
        self._throttled = ThrottledLog(log)

    async def run(self) -> None:
        """Answers, and tidies the records, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._answer())
            tasks.create_task(self._tidy())

    @property
    def held(self) -> int:
        """How many nodes wait for outstanding verdicts."""
        return len(self._asked) if self.is_holding else 0

    def ask(self, node: str, version: int, policies: Collection[str], admissions: Collection[str]) -> None:
        """Asks that these breakers admit a node at a version of the node, for labels of these policies."""
        known = self._asked.get(node)
        since = time.monotonic() if known is None else known.since
        self._asked[node] = _Asked(since, version, frozenset(policies), frozenset(admissions))
        self._wake.set()

    def withdraw(self, node: str) -> None:
        """Asks for a node no more: it needs no admission any more."""
        self._asked.pop(node, None)
        self._in_round.pop(node, None)

    def note_loss(self, seconds: float | None = None) -> None:
        """Applies a loss of the records: the labels of all nodes are the only record of what was admitted.

        For so many seconds from now on a patch for a lost admission may still arrive; by default `IN_FLIGHT_SECONDS`.
        """
        wait = IN_FLIGHT_SECONDS if seconds is None else seconds
        self._admit_at, self._is_relisted = time.monotonic() + wait, False
        asyncio.get_running_loop().call_later(wait, self._relist)

    def note_list(self) -> None:
        """Applies that all nodes are listed again."""
        self._is_relisted |= time.monotonic() >= self._admit_at
        self._wake.set()

    async def _answer(self) -> None:
        """Answers the nodes that are asked for, in rounds. Never ends."""
        nodes, ended_at = 0, -inf
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._retry_after()):
                    await self._wake.wait()
            due = ended_at + min(LONGEST_BATCH_SECONDS, nodes * BATCH_SECONDS)
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            self._wake.clear()
            if not self._asked:
                continue
            is_answered = True
            try:
                await self._settle()
                self._in_round, self._asked = self._asked, {}
                await self._round(self._in_round)
            except ConflictError as error:  # another replica was first
                log.debug("breaker_not_written", error=str(error))
                is_answered = False
                self._wake.set()
            except BusError as error:
                self._throttled.warning("breaker_not_written", error=str(error))
                is_answered = False
            asked, self._in_round = self._in_round, {}
            nodes, ended_at = len(asked), time.monotonic()
            for node, each in asked.items():
                if not is_answered or self._has_to_wait(each):
                    # They stay together: if they were asked for anew, one after the other, the first ones had room.
                    self._asked.setdefault(node, each)
                else:
                    self._on_answer(node, self._wait(node, each))

    def _has_to_wait(self, asked: _Asked) -> bool:
        """Whether no breaker may admit a node yet, or one has no room for it, but may still trip."""
        if asked.admissions and not self._is_relisted:
            return True
        return any(key in self._full and not self._records.freezes(key) for key in asked.admissions)

    def _retry_after(self) -> float | None:
        """Seconds until the next round of the nodes that wait; None: there are none."""
        if not self._asked:
            return None
        return RETRY_SECONDS if self._is_relisted else max(RETRY_SECONDS, self._admit_at - time.monotonic())

    async def _settle(self) -> None:
        """Waits for outstanding verdicts: until the first node that is asked for has waited `HOLD_SECONDS`.

        Raises BusError.
        """
        since = min((each.since for each in self._asked.values()), default=-inf)
        try:
            await self._settling.settled(since + HOLD_SECONDS, on_hold=self._hold)
        finally:
            self.is_holding = False

    def _hold(self) -> None:
        """Has the nodes handled once more: while they wait, their labels of other policies may change."""
        self.is_holding = True
        for node in self._asked:
            self._on_answer(node, 0.0)

    def _wait(self, node: str, asked: _Asked) -> float:
        """Seconds until a node is worth another attempt after a round."""
        is_behind = any(self._records.breaker(key).nodes.get(node, 0) > asked.version for key in asked.admissions)
        return BEHIND_SECONDS if is_behind else 0.0

    async def _round(self, asked: Mapping[str, _Asked]) -> None:
        """Admits the nodes by the records that they need. Raises BusError; some may be admitted then."""
        records = self._records
        await records.restore()
        policies = frozenset[str]().union(*(each.policies for each in asked.values()))
        await records.refresh(policies)
        if records.freezes(PAUSED) or records.freezes(ALL) or not (self._is_relisted and self._is_ready()):
            return
        wanted: dict[str, dict[str, int]] = {}
        for node, each in asked.items():
            for key in each.admissions:
                wanted.setdefault(key, {})[node] = each.version
        over_all = wanted.pop(ALL, {})
        changed = self._admitted(wanted)
        open_policies = {
            policy
            for policy in policies
            if not records.freezes(policy) and (policy not in wanted or changed.get(policy, _TRIPPED).trip is None)
        }
        over_all = {node: version for node, version in over_all.items() if asked[node].policies & open_policies}
        if over_all:
            changed |= self._admitted({ALL: over_all})
            if changed.get(ALL, _TRIPPED).trip is not None:  # only trips are written, no admissions
                changed = {key: breaker for key, breaker in changed.items() if breaker.trip is not None}
        await all_of(*(records.write(key, breaker) for key, breaker in changed.items()))

    def _admitted(self, wanted: Mapping[str, Mapping[str, int]]) -> dict[str, Breaker]:
        """The breakers to write for the nodes wanted by key; none for a breaker that is full, but may still trip."""
        changed: dict[str, Breaker] = {}
        for key, nodes in wanted.items():
            limit = self._limits.of(key, self._seen)
            if self._records.freezes(key) or limit is None:
                self._full.pop(key, None)
                continue
            breaker = admit(
                self._records.breaker(key),
                nodes,
                limit=limit.nodes,
                selected=limit.selected,
                seen=self._seen,
                labelled=self._seen.labelled(key),
                now=time.time(),
            )
            if breaker.trip is None:
                self._full.pop(key, None)
                changed[key] = breaker
            elif self._is_over(key, time.monotonic()):
                del self._full[key]  # after a reset the nodes have as much time again
                changed[key] = breaker
        return changed

    def _is_over(self, key: str, now: float) -> bool:
        """Whether the limit has been exceeded for `PATIENCE_SECONDS`, in attempts without a long break."""
        since, last = self._full.get(key, (now, now))
        if now - last > 4 * PATIENCE_SECONDS:
            since = now
        self._full[key] = since, now
        return now - since >= PATIENCE_SECONDS

    async def _tidy(self) -> None:
        """Removes what is no longer needed from the records. Never ends."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            try:
                if self._is_active():
                    for key in self._records.breakers:
                        await self._records.replace(key, partial(self._left, key))
            except BusError as error:
                log.debug("breaker_not_written", error=str(error))

    def _left(self, key: str, breaker: Breaker) -> Breaker | None:
        """A breaker without the nodes that have left; None if nothing needs its record."""
        left = without_leavers(breaker, self._seen, self._seen.labelled(key))
        return None if key != ALL and not left.nodes and not self._limits.is_policy(key) else left


_TRIPPED = Breaker(trip=Trip(since=0.0, limit=0, wanted=0, selected=0))
