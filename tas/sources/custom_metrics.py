"""Answers of the custom metrics API: the versions of its group, and the values of one metric of all nodes.

Types: `APIGroup` of meta/v1; `MetricValueList` of custom.metrics.k8s.io, whose two versions have different fields for
the name of the metric and for the window.
"""

import msgspec

from tas.errors import InvalidInputError
from tas.sources.nodes import ANY_NODE, NodeNames
from tas.sources.result import UNREADABLE, RefusalReason, ResultBuilder, SourceResult, decoded, items_of
from tas.sources.timestamps import InvalidTimeError, given_time, valid_window
from tas.values.blanks import ANY, ValueRules

GROUP = "custom.metrics.k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""The supported versions, the newest first."""

_OF_NODES = "nodes/"


class _Resource(msgspec.Struct, kw_only=True):
    name: str = ""


class _Resources(msgspec.Struct, kw_only=True):
    kind: str = ""
    resources: list[_Resource] | None = None


class _Version(msgspec.Struct, kw_only=True):
    version: str = ""


class _Group(msgspec.Struct, kw_only=True, rename="camel"):
    kind: str = ""
    name: str = ""
    versions: list[_Version] | None = None
    preferred_version: _Version | None = None


class _Object(msgspec.Struct, kw_only=True):
    kind: str = ""
    name: str = ""


class _Identifier(msgspec.Struct, kw_only=True):
    name: str = ""


class _Value(msgspec.Struct, kw_only=True, rename="camel"):
    described_object: _Object
    value: str
    timestamp: str | None = None
    metric: _Identifier | None = None
    metric_name: str = ""
    window_seconds: int | None = None
    window: int | None = None


_group_decoder = msgspec.json.Decoder(_Group)
_resources_decoder = msgspec.json.Decoder(_Resources)
_value_decoder = msgspec.json.Decoder(_Value)


def decode_group(body: bytes) -> str:
    """The version to request: the preferred version if supported, else the newest supported one of those offered.

    Raises InvalidInputError if the body is no APIGroup, or offers no supported version.
    """
    subject = f"group {GROUP}"
    group = decoded(subject, _group_decoder, body)
    if group.kind != "APIGroup" or group.name != GROUP:
        raise InvalidInputError(subject, "kind, name", f"{group.kind}, {group.name}", f"must be APIGroup, {GROUP}")
    offered = [each.version for each in group.versions or ()]
    preferred = group.preferred_version.version if group.preferred_version else ""
    for version in (preferred, *VERSIONS):
        if version in VERSIONS and version in offered:
            return version
    raise InvalidInputError(subject, "versions", ", ".join(offered), f"must hold one of {', '.join(VERSIONS)}")


def decode_metric_names(body: bytes) -> frozenset[str]:
    """The names of the metrics of nodes, in the answer for a version of the group.

    Raises InvalidInputError if the body is no APIResourceList.
    """
    subject = f"metrics of {GROUP}"
    listed = decoded(subject, _resources_decoder, body)
    if listed.kind != "APIResourceList":
        raise InvalidInputError(subject, "kind", listed.kind, "must be APIResourceList")
    names = (each.name for each in listed.resources or ())
    return frozenset(name.removeprefix(_OF_NODES) for name in names if name.startswith(_OF_NODES))


def decode_metric_values(
    body: bytes, metric: str, rules: ValueRules = ANY, *, nodes: NodeNames = ANY_NODE
) -> SourceResult:
    """The values in an answer for `nodes/*/<metric>`, of either version whichever was requested.

    Values that `rules` exclude are refused.
    Raises InvalidInputError if the body is no MetricValueList.
    """
    items = items_of(f"values of {metric}", "MetricValueList", body)
    builder = ResultBuilder(nodes)
    for item in items:
        _take(builder, metric, item, rules)
    if not items:
        builder.add_missing(metric, "the custom metrics API has no value of it for any node")
    return builder.result()


def _take(builder: ResultBuilder, metric: str, item: msgspec.Raw, rules: ValueRules) -> None:
    try:
        value = _value_decoder.decode(item)
    except UNREADABLE as error:
        builder.refuse(
            RefusalReason.SHAPE, f"values of {metric}", "items", bytes(item)[:200].decode(errors="replace"), str(error)
        )
        return
    node = value.described_object
    subject = f"{metric} of {node.name}"
    if node.kind != "Node":
        builder.refuse(RefusalReason.NODE, subject, "describedObject.kind", node.kind, "must be Node")
        return
    name = value.metric.name if value.metric is not None else value.metric_name
    if name not in ("", metric):
        builder.refuse(RefusalReason.METRIC, subject, "metric", name, f"must be {metric}, the requested metric")
        return
    try:
        measured = given_time(value.timestamp)
    except InvalidTimeError as error:
        builder.refuse(RefusalReason.TIME, subject, "timestamp", value.timestamp, str(error))
        return
    window = value.window if value.window_seconds is None else value.window_seconds
    builder.add(
        node=node.name,
        metric=metric,
        value=value.value,
        measured=measured,
        window=valid_window(window),
        rules=rules,
    )
