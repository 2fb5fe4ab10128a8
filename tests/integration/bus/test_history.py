"""What a bucket's keys were is forgotten; what they are stays, also for who follows it meanwhile."""

import asyncio
import time

import pytest

from bus.buckets import PODS, VERDICTS
from bus.connection import Bus
from bus.errors import ConflictError
from bus.history import purge_history, purge_tombstone
from tests.integration.bus.followers import following

now = time.monotonic


async def test_the_last_revision_of_every_key_stays(bus: Bus) -> None:
    async def write(key: str, count: int) -> int:
        revision = 0
        for number in range(count):
            revision = await bus.put(VERDICTS, key, b"%d" % number, revision=revision, read_at=now())
        return revision

    counts = {"once": 1, "twice": 2, **{f"node-{number}": 30 for number in range(40)}}
    async with following(bus, VERDICTS) as follower:
        last = dict(zip(counts, await asyncio.gather(*(write(*each) for each in counts.items())), strict=True))
        last["gone"] = await bus.delete(VERDICTS, "gone", revision=await write("gone", 5), read_at=now())
        assert await purge_history(bus, VERDICTS) == 1 + 40 * 29 + 5
        assert await purge_history(bus, VERDICTS) == 0
        for key, revision in last.items():
            entry = await bus.get(VERDICTS, key)
            assert entry is not None
            assert (entry.revision, entry.value is None) == (revision, key == "gone")
        changed = await bus.put(VERDICTS, "once", b"again", revision=last["once"], read_at=now())
        await follower.caught_up()
        assert changed > max(last.values())
        state = (await bus.api(f"STREAM.INFO.{VERDICTS.stream}"))["state"]
        assert state["messages"] == len(last) + 1


async def test_of_a_deleted_key_nothing_is_left_and_the_next_write_is_its_first(bus: Bus) -> None:
    async with following(bus, PODS) as follower:
        marker = await bus.delete(
            PODS, "gone", revision=await bus.put(PODS, "gone", b"1", revision=0, read_at=now()), read_at=now()
        )
        await purge_tombstone(bus, PODS, "gone", revision=marker)
        await purge_tombstone(bus, PODS, "gone", revision=marker)
        assert await bus.get(PODS, "gone") is None
        assert (await bus.api(f"STREAM.INFO.{PODS.stream}"))["state"]["messages"] == 0
        with pytest.raises(ConflictError):
            await bus.put(PODS, "gone", b"2", revision=marker, read_at=now())
        await bus.put(PODS, "gone", b"2", revision=0, read_at=now())
        await follower.caught_up()
    async with following(bus, PODS) as later:
        await later.caught_up()


async def test_a_key_that_was_written_since_its_deletion_stays(bus: Bus) -> None:
    marker = await bus.delete(
        PODS, "back", revision=await bus.put(PODS, "back", b"1", revision=0, read_at=now()), read_at=now()
    )
    revision = await bus.put(PODS, "back", b"2", revision=marker, read_at=now())
    await purge_tombstone(bus, PODS, "back", revision=marker)
    entry = await bus.get(PODS, "back")
    assert entry is not None
    assert (entry.revision, entry.value) == (revision, b"2")
