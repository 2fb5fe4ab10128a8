"""What an extender says about a view that nothing has reached yet."""

from prometheus_client import CollectorRegistry

from bus.buckets import NODES, POLICIES
from bus.connection import Bus
from workers.extender.worker import ExtenderWorker
from workers.following.followed_view import FollowedView
from workers.http.address import Address
from workers.scheduler.server import SchedulerServer


async def test_the_lag_of_a_view_without_a_bus_is_not_known_and_not_0() -> None:
    registry = CollectorRegistry()
    bus = Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1)  # it never connects
    ExtenderWorker(
        bus,
        FollowedView(bus, default_stale_after=120.0),
        SchedulerServer("extender", Address("127.0.0.1", 0), registry),
        registry=registry,
    )
    for bucket in (NODES, POLICIES):
        assert registry.get_sample_value("tas_view_lag", {"bucket": bucket.name}) == -1
