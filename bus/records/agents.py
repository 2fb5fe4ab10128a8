"""What an agent has learned, in AGENTS."""

from collections.abc import Mapping
from typing import Any

import msgspec

from bus.records.codec import compressed, encode, json_within, reader
from tas.errors import InvalidInputError

COMPRESSED_FROM = 4096
"""From so many bytes on, a state is compressed: names of nodes and kinds repeat."""

SUBJECT = "state of an agent"


class LearnedState(msgspec.Struct, frozen=True, kw_only=True):
    """Value of `<agent>` in AGENTS.

    Attributes:
        agent: The kind of the agent, which alone can read the state.
        sequence: Up to which sequence of OUTCOMES it has learned.
        since: When the first event that it has learned from was stored, in seconds since 1970.
        state: As the agent gave it, with a `version`.
    """

    agent: str
    sequence: int
    since: float
    state: Mapping[str, Any]


_read = reader(SUBJECT, LearnedState)


def encode_learned(record: LearnedState) -> bytes:
    """The value of `<agent>` in AGENTS. From `COMPRESSED_FROM` bytes on it is compressed."""
    data = encode(record)
    return data if len(data) < COMPRESSED_FROM else compressed(data)


def decode_learned(data: bytes) -> LearnedState:
    """The inverse of `encode_learned`. Raises InvalidInputError."""
    found = _read(learned_json(data))
    if found.sequence < 0:
        raise InvalidInputError(SUBJECT, "sequence", found.sequence, "must not be negative")
    return found


def learned_json(data: bytes) -> bytes:
    """The JSON of a value. Raises InvalidInputError."""
    return json_within(SUBJECT, data)
