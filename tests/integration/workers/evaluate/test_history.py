"""The history of verdicts is purged when it is large, and not before all that needs it has read it."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bus.buckets import VERDICT_LOG, VERDICTS, Bucket, Stream, configuration
from bus.connection import Bus
from bus.entry import Epoch
from bus.event_position import AnnouncedUpTo, compared_at, write_position
from bus.kinds import NODE_VERDICTS
from bus.stream_reader import FROM_START, StreamReader, origin
from bus.ticks import tick
from bus.verdict_log import copied_up_to, verdicts_at
from tas.verdict.verdict import NodeVerdict
from tests.integration.servers import answered, eventually
from tests.integration.workers.evaluate.closed import with_rights_of_before
from tests.integration.workers.running import epoch_on, put, running
from workers.evaluate import history
from workers.evaluate.history import MULTIPLE, VerdictHistory
from workers.following.records import Records

NODES = tuple(f"node-{number}" for number in range(5))
FREE_BYTES = 4096

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(history, "FREE_BYTES", FREE_BYTES)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Grows at each look at the history."""
    found: list[float] = []

    async def counted(seconds: float) -> None:
        found.append(seconds)
        await tick(seconds)

    monkeypatch.setattr(history, "tick", counted)
    return found


async def looked(looks: Sequence[float], times: int = 3) -> None:
    before = len(looks)
    await eventually(lambda: len(looks) > before + times)


@asynccontextmanager
async def purging(bus: Bus) -> AsyncIterator[None]:
    """What `evaluate` does with the history, while the body runs."""
    records: Records[str, NodeVerdict] = Records(bus, NODE_VERDICTS, packed=True)
    async with running(records), running(VerdictHistory(bus, records)):
        await eventually(lambda: records.caught_up)
        yield


async def write(bus: Bus, nodes: Collection[str] = NODES, *, rounds: int = 20) -> dict[str, int]:
    """Writes verdicts, and returns the last revision of each key."""
    last: dict[str, int] = {}
    for number in range(rounds):
        for node in nodes:
            verdict = NodeVerdict(node_uid=node, nodes_revision=number, policies_revision=0, policies={})
            last[node] = await put(bus, VERDICTS, node, NODE_VERDICTS.encode(verdict))
    return last


async def state_of(bus: Bus, of: Stream | Bucket) -> dict[str, Any]:
    answer = await answered(lambda: bus.api(f"STREAM.INFO.{of.stream}"))
    state: dict[str, Any] = answer["state"]
    return state


async def messages(bus: Bus) -> int:
    return int((await state_of(bus, VERDICTS))["messages"])


async def copied(bus: Bus) -> list[int]:
    """The revisions that VERDICT_LOG has."""
    async with aclosing(StreamReader(bus, VERDICT_LOG, FROM_START).stored()) as batches:
        return [origin(each) async for batch in batches for each in batch.messages]


async def all_copied(bus: Bus, first: int, last: int) -> None:
    async def is_copied() -> bool:
        return await answered(partial(copied_up_to, bus)) >= last

    await eventually(is_copied)
    assert await copied(bus) == list(range(first, last + 1))


async def purged(bus: Bus) -> None:
    async def has_little() -> bool:
        state = await state_of(bus, VERDICTS)
        last = state["bytes"] / state["messages"] * state["num_subjects"]
        return bool(state["bytes"] <= max(FREE_BYTES, MULTIPLE * last))

    await eventually(has_little)


async def test_the_history_stays_small_and_no_verdict_is_lost(bus: Bus) -> None:
    first = (await epoch_on(bus, VERDICTS)).last_sequence + 1
    most = 0
    async with purging(bus), purging(bus):  # two replicas
        for _ in range(10):
            last = await write(bus, rounds=10)
            await purged(bus)
            most = max(most, await messages(bus))
        assert most < 10 * len(NODES)
        entries = {entry.key: entry.revision for entry in await answered(partial(bus.entries, VERDICTS))}
        assert entries == last
    await all_copied(bus, first, max(last.values()))
    assert (await epoch_on(bus, VERDICTS)).last_sequence == first - 1 + 100 * len(NODES)


async def test_what_the_log_has_not_copied_yet_stays(bus: Bus, looks: list[float]) -> None:
    first = (await epoch_on(bus, VERDICTS)).last_sequence + 1
    config = configuration(VERDICT_LOG, first_sequence=0, replicas=1)
    config |= {"first_seq": (await bus.api(f"STREAM.INFO.{VERDICT_LOG.stream}"))["config"]["first_seq"]}
    await bus.api(f"STREAM.UPDATE.{VERDICT_LOG.stream}", config | {"sources": []})
    async with purging(bus):
        last = await write(bus)
        await looked(looks)
        assert await messages(bus) == 20 * len(NODES)
        await bus.api(f"STREAM.UPDATE.{VERDICT_LOG.stream}", config)
        await purged(bus)
    await all_copied(bus, first, max(last.values()))


@pytest.mark.parametrize("is_of_before", [False, True])
async def test_what_events_compares_stays(bus: Bus, looks: list[float], *, is_of_before: bool) -> None:
    created, log = [(await epoch_on(bus, of)).created for of in (VERDICTS, VERDICT_LOG)]
    await write(bus, NODES[:1], rounds=1)
    at = await write(bus)
    revision = max(at.values())
    epoch, comparing = (created, "") if is_of_before else ("", created)
    position = AnnouncedUpTo(epoch=epoch, comparing=comparing, log=log, sequence=1, revision=revision)
    stored = await write_position(bus, position, expected=0)
    assert await compared_at(bus, created) == revision
    await write(bus, NODES[1:])
    async with purging(bus):
        await looked(looks)

        async def is_purged() -> bool:  # of the node that has not changed since
            return await messages(bus) == 1 + 2 * 20 * len(NODES[1:])

        await eventually(is_purged)
        found = [each async for entries in verdicts_at(bus, revision, NODES[1:]) for each in entries]
        assert {each.key: each.revision for each in found} == {node: at[node] for node in NODES[1:]}
        done = AnnouncedUpTo(epoch=created, log=log, sequence=1, revision=revision, ends_metrics=True)
        await write_position(bus, done, expected=stored)
        await purged(bus)


async def test_a_server_that_has_lost_the_last_revisions_keeps_those_before(
    bus: Bus, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known is not stored any more: a purge of all before it would leave no revision of the key."""
    first = (await epoch_on(bus, VERDICTS)).last_sequence + 1
    stored = await write(bus)
    await all_copied(bus, first, max(stored.values()))
    epoch = Bus.epoch

    async def with_lost_end(self: Bus, of: Stream | Bucket) -> Epoch:
        return replace(await epoch(self, of), last_sequence=max(stored.values()) - 1)

    monkeypatch.setattr(Bus, "epoch", with_lost_end)
    async with purging(bus):
        await looked(looks)
        assert await messages(bus) == 20 * len(NODES)
        monkeypatch.setattr(Bus, "epoch", epoch)
        await purged(bus)


async def test_an_epoch_that_begins_during_a_look_is_not_purged_by_what_was_read_of_the_one_before(
    bus: Bus, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    async def of_the_one_before(bus: Bus) -> int:
        """The server creates the bucket again, and its watch follows, while the look waits for the log."""
        if not begun:
            begun.append(VERDICTS.stream)
            await bus.api(f"STREAM.DELETE.{VERDICTS.stream}")
            bus.check_streams()
            await eventually(lambda: len(known.stored) == 0 and known.caught_up)
            await write(bus)
            await eventually(lambda: len(known.stored) == len(NODES))
            return max(stored.revision for stored in known.stored.values())
        return 0

    known: Records[str, NodeVerdict] = Records(bus, NODE_VERDICTS, packed=True)
    await write(bus)
    async with running(known):
        await eventually(lambda: known.caught_up)
        monkeypatch.setattr(history, "copied_up_to", of_the_one_before)
        async with running(VerdictHistory(bus, known)):
            await eventually(lambda: bool(begun))
            await looked(looks)
            assert await messages(bus) == 20 * len(NODES)


async def test_while_no_verdict_changes_nothing_is_asked(
    bus: Bus, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Stream | Bucket] = []
    epoch = Bus.epoch

    async def counted(self: Bus, of: Stream | Bucket) -> Epoch:
        asked.append(of)
        return await epoch(self, of)

    async with purging(bus):
        await write(bus)
        await purged(bus)
        await looked(looks)
        monkeypatch.setattr(Bus, "epoch", counted)
        await looked(looks)
        assert asked == []
        await write(bus, NODES[:1], rounds=1)
        await eventually(lambda: bool(asked))


async def test_without_the_rights_nothing_is_purged_before_the_bucket_is_full(
    tmp_path: Path, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a closed bus that an earlier version set up."""
    monkeypatch.setattr(history, "FORBIDDEN_SECONDS", 0.02)
    lacking = ("VERDICT_LOG", "EVENTS", "ANNOUNCED")
    async with with_rights_of_before(tmp_path, *lacking) as (everything, own):
        with capture_logs() as logs:
            async with purging(own):
                await write(everything)
                await looked(looks, 10)
        assert await messages(everything) == 20 * len(NODES)
        assert own.problem is None
        (said,) = [line for line in logs if line["event"] == "verdict_history_kept"]
        assert said["log_level"] == "info"
