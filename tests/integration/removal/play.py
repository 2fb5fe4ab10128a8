"""Plays one history on its own bus and API server, until all faults have ended and the labels are right."""

import asyncio
import gc
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bus.connection import Bus
from tas.enforcing.brake import BrakeSettings
from tests.integration.lateness import Lateness
from tests.integration.removal.api import Api, SandboxApi
from tests.integration.removal.cases import added
from tests.integration.removal.clocks import some_errors
from tests.integration.removal.history import History
from tests.integration.removal.judge import SLACK_SECONDS, Judge
from tests.integration.removal.limits import DEFAULT_NODES, LIMITED, OFF, LimitJudge, Operators
from tests.integration.removal.observed import Observed
from tests.integration.removal.workers import KINDS, STALE_AFTER, One, Process, Task, WholeTask
from tests.integration.replicas import Replica, replica, tas
from tests.integration.servers import Server, eventually
from tests.integration.watched import meanwhile
from tests.sandbox import Sandbox

HISTORY_SECONDS = 6.0
PROCESS_HISTORY_SECONDS = 14.0
AFTER_PAUSE_SECONDS = 6.0
"""How long a history goes on at least after the long pause."""

SETTLE_LOOKS, LOOK_SECONDS = 900, 0.1
"""How often the labels are compared with the model until they must be equal: a backoff or a lost message takes 10 s.

Comparisons are counted, not seconds: on a busy machine test and workers are equally slow."""

STEADY_SECONDS = 0.5
"""How long they must stay equal."""

WITH_CLOCKS = ("evaluate-1", "evaluate-2", "labels-1", "labels-2")
"""The replicas that compare times."""

WHOLE = ("all-1", "all-2")
"""The replicas of a process that has all workers."""

EVALUATE = ("evaluate",)
"""What a replica of `evaluate` alone has."""

PAUSES_SECONDS = (0.5, 5.0)

ON_ONE_LOOP, AS_PROCESSES = "on one loop", "as processes"
"""How a history is played."""


def is_behind(seed: int) -> bool:
    """Whether each `evaluate` is behind while the history goes on. Not with limits: all nodes are labelled at once."""
    return seed % 4 == 1


MOST_LATE_SECONDS = 0.1
"""No other history begins while the loop is later."""


class Turns:
    """The turns of the histories of one loop, so that a scarce processor has few of them at a time.

    With too many, the samples of a round are stale before they have an effect, and no history ever gets the labels of
    the model. So a history begins only while the loop keeps up with those that play, and they settle one at a time.
    """

    def __init__(self, lateness: Callable[[], float]) -> None:
        """`lateness` of the loop, in seconds."""
        self._lateness = lateness
        self._beginning = asyncio.Lock()
        self._settling = asyncio.Lock()
        self._playing = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator["Turn"]:
        """A history begins and plays in the body."""
        async with AsyncExitStack() as first:
            await first.enter_async_context(self._beginning)
            while self._playing and self._lateness() > MOST_LATE_SECONDS:  # noqa: ASYNC110 - a measurement, no event
                await asyncio.sleep(LOOK_SECONDS)
            await first.enter_async_context(self._settling)
            self._playing += 1
            try:
                yield Turn(begun=first.aclose, settling=self._settling)
            finally:
                self._playing -= 1


@dataclass(frozen=True)
class Turn:
    """The turn of one history.

    Attributes:
        begun: Called once the labels are those of the model for the first time: others may begin or settle.
        settling: Held while the history waits for the labels of the model at its end.
    """

    begun: Callable[[], Awaitable[None]]
    settling: asyncio.Lock


class Journal:
    """The events of a history, printed if it fails."""

    def __init__(self, again: str) -> None:
        self._began = time.monotonic()
        self.lines = [f"again: {again}"]

    def log(self, what: str) -> None:
        self.lines.append(f"{time.monotonic() - self._began:6.2f} s  {what}")


@asynccontextmanager
async def tasks(
    url: str, kubeconfig: Path, clocks: Mapping[str, float], brake: BrakeSettings, *, whole: bool
) -> AsyncIterator[list[One]]:
    """Every worker on this loop; `clocks` has the errors of wrong clocks."""
    kind, names = (WholeTask, WHOLE) if whole else (Task, ("watch", "materialize", *WITH_CLOCKS))
    workers: list[One] = [
        kind(name, url=url, kubeconfig=kubeconfig, brake=brake, clock_error=clocks.get(name, 0.0)) for name in names
    ]
    async with AsyncExitStack() as stack:
        for worker in workers:
            stack.push_async_callback(worker.kill)
            await worker.start()
        yield workers


@asynccontextmanager
async def processes(
    url: str, kubeconfig: Path, folder: Path, *, limited: bool, whole: bool
) -> AsyncIterator[list[One]]:
    """Two replicas of every worker, each a process; or two processes that have all workers."""
    halting = ["-m", "tests.integration.workers.halting_labels", url, str(kubeconfig), "STOP", "later"]
    halting += ["--stale-after", f"{STALE_AFTER:g}", *(["--limit", str(DEFAULT_NODES)] if limited else [])]
    commands: dict[str, Callable[[int], list[str]]] = {
        "watch": lambda _: tas("watch", "--kubeconfig", str(kubeconfig), bus=url),
        "materialize": lambda _: tas("materialize", bus=url),
        "evaluate": lambda _: tas("evaluate", "--stale-after", f"{STALE_AFTER:g}s", bus=url),
        "labels": lambda number: [*halting, "--number", str(number)],
    }
    if whole:
        commands = {"all": lambda number: [*halting, "--worker", "all", "--number", str(number)]}
    async with AsyncExitStack() as stack:
        replicas: list[tuple[Replica, tuple[str, ...]]] = [
            (
                stack.enter_context(replica(f"{kind}-{number}", command(number), folder=folder)),
                KINDS if whole else (kind,),
            )
            for kind, command in commands.items()
            for number in (1, 2)
        ]
        for one, _ in replicas:
            await one.ready()
        yield [Process(*each) for each in replicas]


Stage = Callable[[Judge, Path, Callable[[str], None]], AbstractAsyncContextManager[tuple[Api, Path]]]
"""Gives an API server that reports all writes to a judge, and a kubeconfig for the product."""


@asynccontextmanager
async def in_sandbox(judge: Judge, folder: Path, log: Callable[[str], None]) -> AsyncIterator[tuple[Api, Path]]:
    async with Sandbox.start() as sandbox:
        api = SandboxApi(sandbox, judge, log)
        async with meanwhile(api.follow()):
            yield api, sandbox.kubeconfig(folder / "kubeconfig")


async def play(
    seed: int,
    folder: Path,
    journal: Journal,
    *,
    as_processes: bool,
    limited: bool,
    whole: bool,
    pause_seconds: float = 0.0,
    stage: Stage = in_sandbox,
    turn: Turn,
) -> Counter[str]:
    """Plays one history, and returns how often it met each case.

    As processes, one replica of each worker is stopped for `pause_seconds` at the same time, unless that is 0. If
    `limited`, the product has a brake, policies have limits, and users pause and reset. If `whole`, each replica has
    all workers, which share connections, watches and view, and faults hit all of them.
    """
    seconds = PROCESS_HISTORY_SECONDS if as_processes else HISTORY_SECONDS
    if pause_seconds:
        seconds = max(seconds, pause_seconds + AFTER_PAUSE_SECONDS)
    async with AsyncExitStack() as stack:
        server = Server(folder / "store")
        await server.start()
        stack.push_async_callback(server.stop)
        workers: list[One] = []
        clocks: Mapping[str, float] = {}
        lateness = Lateness()
        judge = Judge(Observed(), STALE_AFTER, journal.log, lateness, lambda at: stopped(workers, at, lateness()))
        if not as_processes:
            clocks = judge.clocks = some_errors(random.Random(f"{seed} clocks"), WITH_CLOCKS)
            if whole:  # a process has the clock of its labels, by whose name the judge knows it
                judge.clocks = {name: error for name, error in clocks.items() if name.startswith("labels")}
                clocks = {name.replace("labels", "all"): error for name, error in judge.clocks.items()}
            journal.log(f"wrong clocks: {clocks}")
        api, kubeconfig = await stack.enter_async_context(stage(judge, folder, journal.log))
        bus = await stack.enter_async_context(Bus.connect(server.url, name="test"))
        operators = None
        if limited:
            judge.limits = LimitJudge(judge.observed, judge.slowest, judge.allowance, lateness)
            operators = Operators(bus, judge.limits, journal.log)
        for work in (
            judge.observed.follow(bus),
            judge.run(),
            lateness.run(),
        ):
            await stack.enter_async_context(meanwhile(work))
        running = (
            processes(server.url, kubeconfig, folder, limited=limited, whole=whole)
            if as_processes
            else tasks(server.url, kubeconfig, clocks, LIMITED if limited else OFF, whole=whole)
        )
        workers += await stack.enter_async_context(running)
        history = History(
            seed,
            api=api,
            server=server,
            bus=bus,
            observed=judge.observed,
            workers=workers,
            nodes=5 if as_processes else 3,
            operators=operators,
            log=journal.log,
            behind=[each for each in workers if is_behind(seed) and isinstance(each, Task) and each.kinds == EVALUATE],
        )
        await live(history, judge, journal, seconds=seconds, pause_seconds=pause_seconds, turn=turn)
        for worker in workers:
            worker.must_run()
        met = added(
            [
                *(
                    judge.observed.met,
                    judge.verdicts,
                    judge.met,
                    history.met,
                    Counter() if judge.limits is None else judge.limits.met,
                ),
                *(each.halts for each in workers if isinstance(each, Process)),
                *(each.met for each in workers if isinstance(each, Task)),
            ]
        )
        journal.log(f"late by up to {lateness.worst:.2f} s; {dict(met)}")
        return met


async def live(
    history: History, judge: Judge, journal: Journal, *, seconds: float, pause_seconds: float, turn: Turn
) -> None:
    """Plays all events. Fails if the labels do not become those of the model, or a removal had no reason."""
    await history.begin()
    await history.settle(Quiet(journal.log, judge, steady=0.0), what="all works at first")
    await turn.begun()
    await history.overwrite()
    await history.limit()
    async with asyncio.TaskGroup() as happening:
        for happens in (
            history.publish,
            history.lie,
            history.edit,
            history.disturb,
            history.break_bus,
        ):
            happening.create_task(happens(seconds))
        happening.create_task(history.kill_and_stop(seconds, PAUSES_SECONDS))
        if pause_seconds:
            happening.create_task(history.sleep(pause_seconds))
    await history.fall_silent()
    async with turn.settling:
        await history.settle(Quiet(journal.log, judge, steady=STEADY_SECONDS), what="quiet")
    await eventually(lambda: not judge.is_behind)
    judge.judge(all_of_them=True)
    judge.must_have_no_faults()


def stopped(workers: Sequence[One], at: float, late: float) -> float:
    """For how long the sender of a patch at this time may have been stopped just before."""
    stops = [
        end - began
        for worker in workers
        if isinstance(worker, Process) and worker.can_halt
        for began, end in worker.stops
        if end <= at <= end + SLACK_SECONDS + late
    ]
    return max(stops, default=0.0)


class Quiet:
    """Waits until nothing differs for a while; fails after `SETTLE_LOOKS` comparisons."""

    def __init__(self, log: Callable[[str], None], judge: Judge, *, steady: float) -> None:
        self._log = log
        self._steady = steady
        self._judge = judge
        self._looks = 0
        self._steady_since: float | None = None

    async def __call__(self, differences: Sequence[str]) -> bool:
        now = time.monotonic()
        self._looks += 1
        self._judge.judge()
        self._judge.must_have_no_faults()
        if differences:
            self._steady_since = None
            assert self._looks < SETTLE_LOOKS, "\n".join(differences)
        elif self._steady_since is None:
            self._steady_since = now
        elif now - self._steady_since >= self._steady:
            self._log("all labels are those of the model")
            return True
        await asyncio.sleep(LOOK_SECONDS)
        return False


async def played(
    seed: int,
    folder: Path,
    *,
    again: str,
    as_processes: bool = False,
    limited: bool = False,
    whole: bool = False,
    pause_seconds: float = 0.0,
    stage: Stage = in_sandbox,
    turns: Turns | None = None,
) -> Counter[str]:
    """Plays one history in its own folder; if it fails, prints its journal and the command to play it `again`.

    `turns` of all histories that are played at the same time; None: there is no other.
    """
    journal = Journal(again)
    own = await asyncio.to_thread(tempfile.mkdtemp, prefix=f"seed-{seed}-", dir=folder)
    try:
        async with (turns or Turns(Lateness())).turn() as turn:
            return await play(
                seed,
                Path(own),
                journal,
                as_processes=as_processes,
                limited=limited,
                whole=whole,
                pause_seconds=pause_seconds,
                stage=stage,
                turn=turn,
            )
    except BaseException:
        print("\n".join(journal.lines))
        raise
    finally:
        gc.collect()  # sockets of workers that were killed by cancellation: here their warning is expected
