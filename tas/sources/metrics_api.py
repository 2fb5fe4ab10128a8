"""Answers of the metrics API: processor and memory use of all nodes, as metrics-server tells it.

`NodeMetricsList` of metrics.k8s.io/v1beta1: `usage.cpu` in cores, `usage.memory` in bytes, both as quantities.
"""

import msgspec

from tas.errors import InvalidInputError
from tas.sources.reading import Batch, Gathering, Refused
from tas.sources.told_time import NoTimeError, told_duration, told_time

GROUP = "metrics.k8s.io"
METRICS = frozenset({"cpu", "memory"})
"""What there is: cores and bytes."""


class _List(msgspec.Struct, kw_only=True):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


class _Metadata(msgspec.Struct, kw_only=True):
    name: str = ""


class _NodeMetrics(msgspec.Struct, kw_only=True):
    metadata: _Metadata
    usage: dict[str, str]
    timestamp: str | None = None
    window: str | None = None


_list_decoder = msgspec.json.Decoder(_List)
_item_decoder = msgspec.json.Decoder(_NodeMetrics)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode_node_metrics(body: bytes, metrics: frozenset[str]) -> Batch:
    """The values of those of `metrics` that there are, for every node of an answer.

    Raises:
        InvalidInputError: if the body as a whole is no NodeMetricsList.
    """
    told = "metrics of nodes"
    try:
        answer = _list_decoder.decode(body)
    except _UNREADABLE as error:
        raise InvalidInputError(told, "body", body[:200].decode(errors="replace"), str(error)) from error
    if answer.kind != "NodeMetricsList":
        raise InvalidInputError(told, "kind", answer.kind, "must be NodeMetricsList")
    gathering = Gathering()
    for item in answer.items or ():
        _take(gathering, metrics & METRICS, item)
    for metric in metrics & METRICS if not answer.items else ():
        gathering.miss(metric, "the metrics API has no value of it for any node")
    for metric in metrics - METRICS:
        gathering.miss(metric, f"the metrics API has only {' and '.join(sorted(METRICS))}")
    return gathering.batch()


def _take(gathering: Gathering, metrics: frozenset[str], item: msgspec.Raw) -> None:
    try:
        node = _item_decoder.decode(item)
    except _UNREADABLE as error:
        gathering.refuse(Refused.SHAPE, "metrics of nodes", "items", bytes(item).decode(errors="replace"), str(error))
        return
    try:
        measured = None if node.timestamp is None else told_time(node.timestamp)
    except NoTimeError as error:
        gathering.refuse(Refused.TIME, f"metrics of {node.metadata.name}", "timestamp", node.timestamp, str(error))
        return
    window = None if node.window is None else told_duration(node.window)
    for metric in sorted(metrics & node.usage.keys()):
        gathering.add(
            node=node.metadata.name, metric=metric, value=node.usage[metric], measured=measured, window=window
        )
