"""CloudEvents 1.0: on NATS in binary mode, where attributes are headers and the body is the data as JSON.

Elsewhere in structured mode, where one JSON object has all. No value of a header has a character that a sender or a
reader of headers would escape (facts.md n2).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import cast

import msgspec

from tas.errors import InvalidInputError
from tas.events.data import Data, EventData, Time, Unknown
from tas.events.event import DATA_TYPES, Event

SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/json"
STRUCTURED_TYPE = "application/cloudevents+json; charset=utf-8"
"""The type of the content in structured mode (facts.md V7)."""

PREFIX = "ce-"

MAX_DEPTH = 64
"""The most levels of the data of a type that is not known: what can be read can also be written."""

_encode = msgspec.json.Encoder().encode


@cache
def _decoder(data: type[Data]) -> msgspec.json.Decoder[Data]:
    return msgspec.json.Decoder(data)


def attributes(event: Event) -> dict[str, str]:
    """The attributes of an event, by name, without the type of its content. `resync` is there only if it is true."""
    found = {
        "specversion": SPEC_VERSION,
        "id": event.id,
        "type": event.type,
        "source": event.source,
        "subject": event.subject,
        "time": _rfc3339(event.time),
    }
    if event.resync:
        found["resync"] = "true"
    return found


def headers(event: Event) -> dict[str, str]:
    """The headers of a NATS message.

    The type of the content is named twice: as the NATS binding says (facts.md n1), and as SDKs write it (facts.md n53).
    """
    found = {f"{PREFIX}{name}": value for name, value in attributes(event).items()}
    return found | {f"{PREFIX}datacontenttype": CONTENT_TYPE, "content-type": CONTENT_TYPE}


def body(event: Event) -> bytes:
    """The data as JSON."""
    return _encode(event.data.document if isinstance(event.data, Unknown) else event.data)


def structured(event: Event) -> bytes:
    """The event in structured mode: one JSON object with the attributes, and with the data in `data`."""
    data = event.data.document if isinstance(event.data, Unknown) else event.data
    return _encode(attributes(event) | {"datacontenttype": CONTENT_TYPE, "data": data})


def decode(found: Mapping[str, str] | None, data: bytes) -> Event:
    """The event of a message.

    The data of a type or a version that is not known is `Unknown`; unknown attributes and fields are ignored. Names of
    headers are compared without regard to case. Raises InvalidInputError.
    """
    by_name = {name.lower(): value for name, value in (found or {}).items()}
    version = by_name.get(f"{PREFIX}specversion", "")
    if version.partition(".")[0] != "1":
        raise InvalidInputError("event", f"{PREFIX}specversion", version, "must be 1.0, in binary mode")
    values: dict[str, str] = {}
    for name in ("id", "type", "source"):
        values[name] = by_name.get(f"{PREFIX}{name}", "")
        if not values[name]:
            raise InvalidInputError("event", f"{PREFIX}{name}", "", "must not be empty")
    return Event(
        **values,
        subject=by_name.get(f"{PREFIX}subject", ""),
        time=_time(by_name.get(f"{PREFIX}time", "")),
        resync=by_name.get(f"{PREFIX}resync") == "true",
        data=_data(values["type"], values["id"], data),
    )


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _time(text: str) -> float:
    try:
        seconds = msgspec.convert(text, Time).timestamp()
        _rfc3339(seconds)  # UTC may have no year for the time: then the event could not be sent on
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise InvalidInputError("event", f"{PREFIX}time", text, "must be a time as in RFC 3339") from error
    return seconds


def _data(of_type: str, identity: str, data: bytes) -> EventData:
    known = DATA_TYPES.get(of_type)
    try:
        if known is not None:
            return cast("EventData", _decoder(known).decode(data))
        document = msgspec.json.decode(data) if data else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"event {identity}", "body", data.decode(errors="replace"), str(error)) from error
    if not _has_depth(document, MAX_DEPTH):
        raise InvalidInputError(f"event {identity}", "body", document, f"must have at most {MAX_DEPTH} levels")
    return Unknown(document=document)


def _has_depth(value: object, most: int) -> bool:
    """Whether a value of JSON has at most `most` levels of objects and arrays."""
    if isinstance(value, dict):
        value = list(value.values())
    return not isinstance(value, list) or (most > 0 and all(_has_depth(each, most - 1) for each in value))
