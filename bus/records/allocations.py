"""What the pods of a node request, in NODES."""

from bus.records.codec import reader
from tas.allocation.node import MAX_RECENT, NodeAllocation
from tas.errors import InvalidInputError

SUBJECT = "allocation of a node"

_read = reader(SUBJECT, NodeAllocation)


def decode_allocation(data: bytes) -> NodeAllocation:
    """The value of `<node>.allocation` in NODES. Raises InvalidInputError."""
    found = _read(data)
    for field in ("capacity", "allocatable", "requested", "limited"):
        for resource, amount in getattr(found, field).items():
            if amount < 0:
                raise InvalidInputError(SUBJECT, f"{field}.{resource}", amount, "must not be negative")
    if len(found.recent) > MAX_RECENT:
        raise InvalidInputError(SUBJECT, "recent", len(found.recent), f"must be at most {MAX_RECENT} pods")
    return found
