"""Best fit by bandwidth: a pod goes to the node that has the requested bandwidth free, with the least left over."""

from collections.abc import Collection, Mapping

from tas.extension import NANO, NodeView, Pod

LABEL = "example.com/needs-mbps"
METRIC = "net_free_mbps"


class Bandwidth:
    """Mounted at `/bandwidth`; a policy cannot compare a metric with a request of the pod."""

    def __init__(self, nodes: NodeView) -> None:
        self._free = nodes.metric(METRIC)

    def filter(self, pod: Pod, candidates: Collection[str], now: float) -> Mapping[str, str]:
        """Rejects nodes with too little free; what is not known is nothing."""
        needed = self._needed(pod)
        return {node: f"Too little {METRIC}" for node in candidates if self._free.get(node, 0) < needed}

    def score(self, pod: Pod, candidates: Collection[str], now: float) -> Mapping[str, int]:
        """10 where nothing is left over, less the more there is."""
        needed = self._needed(pod)
        return {node: 10 * needed // max(free, needed) for node in candidates if (free := self._free.get(node, 0)) > 0}

    def _needed(self, pod: Pod) -> int:
        needed = pod.labels.get(LABEL, "0")
        return int(needed) * NANO if needed.isdecimal() else 0
