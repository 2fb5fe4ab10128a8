"""What who reads leaves on a server: a few consumers of known names, which end by themselves."""

import asyncio
import json
import time
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from bus import connection
from bus.buckets import ALL, EVENTS, NANOSECONDS, NODES, OUTCOMES, SAMPLES_CONSUMER, SINK_CONSUMERS
from bus.connection import FULL_SECONDS, Bus
from bus.deliveries import Deliveries
from bus.errors import CrowdedError, ForbiddenError, NoPlaceError, RefusedError, UnavailableError
from bus.outcomes import OutcomeReader
from bus.rights.access import Access
from bus.rights.roles import PLACES, PROCESS_PLACES
from bus.subjects import OWN_RIGHTS
from bus.subscription import Subscription
from tas.agents.file import MAX_AGENTS
from tests.integration.bus.closed import Closed, closed, earlier
from tests.integration.servers import eventually
from workers.roles import ROLES

pytestmark = pytest.mark.usefixtures("long_limits")
__all__ = ["closed", "earlier"]

EPHEMERAL = {"ack_policy": "none"}
TRIES = 1000


def created(name: str, stream: str, **config: object) -> tuple[bytes, bytes]:
    """The request to create a durable consumer."""
    body = {"stream_name": stream, "config": {"name": name, "durable_name": name, **config}, "action": "create"}
    return f"$JS.API.CONSUMER.CREATE.{stream}.{name}".encode(), json.dumps(body).encode()


async def count(bus: Bus, stream: str) -> int:
    found: int = (await bus.api(f"STREAM.INFO.{stream}"))["state"]["consumer_count"]
    return found


async def test_a_reader_leaves_nothing_that_lasts_and_takes_no_place_of_others(closed: Closed) -> None:
    """It tries a thousand durable consumers of two streams, and all of its own names as large as may be."""
    await closed.with_streams()
    credentials = closed.user("reader", "thief")
    async with closed.raw(credentials) as (reader, writer):
        for stream in ("KV_NODES", "EVENTS"):
            for number in range(TRIES):
                subject, body = created(f"d{number}", stream, ack_policy="explicit")
                writer.write(b"PUB %s %d\r\n%s\r\n" % (subject, len(body), body))
        writer.write(b"PING\r\n")
        assert (await reader.readuntil(b"PONG\r\n")).lower().count(b"permissions violation") == 2 * TRIES
    most = ROLES["reader"].limits.message_bytes
    assert most is not None
    async with closed.connected("reader", "thief") as thief:
        assert [await count(thief, of.stream) for of in (NODES, EVENTS)] == [0, 0]
        names = ("thief", *(f"thief_{place}" for place in range(1, PLACES + 1)))
        made: dict[str, Any] = {}
        for of in ALL:
            for name in names:
                subject, body = created(name, of.stream, ack_policy="explicit", metadata={"x": "x" * (most - 1000)})
                made = await thief.api(subject.decode().removeprefix("$JS.API."), json.loads(body))
                assert made["config"]["inactive_threshold"] == (30 * 24 * 3600 if of is EVENTS else 600) * NANOSECONDS
        longer = {"inactive_threshold": 601 * NANOSECONDS}
        for attempt in (created("thief", "KV_NODES", **longer), created("thief_1", "KV_PODS", **longer)):
            await thief.api(f"CONSUMER.DELETE.{attempt[0].decode().partition('CREATE.')[2]}")
            with pytest.raises(RefusedError, match="inactive threshold exceeds"):
                await thief.api(attempt[0].decode().removeprefix("$JS.API."), json.loads(attempt[1]))
        for other in ("thief_0", f"thief_{PLACES + 1}", "other", "materialize"):
            with pytest.raises(ForbiddenError):
                await thief.link.request(created(other, "SAMPLES")[0].decode(), b"{}", seconds=connection.CALL_SECONDS)
        total = sum([await count(thief, of.stream) for of in ALL])
        assert total == len(ALL) * len(names) - 2
    async with closed.raw(credentials) as (reader, writer):
        writer.write(b"PUB %s %d\r\n" % (subject, most + 1))
        assert b"maximum payload violation" in (await reader.read()).lower()
    # Everybody else finds a place, also another reader.
    async with AsyncExitStack() as stack:
        for role in ("evaluate", "materialize", "reader"):
            bus = await stack.enter_async_context(closed.connected(role, "" if role != "reader" else "honest"))
            assert await bus.entries(NODES) == []
        pager = Access(credentials=closed.user("subscriber", "pager"))
        events = await stack.enter_async_context(Subscription(closed.server.url, "pager", access=pager, resync=True))
        await eventually(lambda: events.bus.connected)


@pytest.mark.parametrize("role", ["reader", "operator"])
async def test_the_rights_of_a_person_name_no_stream_and_allow_no_consumer_of_others_in_any(
    closed: Closed, role: str
) -> None:
    await closed.with_streams()
    async with closed.connected(role, "ann") as bus:
        answer = await bus.link.request(OWN_RIGHTS, b"", seconds=connection.CALL_SECONDS)
        allowed = json.loads(answer)["data"]["permissions"]["publish"]["allow"]
        assert len(allowed) <= 64
        assert len(answer) < 4096
        asked = [each for each in allowed if each.startswith("$JS.")]
        assert not [each for each in asked for of in ALL if of.stream in each.split(".")]
        for of in ALL:
            name, _ = await bus.create_consumer(of.stream, EPHEMERAL, prefix="any")
            assert name in ("ann", *(f"ann_{place}" for place in range(1, PLACES + 1)))
            await bus.api(f"CONSUMER.DELETE.{of.stream}.{name}")
            with pytest.raises(RefusedError, match="no message found"):
                await bus.api(f"STREAM.MSG.GET.{of.stream}", {"seq": 1})
    others = ("bob", "bob_1", "ann_9", "ann_0", "pager", "tas-events", SAMPLES_CONSUMER, SINK_CONSUMERS[0])
    forbidden = [
        f"{verb}{of.stream}.{name}{rest}"
        for of in ALL
        for name in others
        for verb, rest in (
            ("CONSUMER.CREATE.", ""),
            ("CONSUMER.CREATE.", ".tas.x"),
            ("CONSUMER.MSG.NEXT.", ""),
            ("CONSUMER.DELETE.", ""),
            ("CONSUMER.INFO.", ""),
        )
    ]
    # Nor in the other ways of a server to make consumers, to change them, and to read.
    forbidden += [
        subject
        for of in ALL
        for subject in (
            f"CONSUMER.CREATE.{of.stream}",
            f"CONSUMER.DURABLE.CREATE.{of.stream}.ann",
            f"CONSUMER.PAUSE.{of.stream}.ann",
            f"CONSUMER.INFO.{of.stream}.ann",
            f"CONSUMER.LEADER.STEPDOWN.{of.stream}.ann",
            f"CONSUMER.NAMES.{of.stream}",
            f"DIRECT.GET.{of.stream}",
            f"DIRECT.GET.{of.stream}.tas.x",
            f"STREAM.MSG.DELETE.{of.stream}",
            f"STREAM.PURGE.{of.stream}",
            f"STREAM.LEADER.STEPDOWN.{of.stream}",
        )
    ]
    async with closed.raw(closed.user(role, "ann")) as (reader, writer):
        writer.write(b"".join(f"PUB $JS.API.{each} 2\r\n{{}}\r\n".encode() for each in forbidden) + b"PING\r\n")
        answer = (await reader.readuntil(b"PONG\r\n")).lower()
        assert answer.count(b"permissions violation") == len(forbidden)


@pytest.mark.parametrize("role", ["evaluate", "materialize"])
async def test_a_process_takes_no_place_of_others_and_its_replicas_find_one(
    closed: Closed, earlier: Closed, role: str
) -> None:
    """The credentials of an earlier version take all places of a stream, on a server that still takes them."""
    streams = [of.stream for of in ROLES[role].rights.reads]

    async def taken(of: Closed, credentials: Path) -> tuple[int, list[int]]:
        """How many of a thousand durable consumers of each stream are refused, and how many there are."""
        await of.with_streams()
        async with of.raw(credentials) as (reader, writer):
            for stream in streams:
                for number in range(TRIES):
                    subject, body = created(f"d{number}", stream, ack_policy="explicit")
                    writer.write(b"PUB %s %d\r\n%s\r\n" % (subject, len(body), body))
            writer.write(b"PING\r\n")
            refused = (await reader.readuntil(b"PONG\r\n")).lower().count(b"permissions violation")
        async with of.connected_as(of.owner()) as owner:
            return refused, [await count(owner, stream) for stream in streams]

    assert await taken(earlier, earlier.earlier_user(role, "thief")) == (0, [TRIES] * len(streams))
    assert await taken(closed, closed.user(role, "thief")) == (TRIES * len(streams), [0] * len(streams))

    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(closed.connected(role)) for _ in range(5)]
        names: set[str] = set()
        for number in range(PROCESS_PLACES + 1):
            names.add((await replicas[number % 5].create_consumer("KV_NODES", EPHEMERAL, prefix="any"))[0])
        assert names == {f"tas-{role}", *(f"tas-{role}_{place}" for place in range(1, PROCESS_PLACES + 1))}
        for each in replicas:
            assert each.problem is None
        with pytest.raises(NoPlaceError, match=rf"may have {PROCESS_PLACES + 1} consumers .*none is free"):
            await replicas[0].create_consumer("KV_NODES", EPHEMERAL, prefix="any")
        assert "none is free" in str(replicas[0].problem)
        assert replicas[0].unavailable
        await replicas[0].api(f"CONSUMER.DELETE.KV_NODES.{names.pop()}")
        await replicas[0].create_consumer("KV_NODES", EPHEMERAL, prefix="any")
        assert [each.problem for each in replicas] == [None] * 5
        other = await stack.enter_async_context(closed.connected(role, "other"))
        assert await other.entries(NODES) == []
        if role == "materialize":  # before its durable consumer of SAMPLES exists
            found = {
                (await other.create_consumer("SAMPLES", EPHEMERAL, prefix="any"))[0] for _ in range(PROCESS_PLACES)
            }
            assert len(found) == PROCESS_PLACES
            assert SAMPLES_CONSUMER not in found
            durable = {"ack_policy": "explicit"}
            await other.write_durable("SAMPLES", SAMPLES_CONSUMER, durable, action="create")


@pytest.mark.parametrize("role", ["agents", "all"])
async def test_each_agent_that_learns_has_a_consumer_of_outcomes(closed: Closed, role: str) -> None:
    """As many agents as a file may have: each reads OUTCOMES for itself. Of all else the process has its places."""
    await closed.with_streams()
    async with closed.connected(role) as bus, AsyncExitStack() as stack:
        for _ in range(MAX_AGENTS):
            batches = await stack.enter_async_context(aclosing(OutcomeReader(bus, after=0).batches()))
            assert not (await anext(batches)).messages
        assert await count(bus, OUTCOMES.stream) == MAX_AGENTS
        for _ in range(PROCESS_PLACES + 1):
            await bus.create_consumer("KV_NODES", EPHEMERAL, prefix="any")
        with pytest.raises(NoPlaceError):
            await bus.create_consumer("KV_NODES", EPHEMERAL, prefix="any")


@pytest.mark.parametrize("role", ["notify", "all"])
async def test_who_takes_events_to_sinks_has_a_place_for_each_and_no_other_on_events(closed: Closed, role: str) -> None:
    """It tries a thousand durable consumers, and that of a subscription; all possible sinks start at once."""
    await closed.with_streams()
    pager = Access(credentials=closed.user("subscriber", "pager"))
    async with Subscription(closed.server.url, "pager", access=pager, resync=True) as events:
        await eventually(lambda: events.bus.connected)
        async with closed.raw(closed.user(role, "thief")) as (reader, writer):
            for number in range(TRIES):
                subject, body = created(f"d{number}", EVENTS.stream, ack_policy="explicit")
                writer.write(b"PUB %s %d\r\n%s\r\n" % (subject, len(body), body))
            for verb in (b"CONSUMER.DELETE", b"CONSUMER.MSG.NEXT", b"CONSUMER.INFO"):
                writer.write(b"PUB $JS.API.%s.EVENTS.pager 0\r\n\r\n" % verb)
            writer.write(b"PING\r\n")
            assert (await reader.readuntil(b"PONG\r\n")).lower().count(b"permissions violation") == TRIES + 3
    async with closed.connected(role) as bus, closed.connected_as(closed.owner()) as owner:

        def sink(number: int, capacity: int = 1) -> Deliveries:
            return Deliveries(
                bus,
                EVENTS,
                f"notify-{number}",
                SINK_CONSUMERS,
                lambda _: None,
                filter_subject="tas.events.>",
                capacity=capacity,
                on_missed=lambda _: None,
            )

        async def places() -> dict[str, str]:
            listed = await owner.api(f"CONSUMER.LIST.{EVENTS.stream}")
            found = {each["name"]: each["config"].get("description", "") for each in listed["consumers"]}
            return {holder: name for name, holder in found.items() if name != "pager"}

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(sink(number).run()) for number in range(len(SINK_CONSUMERS))]

            async def all_have_places() -> bool:
                return len(await places()) == len(SINK_CONSUMERS)

            await eventually(all_have_places)
            first = await places()
            with pytest.raises(NoPlaceError, match=r"none is of notify-32: tas bus mend DIR .*consumer rm EVENTS NAME"):
                await sink(32)._ensure()
            assert "none is of notify-32" in str(bus.problem)
            for each in running:
                each.cancel()
            await asyncio.wait(running)
            assert "none is of notify-32" in str(bus.problem), "another sink has no place"
        assert sorted(first.values()) == sorted(SINK_CONSUMERS)
        again = sink(7)  # as after a restart
        await again._ensure()
        assert again._durable == first["notify-7"]
        await owner.api(f"CONSUMER.DELETE.{EVENTS.stream}.{first['notify-3']}")
        await sink(32)._ensure()
        assert bus.problem is None
        first["notify-32"] = first.pop("notify-3")
        assert await places() == first
        await sink(7, capacity=2)._ensure()
        name = first["notify-7"]
        assert str(bus.problem) == f"consumer of notify-7 on EVENTS ({name}): max_ack_pending is 1, must be 2"


async def test_commands_of_one_user_share_its_places_and_the_last_one_says_what_to_do(closed: Closed) -> None:
    await closed.with_streams()
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(closed.connected("reader", "ann")) for _ in range(2)]
        other = await stack.enter_async_context(closed.connected("reader", "bob"))
        held = [
            (await each.create_consumer("SAMPLES", EPHEMERAL, prefix="any"))[0]
            for _ in range(PLACES // 2)
            for each in (first, second)
        ]
        held.append((await first.create_consumer("SAMPLES", EPHEMERAL, prefix="any"))[0])
        assert sorted(held) == ["ann", *(f"ann_{place}" for place in range(1, PLACES + 1))]
        with pytest.raises(
            UnavailableError, match=r"the user ann .* may have 9 consumers on .*none is free.*End another"
        ):
            await second.create_consumer("SAMPLES", EPHEMERAL, prefix="any")
        await other.create_consumer("SAMPLES", EPHEMERAL, prefix="any")
        await first.create_consumer("TABLES", EPHEMERAL, prefix="any")
        await first.api(f"CONSUMER.DELETE.SAMPLES.{held[4]}")
        assert (await second.create_consumer("SAMPLES", EPHEMERAL, prefix="any"))[0] == held[4]
        # Who has made another consumer of the name may not delete it.
        with pytest.raises(ForbiddenError):
            await other.api(f"CONSUMER.DELETE.SAMPLES.{held[0]}")
        # Credentials of before have one place.
        path = closed.user("reader", "old")
        path.write_text(closed.keys.credentials("reader", "old", now=0))
        old = await stack.enter_async_context(
            Bus.connect(closed.server.url, name="old", streams=(), access=Access(credentials=path))
        )
        await old.wait_connected()
        assert (await old.create_consumer("SAMPLES", EPHEMERAL, prefix="any"))[0] == "old"
        with pytest.raises(UnavailableError, match=r"may have 1 consumer on .*--renew"):
            await old.create_consumer("SAMPLES", EPHEMERAL, prefix="any")


async def test_a_stream_without_a_place_is_a_problem_of_the_connection_until_there_is_one(bus: Bus) -> None:
    config = (await bus.api(f"STREAM.INFO.{NODES.stream}"))["config"]
    await bus.api(f"STREAM.UPDATE.{NODES.stream}", {**config, "max_consumers": 2})
    for name in ("a", "b"):
        await bus.write_durable(NODES.stream, name, {"ack_policy": "none"}, action="create")
    with pytest.raises(CrowdedError, match=r"maximum consumers limit reached .*nobody can begin .*tas bus mend DIR"):
        await bus.entries(NODES)
    assert isinstance(bus.problem, CrowdedError)
    assert bus.refusing
    await bus.api(f"CONSUMER.DELETE.{NODES.stream}.a")
    assert bus.problem is not None
    assert await bus.entries(NODES) == []
    assert bus.problem is None


async def test_a_stream_without_a_place_is_no_problem_any_more_once_nobody_wants_one(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a command of a library that gave up: nobody would ever create the next consumer of this stream."""
    now = [time.monotonic()]
    monkeypatch.setattr("bus.connection.time.monotonic", lambda: now[0])
    config = (await bus.api(f"STREAM.INFO.{NODES.stream}"))["config"]
    await bus.api(f"STREAM.UPDATE.{NODES.stream}", {**config, "max_consumers": 1})
    await bus.write_durable(NODES.stream, "a", {"ack_policy": "none"}, action="create")
    for _ in range(2):
        with pytest.raises(CrowdedError):
            await bus.entries(NODES)
        now[0] += FULL_SECONDS - 1
        assert isinstance(bus.problem, CrowdedError)
    now[0] += 1
    assert bus.problem is None
