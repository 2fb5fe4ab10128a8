"""Nodes, pods and events for the check of an agent: made, from no measurement, and always the same."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn
from zlib import crc32

import numpy as np

from tas.agents.agent import ContainerDemand, FloatArray, Needs, PodDemand
from tas.outcomes.outcome import Outcome, Placed, Result
from tas.values.nouns import counted

NOW = 1_800_000_000.0
"""The time of the made view."""

COUNTS = (0, 1, 2, 9)
"""How many candidates a request has."""

EDGES = (np.nan, 0.0, -0.0, 1e-9, 0.5, 1.0, 100.0, 1e6, 1e12, 1e40, -1e-9, -1.0, -1e40)
"""Values at the edges; 1e40 is the largest that a metric can have, and 1e-9 the smallest."""


class ValueKind(StrEnum):
    """What the values of made nodes are."""

    PLAUSIBLE = "plausible values"
    PARTIAL = "some values missing"
    UNKNOWN = "all values missing"
    ZERO = "zeros"
    EQUAL = "equal nodes"
    EDGES = "values at the edges"


class UndeclaredError(Exception):
    """The agent reads what its needs do not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request."""

    title: str
    kind: ValueKind
    pod: PodDemand
    nodes: "MadeCandidates"


def cases(needs: Needs) -> Iterator[Case]:
    """Requests of each kind and size for an agent with these needs."""
    pods = _pods(needs)
    derived: _Derived = {}
    for kind in ValueKind:
        for count in COUNTS:
            names = tuple(f"node-{number}" for number in range(count))
            others = tuple(f"other-{number}" for number in range(3))
            for what, pod in pods.items():
                yield Case(
                    title=f"{counted(count, 'node')} with {kind} and a pod {what}",
                    kind=kind,
                    pod=pod,
                    nodes=MadeCandidates(names, kind, needs, others, derived),
                )


def _pods(needs: Needs) -> dict[str, PodDemand]:
    some = {"cpu": 500.0, "memory": 256.0 * 2**20, "example.com/card": 1.0}
    found = {
        "without requests": _pod({}, needs),
        "with requests": _pod(some, needs),
        "larger than any node": _pod({"cpu": 1e15, "memory": 1e18}, needs),
    }
    if needs.pod:  # for other agents all of these are the same
        found["with two containers and an overhead"] = _pod(some, needs, containers=2, overhead={"cpu": 50.0})
        found["that asks as a whole"] = _pod(some, needs, containers=0)
    return found


def _pod(
    each: Mapping[str, float], needs: Needs, *, containers: int = 1, overhead: Mapping[str, float] | None = None
) -> PodDemand:
    """A pod with so many equal containers; with none it asks for as much as one."""
    added, count = overhead or {}, max(containers, 1)
    limit: Mapping[str, float] = {name: 2 * amount for name, amount in each.items()}
    requests, limits = (_total(count, of, added) for of in (each, limit))
    if not needs.pod:
        each = requests = _Undeclared("requests of the pod")
        limit = limits = _Undeclared("limits of the pod")
        added = _Undeclared("overhead of the pod")
    return PodDemand(
        namespace="default",
        name="web-1",
        uid="uid-web-1",
        labels={"app": "kind-0"},
        requests=requests,
        limits=limits,
        containers=(ContainerDemand(requests=each, limits=limit),) * containers,
        overhead=added,
    )


def _total(count: int, each: Mapping[str, float], added: Mapping[str, float]) -> Mapping[str, float]:
    return {name: count * amount + added.get(name, 0.0) for name, amount in each.items()}


class _Undeclared(Mapping[str, float]):
    """Amounts of a pod that are not decoded, since the agent does not need them."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getitem__(self, key: str) -> float:
        self._refuse()

    def __iter__(self) -> Iterator[str]:
        self._refuse()

    def __len__(self) -> int:  # noqa: PLE0303  # it has none
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UndeclaredError(f"reads {self._what}, which its needs do not name")


_Derived = dict[tuple[Hashable, ValueKind, str], FloatArray]
"""What was derived of a node in any of the requests, by the key of the computation."""


class MadeColumns:
    """Columns of made values. The values of a node depend on its name and the column alone."""

    def __init__(self, names: Sequence[str], kind: ValueKind, needs: Needs, derived: _Derived) -> None:
        self.names = names
        self._derived = derived
        self.kind = kind
        self.needs = needs

    def metric(self, name: str) -> FloatArray:
        """The metric, if the agent needs it."""
        if name not in self.needs.metrics:
            raise UndeclaredError(f"reads the metric {name}, which its needs do not name")
        return self._column("metric", name, 0.0, 100.0)

    def capacity(self, resource: str) -> FloatArray:
        """What the node has."""
        return self._amounts("capacity", resource, 6000.0, 8000.0)

    def allocatable(self, resource: str) -> FloatArray:
        """What pods may request."""
        return self._amounts("allocatable", resource, 4000.0, 6000.0)

    def requested(self, resource: str) -> FloatArray:
        """What its pods request."""
        return self._amounts("requested", resource, 0.0, 4000.0)

    def limited(self, resource: str) -> FloatArray:
        """What its pods may use."""
        return self._amounts("limited", resource, 0.0, 9000.0)

    def placed(self, resource: str, metric: str) -> FloatArray:
        """The requests of new pods."""
        if metric not in self.needs.metrics:
            raise UndeclaredError(f"reads pods placed since the metric {metric}, which its needs do not name")
        return np.nan_to_num(self._amounts("placed", resource, 0.0, 500.0), posinf=0.0)

    def derived(self, key: Hashable, compute: Callable[["MadeColumns"], FloatArray]) -> FloatArray:
        """What the computation returns, if each number depends on its node alone: not on the request either."""
        found = compute(self)
        for at, name in enumerate(self.names):
            of_node = found[:, at : at + 1]
            before = self._derived.get((key, self.kind, name))
            if before is not None and _same(of_node, before):
                continue
            alone = compute(MadeColumns((name,), self.kind, self.needs, self._derived))
            if not _same(of_node, alone):
                raise UndeclaredError("derives a value of a node from other nodes")
            if before is not None:
                raise UndeclaredError(
                    "derives a value of a node from the pod, beyond what the key has, or from what it has learned"
                )
            self._derived[key, self.kind, name] = alone
        return found

    def _amounts(self, what: str, resource: str, low: float, high: float) -> FloatArray:
        if not self.needs.allocations:
            raise UndeclaredError(f"reads {what} of nodes, which its needs do not name")
        unit = 2.0**20 if resource == "memory" else 1.0
        column = np.abs(self._column(what, resource, low * unit, high * unit))  # no amount is negative
        column.flags.writeable = False
        return column

    def _column(self, what: str, name: str, low: float, high: float) -> FloatArray:
        column = np.fromiter((self._value(node, what, name, low, high) for node in self.names), np.float64)
        column.flags.writeable = False
        return column

    def _value(self, node: str, what: str, name: str, low: float, high: float) -> float:
        """Always the same of the same node, in whichever order the nodes are."""
        if self.kind is ValueKind.EQUAL:
            node = ""
        number = crc32(f"{node}|{what}|{name}".encode())
        if self.kind is ValueKind.UNKNOWN or (self.kind is ValueKind.PARTIAL and number % 3 == 0):
            return np.nan
        if self.kind is ValueKind.ZERO:
            return 0.0
        if self.kind is ValueKind.EDGES:
            return EDGES[number % len(EDGES)]
        return low + (high - low) * (number / 2**32)


def _same(one: FloatArray, other: FloatArray) -> bool:
    """Whether numbers are the same but for their last digits: sums of floats depend on their order."""
    if one.shape != other.shape:
        return False
    same_bytes = one.tobytes() == other.tobytes()  # nearly always, and much faster to compare
    return same_bytes or np.allclose(one, other, rtol=1e-9, atol=0.0, equal_nan=True)


class MadeCandidates(MadeColumns):
    """The candidates of a made request; a cluster has some nodes more."""

    def __init__(
        self, names: Sequence[str], kind: ValueKind, needs: Needs, others: Sequence[str], derived: _Derived
    ) -> None:
        super().__init__(names, kind, needs, derived)
        self.others = others

    @property
    def now(self) -> float:
        """The time of the view."""
        return NOW

    @property
    def cluster(self) -> MadeColumns:
        """Some nodes more, if the agent needs them."""
        if not self.needs.whole_cluster:
            raise UndeclaredError("reads the whole cluster, which its needs do not name")
        return MadeColumns((*self.names, *self.others), self.kind, self.needs, self._derived)

    def mirrored(self) -> "MadeCandidates":
        """The same nodes in another order, of the cluster too."""
        return MadeCandidates(self.names[::-1], self.kind, self.needs, self.others[::-1], self._derived)


def events(*, later: float = 0.0) -> Iterator[Placed | Outcome]:
    """Pods that are placed, and runs of containers that go on, succeed, fail, and of which little is known."""
    for number in range(6):
        uid, node, at = f"uid-{number}-{later:g}", f"node-{number % 3}", NOW + later + number
        namespace, requests = f"namespace-{number % 2}", {"cpu": 100.0 * number, "memory": 2.0**20 * number}
        yield Placed(namespace=namespace, uid=uid, node=node, at=at, requests=requests)
        for restart, result in enumerate(Result):
            yield Outcome(
                namespace=namespace,
                uid=uid,
                node=node,
                container="main",
                restart=restart,
                result=result,
                labels={"app": f"kind-{number % 2}"},
                at=at + 60.0 * restart,
                started=None if number % 3 == 2 else at + 60.0 * restart - 30.0,
                finished=None if result is Result.RUNNING else at + 60.0 * restart,
                previous_finished=at + 60.0 * restart - 31.0 if restart else None,
            )
