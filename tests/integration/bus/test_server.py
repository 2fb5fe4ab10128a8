"""The embedded server: a process that ends with its parent."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bus.connection import Bus
from bus.errors import MisconfiguredError
from bus.rights.access import Access
from bus.server import EmbeddedServer
from tests.integration.servers import eventually


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


async def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    async with EmbeddedServer.start(tmp_path) as server:
        assert server.url.startswith("nats://127.0.0.1:")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        assert (await reader.readline()).startswith(b"INFO")
        writer.close()
        await writer.wait_closed()
    assert is_gone(server.pid)


async def test_it_lets_in_only_who_shows_the_token_of_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    token = tmp_path / "token"
    previous = os.umask(0)
    try:
        async with EmbeddedServer.start(tmp_path / "store", token=token) as server:
            first = token.read_text().strip()
            assert len(first) > 40
            modes = {path: path.stat().st_mode & 0o777 for path in (token, tmp_path / "store" / "nats-server.conf")}
            assert set(modes.values()) == {0o600}, modes
            async with Bus.connect(server.url, name="test", access=Access(token=token), streams=()) as bus:
                await bus.wait_connected()
            async with Bus.connect(server.url, name="test", streams=()) as bus:
                await eventually(lambda: "demands credentials, and none are given" in bus.last_error)
    finally:
        os.umask(previous)
    async with EmbeddedServer.start(tmp_path / "store", token=token):
        assert token.read_text().strip() == first, "programs that know the token can still connect"
    token.write_text("short")
    with pytest.raises(MisconfiguredError, match=f"{token}: must be 16 to 128"):
        async with EmbeddedServer.start(tmp_path / "store", token=token):
            pass
    token.write_text(first)
    token.chmod(0o640)
    with pytest.raises(MisconfiguredError, match=f"{token}: mode is 640, must be 600") as caught:
        async with EmbeddedServer.start(tmp_path / "store", token=token):
            pass
    assert first not in str(caught.value)


async def test_it_ends_also_when_it_is_paused(tmp_path: Path) -> None:
    async with EmbeddedServer.start(tmp_path) as server:
        os.kill(server.pid, signal.SIGSTOP)
    assert is_gone(server.pid)


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGTERM])
async def test_it_ends_when_its_parent_is_killed_or_terminated(tmp_path: Path, signalled: signal.Signals) -> None:
    program = f"""
import asyncio, pathlib
from bus.server import EmbeddedServer
async def main():
    async with EmbeddedServer.start(pathlib.Path({str(tmp_path)!r})) as server:
        print(server.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs on this loop
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.send_signal(signalled)
        parent.wait(120)
    await eventually(lambda: is_gone(pid))


async def test_a_second_server_on_the_same_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.server.LOCK_SECONDS", 0.1)
    async with EmbeddedServer.start(tmp_path):
        with pytest.raises(MisconfiguredError, match="another nats-server"):
            async with EmbeddedServer.start(tmp_path):
                pass


@pytest.mark.parametrize(("store", "reason"), [("/proc/nowhere", "cannot be created"), ("/proc", "cannot be written")])
async def test_an_unusable_store_is_an_error_with_its_path(store: str, reason: str) -> None:
    with pytest.raises(MisconfiguredError, match=f"the store {store} {reason}"):
        async with EmbeddedServer.start(Path(store)):
            pass


@pytest.mark.parametrize("name", ["nats-server.lock", "nats-server.conf", "nats-server.log"])
async def test_a_store_in_which_a_file_cannot_be_written_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(MisconfiguredError, match="cannot be written"):
        async with EmbeddedServer.start(tmp_path):
            pass
    (tmp_path / name).rmdir()
    async with EmbeddedServer.start(tmp_path) as server:  # the failure has left no lock behind
        assert server.running


async def test_an_old_server_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.server.MINIMUM_VERSION", (99, 0, 0))
    with pytest.raises(MisconfiguredError, match=r"at least 99\.0\.0"):
        async with EmbeddedServer.start(tmp_path):
            pass
