"""The part of `inventory` that publishes what becomes of pods to OUTCOMES, for agents that learn.

One replica publishes. The others keep what they see, and publish what is newer than the log when they get the lease. So
an event may come again, and the server and the agents count it once. What nobody saw while no replica ran is lost, if
the API server does not show it any more: agents then know less, and nothing else happens.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from math import inf

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.connection import Bus
from bus.errors import BusError, ForbiddenError, FullError, RefusedError
from bus.outcomes import last_outcome_at, outcome_identity, publish_outcomes
from tas.allocation.pod import pod_totals
from tas.errors import InvalidInputError
from tas.outcomes.news import Event, News, PodNews, SeenPod
from tas.outcomes.outcome import Placed
from tas.values.names import is_subdomain
from workers.kubernetes.client import Change, ChangeType
from workers.kubernetes.followers import Gathered
from workers.kubernetes.resources import GpuPod, ObservedPod
from workers.process.logs import ThrottledLog
from workers.process.tasks import together

log = structlog.get_logger("outcomes")

GATHER_SECONDS = 0.25
"""The shortest time between two publications: a scheduler places hundreds of pods a second."""

LOOK_SECONDS = 5.0
"""How often runs are found that have lasted long enough."""

RETRY_SECONDS = 1.0
"""The wait after a failure of the bus."""

AT_ONCE = 256
"""How many events are published together."""

MAX_WAITING = 10_000
"""How many events wait for the bus, or for the lease; then the oldest are dropped."""

AGAIN_SECONDS = 30.0
"""So much older than the last one of the log, an event is in the log, or lost: clocks differ, and events wait."""


class Outcomes:
    """Publishes events while `is_active()`.

    Attributes:
        pods: Takes the pods of `inventory` in.
    """

    def __init__(self, bus: Bus, registry: CollectorRegistry, *, is_active: Callable[[], bool]) -> None:
        self._bus = bus
        self.pods: Gathered[GpuPod, None] = Gathered(
            self._read, on_list=lambda pods: self._news.keep(set(pods)), on_change=self._change_pod
        )
        self._is_active = is_active
        self._news = PodNews()
        self._waiting: OrderedDict[str, News] = OrderedDict()
        self._oldest: float | None = None  # what happened before is in the log; None: not known
        self._wake = asyncio.Event()
        self._throttled = ThrottledLog(log)
        self._published = Counter(
            "tas_outcomes", "Events about pods that were published to OUTCOMES.", ["event"], registry=registry
        )
        self._dropped = Counter(
            "tas_outcomes_dropped", "Events about pods that were not published, because too many waited or the bus "
            "refused them.", registry=registry
        )  # fmt: skip
        Gauge("tas_outcomes_pods", "Pods whose events are published.", registry=registry).set_function(
            lambda: len(self._news)
        )
        Gauge("tas_outcomes_waiting", "Events about pods that wait.", registry=registry).set_function(
            lambda: len(self._waiting)
        )

    async def run(self) -> None:
        """Publishes until cancelled."""
        await together(self._look(), self._publish())

    def begin(self) -> None:
        """This replica is active from now on: it reads first what the log has."""
        self._oldest = None
        self._wake.set()

    # What `inventory` follows

    def _read(self, found: GpuPod) -> tuple[str, None]:
        self._see(found, listed=True)
        return found.metadata.uid, None

    def _change_pod(self, change: Change[GpuPod]) -> None:
        if change.type is ChangeType.DELETED:
            self._news.forget(change.object.metadata.uid)
        else:
            self._see(change.object, listed=False)

    def _see(self, found: GpuPod, *, listed: bool) -> None:
        assert isinstance(found, ObservedPod)
        node, uid = found.spec.node_name, found.metadata.uid
        if not is_subdomain(node):
            return  # it has none
        now, placed_at = time.time(), found.scheduled_at()
        wanted = self._news.wants_requests(uid, placed_at, now, listed=listed)
        try:
            requests = dict(pod_totals(found.as_pod_resources()).requests) if wanted else None
        except InvalidInputError as error:
            name = f"{found.metadata.namespace}/{found.metadata.name}"
            self._throttled.warning("placement_not_published", uid, pod=name, error=str(error))
            requests = None
        pod = SeenPod(
            namespace=found.metadata.namespace,
            uid=uid,
            node=node,
            requests=requests,
            placed_at=placed_at,
            labels=found.metadata.labels,
            runs=found.runs(),
            is_leaving=found.metadata.deletion_timestamp is not None,
        )
        self._add(self._news.see(pod, now, listed=listed))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._add(self._news.lasting(time.time()))

    def _add(self, news: list[News]) -> None:
        for each in news:
            if self._oldest is not None and each.happened < self._oldest:
                continue  # of a list: the log has it
            self._waiting[outcome_identity(each.event)] = each
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)
            if self._is_active():
                self._dropped.inc()
                self._throttled.warning("outcomes_dropped", waiting=MAX_WAITING)
        if news:
            self._wake.set()

    async def _publish(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._is_active():
                continue  # `begin` wakes
            try:
                if self._oldest is None:
                    await self._begin()
                while self._waiting and self._is_active():
                    await self._publish_some()
            except BusError as error:
                self._throttled.warning("outcomes_not_published", waiting=len(self._waiting), error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()
            await asyncio.sleep(GATHER_SECONDS)

    async def _begin(self) -> None:
        """Drops what the log has. Raises BusError."""
        last = await last_outcome_at(self._bus)
        self._oldest = oldest = -inf if last is None else last - AGAIN_SECONDS
        for identity in [identity for identity, each in self._waiting.items() if each.happened < oldest]:
            del self._waiting[identity]

    async def _publish_some(self) -> None:
        """Publishes some events. Raises BusError; then they wait on."""
        some = dict(list(self._waiting.items())[:AT_ONCE])
        answers = await publish_outcomes(self._bus, [each.event for each in some.values()])
        failed: BusError | None = None
        for (identity, each), answer in zip(some.items(), answers, strict=True):
            if isinstance(answer, BusError) and _may_succeed_later(answer):
                failed = answer
                continue
            with suppress(KeyError):
                del self._waiting[identity]
            if isinstance(answer, BusError):
                self._dropped.inc()
                self._throttled.warning("outcomes_refused", error=str(answer))
            else:
                self._published.labels(_word(each.event)).inc()
        if failed is not None:
            raise failed


def _may_succeed_later(error: BusError) -> bool:
    """Whether the same event may be stored later: with room in the store, or with the right of this process."""
    return not isinstance(error, RefusedError) or isinstance(error, FullError | ForbiddenError)


def _word(event: Event) -> str:
    return "placed" if isinstance(event, Placed) else str(event.result)
