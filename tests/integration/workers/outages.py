"""Every worker as a process of its own on the loop of a test, and counts of what each of them does and keeps.

The counts are those of Python and of its event loop, so they need to know nothing of a worker.
"""

import asyncio
import gc
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import structlog

from cli.loading import load_settings, takes
from cli.wiring import Process
from lab.sandbox.resources import NODES, TASPOLICIES
from tests.integration.servers import eventually
from tests.kubernetes.world import deschedule, labeling, rule
from tests.sandbox import Sandbox
from workers.names import run_by

NAMESPACE = "default"
METRIC = "health"

PROCESS: ContextVar[str] = ContextVar("process", default="")
"""The process of the running code: tasks, timers and callbacks have that of the code which began them."""

NO_SIGN = ("asyncio.events.TimerHandle", "_contextvars.Context")
"""Not counted: the loop keeps cancelled timers, empty, until they are more than half of all. Live ones are counted."""

Key = tuple[str, str]


class Tally(Counter[Any]):
    """A count of the observer, which itself is not counted."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What there is, and what has been done so far.

    Attributes:
        at: The time of the loop.
        kept: The live objects by type, the entries of all containers by their type, and the live timers by process.
        done: By process and kind, what it did: steps (of tasks, and other callbacks of the loop), tasks that it began,
            requests that reached the API server, and lines in the log.
    """

    at: float
    kept: Mapping[str, int]
    done: Mapping[str, Tally]


class Window:
    """What happened between two counts."""

    def __init__(self, before: Counts, after: Counts) -> None:
        self.seconds = after.at - before.at
        self._before = before
        self._after = after

    def more(self) -> dict[str, int]:
        """By how much more there is of what is kept."""
        return {what: count - self._before.kept.get(what, 0) for what, count in self._after.kept.items()}

    def done(self, what: str) -> dict[Key, int]:
        """What was done within the window, by process and kind."""
        return dict(self._after.done[what] - self._before.done[what])


class Observer:
    """Counts, while `observing` is entered. No log event is written meanwhile."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._done = {what: Tally() for what in ("steps", "begun", "requests", "lines")}

    @classmethod
    @contextmanager
    def observing(cls, sandbox: Sandbox) -> Iterator["Observer"]:
        """An observer of all that runs on this loop."""
        observer, loop, run = cls(sandbox), asyncio.get_running_loop(), asyncio.Handle._run
        steps = observer._done["steps"]

        def stepped(handle: Any) -> None:
            steps[handle._context.get(PROCESS, ""), "step"] += 1
            run(handle)

        loop.set_task_factory(observer._begin)
        structlog.configure(processors=[observer._line])
        try:
            with patch.object(asyncio.Handle, "_run", stepped):
                yield observer
        finally:
            loop.set_task_factory(None)

    def _begin(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> "asyncio.Task[Any]":
        self._done["begun"][PROCESS.get(), getattr(coroutine, "__qualname__", "")] += 1  # an `athrow` has none
        return asyncio.Task(coroutine, loop=loop, **named)

    def _line(self, _logger: object, method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
        if method != "debug":
            self._done["lines"][PROCESS.get(), line["event"]] += 1
        raise structlog.DropEvent

    def count(self) -> Counts:
        """The counts of now. The requests that the API server remembers are forgotten."""
        for call in self._sandbox.calls:
            self._done["requests"][call.user_agent.rpartition("/")[2], call.verb] += 1
        self._sandbox.calls.clear()
        gc.unfreeze()  # each process leaves out what existed before it ran
        gc.collect()
        loop: Any = asyncio.get_running_loop()
        done = {what: Tally(tally) for what, tally in self._done.items()}
        timers = Counter(each._context.get(PROCESS, "") for each in loop._scheduled if not each._cancelled)
        kept = _objects() | {f"timers of {process or 'the test'}": count for process, count in timers.items()}
        return Counts(at=loop.time(), kept=kept, done=done)

    async def window(self, seconds: float) -> Window:
        """What happens within so many seconds, or more."""
        before = self.count()
        await asyncio.sleep(seconds)
        return Window(before, self.count())


def _objects() -> dict[str, int]:
    """The live objects by type, and the entries of containers."""
    found: Counter[str] = Counter()
    entries: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        if issubclass(kind, Tally):
            continue
        found[f"{kind.__module__}.{kind.__qualname__}"] += 1
        if issubclass(kind, dict | list | set | deque):
            entries[f"entries of {kind.__qualname__}"] += len(each)
    return {kind: count for kind, count in (found | entries).items() if kind not in NO_SIGN}


class Cluster:
    """Nodes and policies of a sandbox, and the values of the nodes that decide about their labels."""

    def __init__(self, sandbox: Sandbox, *, nodes: int, policies: int) -> None:
        self._sandbox = sandbox
        self.nodes = [f"node-{number:05}" for number in range(nodes)]
        for number in range(policies):
            sandbox.cluster.create(TASPOLICIES, NAMESPACE, manifest(number), manager="test")
        for node in self.nodes:
            sandbox.add_node(node)
        self._odd = False
        self.turn()

    def turn(self) -> None:
        """The values change so that each policy wants its label on the other half of the nodes."""
        self._odd = not self._odd
        for node, value in self.values().items():
            self._sandbox.metrics.set(METRIC, node, value)

    def values(self) -> dict[str, str]:
        """The value of each node: 9 violates every policy, and 0 none."""
        return {node: "9" if number % 2 == self._odd else "0" for number, node in enumerate(self.nodes)}

    def is_labeled(self) -> bool:
        """Whether the nodes have the labels that their values want."""
        labeled = {
            each["metadata"]["name"]
            for each in self._sandbox.cluster.store.items(NODES)
            if "policy-0" in each["metadata"]["labels"]
        }
        return labeled == {node for node, value in self.values().items() if value == "9"}

    def disturb(self) -> None:
        """Somebody changes every node, and takes the labels of the policies from it."""
        for node in self.nodes:
            labels = self._sandbox.cluster.get(NODES, "", node)["metadata"]["labels"]
            taken = {name: None for name in labels if name.startswith("policy-")}
            change = {"metadata": {"labels": taken | {"changed": str(self._odd)}}}
            self._sandbox.cluster.patch(NODES, "", node, change, manager="test")


def manifest(number: int, metric: str = METRIC) -> dict[str, Any]:
    """A policy of which each worker takes something."""
    bad = rule(metric, number, "GreaterThan")
    strategies = {
        "dontschedule": {"rules": [bad]},
        "scheduleonmetric": {"rules": [rule(f"{metric}:max:1m", 0, "GreaterThan")]},
        **deschedule(bad, taint={"effect": "PreferNoSchedule"}, nodeCondition=True),
        **labeling(rule(metric, number, "GreaterThan", f"card={number}")),
    }
    return {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": f"policy-{number}", "namespace": NAMESPACE},
        "spec": {"strategies": strategies},
    }


class Processes:
    """A process for each of these commands, with one bus and one API server. `settings` as a user writes them."""

    OFF: ClassVar = dict.fromkeys(("breaker", "breaker_all", "label_rate", "label_rate_all"), "off")

    def __init__(self, names: Collection[str], settings: Mapping[str, str]) -> None:
        free = "127.0.0.1:0"
        self._names = names
        self._given = {"health_listen": free, "listen": free, "flap_budget": "0", "new_bus_wait": "0s"}
        self._given |= {**self.OFF, "node_resource": "1000", "allocations": "on", "outcomes": "on", **settings}
        self._processes: dict[str, Process] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs them, and waits until all their workers are ready; fails if one has ended by itself."""
        tasks = [asyncio.create_task(self._live(name), name=name) for name in self._names]
        try:
            await eventually(lambda: not self.unready(), every=0.1)
            yield
            assert not [task for task in tasks if task.done()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _live(self, name: str) -> None:
        PROCESS.set(name)
        given = {setting: text for setting, text in self._given.items() if takes(f"run {name}", setting)}
        async with AsyncExitStack() as stack:
            process = Process(load_settings(f"run {name}", given), stack)
            await process.build(run_by(name))
            self._processes[name] = process
            await process.run(asyncio.Event())

    def unready(self) -> dict[str, str]:
        """The workers that are not ready, each with the reason."""
        found = {name: "is not built" for name in self._names if name not in self._processes}
        for process in self._processes.values():
            found |= process.unready()
        return found
