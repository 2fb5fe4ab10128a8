"""What a connection says of its problems: the metrics and alerts of the bus, and /readyz, follow from it."""

import pytest

from bus.connection import Bus
from bus.errors import BusError, FullError, MisconfiguredError, RefusedError, UnavailableError


@pytest.mark.parametrize(
    ("problem", "unavailable", "refusing"),
    [
        (UnavailableError("no answer"), True, False),
        (RefusedError("not allowed", code=10039), False, True),
        (MisconfiguredError("wrong settings"), False, True),
        (FullError("no room", code=10077), False, True),
    ],
    ids=["unavailable", "refused", "misconfigured", "full"],
)
async def test_a_bus_that_gives_no_answer_refuses_nothing(problem: BusError, unavailable: bool, refusing: bool) -> None:
    bus = Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1)  # it never connects
    bus.report("consumer NODES/a", problem)
    assert (bus.unavailable, bus.refusing) == (unavailable, refusing)
    bus.report("consumer NODES/a", None)
    assert (bus.unavailable, bus.refusing) == (False, False)
