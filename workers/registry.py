"""The one list of workers: commands, help, settings, ports, rights and `tas run all` follow from it.

Each worker is a folder beside this file, whose `__init__` has its `SPEC`. What can follow from the list by no code (the
chart, the Procfile, tables of the documentation) is compared with it by `tests/contract/test_workers.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from bus.buckets import WORKERS as PROCESSES
from bus.buckets import Bucket, Stream
from bus.rights.roles import Rights, streams_of
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.settings import Settings

NAMES = [
    "materialize",
    "windows",
    "watch",
    "status",
    "policies",
    "evaluate",
    "extender",
    "labels",
    "marks",
    "resources",
    "collect",
    "events",
    "notify",
    "inventory",
    "gpu",
    "evictions",
    "agents",
    "machine",
    "keeper",
]
"""In the order in which `tas run all` builds them."""

ON_EACH_NODE = frozenset({"machine"})
"""Of these there are as many as nodes: they have the role of other programs there, and say nothing of themselves."""

ALL_WORKERS = "all"
"""The name, and the role, of a process that runs the workers of several commands."""


class _Workers(Mapping[str, WorkerSpec]):
    """Imports the folder of a worker when somebody asks for it: most commands need none."""

    def __getitem__(self, name: str) -> WorkerSpec:
        if name not in NAMES:
            raise KeyError(name)
        spec: WorkerSpec = import_module(f"workers.{name}").SPEC
        return spec

    def __contains__(self, name: object) -> bool:
        return name in NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


WORKERS: Mapping[str, WorkerSpec] = _Workers()
"""Every worker by its name."""


def with_commands() -> Iterator[WorkerSpec]:
    """The workers that have a command `tas run NAME`."""
    return (spec for spec in WORKERS.values() if spec.port is not None)


def run_by(command: str) -> tuple[str, ...]:
    """The workers that `tas run COMMAND` runs."""
    return (command, *WORKERS[command].beside)


def workers_of(role: str) -> tuple[str, ...]:
    """The workers that a process of this role may run; none for roles of people and of other programs."""
    if role == ALL_WORKERS:
        return tuple(name for name in NAMES if name not in ON_EACH_NODE)
    return run_by(role) if role in WORKERS and role not in ON_EACH_NODE else ()


def workers_of_all(settings: "Settings") -> tuple[str, ...]:
    """The workers of `tas run all`, besides the embedded server."""
    return tuple(name for name, spec in WORKERS.items() if spec.in_all is not None and spec.in_all(settings))


def needed_by(workers: Sequence[str]) -> tuple[Stream | Bucket, ...]:
    """The streams and buckets without which these workers, and the record of their process, cannot work."""
    record = Rights(reads=() if ON_EACH_NODE.issuperset(workers) else (PROCESSES,))
    return streams_of([record, *(WORKERS[name].rights for name in workers)])


def takes(command: str, setting: str) -> bool:
    """Whether a command runs a worker with this setting: `run NAME`, or `run all`."""
    if command == f"run {ALL_WORKERS}":
        return any(
            spec.takes(setting) and spec.in_all is not None and setting not in spec.alone for spec in WORKERS.values()
        )
    name = command.removeprefix("run ")
    return name != command and name in WORKERS and any(WORKERS[each].takes(setting) for each in run_by(name))


def default_of(command: str, setting: str) -> str | None:
    """The default of the worker that a command runs, if it has one of its own."""
    name = command.removeprefix("run ")
    return WORKERS[name].default(setting) if name != command and name in WORKERS else None
