"""Plays one history, from a bus and an API server of its own to the quiet end."""

import asyncio
import gc
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from bus.connection import Bus
from sandbox import Sandbox
from tests.integration.removal.api import Api, SandboxApi
from tests.integration.removal.cases import added
from tests.integration.removal.history import History
from tests.integration.removal.judge import SLACK_SECONDS, Judge
from tests.integration.removal.lateness import Lateness
from tests.integration.removal.observed import Observed
from tests.integration.removal.workers import STALE_AFTER, One, Process, Task
from tests.integration.replicas import Replica, replica, tas
from tests.integration.servers import Server
from tests.integration.watched import meanwhile

HISTORY_SECONDS = 6.0
PROCESS_HISTORY_SECONDS = 14.0
AFTER_PAUSE_SECONDS = 6.0
"""How long a history goes on at least after the long pause."""

SETTLE_LOOKS, LOOK_SECONDS = 900, 0.1
"""How often is looked until all is as the model says: who failed often waits up to 10 s, as does a lost message.

Looks are counted, not seconds: where our own turns come late, so do those of who is to settle."""

STEADY_SECONDS = 0.5
"""How long it then has to stay so."""

PAUSES_SECONDS = (0.5, 5.0)

ON_ONE_LOOP, AS_PROCESSES = "on one loop", "as processes"
"""How a history is played."""


class Story:
    """What happened in one history, to be read where it ends badly."""

    def __init__(self, again: str) -> None:
        self._began = time.monotonic()
        self.lines = [f"again: {again}"]

    def tell(self, what: str) -> None:
        self.lines.append(f"{time.monotonic() - self._began:6.2f} s  {what}")


@asynccontextmanager
async def tasks(url: str, kubeconfig: Path) -> AsyncIterator[list[One]]:
    """Every worker on this loop."""
    names = ("watch", "materialize", "evaluate-1", "evaluate-2", "labels-1", "labels-2")
    workers: list[One] = [Task(name, url=url, kubeconfig=kubeconfig) for name in names]
    async with AsyncExitStack() as stack:
        for worker in workers:
            stack.push_async_callback(worker.kill)
            await worker.start()
        yield workers


@asynccontextmanager
async def processes(url: str, kubeconfig: Path, folder: Path) -> AsyncIterator[list[One]]:
    """Two replicas of every worker, each a process."""
    halting = "tests.integration.workers.halting_labels"
    labels = ["-m", halting, url, str(kubeconfig), "STOP", "later", "--stale-after", f"{STALE_AFTER:g}", "--name"]
    commands: dict[str, Callable[[str], list[str]]] = {
        "watch": lambda _: tas("watch", "--kubeconfig", str(kubeconfig), bus=url),
        "materialize": lambda _: tas("materialize", bus=url),
        "evaluate": lambda _: tas("evaluate", "--stale-after", f"{STALE_AFTER:g}s", bus=url),
        "labels": lambda name: [*labels, name],
    }
    async with AsyncExitStack() as stack:
        replicas: list[Replica] = [
            stack.enter_context(replica(name, command(name), folder=folder))
            for kind, command in commands.items()
            for name in (f"{kind}-1", f"{kind}-2")
        ]
        for one in replicas:
            await one.ready()
        yield [Process(one) for one in replicas]


Stage = Callable[[Judge, Path, Callable[[str], None]], AbstractAsyncContextManager[tuple[Api, Path]]]
"""Gives an API server that hands all that is written to a judge, and a kubeconfig for the product."""


@asynccontextmanager
async def in_sandbox(judge: Judge, folder: Path, tell: Callable[[str], None]) -> AsyncIterator[tuple[Api, Path]]:
    async with Sandbox.start() as sandbox:
        api = SandboxApi(sandbox, judge, tell)
        async with meanwhile(api.follow()):
            yield api, sandbox.kubeconfig(folder / "kubeconfig")


async def play(
    seed: int,
    folder: Path,
    story: Story,
    *,
    as_processes: bool,
    pause_seconds: float = 0.0,
    stage: Stage = in_sandbox,
) -> Counter[str]:
    """Plays one history to its quiet end, and returns how often it met which case.

    As processes, one replica of each worker is stopped for `pause_seconds` at the same time, unless that is 0.
    """
    seconds = PROCESS_HISTORY_SECONDS if as_processes else HISTORY_SECONDS
    if pause_seconds:
        seconds = max(seconds, pause_seconds + AFTER_PAUSE_SECONDS)
    async with AsyncExitStack() as stack:
        server = Server(folder / "store")
        await server.start()
        stack.push_async_callback(server.stop)
        workers: list[One] = []
        lateness = Lateness()
        judge = Judge(Observed(), STALE_AFTER, story.tell, lateness, lambda at: stopped(workers, at, lateness()))
        api, kubeconfig = await stack.enter_async_context(stage(judge, folder, story.tell))
        bus = await stack.enter_async_context(Bus.connect(server.url, name="test"))
        for work in (
            *(watch.run() for watch in judge.observed.watches(bus)),
            judge.run(),
            lateness.run(),
        ):
            await stack.enter_async_context(meanwhile(work))
        running = processes(server.url, kubeconfig, folder) if as_processes else tasks(server.url, kubeconfig)
        workers += await stack.enter_async_context(running)
        history = History(
            seed,
            api=api,
            server=server,
            bus=bus,
            observed=judge.observed,
            workers=workers,
            nodes=5 if as_processes else 3,
            tell=story.tell,
        )
        await live(history, judge, story, seconds=seconds, pause_seconds=pause_seconds)
        for worker in workers:
            worker.must_run()
        met = added([judge.verdicts, history.met, *(each.halts for each in workers if isinstance(each, Process))])
        story.tell(f"late by up to {lateness.worst:.2f} s; {dict(met)}")
        return met


async def live(history: History, judge: Judge, story: Story, *, seconds: float, pause_seconds: float) -> None:
    """All that happens in a history. Fails if it does not end as the model says, or a removal had no reason."""
    await history.begin()
    await history.settle(Quiet(story.tell, judge, steady=0.0), what="all works at first")
    async with asyncio.TaskGroup() as happening:
        for happens in (history.publish, history.edit, history.disturb, history.befall):
            happening.create_task(happens(seconds))
        happening.create_task(history.torment(seconds, PAUSES_SECONDS))
        if pause_seconds:
            happening.create_task(history.sleep(pause_seconds))
    await history.settle(Quiet(story.tell, judge, steady=STEADY_SECONDS), what="quiet")
    judge.look(all_of_them=True)
    judge.must_be_content()


def stopped(workers: Sequence[One], at: float, late: float) -> float:
    """For how long whoever may have sent a patch at this time had been stopped: what a stop held back comes first."""
    stops = [
        end - began
        for worker in workers
        if isinstance(worker, Process) and worker.name.startswith("labels")
        for began, end in worker.stops
        if end <= at <= end + SLACK_SECONDS + late
    ]
    return max(stops, default=0.0)


class Quiet:
    """Waits until nothing differs for a while; fails when it lasts too long."""

    def __init__(self, tell: Callable[[str], None], judge: Judge, *, steady: float) -> None:
        self._tell = tell
        self._steady = steady
        self._judge = judge
        self._looks = 0
        self._steady_since: float | None = None

    async def __call__(self, differences: Sequence[str]) -> bool:
        now = time.monotonic()
        self._looks += 1
        self._judge.look()
        self._judge.must_be_content()
        if differences:
            self._steady_since = None
            assert self._looks < SETTLE_LOOKS, "\n".join(differences)
        elif self._steady_since is None:
            self._steady_since = now
        elif now - self._steady_since >= self._steady:
            self._tell("all is as the model says")
            return True
        await asyncio.sleep(LOOK_SECONDS)
        return False


async def played(
    seed: int,
    folder: Path,
    *,
    again: str,
    as_processes: bool = False,
    pause_seconds: float = 0.0,
    stage: Stage = in_sandbox,
) -> Counter[str]:
    """Plays one history in a folder of its own; if it ends badly, its story is printed, with how to play it `again`."""
    story = Story(again)
    own = await asyncio.to_thread(tempfile.mkdtemp, prefix=f"seed-{seed}-", dir=folder)
    try:
        return await play(seed, Path(own), story, as_processes=as_processes, pause_seconds=pause_seconds, stage=stage)
    except BaseException:
        print("\n".join(story.lines))
        raise
    finally:
        gc.collect()  # what workers left behind that were killed by cancelling: here its warning is expected
