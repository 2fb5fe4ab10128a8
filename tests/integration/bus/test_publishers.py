"""Programs that publish samples are in an account without streams: no answer to them is written to a stream."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import nats
import pytest

from bus import connection
from bus.buckets import ALL, SAMPLES, TABLES, Bucket, Stream
from bus.client import Msg
from bus.connection import Bus
from bus.errors import ForbiddenError, NobodyListensError, UnavailableError
from bus.rights import operator
from bus.rights.access import Access
from bus.rights.credentials import parse_credentials
from bus.rights.roles import PUBLISHERS, permissions_of, tags_of
from bus.subjects import API, OWN_RIGHTS, PUBLISHERS_API, samples_subject
from tests.integration.bus.closed import Closed, closed, earlier
from tests.integration.servers import eventually
from workers.roles import ROLES

pytestmark = pytest.mark.usefixtures("long_limits")
__all__ = ["closed", "earlier"]

FORGET_SECONDS = 60.0
"""Half of the default of a server: until then a busy one has forgotten, too."""

REQUESTS = 500
SUBJECTS = 1000
LARGEST_ANSWER = 200
"""An acknowledgement has some 40 bytes, and an error of a stream some more."""

KEYS = 20
"""So many keys are invented in each stream, with each question."""


def targets() -> Iterator[str]:
    """Subjects of every stream that takes some, under which no record is stored."""
    for of in ALL:
        for number in range(KEYS):
            if isinstance(of, Bucket):
                yield of.subject(f"invented{number}")
            elif of.subjects:
                yield of.subjects[0].replace("*", f"invented{number}").replace(">", f"invented{number}")


def questions(role: str, name: str) -> list[str]:
    """A subject for each right to publish, while earlier programs go on: the server answers each."""
    of = ROLES[role]
    publish = permissions_of(of, name, tags_of(of, name, sources=["probe"]), earlier=True).publish
    return [each.replace("*", "1-0" if ".tables." in each else "own") for each in publish]


async def invented(owner: Bus, of: Stream | Bucket) -> int:
    """How many messages a stream has under subjects that were invented."""
    answer = await owner.api(f"STREAM.INFO.{of.stream}", {"subjects_filter": ">"})
    found: dict[str, int] = answer["state"].get("subjects") or {}
    return sum(count for subject, count in found.items() if "invented" in subject)


async def ask(bus: Bus, role: str, name: str) -> None:
    """Sends each question with each target as its reply subject, and returns when the servers have answered all."""
    for question in questions(role, name):
        for target in targets():
            await bus.link.send(question, b"{}", reply=target)
        with suppress(NobodyListensError):  # one after the other; one question is for the account of publishers alone
            await bus.link.request(question, b"{}", seconds=connection.CALL_SECONDS)


@pytest.mark.parametrize(("role", "name"), [("node", "a_b"), ("publisher", "probe-of-all")])
async def test_no_answer_to_a_publisher_is_written_to_a_stream(earlier: Closed, role: str, name: str) -> None:
    """With the credentials of an earlier version every bucket is written to: the account of publishers prevents it."""
    assert role in PUBLISHERS
    await earlier.with_streams()
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(earlier.connected_as(earlier.owner()))
        new = await stack.enter_async_context(earlier.connected(role, name, "probe"))
        await ask(new, role, name)
        assert {of.stream: await invented(owner, of) for of in ALL} == dict.fromkeys((of.stream for of in ALL), 0)

        old = await stack.enter_async_context(earlier.connected_as(earlier.earlier_user(role, name, "probe")))
        await ask(old, role, name)
        for of in ALL:
            if of.subjects:
                assert await invented(owner, of) >= KEYS, of.stream


async def test_a_server_that_takes_no_earlier_credentials_refuses_a_publisher_of_before(closed: Closed) -> None:
    await closed.with_streams()
    access = Access(credentials=closed.earlier_user("node", "a_b", "probe"))
    async with Bus.connect(closed.server.url, name="old", streams=(), access=access) as old:
        await eventually(lambda: "does not accept" in old.last_error)
    async with closed.connected("node", "a_b", "probe") as new:
        await new.publish(SAMPLES, samples_subject("a.b", "probe"), b"{}")


async def test_a_publisher_has_an_acknowledgement_also_of_the_largest_message(closed: Closed) -> None:
    """What a program sees: whether there is a stream, and the sequence."""
    async with closed.connected("publisher", "probe-of-all", "probe") as bus:
        with pytest.raises(UnavailableError):
            await bus.publish(SAMPLES, "tas.samples.a.probe", b"{}")
    await closed.with_streams()
    async with closed.connected("publisher", "probe-of-all", "probe") as bus:
        first = await bus.publish(SAMPLES, "tas.samples.a.probe", b"{}")
        assert await bus.publish(SAMPLES, "tas.samples.a.probe", bytes(SAMPLES.max_message_bytes)) == first + 1
        await bus.publish_all(TABLES, [("tas.tables.probe.1-0", b"{}")] * 300)


@pytest.mark.parametrize(("role", "name"), [("node", "a_b"), ("publisher", "probe-of-all")])
async def test_no_answer_to_a_publisher_is_larger_than_an_acknowledgement(closed: Closed, role: str, name: str) -> None:
    """A server keeps an answer for each connection that does not read: one about all subjects has 72 bytes for each."""
    await closed.with_streams()
    async with closed.connected_as(closed.owner()) as owner, closed.connected(role, name, "probe") as bus:
        await owner.publish_all(
            SAMPLES, [(samples_subject(f"node-{number}", "x"), b"{}") for number in range(SUBJECTS)]
        )
        for body in (b"", b"{}", b'{"subjects_filter":">"}'):
            answers = 0
            for question in questions(role, name):
                with suppress(ForbiddenError):
                    assert (
                        len(await bus.link.request(question, body, seconds=connection.CALL_SECONDS)) < LARGEST_ANSWER
                    ), question
                    answers += 1
            assert answers == len(permissions_of(ROLES[role], name, ["source:probe"]).publish)
        for api in (API, PUBLISHERS_API):
            with pytest.raises(ForbiddenError):
                await bus.link.request(f"{api}.STREAM.NAMES", b"", seconds=connection.CALL_SECONDS)


async def test_an_acknowledgement_to_a_publisher_counts_for_few_subscriptions_to_its_inbox(closed: Closed) -> None:
    """A server keeps each copy for a connection that does not read."""
    await closed.with_streams()
    tries, most = 16, ROLES["node"].limits.subscriptions
    async with closed.raw(closed.user("node", "a", "probe")) as (reader, writer):
        writer.write(b"".join(b"SUB _INBOX.a.> %d\r\n" % number for number in range(tries)) + b"PING\r\n")
        refused = (await reader.readuntil(b"PONG\r\n")).lower().count(b"maximum subscriptions exceeded")
        # All copies of the first acknowledgement come before the second one.
        writer.write(b"".join(b"PUB tas.samples.a.probe _INBOX.a.%d 2\r\n{}\r\n" % number for number in (1, 2)))
        received = await reader.readuntil(b"MSG _INBOX.a.2 ")
    assert (refused, received.count(b"MSG _INBOX.a.1 ")) == (tries - most, most) == (12, 4)


async def test_a_client_of_nats_publishes_in_each_of_its_ways_with_the_subscriptions_of_a_publisher(
    closed: Closed,
) -> None:
    """Two contexts with publications that nobody waits for at once, and requests."""
    await closed.with_streams()
    errors: list[Exception] = []

    async def on_error(error: Exception) -> None:
        errors.append(error)

    user = parse_credentials(closed.user("publisher", "programs", "probe").read_bytes(), "file")
    client = await nats.connect(
        closed.server.url,
        user_jwt_cb=user.jwt.encode,
        signature_cb=user.sign,
        inbox_prefix=b"_INBOX.programs",
        error_cb=on_error,
    )
    try:
        subject, seconds = "tas.samples.a.probe", connection.CALL_SECONDS
        first, second = client.jetstream(), client.jetstream()
        stored = await first.publish(subject, b"{}", timeout=seconds)
        assert b'"seq"' in (await client.request(subject, b"{}", timeout=seconds)).data
        waiting = [await each.publish_async(subject, b"{}") for _ in range(50) for each in (first, second)]
        acknowledged = await asyncio.wait_for(asyncio.gather(*waiting), seconds)
        assert {each.seq for each in acknowledged} == set(range(stored.seq + 2, stored.seq + 102))
        await asyncio.gather(*(client.request(subject, b"{}", timeout=seconds) for _ in range(50)))
        assert (await closed.subscriptions())["programs"] == 3
    finally:
        await client.close()
    assert (errors, closed.violations()) == ([], [])


@asynccontextmanager
async def _of_before(closed: Closed, credentials: Path) -> AsyncIterator[Bus]:
    """A connection as `tas run machine` of an earlier version had: it asked about its stream."""
    access = Access(credentials=credentials)
    async with Bus.connect(closed.server.url, name="machine", streams=[SAMPLES], access=access) as bus:
        await bus.wait_connected()
        yield bus


async def test_a_program_of_before_publishes_and_says_that_it_may_not_ask_about_its_stream(closed: Closed) -> None:
    await closed.with_streams()
    async with _of_before(closed, closed.user("node", "a", "machine")) as bus:
        assert await bus.publish(SAMPLES, samples_subject("a", "machine"), b"{}")
        assert "$JS.API.STREAM.INFO.SAMPLES" in str(bus.streams_problem)
        assert "may not publish" in str(bus.streams_problem)


async def test_while_earlier_credentials_are_taken_a_program_of_before_may_ask_about_its_stream(
    earlier: Closed,
) -> None:
    await earlier.with_streams()
    async with _of_before(earlier, earlier.earlier_user("node", "a", "machine")) as bus:
        assert await bus.publish(SAMPLES, samples_subject("a", "machine"), b"{}")
        assert bus.problem is None
    async with earlier.connected("node", "b", "machine") as new:
        await new.publish(SAMPLES, samples_subject("b", "machine"), b"{}")
        # Where the programs ask that know of the account of publishers.
        answer = await new.link.request(
            f"{PUBLISHERS_API}.STREAM.INFO.{SAMPLES.stream}", b"", seconds=connection.CALL_SECONDS
        )
        assert b'"created"' in answer


async def test_a_server_soon_forgets_whom_an_answer_is_for_that_never_comes(closed: Closed) -> None:
    """Each request that nobody answers would take memory of the server for two minutes, its default."""

    async def ignore(_: Msg) -> None:
        pass

    async with closed.connected_as(closed.owner()) as owner, closed.connected("node", "a", "probe") as thief:
        await owner.link.subscribe("tas.samples.>", ignore)
        await owner.link.request(OWN_RIGHTS, b"", seconds=connection.CALL_SECONDS)  # the server has the subscription
        for number in range(REQUESTS):
            await thief.link.send("tas.samples.a.probe", b"{}", reply=f"_INBOX.a.{number}")
        await eventually(partial(_awaits, closed))
        await eventually(partial(_awaits_none, closed), within=FORGET_SECONDS)


async def test_publishers_that_connect_again_and_again_leave_places_for_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them together, since a server counts the connections of an account, and not those of a user."""
    monkeypatch.setattr(operator, "PUBLISHER_CONNECTIONS", 3)
    closed = Closed(tmp_path / "bus")
    closed.server.configuration = f"max_connections: 5\n{closed.server.configuration}"
    await closed.server.start()
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(closed.connected("publisher", "b", "probe"))
            thief = closed.user("node", "a", "probe")
            for _ in range(2):
                await stack.enter_async_context(closed.raw(thief))
            with pytest.raises(asyncio.IncompleteReadError) as refused:
                async with closed.raw(thief):
                    pass
            assert b"maximum account active connections exceeded" in refused.value.partial
            await stack.enter_async_context(closed.connected("extender"))
    finally:
        await closed.server.stop()


async def _awaits(closed: Closed) -> bool:
    return await closed.awaited() > 0


async def _awaits_none(closed: Closed) -> bool:
    return not await _awaits(closed)
