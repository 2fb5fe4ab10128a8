"""The state of a source on a real nats-server: which replica writes it, and when."""

import base64
import time

import pytest

from bus.buckets import SOURCES
from bus.connection import Bus
from bus.records.sources import decode_source_state
from tas.sources.state import MAX_WRITE_INTERVAL_SECONDS, UNATTENDED_SECONDS, SourceState
from tests.integration.servers import answered
from tests.integration.workers.running import entry_on, put
from workers.ingest.source_states import HELD_SECONDS, SourceStates


def state(holder: str, *, age: float = 0.0, **changes: object) -> SourceState:
    now = time.time() - age
    known = {"kind": "remote-write", "holder": holder, "since": now, "time": now}
    return SourceState(**known | changes)  # type: ignore[arg-type]


async def holder_of(bus: Bus, source: str = "s") -> str | None:
    entry = await entry_on(bus, SOURCES, source)
    return None if entry is None or entry.value is None else decode_source_state(entry.value).holder


async def test_keep_other_holder_does_not_replace_the_state_of_another_holder(bus: Bus) -> None:
    first, second = SourceStates(bus, "s"), SourceStates(bus, "s")
    await second.write(state("b"), keep_other_holder=True)
    assert await holder_of(bus) == "b"  # there was no state of another holder
    await first.write(state("a"))
    await SourceStates(bus, "s").write(state("b"), keep_other_holder=True)
    assert await holder_of(bus) == "a"
    await SourceStates(bus, "s").write(state("b"))
    assert await holder_of(bus) == "b"


async def test_a_holder_that_has_ended_is_replaced_before_its_source_counts_as_unattended(bus: Bus) -> None:
    """Also by a replica that has received nothing: it listens."""
    for age, holder in ((HELD_SECONDS - 5, "a"), (HELD_SECONDS + 1, "b")):
        await SourceStates(bus, "s").write(state("a", age=age))
        await SourceStates(bus, "s").write(state("b"), keep_other_holder=True)
        assert await holder_of(bus) == holder
    assert HELD_SECONDS < UNATTENDED_SECONDS


@pytest.mark.parametrize("stored", [b"?", b"{}"])
async def test_an_invalid_state_is_replaced(bus: Bus, stored: bytes) -> None:
    await put(bus, SOURCES, "s", stored)
    await SourceStates(bus, "s").write(state("a"), keep_other_holder=True)
    assert await holder_of(bus) == "a"


async def test_a_deleted_state_is_written_again(bus: Bus) -> None:
    states = SourceStates(bus, "s")
    await states.write(state("a", age=MAX_WRITE_INTERVAL_SECONDS + 1))
    await put(bus, SOURCES, "s", None)
    await states.write(state("a", age=MAX_WRITE_INTERVAL_SECONDS, since=time.time()))
    await states.write(state("a"))
    assert await holder_of(bus) == "a"


async def test_a_state_expires_without_writes(bus: Bus) -> None:
    await SourceStates(bus, "s").write(state("a"))
    found = await answered(lambda: bus.api("STREAM.MSG.GET.KV_SOURCES", {"last_by_subj": "$KV.SOURCES.s"}))
    assert b"Nats-TTL: 3600" in base64.b64decode(found["message"]["hdrs"])
