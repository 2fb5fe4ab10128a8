"""What the pods of a node request, in NODES."""

from bus.records.codec import reader
from tas.allocation.node import (
    ALWAYS,
    MAX_RECENT,
    MAX_RECENT_BYTES,
    MAX_RESOURCES,
    NodeAllocation,
    recent_bytes,
)
from tas.allocation.pod import MAX_AMOUNT
from tas.errors import InvalidInputError

SUBJECT = "allocation of a node"

MOST_RESOURCES = MAX_RESOURCES + len(ALWAYS)

_read = reader(SUBJECT, NodeAllocation)


def decode_allocation(data: bytes) -> NodeAllocation:
    """The value of `<node>.allocation` in NODES. Raises InvalidInputError.

    What a writer may not write is refused: one value that is no number of 64 bits would make agents fail for all nodes.
    """
    found = _read(data)
    for field in ("capacity", "allocatable", "requested", "limited"):
        amounts = getattr(found, field)
        if len(amounts) > MOST_RESOURCES:
            raise InvalidInputError(SUBJECT, field, len(amounts), f"must be at most {MOST_RESOURCES} resources")
        for resource, amount in amounts.items():
            _check(f"{field}.{resource}", amount)
    _check("unreadable", found.unreadable)
    if len(found.recent) > MAX_RECENT:
        raise InvalidInputError(SUBJECT, "recent", len(found.recent), f"must be at most {MAX_RECENT} pods")
    if (size := sum(map(recent_bytes, found.recent))) > MAX_RECENT_BYTES:
        raise InvalidInputError(SUBJECT, "recent", size, f"must be at most {MAX_RECENT_BYTES} bytes")
    for number, each in enumerate(found.recent):
        for resource, amount in each.requests:
            _check(f"recent[{number}].{resource}", amount)
    return found


def _check(field: str, amount: int) -> None:
    if not 0 <= amount <= MAX_AMOUNT:
        raise InvalidInputError(SUBJECT, field, amount, f"must be from 0 to {MAX_AMOUNT}")
