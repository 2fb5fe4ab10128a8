"""Instant queries in Prometheus' form, answered from the view: the fresh value of one metric of each node.

Only a selector of one metric is answered, for the present time; everything else is an error that a client of Prometheus
understands. Source of the format: the stable HTTP API of Prometheus, `/api/v1/query`.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tas.errors import InvalidInputError
from tas.samples.freshness import is_fresh
from tas.samples.sample import newest
from tas.sources.timestamps import InvalidTimeError, parse_time
from tas.values.names import is_metric_name, is_source_name, is_subdomain
from tas.values.quantity import format_quantity
from tas.view.view import View

SUBJECT = "instant query"

NODE_LABEL = "instance"
"""The label with the name of the node, which the descheduler expects (facts.md c37)."""

MAX_QUERY = 1000
"""The most characters of a query: a selector with the longest names has fewer."""

TIME_TOLERANCE = 60.0
"""Seconds by which the time of a query may differ from the present: the clocks of client and server differ."""

PARAMETERS = frozenset({"query", "time", "timeout"})
"""The parameters of a request; `timeout` has no effect, since an answer takes milliseconds."""

_FORM = (
    f'must be the name of a metric, with no matchers but {NODE_LABEL}="NODE", source="SOURCE" and __name__="METRIC"; '
    "other expressions need a Prometheus"
)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MATCHER = re.compile(r"""\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*(?:,|\Z)""", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{0,9})?")


class InstantQuery(NamedTuple):
    """One metric, of one node or all, from one source or any. `time` is the time of the answer."""

    metric: str
    node: str | None
    source: str | None
    time: float


class _Series(msgspec.Struct, frozen=True, gc=False):
    metric: dict[str, str]
    value: tuple[float, str]


def parse_instant_query(parameters: Mapping[str, str], now: float) -> InstantQuery:
    """The query that the parameters of a request name. Raises InvalidInputError for any other than the module's."""
    for name in sorted(parameters.keys() - PARAMETERS):
        raise InvalidInputError(SUBJECT, name, parameters[name], f"must be absent: {', '.join(sorted(PARAMETERS))}")
    text = parameters.get("query", "")
    if len(text) > MAX_QUERY:
        raise InvalidInputError(SUBJECT, "query", text, f"must have at most {MAX_QUERY} characters")
    selected = _selected(text)
    metric, node, source = (selected.get(label) for label in ("__name__", NODE_LABEL, "source"))
    if metric is None or not is_metric_name(metric):
        raise InvalidInputError(SUBJECT, "query", text, _FORM)
    if node is not None and not is_subdomain(node):
        raise InvalidInputError(SUBJECT, NODE_LABEL, node, "must be the name of a node")
    if source is not None and not is_source_name(source):
        raise InvalidInputError(SUBJECT, "source", source, "must be the name of a source")
    return InstantQuery(metric, node, source, _time(parameters.get("time"), now))


def answer_instant_query(view: View, query: InstantQuery, now: float) -> bytes:
    """The answer to a query: a vector with the newest value of each node, if it is fresh at `now`, by node.

    Fresh is meant by the default of the view. The label `source` names the source of the value.
    """
    result: list[_Series] = []
    for node in sorted(view.sampled_nodes) if query.node is None else (query.node,):
        scrape = newest(view.samples(node), query.metric, query.source)
        if scrape is not None and is_fresh(scrape, view.default_stale_after, now):
            labels = {"__name__": query.metric, NODE_LABEL: node, "source": scrape.source}
            result.append(_Series(labels, (query.time, format_quantity(scrape.metrics[query.metric]))))
    return msgspec.json.encode({"status": "success", "data": {"resultType": "vector", "result": result}})


def error_of_instant_query(kind: str, text: str) -> bytes:
    """An answer with an error. `kind` is an `errorType` of Prometheus: `bad_data`, `unavailable`."""
    return msgspec.json.encode({"status": "error", "errorType": kind, "error": text})


def _selected(text: str) -> dict[str, str]:
    """The value of each label that a selector names. Raises InvalidInputError for other expressions."""
    name, brace, rest = text.strip().partition("{")
    selected: dict[str, str] = {}
    if name := name.rstrip():
        if _NAME.fullmatch(name) is None:
            raise InvalidInputError(SUBJECT, "query", text, _FORM)
        selected["__name__"] = name
    if not brace:
        return selected
    if not rest.endswith("}"):
        raise InvalidInputError(SUBJECT, "query", text, _FORM)
    matchers, at = rest[:-1].rstrip(), 0
    while at < len(matchers):
        matcher = _MATCHER.match(matchers, at)
        if matcher is None or matcher[1] not in {"__name__", NODE_LABEL, "source"} or matcher[1] in selected:
            raise InvalidInputError(SUBJECT, "query", text, _FORM)
        selected[matcher[1]] = matcher[2] if matcher[3] is None else matcher[3]
        at = matcher.end()
    return selected


def _time(text: str | None, now: float) -> float:
    """The time of a query: the present, if the query names none. Raises InvalidInputError."""
    if text is None:
        return round(now, 3)
    try:
        time = float(text) if _SECONDS.fullmatch(text) else parse_time(text)
    except InvalidTimeError:
        raise InvalidInputError(SUBJECT, "time", text, "must be seconds since 1970, or a time as in RFC 3339") from None
    if abs(time - now) > TIME_TOLERANCE:
        raise InvalidInputError(SUBJECT, "time", text, f"must be the present: only values of {now:.0f} are known")
    return round(time, 3)
