"""Several watches of one bucket over one connection: one consumer on the server, and each watch as if it were alone."""

import asyncio
import random
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest

from bus.bucket_feed import BucketFeed
from bus.buckets import NODES
from bus.connection import Bus, Epoch, RawEntry
from bus.feed import Feed
from bus.kinds import NODE_FACTS, NODE_SAMPLES, synced_of
from bus.record_kind import Entry, RecordKind
from bus.watch import Watch
from tests.integration.bus.followers import Follower, consumers, following, raw_watch
from tests.integration.servers import Server, answered, eventually

pytestmark = pytest.mark.usefixtures("long_limits", "late_pulse")


async def put(bus: Bus, key: str, value: bytes = b"1") -> int:
    """Writes a key that may exist."""

    async def write() -> int:
        read_at = time.monotonic()
        found = await bus.get(NODES, key)
        return await bus.put(NODES, key, value, revision=found.revision if found else 0, read_at=read_at)

    return await answered(write)


async def filters_on(bus: Bus) -> list[list[str]]:
    """The filters of each consumer of NODES."""
    found = (await bus.api(f"CONSUMER.LIST.{NODES.stream}", {}))["consumers"] or []
    configs = [each["config"] for each in found]
    return [each.get("filter_subjects") or [each["filter_subject"]] for each in configs]


def check(*followers: Follower) -> None:
    """Nobody got an entry twice or out of order, and all have the same."""
    for each in followers:
        assert all(one.revision < other.revision for one, other in pairwise(each.entries))
    assert all(each.view == followers[0].view for each in followers)


async def test_watches_that_begin_together_share_a_consumer(bus: Bus) -> None:
    await put(bus, "a.facts")
    first, second = Follower(bus, NODES), Follower(bus, NODES, keys="*.facts")
    async with AsyncExitStack() as stack:
        for each in (first, second):
            await stack.enter_async_context(running(each))
        for each in (first, second):
            await each.caught_up()
        assert await filters_on(bus) == [[NODES.subject(">")]]
        await put(bus, "b.facts")
        await eventually(lambda: first.view.keys() == second.view.keys() == {"a.facts", "b.facts"})
        check(first, second)
        assert len(first.entries) == len(second.entries) == 2
    await eventually(lambda: has_consumers(bus, 0))


async def test_of_several_keys_only_these_are_sent(bus: Bus) -> None:
    facts, samples = Follower(bus, NODES, keys="*.facts"), Follower(bus, NODES, keys="*.metrics")
    async with running(facts), running(samples):
        await facts.caught_up()
        await samples.caught_up()
        assert await filters_on(bus) == [[NODES.subject("*.facts"), NODES.subject("*.metrics")]]
        for key in ("a.facts", "a.inventory", "a.metrics"):
            await put(bus, key)
        await eventually(lambda: "a.metrics" in samples.view and "a.facts" in facts.view)
        assert "a.inventory" not in facts.view | samples.view


async def test_a_burst_is_reported_to_those_who_got_something_of_it(bus: Bus) -> None:
    facts, samples = Follower(bus, NODES, keys="*.facts"), Follower(bus, NODES)
    async with running(facts), running(samples):
        await facts.caught_up()
        await samples.caught_up()
        await put(bus, "a.facts")
        await eventually(lambda: "a.facts" in facts.view and "a.facts" in samples.view)
        before, seen = facts.batches, samples.batches
        for number in range(10):
            await put(bus, f"n{number}.metrics")
        await eventually(lambda: len(samples.entries) == 11)
        assert facts.batches == before
        assert samples.batches > seen
        await put(bus, "b.facts")
        await eventually(lambda: facts.batches > before)


async def test_a_record_is_decoded_once_for_all_watches(bus: Bus) -> None:
    decoded: list[bytes] = []

    def decode(_: str, data: bytes) -> bytes:
        decoded.append(data)
        return data

    kind: RecordKind[str, bytes] = RecordKind(
        bucket=NODES, key=str, parse_key=str, encode=bytes, decode=decode, keys=">"
    )
    read: list[tuple[int, bytes | None]] = []
    kept: list[Entry[str, bytes]] = []

    def reader(number: int) -> Watch:
        def take(entry: Entry[str, bytes]) -> None:
            read.append((number, entry.readable()))
            kept.append(entry)

        return Watch(bus, kind.to(take), on_epoch=lambda _: None)

    async with asyncio.TaskGroup() as tasks:
        running_tasks = [tasks.create_task(reader(number).run()) for number in (1, 2)]
        await put(bus, "a", b"x")
        await eventually(lambda: len(read) == 2)
        assert sorted(read) == [(1, b"x"), (2, b"x")]
        assert decoded == [b"x"]
        kept[0].read()  # nobody pays with memory for an entry that is kept
        assert len(decoded) == 2
        for each in running_tasks:
            each.cancel()


async def test_who_comes_later_gets_all_that_is_stored_and_then_shares(bus: Bus) -> None:
    for number in range(50):
        await put(bus, f"n{number}.facts")
    async with following(bus, NODES) as first:
        await first.caught_up()
        entries = len(first.entries)
        async with following(bus, NODES) as late:
            await late.caught_up()
            assert len(late.entries) == 50
            assert len(late.epochs) == 1
            await eventually(lambda: has_consumers(bus, 1))
            await put(bus, "later.facts")
            await eventually(lambda: "later.facts" in late.view and "later.facts" in first.view)
            check(first, late)
            assert len(first.entries) == entries + 1  # nothing again because of another
            joined = late.watch.status
            # What was before, it has not watched.
            assert first.watch.status.attached < joined.attached <= time.time()
            assert joined.applied == first.watch.status.applied
        await put(bus, "last.facts")
        await eventually(lambda: "last.facts" in first.view)


async def test_who_comes_during_changes_misses_none_and_gets_none_twice(bus: Bus) -> None:
    chance = random.Random(7)
    stop = asyncio.Event()

    async def write(writer: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            await put(bus, f"n{writer}-{number % 5}.facts", str(number).encode())

    async with AsyncExitStack() as stack:
        writing = [asyncio.create_task(write(writer)) for writer in range(8)]
        followers = [await stack.enter_async_context(following(bus, NODES))]
        for _ in range(6):
            before = len(followers[0].entries) + chance.randrange(40)
            await eventually(lambda before=before: len(followers[0].entries) > before)  # type: ignore[misc]
            keys = chance.choice([">", "*.facts"])
            followers.append(await stack.enter_async_context(following(bus, NODES, keys=keys)))
        await eventually(lambda: has_consumers(bus, 1))  # all have joined while it went on
        stop.set()
        await asyncio.gather(*writing)
        last = await put(bus, "last.facts")
        await eventually(lambda: all(each.entries and each.entries[-1].revision == last for each in followers))
        check(*followers)
        assert all(len(each.epochs) == 1 for each in followers)
        by_revision: dict[int, RawEntry] = {each.revision: each for each in followers[0].entries}
        for each in followers[1:]:
            live = [entry for entry in each.entries if entry.revision in by_revision]
            first_live = live[0].revision
            assert [entry for entry in followers[0].entries if entry.revision > max(first_live, _stored(each))] == [
                entry for entry in each.entries if entry.revision > max(first_live, _stored(each))
            ]


def _stored(follower: Follower) -> int:
    """The last revision that was stored when it came."""
    return follower.epochs[0].last_sequence


@pytest.mark.long
async def test_who_comes_later_and_needs_more_gets_it(bus: Bus) -> None:
    for key in ("a.facts", "a.metrics"):
        await put(bus, key)
    async with following(bus, NODES, keys="*.facts") as facts:
        await facts.caught_up()
        assert await filters_on(bus) == [[NODES.subject("*.facts")]]
        async with following(bus, NODES) as everything:
            await eventually(lambda: everything.view.keys() == {"a.facts", "a.metrics"})

            async def is_one() -> bool:
                return await filters_on(bus) == [[NODES.subject(">")]]

            await eventually(is_one)
            for key in ("b.facts", "b.metrics"):
                await put(bus, key)
            await eventually(lambda: len(everything.view) == 4 and len(facts.entries) == 2)
            assert [entry.key for entry in facts.entries] == ["a.facts", "b.facts"]
            assert len(facts.epochs) == 1


@pytest.mark.parametrize("key", ["stored.facts", "later.facts"])
async def test_an_exception_of_who_comes_later_is_not_lost(bus: Bus, key: str) -> None:
    await put(bus, "stored.facts")

    def fail(entry: RawEntry) -> None:
        if entry.key == key:
            raise ZeroDivisionError

    async with AsyncExitStack() as stack:
        first = Follower(bus, NODES)
        running_first = asyncio.create_task(first.watch.run())
        stack.callback(running_first.cancel)
        await first.caught_up()
        watch = raw_watch(bus, NODES, on_entry=fail, on_epoch=lambda _: None)
        late = asyncio.create_task(watch.run())
        if key != "stored.facts":
            await eventually(lambda: watch.status.caught_up)
            await put(bus, key)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(late, 120)
    await asyncio.wait([running_first])


async def test_an_exception_of_who_comes_later_is_not_lost_if_it_is_cancelled_at_that_moment(bus: Bus) -> None:
    await put(bus, "stored.facts")

    def fail(_: RawEntry) -> None:
        late.cancel()
        raise ZeroDivisionError

    async with following(bus, NODES) as first:
        await first.caught_up()
        late = asyncio.create_task(raw_watch(bus, NODES, on_entry=fail, on_epoch=lambda _: None).run())
        with pytest.raises(ZeroDivisionError):
            await late


async def test_an_exception_of_who_comes_later_is_not_lost_if_a_new_epoch_begins_at_that_moment(bus: Bus) -> None:
    await put(bus, "stored.facts")

    def fail(_: RawEntry) -> None:
        epoch = first.watch.status.epoch
        assert epoch is not None
        watch._begin_epoch(epoch)  # as the shared feed does
        raise ZeroDivisionError

    async with following(bus, NODES) as first:
        await first.caught_up()
        watch = raw_watch(bus, NODES, on_entry=fail, on_epoch=lambda _: None)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(watch.run(), 120)


async def test_an_invalid_key_is_reported_once_also_if_somebody_comes_later(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    monkeypatch.setattr(bus, "on_invalid", lambda _, key, __: reported.append(key))
    opening, go, feed = asyncio.Event(), asyncio.Event(), bus.feed

    async def slow(*of: Any, **options: Any) -> Any:
        opening.set()
        await go.wait()
        return await feed(*of, **options)

    for key in ("x.y.z", "node.facts"):
        await put(bus, key)
    async with AsyncExitStack() as stack:
        seen: tuple[list[str], list[str]] = ([], [])
        for each in seen:

            def note(entry: Entry[str, Any], of: list[str] = each) -> None:
                of.append(entry.key)

            watch = Watch(bus, NODE_FACTS.to(note), NODE_SAMPLES.to(note), on_epoch=lambda _: None)
            task = asyncio.create_task(watch.run())
            stack.callback(task.cancel)
            if each is seen[0]:
                await eventually(lambda: seen[0] == ["node"])
                monkeypatch.setattr(bus, "feed", slow)
        await opening.wait()
        await put(bus, "later.y.z")  # while the second one catches up
        await eventually(lambda: len(reported) == 2)
        go.set()
        await eventually(lambda: seen[1] == ["node"])
        await eventually(lambda: has_consumers(bus, 1))
        await put(bus, "last.facts")
        await eventually(lambda: seen == (["node", "last"], ["node", "last"]))
        assert reported == ["x.y.z", "later.y.z"]


async def test_who_comes_later_does_not_believe_a_leader_that_is_behind_what_others_have_got(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster a new leader may briefly lack entries; the late one would never get them."""
    for number in range(3):
        await put(bus, f"n{number}.facts")
    async with following(bus, NODES) as first:
        await first.caught_up()
        stream_epoch, behind, asked = Feed._stream_epoch, True, 0

        async def lagging(self: Feed) -> Epoch:
            nonlocal asked
            asked += 1
            epoch = await stream_epoch(self)
            return replace(epoch, last_sequence=epoch.last_sequence - 1) if behind else epoch

        monkeypatch.setattr(Feed, "_stream_epoch", lagging)
        async with following(bus, NODES) as late:
            await eventually(lambda: asked >= 4)
            assert not late.epochs
            assert not late.watch.status.caught_up
            behind = False
            await late.caught_up()
            assert late.view == first.view
            assert late.epochs[0].last_sequence == first.entries[-1].revision


async def test_who_comes_first_after_the_last_has_left_begins_anew(bus: Bus) -> None:
    await put(bus, "a.facts")
    first, again = Follower(bus, NODES), Follower(bus, NODES)
    async with running(first):
        await first.caught_up()
    await put(bus, "b.facts")
    async with running(again):
        await again.caught_up()
        assert again.view.keys() == {"a.facts", "b.facts"}
        await eventually(lambda: has_consumers(bus, 1))
    assert len(first.entries) == 1


async def test_a_new_epoch_begins_for_all_also_for_one_that_is_about_to_join(server: Server, bus: Bus) -> None:
    await put(bus, "old.facts")
    async with following(bus, NODES) as first, AsyncExitStack() as stack:
        await first.caught_up()
        for round_ in range(3):
            late = await stack.enter_async_context(following(bus, NODES))
            if round_:
                await late.caught_up()
            await server.restart(wiped=True)
            await answered(lambda: bus.epoch(NODES))
            key = f"new-{round_}.facts"
            await put(bus, key)
            await eventually(lambda late=late, key=key: late.view.keys() == first.view.keys() == {key})  # type: ignore[misc]
            check_revisions = [entry.revision for entry in late.entries if entry.key == key]
            assert len(check_revisions) == 1
        await eventually(lambda: has_consumers(bus, 1))


@pytest.mark.parametrize("is_attached", [True, False])
async def test_an_epoch_that_the_own_consumer_has_begun_does_not_begin_again_when_the_others_are_late(
    server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch, *, is_attached: bool
) -> None:
    """The watch that comes later is held before it joins, and then the consumer of the others is held."""
    await put(bus, "old.facts")
    follow, may_follow = BucketFeed._follow, asyncio.Event()
    may_follow.set()

    async def held_back(feed: BucketFeed) -> None:
        if feed is bus.bucket_feeds.get(NODES):
            await may_follow.wait()
        await follow(feed)

    monkeypatch.setattr(BucketFeed, "_follow", held_back)
    async with following(bus, NODES) as first:
        await first.caught_up()
        monkeypatch.setattr(Watch, "_join_if_level", lambda _: None)
        async with following(bus, NODES) as late:
            await eventually(lambda: late.view.keys() == {"old.facts"})
            may_follow.clear()
            await server.restart(wiped=True)
            await answered(lambda: bus.epoch(NODES))
            await put(bus, "new.facts")
            await eventually(lambda: late.view.keys() == {"new.facts"})
            assert first.view.keys() == {"old.facts"}  # so the others have not begun the epoch
            own = late.watch.status.feed
            assert own is not None
            if not is_attached:  # as between two consumers of its own
                own._applied, own._feed = own.applied, None
            assert (own.attached < inf) is is_attached
            monkeypatch.undo()
            may_follow.set()
            await eventually(lambda: first.view.keys() == {"new.facts"})
            await put(bus, "newest.facts")
            await eventually(lambda: late.view.keys() == first.view.keys() == {"new.facts", "newest.facts"})
            assert [entry.key for entry in late.entries] == ["old.facts", "new.facts", "newest.facts"]
            assert len(late.epochs) == 2
            assert late.watch.status.attached == first.watch.status.attached < inf
            await eventually(lambda: has_consumers(bus, 1))


async def test_a_gap_is_closed_for_all_and_delivered_to_nobody_twice(bus: Bus) -> None:
    async with following(bus, NODES) as first, following(bus, NODES) as second:
        await first.caught_up()
        await second.caught_up()
        for number in range(3):
            bus.link._client._transport._io_writer.transport.abort()  # type: ignore[union-attr]
            await eventually(lambda: not bus.connected)
            await put(bus, f"n{number}.facts")
            await eventually(lambda number=number: len(first.entries) == len(second.entries) == number + 1)  # type: ignore[misc]
        check(first, second)
        assert len(first.epochs) == len(second.epochs) == 1


def test_the_kind_of_synced_of_a_bucket_is_one_for_all() -> None:
    """Else each watch would decode it again."""
    assert synced_of(NODES) is synced_of(NODES)


def running(follower: Follower) -> Any:
    return _Running(follower)


class _Running:
    """Runs the watch of a follower that exists already."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    async def __aenter__(self) -> Follower:
        self._task = asyncio.create_task(self._follower.watch.run())
        return self._follower

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def has_consumers(bus: Bus, count: int) -> bool:
    return await consumers(bus, NODES) == count


async def test_who_comes_while_the_first_consumer_is_created_gets_what_is_stored_under_its_keys(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(bus, "a.facts")
    await put(bus, "a.metrics")
    feed, opening, go = bus.feed, asyncio.Event(), asyncio.Event()

    async def slow(*of: Any, **options: Any) -> Any:
        opening.set()
        await go.wait()
        return await feed(*of, **options)

    monkeypatch.setattr(bus, "feed", slow)
    async with running(Follower(bus, NODES, keys="*.facts")):
        await opening.wait()
        samples = Follower(bus, NODES, keys="*.metrics")
        async with running(samples):
            await eventually(lambda: len(bus.bucket_feeds[NODES]._readers) == 2)
            go.set()
            await samples.caught_up()
            await put(bus, "b.metrics")
            await eventually(lambda: "b.metrics" in samples.view)
            assert samples.view.keys() == {"a.metrics", "b.metrics"}


async def test_of_what_waits_for_a_late_watch_the_newest_of_each_of_its_keys_is_kept(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a watch whose own consumer is refused would keep each sample of each node, without an end."""
    await put(bus, "a.facts")
    first = Follower(bus, NODES)
    async with running(first):
        await first.caught_up()
        opening, go, feed = asyncio.Event(), asyncio.Event(), bus.feed

        async def slow(*of: Any, **options: Any) -> Any:
            opening.set()
            await go.wait()
            return await feed(*of, **options)

        monkeypatch.setattr(bus, "feed", slow)
        late = Follower(bus, NODES, keys="*.facts")
        async with running(late):
            await opening.wait()
            for number in range(5):
                await put(bus, "a.facts", b"%d" % number)
                await put(bus, "a.metrics", b"%d" % number)
            await eventually(lambda: first.view.get("a.metrics") == b"4")
            held = late.watch._reader.held
            assert held is not None
            assert {key: raw.value for key, raw in held.items()} == {"a.facts": b"4"}
            go.set()
            await late.caught_up()
            await eventually(lambda: late.view == {"a.facts": b"4"})
        assert late.watch._reader.held is None
