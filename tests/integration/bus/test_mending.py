"""What an operator mends that no process may: leases that never expire."""

import time

import pytest

from bus.buckets import LEASES
from bus.connection import Bus
from bus.mending import remove_leases
from bus.rights.access import Access
from tests.integration.bus.closed import Closed, closed
from tests.integration.servers import eventually

pytestmark = pytest.mark.usefixtures("long_limits")
__all__ = ["closed"]

SECONDS = 2.0
MANY = 50


async def test_leases_that_never_expire_are_removed_and_no_other(closed: Closed) -> None:
    """`notify` may write leases of sinks that it invents, with a header that keeps them for ever."""
    await closed.with_streams()
    mender = closed.server.log.parent / "mender.creds"
    mender.write_text(closed.keys.mender("mender", now=time.time(), expires=time.time() + 600))
    async with (
        closed.connected("notify") as thief,
        closed.connected("labels") as honest,
        Bus.connect(closed.server.url, name="mender", streams=(), access=Access(credentials=mender)) as bus,
    ):
        await bus.wait_connected()
        assert await remove_leases(bus, seconds=SECONDS) == 0
        for number in range(MANY):
            headers = {"Nats-TTL": "never"}
            await thief.link.publish(LEASES.subject(f"notify.s{number}"), b"{}", headers=headers, seconds=60.0)
        assert await remove_leases(bus, dry_run=True) == 0, "none is as old as that"
        removed = 0

        async def has_removed_these_alone() -> bool:
            """Tried again if this process was too late: then the lease of `labels` is an old one, too."""
            nonlocal removed
            entry = await honest.get(LEASES, "labels")
            revision = 0 if entry is None else entry.revision
            written = time.monotonic()
            await honest.put(LEASES, "labels", b"{}", revision=revision, read_at=time.monotonic())
            before = await bus.keys(LEASES, ">")
            await remove_leases(bus, seconds=SECONDS, dry_run=True)
            assert await bus.keys(LEASES, ">") == before, "nothing is changed"
            removed += await remove_leases(bus, seconds=SECONDS)
            return time.monotonic() - written < SECONDS and await bus.keys(LEASES, ">") == ["labels"]

        await eventually(has_removed_these_alone)
        assert removed >= MANY
