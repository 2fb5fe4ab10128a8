"""How many tests run at a time, and which worker of pytest-xdist runs which: some calculate, the others mostly wait.

Tests of `tests/integration` mostly wait, and the others mostly calculate. A worker collects the tests of its kind
alone: together they need half of the processor time that collecting all needs. Those that calculate are nice: what the
others leave them is enough, and a test that waits for a deadline does not wait for them as well.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
from xdist.remote import Producer
from xdist.scheduler import WorkStealingScheduling
from xdist.workermanage import WorkerController

WORKERS_PER_CORE = 6
"""One that calculates, and five that mostly wait: for the start of a server, a deadline, a process.

With three that wait, half of the processors was idle once the others had ended. One that waits costs 4 s to start.
"""

WORKER_BYTES = 1 << 30
"""The most that one worker of pytest needs, with the processes of its test."""

CALCULATES, WAITS = "calculates", "waits"
WAITING = Path("tests", "integration")
NICE = 3

KIND = "tas_kind"
OF_KIND = "tas_workers_of_kind"
"""What a worker is told: its kind, and how many workers have it."""


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers() -> int:
    """With `-n auto`: as many as cores and memory allow, or `TAS_TEST_WORKERS`; 0 runs tests one after another."""
    if wanted := os.environ.get("TAS_TEST_WORKERS"):
        if not wanted.isdecimal():
            raise pytest.UsageError(f"TAS_TEST_WORKERS = {wanted!r}: must be a number of workers")
        return int(wanted)
    by_memory = psutil.virtual_memory().available // WORKER_BYTES
    return max(1, min((os.cpu_count() or 1) * WORKERS_PER_CORE, by_memory))


class ByKind:
    """The scheduler of pytest-xdist for each kind of tests, and the kind of each worker.

    Args:
        workers: How many workers of each kind begin. One that ends by a fault is replaced by another of its kind.
    """

    def __init__(self, config: pytest.Config, workers: dict[str, int]) -> None:
        self._config = config
        self._workers = workers
        self._kinds: dict[WorkerController, str] = {}
        self._next = [kind for kind, number in workers.items() for _ in range(number)]
        self._of: dict[str, WorkStealingScheduling] = {}

    # Hooks of pytest-xdist

    def pytest_configure_node(self, node: WorkerController) -> None:
        """Gives a new worker its kind."""
        kind = self._kinds[node] = self._next.pop(0)
        node.workerinput.update({KIND: kind, OF_KIND: self._workers[kind]})

    def pytest_testnodedown(self, node: WorkerController, error: object | None) -> None:
        """Notes the kind of a worker that is replaced next."""
        if error:
            self._next.append(self._kinds[node])

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> "ByKind":
        for kind, number in self._workers.items():
            self._of[kind] = WorkStealingScheduling(config, log)
            self._of[kind].numnodes = number
        return self

    # A scheduler of pytest-xdist

    @property
    def nodes(self) -> list[WorkerController]:
        return [node for each in self._of.values() for node in each.nodes]

    @property
    def collection_is_completed(self) -> bool:
        return all(each.collection_is_completed for each in self._of.values())

    @property
    def tests_finished(self) -> bool:
        return all(each.tests_finished for each in self._of.values())

    @property
    def has_pending(self) -> bool:
        return any(each.has_pending for each in self._of.values())

    def add_node(self, node: WorkerController) -> None:
        self._scheduler(node).add_node(node)

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        self._scheduler(node).add_node_collection(node, collection)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        self._scheduler(node).mark_test_complete(node, item_index, duration)

    def mark_test_pending(self, item: str) -> None:
        next(each for each in self._of.values() if item in (each.collection or ())).mark_test_pending(item)

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        self._scheduler(node).remove_pending_tests_from_node(node, indices)

    def remove_node(self, node: WorkerController) -> str | None:
        crashed: str | None = self._scheduler(node).remove_node(node)
        return crashed

    def schedule(self) -> None:
        for each in self._of.values():
            each.schedule()
        session = self._config.pluginmanager.get_plugin("session")
        assert isinstance(session, pytest.Session)
        session.testscollected = sum(len(each.collection or ()) for each in self._of.values())  # for the percentages

    def _scheduler(self, node: WorkerController) -> WorkStealingScheduling:
        return self._of[self._kinds[node]]


class OneKind:
    """In a worker: collects the tests of its kind.

    Args:
        given: What the worker was told: its id and its kind, and how many workers have this kind.
    """

    def __init__(self, root: Path, given: dict[str, Any]) -> None:
        self._root = root
        self._given = given
        self._waits: bool = given[KIND] == WAITS
        if not self._waits and hasattr(os, "nice"):
            os.nice(NICE)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Imports a part of the test modules that no other worker begins with.

        After a change pytest compiles each of them. Workers that begin with the same module each compile that module.
        """
        number, workers = int(self._given["workerid"].removeprefix("gw")), self._given[OF_KIND]
        modules = sorted(self._modules(session.config.getini("testpaths")))
        for path in modules[number % workers :: workers]:
            # The collection imports the module again, and reports what fails there.
            with suppress(Exception, pytest.skip.Exception):
                import_module(".".join(path.with_suffix("").parts))

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        path = collection_path.relative_to(self._root)
        if len(path.parts) < len(WAITING.parts):
            return None
        return None if self._is_of_kind(path) else True

    def _modules(self, folders: Iterable[str]) -> Iterator[Path]:
        for path in (path for folder in folders for path in (self._root / folder).rglob("test_*.py")):
            if self._is_of_kind(module := path.relative_to(self._root)) and (path.parent / "__init__.py").exists():
                yield module

    def _is_of_kind(self, path: Path) -> bool:
        return path.is_relative_to(WAITING) == self._waits


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets each worker of pytest-xdist begin with some of the longest tests: at the end they would run alone.

    Those are the tests with the marker `seeded` or `long`. A worker gets its part of the list in one piece.
    """
    given: dict[str, int] = getattr(config, "workerinput", {})
    workers = given.get(OF_KIND, given.get("workercount", 1))
    is_long = [any(map(item.get_closest_marker, ("seeded", "long"))) for item in items]
    long = [item for item, first in zip(items, is_long, strict=True) if first]
    others = [item for item, first in zip(items, is_long, strict=True) if not first]
    part = -(-len(others) // workers)
    parts = [[*long[number::workers], *others[number * part : (number + 1) * part]] for number in range(workers)]
    items[:] = [item for each in parts for item in each]


def pytest_configure(config: pytest.Config) -> None:
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if KIND in given:
        config.pluginmanager.register(OneKind(config.rootpath, given), "tas-one-kind")
        return
    workers = len(config.getoption("tx", None) or ())
    is_whole = config.args == config.getini("testpaths") and config.getoption("dist", "no") == "worksteal"
    if is_whole and workers >= WORKERS_PER_CORE:
        calculating = workers // WORKERS_PER_CORE
        config.pluginmanager.register(
            ByKind(config, {CALCULATES: calculating, WAITS: workers - calculating}), "tas-by-kind"
        )
