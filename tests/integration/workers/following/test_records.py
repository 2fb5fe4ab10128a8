"""Records of a bucket that are followed and written."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest

from bus.buckets import NODES, Bucket
from bus.connection import Bus, RawEntry
from bus.errors import ConflictError
from bus.kinds import NODE_FACTS
from bus.record_kind import Packed
from bus.records.codec import encode
from bus.records.nodes import NodeFacts
from tests.integration.bus.limits import long_limits
from tests.integration.servers import answered, eventually
from tests.integration.workers.running import put
from workers.following.records import Records, Stored, Write

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

FACTS = NodeFacts(uid="u", labels={})


async def test_a_write_before_a_wipe_does_not_count_as_stored_after_it(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would never be written again: its revision is higher than those of the new epoch."""
    records, put = Records(bus, NODE_FACTS), Bus.put

    async def answered_after_a_wipe(self: Bus, bucket: Bucket, key: str, value: bytes, **more: Any) -> int:
        revision = await put(self, bucket, key, value, **more)
        before = records.epoch
        await answered(lambda: self.api(f"STREAM.DELETE.{NODES.stream}"))
        await eventually(lambda: records.epoch is not before)
        return revision

    monkeypatch.setattr(Bus, "put", answered_after_a_wipe)
    following = asyncio.create_task(records.run())
    try:
        await eventually(lambda: records.caught_up)
        assert await records.write({"node-1": Write(record=FACTS, revision=0, read_at=time.monotonic())}) == {}
        assert records.get("node-1").revision == 0
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def test_a_read_that_is_answered_late_replaces_no_later_revision(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = await put(bus, NODES, NODE_FACTS.key("node-1"), encode(FACTS))
    records, get = Records(bus, NODE_FACTS), Bus.get
    later = Stored(revision + 1, NodeFacts(uid="later", labels={}), present=True)

    async def answered_late(self: Bus, bucket: Bucket, key: str) -> RawEntry | None:
        entry = await get(self, bucket, key)
        records.stored["node-1"] = later  # as by the watch
        return entry

    monkeypatch.setattr(Bus, "get", answered_late)
    assert (await answered(lambda: records.read("node-1"))).record == FACTS
    assert records.get("node-1") is later


async def test_an_own_write_is_kept_in_the_bytes_that_other_readers_keep(bus: Bus) -> None:
    """Else a process that writes verdicts and reads them elsewhere, as `run all`, has each one twice."""
    records = Records(bus, NODE_FACTS, packed=True)
    await answered(lambda: records.write_one("node-1", Write(record=FACTS, revision=0, read_at=time.monotonic())))
    before = records.get("node-1")
    entry = await answered(lambda: NODE_FACTS.get(bus, "node-1"))
    records._apply(entry)  # as the watch does, here after the answer of the write
    stored = records.get("node-1")
    assert isinstance(stored.content, Packed)
    assert stored.content.value is entry.packed().value
    assert (stored.revision, stored.record, stored.known_since) == (entry.revision, FACTS, before.known_since)


@pytest.mark.parametrize("others", [False, True], ids=["alone", "then_another_writer"])
async def test_an_own_write_that_comes_back_before_its_answer_is_no_change(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, *, others: bool
) -> None:
    """Else each write would be computed twice: mostly the watch is faster than the answer."""
    changed: list[str] = []
    records, put_on = Records(bus, NODE_FACTS, on_entry=changed.append), Bus.put
    other = NodeFacts(uid="other", labels={})

    async def answered_late(self: Bus, bucket: Bucket, key: str, value: bytes, **more: Any) -> int:
        revision = await put_on(self, bucket, key, value, **more)
        await eventually(lambda: records.get("node-1").revision == revision)
        if others:
            after = await put_on(self, bucket, key, encode(other), revision=revision, read_at=time.monotonic())
            await eventually(lambda: records.get("node-1").revision == after)
        return revision

    following = asyncio.create_task(records.run())
    try:
        await eventually(lambda: records.caught_up)
        with monkeypatch.context() as late:
            late.setattr(Bus, "put", answered_late)
            write = Write(record=FACTS, revision=0, read_at=time.monotonic())
            assert await records.write({"node-1": write}) == {}
        assert changed == (["node-1"] if others else [])
        assert records.get("node-1").record == (other if others else FACTS)
        await put(bus, NODES, NODE_FACTS.key("node-1"), encode(NodeFacts(uid="later", labels={})))
        await eventually(lambda: len(changed) == 1 + others)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def test_a_change_that_comes_during_a_failed_write_is_reported(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[str] = []
    records, put_on = Records(bus, NODE_FACTS, on_entry=changed.append), Bus.put

    async def another_is_faster(self: Bus, bucket: Bucket, key: str, value: bytes, **more: Any) -> int:
        revision = await put_on(self, bucket, key, encode(FACTS), revision=0, read_at=time.monotonic())
        await eventually(lambda: records.get("node-1").revision == revision)
        return await put_on(self, bucket, key, value, **more)

    following = asyncio.create_task(records.run())
    try:
        await eventually(lambda: records.caught_up)
        monkeypatch.setattr(Bus, "put", another_is_faster)
        write = Write(record=NodeFacts(uid="ours", labels={}), revision=0, read_at=time.monotonic())
        assert isinstance((await records.write({"node-1": write}))["node-1"], ConflictError)
        assert changed == ["node-1"]
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
