"""What is new about the pods of a cluster: each placement once, and each run of a container once or twice.

A run is news when it has lasted for a minute, and when it has ended. What the state of a pod has already said is no
news. So the list of pods that every follower of the API server reads again and again repeats nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from tas.outcomes.outcome import Outcome, Placed, Result
from tas.outcomes.runs import Run
from tas.view.deadlines import Deadlines

LASTED_SECONDS = 60.0
"""How long a run must last to go well: a container that keeps failing begins a run again and again."""

OLDEST_SECONDS = 3600.0
"""What happened so long before a pod was first seen is no news."""

MAX_LABEL_BYTES = 1024
"""The most bytes of the labels of a pod that go with each of its outcomes."""

MAX_REQUESTS = 16
"""The most resources of a placed pod, the first by name after `FIRST_REQUESTS`."""

FIRST_LABELS = ("podtype", "app", "name", "app.kubernetes.io/name")
"""The labels that always have room: they name the kind of a pod."""

FIRST_REQUESTS = ("cpu", "memory", "ephemeral-storage")

MAX_RUNS = 64
"""The runs of so many containers of a pod are news, the first ones: whoever writes the status of a pod may name any."""

MAX_SHARED = 1000
"""How many different tuples of runs are shared."""

Event = Placed | Outcome


class News(NamedTuple):
    """An event, and when it happened as far as that is known, in seconds since 1970."""

    event: Event
    happened: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPod:
    """A pod with a node, as the API server shows it.

    Attributes:
        requests: By resource; None if they cannot be read.
        placed_at: When it was placed, in seconds since 1970; None if that is unknown.
        runs: The runs of its containers.
        is_leaving: Whether somebody has deleted it: how its containers end then says nothing about the node.
    """

    namespace: str
    uid: str
    node: str
    requests: Mapping[str, float] | None
    placed_at: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    is_leaving: bool = False


class _RunKey(NamedTuple):
    uid: str
    container: str
    restart: int


_Seen = tuple[tuple[str, int, Result], ...]


class PodNews:
    """Finds what is new. Times are seconds since 1970, by the clock of the caller."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._shared: dict[_Seen, _Seen] = {}  # most pods have equal runs
        self._lasting: dict[_RunKey, Outcome] = {}
        self._due: Deadlines[_RunKey] = Deadlines()

    def __len__(self) -> int:
        return len(self._seen)

    def wants_requests(self, uid: str, placed_at: float | None, now: float, *, listed: bool) -> bool:
        """Whether the placement of a pod is news: only then its requests are needed, which take time to read."""
        return uid not in self._seen and (not listed or now - _happened(placed_at, now, listed=listed) < OLDEST_SECONDS)

    def see(self, pod: SeenPod, now: float, *, listed: bool = False) -> list[News]:
        """What is new of a pod. Of one that was `listed`, older events are no news."""
        found: list[News] = []
        before = self._seen.get(pod.uid)
        if before is None and pod.requests is not None:
            at = now if pod.placed_at is None else pod.placed_at
            requests = _first_requests(pod.requests)
            event = Placed(uid=pod.uid, node=pod.node, at=at, requests=requests, namespace=pod.namespace)
            found.append(News(event, _happened(pod.placed_at, now, listed=listed)))
        labels: Mapping[str, str] | None = None
        runs: list[tuple[str, int, Result]] = []
        for run in pod.runs[: 2 * MAX_RUNS]:  # of a container there are at most two
            state = (run.container, run.restart, run.result)
            runs.append(state)
            if before is not None and state in before:
                continue
            if labels is None:
                labels = kept_labels(pod.labels)
            key = _RunKey(pod.uid, run.container, run.restart)
            self._forget_lasting(key)
            outcome = _outcome(pod, run, labels, now)
            if run.result is not Result.RUNNING:
                if not pod.is_leaving:
                    found.append(News(outcome, _happened(run.finished, now, listed=listed)))
                continue
            due = min(now, now if run.started is None else run.started) + LASTED_SECONDS
            if now - due < OLDEST_SECONDS:
                self._lasting[key] = outcome
                self._due.set(key, due)
        self._remember(pod.uid, tuple(runs))
        return [each for each in found if not listed or now - each.happened < OLDEST_SECONDS]

    def lasting(self, now: float) -> list[News]:
        """The runs that have lasted long enough by now."""
        found = []
        while (due := self._due.next()) is not None and due <= now:
            (key,) = self._due.pop_due(now, limit=1)
            outcome = self._lasting.pop(key, None)
            if outcome is not None:
                found.append(News(replace(outcome, at=now), due))
        return found

    def forget(self, uid: str) -> None:
        """The pod is gone. A run that had not ended then says nothing."""
        for container, restart, _ in self._seen.pop(uid, ()):
            self._forget_lasting(_RunKey(uid, container, restart))

    def keep(self, uids: set[str]) -> None:
        """Forgets all pods but these, which a complete list has."""
        for uid in self._seen.keys() - uids:
            self.forget(uid)

    def _remember(self, uid: str, runs: _Seen) -> None:
        left = {each[:2] for each in runs}
        for container, restart, _ in self._seen.get(uid, ()):
            if (container, restart) not in left:
                self._forget_lasting(_RunKey(uid, container, restart))
        if len(self._shared) > MAX_SHARED:
            self._shared.clear()
        self._seen[uid] = self._shared.setdefault(runs, runs)

    def _forget_lasting(self, key: _RunKey) -> None:
        if self._lasting.pop(key, None) is not None:
            self._due.discard(key)


def kept_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """As many labels as there is room for, `FIRST_LABELS` first, the others by name."""
    kept: dict[str, str] = {}
    left = MAX_LABEL_BYTES
    for name in (*FIRST_LABELS, *sorted(labels)):
        if name not in labels or name in kept:
            continue
        left -= len(name) + len(labels[name])
        if left < 0:
            break
        kept[name] = labels[name]
    return kept


def _first_requests(requests: Mapping[str, float]) -> dict[str, float]:
    first = (name for name in FIRST_REQUESTS if name in requests)
    names = (*first, *sorted(requests.keys() - set(FIRST_REQUESTS)))
    return {name: requests[name] for name in names[:MAX_REQUESTS]}


def _outcome(pod: SeenPod, run: Run, labels: Mapping[str, str], at: float) -> Outcome:
    return Outcome(
        namespace=pod.namespace,
        uid=pod.uid,
        node=pod.node,
        container=run.container,
        restart=run.restart,
        result=run.result,
        at=at,
        labels=labels,
        started=run.started,
        finished=run.finished,
        previous_finished=run.previous_finished,
    )


def _happened(at: float | None, now: float, *, listed: bool) -> float:
    """When it happened; without its time now, but of a pod that was listed it may be long ago."""
    if at is None:
        return -inf if listed else now
    return at
