"""The description of what programs in any language may read and publish: JSON schemas, and one AsyncAPI 3 document.

Events follow from their types, and samples from the limits of their decoders, so that the document is never different
from what is published and read.
"""

from typing import Any

import msgspec

from bus.buckets import EVENTS, SAMPLES, TABLES, Stream
from bus.records.samples import MAX_SAMPLES_METRICS
from bus.records.tables import MAX_TABLE_METRICS
from bus.subjects import EVENTS as EVENTS_SUBJECT
from bus.subjects import SAMPLES as SAMPLES_SUBJECT
from bus.subjects import TABLES as TABLES_SUBJECT
from tas.events.cloudevents import CONTENT_TYPE, PREFIX, SPEC_VERSION
from tas.events.data import ALL_POLICIES, Data
from tas.events.event import DATA_TYPES, SOURCE
from tas.samples.parts import MAX_PARTS, MAX_ROWS
from tas.samples.sample import MAX_SAMPLE_AGE

VERSION = "1.2.0"
"""The version of the document: the second number counts added types and fields, the first one removed types."""

DRAFT = "https://json-schema.org/draft/2020-12/schema"

DESCRIPTION = """What telemetry-aware scheduling observes and does, as CloudEvents 1.0 in binary mode on NATS; and the
samples that programs publish for it.

Each transition is one event. Its id is the same for every repetition, and events about one node and policy come in
order. An event with `ce-resync` only restates what is. Ignore unknown types, fields and headers.

Samples are plain JSON without these headers. Publish each with a request, and wait for the acknowledgement of
JetStream.
"""

_TEXT: dict[str, Any] = {"type": "string"}
_TIME: dict[str, Any] = _TEXT | {"format": "date-time"}
_WINDOW: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0, "maximum": 86400}
_VALUE: dict[str, Any] = {
    "type": ["string", "number"],
    "description": "A Kubernetes quantity as text, such as `1500m` or `2Gi`, or a number.",
}
_METRIC = {"pattern": "^[a-zA-Z0-9_:-]{1,253}$"}
_TIMES: dict[str, tuple[dict[str, Any], str]] = {
    "measured": (_TIME, f"When; at most {MAX_SAMPLE_AGE:g} s before the arrival. Without it: the arrival."),
    "window": (_WINDOW, "The seconds that each value covers."),
    "ends": (_TIME, "From when the values are stale, since their series has ended."),
}


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON schema of the data of each type, by the type."""
    return {name: {"$schema": DRAFT, "$id": name} | msgspec.json.schema(data) for name, data in DATA_TYPES.items()}


def asyncapi() -> dict[str, Any]:
    """The AsyncAPI 3 document. The events of one thing have a subject of their own: the address of a channel."""
    _, components = msgspec.json.schema_components(DATA_TYPES.values(), ref_template="#/components/schemas/{name}")
    components = dict(components) | {"Sample": _sample(), "Table": _table()}
    channels: dict[str, dict[str, Any]] = {}
    for data in DATA_TYPES.values():
        channel = channels.setdefault(_channel_name(data), _channel(data))
        channel["messages"][data.__name__] = {"$ref": f"#/components/messages/{data.__name__}"}
    channels |= {
        "samples": _written(SAMPLES, f"{SAMPLES_SUBJECT}.{{node}}.{{source}}", "Sample", ("node", "source")),
        "tables": _written(TABLES, f"{TABLES_SUBJECT}.{{source}}.{{part}}", "Table", ("source", "part")),
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Events and samples of telemetry-aware scheduling",
            "version": VERSION,
            "description": DESCRIPTION,
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": {"nats": {"host": "localhost:4222", "protocol": "nats", "description": "Your NATS server."}},
        "channels": channels,
        "operations": {
            f"send{data.__name__}": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{_channel_name(data)}"},
                "messages": [{"$ref": f"#/channels/{_channel_name(data)}/messages/{data.__name__}"}],
            }
            for data in DATA_TYPES.values()
        }
        | {
            f"receive{name}": {
                "action": "receive",
                "channel": {"$ref": f"#/channels/{channel}"},
                "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"}],
            }
            for channel, name in (("samples", "Sample"), ("tables", "Table"))
        },
        "components": {
            "messages": {data.__name__: _message(name, data) for name, data in DATA_TYPES.items()}
            | {
                "Sample": _plain("Sample", "Values of one node from one source, measured at the same time."),
                "Table": _plain(
                    "Table", "Values of many nodes from one source: a row for each, and columns by metric."
                ),
            },
            "messageTraits": {"cloudEvent": {"headers": _headers()}},
            "schemas": components,
        },
    }


def _channel_name(data: type[Data]) -> str:
    first, *rest = data.CHANNEL.split(".")
    return first + "".join(map(str.capitalize, rest))


def _channel(data: type[Data]) -> dict[str, Any]:
    return {
        "address": ".".join((EVENTS_SUBJECT, data.CHANNEL, *(f"{{{name}}}" for name in data.NAMES))),
        "description": f"In the stream {EVENTS.name}.",
        "messages": {},
        "parameters": {name: {"description": _token(data.CHANNEL, name)} for name in data.NAMES},
        "bindings": {"nats": {}},
    }


def _token(channel: str, name: str) -> str:
    if name == "label":
        return "The key of the label, with `=` for each `_`, and then `_` for each `.`."
    names = "The name, with `_` for each `.`"
    return f"{names}; or `{ALL_POLICIES}`, the limit over all policies." if channel == "breaker" else f"{names}."


_PARAMETERS = {
    "node": "The name of the node, with `_` for each `.`.",
    "source": "The name of the source: at most 63 of `[a-z0-9-]`.",
    "part": f"`<parts>-<number>`: the number of parts, a power of two up to {MAX_PARTS}, and the CRC-32 of the name of "
    "each node, modulo that.",
}


def _written(stream: Stream, address: str, name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    """A channel that programs write."""
    return {
        "address": address,
        "description": f"In the stream {stream.name}.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
        "parameters": {each: {"description": _PARAMETERS[each]} for each in parameters},
        "bindings": {"nats": {}},
    }


def _plain(name: str, summary: str) -> dict[str, Any]:
    """A message without headers."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"name": name, "title": name, "summary": summary, "contentType": CONTENT_TYPE, "payload": schema}


def _sample() -> dict[str, Any]:
    return {
        "title": "Sample",
        "type": "object",
        "properties": {
            "metrics": {
                "type": "object",
                "propertyNames": _METRIC,
                "maxProperties": MAX_SAMPLES_METRICS,
                "additionalProperties": _VALUE,
            },
            **{field: schema | {"description": text} for field, (schema, text) in _TIMES.items()},
            "node": _TEXT | {"description": "As in the subject, but with dots."},
            "source": _TEXT | {"description": "As in the subject."},
        },
        "required": ["metrics"],
    }


def _table() -> dict[str, Any]:
    column = {"type": "array", "items": _VALUE | {"type": ["string", "number", "null"]}, "maxItems": MAX_ROWS}
    return {
        "title": "Table",
        "type": "object",
        "properties": {
            "nodes": {"type": "array", "items": _TEXT, "uniqueItems": True, "maxItems": MAX_ROWS},
            "metrics": {
                "type": "object",
                "description": "By metric, a value for each of `nodes`, or null.",
                "propertyNames": _METRIC,
                "maxProperties": MAX_TABLE_METRICS,
                "additionalProperties": column,
            },
            **{field: _of_rows(schema, text) for field, (schema, text) in _TIMES.items()},
        },
        "required": ["nodes", "metrics"],
    }


def _of_rows(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """One value for the whole table, one for each row, or either by metric."""
    one = {"anyOf": [schema, {"type": "null"}]}
    rows = {"type": "array", "items": one, "maxItems": MAX_ROWS}
    by_metric = {"type": "object", "additionalProperties": {"anyOf": [*one["anyOf"], rows]}}
    return {"description": text, "anyOf": [*one["anyOf"], rows, by_metric]}


def _message(name: str, data: type[Data]) -> dict[str, Any]:
    return {
        "name": name,
        "title": data.__name__,
        "summary": (data.__doc__ or "").partition("\n")[0],
        "contentType": CONTENT_TYPE,
        "traits": [{"$ref": "#/components/messageTraits/cloudEvent"}],
        "headers": {"type": "object", "properties": {f"{PREFIX}type": {"const": name}}},
        "payload": {"$ref": f"#/components/schemas/{data.__name__}"},
    }


def _headers() -> dict[str, Any]:
    properties: dict[str, dict[str, Any]] = {
        "specversion": {"const": SPEC_VERSION},
        "id": _TEXT | {"description": "The same for every repetition of one transition, different for all others."},
        "type": _TEXT | {"description": "With a version at its end: the schema of a version only grows."},
        "source": _TEXT | {"format": "uri-reference", "examples": [SOURCE]},
        "subject": _TEXT | {"description": "The object, such as `nodes/node-1`."},
        "time": _TEXT | {"format": "date-time", "description": "When the transition happened."},
        "datacontenttype": {"const": CONTENT_TYPE},
        "resync": {"const": "true", "description": "The event only restates what is: start nothing because of it."},
    }
    found = {f"{PREFIX}{name}": each for name, each in properties.items()} | {"content-type": {"const": CONTENT_TYPE}}
    return {"type": "object", "properties": found, "required": [name for name in found if name != f"{PREFIX}resync"]}
