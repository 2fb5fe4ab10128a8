"""Kubernetes Events of TAS, shown by `kubectl describe node`."""

import secrets
from datetime import UTC, datetime

from tas.errors import line_of
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.resources import EVENTS

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
