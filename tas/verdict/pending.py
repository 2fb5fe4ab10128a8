"""The pending evaluations: nodes with their policies, and nodes that must be evaluated at a later time."""

from collections.abc import Collection
from dataclasses import dataclass, field
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
        self._due: dict[str, float] = {}

    def __len__(self) -> int:
        """The number of nodes with a pending evaluation."""
        return len(self._touched)

    def add(self, node: str, policies: Collection[PolicyKey], *, at: float) -> None:
        """Adds an evaluation of some policies; `at` is monotonic."""
        self._touched.setdefault(node, Touched(at)).policies.update(policies)

    def add_by_all(self, node: str, *, at: float) -> None:
        """Adds an evaluation of all policies; `at` is monotonic."""
        self._touched.setdefault(node, Touched(at)).by_all = True

    def clear(self) -> None:
        """Removes all pending evaluations."""
        self._touched.clear()

    def take(self, node: str, *, at: float, now: float) -> Touched:
        """Removes and returns the node's pending evaluation; `at` is monotonic, `now` in seconds since 1970."""
        touched = self._touched.pop(node, None) or Touched(at)
        if self.due(node) <= now:
            touched.by_all = True
        self._taken[node] = touched
        return touched

    def end(self, node: str) -> None:
        """Applies that the evaluation that was taken has ended; one that has failed is put back first."""
        self._taken.pop(node, None)

    def are_others(self, node: str, *, at: float, now: float, is_due: bool = False) -> bool:
        """Whether other nodes have an evaluation pending that may follow from the same change as that of `node`.

        `at` is monotonic, `now` in seconds since 1970. Nodes that have been pending for `GIVE_UP_SECONDS` do not count.
        If the node is evaluated because of the time (`is_due`), so may be all others by then or soon after.
        """
        since = at - GIVE_UP_SECONDS
        for pending in (self._touched, self._taken):
            if any(touched.since > since for each, touched in pending.items() if each != node):
                return True
        until = now + TOGETHER_SECONDS
        return is_due and any(due <= until for each, due in self._due.items() if each != node)

    def put_back(self, node: str, touched: Touched) -> None:
        """Adds an evaluation again that failed, with all policies."""
        again = self._touched.setdefault(node, touched)
        again.since, again.by_all = touched.since, True

    def due(self, node: str) -> float:
        """When the node must be evaluated again without a change, in seconds since 1970; infinite: never."""
        return self._due.get(node, inf)

    def set_due(self, node: str, when: float) -> None:
        """Sets the time of the next evaluation without a change."""
        if when == inf:
            self._due.pop(node, None)
        else:
            self._due[node] = when
