"""A closed bus of an earlier version: without WORKERS, or without the right to it, all works, and it is said once."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bus.buckets import ALL, WORKERS
from bus.connection import Bus
from bus.rights.access import Access
from bus.rights.roles import Permissions
from cli.loading import load_settings
from cli.wiring import Process
from tests.integration.bus.operated import OperatedServer, Operator, operated
from tests.integration.servers import eventually
from workers.names import run_by
from workers.process.presence import Presence
from workers.roles import ROLES

pytestmark = pytest.mark.usefixtures("long_limits")

OTHERS = tuple(of for of in ALL if of is not WORKERS)


def earlier(role: str) -> Permissions:
    """What a role might do before there was WORKERS."""
    now = ROLES[role].earlier.permissions
    return Permissions(
        publish=tuple(each for each in now.publish if "WORKERS" not in each),
        subscribe=(f"_INBOX.{role}.>",),
        denied=now.denied,
    )


def now(role: str) -> Permissions:
    permissions = ROLES[role].earlier.permissions
    return Permissions(publish=permissions.publish, subscribe=(f"_INBOX.{role}.>",), denied=permissions.denied)


@asynccontextmanager
async def started(server: OperatedServer, command: str, credentials: Path) -> AsyncIterator[Process]:
    texts = {"bus": server.url, "bus_credentials": str(credentials), "health_listen": "127.0.0.1:0"}
    settings = load_settings(f"run {command}", texts)
    async with AsyncExitStack() as stack:
        parts = Process(settings, stack)
        await parts.build(run_by(command))
        stop = asyncio.Event()
        running = asyncio.create_task(parts.run(stop))
        try:
            yield parts
        finally:
            stop.set()
            assert await running == 0


@pytest.mark.parametrize("rights", [earlier, now], ids=["no right", "no bucket"])
async def test_nobody_is_unready_and_it_is_said_once(
    rights: Callable[[str], Permissions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.presence.Presence", partial(Presence, write_seconds=0.02))  # tries again each 0.24 s
    operator = Operator()
    async with operated(tmp_path, operator.configuration()) as server:
        files = {}
        for name, permissions in (("evaluate", rights("evaluate")), ("keeper", earlier("keeper"))):
            files[name] = tmp_path / f"{name}.creds"
            files[name].write_text(operator.credentials(name, permissions))
        everything = tmp_path / "everything.creds"
        everything.write_text(operator.credentials("everything"))
        access = Access(credentials=everything)
        async with Bus.connect(server.url, name="t", streams=OTHERS, access=access) as bus:
            await bus.wait_connected()
        with capture_logs() as logs:
            async with (
                started(server, "keeper", files["keeper"]) as keeper,
                started(server, "evaluate", files["evaluate"]) as evaluate,
            ):
                await eventually(lambda: not keeper.unready())
                (connection,) = evaluate.context._buses
                checks = 0

                def tried() -> bool:
                    nonlocal checks
                    checks += 1
                    return checks > 20

                # Each of the two processes has been refused.
                await eventually(lambda: [each["event"] for each in logs].count("process_not_shown") >= 2)
                await eventually(tried, every=0.05)
                for process in (keeper, evaluate):
                    assert process.context.bus_problem() is None
                    assert not process.context._buses[0].unavailable
                    assert not process.context._buses[0].refusing
                assert connection.connected
                # Without a cluster nobody has written the lists that it waits for: that is another reason.
                assert all("WORKERS" not in reason for reason in evaluate.unready().values())
        said = [each for each in logs if "WORKERS" in str(each)]
        assert sorted(each["event"] for each in said if each["event"] == "process_not_shown") == [
            "process_not_shown",
            "process_not_shown",
        ], "each of the two processes once"
        refused = re.findall(r"Publish Violation.*WORKERS", server.log.read_text())
        assert len(refused) == 2, "each connection asks once"


async def test_a_role_cannot_write_the_key_of_another_one(tmp_path: Path) -> None:
    operator = Operator()
    async with operated(tmp_path, operator.configuration()) as server, AsyncExitStack() as stack:
        for name, permissions in (("everything", None), ("evaluate", now("evaluate"))):
            text = operator.credentials(name) if permissions is None else operator.credentials(name, permissions)
            (tmp_path / f"{name}.creds").write_text(text)
        buses = {
            name: await stack.enter_async_context(
                Bus.connect(
                    server.url,
                    name="t",
                    streams=ALL if name == "everything" else (),
                    access=Access(credentials=tmp_path / f"{name}.creds"),
                )
            )
            for name in ("everything", "evaluate")
        }
        for bus in buses.values():
            await bus.wait_connected()
        await buses["evaluate"].put(WORKERS, "evaluate.a", b"{}", revision=0, read_at=time.monotonic())
        for key in ("extender.a", "all.a", "_expected.evaluate", "evaluate.a.b"):
            with pytest.raises(Exception, match="may not publish"):
                await buses["evaluate"].put(WORKERS, key, b"{}", revision=0, read_at=time.monotonic())
        assert [each.key for each in await buses["everything"].entries(WORKERS)] == ["evaluate.a"]
