"""Subscriptions to the public events, with a real server: handlers that fail, and what is lost."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from structlog.testing import capture_logs

from bus.buckets import DEAD_LETTERS, EVENTS
from bus.client import Msg
from bus.connection import Bus
from bus.dead_letters import DeadLetter, publish_dead_letter
from bus.errors import BusError
from bus.stream_reader import FROM_START, StreamReader
from bus.subjects import event_subject
from bus.subscription import Counts, Subscription
from tas.errors import InvalidInputError
from tas.events import cloudevents
from tas.events.data import EpochChanged, EventData, Gap, LabelApplied, LabelRemoved, ViolationStarted
from tas.events.event import Cause, Event, event_of
from tas.values.backoff import Backoff
from tests.integration.dead_letters import dead_letter_of
from tests.integration.servers import Server, answered, eventually

pytestmark = pytest.mark.usefixtures("long_limits")
QUICK = Backoff(first=0.01, longest=0.02)


@pytest.fixture(autouse=True)
def confirmed_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription waits long until a busy server confirms an answer: what is done is known to the server then."""
    monkeypatch.setattr("bus.subscription.CALL_SECONDS", 60.0)


def started(node: str, policy: str = "demo") -> ViolationStarted:
    return ViolationStarted(node=node, namespace="default", policy=policy, strategy="deschedule")


async def publish(
    bus: Bus, *data: EventData, resync: bool = False, headers: Mapping[str, str] | None = None
) -> list[int]:
    """Publishes an event for each, with these headers in place of their own; returns their sequences."""
    events = [event_of(each, Cause("1", number), time=time.time(), resync=resync) for number, each in enumerate(data)]
    messages = [
        (event_subject(each.data), cloudevents.body(each), cloudevents.headers(each) | dict(headers or {}))
        for each in events
    ]

    async def store() -> list[int]:
        stored: list[int] = []
        for outcome in await bus.publish_each(EVENTS, messages):
            if isinstance(outcome, BusError):
                raise outcome
            stored.append(outcome)
        return stored

    return await answered(store)


def subscription(server: Server, **options: Any) -> Subscription:
    defaults: dict[str, Any] = {"since_seconds": 3600.0, "retry": QUICK}
    return Subscription(server.url, "test", **defaults | options)


def node_of(event: Event) -> str:
    return str(getattr(event.data, "node", type(event.data).__name__))


async def handled(server: Server, count: int, **options: Any) -> list[str]:
    """The nodes of the next events, all of which are done."""
    nodes: list[str] = []
    async with subscription(server, **options) as events:
        async for event in events:
            nodes.append(node_of(event))
            if len(nodes) == count:
                break
    return nodes


async def consumer(bus: Bus) -> dict[str, Any]:
    return await answered(lambda: bus.api(f"CONSUMER.INFO.{EVENTS.stream}.test"))


async def dead_letters(bus: Bus) -> list[tuple[DeadLetter, Event]]:
    messages = [each async for batch in StreamReader(bus, DEAD_LETTERS, FROM_START).stored() for each in batch.messages]
    return [(dead_letter_of(each.headers), cloudevents.decode(each.headers, each.data)) for each in messages]


async def test_events_come_in_order_and_are_done_when_the_body_has_ended(server: Server, bus: Bus) -> None:
    await publish(bus, *(started(f"node-{number}") for number in range(5)))
    async with subscription(server) as events:
        nodes = []
        async for event in events:
            nodes.append(node_of(event))
            info = await consumer(bus)
            assert (info["num_ack_pending"], info["num_pending"]) == (1, 5 - len(nodes))  # one at a time
            if len(nodes) == 3:
                break
    assert nodes == ["node-0", "node-1", "node-2"]
    assert await handled(server, 2) == ["node-3", "node-4"]
    assert (await consumer(bus))["num_ack_pending"] == 0


async def test_only_selected_events_come_and_the_first_use_begins_with_new_ones(server: Server, bus: Bus) -> None:
    await publish(bus, started("node-1", "before"))
    of = (ViolationStarted, LabelApplied, EpochChanged)
    async with subscription(server, since_seconds=None, of=of, node="node-1", policy="default/demo") as events:
        reading = asyncio.ensure_future(anext(events))
        await eventually(lambda: events._pull is not None)
        removed = LabelRemoved(node="node-1", label="demo", previous="violating", policy="demo")
        applied = LabelApplied(node="node-1", label="demo", value="violating", policy="demo")
        others: Sequence[EventData] = (started("node-2"), started("node-1", "other"), removed)
        await publish(bus, *others, applied)
        assert (await reading).data == applied
        await publish(bus, started("node-2"), started("node-1"))
        assert (await anext(events)).data == started("node-1")
        subjects = (await consumer(bus))["config"]["filter_subjects"]
        assert subjects == [
            "tas.events.bus.epoch",
            "tas.events.gap",
            "tas.events.label.node-1.*",
            "tas.events.violation.node-1.default.demo.*",
        ]
    await publish(bus, applied)
    assert await handled(server, 1, of=[LabelApplied]) == ["node-1"]
    assert (await consumer(bus))["config"]["filter_subjects"] == ["tas.events.gap", "tas.events.label.*.*"]


async def test_an_event_that_failed_comes_again_before_any_newer_one(server: Server, bus: Bus) -> None:
    await publish(bus, started("node-1"), started("node-2"))
    nodes = []
    with capture_logs() as logs:
        async with subscription(server, retry=Backoff(first=0.2, longest=0.2)) as events:
            async for event in events:
                nodes.append(node_of(event))
                if nodes in (["node-1"], ["node-1", "node-1"]):
                    await events.retry(TimeoutError("no answer"))
                    assert (await consumer(bus))["num_ack_pending"] == 1  # so nothing counts as done
                elif len(nodes) == 4:
                    break
    assert nodes == ["node-1", "node-1", "node-1", "node-2"]
    assert events.counts == Counts(done=2, retried=2)
    assert events.lag_seconds == 0
    retried = [line for line in logs if line["event"] == "event_retried"]
    assert [(line["attempt"], line["error"]) for line in retried] == [(1, "no answer"), (2, "no answer")]
    assert all(0.1 <= line["seconds"] <= 0.2 for line in retried)
    assert await dead_letters(bus) == []


async def test_a_handler_that_always_fails_gets_other_events_after_a_dead_letter(server: Server, bus: Bus) -> None:
    sequence, _ = await publish(bus, started("node-1"), started("node-2"))

    counts: list[Counts] = []

    async def fail() -> None:
        async with subscription(server, attempts=2) as events:
            counts.append(events.counts)
            async for event in events:
                assert node_of(event) == "node-1"
                assert events.counts.waiting == 1
                assert 0 < events.lag_seconds < 600
                raise ZeroDivisionError("line\nbreak, é")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await fail()
    assert await handled(server, 1, attempts=2) == ["node-2"]
    assert [(each.done, each.retried, each.dead_letters) for each in counts] == [(0, 1, 0), (0, 0, 1)]
    ((letter, event),) = await dead_letters(bus)
    assert letter == DeadLetter("test", "line\\nbreak, é", attempts=2, sequence=sequence)
    assert event.data == started("node-1")

    # Without a place for the dead letter, the event is not given up.
    await answered(lambda: bus.api(f"STREAM.DELETE.{DEAD_LETTERS.stream}"))
    await publish(bus, started("node-3"))
    async with subscription(server, attempts=1) as events:
        assert node_of(await anext(events)) == "node-3"
        await events.retry("no")
        assert events.counts.dead_letters == 0
        assert (await consumer(bus))["num_ack_pending"] == 1


async def test_a_dead_letter_displaces_none_of_another_subscription(server: Server, bus: Bus) -> None:
    """Neither by its id, which it no longer has, nor by many large ones; and one that is too large stops nobody."""
    victim = DeadLetter("victim", "no", attempts=1, sequence=7)
    most = DEAD_LETTERS.max_message_bytes
    client = await nats.connect(server.url)
    try:
        for number in range(330):
            headers = {"Nats-Msg-Id": f"victim/{7 if number == 0 else number}"}
            answer = await client.request("tas.dead_letters.thief", b"x" * (most - 200), headers=headers)
            assert "error" not in json.loads(answer.data)
        larger = await client.request("tas.dead_letters.thief", b"x" * (most + 1))
        assert json.loads(larger.data)["error"]["description"] == "message size exceeds maximum allowed"
    finally:
        await client.close()
    await publish_dead_letter(bus, victim, {"ce-id": "1"}, b"{}")
    large = DeadLetter("victim", "é" * 1000, attempts=1, sequence=8)
    await publish_dead_letter(bus, large, {"ce-id": "2"}, b"x" * most)
    await publish_dead_letter(bus, large, {f"x{number}": "" for number in range(most // 6)}, b"")
    state = (await bus.api(f"STREAM.INFO.{DEAD_LETTERS.stream}", {"subjects_filter": ">"}))["state"]
    assert state["subjects"] == {"tas.dead_letters.thief": DEAD_LETTERS.flood_messages, "tas.dead_letters.victim": 3}
    letters = [each async for batch in StreamReader(bus, DEAD_LETTERS, FROM_START).stored() for each in batch.messages]
    found = [(dead_letter_of(each.headers), each.data) for each in letters[-3:]]
    cut = large._replace(reason=found[1][0].reason)
    assert found == [(victim, b"{}"), (cut, b""), (cut, b"")]
    assert cut.reason.startswith("ééé")
    # As many as can fill their part leave room for others.
    assert DEAD_LETTERS.max_bytes // (DEAD_LETTERS.flood_messages * most) >= 32


async def test_the_event_of_a_body_that_is_cancelled_comes_again_at_once(
    server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.subscription.ACK_SECONDS", 3600.0)
    await publish(bus, started("node-1"))

    async def be_cancelled() -> None:
        async with subscription(server) as events:
            assert node_of(await anext(events)) == "node-1"
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await be_cancelled()
    assert await handled(server, 1) == ["node-1"]


async def test_an_event_during_which_the_process_dies_too_often_becomes_a_dead_letter(
    server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.subscription.ACK_SECONDS", 0.2)
    await publish(bus, started("node-1"), started("node-2"))
    dying = subscription(server, attempts=1)
    await dying.__aenter__()
    assert node_of(await anext(dying)) == "node-1"
    dying._current = dying._held = None  # no answer and no sign of life, as after SIGKILL
    await dying.__aexit__(None, None, None)
    assert await handled(server, 1, attempts=1) == ["node-2"]
    ((letter, _),) = await dead_letters(bus)
    assert "the process ended" in letter.reason


async def test_events_that_cannot_be_handled_are_reported_and_passed(server: Server, bus: Bus) -> None:
    await publish(bus, started("unreadable"), headers={"ce-specversion": "2.0"})
    await publish(bus, started("later-version"), headers={"ce-type": "telemetry.aware.scheduling.violation.started.v2"})
    await publish(bus, started("resync-1"), started("resync-2"), resync=True)
    await publish(bus, started("node-1"))
    with capture_logs() as logs:
        assert await handled(server, 1) == ["node-1"]
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "event_unreadable",
        "event_type_unknown",
    ]
    assert [line["events"] for line in logs if line["event"] == "resync_events_skipped"] == [2]
    assert await dead_letters(bus) == []


async def test_a_subscription_that_asks_for_resync_events_gets_them(server: Server, bus: Bus) -> None:
    await publish(bus, started("node-1"), resync=True)
    async with subscription(server, resync=True) as events:
        assert (await anext(events)).resync


async def test_a_slow_body_keeps_its_event_and_one_that_hangs_loses_it_to_a_replica(
    server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.subscription.ACK_SECONDS", 1.2)
    signs: list[bytes] = []

    async def note(message: Msg) -> None:
        signs.append(message.data)

    await bus.link.subscribe(f"$JS.ACK.{EVENTS.stream}.test.>", note)
    (sequence,) = await publish(bus, started("node-1"))
    with capture_logs() as logs:
        async with subscription(server) as slow, subscription(server) as other:
            assert node_of(await anext(slow)) == "node-1"
            await eventually(lambda: signs.count(b"+WPI") >= 2)
            monkeypatch.setattr("bus.subscription.SLOW_SECONDS", 0.0)
            assert node_of(await anext(other)) == "node-1"
            await eventually(lambda: any(line["event"] == "event_handler_slow" for line in logs))
    assert {line["sequence"] for line in logs if line["event"] == "event_handler_slow"} == {sequence}


async def test_the_loss_of_the_server_while_the_body_runs_repeats_nothing(server: Server, bus: Bus) -> None:
    await publish(bus, started("node-1"), started("node-2"))
    nodes = []
    async with subscription(server) as events:
        async for event in events:
            nodes.append(node_of(event))
            if nodes == ["node-1"]:
                await server.restart()
            elif nodes == ["node-1", "node-2"]:
                await publish(bus, started("node-3"))
            else:
                break
    assert nodes == ["node-1", "node-2", "node-3"]


async def test_after_a_wipe_of_the_bus_a_gap_comes_and_then_every_new_event(server: Server, bus: Bus) -> None:
    await publish(bus, started("node-1"))
    async with subscription(server) as events:
        assert node_of(await anext(events)) == "node-1"
        reading = asyncio.ensure_future(anext(events))
        await server.restart(wiped=True)
        (sequence,) = await publish(bus, started("node-2"))
        gap = (await reading).data
        assert isinstance(gap, Gap)
        assert gap.first < gap.last == sequence - 1
        assert node_of(await anext(events)) == "node-2"


@asynccontextmanager
async def emptied(bus: Bus, sequence: int) -> AsyncIterator[None]:
    """Deletes the events before `sequence`, as the limits of the stream do."""
    await bus.api(f"STREAM.PURGE.{EVENTS.stream}", {"seq": sequence})
    yield


async def test_events_that_were_deleted_while_the_process_was_away_are_a_gap(server: Server, bus: Bus) -> None:
    first, _, _, last = await publish(bus, *(started(f"node-{number}") for number in range(4)))
    assert await handled(server, 1) == ["node-0"]
    async with emptied(bus, last), subscription(server) as events:
        assert (await anext(events)).data == Gap(stream=EVENTS.stream, first=first + 1, last=last - 1)
        assert events.counts.gaps == 1
        assert node_of(await anext(events)) == "node-3"


async def test_events_that_were_deleted_while_the_body_ran_are_a_gap(server: Server, bus: Bus) -> None:
    (first,) = await publish(bus, started("node-0"))
    async with subscription(server) as events:
        assert node_of(await anext(events)) == "node-0"
        sequences = await publish(bus, *(started(f"node-{number}") for number in range(1, 5)))
        events._held_since -= 3600  # the body takes long
        async with emptied(bus, sequences[-1]):
            assert (await anext(events)).data == Gap(stream=EVENTS.stream, first=first + 1, last=sequences[-1] - 1)
            assert node_of(await anext(events)) == "node-4"


async def test_an_idle_subscription_to_rare_events_misses_nothing(
    server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are published and deleted meanwhile: without the note of the sequence this would look like a loss."""
    monkeypatch.setattr("bus.subscription.ACK_SECONDS", 0.3)
    monkeypatch.setattr("bus.subscription.NOTE_SECONDS", 0.0)
    rare = LabelApplied(node="node-1", label="demo", value="violating")
    async with subscription(server, of=[LabelApplied]) as events:
        reading = asyncio.ensure_future(anext(events))
        *_, last = await publish(bus, *(started(f"node-{number}") for number in range(3)))

        async def is_noted() -> bool:
            try:
                info = await bus.api(f"CONSUMER.INFO.{EVENTS.stream}.test")
            except BusError:
                return False
            return bool(info["config"].get("metadata", {}).get("tas-sequence") == str(last))

        await eventually(is_noted)
        reading.cancel()
    async with emptied(bus, last + 1):
        await publish(bus, rare)
        async with subscription(server, of=[LabelApplied]) as events:
            assert (await anext(events)).data == rare


async def test_a_subscription_waits_for_a_bus_that_has_no_events_yet(server: Server) -> None:
    """It then begins with the first event, though it asked for new ones only."""
    async with subscription(server, since_seconds=None) as events:
        reading = asyncio.ensure_future(anext(events))
        await eventually(lambda: events._from_start)
        async with Bus.connect(server.url, name="test") as bus:
            await bus.wait_connected()
            await publish(bus, started("node-1"))
            assert node_of(await reading) == "node-1"


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65])
def test_a_name_that_the_server_would_refuse_is_named(name: str) -> None:
    with pytest.raises(InvalidInputError, match="subscription: name = "):
        Subscription("nats://127.0.0.1:1", name)
