"""How long a patch may be on its way after the records of what was admitted are lost."""

from tas.enforcing.limits import IN_FLIGHT_SECONDS
from workers.kubernetes.client import CALL_SECONDS, WRITE_SECONDS


def test_after_a_loss_nodes_wait_as_long_as_a_patch_may_be_on_its_way() -> None:
    """A patch is sent at most `WRITE_SECONDS` after its reads, and given up `CALL_SECONDS` later."""
    assert IN_FLIGHT_SECONDS >= WRITE_SECONDS + CALL_SECONDS > 0
