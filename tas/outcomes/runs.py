"""How the runs of a pod's containers go, from the status that the kubelet reports.

The status of a container has its present state, the end of the run before it, and how often it was restarted. The run
before has the number below, but if the container waits for its next run, the end is that of the run with the number
(facts.md c53).
"""

from collections.abc import Iterator

import msgspec

from tas.outcomes.outcome import Result

FAILED = "Failed"
"""The phase of a pod that has failed."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run: times in seconds since 1970, None if unknown."""

    exit_code: int
    started: float | None = None
    finished: float | None = None


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a container.

    Attributes:
        restarts: How often it was restarted.
        running: Whether it runs.
        started: Since when it runs, in seconds since 1970; None if it does not, or if that is unknown.
        ended: How its run has ended, if it neither runs nor waits.
        before: How the run before has ended.
    """

    name: str
    restarts: int
    running: bool = False
    started: float | None = None
    ended: Ended | None = None
    before: Ended | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a container; the fields are those of `Outcome`."""

    container: str
    restart: int
    result: Result
    started: float | None = None
    finished: float | None = None
    previous_finished: float | None = None


def runs_of(phase: str, containers: tuple[ContainerState, ...]) -> tuple[Run, ...]:
    """The runs that the status of a pod tells of, those before others first.

    A pod that has failed without a failed container, as one that the kubelet has not admitted, counts as one run of a
    container without a name.
    """
    runs = tuple(run for container in containers for run in _of_container(container))
    if phase == FAILED and not any(run.result is Result.FAILED for run in runs):
        return (*runs, Run(container="", restart=0, result=Result.FAILED))
    return runs


def _of_container(container: ContainerState) -> Iterator[Run]:
    name, restarts, before = container.name, container.restarts, container.before
    present = container.running or container.ended is not None
    if before is not None and (number := restarts - 1 if present else restarts) >= 0:
        yield _ended(name, number, before, None)
    previous = None if before is None else before.finished
    if container.running:
        yield Run(
            container=name,
            restart=restarts,
            result=Result.RUNNING,
            started=container.started,
            previous_finished=previous,
        )
    elif container.ended is not None:
        yield _ended(name, restarts, container.ended, previous)


def _ended(name: str, number: int, end: Ended, previous_finished: float | None) -> Run:
    return Run(
        container=name,
        restart=number,
        result=Result.FAILED if end.exit_code else Result.SUCCEEDED,
        started=end.started,
        finished=end.finished,
        previous_finished=previous_finished,
    )
