"""The custom metrics API of prometheus-adapter and the metrics API of metrics-server, for nodes only."""

import time
from dataclasses import dataclass
from typing import Any

from lab.sandbox.errors import PageNotFoundError, StatusError
from lab.sandbox.resources import Object

CUSTOM = "custom.metrics.k8s.io"
USAGE = "metrics.k8s.io"
USAGE_VERSION = "v1beta1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    value: str
    timestamp: str | None
    window: int | None
    kind: str


class Metrics:
    """The metrics of nodes; tests set them.

    Attributes:
        versions: The versions of the custom metrics API, the preferred version first; empty if the API is not served.
        usage_is_served: Whether the metrics API is served.
        ahead: How many seconds its clock is ahead.
    """

    def __init__(self) -> None:
        self.ahead = 0.0
        self.versions: list[str] = ["v1beta2", "v1beta1"]
        self.usage_is_served = True
        self._values: dict[str, dict[str, _Value]] = {}
        self._usage: dict[str, Object] = {}

    def set(
        self,
        metric: str,
        node: str,
        value: str | int,
        *,
        timestamp: str | None = None,
        window: int | None = None,
        kind: str = "Node",
    ) -> None:
        """Sets the value of a metric. Without `timestamp` (RFC 3339), answers have the time of the request."""
        values = self._values.setdefault(metric, {})
        values[node] = _Value(value=str(value), timestamp=timestamp, window=window, kind=kind)

    def forget(self, metric: str, *nodes: str) -> None:
        """Deletes the values of these nodes; without nodes, deletes the metric."""
        for node in nodes:
            self._values[metric].pop(node, None)
        if not nodes:
            self._values.pop(metric, None)

    def use(self, node: str, *, cpu: str, memory: str, timestamp: str | None = None, window: str = "15s") -> None:
        """Sets the usage of a node in the metrics API."""
        self._usage[node] = {"cpu": cpu, "memory": memory, "timestamp": timestamp, "window": window}

    @property
    def groups(self) -> list[Object]:
        """The API groups for discovery."""
        served = [(CUSTOM, self.versions)] if self.versions else []
        if self.usage_is_served:
            served.append((USAGE, [USAGE_VERSION]))
        return [_group(name, versions) for name, versions in served]

    def answer(self, path: str) -> Object | None:
        """The answer for a path; None for paths of other APIs. Raises StatusError, PageNotFoundError."""
        parts = path.strip("/").split("/")
        if parts[:1] != ["apis"] or len(parts) < 2 or parts[1] not in (CUSTOM, USAGE):
            return None
        group, *rest = parts[1:]
        found = next((each for each in self.groups if each["name"] == group), None)
        if found is None or (rest and rest[0] not in [each["version"] for each in found["versions"]]):
            raise PageNotFoundError
        match rest:
            case []:
                return {"kind": "APIGroup", "apiVersion": "v1"} | found
            case [version]:
                return self._resources(group, version)
            case [version, "nodes", _, metric] if group == CUSTOM:
                return self._metric(version, metric)
            case [version, "nodes"] if group == USAGE:
                return self._node_metrics(version)
            case _:
                raise PageNotFoundError

    def _resources(self, group: str, version: str) -> Object:
        names = [f"nodes/{metric}" for metric in sorted(self._values)] if group == CUSTOM else ["nodes"]
        kind = "MetricValueList" if group == CUSTOM else "NodeMetrics"
        common: dict[str, Any] = {"singularName": "", "namespaced": False, "kind": kind, "verbs": ["get"]}
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}",
            "resources": [{"name": name} | common for name in names],
        }

    def _metric(self, version: str, metric: str) -> Object:
        if metric not in self._values:
            raise StatusError(404, f"the server could not find the metric {metric} for nodes ")
        now = self._now()
        return {
            "kind": "MetricValueList",
            "apiVersion": f"{CUSTOM}/{version}",
            "metadata": {},
            "items": [_item(version, metric, node, value, now) for node, value in self._values[metric].items()],
        }

    def _node_metrics(self, version: str) -> Object:
        items = [
            {
                "metadata": {"name": node, "creationTimestamp": self._now()},
                "timestamp": usage["timestamp"] or self._now(),
                "window": usage["window"],
                "usage": {"cpu": usage["cpu"], "memory": usage["memory"]},
            }
            for node, usage in self._usage.items()
        ]
        return {"kind": "NodeMetricsList", "apiVersion": f"{USAGE}/{version}", "metadata": {}, "items": items}

    def _now(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.ahead))


def _group(name: str, versions: list[str]) -> Object:
    served = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": served, "preferredVersion": served[0]}


def _item(version: str, metric: str, node: str, value: _Value, now: str) -> Object:
    """A value in a version of the API: v1beta1 and v1beta2 have different fields for metric and window."""
    item: Object = {
        "describedObject": {"kind": value.kind, "name": node, "apiVersion": "/v1"},
        "timestamp": value.timestamp or now,
        "value": value.value,
    }
    if version == "v1beta1":
        item |= {"metricName": metric, "selector": None}
        return item | ({} if value.window is None else {"window": value.window})
    item |= {"metric": {"name": metric, "selector": None}}
    return item | ({} if value.window is None else {"windowSeconds": value.window})
