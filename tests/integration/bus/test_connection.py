"""One connection to a healthy server."""

import asyncio
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bus import connection
from bus.asking import ASKED_AT_ONCE
from bus.buckets import ALL, NODES, SAMPLES, SOURCES, WINDOWS, Bucket, Stream
from bus.connection import WRITE_SECONDS, Bus
from bus.errors import ConflictError, ExpiredError, MisconfiguredError, RefusedError, UnavailableError
from bus.link import Link
from bus.server import find_binary
from bus.streams import StreamsState, ensure
from tests.certificates import Authority
from tests.e2e.processes import free_ports
from tests.integration.bus.limits import LONG_LIMITS
from tests.integration.servers import Server, eventually

now = time.monotonic
pytestmark = pytest.mark.usefixtures("long_limits")


async def test_a_value_is_written_read_and_deleted(bus: Bus) -> None:
    first = await bus.put(NODES, "a.metrics", b"1", revision=0, read_at=now())
    entry = await bus.get(NODES, "a.metrics")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == ("a.metrics", b"1", first)
    assert abs(entry.created - time.time()) < 60
    second = await bus.delete(NODES, "a.metrics", revision=first, read_at=now())
    tombstone = await bus.get(NODES, "a.metrics")
    assert tombstone is not None
    assert (tombstone.value, tombstone.revision) == (None, second)
    third = await bus.put(NODES, "a.metrics", b"", revision=second, read_at=now())
    entry = await bus.get(NODES, "a.metrics")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"", third)


async def test_a_key_that_was_never_written_is_none(bus: Bus) -> None:
    assert await bus.get(NODES, "a.metrics") is None


async def test_the_second_write_on_the_same_revision_conflicts_facts_n7(bus: Bus) -> None:
    first = await bus.put(NODES, "a.metrics", b"1", revision=0, read_at=now())
    for stale in (0, first - 1, first + 1):
        with pytest.raises(ConflictError):
            await bus.put(NODES, "a.metrics", b"2", revision=stale, read_at=now())
    with pytest.raises(ConflictError):
        await bus.delete(NODES, "a.metrics", revision=0, read_at=now())


@pytest.fixture
def own_write_limit(long_limits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of the reads behind a write has the limit of the product."""
    monkeypatch.setattr("bus.connection.WRITE_SECONDS", WRITE_SECONDS)


async def test_a_write_based_on_an_old_read_is_not_sent(bus: Bus, own_write_limit: None) -> None:
    with pytest.raises(ExpiredError):
        await bus.put(NODES, "a.metrics", b"1", revision=0, read_at=now() - WRITE_SECONDS - 0.01)
    assert await bus.get(NODES, "a.metrics") is None


async def test_the_reads_behind_a_write_are_as_old_as_when_it_is_sent(
    bus: Bus, own_write_limit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write may wait until the server takes more data."""
    waited = 0.3

    async def wait(_: Link, __: float) -> None:
        await asyncio.sleep(waited)

    monkeypatch.setattr(Link, "wait_writable", wait)
    with pytest.raises(ExpiredError):
        await bus.put(NODES, "a.metrics", b"1", revision=0, read_at=now() - WRITE_SECONDS + waited / 2)
    assert await bus.get(NODES, "a.metrics") is None


async def test_revisions_begin_at_the_current_time_so_that_epochs_never_share_one_facts_n34(bus: Bus) -> None:
    before = (time.time() - 60) * 1e6
    for of in ALL:
        assert before < (await bus.epoch(of)).last_sequence < before + 120e6
    assert before < await bus.put(NODES, "a", b"1", revision=0, read_at=now()) < before + 120e6


async def test_publishing_returns_the_sequence(bus: Bus) -> None:
    first = await bus.publish(SAMPLES, "tas.samples.a.machine", b"{}")
    assert await bus.publish(SAMPLES, "tas.samples.a.machine", b"{}") == first + 1
    assert (await bus.epoch(SAMPLES)).last_sequence == first + 1


async def test_one_call_publishes_many_messages_in_order(bus: Bus) -> None:
    before = (await bus.epoch(SAMPLES)).last_sequence
    messages = [(f"tas.samples.n{number}.machine", b"%d" % number) for number in range(300)]
    await bus.publish_all(SAMPLES, messages)
    await bus.publish_all(SAMPLES, [])
    stored = await bus.last_messages(SAMPLES, "tas.samples.*.machine")
    assert {message.subject: message.data for message in stored} == dict(messages)
    assert [message.subject for message in sorted(stored, key=lambda each: each.sequence)] == [
        subject for subject, _ in messages
    ]
    assert (await bus.epoch(SAMPLES)).last_sequence == before + len(messages)


async def test_a_message_that_no_stream_stores_is_an_error_and_the_others_are_stored(bus: Bus) -> None:
    with pytest.raises(UnavailableError, match=r"tas\.other: nobody listens"):
        await bus.publish_all(
            SAMPLES, [("tas.samples.a.machine", b"1"), ("tas.other", b"2"), ("tas.samples.b.machine", b"3")]
        )
    stored = await bus.last_messages(SAMPLES, "tas.samples.*.machine")
    assert [message.data for message in stored] == [b"1", b"3"]


@pytest.mark.parametrize(
    ("subject", "payload"), [("tas.samples.a b.machine", b"{}"), ("tas.samples.b.machine", bytes((256 << 10) + 1))]
)
async def test_an_invalid_message_is_refused_before_any_is_sent(bus: Bus, subject: str, payload: bytes) -> None:
    before = (await bus.epoch(SAMPLES)).last_sequence
    with pytest.raises(RefusedError):
        await bus.publish_all(SAMPLES, [("tas.samples.a.machine", b"{}"), (subject, payload)])
    assert (await bus.epoch(SAMPLES)).last_sequence == before


@pytest.mark.parametrize("key", ["", "a b", "a..b", "*", "a.>", ".a", "a.", "a\r\nPUB x 0"])
async def test_an_invalid_key_is_refused(bus: Bus, key: str) -> None:
    with pytest.raises(RefusedError):
        await bus.put(NODES, key, b"", revision=0, read_at=now())
    with pytest.raises(RefusedError):
        await bus.get(NODES, key)
    with pytest.raises(RefusedError):
        await bus.publish(SAMPLES, key, b"")


async def test_a_value_that_is_too_large_is_refused_before_it_is_sent(bus: Bus) -> None:
    with pytest.raises(RefusedError, match="bytes"):
        await bus.put(NODES, "a", bytes(1 << 20), revision=0, read_at=now())
    with pytest.raises(RefusedError, match="bytes"):
        await bus.publish(SAMPLES, "tas.samples.a.machine", bytes((256 << 10) + 1))
    assert bus.connected
    await bus.put(NODES, "a", bytes((1 << 20) - 1024), revision=0, read_at=now())


async def test_publishing_to_a_subject_of_no_stream_is_unavailable(bus: Bus) -> None:
    with pytest.raises(UnavailableError, match="nobody listens"):
        await bus.publish(SAMPLES, "tas.other", b"{}")


async def test_a_key_with_a_ttl_expires_and_leaves_a_tombstone_facts_n11(bus: Bus) -> None:
    revision = await bus.put(SOURCES, "a", b"1", revision=0, read_at=now(), ttl_seconds=1)

    async def expired() -> bool:
        entry = await bus.get(SOURCES, "a")
        return entry is not None and entry.value is None

    await eventually(expired)
    tombstone = await bus.get(SOURCES, "a")
    assert tombstone is not None
    with pytest.raises(ConflictError):
        await bus.put(SOURCES, "a", b"2", revision=revision, read_at=now())
    await bus.put(SOURCES, "a", b"2", revision=tombstone.revision, read_at=now())


async def test_connections_that_create_the_streams_at_the_same_time_use_the_same_streams(server: Server) -> None:
    async def epochs(name: str) -> list[str]:
        async with Bus.connect(server.url, name=name) as bus:
            await bus.wait_connected()
            assert bus.problem is None
            return [(await bus.epoch(of)).created for of in ALL]

    first, *others = await asyncio.gather(*(epochs(f"test-{number}") for number in range(8)))
    assert all(other == first for other in others)


async def test_entries_of_many_patterns_are_asked_for_together(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else 250 statistics that are wanted at once wait for 500 answers, each of which takes the way to the server."""
    patterns = [f"*.m{number}.60.moments" for number in range(250)]
    for number in (0, 249):
        await bus.put(WINDOWS, f"a.m{number}.60.moments", b"1", revision=0, read_at=now())
    open_now, most, turns = 0, 0, 0
    api = Link.api

    async def noted(link: Link, verb: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        nonlocal open_now, most, turns
        turns += open_now == 0
        open_now += 1
        most = max(most, open_now)
        try:
            return await api(link, verb, *arguments, **options)
        finally:
            open_now -= 1

    monkeypatch.setattr(Link, "api", noted)
    found = await bus.entries(WINDOWS, patterns)
    assert [entry.key for entry in found] == ["a.m0.60.moments", "a.m249.60.moments"]
    assert (most, turns < 60) == (ASKED_AT_ONCE, True)


async def test_an_idle_connection_to_a_single_server_asks_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no majority that it could lose."""
    asked: list[str] = []
    api = Link.api

    async def noted(link: Link, verb: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        asked.append(verb)
        return await api(link, verb, *arguments, **options)

    monkeypatch.setattr(Link, "api", noted)
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.0)
    async with Bus.connect(server.url, name="test", streams=[NODES]) as bus:
        await bus.wait_connected()
        assert set(asked) == {"STREAM.INFO.KV_NODES", "STREAM.CREATE.KV_NODES"}
        asked.clear()
        for number in range(50):
            await bus.put(NODES, f"a{number}", b"1", revision=0, read_at=now())
        assert asked == []


async def test_a_stream_with_wrong_settings_is_reported_and_left_unchanged(server: Server) -> None:
    theirs = Bucket(name="B", history=1)
    async with Bus.connect(server.url, name="theirs", streams=[theirs]) as bus:
        await bus.wait_connected()
        before = await bus.epoch(theirs)
        async with Bus.connect(server.url, name="ours", streams=[Bucket(name="B", history=5)]) as other:
            await other.wait_connected()
            assert isinstance(other.problem, MisconfiguredError)
            assert "KV_B: max_msgs_per_subject is 1, must be 5" in str(other.problem)
            assert await other.epoch(theirs) == before
        assert bus.problem is None


async def test_a_stream_that_the_store_has_no_room_for_is_reported(server: Server) -> None:
    await server.restart(wiped=True, store_bytes=NODES.max_bytes)
    huge = Stream(name="HUGE", subjects=("huge.>",), max_bytes=1 << 30)
    async with Bus.connect(server.url, name="test", streams=[huge, NODES]) as bus:
        await bus.wait_connected()
        assert isinstance(bus.problem, MisconfiguredError)
        assert "HUGE cannot be read or created" in str(bus.problem)
        await bus.put(NODES, "a", b"1", revision=0, read_at=now())


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:1", "nats://", "nats://a:b:c", "nats://u:secret@:4222"])
async def test_an_invalid_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(MisconfiguredError) as caught:
        async with Bus.connect(url, name="test"):
            pass
    assert "secret" not in str(caught.value)


async def test_credentials_of_the_address_and_the_authority_of_the_environment_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/reference/bus.md says."""
    authority = Authority("of the bus")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    pair = authority.server("127.0.0.1")
    (tmp_path / "server.crt").write_bytes(pair.certificate)
    (tmp_path / "server.key").write_bytes(pair.key)
    (port,) = free_ports(1)
    (tmp_path / "nats.conf").write_text(
        f'listen: "127.0.0.1:{port}"\n'
        f'jetstream {{ store_dir: "{tmp_path}/store" }}\n'
        f'tls {{ cert_file: "{tmp_path}/server.crt", key_file: "{tmp_path}/server.key" }}\n'
        'authorization { user: "agent", password: "p@ss%40" }\n'
    )
    silent = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        await find_binary(), "--config", str(tmp_path / "nats.conf"), stdout=silent, stderr=silent
    )
    try:
        url = f"nats://agent:p@ss%40@127.0.0.1:{port}"
        async with Bus.connect(url, name="test") as bus:
            await eventually(lambda: "certificate verify failed" in bus.last_error)
            assert "p@ss" not in bus.address + bus.last_error
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
        for address in (url, url.replace("nats://", "tls://")):
            async with Bus.connect(address, name="test", streams=()) as bus:
                await bus.wait_connected()
        async with Bus.connect(url.replace("agent", "other"), name="test", streams=()) as bus:
            await eventually(lambda: "Authorization Violation" in bus.last_error)
    finally:
        process.terminate()
        await process.wait()


async def test_without_a_server_every_call_is_unavailable_at_once() -> None:
    """At once: the time limit of a call is longer here."""
    async with Bus.connect("nats://127.0.0.1:1", name="test") as bus:
        began = now()
        assert not bus.connected
        with pytest.raises(UnavailableError):
            await bus.get(NODES, "a")
        with pytest.raises(UnavailableError):
            await bus.put(NODES, "a", b"", revision=0, read_at=now())
        assert now() - began < LONG_LIMITS["bus.connection.CALL_SECONDS"] / 2


async def test_after_a_bug_in_connecting_the_connection_is_opened_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter([ZeroDivisionError("once")])

    async def fail_once(*arguments: Any, **options: Any) -> StreamsState:
        for error in outcomes:
            raise error
        return await ensure(*arguments, **options)

    monkeypatch.setattr("bus.connection.ensure", fail_once)
    monkeypatch.setattr("bus.connection.RECHECK_SECONDS", 0.2)
    async with Bus.connect(server.url, name="test") as bus:
        await eventually(lambda: "once" in str(bus.problem))
        await eventually(lambda: bus.connected and bus.problem is None)


async def test_the_answer_to_a_cancelled_ping_does_not_end_the_connection(server: Server, bus: Bus) -> None:
    """A process that closes a connection soon after the start cancels one."""
    link = bus.link
    server.pause()
    before = len(link._client._pongs)
    ping = asyncio.create_task(link._client.flush())
    await eventually(lambda: len(link._client._pongs) > before)
    ping.cancel()
    await asyncio.wait([ping])
    assert ping.cancelled()
    server.resume()
    await eventually(lambda: link._client._pongs == [])
    assert await bus.put(NODES, "a", b"1", revision=0, read_at=now()) > 0
    assert bus.link is link


async def test_a_connection_can_be_closed_while_it_is_being_opened(server: Server) -> None:
    """asyncio's `wait_for` of Python 3.11 can lose a cancellation, at moments that only many attempts meet."""
    chance, unfinished = random.Random(1), 0
    for _ in range(150):
        async with asyncio.timeout(60), Bus.connect(server.url, name="hasty") as bus:
            await asyncio.sleep(chance.uniform(0, 0.02))
            unfinished += not bus.connected
    assert unfinished > 10


async def test_an_attempt_that_loses_its_cancellation_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the loop of the product most attempts that a server refuses lose it: each user took 2 s to be closed."""
    attempts, begun = 0, asyncio.Event()

    async def attempt(*_: object, **__: object) -> Link:
        nonlocal attempts
        attempts += 1
        begun.set()
        if attempts == 1:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        raise UnavailableError("no connection")

    monkeypatch.setattr(Link, "open", attempt)
    async with asyncio.timeout(60), Bus.connect("nats://127.0.0.1:1", name="test"):
        await begun.wait()
    assert attempts == 1
