"""Which processes run, and how many should: read from WORKERS every ten seconds by `watch`, or `policies`.

One of these two runs in every installation, since the policies come from it. All its replicas write the expected
numbers, conditionally: they see the same.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bus.buckets import WORKERS
from bus.connection import Bus
from bus.errors import BusError, ConflictError
from bus.interruptions import Interruptions
from bus.kinds import EXPECTED_NUMBERS
from tas.processes.expected import KEPT_SECONDS, Sustained, lacks, to_store, together
from tas.processes.process import clocks_ahead, numbers
from workers.following.processes import StoredProcesses, stored_processes

log = structlog.get_logger("roster")

READ_SECONDS = 10.0
"""How often the processes are read: each read costs the bus a consumer."""

GRACE_SECONDS = 10.0
"""For how long a worker must be seen to be lacking before it counts as lost: a process is replaced within seconds."""


class Clocks(Collector):
    """`tas_process_clock_ahead_seconds`: by process, how far its clock is ahead of that of the nats-server at least."""

    def __init__(self, ahead: Callable[[], Mapping[str, float]]) -> None:
        """`ahead` gives the seconds, negative if the clock is behind."""
        self._ahead = ahead

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metric now."""
        clocks = GaugeMetricFamily(
            "tas_process_clock_ahead_seconds",
            "By how many seconds at least a clock is ahead of that of the nats-server, or behind, by WORKERS.",
            labels=["process"],
        )
        for process, seconds in self._ahead().items():
            clocks.add_metric([process], seconds)
        yield clocks


class Roster:
    """Reads until cancelled.

    Attributes:
        lost: The workers of which nobody has run any for `GRACE_SECONDS`, although somebody should.
    """

    def __init__(
        self, bus: Bus, registry: CollectorRegistry, workers: Iterable[str], *, read_seconds: float = READ_SECONDS
    ) -> None:
        """`workers`: those of which the numbers are exported."""
        self._bus = bus
        self._read_seconds = read_seconds
        self._sustained = Sustained()
        self._interruptions = Interruptions(log, "processes_not_read")
        self._stored: StoredProcesses | None = None
        self._created = ""
        self._missing_since: dict[str, float] = {}
        self.lost: frozenset[str] = frozenset()
        counts = Gauge(
            "tas_workers", "Processes that run a worker, by WORKERS; NaN: not known.", ["worker"], registry=registry
        )
        expected = Gauge(
            "tas_workers_expected",
            "Processes that should run a worker: as many as ran together for 10 minutes; NaN: not known yet.",
            ["worker"],
            registry=registry,
        )
        for worker in workers:
            counts.labels(worker).set_function(partial(self._count, worker))
            expected.labels(worker).set_function(partial(self._expected, worker))
        registry.register(Clocks(lambda: {} if self._stored is None else clocks_ahead(self._stored.running)))

    def _count(self, worker: str) -> float:
        return float("nan") if self._stored is None else float(numbers(self._stored.running).get(worker, 0))

    def _expected(self, worker: str) -> float:
        known = None if self._stored is None else self._stored.expected.get(worker)
        return float("nan") if known is None else float(known.count)

    async def run(self) -> None:
        """Runs until cancelled. Raises nothing else."""
        while True:
            await self._bus.wait_usable(WORKERS.stream)
            try:
                await self._read()
            except BusError as error:
                self._interruptions.note(error)
                self._forget()
            await asyncio.sleep(self._read_seconds)

    def _forget(self) -> None:
        """Nobody has looked for some time: what was seen before proves nothing."""
        self._stored = None
        self._sustained.clear()
        self._missing_since.clear()
        self.lost = frozenset()

    async def _read(self) -> None:
        epoch = await self._bus.epoch(WORKERS)
        if epoch.created != self._created:
            self._forget()
            self._created = epoch.created
        stored = await stored_processes(self._bus)
        now = time.monotonic()
        self._stored = stored
        self._sustained.note(together(stored.running), now)
        lacking = {each.worker for each in lacks(stored.running, stored.expected) if not each.running}
        self._missing_since = {worker: self._missing_since.get(worker, now) for worker in lacking}
        self.lost = frozenset(worker for worker, since in self._missing_since.items() if now - since >= GRACE_SECONDS)
        for worker, count in self._sustained.counts(now).items():
            await self._store(worker, count, stored)

    async def _store(self, worker: str, count: int, stored: StoredProcesses) -> None:
        entry = stored.entries.get(worker)
        age = 0.0 if entry is None else stored.newest - entry.created
        record = to_store(stored.expected.get(worker), age, count)
        if record is None:
            return
        try:
            await EXPECTED_NUMBERS.put(
                self._bus,
                worker,
                record,
                revision=0 if entry is None else entry.revision,
                read_at=time.monotonic(),
                ttl_seconds=KEPT_SECONDS,
            )
        except ConflictError:
            # Another replica has written it, or the tombstone of an expired number is there for a minute.
            log.debug("expected_number_conflict", worker=worker)
