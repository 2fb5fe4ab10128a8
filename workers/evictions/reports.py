"""Metrics and log lines of `evictions`."""

from collections.abc import Callable, Collection
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from tas.enforcing.pod import PodKey
from tas.gpu.eviction import Reasons
from workers.process.logs import GroupedLog, ThrottledLog
from workers.reconcile.work_queue import WorkQueue

log = structlog.get_logger("evictions")


class EvictionReports:
    """The metrics of `evictions`, and its log lines about pods and nodes."""

    def __init__(self, registry: CollectorRegistry, queue: WorkQueue, *, labels: Callable[[], int]) -> None:
        self._throttled = ThrottledLog(log)
        self._pods = GroupedLog(log, kind="pod")
        self._nodes = GroupedLog(log, kind="node")
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._patches = counter(
            "tas_eviction_patches", "Attempts to change the eviction label of a pod, by result.", ["result"]
        )
        self._changes = counter("tas_eviction_label_changes", "Eviction labels set and removed.", ["change"])
        self._unconfirmed = counter(
            "tas_eviction_unconfirmed", "Changes of eviction labels that the node did not confirm."
        )
        for result in ("patched", "conflict", "gone", "refused", "failed"):
            self._patches.labels(result)
        for change in ("set", "removed"):
            self._changes.labels(change)
        gauge("tas_eviction_labels", "Pods with the eviction label.").set_function(labels)
        queue.export(
            gauge("tas_eviction_nodes_pending", "Nodes with a pod whose eviction label waits to be changed."),
            gauge(
                "tas_eviction_nodes_failing",
                "Nodes with a pod whose eviction label could not be made right in the last two attempts.",
            ),
        )

    def patched(self, pod: PodKey, node: str, reasons: Reasons, *, age: float) -> None:
        """Reports a changed label, `age` seconds after the node was read; without reasons it was removed."""
        self._patches.labels("patched").inc()
        self._changes.labels("set" if reasons else "removed").inc()
        if reasons:
            log.info("eviction_label_set", pod=str(pod), node=node, reasons=reasons, age=age)
        else:
            log.info("eviction_label_removed", pod=str(pod), node=node, age=age)

    def attempted(self, result: str) -> None:
        """Counts an attempt without success: `conflict` or `gone`."""
        self._patches.labels(result).inc()

    def failed(self, pod: PodKey, node: str, error: Exception) -> None:
        """Reports a pod whose label could not be changed; it is tried again."""
        self._patches.labels("failed").inc()
        self._pods.warning("eviction_label_failed", _cause(pod, error), str(pod), node=node, error=str(error))

    def refused(self, pod: PodKey, node: str, reason: str) -> None:
        """Reports a pod whose label must not be changed, says the API server."""
        self._patches.labels("refused").inc()
        cause = reason.replace(pod.name, "POD")
        self._pods.warning("eviction_label_refused", cause, str(pod), node=node, reason=reason)

    def node_failed(self, node: str, error: Exception) -> None:
        """Reports a node that could not be read, or a bus that could not be asked."""
        self._nodes.warning("eviction_node_unread", str(error).replace(node, "NODE"), node, error=str(error))

    def unconfirmed(self, node: str, pods: Collection[PodKey]) -> None:
        """Reports pods whose label stays as it is, since the node does not confirm what the bus says."""
        self._unconfirmed.inc(len(pods))
        self._throttled.warning("eviction_unconfirmed", node, node=node, pods=sorted(map(str, pods))[:10])

    def foreign(self, pod: PodKey, value: str) -> None:
        """Reports a pod on which somebody else uses the key of the label."""
        self._throttled.warning("eviction_label_foreign", pod, pod=str(pod), value=value)

    def too_often(self, pod: PodKey, *, patches: int, seconds: float) -> None:
        """Reports a pod that waits, since somebody else probably reverts the patches."""
        self._throttled.warning("eviction_label_too_often", pod, pod=str(pod), patches=patches, seconds=seconds)


def _cause(pod: PodKey, error: Exception) -> str:
    return str(error).replace(pod.name, "POD").replace(pod.namespace, "NAMESPACE")
