"""What agents observe: pods that are placed, and how each run of a container goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Observed: a pod was placed on a node. A pod is observed once, also if it is tried several times.

    Attributes:
        at: When it was placed, in seconds since 1970, but not after its message arrived.
        requests: As in `PodDemand`.
        namespace: That of the pod; empty if an earlier version has published the event.
    """

    uid: str
    node: str
    at: float
    requests: Mapping[str, float]
    namespace: str = ""


class Result(StrEnum):
    """How a run of a container goes."""

    RUNNING = "running"
    """It has lasted for a minute, and goes on."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Observed: how one run of a container goes, or how it has ended. (uid, container, restart) identifies the run.

    Attributes:
        namespace: That of the pod; empty if an earlier version has published the event.
        container: Its name; empty if the pod has failed and none of its containers has.
        restart: The number of runs of the container before this one.
        at: When this was observed, by the clock of the observer, but not after its message arrived.
        labels: Those of the pod, of which the agent compares some.
        started: When the run began, in seconds since 1970; None if it is not known.
        finished: When the run ended; None while it runs, or if it is not known.
        previous_finished: When the run before ended; None if there was none, or if it is not known.
    """

    uid: str
    node: str
    container: str
    restart: int
    result: Result
    at: float
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    started: float | None = None
    finished: float | None = None
    previous_finished: float | None = None
