"""The description of the public events for programs in any language: JSON schemas, and one AsyncAPI 3 document.

Both follow from the types of the events, so that they are never different from what is published.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from bus.buckets import EVENTS
from bus.subjects import EVENTS as EVENTS_SUBJECT
from tas.events.cloudevents import CONTENT_TYPE, PREFIX, SPEC_VERSION
from tas.events.data import ALL_POLICIES, Data
from tas.events.event import DATA_TYPES, SOURCE

VERSION = "1.1.0"
"""The version of the document: the second number counts added types and fields, the first one removed types."""

DRAFT = "https://json-schema.org/draft/2020-12/schema"

DESCRIPTION = """What telemetry-aware scheduling observes and does, as CloudEvents 1.0 in binary mode on NATS.

Each transition is one event. Its id is the same for every repetition, and events about one node and policy come in
order. An event with `ce-resync` only restates what is. Ignore unknown types, fields and headers.
"""

_TEXT = {"type": "string"}


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON schema of the data of each type, by the type."""
    return {name: {"$schema": DRAFT, "$id": name} | msgspec.json.schema(data) for name, data in DATA_TYPES.items()}


def asyncapi() -> dict[str, Any]:
    """The AsyncAPI 3 document. The events of one thing have a subject of their own: the address of a channel."""
    _, components = msgspec.json.schema_components(DATA_TYPES.values(), ref_template="#/components/schemas/{name}")
    channels: dict[str, dict[str, Any]] = {}
    for data in DATA_TYPES.values():
        channel = channels.setdefault(_channel_name(data), _channel(data))
        channel["messages"][data.__name__] = {"$ref": f"#/components/messages/{data.__name__}"}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Events of telemetry-aware scheduling", "version": VERSION, "description": DESCRIPTION},
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
        },
        "components": {
            "messages": {data.__name__: _message(name, data) for name, data in DATA_TYPES.items()},
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


def compatible(published: dict[str, Any], current: dict[str, Any]) -> Iterable[str]:
    """Why `current` breaks readers of the schema `published` (types, required fields, and everything they refer to)."""
    yield from _differences("", published, current)


def _differences(path: str, published: Any, current: Any) -> Iterable[str]:
    if isinstance(published, dict) and isinstance(current, dict):
        for key, value in published.items():
            if key in ("description", "title", "$schema"):
                continue
            if key not in current:
                yield f"{path}/{key} is missing"
            elif key == "required":
                gone = sorted(set(value) - set(current[key]))
                if gone:
                    yield f"{path}/{key}: {', '.join(gone)} may be missing now"
            else:
                yield from _differences(f"{path}/{key}", value, current[key])
    elif published != current:
        yield f"{path} is {current!r}, was {published!r}"
