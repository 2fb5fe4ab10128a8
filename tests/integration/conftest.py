"""Fixtures: a server, a connection to it, a user. What one test stores, no other test sees."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bus.connection import Bus
from tests.forks import begin_imports
from tests.integration.cli.tas import Tas
from tests.integration.kept import Keeper, keeper
from tests.integration.servers import Server

# The servers of tests have little to do, and a second processor only waits for it: a tenth of their processor time.
os.environ.setdefault("GOMAXPROCS", "1")


@pytest.fixture(scope="session", autouse=True)
def _imports_begin() -> None:
    """The first test with a process of the product does not wait for all imports."""
    begin_imports()


@pytest.fixture(scope="session")
def kept_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    with keeper(tmp_path_factory.mktemp("servers")) as kept:
        yield kept


@pytest.fixture
async def server(kept_servers: Keeper) -> AsyncIterator[Server]:
    """A running server; a test may pause, kill and restart it. One that does not leaves it to the next test."""
    server = await kept_servers.take()
    yield server
    await kept_servers.give_back(server)


@pytest.fixture
async def new_server(tmp_path: Path) -> AsyncIterator[Server]:
    """A server without streams, in the folder `store`."""
    server = Server(tmp_path / "store")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def bus(server: Server) -> AsyncIterator[Bus]:
    """A connection that is established; all streams exist."""
    async with Bus.connect(server.url, name="test") as bus:
        await bus.wait_connected()
        yield bus


@pytest.fixture
def tas(tmp_path: Path) -> Tas:
    """A user of the command line, with a home directory of this test."""
    return Tas(tmp_path / "home")


@pytest.fixture
def quick_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status of a policy is patched at most every 2 s, not every 5 s: so tests wait less."""
    monkeypatch.setattr("workers.status.worker.PATCH_SECONDS", 2.0)
