"""The announcements of outstanding verdicts, in BREAKERS."""

from collections.abc import Mapping

import msgspec

from bus.records.codec import encode, reader
from tas.errors import InvalidInputError
from tas.verdict.outstanding import MAX_ANNOUNCED, Announcement, Announcements


class _Outstanding(msgspec.Struct, kw_only=True):
    evaluate: Mapping[str, Announcement]


_read = reader("outstanding verdicts", _Outstanding)


def encode_outstanding(announcements: Announcements) -> bytes:
    """The value of `_outstanding` in BREAKERS."""
    return encode(_Outstanding(evaluate=dict(announcements)))


def decode_outstanding(data: bytes) -> Announcements:
    """The inverse of `encode_outstanding`. Raises InvalidInputError."""
    found = _read(data).evaluate
    if len(found) > MAX_ANNOUNCED:
        raise InvalidInputError("outstanding verdicts", "evaluate", str(len(found)), f"more than {MAX_ANNOUNCED}")
    return found
