"""Leases: one holder at a time, whatever happens to it or to the server."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from bus.buckets import LEASES, Bucket
from bus.connection import Bus, RawEntry
from bus.errors import UnavailableError
from bus.lease import RENEWALS_PER_TTL, Lease
from tests.integration.proxy import Proxy
from tests.integration.servers import Server, eventually


class LossyBus(Bus):
    """A bus that loses what the server answered to the next calls of some kind."""

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


@pytest.fixture
async def lossy(server: Server) -> AsyncIterator[LossyBus]:
    async with LossyBus.connect(server.url, name="lossy") as lossy:
        assert isinstance(lossy, LossyBus)
        await lossy.wait_connected()
        yield lossy


async def test_one_holds_and_the_other_waits_until_it_is_given_up(bus: Bus) -> None:
    first, second = Lease(bus, "cpu", "first"), Lease(bus, "cpu", "second")
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
    await asyncio.wait_for(waiting, 30)
    assert order == ["first", "second"]
    assert (first.held, second.held) == (False, False)


async def test_two_holders_of_one_name_are_two_holders(bus: Bus) -> None:
    """Two containers on one host can have the same host name and the same process id."""
    first, second = Lease(bus, "cpu", "host-1", ttl_seconds=2), Lease(bus, "cpu", "host-1", ttl_seconds=2)
    async with first.hold():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5), second.hold():
                pass
        assert first.held


async def test_a_long_lease_that_is_given_up_is_another_s_soon(bus: Bus) -> None:
    first, second = Lease(bus, "cpu", "first", ttl_seconds=600), Lease(bus, "cpu", "second", ttl_seconds=600)
    async with first.hold():
        waiting = asyncio.create_task(second._acquire())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.5)
    await asyncio.wait_for(waiting, 30)  # a quarter of its TTL is longer


async def test_it_is_renewed_beyond_its_ttl(bus: Bus) -> None:
    lease = Lease(bus, "cpu", "first")
    revisions = set()

    async def renewed() -> bool:
        entry = await bus.get(LEASES, "cpu")
        assert entry is not None
        revisions.add(entry.revision)
        return len(revisions) > RENEWALS_PER_TTL

    async with lease.hold():
        await eventually(renewed, every=0.1)
        assert lease.held


async def test_leases_of_other_keys_are_free(bus: Bus) -> None:
    async with Lease(bus, "cpu", "first").hold(), Lease(bus, "memory", "second").hold():
        pass


async def test_a_holder_that_died_is_followed_after_the_ttl_n11(server: Server, bus: Bus) -> None:
    async with Bus.connect(server.url, name="dying") as dying:
        await dying.wait_connected()
        holder = Lease(dying, "cpu", "dying", ttl_seconds=1)
        await holder._acquire()  # and never renewed nor given up
    began = time.monotonic()
    async with Lease(bus, "cpu", "heir", ttl_seconds=1).hold():
        assert time.monotonic() - began < 20
        assert not holder.held


async def test_a_holder_without_a_server_is_told_before_the_lease_can_be_anothers(server: Server, bus: Bus) -> None:
    lease = Lease(bus, "cpu", "first", ttl_seconds=1)
    began = 0.0

    async def hold() -> None:
        nonlocal began
        async with lease.hold():
            began = time.monotonic()
            await server.stop()
            await asyncio.sleep(30)

    with pytest.raises(UnavailableError, match="lost"):
        await hold()
    assert time.monotonic() - began < 10  # the TTL and a call to give it up, not the body
    assert not lease.held


async def test_a_holder_whose_key_is_anothers_is_told_at_the_next_renewal(bus: Bus) -> None:
    async def hold() -> None:
        async with Lease(bus, "cpu", "first", ttl_seconds=6).hold():
            entry = await bus.get(LEASES, "cpu")
            assert entry is not None
            await bus.put(LEASES, "cpu", b"{}", revision=entry.revision, read_at=time.monotonic())
            await asyncio.sleep(30)

    with pytest.raises(UnavailableError, match="lost"):
        await hold()
    entry = await bus.get(LEASES, "cpu")
    assert entry is not None
    assert entry.value == b"{}"  # and it takes nothing away from the other


async def test_an_own_write_whose_answer_was_lost_does_not_lose_the_lease(bus: Bus) -> None:
    lease = Lease(bus, "cpu", "first")
    async with lease.hold():
        known = lease._revision
        await lease._write()
        written = lease._revision
        lease._revision = known  # as if the answer had been lost
        await eventually(lambda: lease._revision > written)
        assert lease.held


async def test_it_ends_before_the_server_says_so_though_the_answer_was_late(server: Server, bus: Bus) -> None:
    async def expired() -> bool:
        entry = await bus.get(LEASES, "cpu")
        return entry is not None and entry.value is None

    async with Proxy.before(server.url) as proxy, Bus.connect(proxy.url, name="far") as far:
        await far.wait_connected()
        lease = Lease(far, "cpu", "far", ttl_seconds=2)
        proxy.delay = 1.0
        await lease._acquire()  # and never renewed
        await eventually(expired)
        assert not lease.held


async def test_who_acquired_it_without_hearing_so_does_not_wait_for_its_own_expiry(lossy: LossyBus) -> None:
    lossy.losing = ["put"]
    async with asyncio.timeout(20), Lease(lossy, "cpu", "first", ttl_seconds=60).hold():
        assert lossy.losing == []


async def test_a_holder_outlives_a_lost_answer_to_its_renewal(lossy: LossyBus, bus: Bus) -> None:
    revisions: set[int] = set()

    async def renewed_twice() -> bool:
        entry = await bus.get(LEASES, "cpu")
        assert entry is not None
        revisions.add(entry.revision)
        return len(revisions) > 2

    lease = Lease(lossy, "cpu", "first", ttl_seconds=4)
    async with lease.hold():
        lossy.losing = ["put"]
        await eventually(renewed_twice)  # the second time by who does not know the first revision
        await eventually(lambda: lossy.losing == [])
        assert lease.held


async def test_a_value_that_nobody_can_read_is_anothers(bus: Bus) -> None:
    lease = Lease(bus, "cpu", "first")
    await bus.put(
        LEASES, "cpu", b'{"holder": "\xff", "token": ""}', revision=0, read_at=time.monotonic(), ttl_seconds=1
    )
    async with asyncio.timeout(30), lease.hold():  # once it has expired
        assert lease.held


async def test_a_timeout_of_the_body_is_the_bodys_own(bus: Bus) -> None:
    with pytest.raises(TimeoutError):
        async with Lease(bus, "cpu", "first").hold():
            raise TimeoutError
    with pytest.raises(asyncio.CancelledError):
        async with Lease(bus, "cpu", "first").hold():
            raise asyncio.CancelledError


async def test_of_many_never_two_hold(bus: Bus) -> None:
    holding = 0
    most = 0

    async def work(name: str) -> None:
        nonlocal holding, most
        async with Lease(bus, "cpu", name).hold():
            holding += 1
            most = max(most, holding)
            await asyncio.sleep(0.01)
            holding -= 1

    await asyncio.wait_for(asyncio.gather(*(work(f"w{number}") for number in range(8))), 60)
    assert most == 1


async def test_it_waits_for_a_server(server: Server, bus: Bus) -> None:
    await server.stop()
    lease = Lease(bus, "cpu", "first")

    async def hold() -> None:
        async with lease.hold():
            assert lease.held

    holding = asyncio.create_task(hold())
    await eventually(lambda: not bus.connected)
    await server.start()
    await asyncio.wait_for(holding, 30)
