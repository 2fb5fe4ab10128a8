"""Events that a subscriber could not handle: copies with the reason, for a person to read and to publish again."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from bus.buckets import DEAD_LETTERS
from bus.connection import Bus
from bus.errors import BusError
from bus.subjects import dead_letters_subject
from tas.errors import line_of

MAX_REASON = 300
"""The most characters of a reason."""

LEFT_BYTES = 8 << 10
"""What is left in a message for the reason, which is percent-encoded, and the other headers of a dead letter."""

SUBSCRIPTION, REASON, ATTEMPTS, SEQUENCE = "tas-subscription", "tas-reason", "tas-attempts", "tas-sequence"
"""The headers that a dead letter has beside those of the event. The reason is percent-encoded."""


class DeadLetter(NamedTuple):
    """Why a subscription gave up an event after so many attempts; `sequence` is that of the event in EVENTS."""

    subscription: str
    reason: str
    attempts: int
    sequence: int


async def publish_dead_letter(bus: Bus, letter: DeadLetter, headers: Mapping[str, str] | None, data: bytes) -> None:
    """Stores a copy of an event: its headers and its body. Raises BusError: it may be stored nevertheless.

    Of an event that is too large, only who gave it up and why: such an event must not stop its subscription.
    """
    own = {
        SUBSCRIPTION: letter.subscription,
        REASON: quote(line_of(letter.reason, MAX_REASON), safe=" "),
        ATTEMPTS: str(letter.attempts),
        SEQUENCE: str(letter.sequence),
    }
    kept = {name: value for name, value in (headers or {}).items() if not name.lower().startswith("nats-")}
    lines = (f"{name}: {value}\r\n".encode() for name, value in kept.items())
    if len(data) + sum(map(len, lines)) > DEAD_LETTERS.max_message_bytes - LEFT_BYTES:
        kept, data = {}, b""
    (stored,) = await bus.publish_each(DEAD_LETTERS, [(dead_letters_subject(letter.subscription), data, kept | own)])
    if isinstance(stored, BusError):
        raise stored
