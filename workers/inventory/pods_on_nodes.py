"""What the pods on each node request, from the list of pods and its changes.

A list is read while it arrives, and counts once it is complete: until then the pods of the last one do.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from weakref import WeakValueDictionary

import structlog

from tas.allocation.node import PlacedPod
from tas.allocation.pod import PodTotals, pod_totals
from tas.errors import InvalidInputError
from workers.kubernetes.client import Change, ChangeType
from workers.kubernetes.resources import GpuPod
from workers.process.logs import ThrottledLog

ENDED = frozenset({"Succeeded", "Failed"})


class _Pods:
    """Pods on nodes, as one list has them and the changes since."""

    __slots__ = ("by_uid", "of_node", "unreadable")

    def __init__(self) -> None:
        self.by_uid: dict[str, tuple[str, PlacedPod]] = {}  # with the node
        self.of_node: dict[str, set[str]] = {}
        self.unreadable: set[str] = set()

    def on(self, node: str) -> Iterator[PlacedPod]:
        """The pods of a node."""
        return (self.by_uid[uid][1] for uid in self.of_node.get(node, ()))

    def set(self, uid: str, node: str, pod: PlacedPod) -> Collection[str]:
        """A pod is on this node. Returns the nodes whose pods are other ones now."""
        known = self.by_uid.get(uid)
        if known == (node, pod):
            return ()
        left = () if known is None or known[0] == node else self.drop(uid)
        self.by_uid[uid] = (node, pod)
        (self.unreadable.add if pod.totals is None else self.unreadable.discard)(uid)
        self.of_node.setdefault(node, set()).add(uid)
        return (*left, node)

    def drop(self, uid: str) -> Collection[str]:
        """A pod is on no node. Returns the nodes whose pods are other ones now."""
        known = self.by_uid.pop(uid, None)
        if known is None:
            return ()
        node, _ = known
        self.unreadable.discard(uid)
        self.of_node[node].discard(uid)
        if not self.of_node[node]:
            del self.of_node[node]
        return (node,)


class PodsOnNodes:
    """Takes the pods of the cluster in, and keeps those on nodes that have not ended.

    `on_list` is called after each list, `on_node` with a node whose pods have changed.

    Attributes:
        are_listed: Whether a list has been complete.
    """

    def __init__(
        self, *, on_list: Callable[[], None], on_node: Callable[[str], None], log: structlog.stdlib.BoundLogger
    ) -> None:
        self.are_listed = False
        self._on_list = on_list
        self._on_node = on_node
        self._pods = _Pods()
        self._arriving = _Pods()
        self._shared: WeakValueDictionary[PodTotals, PodTotals] = WeakValueDictionary()
        self._throttled = ThrottledLog(log)

    @property
    def count(self) -> int:
        """How many pods there are."""
        return len(self._pods.by_uid)

    @property
    def unreadable(self) -> int:
        """How many of them have a quantity that cannot be read."""
        return len(self._pods.unreadable)

    def on(self, node: str) -> Iterator[PlacedPod]:
        """The pods of a node."""
        return self._pods.on(node)

    # What a reflector calls

    def begin(self) -> None:
        """A list begins."""
        self._arriving = _Pods()

    def read(self, items: Sequence[GpuPod]) -> None:
        """Some pods of the list."""
        for each in items:
            self._set(self._arriving, each)

    def end(self, _resource_version: str) -> None:
        """The list is complete."""
        self._pods, self._arriving = self._arriving, _Pods()
        self.are_listed = True
        self._on_list()

    def change(self, change: Change[GpuPod]) -> None:
        """Takes in a change of a pod."""
        is_gone = change.type is ChangeType.DELETED
        touched = self._pods.drop(change.object.metadata.uid) if is_gone else self._set(self._pods, change.object)
        for node in touched:
            self._on_node(node)

    def _set(self, pods: _Pods, found: GpuPod) -> Collection[str]:
        uid, node = found.metadata.uid, found.spec.node_name
        if not node or found.status.phase in ENDED:
            return pods.drop(uid)
        return pods.set(uid, node, PlacedPod(totals=self._totals(found), placed_at=found.scheduled_at()))

    def _totals(self, found: GpuPod) -> PodTotals | None:
        """What the pod requests; equal pods share one object, since a cluster has many of them."""
        try:
            totals = pod_totals(found.as_pod_resources())
        except InvalidInputError as error:
            metadata = found.metadata
            pod = f"{metadata.namespace}/{metadata.name}"
            self._throttled.warning("requests_of_pod_unreadable", metadata.uid, pod=pod, error=str(error))
            return None
        return self._shared.setdefault(totals, totals)
