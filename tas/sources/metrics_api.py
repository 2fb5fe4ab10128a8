"""Answers of the metrics API: processor and memory use of all nodes, as metrics-server reports them.

`NodeMetricsList` of metrics.k8s.io/v1beta1: `usage.cpu` in cores, `usage.memory` in bytes, both as quantities.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from tas.sources.nodes import ANY_NODE, NodeNames
from tas.sources.result import UNREADABLE, RefusalReason, ResultBuilder, SourceResult, items_of
from tas.sources.timestamps import InvalidTimeError, given_time, parse_window
from tas.values.blanks import ANY, ValueRules

GROUP = "metrics.k8s.io"
METRICS = frozenset({"cpu", "memory"})
"""The metrics that the API has: cores and bytes."""


class _Metadata(msgspec.Struct, kw_only=True):
    name: str = ""


class _NodeMetrics(msgspec.Struct, kw_only=True):
    metadata: _Metadata
    usage: dict[str, str]
    timestamp: str | None = None
    window: str | None = None


_item_decoder = msgspec.json.Decoder(_NodeMetrics)


def decode_node_metrics(
    body: bytes,
    metrics: frozenset[str],
    rules: Mapping[str, ValueRules] = MappingProxyType({}),
    *,
    nodes: NodeNames = ANY_NODE,
) -> SourceResult:
    """The values of `metrics` for every node of an answer; metrics that the API does not have are `missing`.

    Values that the `rules` of their metric exclude are refused.
    Raises InvalidInputError if the body is no NodeMetricsList.
    """
    items = items_of("metrics of nodes", "NodeMetricsList", body)
    builder = ResultBuilder(nodes)
    for item in items:
        _take(builder, metrics & METRICS, item, rules)
    for metric in metrics & METRICS if not items else ():
        builder.add_missing(metric, "the metrics API has no value of it for any node")
    for metric in metrics - METRICS:
        builder.add_missing(metric, f"the metrics API has only {' and '.join(sorted(METRICS))}")
    return builder.result()


def _take(builder: ResultBuilder, metrics: frozenset[str], item: msgspec.Raw, rules: Mapping[str, ValueRules]) -> None:
    try:
        node = _item_decoder.decode(item)
    except UNREADABLE as error:
        builder.refuse(
            RefusalReason.SHAPE, "metrics of nodes", "items", bytes(item)[:200].decode(errors="replace"), str(error)
        )
        return
    try:
        measured = given_time(node.timestamp)
    except InvalidTimeError as error:
        builder.refuse(RefusalReason.TIME, f"metrics of {node.metadata.name}", "timestamp", node.timestamp, str(error))
        return
    window = None if node.window is None else parse_window(node.window)
    for metric in sorted(metrics & node.usage.keys()):
        builder.add(
            node=node.metadata.name,
            metric=metric,
            value=node.usage[metric],
            measured=measured,
            window=window,
            rules=rules.get(metric, ANY),
        )
