"""What a replica of `labels` keeps in memory for each node, so that it does not repeat useless requests.

Other replicas do not need this data. Times are monotonic, in seconds.
"""

from collections.abc import Mapping
from typing import NamedTuple


class DeclinedChange(NamedTuple):
    """A change of a label to `value` (None: its removal) that was declined; `reason` may be empty."""

    value: str | None
    reason: str


class Declined:
    """Changes of labels that the API server or a policy declined: not tried again for `seconds`."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._nodes: dict[str, dict[str, tuple[DeclinedChange, float]]] = {}

    def add(self, node: str, label: str, value: str | None, *, at: float, reason: str = "") -> None:
        """Records that a change of a label to `value` (None: its removal) was declined."""
        self._nodes.setdefault(node, {})[label] = (DeclinedChange(value, reason), at)

    def of(self, node: str, *, at: float) -> Mapping[str, str | None]:
        """The recently declined changes of the node: each label with its new value."""
        recent = {label: each for label, each in self._nodes.pop(node, {}).items() if each[1] + self._seconds > at}
        if recent:
            self._nodes[node] = recent
        return {label: refusal.value for label, (refusal, _) in recent.items()}

    def among(self, node: str, changes: Mapping[str, str | None]) -> dict[str, DeclinedChange]:
        """Those of `changes`, labels with their new value, that were declined at the last attempt."""
        declined = self._nodes.get(node, {})
        return {
            label: declined[label][0]
            for label, value in changes.items()
            if label in declined and declined[label][0].value == value
        }

    def forget(self, node: str) -> None:
        """Deletes the data of a deleted node."""
        self._nodes.pop(node, None)

    def clear(self) -> list[str]:
        """Deletes everything, and returns the nodes that had declined changes."""
        nodes = list(self._nodes)
        self._nodes.clear()
        return nodes

    def __contains__(self, node: str) -> bool:
        return node in self._nodes


class PatchLimit:
    """At most `count` patches of a node in `seconds`, in case another program reverts each patch."""

    def __init__(self, count: int, *, seconds: float) -> None:
        self._count = count
        self._seconds = seconds
        self._nodes: dict[str, tuple[float, ...]] = {}

    def patched(self, node: str, *, at: float) -> None:
        """Records that the node was patched, and forgets the nodes whose last patch counts no more."""
        times = self._nodes.pop(node, ())
        self._nodes[node] = (*times, at)[-self._count :]  # so the nodes are in the order of their last patch
        while self._nodes[oldest := next(iter(self._nodes))][-1] + self._seconds <= at:
            del self._nodes[oldest]

    def __len__(self) -> int:
        """How many nodes are remembered."""
        return len(self._nodes)

    def wait(self, node: str, *, at: float) -> float:
        """Seconds until the next patch of the node is allowed."""
        times = self._nodes.get(node, ())
        return max(0.0, times[0] + self._seconds - at) if len(times) == self._count else 0.0

    def at_limit(self, at: float) -> int:
        """How many nodes may not be patched now."""
        return sum(self.wait(node, at=at) > 0.0 for node in self._nodes)

    def forget(self, node: str) -> None:
        """Deletes the data of a deleted node."""
        self._nodes.pop(node, None)


class FlapBudget:
    """At most `count` changes of the labels of one policy on one node in `seconds`; 0: no limit.

    Counts the changes that the API server shows, whoever made them: so all replicas count the same.
    """

    def __init__(self, count: int, *, seconds: float) -> None:
        self._count = count
        self._seconds = seconds
        self._nodes: dict[str, PatchLimit] = {}

    def changed(self, node: str, policy: str, *, at: float) -> None:
        """Records a change of the labels of a policy, by its name."""
        if self._count:
            limit = self._nodes.setdefault(node, PatchLimit(self._count, seconds=self._seconds))
            limit.patched(policy, at=at)

    def wait(self, node: str, policy: str, *, at: float) -> float:
        """Seconds until the next change is allowed."""
        limit = self._nodes.get(node)
        return 0.0 if limit is None else limit.wait(policy, at=at)

    def exhausted(self, at: float) -> int:
        """For how many policies on a node the budget is used up, over all nodes."""
        return sum(limit.at_limit(at) for limit in self._nodes.values())

    def forget(self, node: str) -> None:
        """Deletes the data of a deleted node."""
        self._nodes.pop(node, None)
