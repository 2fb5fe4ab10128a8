"""Old revisions and tombstones are purged; the last revision of each key stays, also for a running watch."""

import asyncio
import time

import pytest

from bus.buckets import PODS, VERDICTS
from bus.connection import Bus
from bus.errors import ConflictError
from bus.history import purge_history, purge_tombstone
from tests.integration.bus.followers import following
from tests.integration.servers import eventually

now = time.monotonic
pytestmark = pytest.mark.usefixtures("long_limits")


async def test_a_purge_keeps_the_last_revision_of_every_key(bus: Bus) -> None:
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
        await bus.put(VERDICTS, "once", b"again", revision=last["once"], read_at=now())
        await eventually(lambda: follower.view.get("once") == b"again")
        assert set(follower.view) == set(counts)
        state = (await bus.api(f"STREAM.INFO.{VERDICTS.stream}"))["state"]
        assert state["messages"] == len(last) + 1


async def test_a_purge_before_revisions_keeps_them_and_all_later_ones(bus: Bus) -> None:
    revisions: dict[str, list[int]] = {"some": [0], "none": [0], "all": [0]}
    for number in range(4):
        for key, written in revisions.items():
            written.append(await bus.put(VERDICTS, key, b"%d" % number, revision=written[-1], read_at=now()))
    before = {"some": revisions["some"][3], "all": revisions["all"][-1], "missing": revisions["all"][-1]}
    assert await purge_history(bus, VERDICTS, before=before) == 2 + 3
    answer = await bus.api(f"STREAM.INFO.{VERDICTS.stream}", {"subjects_filter": VERDICTS.subject(">")})
    assert {VERDICTS.key(each): count for each, count in answer["state"]["subjects"].items()} == {
        "some": 2,
        "none": 4,
        "all": 1,
    }


async def test_after_its_tombstone_is_purged_a_key_is_written_like_a_new_key(bus: Bus) -> None:
    async with following(bus, PODS) as follower:
        tombstone = await bus.delete(
            PODS, "gone", revision=await bus.put(PODS, "gone", b"1", revision=0, read_at=now()), read_at=now()
        )
        await purge_tombstone(bus, PODS, "gone", revision=tombstone)
        await purge_tombstone(bus, PODS, "gone", revision=tombstone)
        assert await bus.get(PODS, "gone") is None
        assert (await bus.api(f"STREAM.INFO.{PODS.stream}"))["state"]["messages"] == 0
        with pytest.raises(ConflictError):
            await bus.put(PODS, "gone", b"2", revision=tombstone, read_at=now())
        await bus.put(PODS, "gone", b"2", revision=0, read_at=now())
        await eventually(lambda: follower.view == {"gone": b"2"})
    async with following(bus, PODS) as later:
        await later.caught_up()
        assert later.view == {"gone": b"2"}


async def test_a_key_that_was_written_after_its_deletion_is_not_purged(bus: Bus) -> None:
    tombstone = await bus.delete(
        PODS, "back", revision=await bus.put(PODS, "back", b"1", revision=0, read_at=now()), read_at=now()
    )
    revision = await bus.put(PODS, "back", b"2", revision=tombstone, read_at=now())
    await purge_tombstone(bus, PODS, "back", revision=tombstone)
    entry = await bus.get(PODS, "back")
    assert entry is not None
    assert (entry.revision, entry.value) == (revision, b"2")
