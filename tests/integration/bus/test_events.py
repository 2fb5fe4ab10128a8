"""Events on the bus: conditional publishing, replay from a time or a sequence, gaps, the last event of a subject."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from bus import events as events_module
from bus.buckets import ANNOUNCED, EVENTS
from bus.connection import Bus
from bus.errors import ConflictError, UnavailableError
from bus.events import EventMessage, EventReader, Events, Expected, last_events, publish_events
from bus.pull import Message
from bus.stream_reader import FROM_START, Lost, Start
from bus.subjects import event_subject, selection_filters
from tas.errors import InvalidInputError
from tas.events.data import EventData, Gap, ViolationStarted
from tas.events.event import Cause, Event, event_of
from tas.events.selection import Selection
from tests.integration.bus.copies import copy_without
from tests.integration.proxy import Proxy
from tests.integration.servers import Server, eventually

pytestmark = pytest.mark.usefixtures("long_limits")

POLICY: dict[str, Any] = {"namespace": "default", "policy": "p", "strategy": "deschedule"}


def event(number: int, data: EventData | None = None) -> Event:
    started = ViolationStarted(node=f"node-{number}", **POLICY)
    return event_of(data or started, Cause("1", number), time=time.time())


async def publish(bus: Bus, *numbers: int) -> list[int]:
    outcomes = await publish_events(bus, [Expected(event(number), 0) for number in numbers])
    assert all(isinstance(each, int) for each in outcomes), outcomes
    return [each for each in outcomes if isinstance(each, int)]


def nodes(messages: Sequence[EventMessage]) -> list[str]:
    return [each.event.subject.removeprefix("nodes/") for each in messages]


async def stored(bus: Bus, start: Start, *filters: str) -> tuple[list[EventMessage], list[Lost]]:
    messages: list[EventMessage] = []
    lost: list[Lost] = []
    reader = EventReader(bus, start, filters=filters, batch=7) if filters else EventReader(bus, start, batch=7)
    async for batch in reader.stored():
        messages += batch.messages
        lost += [batch.lost] if batch.lost else []
    return messages, lost


async def test_an_event_is_published_only_after_the_expected_one(bus: Bus) -> None:
    (first,) = await publish(bus, 1)
    outcomes = await publish_events(bus, [Expected(event(1), 0), Expected(event(2), 0), Expected(event(1), first)])
    assert isinstance(outcomes[0], ConflictError)
    assert outcomes[1:] == [first + 1, first + 2]
    messages, _ = await stored(bus, FROM_START)
    assert nodes(messages) == ["node-1", "node-2", "node-1"]
    assert messages[0].event.id == event(1).id


async def test_events_are_replayed_from_a_sequence_and_from_a_time(bus: Bus) -> None:
    sequences = await publish(bus, *range(50))
    messages, lost = await stored(bus, FROM_START)
    assert (nodes(messages), lost) == ([f"node-{number}" for number in range(50)], [])
    messages, lost = await stored(bus, Start(after=sequences[19]))
    assert ([each.sequence for each in messages], lost) == (sequences[20:], [])
    since = messages[5].arrived
    messages, lost = await stored(bus, Start(time=since - 1e-6))
    assert messages[0].sequence <= sequences[25]
    assert (messages[-1].sequence, lost) == (sequences[-1], [])
    assert await stored(bus, Start(time=time.time() + 60)) == ([], [])
    messages, lost = await stored(bus, FROM_START, *selection_filters(Selection(of=(ViolationStarted,), node="node-7")))
    assert (nodes(messages), lost) == (["node-7"], [])


async def test_a_reader_of_the_next_events_misses_none_after_a_loss_of_the_connection(server: Server, bus: Bus) -> None:
    (before,) = await publish(bus, 0)
    async with (
        Proxy.before(server.url) as proxy,
        Bus.connect(proxy.url, name="far") as far,
        aclosing(EventReader(far, Start()).batches()) as batches,
    ):
        assert not (await anext(batches)).messages  # attached
        proxy.open = False
        proxy.cut()
        await eventually(lambda: not far.connected)
        (sequence,) = await publish(bus, 1)
        proxy.open = True
        found = [batch async for batch in until_message(batches)]
    assert [each.sequence for batch in found for each in batch.messages] == [sequence]
    assert [batch.lost for batch in found if batch.lost] == []
    assert sequence > before


async def until_message(batches: AsyncGenerator[Events, None]) -> AsyncGenerator[Events, None]:
    """The batches up to the first one with messages."""
    async for batch in batches:
        yield batch
        if batch.messages:
            return


async def test_a_gap_is_reported_wherever_it_is(bus: Bus) -> None:
    sequences = await publish(bus, *range(50))
    async with aclosing(EventReader(bus, Start(after=sequences[9]), batch=7).batches()) as batches:
        first = await anext(batches)
        assert first.messages[0].sequence == sequences[10]
        assert first.lost is None
        await bus.api(f"STREAM.PURGE.{EVENTS.stream}", {"seq": sequences[40]})
        seen, losses = list(first.messages), []
        async for batch in batches:
            seen += batch.messages
            losses += [batch.lost] if batch.lost else []
            if seen[-1].sequence == sequences[-1]:
                break
    (lost,) = losses
    assert (lost.stream, lost.last) == (EVENTS.name, sequences[39])
    assert [each.sequence for each in seen] == [*range(sequences[10], lost.first), *sequences[40:]]
    assert lost.first < lost.last
    assert (await stored(bus, Start(after=sequences[9])))[1] == [Lost(EVENTS.name, sequences[10], sequences[39])]
    assert (await stored(bus, Start(time=time.time() - 60)))[1] == [Lost(EVENTS.name, sequences[0], sequences[39])]
    assert (
        await stored(
            bus, Start(after=sequences[44]), *selection_filters(Selection(of=(ViolationStarted,), node="node-47"))
        )
    )[1] == []


async def test_a_reader_continues_after_a_restart_of_the_server(bus: Bus, server: Server) -> None:
    await publish(bus, *range(5))
    seen: list[EventMessage] = []
    async with aclosing(EventReader(bus, FROM_START).batches()) as batches:
        while len(seen) < 5:
            seen += (await anext(batches)).messages
        await server.kill()
        await server.start()
        await bus.wait_connected()
        await eventually(lambda: bus.connected)
        await publish(bus, *range(5, 10))
        while len(seen) < 10:
            seen += (await anext(batches)).messages
    assert nodes(seen) == [f"node-{number}" for number in range(10)]


async def test_the_last_event_of_a_subject_is_known_before_it_is_copied(bus: Bus) -> None:
    """Else a publisher that begins then never ends what was announced last."""
    sequences = await publish(bus, 1, 2)

    async def copied() -> bool:
        return bool((await bus.api(f"STREAM.INFO.{ANNOUNCED.stream}"))["state"]["messages"] == 2)

    await eventually(copied)
    config = (await bus.api(f"STREAM.INFO.{ANNOUNCED.stream}"))["config"]
    await bus.api(f"STREAM.UPDATE.{ANNOUNCED.stream}", config | {"sources": []})  # as if the copy were late
    (again,) = await publish_events(bus, [Expected(event(1), sequences[0])])
    (other,) = await publish(bus, 3)
    assert sorted(each.sequence for each in await last_events(bus)) == [sequences[1], again, other]
    assert sorted(each.sequence for each in await last_events(bus, "violation")) == [sequences[1], again, other]
    assert await last_events(bus, "resource") == []


async def test_the_last_event_of_a_subject_is_known_when_the_stream_has_lost_it(bus: Bus) -> None:
    sequences = await publish(bus, *range(300))
    (again,) = await publish_events(bus, [Expected(event(1), sequences[1])])
    gap = event(0, Gap(stream="VERDICT_LOG", first=1, last=2))
    (last,) = await publish_events(bus, [Expected(gap, 0)])

    async def copied() -> bool:
        return bool((await bus.api(f"STREAM.INFO.{ANNOUNCED.stream}"))["state"]["messages"] == 301)

    await eventually(copied)
    await bus.api(f"STREAM.PURGE.{EVENTS.stream}", {"seq": sequences[-1]})
    found = {each.subject: (each.sequence, each.event.type) for each in await last_events(bus)}
    assert len(found) == 301
    assert found["tas.events.violation.node-1.default.p.deschedule"][0] == again
    assert found["tas.events.violation.node-5.default.p.deschedule"][0] == sequences[5]
    assert found["tas.events.gap"] == (last, gap.type)


@pytest.mark.usefixtures("late_pulse")
async def test_a_reader_of_what_is_stored_ends_if_the_rest_expires_before_it_is_delivered(bus: Bus) -> None:
    sequences = await publish(bus, *range(50))
    async with aclosing(EventReader(bus, FROM_START, batch=7).stored()) as batches:
        seen = [each.sequence for each in (await anext(batches)).messages]
        await bus.api(f"STREAM.PURGE.{EVENTS.stream}")
        seen += [each.sequence async for batch in batches for each in batch.messages]
    assert seen == sequences[: len(seen)]
    assert len(seen) < len(sequences)


@pytest.mark.usefixtures("late_pulse")
async def test_a_reader_has_caught_up_if_the_rest_expires_before_it_is_delivered(bus: Bus) -> None:
    sequences = await publish(bus, *range(50))
    async with aclosing(EventReader(bus, FROM_START, batch=7).batches()) as batches:
        await anext(batches)
        await bus.api(f"STREAM.PURGE.{EVENTS.stream}")
        while (batch := await anext(batches)).messages:
            assert batch.messages[-1].sequence < sequences[-1]
        (later,) = await publish(bus, 50)
        found = [batch async for batch in until_message(batches)]
    assert [each.sequence for each in found[-1].messages] == [later]


@pytest.mark.usefixtures("late_pulse")
async def test_a_reader_of_the_last_messages_gets_what_follows_one_that_was_removed(bus: Bus) -> None:
    """At a removed one the server says that it has nothing left."""
    sequences = await publish(bus, *range(50))
    async with aclosing(EventReader(bus, Start(last_per_subject=True), batch=7).stored()) as batches:
        seen = [each.sequence for each in (await anext(batches)).messages]
        removed = sequences[21]  # the first one of a request
        await bus.api(f"STREAM.MSG.DELETE.{EVENTS.stream}", {"seq": removed})
        seen += [each.sequence async for batch in batches for each in batch.messages]
    assert seen == [each for each in sequences if each != removed]


@pytest.mark.usefixtures("late_pulse")
async def test_a_reader_of_the_last_messages_attaches_again_if_many_were_removed(bus: Bus) -> None:
    sequences = await publish(bus, *range(50))
    removed = sequences[21:35]

    async def remove() -> None:
        for each in removed:
            await bus.api(f"STREAM.MSG.DELETE.{EVENTS.stream}", {"seq": each})

    async with aclosing(EventReader(bus, Start(last_per_subject=True), batch=7).batches()) as batches:
        seen = [each.sequence for each in (await anext(batches)).messages]
        await remove()
        while (batch := await anext(batches)).messages or batch.lost:
            seen += [each.sequence for each in batch.messages]
    assert seen == [each for each in sequences if each not in removed]


@pytest.mark.usefixtures("late_pulse")
async def test_facts_n74_a_server_that_has_not_all_events_yet_is_not_believed(bus: Bus) -> None:
    await publish(bus, 1, 2)
    await eventually(partial(has_copied, bus, 2))
    newest = event_subject(event(2).data)
    with copy_without(EVENTS, newest):
        with pytest.raises(UnavailableError, match="lacks"):
            await stored(bus, FROM_START)
        async with aclosing(EventReader(bus, FROM_START).batches()) as batches:
            assert (await anext(batches)).behind > 0
        assert len(await last_events(bus)) == 2  # nothing follows the last copied event
    with copy_without(ANNOUNCED, newest), pytest.raises(UnavailableError, match="lacks"):
        await last_events(bus)


async def test_without_a_copy_only_the_last_event_of_each_subject_is_read(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = (await bus.api(f"STREAM.INFO.{ANNOUNCED.stream}"))["config"]
    await bus.api(f"STREAM.UPDATE.{ANNOUNCED.stream}", config | {"sources": []})
    last = dict(zip((1, 2, 3), await publish(bus, 1, 2, 3), strict=True))
    for _ in range(20):
        outcomes = await publish_events(bus, [Expected(event(number), last[number]) for number in last])
        last |= {number: each for number, each in zip(last, outcomes, strict=True) if isinstance(each, int)}
    read: list[int] = []

    def decoded(messages: Sequence[Message]) -> tuple[list[EventMessage], list[InvalidInputError]]:
        read.extend(message.sequence for message in messages)
        return decode(messages)

    decode = events_module.decoded
    monkeypatch.setattr(events_module, "decoded", decoded)
    assert [each.sequence for each in await last_events(bus)] == sorted(last.values()) == sorted(read)


async def has_copied(bus: Bus, messages: int) -> bool:
    return bool((await bus.api(f"STREAM.INFO.{ANNOUNCED.stream}"))["state"]["messages"] == messages)
