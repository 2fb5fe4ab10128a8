"""What is known of BREAKERS, and how old it is."""

import time

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import PAUSED
from bus.connection import Bus
from tas.enforcing.brake import Brake, BrakeSettings
from tas.policy.policy import PolicyKey
from tas.verdict.freeze import ALL, Breaker
from workers.labels.breaker_records import BreakerRecords, _Known

P = PolicyKey("a", "p")


@pytest.mark.parametrize("oldest", [PAUSED, ALL, P.name])
@pytest.mark.parametrize("value", ["violating", None], ids=["set", "removed"])
async def test_a_permit_is_as_old_as_the_oldest_record_that_could_freeze_its_labels(
    oldest: str, value: str | None
) -> None:
    """Else a label may change more than 2 s after a pause, or after a breaker has tripped."""
    bus = Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1)  # it never connects
    records = BreakerRecords(
        bus,
        registry=CollectorRegistry(),
        new_bus_wait=0.0,
        on_thaw=lambda: None,
        on_loss=lambda _: None,
        on_batch=lambda: None,
    )
    now = time.monotonic()
    for key, record in {PAUSED: None, ALL: Breaker(nodes={"n": 7}), P.name: Breaker(nodes={"n": 7})}.items():
        records._note(key, _Known(record, 1, now - (0.5 if key == oldest else 0.1)))
    brake = Brake(BrakeSettings(), records)
    permit = brake.permit("n", "7", {P.name: "violating"}, {P.name: value}, now)
    assert (set(permit.labels), permit.read_at) == ({P.name}, now - 0.5)
