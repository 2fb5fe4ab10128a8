"""What every worker is: commands, help, settings, ports, rights and `tas run all` follow from it.

Each worker of `workers.names` is a folder beside this file, whose `__init__` has its `SPEC`. What can follow from it by
no code (the chart, the Procfile, tables of the documentation) is compared by `tests/contract/test_workers.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from bus.buckets import ALL, Bucket, Stream
from bus.buckets import WORKERS as PROCESSES
from workers.names import ALL_WORKERS, NAMES, ON_EACH_NODE, run_by
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.settings import Settings


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


def workers_of_all(settings: "Settings") -> tuple[str, ...]:
    """The workers of `tas run all`, besides the embedded server."""
    return tuple(name for name, spec in WORKERS.items() if spec.in_all is not None and spec.in_all(settings))


def needed_by(workers: Sequence[str]) -> tuple[Stream | Bucket, ...]:
    """The streams and buckets without which these workers, and the record of their process, cannot work.

    On a closed bus they ask for them. A program on each node may not: it publishes, and sees by its acknowledgements
    whether there is a stream.
    """
    if ON_EACH_NODE.issuperset(workers):
        return ()
    specs = [WORKERS[name] for name in workers]
    needed = {of for spec in specs for of in spec.rights.streams if of not in spec.optional}
    needed.add(PROCESSES)
    return tuple(of for of in ALL if of in needed)


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
