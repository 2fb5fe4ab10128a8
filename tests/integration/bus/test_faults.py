"""Faults of a bus: each call ends within its time limit, nothing leaks, and afterwards the view is right."""

import asyncio
import itertools
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from bus.buckets import LEASES, NODES, POLICIES, SAMPLES, Bucket, Stream
from bus.client import OneLife
from bus.connection import CALL_SECONDS, Bus
from bus.errors import CONSUMER_NOT_FOUND, BusError, ConflictError, RefusedError, UnavailableError
from bus.feed import Feed
from tests.integration.bus.followers import Follower, consumers, following
from tests.integration.bus.limits import LONG_LIMITS, WORK_SECONDS
from tests.integration.bus.load import Load, load, write_eventually
from tests.integration.lateness import Lateness
from tests.integration.servers import Server, answered, eventually

now = time.monotonic


async def stopped_and_started(server: Server, bus: Bus) -> None:
    await server.stop()
    await server.start()


async def killed_and_started(server: Server, bus: Bus) -> None:
    await server.restart()


async def killed_for_a_while(server: Server, bus: Bus) -> None:
    await server.kill()
    await asyncio.sleep(3)
    await server.start()


async def paused_briefly(server: Server, bus: Bus) -> None:
    server.pause()
    await asyncio.sleep(1.5)
    server.resume()


async def paused_until_disconnected(server: Server, bus: Bus) -> None:
    server.pause()
    await eventually(lambda: not bus.connected)
    await asyncio.sleep(1)
    server.resume()


async def connection_reset(server: Server, bus: Bus) -> None:
    bus.link._client._transport._io_writer.transport.abort()  # type: ignore[union-attr]


async def connection_closed_with_an_error(server: Server, bus: Bus) -> None:
    """The server's answer to a message above its size limit, headers included."""
    link = bus.link
    with pytest.raises(UnavailableError):
        await link.request("tas.other", bytes(link.max_payload), headers={"X": "x" * 2000}, seconds=CALL_SECONDS)
    await eventually(lambda: not bus.connected or bus.link is not link)


async def call(bus: Bus, verb: str) -> dict[str, Any]:
    """A call of the JetStream API with a long time limit."""
    return await bus.link.api(verb, seconds=60.0)


async def delete_consumers(bus: Bus, stream: str) -> None:
    for name in (await call(bus, f"CONSUMER.NAMES.{stream}"))["consumers"]:
        try:
            await call(bus, f"CONSUMER.DELETE.{stream}.{name}")
        except RefusedError as error:
            if error.code != CONSUMER_NOT_FOUND:  # not found: a new consumer has replaced it
                raise


async def durable_deleted(server: Server, bus: Bus) -> None:
    await delete_consumers(bus, "SAMPLES")


async def watch_consumer_deleted(server: Server, bus: Bus) -> None:
    await delete_consumers(bus, "KV_NODES")


async def store_wiped(server: Server, bus: Bus) -> None:
    await server.restart(wiped=True)


async def streams_replaced(server: Server, bus: Bus) -> None:
    for stream in ("KV_NODES", "SAMPLES"):
        await call(bus, f"STREAM.DELETE.{stream}")


Fault = Callable[[Server, Bus], Awaitable[None]]

KEEPING: list[Fault] = [
    stopped_and_started,
    killed_and_started,
    killed_for_a_while,
    paused_briefly,
    paused_until_disconnected,
    connection_reset,
    connection_closed_with_an_error,
    durable_deleted,
    watch_consumer_deleted,
]
LOSING: list[Fault] = [store_wiped, streams_replaced]


def named(fault: Fault) -> str:
    return getattr(fault, "__name__", "")


async def view_is_right(running: Load) -> None:
    """The view equals the bucket; each entry was delivered once, in order."""
    stored = {entry.key: entry.value for entry in await answered(lambda: running.bus.entries(NODES))}
    await eventually(lambda: running.follower.view == stored)
    revisions = [entry.revision for entry in running.follower.entries]
    assert revisions == sorted(set(revisions))


def subscriptions(bus: Bus) -> int:
    return len(bus.link._client._subs)


@pytest.mark.parametrize("fault", KEEPING, ids=named)
async def test_after_a_fault_nothing_is_lost_and_the_view_is_right(
    fault: Fault, server: Server, bus: Bus, lateness: Lateness
) -> None:
    tasks = len(asyncio.all_tasks())
    async with load(bus) as running:
        await running.continues()
        await fault(server, bus)
        await running.continues()
        running.stop()
        await eventually(lambda: running.published <= running.handled)
        await view_is_right(running)
        assert len(running.follower.epochs) == 1
        revisions = {entry.key: entry.revision for entry in await answered(lambda: bus.entries(NODES))}
        assert all(revisions[key] >= revision for key, revision in running.written.items())
        await eventually(lambda: has_consumers(bus, NODES, 1))
    assert running.longest < CALL_SECONDS + WORK_SECONDS + lateness.worst
    await nothing_leaks(bus, tasks)


@pytest.mark.parametrize("fault", LOSING, ids=named)
async def test_a_new_epoch_is_reported_and_its_view_is_right(
    fault: Fault, server: Server, bus: Bus, lateness: Lateness
) -> None:
    tasks = len(asyncio.all_tasks())
    async with load(bus) as running:
        await running.continues()
        before = max(running.written.values())
        await fault(server, bus)
        await eventually(lambda: len(running.follower.epochs) == 2)
        await running.continues()
        running.stop()
        await view_is_right(running)
        assert running.follower.epochs[1].created == (await answered(lambda: bus.epoch(NODES))).created
        second = [entry.revision for entry in running.follower.entries if entry.revision > before]
        assert len(second) > 0
        assert running.follower.caught_up_at_epochs == [False, False]
    assert running.longest < CALL_SECONDS + WORK_SECONDS + lateness.worst
    await nothing_leaks(bus, tasks)


async def nothing_leaks(bus: Bus, tasks: int) -> None:
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
    await eventually(lambda: bus.connected and subscriptions(bus) == 1)
    await eventually(lambda: has_consumers(bus, NODES, 0))  # deleted by the watch or, without an answer, by the server
    await eventually(lambda: has_consumers(bus, SAMPLES, 1))
    await eventually(lambda: bus.problem is None)


async def has_consumers(bus: Bus, of: Bucket | Stream, count: int) -> bool:
    return await answered(lambda: consumers(bus, of)) == count


@pytest.mark.parametrize("pace", [0.0, 0.1])
async def test_an_earlier_state_of_a_store_is_a_new_epoch_facts_n34(
    server: Server, bus: Bus, tmp_path: Path, pace: float
) -> None:
    """As after a power loss, or from a backup: the stream has the same creation time, and ends earlier."""
    await write_eventually(bus, "kept")
    async with following(bus, NODES, pace=pace) as follower:
        await follower.caught_up()
        await server.stop()
        shutil.copytree(tmp_path / "store", tmp_path / "backup")
        await server.start()
        await write_eventually(bus, "lost")
        await eventually(lambda: set(follower.view) == {"kept", "lost"})
        await server.kill()
        shutil.rmtree(tmp_path / "store")
        shutil.copytree(tmp_path / "backup", tmp_path / "store")
        await server.start()
        await eventually(lambda: set(follower.view) == {"kept"})
        await connection_reset(server, bus)  # after which it goes on in the same life
        await write_eventually(bus, "next")
        await eventually(lambda: set(follower.view) == {"kept", "next"})
        assert len(follower.epochs) == 2


@pytest.mark.usefixtures("long_limits")
async def test_a_revision_of_an_earlier_epoch_is_never_accepted_facts_n34(server: Server, bus: Bus) -> None:
    old = await bus.put(NODES, "a", b"old", revision=0, read_at=now())
    await server.restart(wiped=True)
    await eventually(lambda: bus.connected)
    first = await bus.put(NODES, "a", b"new", revision=0, read_at=now())
    assert first > old
    with pytest.raises(ConflictError):
        await bus.put(NODES, "a", b"late", revision=old, read_at=now())


@pytest.mark.usefixtures("long_limits")
async def test_of_several_writers_on_the_same_revision_exactly_one_wins(server: Server, bus: Bus) -> None:
    wins = 0

    async def count(bus: Bus) -> None:
        nonlocal wins
        for _ in range(100):
            read_at = now()
            entry = await bus.get(NODES, "a")
            value = 0 if entry is None or entry.value is None else int(entry.value)
            try:
                await bus.put(
                    NODES,
                    "a",
                    str(value + 1).encode(),
                    revision=0 if entry is None else entry.revision,
                    read_at=read_at,
                )
            except ConflictError:
                continue
            wins += 1

    async with Bus.connect(server.url, name="other") as other:
        await other.wait_connected()
        await asyncio.gather(count(bus), count(other), count(bus))
    entry = await bus.get(NODES, "a")
    assert entry is not None
    assert entry.value == str(wins).encode()
    assert 100 <= wins < 300


async def test_a_write_without_a_server_is_not_sent_later(server: Server, bus: Bus, lateness: Lateness) -> None:
    await server.kill()
    began = now()
    outcomes = await asyncio.gather(
        *(bus.put(NODES, f"n{number}", b"late", revision=0, read_at=now()) for number in range(100)),
        return_exceptions=True,
    )
    assert all(isinstance(outcome, UnavailableError) for outcome in outcomes)
    assert now() - began < CALL_SECONDS + WORK_SECONDS + lateness.worst
    await server.start()
    assert await answered(lambda: bus.entries(NODES)) == []


async def test_each_call_to_a_paused_server_ends_within_its_time_limit(
    server: Server, bus: Bus, lateness: Lateness
) -> None:
    server.pause()
    began = now()
    outcomes = await asyncio.gather(
        bus.get(NODES, "a"),
        bus.put(NODES, "a", b"", revision=0, read_at=now()),
        bus.delete(NODES, "a", revision=0, read_at=now()),
        bus.publish(SAMPLES, "tas.samples.a.b", b"{}"),
        bus.publish_all(SAMPLES, [("tas.samples.a.b", b"{}")] * 300),
        bus.publish_all(SAMPLES, [("tas.samples.a.b", bytes(200_000))] * 30),
        bus.epoch(NODES),
        bus.entries(NODES),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [UnavailableError] * 8
    assert now() - began < CALL_SECONDS + 0.5 + WORK_SECONDS + lateness.worst
    await eventually(lambda: not bus.connected)
    server.resume()
    await eventually(lambda: bus.connected)


async def test_writes_to_a_paused_server_do_not_pile_up_in_memory(server: Server, bus: Bus, lateness: Lateness) -> None:
    server.pause()
    value = bytes(500_000)
    began = now()
    outcomes: list[object] = []
    for _ in range(10):
        outcomes += await asyncio.gather(
            *(bus.put(NODES, f"n{number}", value, revision=0, read_at=now()) for number in range(20)),
            return_exceptions=True,
        )
        if not bus.connected:
            break
    assert all(isinstance(outcome, BusError) for outcome in outcomes)
    assert now() - began < 3 * (CALL_SECONDS + WORK_SECONDS + lateness.worst)
    server.resume()
    await eventually(lambda: bus.connected)


async def test_a_connection_to_a_paused_server_closes_soon(server: Server, lateness: Lateness) -> None:
    async with Bus.connect(server.url, name="leaving") as bus:
        await bus.wait_connected()
        async with following(bus, NODES) as follower:
            await follower.caught_up()
            server.pause()
            began = now()
    assert now() - began < 3 + WORK_SECONDS + lateness.worst
    server.resume()


async def test_a_view_is_current_soon_after_a_restart_of_the_server(server: Server, bus: Bus) -> None:
    async with Bus.connect(server.url, name="watching") as watching, following(watching, NODES) as follower:
        await follower.caught_up()
        delays = []
        for number in range(3):
            await server.kill()
            await asyncio.sleep(1)
            await server.start()
            began = now()
            await eventually(lambda: bus.connected, every=0.001)
            await write_eventually(bus, f"n{number}")
            await eventually(lambda number=number: len(follower.view) == number + 1, every=0.001)  # type: ignore[misc]
            delays.append(now() - began)
        assert min(delays) < 10  # the watch of nats-py took up to 18 s


@pytest.mark.usefixtures("long_limits")
async def test_a_watch_that_gets_heartbeats_and_no_entries_is_reopened_facts_n36(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        feed = follower.watch._shared._feed
        assert feed is not None
        monkeypatch.setattr(feed, "_receive_entry", lambda _: None)
        monkeypatch.setattr(feed, "_receive_status", lambda _: "")
        await bus.put(NODES, "a", b"1", revision=0, read_at=now())
        await eventually(lambda: follower.watch.status.lag == 1)
        await eventually(lambda: follower.view == {"a": b"1"})


@pytest.mark.usefixtures("long_limits")
@pytest.mark.parametrize("pace", [0.0, 0.1])
async def test_a_lost_entry_is_detected_at_the_next_entry(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, pace: float
) -> None:
    async with following(bus, NODES, pace=pace) as follower:
        await follower.caught_up()
        feed = follower.watch._shared._feed
        assert feed is not None
        take = feed._receive_entry
        lost = iter([None])
        monkeypatch.setattr(feed, "_receive_entry", lambda message: take(message) if next(lost, 1) else None)
        for number in range(3):
            await bus.put(NODES, f"n{number}", b"", revision=0, read_at=now())
        await eventually(lambda: len(follower.view) == 3)
        assert [entry.key for entry in follower.entries] == ["n0", "n1", "n2"]


@pytest.mark.usefixtures("long_limits")
@pytest.mark.parametrize("limited", ["bucket", "server"])
async def test_a_full_store_refuses_writes_at_once_and_can_be_read(
    limited: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(name="SMALL", max_bytes=(256 << 10) if limited == "bucket" else 0)
    if limited == "server":
        await server.restart(wiped=True, store_bytes=256 << 10)
    async with Bus.connect(server.url, name="test", streams=[bucket]) as bus:
        await bus.wait_connected()
        async with following(bus, bucket) as follower:
            with pytest.raises(RefusedError) as refused:
                await fill(bus, bucket)
            assert refused.value.code in (10077, 10047, 10023)
            of_bucket = "SMALL has no room: tas doctor says which bucket is full"
            of_server = "no room for SMALL: the store of the server, or what the account may have, is full"
            assert str(bus.problem).startswith(of_bucket if refused.value.code == 10077 else of_server)
            assert bus.refusing
            later = now() + 60
            with monkeypatch.context() as patch:
                patch.setattr("bus.connection.time.monotonic", lambda: later)
                assert bus.problem is None, "the last refusal was a minute ago"
            entries = await answered(lambda: bus.entries(bucket))
            assert len(entries) > 10
            await eventually(lambda: len(follower.view) == len(entries))
            await bus.api(f"STREAM.PURGE.{bucket.stream}", {"keep": 5})
            await bus.put(bucket, "again", b"", revision=0, read_at=now())
            await eventually(lambda: "again" in follower.view)


async def fill(bus: Bus, bucket: Bucket) -> None:
    """Writes until it is refused: each write is answered long before its time limit, also by a busy server."""
    for number in itertools.count():
        began = now()
        try:
            await bus.put(bucket, f"n{number}", bytes(4096), revision=0, read_at=began)
        finally:
            assert now() - began < LONG_LIMITS["bus.connection.CALL_SECONDS"] / 2


async def test_after_a_wipe_two_processes_create_the_streams_together(server: Server) -> None:
    """Neither destroys what the other has written."""
    async with (
        Bus.connect(server.url, name="one") as one,
        Bus.connect(server.url, name="two") as two,
        following(one, NODES) as first,
        following(two, NODES) as second,
    ):
        for number in range(3):
            for bus, key in ((one, "one"), (two, "two")):
                await write_eventually(bus, f"{key}-{number}")
            expected = {f"one-{number}", f"two-{number}"}
            await eventually(lambda expected=expected: set(first.view) == set(second.view) == expected)  # type: ignore[misc]
            await server.restart(wiped=True)
        for of in (NODES, POLICIES, LEASES, SAMPLES):
            created = {(await answered(lambda bus=bus, of=of: bus.epoch(of))).created for bus in (one, two)}  # type: ignore[misc]
            assert len(created) == 1


async def test_a_watch_that_starts_before_the_server_catches_up_with_it(server: Server) -> None:
    await server.stop()
    async with Bus.connect(server.url, name="early") as bus:
        follower = Follower(bus, NODES)
        task = asyncio.create_task(follower.watch.run())
        assert (await asyncio.wait([task], timeout=0.5))[1]
        await server.start()
        await follower.caught_up()
        task.cancel()
        await asyncio.wait([task])


async def test_a_call_ends_at_once_when_the_connection_is_lost(
    server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.connection.CALL_SECONDS", 600.0)
    server.pause()
    calls = [
        asyncio.create_task(bus.epoch(NODES)),
        asyncio.create_task(bus.put(NODES, "a", b"", revision=0, read_at=now())),
        asyncio.create_task(bus.publish_all(SAMPLES, [("tas.samples.a.b", b"{}")] * 3)),
    ]
    await eventually(lambda: len(bus.link._replies) == 5)
    await connection_reset(server, bus)
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [UnavailableError] * 3
    server.resume()


async def test_a_link_ends_also_if_the_client_calls_none_of_our_private_methods(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_process_op_err", "_process_err"):
        assert hasattr(Client, name), "else the client has no such name any more, and this test takes nothing away"
        monkeypatch.delattr(OneLife, name)
    async with Bus.connect(server.url, name="test") as bus:
        for fault in (killed_and_started, connection_closed_with_an_error, connection_reset):
            await bus.wait_connected()
            link = bus.link
            await fault(server, bus)
            async with asyncio.timeout(60):
                await link.lost.wait()
            await write_eventually(bus, f"{fault.__name__}")


async def test_without_a_server_a_watch_knows_no_lag_and_may_miss_changes(server: Server, bus: Bus) -> None:
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        assert follower.watch.status.attached <= time.time()
        await server.stop()
        await eventually(lambda: follower.watch.status.attached == float("inf"))
        assert follower.watch.status.lag is None
        await server.start()
        await eventually(lambda: follower.watch.status.lag == 0)
        assert follower.watch.status.attached <= time.time()


async def test_a_watch_that_cannot_attach_tries_again_more_and_more_slowly(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []

    async def refuse(*_: object, **__: object) -> Feed:
        attempts.append(now())
        raise UnavailableError("not now")

    monkeypatch.setattr(bus, "feed", refuse)
    async with following(bus, NODES):
        await eventually(lambda: len(attempts) >= 5)
    waits = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert all(wait >= 0.05 * 2**number for number, wait in enumerate(waits)), waits  # a half of each may be taken off
