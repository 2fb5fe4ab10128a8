"""`tas events` with a real server."""

import asyncio
import json
import time

from bus.buckets import EVENTS
from bus.connection import Bus
from bus.errors import BusError
from bus.events import Expected, publish_events
from tas.events.data import EventData, LabelApplied, SourceDry, ViolationStarted
from tas.events.event import Cause, event_of
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server, answered, eventually


def started(node: str, policy: str) -> ViolationStarted:
    return ViolationStarted(node=node, namespace="default", policy=policy, strategy="deschedule")


async def publish(bus: Bus, *data: EventData) -> None:
    """Publishes the first event of each subject."""
    events = [event_of(each, Cause("1", number), time=time.time()) for number, each in enumerate(data)]

    async def store() -> list[int | BusError]:
        return await publish_events(bus, [Expected(event, 0) for event in events])

    assert all(isinstance(each, int) for each in await answered(store))


async def test_stored_events_are_printed_by_node_and_policy(tas: Tas, server: Server, bus: Bus) -> None:
    tas.environment["TAS_BUS"] = server.url
    none = await tas("events")
    assert (none.code, none.out, none.err) == (0, "", "no events\n")
    applied = LabelApplied(node="node-1", label="demo", value="violating", policy="demo")
    await publish(bus, started("node-1", "demo"), started("node-2", "demo"), started("node-1", "other"), applied)
    await publish(bus, SourceDry(source="prometheus"))

    everything = await tas("events")
    assert everything.code == 0, everything.err
    assert [line.split("  ")[2] for line in everything.out.splitlines()] == [
        *("nodes/node-1", "nodes/node-2", "nodes/node-1", "nodes/node-1", "sources/prometheus")
    ]
    of_node = await tas("events", "--node", "node-2", "--since", "10m")
    assert [line.split("  ")[1:3] for line in of_node.out.splitlines()] == [["violation.started.v1", "nodes/node-2"]]
    of_policy = await tas("events", "--policy", "default/demo", "--node", "node-1", "--json")
    found = [json.loads(line) for line in of_policy.out.splitlines()]
    assert [event["data"].get("strategy", event["data"].get("label")) for event in found] == ["deschedule", "demo"]

    invalid = {"--policy": ("a/b/c", "*"), "--node": ("a.*",), "--since": ("soon", "-5m")}
    for flag, value in ((flag, value) for flag, values in invalid.items() for value in values):
        refused = await tas("events", flag, value)
        assert (refused.code, refused.out) == (1, "")
        assert f"{flag} = '{value}'" in refused.err


async def test_new_events_are_printed_as_they_happen_also_after_a_restart_of_the_server(
    tas: Tas, server: Server, bus: Bus
) -> None:
    await publish(bus, started("node-1", "before"))
    process = await tas.start("events", "--follow", "--json", "--policy", "demo", "--bus", server.url)
    assert process.stdout is not None
    try:

        async def follows() -> bool:
            try:
                names = (await bus.api(f"CONSUMER.NAMES.{EVENTS.stream}"))["consumers"] or ()
            except BusError:
                return False
            return any(name.startswith("reader-") for name in names)

        await eventually(follows)
        await publish(bus, started("node-1", "demo"))
        line = json.loads(await asyncio.wait_for(process.stdout.readline(), 120))
        assert (line["data"]["node"], line["data"]["policy"]) == ("node-1", "demo")
        await server.restart()
        await eventually(follows)
        await publish(bus, started("node-2", "demo"))
        assert json.loads(await asyncio.wait_for(process.stdout.readline(), 120))["data"]["node"] == "node-2"
    finally:
        process.kill()
        await process.communicate()
