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
from bus.rights.credentials import credentials_text, parse_credentials
from bus.rights.jwt import Scope, account_jwt, claims_of, operator_jwt, user_jwt
from bus.rights.nkeys import Nkey, NkeyKind
from bus.rights.operator import NAME, Keys
from bus.rights.roles import tags_of
from tests.contract.rights import earlier_permissions
from tests.e2e.processes import free_ports
from tests.integration.bus.operated import EVERYTHING, OperatedServer
from tests.integration.servers import eventually
from workers.roles import ROLES


class Closed:
    """A server with an operator, and the credentials of its users.

    With `earlier` it also takes credentials of an earlier version.
    """

    def __init__(self, folder: Path, *, earlier: bool = False) -> None:
        self.keys = Keys.new(ROLES)
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._monitor = f"127.0.0.1:{free_ports(1)[0]}"
        auth = self.keys.server_configuration(ROLES, revoked={}, now=time.time(), earlier=earlier)
        self.server = OperatedServer(folder, f'http: "{self._monitor}"\n{auth}')

    def user(self, role: str, name: str = "", *sources: str) -> Path:
        """The credentials of a user, `tas-<role>` without a name."""
        name = name or f"tas-{role}"
        path = self._folder / f"{name}.creds"
        tags = tags_of(ROLES[role], name, sources=sources)
        path.write_text(self.keys.credentials(role, name, tags=tags, now=time.time()))
        return path

    def earlier_user(self, role: str, name: str, *sources: str) -> Path:
        """The credentials of a user as an earlier version made them."""
        path = self._folder / f"{name}-earlier.creds"
        path.write_text(earlier_credentials(self.keys, role, name, *sources))
        return path

    def owner(self) -> Path:
        """The credentials of somebody who may do everything in the account with the streams."""
        key, path = Nkey.new(NkeyKind.USER), self._folder / "owner.creds"
        signer = self.keys.account
        jwt = user_jwt(signer, key.public, account=signer.public, name="owner", permissions=EVERYTHING, now=time.time())
        path.write_text(credentials_text(jwt, key))
        return path

    @asynccontextmanager
    async def connected(self, role: str, name: str = "", *sources: str) -> AsyncIterator[Bus]:
        async with self.connected_as(self.user(role, name, *sources)) as bus:
            yield bus

    @asynccontextmanager
    async def connected_as(self, credentials: Path) -> AsyncIterator[Bus]:
        access = Access(credentials=credentials)
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

    async def awaited(self) -> int:
        """For how many answers to other accounts the server remembers whom they are for."""
        url = f"http://{self._monitor}/accountz?acc={self.keys.account.public}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return len((await answer.json())["account_detail"].get("responses") or ())

    def violations(self) -> list[str]:
        """What the server refused, as `user: publish subject`."""
        found = re.findall(r'"User":"([^"]+)|(\w+) Violation - .*?"(\S+)"', self.server.log.read_text())
        return [f"{verb} {subject}" for _, verb, subject in found if verb]


def earlier_credentials(keys: Keys, role: str, name: str, *sources: str) -> str:
    """As an earlier version made them: in the account with the streams, without names of consumers for processes."""
    key = Nkey.new(NkeyKind.USER)
    tags = (
        tuple(f"source:{each}" for each in sources)
        if ROLES[role].workers
        else tags_of(ROLES[role], name, sources=sources)
    )
    jwt = user_jwt(
        keys.roles[role],
        key.public,
        account=keys.account.public,
        name=name,
        permissions=None,
        tags=tags,
        now=time.time(),
    )
    return credentials_text(jwt, key)


def earlier_configuration(keys: Keys) -> str:
    """What an earlier version made for servers: one account with all roles, and the rights of that version."""
    now = time.time()
    scopes = [
        Scope(key=keys.roles[role].public, role=role, permissions=permissions, limits=ROLES[role].limits)
        for role, permissions in earlier_permissions().items()
    ]
    system, account = keys.system.public, keys.account.public
    operator = operator_jwt(keys.operator, name=NAME, system_account=system, signing_keys=(), now=now)
    lines = {
        account: account_jwt(keys.operator, account, name=NAME, signing_keys=scopes, jetstream=True, now=now),
        system: account_jwt(keys.operator, system, name="system", signing_keys=(), jetstream=False, now=now),
    }
    preload = "".join(f"  {each}: {jwt}\n" for each, jwt in lines.items())
    return f"operator: {operator}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload {{\n{preload}}}\n"


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[Closed]:
    """A closed bus without streams."""
    async with _started(tmp_path / "bus", earlier=False) as closed:
        yield closed


@pytest.fixture
async def earlier(tmp_path: Path) -> AsyncIterator[Closed]:
    """A closed bus without streams, whose server also takes credentials of an earlier version."""
    async with _started(tmp_path / "earlier", earlier=True) as closed:
        yield closed


@asynccontextmanager
async def _started(folder: Path, *, earlier: bool) -> AsyncIterator[Closed]:
    closed = Closed(folder, earlier=earlier)
    await closed.server.start()
    try:
        yield closed
    finally:
        await closed.server.stop()
