"""A watch of a bucket of a healthy server."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from bus import consumers as consumers_of_feeds
from bus.bucket_feed import WATCHDOG_BEATS
from bus.buckets import LEASES, NODES, SAMPLES, SOURCES, Bucket, Stream
from bus.client import Msg
from bus.connection import Bus, Epoch, RawEntry
from bus.errors import UnavailableError
from bus.feed import YIELD_SECONDS, Feed
from bus.link import Link
from bus.pulse import Pulse
from bus.watch import Watch
from tests.integration.bus.followers import Follower, consumers, following, raw_watch
from tests.integration.bus.limits import LONG_LIMITS
from tests.integration.servers import Server, answered, eventually
from tests.integration.watched import meanwhile

now = time.monotonic
pytestmark = pytest.mark.usefixtures("long_limits")

BEHIND = "the watch still at"
"""The watchdog's message about a feed that does not apply the stored entries."""


async def fill(bus: Bus, count: int, value: bytes = b"1") -> list[int]:
    """Writes `count` entries, 100 at a time: with more, the last ones would be sent too long after their `read_at`."""
    revisions: list[int] = []
    for start in range(0, count, 100):
        part = range(start, min(start + 100, count))
        revisions += await asyncio.gather(
            *(bus.put(NODES, f"n{number}.metrics", value, revision=0, read_at=now()) for number in part)
        )
    return revisions


async def test_stored_entries_are_delivered_in_order_and_then_every_change(bus: Bus) -> None:
    revisions = await fill(bus, 100)
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        assert [entry.revision for entry in follower.entries] == sorted(revisions)
        assert follower.view == {f"n{number}.metrics": b"1" for number in range(100)}
        changed = await bus.put(NODES, "n0.metrics", b"2", revision=revisions[0], read_at=now())
        deleted = await bus.delete(NODES, "n1.metrics", revision=revisions[1], read_at=now())
        await eventually(lambda: len(follower.entries) == 102)
        assert [(entry.key, entry.value, entry.revision) for entry in follower.entries[-2:]] == [
            ("n0.metrics", b"2", changed),
            ("n1.metrics", None, deleted),
        ]
        assert [epoch.created for epoch in follower.epochs] == [(await bus.epoch(NODES)).created]
        assert all(abs(entry.created - time.time()) < 60 for entry in follower.entries)


@contextmanager
def partial_copy(*missing: str) -> Iterator[list[str]]:
    """The next consumer is on a server whose copy of the stream lacks these keys; yields those that were wanted.

    The consumer has a filter of the other keys: so a real server counts, and delivers, what such a copy has.
    """
    create = consumers_of_feeds.create
    wanted: list[str] = []

    async def created(link: Link, stream: str, config: dict[str, Any], **options: Any) -> tuple[str, dict[str, Any]]:
        if not wanted:
            filters = config.pop("filter_subjects", None) or [config.pop("filter_subject")]
            answer = await link.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"}, seconds=60)
            wanted.extend(
                key
                for key in map(NODES.key, answer["state"]["subjects"])
                if any(fnmatchcase(NODES.subject(key), each.replace(">", "*")) for each in filters)
            )
            config |= {"filter_subjects": [NODES.subject(key) for key in {*wanted, "none"}.difference(missing)]}
            options["filter_subject"] = ""
        return await create(link, stream, config, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers_of_feeds, "create", created)
        yield wanted


@pytest.mark.parametrize("pace", [0.0, 0.1])
@pytest.mark.parametrize(
    ("keys", "missing"),
    [
        ([">"], ["last.other"]),
        (["_synced"], ["_synced"]),
        (["*.facts", "_synced"], ["_synced", "n0.facts"]),  # as `events`, which waits for `_synced`
        (["*.facts", "_synced"], ["n0.facts"]),  # a node which `events` would call missing
    ],
)
async def test_facts_n74_a_server_that_has_not_all_keys_yet_is_not_believed(
    bus: Bus, keys: list[str], missing: list[str], pace: float
) -> None:
    """It lost its copy of the stream: its consumer would never deliver what the copy gets later."""
    for key in ("n1.facts", "n1.metrics", "_synced", "n0.facts", "last.other"):
        await bus.put(NODES, key, b"1", revision=0, read_at=now())
    with partial_copy(*missing) as wanted:
        feed = await bus.feed(NODES, keys=keys, pace=pace)
    entries: list[RawEntry] = []
    await feed.release(entries.append)
    with pytest.raises(UnavailableError, match="has not all entries yet"):
        await feed.caught_up()
    assert {entry.key for entry in entries} == set(wanted).difference(missing) < set(wanted)
    assert feed.applied < (await bus.last_revision(NODES, missing[0]))
    await feed.close()


async def test_facts_n74_a_feed_that_continues_on_such_a_server_is_not_believed(bus: Bus) -> None:
    *_, known, _ = await fill(bus, 3)
    await bus.put(NODES, "last.facts", b"1", revision=0, read_at=now())
    for missing in ("n2.metrics", "none"):
        with partial_copy(missing) as wanted:
            feed = await bus.feed(NODES, keys=("*.metrics",), after=lambda _: known)
        assert len(wanted) == 3
        await feed.release(lambda _: None)
        if missing == "none":
            await feed.caught_up()
            assert feed.applied == (await bus.epoch(NODES)).last_sequence
        else:
            with pytest.raises(UnavailableError, match="has not all entries yet"):
                await feed.caught_up()
            assert feed.applied == known
        await feed.close()


async def test_facts_n74_a_watch_gets_the_rest_from_its_next_consumer(bus: Bus) -> None:
    await fill(bus, 3)
    await bus.put(NODES, "last.facts", b"1", revision=0, read_at=now())
    with partial_copy("n2.metrics") as wanted:
        async with following(bus, NODES, keys="*.metrics") as follower:
            await follower.caught_up()
            assert len(wanted) == 3
            assert sorted(entry.key for entry in follower.entries) == sorted(wanted)
            assert len(follower.epochs) == 1
            await eventually(lambda: has_consumers(bus, 1))


async def test_an_entry_says_which_version_it_has_replaced_also_one_that_was_overwritten_unseen(bus: Bus) -> None:
    (revision,) = await fill(bus, 1)
    async with following(bus, NODES, pace=0.4) as follower:
        await follower.caught_up()
        assert [(entry.revision, entry.previous) for entry in follower.entries] == [(revision, 0)]

        async def is_overwritten_unseen() -> bool:
            nonlocal revision
            for _ in range(20):
                before = revision
                revision = await bus.put(NODES, "n0.metrics", b"2", revision=before, read_at=now())
            await eventually(lambda: follower.entries[-1].revision == revision)
            assert follower.entries[-1].previous == before
            return follower.entries[-2].revision != before

        await eventually(is_overwritten_unseen)
        deleted = await bus.delete(NODES, "n0.metrics", revision=revision, read_at=now())
        await eventually(lambda: follower.entries[-1].revision == deleted)
        assert follower.entries[-1].previous == revision


@pytest.mark.parametrize("keys", [">", "*.facts"])
async def test_a_feed_without_stored_entries_is_caught_up_at_once(bus: Bus, keys: str) -> None:
    if keys != ">":
        await fill(bus, 3)  # none has a wanted key
    feed = await bus.feed(NODES, keys=(keys,))
    await feed.release(lambda _: None)
    assert feed.is_caught_up
    assert feed.applied == (await bus.epoch(NODES)).last_sequence
    await feed.close()


async def test_a_watch_has_nothing_of_another_epoch(bus: Bus) -> None:
    await fill(bus, 2)
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        epoch = await bus.epoch(NODES)
        assert follower.watch.status.has_all(epoch)
        assert not follower.watch.status.has_all(replace(epoch, created="another"))


@pytest.mark.parametrize("pace", [0.0, 0.1])
async def test_an_empty_bucket_is_caught_up_without_an_entry(bus: Bus, pace: float) -> None:
    async with following(bus, NODES, pace=pace) as follower:
        await follower.caught_up()
        assert follower.entries == []
        assert follower.batches
        assert follower.watch.status.lag == 0


@pytest.fixture
def quick_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch is compared with its stream after each heartbeat."""
    monkeypatch.setattr("bus.bucket_feed.WATCHDOG_BEATS", 1)
    monkeypatch.setattr("bus.bucket_feed.SUSPICIOUS_BEATS", 1)


async def test_a_watch_of_some_keys_delivers_only_these_keys(
    server: Server, bus: Bus, quick_watchdog: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0
    epoch = bus.epoch

    async def counted(of: Stream | Bucket) -> Epoch:
        nonlocal checks
        checks += 1
        return await epoch(of)

    facts = await bus.put(NODES, "a.facts", b"1", revision=0, read_at=now())
    await fill(bus, 100)
    with capture_logs() as logs:
        async with following(bus, NODES, keys="*.facts") as follower:
            await follower.caught_up()
            assert follower.view == {"a.facts": b"1"}
            assert follower.watch.status.applied >= (await bus.epoch(NODES)).last_sequence
            monkeypatch.setattr(bus, "epoch", counted)
            number = 0

            async def grow() -> int:
                nonlocal number
                number += 1
                return await bus.put(NODES, f"more{number}.metrics", b"1", revision=0, read_at=now())

            while checks < 3:  # the watchdog has checked three times, while the stream grows
                await answered(grow)  # so often that a busy machine once stops this process for seconds before a send
            await bus.put(NODES, "a.facts", b"2", revision=facts, read_at=now())
            await bus.put(NODES, "b.facts", b"1", revision=0, read_at=now())
            await eventually(lambda: follower.view == {"a.facts": b"2", "b.facts": b"1"})
            await eventually(lambda: follower.watch.status.lag == 0)
            assert [entry.key for entry in follower.entries] == ["a.facts", "a.facts", "b.facts"]
            await server.restart(wiped=True)
            await eventually(lambda: bus.connected)
            await eventually(lambda: len(follower.epochs) == 2 and follower.watch.status.caught_up)
            assert follower.view == {}
            await bus.put(NODES, "c.facts", b"1", revision=0, read_at=now())
            await bus.put(NODES, "c.metrics", b"1", revision=0, read_at=now())
            await eventually(lambda: follower.view == {"c.facts": b"1"})
    before_the_wipe = logs[: next(i for i, line in enumerate(logs) if line["event"] == "bus_disconnected")]
    interruptions = [line["error"] for line in before_the_wipe if line["event"] == "watch_interrupted"]
    assert not [error for error in interruptions if BEHIND in error]


@pytest.mark.parametrize("keys", [">", "*.facts"])
async def test_an_idle_watch_asks_one_question_in_five_beats(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    asked: list[str] = []
    beats = 0
    api = bus.api

    async def counted(verb: str, body: dict[str, Any] | None = None, **limit: float) -> dict[str, Any]:
        asked.append(verb)
        return await api(verb, body, **limit)

    async def beat(_: Pulse) -> None:
        nonlocal beats
        beats += 1
        await asyncio.sleep(0.001)

    await bus.put(NODES, "a.facts", b"1", revision=0, read_at=now())
    async with following(bus, NODES, keys=keys) as follower:
        await follower.caught_up()
        monkeypatch.setattr(bus, "api", counted)
        monkeypatch.setattr(Pulse, "beat", beat)
        await eventually(lambda: len(asked) >= 4)
        assert set(asked) == {f"STREAM.INFO.{NODES.stream}"}
        assert beats >= 5 * (len(asked) - 1)


async def test_a_watch_that_seems_to_be_behind_is_looked_at_again_after_two_beats(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two looks, so that an entry on its way is none that is missing."""
    beats_of_looks: list[int] = []
    beats = 0

    async def beat(_: Pulse) -> None:
        nonlocal beats
        beats += 1
        await asyncio.sleep(0.001)

    async with following(bus, NODES) as follower:
        await follower.caught_up()
        feed = follower.watch._shared._feed
        assert feed is not None
        epoch = bus.epoch

        async def ahead(of: Stream | Bucket) -> Epoch:
            beats_of_looks.append(beats)
            found = await epoch(of)
            return replace(found, last_sequence=found.last_sequence + 1)

        monkeypatch.setattr(bus, "epoch", ahead)
        monkeypatch.setattr(Pulse, "beat", beat)
        with capture_logs() as logs:
            await eventually(lambda: any(BEHIND in line.get("error", "") for line in logs))
    assert beats_of_looks[1] - beats_of_looks[0] == 2


async def test_a_watch_of_some_keys_that_gets_no_entries_is_reopened(
    bus: Bus, quick_watchdog: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(bus, NODES, keys="*.facts") as follower:
        await follower.caught_up()
        feed = follower.watch._shared._feed
        assert feed is not None
        monkeypatch.setattr(feed, "_receive_entry", lambda _: None)
        monkeypatch.setattr(feed, "_receive_status", lambda _: "")  # so nothing but the watchdog notices it
        with capture_logs() as logs:
            await bus.put(NODES, "a.facts", b"1", revision=0, read_at=now())
            await eventually(lambda: follower.view == {"a.facts": b"1"})
    assert any(BEHIND in line.get("error", "") for line in logs)


async def test_on_batch_is_called_a_few_times_for_a_burst_and_not_for_each_entry(bus: Bus) -> None:
    await fill(bus, 2000)
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        await eventually(lambda: follower.batches > 0)
        assert follower.batches < 500


async def test_caught_up_is_true_at_the_last_call_of_on_batch(bus: Bus) -> None:
    await fill(bus, 10)
    caught_up: list[bool] = []
    watch = raw_watch(
        bus,
        NODES,
        on_entry=lambda _: None,
        on_epoch=lambda _: None,
        on_batch=lambda: caught_up.append(watch.status.caught_up),
    )
    task = asyncio.create_task(watch.run())
    await eventually(lambda: bool(caught_up) and caught_up[-1])
    task.cancel()
    await asyncio.wait([task])


class Turns:
    """Counts the turns of another task, and notes how many there were before each entry of a slow reader."""

    def __init__(self) -> None:
        self.before: list[int] = []
        self._turns = 0

    def slowly(self, _: RawEntry) -> None:
        """Takes an entry, for longer than other tasks have to wait for their turn."""
        self.before.append(self._turns)
        until = time.perf_counter() + YIELD_SECONDS
        while time.perf_counter() <= until:
            pass

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        async def take_turns() -> None:
            while True:
                self._turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(take_turns())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_a_slow_reader_catches_up_and_does_not_block_other_tasks(bus: Bus) -> None:
    await fill(bus, 1500, b"x" * 4000)
    caught_up: list[bool] = []
    turns = Turns()
    watch = raw_watch(
        bus,
        NODES,
        on_entry=turns.slowly,
        on_epoch=lambda _: None,
        on_batch=lambda: caught_up.append(watch.status.caught_up),
    )
    async with turns.counted():
        task = asyncio.create_task(watch.run())
        try:
            await eventually(lambda: watch.status.caught_up)
            await eventually(lambda: bool(caught_up) and caught_up[-1])
        finally:
            task.cancel()
            await asyncio.wait([task])
    assert len(turns.before) == 1500
    assert all(turn < later for turn, later in pairwise(turns.before))


async def test_entries_that_came_before_the_release_of_a_feed_leave_turns_to_other_tasks(bus: Bus) -> None:
    await fill(bus, 100)
    feed = await bus.feed(NODES)
    await eventually(lambda: len(feed._held or ()) == 100)
    turns = Turns()
    async with turns.counted():
        await feed.release(turns.slowly)
    assert feed.is_caught_up
    assert len(turns.before) == 100
    assert all(turn < later for turn, later in pairwise(turns.before))
    await feed.close()


@pytest.mark.parametrize("pace", [0.0, 0.1])
async def test_a_watch_catches_up_though_the_last_message_was_purged(bus: Bus, pace: float) -> None:
    await fill(bus, 3)
    await bus.api("STREAM.PURGE.KV_NODES", {"filter": "$KV.NODES.n2.metrics"})
    assert (await bus.epoch(NODES)).last_sequence > 0
    async with following(bus, NODES, pace=pace) as follower:
        await follower.caught_up()
        assert len(follower.view) == 2
        assert follower.watch.status.lag == 0


async def test_an_expired_key_is_delivered_as_a_tombstone(bus: Bus) -> None:
    async with following(bus, SOURCES) as follower:
        await follower.caught_up()
        await bus.put(SOURCES, "a", b"1", revision=0, read_at=now(), ttl_seconds=1)
        await eventually(lambda: len(follower.entries) == 2)
        assert [entry.value for entry in follower.entries] == [b"1", None]


async def test_a_watch_with_all_entries_has_no_lag(bus: Bus) -> None:
    async with following(bus, NODES) as follower:
        await fill(bus, 10)
        await eventually(lambda: len(follower.entries) == 10)
        assert follower.watch.status.applied == (await bus.epoch(NODES)).last_sequence
        assert follower.watch.status.lag == 0


async def test_an_exception_of_the_reader_ends_the_watch(bus: Bus) -> None:
    def fail(_: RawEntry | Epoch) -> None:
        raise ZeroDivisionError

    for on_entry, on_epoch in ((fail, lambda _: None), (lambda _: None, fail)):
        watch = raw_watch(bus, NODES, on_entry=on_entry, on_epoch=on_epoch)
        task = asyncio.create_task(watch.run())
        await eventually(lambda watch=watch: watch.status.epoch is not None)  # type: ignore[misc]
        if not task.done():
            revision = (await bus.get(NODES, "a")) or RawEntry("a", None, 0, 0)
            await bus.put(NODES, "a", b"", revision=revision.revision, read_at=now())
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(task, 120)
    await eventually(lambda: has_consumers(bus, 0))


async def has_consumers(bus: Bus, count: int) -> bool:
    return await consumers(bus, NODES) == count


@pytest.fixture
def kept_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server itself deletes no consumer during the test."""
    monkeypatch.setattr("bus.feed.INACTIVE_SECONDS", 600)


async def test_a_watch_deletes_its_consumer_when_it_ends_facts_b47(bus: Bus, kept_consumers: None) -> None:
    before = asyncio.all_tasks()
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        await eventually(lambda: has_consumers(bus, 1))
    await eventually(lambda: has_consumers(bus, 0))
    await eventually(lambda: asyncio.all_tasks() <= before)


async def test_after_a_lost_connection_a_watch_deletes_its_previous_consumer_facts_b47(
    bus: Bus, kept_consumers: None
) -> None:
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        attached = follower.watch.status.attached
        bus.link._client._transport._io_writer.transport.abort()  # type: ignore[union-attr]
        await eventually(lambda: attached < follower.watch.status.attached < float("inf"), every=0.001)
        await eventually(lambda: has_consumers(bus, 1))


def clocks(*, monotonic: float = 0.0, of_day: float = 0.0) -> tuple[float, float]:
    """Both clocks, moved by seconds."""
    return time.monotonic() + monotonic, time.time() + of_day


@pytest.mark.parametrize("clock", ["monotonic", "of_day"])
async def test_a_watch_that_was_away_reads_again_and_misses_no_deletion(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """As after a long interruption, or a sleep of the machine: the tombstones may have been purged meanwhile."""
    await fill(bus, 2)
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        await bus.api(f"STREAM.PURGE.{NODES.stream}", {"filter": NODES.subject("n0.metrics")})
        for hours in (0, 1):
            moved = {clock: hours * 3600.0}
            monkeypatch.setattr("bus.bucket_feed._clocks", lambda moved=moved: clocks(**moved))
            attached = follower.watch.status.attached
            bus.link._client._transport._io_writer.transport.abort()  # type: ignore[union-attr]
            await eventually(lambda: attached < follower.watch.status.attached < float("inf"))  # noqa: B023
            await bus.put(NODES, f"after-{hours}.metrics", b"1", revision=0, read_at=now())
            await eventually(lambda: f"after-{hours}.metrics" in follower.view)  # noqa: B023
            assert len(follower.epochs) == 1 + hours
            assert ("n0.metrics" in follower.view) is (hours == 0)  # without a deletion nothing is read again
        assert follower.view.keys() == {"n1.metrics", "after-0.metrics", "after-1.metrics"}


@pytest.mark.parametrize(("bucket", "seconds"), [(NODES, 3600.0), (SOURCES, 45.0)])
async def test_a_process_that_did_not_run_for_long_reads_again(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, bucket: Bucket, seconds: float
) -> None:
    """Its connection may still be open, and deliver later entries. The tombstone of an expired key lasts a minute."""
    for key in ("n0.metrics", "n1.metrics"):
        await bus.put(bucket, key, b"1", revision=0, read_at=now())
    async with following(bus, bucket) as follower:
        await follower.caught_up()
        await bus.api(f"STREAM.PURGE.{bucket.stream}", {"filter": bucket.subject("n0.metrics")})
        monkeypatch.setattr("bus.bucket_feed._clocks", lambda: clocks(of_day=seconds))
        await eventually(lambda: len(follower.epochs) == 2)
        await eventually(lambda: follower.view.keys() == {"n1.metrics"})


async def test_a_leader_that_is_briefly_behind_begins_no_new_epoch(server: Server) -> None:
    """In a cluster a new leader may briefly lack entries that its predecessor has delivered."""

    class LaggingBus(Bus):
        wrong_answers = 0

        async def feed(
            self,
            bucket: Bucket,
            *,
            keys: Collection[str] = (">",),
            after: Callable[[Epoch], int | None] | None = None,
            pace: float = 0.0,
        ) -> Feed:
            def lagging_after(epoch: Epoch) -> int | None:
                assert after is not None
                if self.wrong_answers:
                    self.wrong_answers -= 1
                    return after(replace(epoch, last_sequence=epoch.last_sequence - 1))
                return after(epoch)

            return await super().feed(bucket, keys=keys, after=lagging_after, pace=pace)

    async with LaggingBus.connect(server.url, name="lagging") as bus:
        assert isinstance(bus, LaggingBus)
        await bus.wait_connected()
        await fill(bus, 3)
        async with following(bus, NODES) as follower:
            await eventually(lambda: len(follower.entries) == 3)
            for number in (3, 4):  # also a second time
                bus.wrong_answers = 1
                bus.link._client._transport._io_writer.transport.abort()  # type: ignore[union-attr]
                await eventually(lambda: bus.wrong_answers == 0 and bus.connected)
                await bus.put(NODES, f"n{number}.metrics", b"1", revision=0, read_at=now())
                await eventually(lambda number=number: len(follower.entries) == number + 1)  # type: ignore[misc]
            assert len(follower.epochs) == 1
            assert [entry.key for entry in follower.entries] == [f"n{number}.metrics" for number in range(5)]


async def test_a_replaced_stream_is_detected_though_heartbeats_continue(
    bus: Bus, quick_watchdog: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(bus, NODES) as follower:
        await fill(bus, 3)
        await eventually(lambda: len(follower.entries) == 3)
        feed = follower.watch._shared._feed
        assert feed is not None
        monkeypatch.setattr("bus.pulse.Pulse.beat", lambda _: asyncio.sleep(0.1))  # as if the consumer existed
        await bus.api(f"STREAM.DELETE.{NODES.stream}")
        await eventually(lambda: len(follower.epochs) == 2)


async def test_entries_returns_the_whole_bucket_without_deleted_keys(bus: Bus) -> None:
    revisions = await fill(bus, 500)
    await bus.delete(NODES, "n7.metrics", revision=revisions[7], read_at=now())
    entries = await answered(lambda: bus.entries(NODES))
    assert {entry.key for entry in entries} == {f"n{number}.metrics" for number in range(500)} - {"n7.metrics"}
    assert [entry.revision for entry in entries] == sorted(set(revisions) - {revisions[7]})
    assert await consumers(bus, NODES) == 0


@pytest.mark.parametrize("late", [(), ("n1.facts", "n1.metrics")])
async def test_entries_of_some_keys_are_all_of_these_and_no_others(bus: Bus, late: tuple[str, ...]) -> None:
    """Also those that do not come in time."""
    for key in ("n1.facts", "n1.metrics", "n2.metrics", "n2.inventory", "n3.other"):
        await bus.put(NODES, key, b"1", revision=0, read_at=now())
    with partial_copy(*late):
        entries = await bus.entries(NODES, ("*.metrics", "n2.inventory"))
    assert [entry.key for entry in entries] == ["n1.metrics", "n2.metrics", "n2.inventory"]


async def test_entries_of_an_empty_bucket_is_empty_without_waiting_for_the_time_limit(bus: Bus) -> None:
    began = now()
    assert await answered(lambda: bus.entries(NODES)) == []
    assert now() - began < LONG_LIMITS["bus.connection.ENTRIES_SECONDS"] / 2


async def test_reading_a_large_bucket_may_take_longer_than_the_wait_for_an_entry(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker that reads its bucket at the start would begin again and again."""
    await fill(bus, 40)
    handle = Feed._on_message

    async def handle_slowly(self: Feed, message: Msg) -> None:
        await asyncio.sleep(0.05)  # as if the entries were many
        await handle(self, message)

    monkeypatch.setattr(Feed, "_on_message", handle_slowly)
    monkeypatch.setattr("bus.feed.BATCH_SECONDS", 0.0)
    monkeypatch.setattr("bus.connection.ENTRIES_SECONDS", 1.0)

    async def read() -> tuple[int, float]:
        began = now()
        return len(await bus.entries(NODES)), now() - began

    # Again after a moment in which this process did not run for so long: a limit of the whole call would never suffice.
    count, seconds = await answered(read)
    assert count == 40
    assert seconds > 1.0
    monkeypatch.setattr("bus.connection.ENTRIES_SECONDS", 0.01)
    with pytest.raises(UnavailableError, match=r"NODES: no further entry within 0\.01 s"):
        await bus.entries(NODES)


async def test_several_watches_share_a_connection(bus: Bus) -> None:
    async with following(bus, NODES) as nodes, following(bus, LEASES) as leases, following(bus, NODES) as more:
        await fill(bus, 10)
        await bus.put(LEASES, "a", b"1", revision=0, read_at=now())
        await bus.publish(SAMPLES, "tas.samples.a.b", b"{}")
        await eventually(lambda: len(nodes.view) == len(more.view) == 10 and len(leases.view) == 1)


async def test_the_status_of_a_watch_before_its_first_epoch(bus: Bus) -> None:
    status = Follower(bus, NODES).watch.status
    assert (status.epoch, status.applied, status.caught_up, status.lag) == (None, 0, False, None)


async def test_some_keys_are_caught_up_once_all_of_them_came(bus: Bus) -> None:
    await asyncio.gather(*(bus.put(NODES, f"n{number}.facts", b"1", revision=0, read_at=now()) for number in range(99)))
    await fill(bus, 3)
    caught_up_before: list[bool] = []
    feed = await bus.feed(NODES, keys=("*.facts",))
    await feed.release(lambda _: caught_up_before.append(feed.is_caught_up))
    await feed.caught_up()
    assert caught_up_before == [False] * 99
    await feed.close()


def heartbeat(bus: Bus, **headers: str) -> Msg:
    """As an idle server sends it."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Msg(_client=bus.link._client, headers={"Status": "100", **named})


async def test_a_heartbeat_before_the_last_entry_does_not_end_the_list(bus: Bus) -> None:
    await fill(bus, 3)
    feed = await bus.feed(NODES)
    feed._receive_status(heartbeat(bus, Nats_Last_Consumer="0"))
    assert not feed.is_caught_up
    assert feed.applied == 0
    await feed.release(lambda _: None)
    await feed.caught_up()
    await feed.close()


async def test_a_heartbeat_before_the_release_does_not_end_a_feed_that_lacks_nothing(bus: Bus) -> None:
    feed = await bus.feed(NODES)
    await eventually(lambda: bool(feed._held))
    await feed.release(lambda _: None)
    await feed.beat()
    assert feed.is_caught_up
    await feed.close()


async def test_a_server_that_waits_for_a_reply_to_a_heartbeat_gets_it(bus: Bus) -> None:
    feed = await bus.feed(NODES)
    assert feed._receive_status(heartbeat(bus, Nats_Last_Consumer="0", Nats_Consumer_Stalled="_FC.1")) == "_FC.1"
    assert feed._receive_status(heartbeat(bus, Nats_Last_Consumer="0")) == ""
    await feed.close()


async def test_a_last_entry_that_was_lost_is_noticed_at_the_next_heartbeat(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.bucket_feed.WATCHDOG_BEATS", 10**6)
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        feed = follower.watch._shared._feed
        assert feed is not None
        monkeypatch.setattr(feed, "_receive_entry", lambda _: None)
        await bus.put(NODES, "a", b"1", revision=0, read_at=now())
        await eventually(lambda: follower.view == {"a": b"1"})


@pytest.mark.parametrize("change", [{"created": "another"}, {"last_sequence": 1}])
async def test_a_stream_that_is_replaced_while_a_feed_is_opened_is_noticed(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    await fill(bus, 3)
    stream_epoch = Feed._stream_epoch
    asked = 0

    async def replaced(feed: Feed) -> Epoch:
        nonlocal asked
        asked += 1
        epoch = await stream_epoch(feed)
        return epoch if asked == 1 else replace(epoch, **change)

    monkeypatch.setattr(Feed, "_stream_epoch", replaced)
    with pytest.raises(UnavailableError, match="was replaced"):
        await bus.feed(NODES)
    assert await consumers(bus, NODES) == 0


@contextmanager
def written_again(bus: Bus, key: str) -> Iterator[None]:
    """The next consumer begins when this key was written after its feed had asked where the stream ends."""
    create, is_due = consumers_of_feeds.create, True

    async def created(*args: Any, **options: Any) -> tuple[str, dict[str, Any]]:
        nonlocal is_due
        if is_due:
            is_due = False
            revision = await bus.last_revision(NODES, key)
            await bus.put(NODES, key, b"2", revision=revision, read_at=now())
        return await create(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers_of_feeds, "create", created)
        yield


@pytest.mark.parametrize("pace", [0.0, 0.1])
@pytest.mark.parametrize("keys", [">", "*.metrics"])
async def test_a_list_lacks_no_key_that_was_written_again_before_its_delivery(bus: Bus, keys: str, pace: float) -> None:
    """The server moves its entry behind all that were stored when the watch began."""
    for key in ("n0.metrics", "n1.metrics"):
        await bus.put(NODES, key, b"1", revision=0, read_at=now())
    view: dict[str, bytes | None] = {}
    complete: list[dict[str, bytes | None]] = []
    watch = raw_watch(
        bus,
        NODES,
        on_entry=lambda entry: view.update({entry.key: entry.value}),
        on_epoch=lambda _: None,
        on_batch=lambda: complete.append(dict(view)) if watch.status.caught_up else None,
        keys=keys,
        pace=pace,
    )
    with written_again(bus, "n0.metrics"):
        async with meanwhile(watch.run()):
            await eventually(lambda: bool(complete))
    assert complete == [{"n0.metrics": b"2", "n1.metrics": b"1"}]


async def test_a_bucket_that_is_read_at_once_lacks_no_key_that_does_not_come_in_time(bus: Bus) -> None:
    for key in ("n0.metrics", "n1.metrics"):
        await bus.put(NODES, key, b"1", revision=0, read_at=now())
    with partial_copy("n0.metrics"):
        entries = await bus.entries(NODES)
    assert [entry.key for entry in entries] == ["n0.metrics", "n1.metrics"]


async def test_keys_that_do_not_come_in_time_are_asked_for_together(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large bucket these can be thousands, and a person's way to the server may be long."""
    for key in ("n0.metrics", "n1.metrics", "n2.metrics"):
        await bus.put(NODES, key, b"1", revision=0, read_at=now())
    ask, asked = Bus._last_message, asyncio.Barrier(2)

    async def asked_with_another(self: Bus, of: Bucket, subject: str) -> dict[str, Any] | None:
        async with asyncio.timeout(60):
            await asked.wait()
        return await ask(self, of, subject)

    monkeypatch.setattr(Bus, "_last_message", asked_with_another)
    with partial_copy("n0.metrics", "n1.metrics"):
        entries = await bus.entries(NODES)
    assert [entry.key for entry in entries] == ["n0.metrics", "n1.metrics", "n2.metrics"]


async def test_all_keys_of_a_bucket_are_known_though_an_answer_has_a_limit(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of this test have two keys, those of a server 100,000."""
    await fill(bus, 5)
    ask = Bus._info

    async def cut(self: Bus, of: Bucket, body: dict[str, Any], *others: float) -> dict[str, Any]:
        answer = await ask(self, of, body, *others)
        answer["state"]["subjects"] = dict(sorted(answer["state"].get("subjects", {}).items())[:2])
        return answer

    monkeypatch.setattr(Bus, "_info", cut)
    assert await bus.keys(NODES, "*.metrics") == [f"n{number}.metrics" for number in range(5)]
    assert await bus.keys(NODES, "*.facts") == []


async def test_the_answer_with_all_keys_may_take_longer_than_others(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was busy needed more than 2 s for 90,000 keys: the list would not have been complete meanwhile."""
    await fill(bus, 1)
    monkeypatch.setattr("bus.connection.CALL_SECONDS", 0.0)
    with pytest.raises(UnavailableError, match="no answer"):
        await bus.epoch(NODES)
    assert await bus.keys(NODES, ">") == ["n0.metrics"]


def waits_for_last_key(watch: Watch) -> bool:
    feed = watch.status.feed
    return feed is not None and feed._missing == {"last.metrics"}


@contextmanager
def last_key() -> Iterator[None]:
    """The leader has one more key of metrics, by its answers."""
    stored = Bus.keys

    async def keys(self: Bus, bucket: Bucket, pattern: str) -> list[str]:
        return [*await stored(self, bucket, pattern), *(() if pattern == "*.facts" else ("last.metrics",))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bus, "keys", keys)
        yield


async def test_the_entry_that_completes_a_list_is_delivered_once(bus: Bus) -> None:
    """Also to who comes later: it is among those that wait until the own consumer has delivered the ones before."""
    await fill(bus, 1)
    async with following(bus, NODES) as others:
        await others.caught_up()
        with last_key():
            async with following(bus, NODES) as follower:
                await eventually(lambda: waits_for_last_key(follower.watch))
                await bus.put(NODES, "last.metrics", b"1", revision=0, read_at=now())
                await follower.caught_up()
                await eventually(lambda: follower.watch.status.feed is others.watch.status.feed)
                await bus.put(NODES, "later.metrics", b"1", revision=0, read_at=now())
                await eventually(lambda: "later.metrics" in follower.view)
        assert [entry.key for entry in follower.entries] == ["n0.metrics", "last.metrics", "later.metrics"]


async def test_a_list_that_is_complete_is_known_as_far_as_its_last_entry(bus: Bus) -> None:
    await fill(bus, 1)
    applied: list[int] = []
    watch = raw_watch(
        bus,
        NODES,
        on_entry=lambda _: None,
        on_epoch=lambda _: None,
        on_batch=lambda: applied.append(watch.status.applied) if watch.status.caught_up else None,
    )
    with last_key():
        async with meanwhile(watch.run()):
            await eventually(lambda: waits_for_last_key(watch))
            last = await bus.put(NODES, "last.metrics", b"1", revision=0, read_at=now())
            await eventually(lambda: bool(applied))
    assert applied[0] == last


async def test_a_list_does_not_wait_for_keys_whose_readers_have_left(bus: Bus) -> None:
    """The next consumer does not have these keys."""
    await fill(bus, 1)
    await bus.put(NODES, "n0.facts", b"1", revision=0, read_at=now())
    facts, metrics = Follower(bus, NODES, "*.facts"), Follower(bus, NODES, "*.metrics")
    with last_key():
        async with meanwhile(facts.watch.run()):
            async with meanwhile(metrics.watch.run()):
                await eventually(lambda: waits_for_last_key(facts.watch))
            del metrics
            for _ in range(2):  # the delivery itself may remember a reader until it is interrupted
                assert not facts.watch.status.caught_up
                attached = facts.watch.status.attached
                bus.link._client._transport._io_writer.transport.abort()  # type: ignore[union-attr]
                await eventually(lambda since=attached: since < facts.watch.status.attached < float("inf"))  # type: ignore[misc]
                gc.collect()
            await facts.caught_up()
    assert (len(facts.epochs), facts.view) == (1, {"n0.facts": b"1"})


async def test_a_list_does_not_wait_for_a_key_that_is_gone(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tombstone was purged after the leader had been asked: no watch gets an entry of it any more.

    The leader is asked again with the next look at the stream, and not each second: the question costs it much.
    """
    beats, beat = 0, Feed.beat

    async def counted(self: Feed) -> None:
        nonlocal beats
        beats += 1
        await beat(self)

    monkeypatch.setattr(Feed, "beat", counted)
    await fill(bus, 1)
    stored, asked = Bus.keys, 0

    async def keys(self: Bus, bucket: Bucket, pattern: str) -> list[str]:
        nonlocal asked
        asked += 1
        if asked == 1:
            return ["gone.metrics", *await stored(self, bucket, pattern)]
        assert not follower.watch.status.caught_up
        return await stored(self, bucket, pattern)

    monkeypatch.setattr(Bus, "keys", keys)
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        assert (asked, beats >= WATCHDOG_BEATS) == (2, True)


@pytest.mark.parametrize("answers", [True, False])
async def test_the_log_says_why_a_watch_does_not_catch_up(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    """The leader has keys that no consumer delivers, or does not say which it has. Once, until some time has passed."""
    stored, asked, may_answer = Bus.keys, 0, asyncio.Semaphore(0)
    never = ["\x1b[31mred\u202e.metrics", 300 * "a", *(f"never{number}.metrics" for number in range(100))]

    async def keys(self: Bus, bucket: Bucket, pattern: str) -> list[str]:
        nonlocal asked
        asked += 1
        await may_answer.acquire()
        if not answers:
            raise UnavailableError("for this test")
        return [*await stored(self, bucket, pattern), *never]

    async def beat(_pulse: Pulse, *_others: asyncio.Future[Any]) -> None:
        await asyncio.sleep(0.001)

    monkeypatch.setattr("bus.bucket_feed.REPEAT_SECONDS", float("inf"))
    monkeypatch.setattr(Bus, "keys", keys)
    monkeypatch.setattr(Pulse, "beat", beat)
    await fill(bus, 1)
    with capture_logs() as logs:
        async with following(bus, NODES) as follower:
            may_answer.release()
            await eventually(lambda: asked == 2)
            assert "watch_incomplete" not in {line["event"] for line in logs}, "an entry may be on its way"
            for _ in range(10):
                may_answer.release()
            await eventually(lambda: asked == 12)
            assert not follower.watch.status.caught_up
    told = [line for line in logs if line["event"] == "watch_incomplete"]
    assert [(line["log_level"], line["bucket"], line["suppressed"]) for line in told] == [("warning", "NODES", 0)]
    missing, named, error = (told[0][field] for field in ("missing", "keys", "error"))
    if answers:
        assert missing == len(never)
        escaped, cut = r"\x1b[31mred\u202e.metrics", f"{99 * 'a'}…"
        assert named == [escaped, cut, "never0.metrics", "never1.metrics", "never10.metrics"]
        assert "start this process again" in error
    else:
        assert (missing, named, error) == (0, [], "for this test")


async def test_the_first_answer_about_missing_keys_is_not_logged_also_if_the_first_question_has_failed(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, asked, may_answer = Bus.keys, 0, asyncio.Semaphore(2)

    async def keys(self: Bus, bucket: Bucket, pattern: str) -> list[str]:
        nonlocal asked
        asked += 1
        await may_answer.acquire()
        if asked == 1:
            raise UnavailableError("for this test")
        return [*await stored(self, bucket, pattern), "last.metrics"]

    async def beat(_pulse: Pulse, *_others: asyncio.Future[Any]) -> None:
        await asyncio.sleep(0.001)

    monkeypatch.setattr(Bus, "keys", keys)
    monkeypatch.setattr(Pulse, "beat", beat)
    await fill(bus, 1)
    with capture_logs() as logs:
        async with following(bus, NODES):
            await eventually(lambda: asked == 3)
            assert "watch_incomplete" not in {line["event"] for line in logs}, "an entry may be on its way"
            may_answer.release()
            await eventually(lambda: "watch_incomplete" in {line["event"] for line in logs})


async def test_a_watch_that_is_behind_the_stream_says_nothing_of_the_keys_that_are_to_come(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were written again while it read a large bucket come behind all others, and that may take a while."""
    stored, epoch, asked, may_answer = Bus.keys, Bus.epoch, 0, asyncio.Semaphore(2)

    async def keys(self: Bus, bucket: Bucket, pattern: str) -> list[str]:
        nonlocal asked
        asked += 1
        await may_answer.acquire()
        return [*await stored(self, bucket, pattern), "last.metrics"]

    async def ahead(self: Bus, of: Stream | Bucket) -> Epoch:
        found = await epoch(self, of)
        return replace(found, last_sequence=found.last_sequence + 1)

    async def beat(_pulse: Pulse, *_others: asyncio.Future[Any]) -> None:
        await asyncio.sleep(0.001)

    monkeypatch.setattr(Bus, "keys", keys)
    monkeypatch.setattr(Bus, "epoch", ahead)
    monkeypatch.setattr(Pulse, "beat", beat)
    await fill(bus, 1)
    with capture_logs() as logs:
        async with following(bus, NODES):
            await eventually(lambda: asked == 3)  # by the next feed, which is not behind: the one before was stuck
            assert "watch_interrupted" in {line["event"] for line in logs}
            assert "watch_incomplete" not in {line["event"] for line in logs}
            may_answer.release()
            await eventually(lambda: "watch_incomplete" in {line["event"] for line in logs})


async def test_a_list_is_of_the_keys_with_which_it_began(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes before it is complete, for other keys, gets what is stored under them from another consumer."""
    await fill(bus, 1)
    await bus.put(NODES, "n0.facts", b"1", revision=0, read_at=now())
    stored, asked, answers = Bus.keys, 0, False

    async def keys(self: Bus, bucket: Bucket, pattern: str) -> list[str]:
        nonlocal asked
        asked += 1
        if not answers:
            raise UnavailableError("for this test")
        return await stored(self, bucket, pattern)

    monkeypatch.setattr(Bus, "keys", keys)
    async with following(bus, NODES, keys="*.facts") as facts:
        await eventually(lambda: asked > 0 and bool(facts.entries))
        async with following(bus, NODES, keys="*.metrics") as metrics:
            await eventually(lambda: bool(metrics.entries))
            assert not facts.watch.status.caught_up
            answers = True
            await facts.caught_up()
            await metrics.caught_up()
            assert (facts.view, metrics.view) == ({"n0.facts": b"1"}, {"n0.metrics": b"1"})


@pytest.mark.parametrize("pace", [0.0, 0.1])
async def test_a_bucket_that_is_written_all_the_time_is_read_completely(bus: Bus, pace: float) -> None:
    revisions = dict(zip((names := [f"n{number}.metrics" for number in range(30)]), await fill(bus, 30), strict=True))

    async def write(own: list[str]) -> None:
        while True:
            for name in own:
                revisions[name] = await bus.put(NODES, name, b"2", revision=revisions[name], read_at=now())

    async with meanwhile(write(names[:10])), meanwhile(write(names[10:20])):
        for _ in range(2):
            before = dict(revisions)
            async with following(bus, NODES, pace=pace) as follower:
                await follower.caught_up()
                assert sorted(follower.view) == sorted(names)
            await eventually(lambda before=before: all(revisions[name] > before[name] for name in names[:20]))  # type: ignore[misc]
