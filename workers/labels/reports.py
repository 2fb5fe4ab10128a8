"""Metrics, log lines and Events of `labels`."""

import secrets
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tas.enforcing.labels import DroppedLabel
from tas.errors import line_of
from tas.verdict.verdict import REPLACEABLE
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConflictError, ExpiredError, KubernetesError
from workers.kubernetes.resources import EVENTS
from workers.process.logs import GroupedLog, ThrottledLog
from workers.reconcile.node_patches import NodeLabels
from workers.reconcile.work_queue import WorkQueue

COMPONENT = "tas-on-nats"

NAMESPACE = "default"
"""The namespace of Events of objects without a namespace, such as nodes."""

LABEL_OVERWRITTEN = "LabelOverwritten"
"""The reason of an Event: a policy's label replaced a value that somebody else had set."""


async def record_event(client: KubernetesClient, *, node: str, uid: str, reason: str, message: str) -> None:
    """Records a warning on a node. Raises KubernetesError."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.{secrets.token_hex(8)}", "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid},
        "type": "Warning",
        "reason": reason,
        "message": line_of(message),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    await client.create(EVENTS, event, namespace=NAMESPACE)


log = structlog.get_logger("labels")

T = TypeVar("T")


class LabelReports:
    """The metrics of `labels`, and its throttled log lines about nodes."""

    def __init__(self, client: KubernetesClient, registry: CollectorRegistry, queue: WorkQueue) -> None:
        self._client = client
        self._throttled = ThrottledLog(log)
        self._grouped = GroupedLog(log, kind="node")
        self._foreign: dict[str, frozenset[str]] = {}
        self._foreign_values: dict[str, frozenset[tuple[str, str]]] = {}
        self._dropped: dict[str, frozenset[DroppedLabel]] = {}
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self._patches = counter("tas_label_patches", "Attempts to patch a node, by result.", ["result"])
        self._changes = counter("tas_label_changes", "Labels changed on nodes.", ["change"])
        self._refused = counter("tas_labels_refused", "Labels that the API server refused.")
        self._unconfirmed = counter(
            "tas_label_removals_unconfirmed", "Requested removals that the reads before the patch did not confirm."
        )
        self._kept = counter(
            "tas_label_orphans_kept", "Labels that no verdict mentions, kept because a policy can have set them."
        )
        self._seconds = Histogram(
            "tas_label_patch_seconds",
            "Time from the storage of a verdict until its labels are on the node.",
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
            registry=registry,
        )
        for result in ("patched", "conflict", "expired", "gone", "failed"):
            self._patches.labels(result)
        for change in ("set", "removed", "orphan_removed", "overwritten"):
            self._changes.labels(change)
        queue.export(
            gauge("tas_label_nodes_pending", "Nodes that wait to be reconciled."),
            gauge("tas_label_nodes_failing", "Nodes whose labels could not be made right in the last two attempts."),
        )
        for name, text, kept in (
            ("tas_labels_foreign", "Labels in the form of TAS's labels that somebody else has set.", self._foreign),
            (
                "tas_label_values_foreign",
                "Labels that a policy requires, but whose key has a value of somebody else.",
                self._foreign_values,
            ),
            (
                "tas_verdict_labels_dropped",
                "Labels in verdicts that their policy may not set; they stay.",
                self._dropped,
            ),
        ):
            gauge(name, text).set_function(partial(_total, kept))

    def attempted(self, result: str) -> None:
        """Counts a patch without success: `conflict`, `expired` or `gone`."""
        self._patches.labels(result).inc()

    def warning(self, event: str, node: str, **fields: object) -> None:
        """Logs a throttled line about a node."""
        self._throttled.warning(event, node, node=node, **fields)

    def failed(self, node: str, error: Exception) -> None:
        """Reports a node that could not be patched."""
        if isinstance(error, (ConflictError, ExpiredError)):
            self.attempted("conflict" if isinstance(error, ConflictError) else "expired")
            log.debug("node_patch_retried", node=node, error=str(error))
            return
        self._patches.labels("failed").inc()
        self._grouped.warning("node_patch_failed", _cause(node, error), node, error=str(error))

    def refused(self, node: str, label: str, value: str | None, error: Exception) -> None:
        """Reports a label that is not set."""
        self._refused.inc()
        cause = label, value, _cause(node, error)
        self._grouped.warning("label_refused", cause, node, label=label, value=value, reason=str(error))

    def unconfirmed(self, node: str, labels: Collection[str]) -> None:
        """Reports requested removals that were not confirmed."""
        self._unconfirmed.inc()
        self.warning("label_removal_unconfirmed", node, labels=sorted(labels))

    def kept(self, node: str, orphans: Collection[str]) -> None:
        """Reports orphans that a policy keeps."""
        self._kept.inc(len(orphans))
        log.debug("orphans_kept", node=node, labels=sorted(orphans))

    def foreign(self, node: str, labels: frozenset[str]) -> None:
        """Reports all foreign labels of a node."""
        if new := _noted(self._foreign, node, labels):
            log.info("label_foreign", node=node, labels=sorted(new))

    def foreign_values(self, node: str, labels: Mapping[str, str]) -> None:
        """Reports all labels of a node that are not set, since their key has a value of somebody else."""
        for label, value in sorted(_noted(self._foreign_values, node, frozenset(labels.items()))):
            self._throttled.warning("label_value_foreign", (node, label), node=node, label=label, value=value)

    def dropped(self, node: str, labels: frozenset[DroppedLabel]) -> None:
        """Reports all labels in the verdict of a node that do not count."""
        for each in sorted(_noted(self._dropped, node, labels)):
            self._throttled.warning(
                "verdict_label_dropped",
                (node, each.policy),
                node=node,
                policy=str(each.policy),
                label=each.label,
                value=each.value,
            )

    def forget(self, node: str) -> None:
        """Forgets a deleted node."""
        self._foreign.pop(node, None)
        self._foreign_values.pop(node, None)
        self._dropped.pop(node, None)

    def patched(
        self,
        node: str,
        changes: Mapping[str, str | None],
        *,
        orphans: Collection[str],
        read_at: float,
        verdict_created: float | None,
    ) -> None:
        """Reports a patch of a node; `read_at` is monotonic, `verdict_created` in seconds since 1970."""
        put = {label: value for label, value in changes.items() if value is not None}
        removed = changes.keys() - put.keys()
        self._patches.labels("patched").inc()
        for change, count in (
            ("set", len(put)),
            ("removed", len(removed.difference(orphans))),
            ("orphan_removed", len(removed.intersection(orphans))),
        ):
            self._changes.labels(change).inc(count)
        if verdict_created is not None and changes and not orphans:
            self._seconds.observe(max(0.0, time.time() - verdict_created))
        log.info(
            "node_patched",
            node=node,
            set=put,
            removed=sorted(removed),
            orphans=sorted(orphans),
            age=round(time.monotonic() - read_at, 4),
        )

    async def overwritten(self, name: str, node: NodeLabels, changes: Mapping[str, str | None]) -> None:
        """Records a warning Event on the node for each value of somebody else that was overwritten."""
        for label, value in changes.items():
            before = node.labels.get(label)
            if value is None or before is None or "/" in label or before in REPLACEABLE:
                continue
            self._changes.labels("overwritten").inc()
            self.warning("label_overwritten", name, label=label, value=before)
            message = f"Label {label}={before} was overwritten with {value}, as the settings of TAS allow"
            try:
                await record_event(self._client, node=name, uid=node.uid, reason=LABEL_OVERWRITTEN, message=message)
            except KubernetesError as error:
                self.warning("event_not_recorded", name, reason=LABEL_OVERWRITTEN, error=str(error))


def _cause(node: str, error: Exception) -> str:
    """The text of an error without the node, so that an error of many nodes is one cause."""
    return str(error).replace(node, "NODE")


def _total(kept: Mapping[str, Collection[object]]) -> int:
    return sum(map(len, kept.values()))


def _noted(known: dict[str, frozenset[T]], node: str, labels: frozenset[T]) -> frozenset[T]:
    """Replaces the labels of a node, and returns the new ones."""
    new = labels - known.pop(node, frozenset())
    if labels:
        known[node] = labels
    return new
