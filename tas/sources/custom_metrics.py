"""Answers of the custom metrics API: the group's versions, and the values of one metric of all nodes.

`APIGroup` of meta/v1; `MetricValueList` of custom.metrics.k8s.io, whose two versions differ in where a value names its
metric and in the name of its window.
"""

import msgspec

from tas.errors import InvalidInputError
from tas.sources.reading import Batch, Gathering, Refused
from tas.sources.told_time import NoTimeError, told_time, told_window

GROUP = "custom.metrics.k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""The versions that are read, the newest first."""


class _Version(msgspec.Struct, kw_only=True):
    version: str = ""


class _Group(msgspec.Struct, kw_only=True, rename="camel"):
    kind: str = ""
    name: str = ""
    versions: list[_Version] | None = None
    preferred_version: _Version | None = None


class _List(msgspec.Struct, kw_only=True, rename="camel"):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


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
_list_decoder = msgspec.json.Decoder(_List)
_value_decoder = msgspec.json.Decoder(_Value)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode_group(body: bytes) -> str:
    """The version to ask for: the preferred one if it is read here, else the newest of those offered.

    Raises:
        InvalidInputError: if the body is no APIGroup, or offers no version that is read here.
    """
    told = f"group {GROUP}"
    try:
        group = _group_decoder.decode(body)
    except _UNREADABLE as error:
        raise _unreadable(told, body, error) from error
    if group.kind != "APIGroup" or group.name != GROUP:
        raise InvalidInputError(told, "kind, name", f"{group.kind}, {group.name}", f"must be APIGroup, {GROUP}")
    offered = [each.version for each in group.versions or ()]
    preferred = group.preferred_version.version if group.preferred_version else ""
    for version in (preferred, *VERSIONS):
        if version in VERSIONS and version in offered:
            return version
    raise InvalidInputError(told, "versions", ", ".join(offered), f"must hold one of {', '.join(VERSIONS)}")


def decode_metric_values(body: bytes, metric: str) -> Batch:
    """The values that an answer for `nodes/*/<metric>` holds. Either version is read, whichever was asked for.

    Raises:
        InvalidInputError: if the body as a whole is no MetricValueList.
    """
    told = f"values of {metric}"
    try:
        answer = _list_decoder.decode(body)
    except _UNREADABLE as error:
        raise _unreadable(told, body, error) from error
    if answer.kind != "MetricValueList":
        raise InvalidInputError(told, "kind", answer.kind, "must be MetricValueList")
    gathering = Gathering()
    for item in answer.items or ():
        _take(gathering, metric, item)
    if not answer.items:
        gathering.miss(metric, "the custom metrics API has no value of it for any node")
    return gathering.batch()


def _take(gathering: Gathering, metric: str, item: msgspec.Raw) -> None:
    try:
        value = _value_decoder.decode(item)
    except _UNREADABLE as error:
        gathering.refuse(
            Refused.SHAPE, f"values of {metric}", "items", bytes(item).decode(errors="replace"), str(error)
        )
        return
    node = value.described_object
    told = f"{metric} of {node.name}"
    if node.kind != "Node":
        gathering.refuse(Refused.NODE, told, "describedObject.kind", node.kind, "must be Node")
        return
    named = value.metric.name if value.metric is not None else value.metric_name
    if named not in ("", metric):
        gathering.refuse(Refused.METRIC, told, "metric", named, f"must be {metric}, which was asked for")
        return
    try:
        measured = None if value.timestamp is None else told_time(value.timestamp)
    except NoTimeError as error:
        gathering.refuse(Refused.TIME, told, "timestamp", value.timestamp, str(error))
        return
    window = value.window if value.window_seconds is None else value.window_seconds
    gathering.add(
        node=node.name,
        metric=metric,
        value=value.value,
        measured=measured,
        window=told_window(window),
    )


def _unreadable(told: str, body: bytes, error: Exception) -> InvalidInputError:
    return InvalidInputError(told, "body", body[:200].decode(errors="replace"), str(error))
