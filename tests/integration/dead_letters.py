"""What the headers of a dead letter say."""

from collections.abc import Mapping
from urllib.parse import unquote

from bus.dead_letters import ATTEMPTS, REASON, SEQUENCE, SUBSCRIPTION, DeadLetter


def dead_letter_of(headers: Mapping[str, str] | None) -> DeadLetter:
    """What the headers of a dead letter say; unknown parts are empty or 0."""
    found = headers or {}
    attempts, sequence = (
        int(text) if (text := found.get(name, "")).isdecimal() else 0 for name in (ATTEMPTS, SEQUENCE)
    )
    return DeadLetter(found.get(SUBSCRIPTION, ""), unquote(found.get(REASON, "")), attempts, sequence)
