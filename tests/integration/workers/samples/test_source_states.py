"""The state of a source on a real nats-server: which replica writes it, and when."""

import base64
import time

import pytest
from structlog.testing import capture_logs

from bus.buckets import SOURCES
from bus.connection import Bus
from bus.records.sources import decode_source_state
from tas.sources.state import MAX_WRITE_INTERVAL_SECONDS, UNATTENDED_SECONDS, SourceMetric, SourceState
from tests.integration.bus.limits import long_limits
from tests.integration.servers import answered
from tests.integration.workers.running import entry_on, put
from workers.samples.source_states import HELD_SECONDS, SourceStates

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")


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


def with_long_names(count: int, *, age: float) -> SourceState:
    names = [f"a{number:0244}" for number in range(count)]
    return state("a", age=age, metrics={name: SourceMetric(missing="no value " * 20) for name in names})


async def test_a_state_with_thousands_of_long_names_is_stored_and_says_how_many_it_has_left_out(bus: Bus) -> None:
    states = SourceStates(bus, "s")
    with capture_logs() as logs:
        await states.write(with_long_names(3200, age=1000))
        entry = await entry_on(bus, SOURCES, "s")
        await states.write(with_long_names(3100, age=900))  # the limit of lines holds this one back
    assert entry is not None
    assert entry.value is not None
    stored = decode_source_state(entry.value)
    assert stored.metric_count == 3200
    assert stored.missing_left_out == stored.metrics_left_out == 3200 - len(stored.metrics)
    expected = {"log_level": "warning", "source": "s", "metrics": 3200, "left_out": stored.metrics_left_out}
    assert logs == [{"event": "source_state_shortened", "suppressed": 0} | expected]


async def test_only_a_changed_number_of_metrics_left_out_is_logged(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tas.values.throttle.Throttle.admit", lambda *_: 0)
    states = SourceStates(bus, "s")
    with capture_logs() as logs:
        for age, count in ((1000, 3200), (900, 3200), (800, 3100), (700, 10), (600, 3100)):
            await states.write(with_long_names(count, age=age))
    assert [line["metrics"] for line in logs] == [3200, 3100, 3100]


async def test_a_state_that_the_bus_refuses_is_a_warning(bus: Bus) -> None:
    """A state that is no larger than the default allows, on a server that allows less."""
    with capture_logs() as logs:
        await SourceStates(bus, "s").write(state("a", problem="x" * (1 << 20)))
    (line,) = logs
    assert (line["event"], line["log_level"], line["source"]) == ("source_state_refused", "warning", "s")
    assert await holder_of(bus) is None
