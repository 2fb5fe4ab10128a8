"""A closed bus for one test, and users of every role."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from bus.connection import Bus
from bus.rights.access import Access
from bus.rights.credentials import parse_credentials
from bus.rights.jwt import claims_of
from bus.rights.operator import Keys
from bus.rights.roles import tags_of
from tests.e2e.processes import free_ports
from tests.integration.bus.operated import OperatedServer
from tests.integration.servers import eventually


class Closed:
    """A server with an operator, and the credentials of its users."""

    def __init__(self, folder: Path) -> None:
        self.keys = Keys.new()
        self._folder = folder
        self._monitor = f"127.0.0.1:{free_ports(1)[0]}"
        auth = self.keys.server_configuration(revoked={}, now=time.time())
        self.server = OperatedServer(folder, f'http: "{self._monitor}"\n{auth}')

    def user(self, role: str, name: str = "", *sources: str) -> Path:
        """The credentials of a user, `tas-<role>` without a name."""
        name = name or f"tas-{role}"
        path = self._folder / f"{name}.creds"
        tags = tags_of(role, name, sources=sources)
        path.write_text(self.keys.credentials(role, name, tags=tags, now=time.time()))
        return path

    @asynccontextmanager
    async def connected(self, role: str, name: str = "", *sources: str) -> AsyncIterator[Bus]:
        access = Access(credentials=self.user(role, name, *sources))
        async with Bus.connect(self.server.url, name="test", streams=(), access=access) as bus:
            await bus.wait_connected()
            yield bus

    @asynccontextmanager
    async def raw(self, credentials: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection of a user without a client, which would obey the server."""
        user = parse_credentials(await asyncio.to_thread(credentials.read_bytes), str(credentials))
        address = self.server.url.removeprefix("nats://").split(":")
        reader, writer = await asyncio.open_connection(*address, limit=1 << 20)
        try:
            nonce = json.loads((await reader.readline()).removeprefix(b"INFO "))["nonce"]
            hello = {
                "verbose": False,
                "headers": True,
                "jwt": user.jwt,
                "sig": user.sign(nonce).decode(),
                "protocol": 1,
            }
            writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\nPING\r\n")
            await reader.readuntil(b"PONG\r\n")
            yield reader, writer
        finally:
            writer.close()

    async def with_streams(self) -> None:
        """Returns when the keeper has created all streams."""
        access = Access(credentials=self.user("keeper"))
        async with Bus.connect(self.server.url, name="keeper", access=access) as keeper:
            await eventually(lambda: keeper.connected and keeper.problem is None)

    async def subscriptions(self) -> dict[str, int]:
        """The most subscriptions of one connection, by the name of its user."""
        most: dict[str, int] = {}
        url = f"http://{self._monitor}/connz?subs=detail&auth=1&limit=1000"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            for each in (await answer.json())["connections"]:
                name = claims_of(each["jwt"])["name"]
                most[name] = max(most.get(name, 0), each["subscriptions"])
        return most

    def violations(self) -> list[str]:
        """What the server refused, as `user: publish subject`."""
        found = re.findall(r'"User":"([^"]+)|(\w+) Violation - .*?"(\S+)"', self.server.log.read_text())
        return [f"{verb} {subject}" for _, verb, subject in found if verb]


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[Closed]:
    """A closed bus without streams."""
    folder = tmp_path / "bus"
    folder.mkdir()
    closed = Closed(folder)
    await closed.server.start()
    try:
        yield closed
    finally:
        await closed.server.stop()
