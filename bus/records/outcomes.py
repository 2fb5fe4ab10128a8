"""What becomes of a pod, in OUTCOMES."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from bus.records.codec import Time, encode, reader, struct_of, value_of
from tas.errors import InvalidInputError
from tas.outcomes.outcome import Outcome, Placed, Result

SUBJECT = "outcome"

MAX_UID = 128
"""The most characters of a UID: those of an API server have 36."""

# As long as Kubernetes allows: agents remember thousands of them, whoever wrote the message.
_Uid = Annotated[str, msgspec.Meta(max_length=MAX_UID)]
_Node = Annotated[str, msgspec.Meta(max_length=253)]
_Container = Annotated[str, msgspec.Meta(max_length=63)]
_Namespace = Annotated[str, msgspec.Meta(max_length=63)]
_LabelValue = Annotated[str, msgspec.Meta(max_length=63)]


class _Placed(msgspec.Struct, frozen=True, kw_only=True, tag="placed", omit_defaults=True):
    uid: _Uid
    node: _Node
    at: Time
    namespace: _Namespace = ""
    requests: Mapping[str, float] = {}


class _Run(msgspec.Struct, frozen=True, kw_only=True, tag="run", rename="camel", omit_defaults=True):
    uid: _Uid
    node: _Node
    container: _Container
    restart: int
    result: Result
    at: Time
    namespace: _Namespace = ""
    labels: Mapping[str, _LabelValue] = {}
    started: Time | None = None
    finished: Time | None = None
    previous_finished: Time | None = None


_read = reader(SUBJECT, _Placed | _Run)  # type: ignore[arg-type] # msgspec decodes a union


def encode_outcome(event: Placed | Outcome) -> bytes:
    """The message of an event in OUTCOMES."""
    return encode(struct_of(_Placed if isinstance(event, Placed) else _Run, event))


def decode_outcome(data: bytes) -> Placed | Outcome:
    """The inverse of `encode_outcome`. Raises InvalidInputError."""
    found: _Placed | _Run = _read(data)
    if isinstance(found, _Placed):
        for resource, amount in found.requests.items():
            if amount < 0:
                raise InvalidInputError(SUBJECT, f"requests.{resource}", amount, "must not be negative")
        return value_of(Placed, found)
    if found.restart < 0:
        raise InvalidInputError(SUBJECT, "restart", found.restart, "must not be negative")
    return value_of(Outcome, found)
