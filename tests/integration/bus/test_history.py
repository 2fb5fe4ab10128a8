"""What a bucket's keys were is forgotten; what they are stays, also for who follows it meanwhile."""

import asyncio
import time

from bus.buckets import VERDICTS
from bus.connection import Bus
from bus.history import forget_history
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
        assert await forget_history(bus, VERDICTS) == 1 + 40 * 29 + 5
        assert await forget_history(bus, VERDICTS) == 0
        for key, revision in last.items():
            entry = await bus.get(VERDICTS, key)
            assert entry is not None
            assert (entry.revision, entry.value is None) == (revision, key == "gone")
        changed = await bus.put(VERDICTS, "once", b"again", revision=last["once"], read_at=now())
        await follower.caught_up()
        assert changed > max(last.values())
        state = (await bus.api(f"STREAM.INFO.{VERDICTS.stream}"))["state"]
        assert state["messages"] == len(last) + 1
