"""What a process has once, and says of itself."""

from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from bus.connection import Bus
from cli.loading import load_settings
from workers.context import Context


async def test_a_process_says_when_the_first_of_its_credentials_and_certificates_for_the_bus_expire() -> None:
    context = Context(load_settings("run labels", {}), AsyncExitStack(), CollectorRegistry())
    assert context.expires == {}
    for dates in ({"bus": 9.0, "bus-cert": 5.0}, {"bus": 7.0, "bus-cert": 8.0}, {}):
        bus = Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1)  # it never connects
        bus._expires = dates
        context._buses.append(bus)
    assert [each.credentials_expire for each in context._buses] == [5.0, 7.0, float("inf")]
    assert context.expires == {"bus": 7.0, "bus-cert": 5.0}
