"""Leases: one holder at a time, whatever happens to the holder or to the server."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from typing import cast

import pytest

from bus.buckets import LEASES, NANOSECONDS, Bucket
from bus.connection import Bus, RawEntry
from bus.errors import ConflictError, RefusedError, UnavailableError
from bus.lease import Lease
from tests.integration.proxy import Proxy
from tests.integration.servers import Server, answered, eventually

pytestmark = pytest.mark.usefixtures("long_limits")

LONG_TTL = 60
"""A lease is not lost on a busy machine; a standby checks it each second nevertheless."""


class LossyBus(Bus):
    """A bus that loses the answers to the calls named in `losing`, in this order."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        super().__init__(*arguments, **keywords)  # type: ignore[arg-type]
        self.losing: list[str] = []

    async def get(self, bucket: Bucket, key: str) -> RawEntry | None:
        entry = await super().get(bucket, key)
        self._lose("get")
        return entry

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, revision: int, read_at: float, ttl_seconds: int = 0
    ) -> int:
        written = await super().put(bucket, key, value, revision=revision, read_at=read_at, ttl_seconds=ttl_seconds)
        self._lose("put")
        return written

    def _lose(self, call: str) -> None:
        if self.losing[:1] == [call]:
            del self.losing[0]
            raise UnavailableError(f"the answer to a {call} was lost")


class FullBus(Bus):
    """A bus that takes no write while it is full."""

    is_full = True

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, revision: int, read_at: float, ttl_seconds: int = 0
    ) -> int:
        if self.is_full:
            raise UnavailableError("no answer within 2 s")
        return await super().put(bucket, key, value, revision=revision, read_at=read_at, ttl_seconds=ttl_seconds)


@pytest.fixture
async def lossy(server: Server) -> AsyncIterator[LossyBus]:
    async with LossyBus.connect(server.url, name="lossy") as lossy:
        assert isinstance(lossy, LossyBus)
        await lossy.wait_connected()
        yield lossy


@pytest.fixture
def quick_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder renews its lease after a twentieth of the TTL."""
    monkeypatch.setattr("bus.lease.RENEWALS_PER_TTL", 20)


async def test_a_standby_waits_until_the_holder_releases_the_lease(bus: Bus) -> None:
    first, second = (Lease(bus, "cpu", name, ttl_seconds=LONG_TTL) for name in ("first", "second"))
    order: list[str] = []

    async def wait() -> None:
        async with second.hold():
            order.append("second")
            assert (first.held, second.held) == (False, True)

    async with first.hold():
        assert (first.held, second.held) == (True, False)
        waiting = asyncio.create_task(wait())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 1.5)
        order.append("first")
    await asyncio.wait_for(waiting, LONG_TTL / 2)
    assert order == ["first", "second"]
    assert (first.held, second.held) == (False, False)


async def test_two_processes_with_the_same_name_do_not_share_a_lease(bus: Bus) -> None:
    """Two containers on one host can have the same host name and the same process id."""
    first, second = (Lease(bus, "cpu", "host-1", ttl_seconds=LONG_TTL) for _ in range(2))
    async with first.hold():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5), second.hold():
                pass
        assert first.held


async def test_a_released_lease_with_a_long_ttl_is_acquired_soon(bus: Bus) -> None:
    first, second = Lease(bus, "cpu", "first", ttl_seconds=600), Lease(bus, "cpu", "second", ttl_seconds=600)
    async with first.hold():
        waiting = asyncio.create_task(second._acquire())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.5)
    await asyncio.wait_for(waiting, 120)  # a quarter of its TTL is longer


async def test_a_lease_is_renewed_beyond_its_ttl(bus: Bus, quick_renewal: None) -> None:
    loop = asyncio.get_running_loop()

    async def outlives_its_ttl() -> bool:
        lease = Lease(bus, "cpu", "first", ttl_seconds=4)
        try:
            async with lease.hold():
                ends = loop.time() + 4
                await eventually(lambda: loop.time() > ends, every=0.1)
                return lease.held
        except UnavailableError:  # this process, or the server, was stopped for longer than the lease
            return False

    await eventually(outlives_its_ttl)


async def test_a_lease_is_renewed_three_times_in_its_ttl_and_six_times_while_that_fails(
    lossy: LossyBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two in a row fail: with an answer lost, a renewal is written and then read."""
    waits: list[float] = []

    async def noting(seconds: float) -> None:
        waits.append(round(LONG_TTL / seconds))
        lossy.losing = ["put"] if len(waits) in (3, 4) else []
        await asyncio.sleep(0.001 if len(waits) < 8 else LONG_TTL)

    monkeypatch.setattr("bus.lease.tick", noting)
    async with Lease(lossy, "cpu", "first", ttl_seconds=LONG_TTL).hold():
        await eventually(lambda: len(waits) == 8)
    assert waits == [3, 3, 3, 6, 6, 3, 3, 3]


async def test_leases_of_other_keys_are_free(bus: Bus) -> None:
    async with Lease(bus, "cpu", "first").hold(), Lease(bus, "memory", "second").hold():
        pass


async def test_after_a_crash_of_the_holder_a_standby_acquires_the_lease_facts_n11(server: Server, bus: Bus) -> None:
    async with Bus.connect(server.url, name="crashing") as crashing:
        await crashing.wait_connected()
        holder = Lease(crashing, "cpu", "crashing", ttl_seconds=1)
        await holder._acquire()  # and never renewed nor released
    async with asyncio.timeout(120), Lease(bus, "cpu", "standby", ttl_seconds=LONG_TTL).hold():
        assert not holder.held


async def test_a_holder_that_cannot_renew_is_cancelled_when_its_lease_ends(server: Server, bus: Bus) -> None:
    lease = Lease(bus, "cpu", "first", ttl_seconds=3)
    loop = asyncio.get_running_loop()
    cancelled_at = 0.0

    async def hold() -> None:
        nonlocal cancelled_at
        async with lease.hold():
            try:
                await asyncio.sleep(600)
            finally:
                cancelled_at = loop.time()

    task = asyncio.create_task(hold())
    await eventually(lambda: lease.held)
    ends = lease._until
    await server.stop()
    with pytest.raises(UnavailableError, match="lost"):
        await asyncio.wait_for(task, 120)
    assert ends <= cancelled_at < ends + 30
    assert not lease.held


async def test_a_lease_ends_a_tenth_before_its_ttl_for_a_clock_that_is_slower(bus: Bus) -> None:
    lease = Lease(bus, "cpu", "first", ttl_seconds=LONG_TTL)
    await lease._acquire()
    assert lease._until <= asyncio.get_running_loop().time() + 0.9 * LONG_TTL


async def test_a_holder_whose_key_was_overwritten_is_cancelled_at_the_next_renewal(
    bus: Bus, quick_renewal: None
) -> None:
    async def overwritten() -> bool:
        entry = await bus.get(LEASES, "cpu")
        assert entry is not None
        try:
            await bus.put(LEASES, "cpu", b"{}", revision=entry.revision, read_at=time.monotonic())
        except ConflictError:  # a renewal came first
            return False
        return True

    async def hold() -> None:
        async with Lease(bus, "cpu", "first", ttl_seconds=LONG_TTL).hold():
            await eventually(overwritten)
            await asyncio.sleep(600)

    with pytest.raises(UnavailableError, match="lost"):
        await asyncio.wait_for(hold(), LONG_TTL / 2)
    entry = await bus.get(LEASES, "cpu")
    assert entry is not None
    assert entry.value == b"{}"  # the holder does not delete it


async def test_a_conflict_of_a_renewal_that_comes_when_the_lease_has_ended_is_no_error(bus: Bus) -> None:
    """The answer of the server is late."""
    lease, renewed = Lease(bus, "cpu", "first", ttl_seconds=1), asyncio.Event()

    async def renew() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:  # the answer has come at this moment
            renewed.set()
            raise ConflictError("another process has it") from None

    lease._renew_once = renew  # type: ignore[method-assign]
    unhandled: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    with pytest.raises(UnavailableError, match="lost"):
        async with lease.hold():
            await asyncio.sleep(600)
    assert renewed.is_set()
    gc.collect()
    assert unhandled == []


async def test_a_write_of_the_holder_whose_answer_was_lost_keeps_the_lease(bus: Bus, quick_renewal: None) -> None:
    lease = Lease(bus, "cpu", "first", ttl_seconds=LONG_TTL)
    async with lease.hold():
        known = lease._revision
        await answered(lease._write)  # in conflict with a renewal it is repeated
        written = lease._revision
        lease._revision = known  # as if the answer had been lost
        await eventually(lambda: lease._revision > written)
        assert lease.held


async def test_a_lease_ends_for_its_holder_before_the_server_deletes_it_though_the_answer_was_late(
    server: Server, bus: Bus
) -> None:
    async def expired() -> bool:
        entry = await bus.get(LEASES, "cpu")
        return entry is None or entry.value is None

    async with Proxy.before(server.url) as proxy, Bus.connect(proxy.url, name="far") as far:
        await far.wait_connected()
        lease = Lease(far, "cpu", "far", ttl_seconds=2)
        proxy.delay = 1.0
        await lease._acquire()  # and never renewed
        await eventually(expired)
        assert not lease.held


async def test_a_lost_answer_to_the_acquisition_does_not_delay_the_holder_by_the_ttl(lossy: LossyBus) -> None:
    lossy.losing = ["put"]
    async with asyncio.timeout(LONG_TTL / 2), Lease(lossy, "cpu", "first", ttl_seconds=LONG_TTL).hold():
        assert lossy.losing == []


async def test_a_lost_answer_to_a_renewal_keeps_the_lease(lossy: LossyBus, bus: Bus, quick_renewal: None) -> None:
    revisions: set[int] = set()

    async def renewed_twice() -> bool:
        entry = await bus.get(LEASES, "cpu")
        assert entry is not None
        revisions.add(entry.revision)
        return len(revisions) > 2

    lease = Lease(lossy, "cpu", "first", ttl_seconds=20)
    async with lease.hold():
        lossy.losing = ["put"]
        await eventually(renewed_twice)  # the second time without the revision of the first
        await eventually(lambda: lossy.losing == [])
        assert lease.held


async def test_a_lease_with_an_invalid_record_is_acquired_after_its_ttl(bus: Bus) -> None:
    lease = Lease(bus, "cpu", "first", ttl_seconds=LONG_TTL)
    await bus.put(
        LEASES, "cpu", b'{"holder": "\xff", "token": ""}', revision=0, read_at=time.monotonic(), ttl_seconds=1
    )
    async with asyncio.timeout(120), lease.hold():
        assert lease.held


async def test_a_lease_that_does_not_expire_is_acquired_once_nobody_renews_it(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a TTL, as what a server writes to a reply subject: no worker of this lease would ever work again."""
    abandoned = 0.5
    monkeypatch.setattr("bus.lease.ABANDONED_TTLS", abandoned / LONG_TTL)
    monkeypatch.setattr("bus.lease.CHECKS_PER_TTL", 20 * LONG_TTL)
    get, revision = Bus.get, 0
    renewed: list[float] = []

    async def get_what_is_just_renewed(self: Bus, bucket: Bucket, key: str) -> RawEntry | None:
        """Before each check of the standby, however late it is; for longer than until an abandoned lease is free."""
        nonlocal revision
        if not renewed or renewed[-1] - renewed[0] < 2 * abandoned:
            revision = await self.put(LEASES, key, b"{}", revision=revision, read_at=time.monotonic())
            renewed.append(time.monotonic())
        return await get(self, bucket, key)

    monkeypatch.setattr(Bus, "get", get_what_is_just_renewed)
    async with asyncio.timeout(120), Lease(bus, "cpu", ttl_seconds=LONG_TTL).hold():
        assert time.monotonic() - renewed[-1] > abandoned


async def test_a_timeout_or_cancellation_of_the_body_is_not_changed(bus: Bus) -> None:
    with pytest.raises(TimeoutError):
        async with Lease(bus, "cpu", "first").hold():
            raise TimeoutError
    with pytest.raises(asyncio.CancelledError):
        async with Lease(bus, "cpu", "first").hold():
            raise asyncio.CancelledError


async def test_a_lease_that_the_bus_refuses_is_a_problem_of_the_connection_until_it_is_acquired(bus: Bus) -> None:
    """Else a process that will never work seems to be on standby."""
    config = (await bus.api(f"STREAM.INFO.{LEASES.stream}"))["config"]
    await bus.api(f"STREAM.UPDATE.{LEASES.stream}", config | {"max_msg_size": 1})

    async def hold() -> None:
        async with Lease(bus, "cpu", ttl_seconds=LONG_TTL).hold():
            await asyncio.Event().wait()

    holding = asyncio.create_task(hold())
    try:
        await eventually(lambda: bus.refusing)
        assert str(bus.problem).startswith("lease cpu: ")
        assert not bus.unavailable
        await bus.api(f"STREAM.UPDATE.{LEASES.stream}", config)
        await eventually(lambda: not bus.refusing)
        assert bus.problem is None
    finally:
        holding.cancel()
        await asyncio.wait([holding])


@pytest.mark.usefixtures("quick_renewal")
async def test_what_fills_the_bucket_of_leases_is_gone_after_its_age_and_who_renews_stays(bus: Bus) -> None:
    """Any user can let a server write acknowledgements there, which have no TTL: then no free lease could be had."""
    config = (await bus.api(f"STREAM.INFO.{LEASES.stream}"))["config"]
    assert config["max_age"] == 60 * NANOSECONDS
    assert config["max_msg_size"] == 1024
    small = config | {"max_bytes": 20_000}
    await bus.api(f"STREAM.UPDATE.{LEASES.stream}", small | {"max_age": 3600 * NANOSECONDS})

    async def state() -> dict[str, int]:
        found: dict[str, int] = (await bus.api(f"STREAM.INFO.{LEASES.stream}"))["state"]
        return found

    async def full() -> bool:
        return (await state())["bytes"] > 20_000 - 200

    async def has_two() -> bool:
        return (await state())["messages"] == 2

    revisions: set[int] = set()

    async def renewed() -> bool:
        """The first renewal is some bytes longer than what it renews, and a full bucket takes only what is not."""
        entry = await bus.get(LEASES, "held")
        assert entry is not None
        revisions.add(entry.revision)
        return len(revisions) > 1

    held = Lease(bus, "held", ttl_seconds=20)  # renewed each second: a stop of a busy machine may last for seconds
    async with held.hold():
        await eventually(renewed)
        for number in range(300):
            await bus.link.send("tas.samples.a.b", b"{}", reply=LEASES.subject(f"invented{number}"))
        await eventually(full)
        with pytest.raises(RefusedError, match="maximum bytes exceeded"):
            await bus.put(LEASES, "free", b"x" * 500, revision=0, read_at=time.monotonic())
        await bus.api(f"STREAM.UPDATE.{LEASES.stream}", small | {"max_age": 6 * NANOSECONDS})
        async with asyncio.timeout(120), Lease(bus, "free", ttl_seconds=20).hold():
            assert held.held
            await eventually(has_two)


async def test_a_bus_that_takes_no_write_is_a_problem_of_the_connection_until_the_lease_is_acquired(
    server: Server,
) -> None:
    """As a server with a full disk does: it answers reads."""
    async with FullBus.connect(server.url, name="full") as connected:
        bus = cast("FullBus", connected)
        await bus.wait_connected()
        assert not bus.unavailable

        async def hold() -> None:
            async with Lease(bus, "k").hold():
                await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await eventually(lambda: bus.unavailable)
        assert str(bus.problem) == "lease k: no answer"
        bus.is_full = False
        await eventually(lambda: bus.problem is None and "k" in bus.leases)
        holding.cancel()
        await asyncio.wait([holding])


async def test_of_many_processes_never_two_hold_the_lease(bus: Bus) -> None:
    holding = 0
    most = 0

    async def work(name: str) -> None:
        nonlocal holding, most
        async with Lease(bus, "cpu", name, ttl_seconds=LONG_TTL).hold():
            holding += 1
            most = max(most, holding)
            await asyncio.sleep(0.01)
            holding -= 1

    await asyncio.wait_for(asyncio.gather(*(work(f"w{number}") for number in range(8))), 120)
    assert most == 1


async def test_a_lease_is_acquired_once_the_server_is_back(server: Server, bus: Bus) -> None:
    await server.stop()
    lease = Lease(bus, "cpu", "first", ttl_seconds=LONG_TTL)

    async def hold() -> None:
        async with lease.hold():
            assert lease.held

    holding = asyncio.create_task(hold())
    await eventually(lambda: not bus.connected)
    await server.start()
    await asyncio.wait_for(holding, 120)


async def test_only_the_last_known_holder_is_the_last_one(server: Server) -> None:
    async with Bus.connect(server.url, name="one") as bus:
        await bus.wait_connected()
        first, second = (Lease(bus, "last", name, ttl_seconds=LONG_TTL) for name in ("first", "second"))
        assert (first.was_last, second.was_last) == (False, False)
        async with first.hold():
            pass
        assert (first.was_last, second.was_last) == (True, False), "nobody else has had it"
        async with second.hold():
            async with asyncio.TaskGroup() as tasks:
                standby = tasks.create_task(first._acquire())
                await eventually(lambda: not first.was_last)
                standby.cancel()
            assert (first.was_last, second.was_last) == (False, True)
