"""Which events about pods wait for another attempt."""

import pytest

from bus.errors import BusError, ConflictError, ForbiddenError, FullError, NobodyListensError, RefusedError
from workers.inventory.outcomes import _may_succeed_later


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (NobodyListensError, True),
        (FullError, True),
        (ForbiddenError, True),  # an operator corrects the rights, and nothing is lost meanwhile
        (ConflictError, True),
        (RefusedError, False),  # of this event: for example, the message is too large
    ],
)
def test_an_event_is_dropped_only_if_it_can_never_be_stored(error: type[BusError], waits: bool) -> None:
    assert _may_succeed_later(error("")) is waits
