"""Kubernetes Events that this product records, for whoever asks `kubectl describe node`."""

import secrets
from datetime import UTC, datetime
from enum import StrEnum

from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.resources import EVENTS

COMPONENT = "tas-on-nats"

NAMESPACE = "default"
"""Where Events of what has no namespace stand, as nodes' own do."""


class Reason(StrEnum):
    """Every reason of an Event."""

    LABEL_OVERWRITTEN = "LabelOverwritten"
    """A policy's label replaced a value that somebody else had set."""


async def record_event(client: KubernetesClient, *, node: str, uid: str, reason: Reason, message: str) -> None:
    """Records a warning on a node. Raises KubernetesError."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.{secrets.token_hex(8)}", "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid},
        "type": "Warning",
        "reason": reason.value,
        "message": message,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    await client.create(EVENTS, event, namespace=NAMESPACE)
