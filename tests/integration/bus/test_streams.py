"""The streams as the server has them: the log of verdicts, and what a header of a message may not do."""

import base64
import json
import time
from typing import Any

import nats
import pytest

from bus.buckets import AGENTS, ALL, REFUSALS, SOURCES, VERDICT_LOG, VERDICTS, WINDOWS, WORKERS, Bucket
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


async def test_who_may_write_a_key_cannot_empty_the_bucket_by_a_header(bus: Bus, server: Server) -> None:
    """Except where expired keys leave tombstones: a server allows it there, whatever was asked for (facts.md n46)."""
    buckets = [of for of in ALL if isinstance(of, Bucket)]
    emptied = set()
    client = await nats.connect(server.url)
    try:
        for of in buckets:
            await bus.put(of, "a", b"1", revision=0, read_at=now())
            for number, rollup in enumerate(("sub", "all")):
                subject = of.subject(f"b{number}")
                answer = json.loads((await client.request(subject, b"2", headers={"Nats-Rollup": rollup})).data)
                assert answer.get("error", {}).get("description", "") in ("", "rollup not permitted")
            if (await bus.get(of, "a")) is None:
                emptied.add(of)
    finally:
        await client.close()
    assert emptied == {of for of in buckets if of.ttl and of.marks} == {SOURCES, REFUSALS, AGENTS, WINDOWS, WORKERS}


async def test_ids_of_messages_are_remembered_only_where_our_publishers_set_them(bus: Bus) -> None:
    """Each id may have 64 KB, and by default a server keeps those of two minutes."""
    windows = {of.stream: (await bus.api(f"STREAM.INFO.{of.stream}"))["config"]["duplicate_window"] for of in ALL}
    assert {stream for stream, window in windows.items() if window > 10**8} == {"OUTCOMES"}
