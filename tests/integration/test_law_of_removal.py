"""The law of removal: a label goes only because something said so.

Seeded random histories of samples, silence and staleness, edited and deleted policies, nodes that go and come back,
an API server that fails, a bus that is lost, and workers that are killed or stopped. Before every removal there is a
sample that met the rule, was the newest and fresh when it was read, and that at most 2 s before the patch; or a word
of the policy; or an answer of the API server. After quiet returns, every node's labels equal the model's.

No later change may weaken it. `TAS_REMOVAL_SEEDS=50` runs the seeds 1 to 50, `TAS_REMOVAL_SEEDS=7-9` those three. A
seed determines what happens, but not how the workers' turns meet. What it found is kept in docs/law-of-removal.md.
"""

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bus.connection import Bus
from sandbox import Sandbox
from tests.integration.removal.history import History
from tests.integration.removal.judge import Judge
from tests.integration.removal.workers import STALE_AFTER, One, Process, Task
from tests.integration.replicas import Replica, replica, tas
from tests.integration.servers import Server
from tests.integration.watched import meanwhile

DEFAULT_SEEDS = "1-8"
AT_ONCE = 4
"""So many histories are played at the same time, each with a bus and an API server of its own."""

PROCESS_EVERY = 8
"""Of so many seeds, the first is played with workers as processes too."""

HISTORY_SECONDS = 6.0
PROCESS_HISTORY_SECONDS = 14.0
SETTLE_SECONDS = 45.0
"""How long until all is as the model says: who failed often waits up to 10 s, a lost message comes again after 10 s."""

STEADY_SECONDS = 0.5
"""How long it then has to stay so."""

PAUSES_SECONDS = (0.5, 5.0)


def seeds() -> range:
    first, dash, last = os.environ.get("TAS_REMOVAL_SEEDS", DEFAULT_SEEDS).partition("-")
    return range(int(first), int(last) + 1) if dash else range(1, int(first) + 1)


def batches() -> list[tuple[int, ...]]:
    """The seeds in groups that are played at the same time."""
    every = list(seeds())
    return [tuple(every[start : start + AT_ONCE]) for start in range(0, len(every), AT_ONCE)]


class Story:
    """What happened in one history, to be read where it ends badly."""

    def __init__(self, seed: int) -> None:
        self._began = time.monotonic()
        self.lines = [
            f"again: TAS_REMOVAL_SEEDS={seed}-{seed} python -m pytest tests/integration/test_law_of_removal.py"
        ]

    def tell(self, what: str) -> None:
        self.lines.append(f"{time.monotonic() - self._began:6.2f} s  {what}")


@asynccontextmanager
async def tasks(server: Server, kubeconfig: Path) -> AsyncIterator[list[One]]:
    """Every worker on this loop."""
    names = ("watch", "materialize", "evaluate-1", "evaluate-2", "labels-1", "labels-2")
    workers: list[One] = [Task(name, url=server.url, kubeconfig=kubeconfig) for name in names]
    async with AsyncExitStack() as stack:
        for worker in workers:
            stack.push_async_callback(worker.kill)
            await worker.start()
        yield workers


@asynccontextmanager
async def processes(server: Server, kubeconfig: Path, folder: Path) -> AsyncIterator[list[One]]:
    """Two replicas of every worker, each a process."""
    limit = ("--stale-after", f"{STALE_AFTER:g}s")
    arguments = {
        "watch": ("--kubeconfig", str(kubeconfig)),
        "materialize": (),
        "evaluate": limit,
        "labels": ("--kubeconfig", str(kubeconfig), *limit),
    }
    with capture_logs():
        async with AsyncExitStack() as stack:
            replicas: list[Replica] = [
                stack.enter_context(replica(f"{kind}-{number}", tas(kind, *more, bus=server.url), folder=folder))
                for kind, more in arguments.items()
                for number in (1, 2)
            ]
            for one in replicas:
                await one.ready()
            yield [Process(one) for one in replicas]


async def play(seed: int, folder: Path, story: Story, *, as_processes: bool) -> Counter[str]:
    """Plays one history to its quiet end, and returns how often which reason let a label go."""
    seconds = PROCESS_HISTORY_SECONDS if as_processes else HISTORY_SECONDS
    async with AsyncExitStack() as stack:
        server = Server(folder / "store")
        await server.start()
        stack.push_async_callback(server.stop)
        sandbox = await stack.enter_async_context(Sandbox.start())
        kubeconfig = sandbox.kubeconfig(folder / "kubeconfig")
        workers: list[One] = []
        judge = Judge(sandbox, STALE_AFTER, story.tell, lambda now: slower(workers, now))
        bus = await stack.enter_async_context(Bus.connect(server.url, name="test"))
        for watch in judge.watches(bus):
            await stack.enter_async_context(meanwhile(watch.run()))
        await stack.enter_async_context(meanwhile(judge.follow()))
        running = processes(server, kubeconfig, folder) if as_processes else tasks(server, kubeconfig)
        workers += await stack.enter_async_context(running)
        history = History(
            seed,
            sandbox=sandbox,
            server=server,
            bus=bus,
            judge=judge,
            workers=workers,
            nodes=5 if as_processes else 3,
            tell=story.tell,
        )
        history.begin()
        await history.settle(Quiet(story.tell, judge, steady=0.0), what="all works at first")
        async with asyncio.TaskGroup() as happening:
            for happens in (history.publish, history.edit, history.disturb, history.befall):
                happening.create_task(happens(seconds))
            happening.create_task(history.torment(seconds, PAUSES_SECONDS))
        await history.settle(Quiet(story.tell, judge, steady=STEADY_SECONDS), what="quiet")
        for worker in workers:
            worker.must_run()
        judge.look()
        assert not judge.wrongs, "\n".join(judge.wrongs)
        return judge.verdicts


def slower(workers: Sequence[One], now: float) -> float:
    """By how much a removal may be late now: the stops of whoever may have sent it."""
    stops = [
        min(end, now) - began
        for worker in workers
        if isinstance(worker, Process) and worker.name.startswith("labels")
        for began, end in worker.stops
        if end > now - 5
    ]
    return max(stops, default=0.0)


class Quiet:
    """Waits until nothing differs for a while; fails when it lasts too long."""

    def __init__(self, tell: Callable[[str], None], judge: Judge, *, steady: float) -> None:
        self._tell = tell
        self._steady = steady
        self._judge = judge
        self._until = time.monotonic() + SETTLE_SECONDS
        self._steady_since: float | None = None

    async def __call__(self, differences: Sequence[str]) -> bool:
        now = time.monotonic()
        assert not self._judge.wrongs, "\n".join(self._judge.wrongs)
        if differences:
            self._steady_since = None
            assert now < self._until, "\n".join(differences)
        elif self._steady_since is None:
            self._steady_since = now
        elif now - self._steady_since >= self._steady:
            self._tell("all is as the model says")
            return True
        await asyncio.sleep(0.1)
        return False


async def played(seed: int, folder: Path, *, as_processes: bool = False) -> Counter[str]:
    story = Story(seed)
    own = await asyncio.to_thread(tempfile.mkdtemp, prefix=f"seed-{seed}-", dir=folder)
    try:
        return await play(seed, Path(own), story, as_processes=as_processes)
    except BaseException:
        print("\n".join(story.lines))
        raise


@pytest.mark.timeout(180)
@pytest.mark.parametrize("batch", batches(), ids=lambda batch: f"seeds-{batch[0]}-{batch[-1]}")
async def test_a_label_goes_only_because_something_said_so(batch: tuple[int, ...], tmp_path: Path) -> None:
    with capture_logs():
        results = await asyncio.gather(*(played(seed, tmp_path) for seed in batch), return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    assert not failures, "\n\n".join(
        f"seed {seed}: {result!r}" for seed, result in zip(batch, results, strict=True) if result in failures
    )
    reasons = sum((result for result in results if isinstance(result, Counter)), Counter())
    print(f"removals: {dict(reasons)}")
    assert len(batch) < AT_ONCE or reasons["policy"] > 0, "nothing was removed"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", seeds()[::PROCESS_EVERY], ids="seed-{}".format)
async def test_it_holds_for_processes_that_are_killed_and_stopped(seed: int, tmp_path: Path) -> None:
    reasons = await played(seed, tmp_path, as_processes=True)
    print(f"removals: {dict(reasons)}")
    assert reasons.total() > 0, "nothing was removed"
