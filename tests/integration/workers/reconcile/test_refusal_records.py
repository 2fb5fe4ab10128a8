"""The records of labels that the API server refuses, on a real nats-server: who writes them, when, and how often."""

import asyncio
import base64
from contextlib import suppress
from functools import partial

import pytest

from bus.buckets import REFUSALS
from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import REFUSED_LABELS
from bus.records.refusals import decode_refused_labels, encode_refused_labels
from tas.enforcing.memory import DeclinedChange
from tas.enforcing.refusals import Refusals
from tas.policy.policy import LABEL_PREFIX
from tas.verdict.refused import RefusedLabel
from tests.integration.servers import answered, eventually
from tests.integration.workers.running import entry_on, epoch_on, put
from workers.reconcile.refusal_records import CHECK_ALL_SECONDS, WRITE_SECONDS, RefusalRecords

WHY = {"p": DeclinedChange("violating", "why")}
OF_ANOTHER = RefusedLabel(label="p", value="violating", reason="of another replica", count=1, nodes=("z",))


async def stored(bus: Bus, name: str = "p") -> tuple[RefusedLabel, ...] | None:
    entry = await entry_on(bus, REFUSALS, name)
    return None if entry is None or entry.value is None else decode_refused_labels(entry.value)


async def writes(bus: Bus) -> int:
    """The last sequence of the bucket: it differs by the number of writes."""
    return (await epoch_on(bus, REFUSALS)).last_sequence


class Replica:
    """A replica that checks when a test says so; `checked` is whether it has handled every node."""

    def __init__(self, bus: Bus, *, checked: bool = True) -> None:
        self.refusals = Refusals()
        self.refusals.begin([] if checked else ["unchecked"])
        self._records = RefusalRecords(bus, self.refusals, REFUSED_LABELS, is_active=lambda: True)
        self._now = 0.0

    async def check(self, *, after: float = WRITE_SECONDS) -> None:
        self._now += after
        await answered(self._check)

    async def _check(self) -> None:
        try:
            await self._records._check(self._now)
        except BusError:
            self._records.check_all()  # as `run` does
            raise


async def test_5000_nodes_are_one_write_for_each_interval_and_a_retry_is_none(bus: Bus) -> None:
    replica, before = Replica(bus), await writes(bus)
    for number in range(5000):
        replica.refusals.set(f"n{number}", WHY)
        if number % 1000 == 0:
            await replica.check(after=WRITE_SECONDS / 5)  # all within one interval
    assert await writes(bus) == before + 1
    await replica.check()
    assert await writes(bus) == before + 2
    for _ in range(10):
        for number in range(5000):
            replica.refusals.set(f"n{number}", dict(WHY))
        await replica.check()
    assert await writes(bus) == before + 2
    found = await stored(bus)
    assert found is not None
    assert found[0].count == 5000
    assert len(encode_refused_labels(found)) < 150


async def test_a_record_is_deleted_when_no_node_has_refusals(bus: Bus) -> None:
    replica = Replica(bus)
    for node in ("a", "b"):
        replica.refusals.set(node, WHY)
    replica.refusals.set("a", WHY | {"q": DeclinedChange(None, "no")})
    await replica.check()
    replica.refusals.set("a", {})
    await replica.check()
    assert await stored(bus, "q") is None
    found = await stored(bus)
    assert found is not None
    assert (found[0].count, found[0].nodes) == (1, ("b",))
    replica.refusals.set("b", {})
    await replica.check()
    assert await stored(bus) is None


@pytest.mark.parametrize("value", [encode_refused_labels((OF_ANOTHER,)), b"?"], ids=["readable", "unreadable"])
async def test_a_record_of_an_earlier_replica_is_deleted_only_after_every_node_is_handled(
    bus: Bus, value: bytes
) -> None:
    await put(bus, REFUSALS, "p", value)
    replica = Replica(bus, checked=False)
    for _ in range(2):
        await replica.check(after=CHECK_ALL_SECONDS)
        entry = await entry_on(bus, REFUSALS, "p")
        assert entry is not None
        assert entry.value == value
    replica.refusals.checked("unchecked")
    await replica.check(after=CHECK_ALL_SECONDS)
    assert await stored(bus) is None


async def test_until_every_node_is_handled_a_record_of_an_earlier_replica_only_grows(bus: Bus) -> None:
    await put(bus, REFUSALS, "p", encode_refused_labels((OF_ANOTHER,)))
    replica, before = Replica(bus, checked=False), await writes(bus)
    replica.refusals.set("a", WHY)
    await replica.check()
    assert await writes(bus) == before
    replica.refusals.set("b", WHY)
    await replica.check()
    found = await stored(bus)
    assert found is not None
    assert found[0].nodes == ("a", "b")


async def test_a_record_that_the_bus_refuses_holds_up_no_other(bus: Bus) -> None:
    replica = Replica(bus)
    replica.refusals.set("a", {f"{LABEL_PREFIX}odd": DeclinedChange("violating", "why")} | WHY)
    assert min(replica.refusals.names) == "", "no key of a bucket"

    async def is_written() -> bool:
        with suppress(BusError):
            await replica._check()
        return await stored(bus) is not None

    await eventually(is_written)


async def test_a_record_that_is_lost_or_changed_by_others_is_written_again(bus: Bus) -> None:
    replica = Replica(bus)
    replica.refusals.set("a", WHY)
    await replica.check()
    written = await stored(bus)
    for other in (None, encode_refused_labels((OF_ANOTHER,)), b"?"):
        await put(bus, REFUSALS, "p", other)
        await replica.check(after=CHECK_ALL_SECONDS)
        assert await stored(bus) == written
    await answered(lambda: bus.api(f"STREAM.PURGE.{REFUSALS.stream}"))
    await replica.check(after=CHECK_ALL_SECONDS)
    assert await stored(bus) == written


async def test_a_record_expires_unless_it_is_renewed(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(bus)
    replica.refusals.set("a", WHY)
    await replica.check()
    message = await answered(lambda: bus.api("STREAM.MSG.GET.KV_REFUSALS", {"last_by_subj": "$KV.REFUSALS.p"}))
    assert b"Nats-TTL: 1800" in base64.b64decode(message["message"]["hdrs"])
    before = await writes(bus)
    await replica.check(after=CHECK_ALL_SECONDS)
    assert await writes(bus) == before
    monkeypatch.setattr("workers.reconcile.refusal_records.RENEW_SECONDS", 0.0)
    await replica.check(after=CHECK_ALL_SECONDS)
    assert await writes(bus) == before + 1


async def test_of_two_replicas_the_lease_holder_writes_and_the_next_one_continues(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.reconcile.refusal_records.CHECK_SECONDS", 0.02)
    holder = "a"

    def holds_lease(replica: str) -> bool:
        return replica == holder

    async def is_stored(node: str) -> bool:
        found = await stored(bus)
        return found is not None and found[0].nodes == (node,)

    before = await writes(bus)
    tasks: list[asyncio.Task[None]] = []
    for replica in ("a", "b"):
        refusals = Refusals()
        refusals.begin([replica])
        refusals.set(replica, WHY)
        is_active = partial(holds_lease, replica)
        records = RefusalRecords(bus, refusals, REFUSED_LABELS, is_active=is_active)
        tasks.append(asyncio.create_task(records.run()))
    await eventually(partial(is_stored, "a"))
    holder = "b"
    await eventually(partial(is_stored, "b"))
    assert await writes(bus) == before + 2
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
