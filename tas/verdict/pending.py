"""The pending evaluations: nodes with their policies, and nodes that must be evaluated at a later time."""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from tas.policy.policy import PolicyKey
from tas.verdict.outstanding import GIVE_UP_SECONDS, TOGETHER_SECONDS


@dataclass(slots=True)
class Touched:
    """The pending evaluation of one node: some policies or all, since a monotonic time."""

    since: float
    by_all: bool = False
    policies: set[PolicyKey] = field(default_factory=set)


class PendingNodes:
    """The nodes with pending evaluations, and the times at which nodes must be evaluated again."""

    def __init__(self) -> None:
        self._touched: dict[str, Touched] = {}
        self._taken: dict[str, Touched] = {}  # that are being evaluated
        self._young: dict[str, float] = {}  # since when nodes of both are pending, but for some that are for too long
        self._due: dict[str, float] = {}

    def __len__(self) -> int:
        """The number of nodes with a pending evaluation."""
        return len(self._touched)

    def seconds(self, *, at: float) -> float:
        """For how long the oldest evaluation has been pending, until it has ended; `at` is monotonic."""
        pending = chain(self._touched.values(), self._taken.values())
        return max(0.0, at - min((touched.since for touched in pending), default=at))

    def add(self, node: str, policies: Collection[PolicyKey], *, at: float) -> None:
        """Adds an evaluation of some policies; `at` is monotonic."""
        self._touch(node, at).policies.update(policies)

    def add_by_all(self, node: str, *, at: float) -> None:
        """Adds an evaluation of all policies; `at` is monotonic."""
        self._touch(node, at).by_all = True

    def clear(self) -> None:
        """Removes all pending evaluations."""
        self._touched.clear()
        self._young = {node: touched.since for node, touched in self._taken.items()}

    def take(self, node: str, *, at: float, now: float) -> Touched:
        """Removes and returns the node's pending evaluation; `at` is monotonic, `now` in seconds since 1970."""
        touched = self._touched.pop(node, None) or Touched(at)
        if self.due(node) <= now:
            touched.by_all = True
        self._taken[node] = touched
        self._young.setdefault(node, touched.since)
        return touched

    def end(self, node: str) -> None:
        """Applies that the evaluation that was taken has ended; one that has failed is put back first."""
        self._taken.pop(node, None)
        self._young.pop(node, None)
        if (touched := self._touched.get(node)) is not None:
            self._young[node] = touched.since

    def are_others(self, node: str, *, at: float, now: float, is_due: bool = False) -> bool:
        """Whether other nodes have an evaluation pending that may follow from the same change as that of `node`.

        `at` is monotonic, `now` in seconds since 1970. Nodes that have been pending for `GIVE_UP_SECONDS` do not count.
        If the node is evaluated because of the time (`is_due`), so may be all others by then or soon after.
        """
        if self._has_young(at - GIVE_UP_SECONDS, without=node):
            return True
        until = now + TOGETHER_SECONDS
        return is_due and any(due <= until for each, due in self._due.items() if each != node)

    def put_back(self, node: str, touched: Touched) -> None:
        """Adds an evaluation again that failed, with all policies."""
        again = self._touched.setdefault(node, touched)
        again.since, again.by_all = touched.since, True
        self._young[node] = touched.since

    def due(self, node: str) -> float:
        """When the node must be evaluated again without a change, in seconds since 1970; infinite: never."""
        return self._due.get(node, inf)

    def set_due(self, node: str, when: float) -> None:
        """Sets the time of the next evaluation without a change."""
        if when == inf:
            self._due.pop(node, None)
        else:
            self._due[node] = when

    def _touch(self, node: str, at: float) -> Touched:
        touched = self._touched.get(node)
        if touched is None:
            touched = self._touched[node] = Touched(at)
            self._young[node] = at
        return touched

    def _has_young(self, since: float, *, without: str) -> bool:
        """Whether a node is pending since a later time. Those that are not are forgotten: each is looked at once.

        Who is far behind asks for each verdict, and all nodes are pending.
        """
        old: list[str] = []
        found = False
        for node, at in self._young.items():
            if at <= since:
                old.append(node)
            elif node != without:
                found = True
                break
        for node in old:
            del self._young[node]
        return found
