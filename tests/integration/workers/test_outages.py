"""No worker keeps more and more, and none tries faster than it should, while its bus or its API server is away.

Each worker is a process of its own, all on the loop of the test. Every node wants something during the outage. A window
of the outage is observed once what came before has settled: nothing that is kept grows in it, and what is done in it
stays within the retries. While the bus is away these do not depend on the number of nodes.

`TAS_OUTAGE_NODES=1000 TAS_OUTAGE_SECONDS=5` has so many nodes and such windows; what may grow stays the same.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from bus.connection import Bus
from bus.errors import BusError
from tests.integration.servers import Server, eventually
from tests.integration.tables import publish
from tests.integration.workers.outages import METRIC, Cluster, Observer, Processes, Window, manifest
from tests.sandbox import Faults, Sandbox
from workers.following.records import WRITES_AT_ONCE
from workers.reconcile.work_queue import LOST_SECONDS, RETRY
from workers.registry import with_commands

NODES = int(os.environ.get("TAS_OUTAGE_NODES", "300"))
SECONDS = float(os.environ.get("TAS_OUTAGE_SECONDS", "3"))
STALE_SECONDS = 1.5
"""After so many seconds of an outage no value is known any more."""

FILES = 50
"""So many files of policies are changed."""

MOST_WINDOWS = 20
"""What is kept stays in one of so many windows. On a busy machine what began before takes some of them."""

MOST_MORE = 40
"""How much more there may be of a kind: a process opens one or two connections at the end of a window, or none."""

STEPS, TASKS, LINES = 60, 4, 2
"""How many steps and tasks a try may take, and how many lines an event a second."""

FIRST_TRIES = 8
"""So many tries of a node at most are nearer than half of the longest delay."""

HANDLED = "WorkQueue._handle_key"
FOREVER = 10**6

OF_FILES = ("policies", "keeper")
"""The processes with another bus: `policies` stores the policies of files in place of those of a cluster."""

OF_CLUSTER = tuple(spec.name for spec in with_commands() if spec.name not in OF_FILES)

FAULTS: dict[str, Callable[[Faults], object]] = {
    "errors": lambda faults: faults.answer(500, times=FOREVER),
    "throttles": lambda faults: faults.answer(429, times=FOREVER),
    "drops": lambda faults: faults.drop(times=FOREVER),
    "hangs": lambda faults: faults.delay(FOREVER, times=FOREVER),
}

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("logging_restored")]


@pytest.fixture(autouse=True)
def _no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other replica of `labels` knows the freezes of an older bus."""
    monkeypatch.setattr("workers.labels.breaker_records.STRANGER_SECONDS", 0.0)


@dataclass(frozen=True, kw_only=True)
class World:
    """All processes, which have set all labels that are wanted."""

    cluster: Cluster
    sandbox: Sandbox
    observer: Observer
    files: Path

    def want(self) -> None:
        """From now on every node wants other labels, has lost those that it had, and all files are others."""
        self.cluster.turn()
        self.cluster.disturb()
        write_files(self.files, metric="other")

    async def has_recovered(self) -> None:
        """Waits until every node has the labels that it wants."""
        await eventually(self.cluster.is_labeled, every=0.1)

    async def window(self) -> Window:
        """The first window in which nothing that is kept grows."""
        await asyncio.sleep(STALE_SECONDS)
        grown: list[dict[str, int]] = []
        while len(grown) < MOST_WINDOWS:
            window = await self.observer.window(SECONDS)
            grown.append({what: more for what, more in window.more().items() if more > MOST_MORE})
            if not grown[-1]:
                return window
        raise AssertionError(f"grows in each of {MOST_WINDOWS} windows, in the last ones by {grown[-3:]}")


def write_files(folder: Path, *, metric: str) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(FILES):
        (folder / f"{number}.json").write_bytes(msgspec.json.encode(manifest(number, metric)))


async def publishing(server: Server, cluster: Cluster) -> None:
    """Publishes the value of every node again and again, as another source than those of `collect`."""
    async with Bus.connect(server.url, name="test") as bus:
        while True:
            with suppress(BusError):
                await publish(bus, {node: {METRIC: value} for node, value in cluster.values().items()})
            await asyncio.sleep(STALE_SECONDS / 4)


@asynccontextmanager
async def running(folder: Path, of_cluster: Server, of_files: Server) -> AsyncIterator[World]:
    files, sinks, kubeconfig = folder / "policies", folder / "sinks.yaml", folder / "kubeconfig"
    sinks.write_text("sinks: {cluster: {type: kubernetes-events}}")
    write_files(files, metric=METRIC)
    async with Sandbox.start() as sandbox:
        sandbox.kubeconfig(kubeconfig)
        cluster = Cluster(sandbox, nodes=NODES, policies=5)
        settings = {"stale_after": f"{STALE_SECONDS:g}s", "period": "0.5s", "source": "custom-metrics"}
        settings |= {"kubeconfig": str(kubeconfig), "sinks": str(sinks), "policies": str(files), "node": "node-00000"}
        async with AsyncExitStack() as stack:
            observer = stack.enter_context(Observer.observing(sandbox))
            for names, server in ((OF_CLUSTER, of_cluster), (OF_FILES, of_files)):
                processes = Processes(names, settings | {"bus": server.url})
                await stack.enter_async_context(processes.running())
            source = asyncio.create_task(publishing(of_cluster, cluster))
            stack.callback(source.cancel)
            world = World(cluster=cluster, sandbox=sandbox, observer=observer, files=files)
            await world.has_recovered()
            yield world


def too_much(window: Window, handled: Callable[[str], float]) -> dict[str, int]:
    """What each process did more often than it should if its queue may handle so many keys."""
    found = {}
    for what in ("steps", "begun", "requests", "lines"):
        for (process, kind), count in window.done(what).items():
            if not process:
                continue  # the test itself
            most = handled(process)
            limits = {"steps": STEPS * most, "begun": TASKS * most, "requests": most, HANDLED: most}
            limits["lines"] = LINES * (1 + window.seconds)
            if count > limits.get(kind, limits[what]):
                found[f"{what} of {process}: {kind}"] = count
    return found


def handling(window: Window) -> set[str]:
    """The processes that handled keys."""
    return {process for process, kind in window.done("begun") if kind == HANDLED}


def at_once(process: str) -> int:
    """How many keys the queue of a process handles at the same time, or another limit of this size."""
    module = import_module(f"workers.{process}.worker")
    return getattr(module, "MAX_CONCURRENT", WRITES_AT_ONCE)


async def test_without_the_bus_nothing_grows_and_only_some_nodes_are_tried(
    server: Server, new_server: Server, tmp_path: Path
) -> None:
    """A chain of tracebacks took 40 MB a minute in `evaluate`, and 1,400 nodes half a processor in `labels`."""
    async with running(tmp_path, server, new_server) as world:
        for is_frozen in (True, False):
            for each in (server, new_server):
                each.pause() if is_frozen else await each.kill()
            world.want()
            window = await world.window()
            pauses = 2 * (1 + window.seconds / LOST_SECONDS)  # one may be longer, and the next one shorter
            assert too_much(window, lambda process: at_once(process) * pauses) == {}  # noqa: B023
            assert {"evaluate", "labels", "marks"} <= handling(window)


@pytest.mark.parametrize("fault", FAULTS)
async def test_without_the_api_server_nothing_grows_and_each_node_is_tried_as_its_backoff_allows(
    fault: str, server: Server, new_server: Server, tmp_path: Path
) -> None:
    async with running(tmp_path, server, new_server) as world:
        FAULTS[fault](world.sandbox.faults)
        world.sandbox.cut_watches()
        world.want()
        window = await world.window()
        tries = NODES * (FIRST_TRIES + window.seconds / (RETRY.longest / 2))
        assert too_much(window, lambda _: tries) == {}
        assert "labels" in handling(window) or fault == "hangs", window.done("begun")
        world.sandbox.faults.clear()
