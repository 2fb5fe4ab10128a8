"""The embedded server, as a process."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bus.errors import MisconfiguredError
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


async def test_it_ends_even_when_paused(tmp_path: Path) -> None:
    async with EmbeddedServer.start(tmp_path) as server:
        os.kill(server.pid, signal.SIGSTOP)
    assert is_gone(server.pid)


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGTERM])
async def test_it_ends_with_its_parent_however_that_ends(tmp_path: Path, signalled: signal.Signals) -> None:
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
        parent.wait(10)
    await eventually(lambda: is_gone(pid))


async def test_two_servers_never_share_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.server.LOCK_SECONDS", 0.1)
    async with EmbeddedServer.start(tmp_path):
        with pytest.raises(MisconfiguredError, match="another nats-server"):
            async with EmbeddedServer.start(tmp_path):
                pass


@pytest.mark.parametrize(("store", "told"), [("/proc/nowhere", "cannot be created"), ("/proc", "cannot be written")])
async def test_a_store_that_cannot_be_is_told(store: str, told: str) -> None:
    with pytest.raises(MisconfiguredError, match=f"the store {store} {told}"):
        async with EmbeddedServer.start(Path(store)):
            pass


@pytest.mark.parametrize("name", ["nats-server.lock", "nats-server.conf", "nats-server.log"])
async def test_a_store_in_which_a_file_cannot_be_written_is_told(tmp_path: Path, name: str) -> None:
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
