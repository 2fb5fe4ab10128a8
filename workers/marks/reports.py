"""Metrics and log lines of `marks`."""

from collections.abc import Callable, Collection
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from tas.enforcing.marks import MarkChange, MarkKind, Taint
from workers.kubernetes.errors import ConflictError, ExpiredError
from workers.process.logs import GroupedLog, ThrottledLog
from workers.reconcile.work_queue import WorkQueue

log = structlog.get_logger("marks")


class MarkReports:
    """The metrics of `marks`, and its throttled log lines about nodes."""

    def __init__(self, registry: CollectorRegistry, queue: WorkQueue, *, without_label: Callable[[], int]) -> None:
        self._throttled = ThrottledLog(log)
        self._grouped = GroupedLog(log, kind="node")
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._patches = counter("tas_mark_patches", "Attempts to patch marks of a node, by result.", ["result"])
        self._changes = counter("tas_mark_changes", "Taints and node conditions changed.", ["mark", "change"])
        self._refused = counter("tas_marks_refused", "Marks that the API server refused.")
        self._unconfirmed = counter(
            "tas_mark_removals_unconfirmed", "Ends of marks that the reads before the patch did not confirm."
        )
        for result in ("patched", "conflict", "gone", "failed"):
            self._patches.labels(result)
        for mark in MarkKind:
            for change in ("set", "removed", *(("met",) if mark is MarkKind.CONDITION else ())):
                self._changes.labels(mark.value, change)
        queue.export(
            gauge("tas_mark_nodes_pending", "Nodes whose marks wait to be reconciled."),
            gauge("tas_mark_nodes_failing", "Nodes whose marks could not be made right in the last two attempts."),
        )
        strays = gauge("tas_marks_without_label", "Policies with a mark on a node without the label, by node.")
        strays.set_function(without_label)

    def attempted(self, result: str) -> None:
        """Counts a patch without success: `conflict` or `gone`."""
        self._patches.labels(result).inc()

    def patched(self, node: str, changes: Collection[MarkChange], *, age: float) -> None:
        """Reports a patch that was sent `age` seconds after its reads."""
        self._patches.labels("patched").inc()
        for each in changes:
            change = "removed" if each.value is None else "set"
            if change == "set" and not isinstance(each.value, Taint) and each.text == "False":
                change = "met"
            self._changes.labels(each.kind.value, change).inc()
        marks = {each.mark: each.text for each in changes}
        log.info("node_marked", node=node, marks=marks, basis=sorted({each.basis.value for each in changes}), age=age)

    def failed(self, node: str, error: Exception) -> None:
        """Reports a node whose marks could not be patched."""
        if isinstance(error, (ConflictError, ExpiredError)):
            self.attempted("conflict")
            return
        self._patches.labels("failed").inc()
        self._grouped.warning("node_mark_failed", _cause(node, error), node, error=str(error))

    def refused(self, node: str, change: MarkChange, error: Exception) -> None:
        """Reports a mark that the API server refuses."""
        self._refused.inc()
        cause = change.mark, change.text, _cause(node, error)
        self._grouped.warning("mark_refused", cause, node, mark=change.mark, value=change.text, reason=str(error))

    def unconfirmed(self, node: str, policies: Collection[str]) -> None:
        """Reports marks that stay, since the end of the violation was not confirmed."""
        self._unconfirmed.inc()
        self._throttled.warning("mark_removal_unconfirmed", node, node=node, policies=sorted(policies))

    def held_back(self, node: str, policy: str, strays: Collection[str]) -> None:
        """Reports a node without its mark, while others have a mark of the policy without the label."""
        self._throttled.warning("mark_held_back", policy, policy=policy, node=node, nodes=sorted(strays)[:10])

    def too_often(self, node: str, *, patches: int, seconds: float) -> None:
        """Reports a node that waits, since somebody else probably reverts the patches."""
        self._throttled.warning("node_marked_too_often", node, node=node, patches=patches, seconds=seconds)


def _cause(node: str, error: Exception) -> str:
    return str(error).replace(node, "NODE")
