"""The state of a source over a real nats-server: who writes it, and when."""

import base64
import time

import pytest

from bus.buckets import SOURCES
from bus.connection import Bus
from bus.messages import decode_source_state
from tas.sources.state import CONFIRMED_SECONDS, SourceState
from workers.source_states import SourceStates


def state(holder: str, *, age: float = 0.0, **changes: object) -> SourceState:
    now = time.time() - age
    known = {"kind": "remote-write", "holder": holder, "since": now, "time": now}
    return SourceState(**known | changes)  # type: ignore[arg-type]


async def holder_of(bus: Bus, source: str = "s") -> str | None:
    entry = await bus.get(SOURCES, source)
    return None if entry is None or entry.value is None else decode_source_state(entry.value).holder


async def test_who_gives_way_leaves_the_word_to_who_has_it(bus: Bus) -> None:
    first, second = SourceStates(bus, "s"), SourceStates(bus, "s")
    await second.write(state("b"), give_way=True)
    assert await holder_of(bus) == "b"  # of nobody's it is whoever comes
    await first.write(state("a"))
    await SourceStates(bus, "s").write(state("b"), give_way=True)
    assert await holder_of(bus) == "a"
    await SourceStates(bus, "s").write(state("b"))
    assert await holder_of(bus) == "b"


@pytest.mark.parametrize("stands", [b"?", b"{}"])
async def test_what_cannot_be_read_keeps_nobody_away(bus: Bus, stands: bytes) -> None:
    await bus.put(SOURCES, "s", stands, revision=0, read_at=time.monotonic())
    await SourceStates(bus, "s").write(state("a"), give_way=True)
    assert await holder_of(bus) == "a"


async def test_what_is_gone_is_written_again_in_a_while(bus: Bus) -> None:
    states = SourceStates(bus, "s")
    await states.write(state("a", age=CONFIRMED_SECONDS + 1))
    entry = await bus.get(SOURCES, "s")
    assert entry is not None
    await bus.delete(SOURCES, "s", revision=entry.revision, read_at=time.monotonic())
    await states.write(state("a", age=CONFIRMED_SECONDS, since=time.time()))
    await states.write(state("a"))
    assert await holder_of(bus) == "a"


async def test_it_expires_when_nobody_confirms_it(bus: Bus) -> None:
    await SourceStates(bus, "s").write(state("a"))
    message = (await bus.api("STREAM.MSG.GET.KV_SOURCES", {"last_by_subj": "$KV.SOURCES.s"}))["message"]
    assert b"Nats-TTL: 3600" in base64.b64decode(message["hdrs"])
