"""Objects as tables for `kubectl get`: the columns of kube-apiserver for which the sandbox has values."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lab.sandbox.errors import StatusError
from lab.sandbox.resources import EVENTS, NAMESPACES, NODES, PODS, Object, Resource
from lab.sandbox.store import partial, whole

ROLE = "node-role.kubernetes.io/"
STEP = re.compile(r'\.([A-Za-z0-9_-]+)|\[\?\(@\.(\w+)==[\'"]([^\'"]*)[\'"]\)\]')
"""The supported part of JSONPath: fields, and the element of a list with a given field value."""

MINUTE, HOUR, DAY = 60, 3600, 86400
AGES: tuple[tuple[float, int, str, int, str], ...] = (
    (2 * MINUTE, 1, "s", 0, ""),
    (10 * MINUTE, MINUTE, "m", 1, "s"),
    (3 * HOUR, MINUTE, "m", 0, ""),
    (8 * HOUR, HOUR, "h", MINUTE, "m"),
    (48 * HOUR, HOUR, "h", 0, ""),
    (8 * DAY, DAY, "d", HOUR, "h"),
    (float("inf"), DAY, "d", 0, ""),
)
"""Up to how many seconds an age is shown in which units."""

Cell = Callable[[Object, datetime], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column; a priority above 0 means wide output only."""

    name: str
    cell: Cell
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0

    def definition(self) -> Object:
        """The definition of the column in a table."""
        keys = ("name", "type", "format", "description", "priority")
        return {key: getattr(self, key) for key in keys}


def age(since: object, now: datetime) -> str:
    """The age as in apimachinery's `duration.HumanDuration`, up to days."""
    if not isinstance(since, str) or not since:
        return "<unknown>"
    seconds = max(0, int((now - datetime.fromisoformat(since)).total_seconds()))
    _, size, unit, smaller, smaller_unit = next(each for each in AGES if seconds < each[0])
    rest = seconds % size // smaller if smaller else 0
    return f"{seconds // size}{unit}" + (f"{rest}{smaller_unit}" if rest else "")


def at(path: str, stored: Object) -> object:
    """The value at a path such as `.status.conditions[?(@.type=="Ready")].status`; None if there is none."""
    found: Any = stored
    for name, key, value in STEP.findall(path):
        if name:
            found = found.get(name) if isinstance(found, dict) else None
        else:
            members = found if isinstance(found, list) else []
            found = next((each for each in members if isinstance(each, dict) and each.get(key) == value), None)
    return found


def columns_of(resource: Resource, definition: Object | None) -> Sequence[Column]:
    """The columns of a resource; for a custom resource those of its CustomResourceDefinition."""
    if not resource.is_custom:
        return COLUMNS.get(resource, (NAME, AGE))
    versions = (definition or {}).get("spec", {}).get("versions") or []
    served: Object = next((each for each in versions if each.get("name") == resource.version), {})
    return (NAME, *map(_printed, served.get("additionalPrinterColumns") or [AGE_COLUMN]))


def table(
    resource: Resource,
    objects: Sequence[Object],
    *,
    columns: Sequence[Column],
    now: datetime,
    metadata: Object,
    include: str,
) -> Object:
    """The table of these objects; `include` is `None`, `Metadata` (or empty) or `Object`: what each row contains.

    Raises StatusError: 400 for any other `include`.
    """
    if include not in ("", "None", "Metadata", "Object"):
        raise StatusError(400, f'unrecognized includeObject value: "{include}"')
    rows = []
    for each in objects:
        row: Object = {"cells": [column.cell(each, now) for column in columns]}
        if include != "None":
            row["object"] = whole(resource, each) if include == "Object" else partial(each)
        rows.append(row)
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return head | {"columnDefinitions": [column.definition() for column in columns], "rows": rows}


def _printed(column: Object) -> Column:
    path, kind = column["jsonPath"], column["type"]

    def cell(stored: Object, now: datetime) -> object:
        found = at(path, stored)
        if found is None:
            return None
        if kind == "date":
            return age(found, now)
        return str(found) if kind == "string" else found

    return Column(
        name=column["name"],
        cell=cell,
        type=kind,
        format=column.get("format", ""),
        description=column.get("description", ""),
        priority=column.get("priority", 0),
    )


def _path(path: str, otherwise: object = "") -> Cell:
    return lambda stored, _: at(path, stored) or otherwise


def _node_status(node: Object, _: datetime) -> str:
    ready = at('.status.conditions[?(@.type=="Ready")].status', node)
    status = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return f"{status},SchedulingDisabled" if at(".spec.unschedulable", node) else status


def _node_roles(node: Object, _: datetime) -> str:
    labels = node["metadata"].get("labels", {})
    return ",".join(sorted(label.removeprefix(ROLE) for label in labels if label.startswith(ROLE))) or "<none>"


def _pod_ready(pod: Object, _: datetime) -> str:
    count = len(pod["spec"]["containers"])
    ready = at('.status.conditions[?(@.type=="ContainersReady")].status', pod) == "True"
    return f"{count if ready else 0}/{count}"


def _pod_status(pod: Object, _: datetime) -> object:
    gated = at('.status.conditions[?(@.type=="PodScheduled")].reason', pod) == "SchedulingGated"
    return "SchedulingGated" if gated else at(".status.phase", pod) or ""


def _event_age(event: Object, now: datetime) -> str:
    return age(at(".lastTimestamp", event) or at(".eventTime", event), now)


def _event_object(event: Object, _: datetime) -> str:
    about = event["involvedObject"]
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


NAME = Column(name="Name", cell=_path(".metadata.name"), format="name")
AGE = Column(name="Age", cell=lambda stored, now: age(at(".metadata.creationTimestamp", stored), now))
AGE_COLUMN = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}

COLUMNS: dict[Resource, Sequence[Column]] = {
    NODES: (
        NAME,
        Column(name="Status", cell=_node_status),
        Column(name="Roles", cell=_node_roles),
        AGE,
        Column(name="Version", cell=_path(".status.nodeInfo.kubeletVersion")),
    ),
    PODS: (
        NAME,
        Column(name="Ready", cell=_pod_ready),
        Column(name="Status", cell=_pod_status),
        Column(name="Restarts", cell=lambda *_: "0"),
        AGE,
        Column(name="Node", cell=_path(".spec.nodeName", "<none>"), priority=1),
    ),
    NAMESPACES: (NAME, Column(name="Status", cell=_path(".status.phase")), AGE),
    EVENTS: (
        Column(name="Last Seen", cell=_event_age),
        Column(name="Type", cell=_path(".type")),
        Column(name="Reason", cell=_path(".reason")),
        Column(name="Object", cell=_event_object),
        Column(name="Message", cell=_path(".message")),
    ),
}
