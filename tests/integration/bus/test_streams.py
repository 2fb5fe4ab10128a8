"""The log of verdicts, which the server fills from the bucket."""

import base64
import time
from typing import Any

import pytest

from bus.buckets import VERDICT_LOG, VERDICTS
from bus.connection import Bus
from tests.integration.servers import Server, eventually

now = time.monotonic
pytestmark = pytest.mark.usefixtures("long_limits")


async def logged(bus: Bus) -> list[tuple[str, bytes]]:
    """The subject and body of each message in the log, in order."""
    state = (await bus.api(f"STREAM.INFO.{VERDICT_LOG.stream}"))["state"]
    messages: list[dict[str, Any]] = [
        (await bus.api(f"STREAM.MSG.GET.{VERDICT_LOG.stream}", {"seq": sequence}))["message"]
        for sequence in range(state["first_seq"], state["last_seq"] + 1)
    ]
    return [(message["subject"], base64.b64decode(message.get("data", ""))) for message in messages]


async def has_logged(bus: Bus, count: int) -> None:
    async def enough() -> bool:
        state = (await bus.api(f"STREAM.INFO.{VERDICT_LOG.stream}"))["state"]
        return bool(state["messages"] >= count)

    await eventually(enough, every=0.02)


async def test_the_log_of_verdicts_has_every_revision_in_order(bus: Bus) -> None:
    # If the log were created before the bucket, the server would copy only when it tries again, after some seconds.
    created = [(await bus.api(f"STREAM.INFO.{each.stream}"))["created"] for each in (VERDICTS, VERDICT_LOG)]
    assert created == sorted(created)
    revision = 0
    for number in range(120):
        revision = await bus.put(VERDICTS, "a", b"%d" % number, revision=revision, read_at=now())
        if number % VERDICTS.history == VERDICTS.history - 1:
            await has_logged(bus, number + 1)
    await bus.delete(VERDICTS, "a", revision=revision, read_at=now())
    await has_logged(bus, 121)
    expected = [("$KV.VERDICTS.a", b"%d" % number) for number in range(120)]
    assert await logged(bus) == [*expected, ("$KV.VERDICTS.a", b"")]


async def test_the_log_continues_after_a_wipe(server: Server, bus: Bus) -> None:
    await bus.put(VERDICTS, "a", b"1", revision=0, read_at=now())
    await has_logged(bus, 1)
    await server.restart(wiped=True)
    await eventually(lambda: bus.connected)
    await bus.put(VERDICTS, "a", b"2", revision=0, read_at=now())
    await has_logged(bus, 1)
    assert await logged(bus) == [("$KV.VERDICTS.a", b"2")]
