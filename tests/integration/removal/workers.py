"""The workers of the product, as tasks on this loop or as processes, and their faults."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.record_kind import Entry
from bus.records.nodes import StoredSamples
from tas.enforcing.brake import BrakeSettings
from tas.samples.table import Table, TableKey
from tests.integration.removal.behind import set_pause
from tests.integration.removal.cases import Case
from tests.integration.removal.clocks import set_error
from tests.integration.replicas import Replica
from tests.integration.servers import eventually
from tests.integration.workers.halting_labels import LINES, SIGNALS
from tests.integration.workers.whole_process import NAMES, NumberedContext, settings_of_all
from workers.evaluate.worker import Evaluate
from workers.following.followed_view import FollowedView
from workers.kubernetes.client import WRITE_SECONDS, KubernetesClient
from workers.kubernetes.reflectors import Reflectors
from workers.labels.worker import Labels
from workers.materialize.worker import Materialize
from workers.runtime import Worker
from workers.watch.worker import WatchWorker

HALT_SECONDS = 3.0
"""How long a replica may take to reach the line where it stops itself."""

HALTS = {"read": Case.STOPPED_READ, "send": Case.STOPPED_SEND}

STALE_AFTER = 1.5
"""Seconds, for policies without `staleAfter`."""

KINDS = ("watch", "materialize", "evaluate", "labels")
"""The workers that a history needs."""

BUILD: dict[str, Callable[[Bus, KubernetesClient, CollectorRegistry, BrakeSettings, Counter[str]], Worker]] = {
    "watch": lambda bus, client, registry, *_: WatchWorker(bus, Reflectors(client), registry=registry),
    "materialize": lambda bus, _, registry, *__: Materialize(bus, registry=registry),
    "evaluate": lambda bus, _, registry, __, met: Evaluate(bus, CountingView(bus, met), registry=registry),
    "labels": lambda bus, client, registry, brake, _: Labels(
        bus, client, Reflectors(client), registry=registry, default_stale_after=STALE_AFTER, brake=brake
    ),
}


class One(Protocol):
    """One replica."""

    name: str
    kinds: tuple[str, ...]
    """The workers of which it is a replica: several if it is a process that has all workers."""

    can_halt: bool
    """Whether it can stop itself between check and sending."""

    async def start(self) -> None: ...
    async def kill(self) -> None: ...
    async def pause(self, seconds: float) -> bool:
        """Stops it for so many seconds; False if that is impossible."""

    def must_run(self) -> None: ...


class CountingView(FollowedView):
    """The view of an `evaluate`, which counts how often a version was overwritten before its delivery."""

    def __init__(self, bus: Bus, met: Counter[str]) -> None:
        super().__init__(bus, default_stale_after=STALE_AFTER, verdicts=True)
        self._met = met

    def _is_gap(self, entry: Entry[str, StoredSamples] | Entry[TableKey, Table]) -> bool:
        found = super()._is_gap(entry)
        self._met[Case.OVERWRITTEN] += found
        return found


class Task:
    """A worker as a task with its own connections.

    Attributes:
        pause_of_view: From its next start on, a version that is overwritten within so many seconds may never reach it.
        met: How often it met each hard case.
    """

    def __init__(
        self, name: str, *, url: str, kubeconfig: Path, brake: BrakeSettings, clock_error: float = 0.0
    ) -> None:
        self.name = name
        self.kinds: tuple[str, ...] = (name.partition("-")[0],)
        self._brake = brake
        self._clock_error = clock_error
        self.can_halt = False
        self.pause_of_view = 0.0
        self.met: Counter[str] = Counter()
        self._url = url
        self._kubeconfig = kubeconfig
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=self.name)

    async def _live(self) -> None:
        set_error(self._clock_error)
        set_pause(self.pause_of_view)
        await self._work()

    async def _work(self) -> None:
        async with (
            Bus.connect(self._url, name=self.name) as bus,
            KubernetesClient.connect(self._kubeconfig, worker=self.name) as client,
        ):
            await BUILD[self.kinds[0]](bus, client, CollectorRegistry(), self._brake, self.met).run()

    async def kill(self) -> None:
        """Cancels it at its current await; only what a worker finishes by itself is finished."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def pause(self, seconds: float) -> bool:
        return False

    def must_run(self) -> None:
        assert self._task is not None, f"{self.name} does not run"
        assert not self._task.done(), f"{self.name} ended: {self._task}"


class WholeTask(Task):
    """All workers with the connections, watches and view of one process, as a task that is killed as a whole."""

    def __init__(
        self, name: str, *, url: str, kubeconfig: Path, brake: BrakeSettings, clock_error: float = 0.0
    ) -> None:
        super().__init__(name, url=url, kubeconfig=kubeconfig, brake=brake, clock_error=clock_error)
        self.kinds = KINDS

    async def _work(self) -> None:
        settings = settings_of_all(self._url, self._kubeconfig, stale_after=STALE_AFTER, brake=self._brake)
        async with AsyncExitStack() as stack:
            context = NumberedContext(settings, stack, CollectorRegistry(), number=self.name[-1])
            async with asyncio.TaskGroup() as tasks:
                for worker in await context.build(NAMES):
                    tasks.create_task(worker.run(), name=f"{self.name} {worker.name}")


class Process:
    """A process with one worker, or with all; `labels` can stop it just before a label is removed.

    Attributes:
        stops: When it was stopped, and when it continued.
        halts: How often it stopped itself at each line, and how often it continued too late to send a patch.
    """

    def __init__(self, replica: Replica, kinds: tuple[str, ...]) -> None:
        self.name = replica.name
        self.kinds = kinds
        self.can_halt = "labels" in kinds
        self.stops: list[tuple[float, float]] = []
        self.halts: Counter[str] = Counter()
        self._line = LINES[int(replica.name[-1]) % len(LINES)]  # two replicas begin with different lines
        self._replica = replica

    async def start(self) -> None:
        self._replica.start()

    async def kill(self) -> None:
        self._replica.kill()

    async def pause(self, seconds: float) -> bool:
        has_halted = self.can_halt and self._replica.catches(SIGNALS[None]) and await self._has_halted()
        began = time.time()
        self._replica.pause()
        self.stops.append((began, float("inf")))
        await asyncio.sleep(seconds)
        self.stops[-1] = (began, time.time())
        if self.can_halt and seconds > WRITE_SECONDS:
            self.halts[Case.WOKE_LATE] += 1
            self.halts[Case.HELD_BACK] += has_halted
        self._replica.resume()
        return True

    async def _has_halted(self) -> bool:
        """Waits until it stops itself between check and sending, for a short time, since it may have nothing to do."""
        self._line = LINES[(LINES.index(self._line) + 1) % len(LINES)]
        self._replica.send(SIGNALS[self._line])
        with suppress(AssertionError):
            await eventually(lambda: self._replica.paused, within=HALT_SECONDS)
        if paused := self._replica.paused:
            self.halts[HALTS[self._line]] += 1
        self._replica.send(SIGNALS[None])  # handled before all else when it continues
        return paused

    def must_run(self) -> None:
        self._replica.must_run()
