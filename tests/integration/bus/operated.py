"""A nats-server in operator mode for one test, and credentials for it."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bus.rights.credentials import credentials_text
from bus.rights.jwt import Scope, account_jwt, operator_jwt, user_jwt
from bus.rights.nkeys import Nkey, NkeyKind
from bus.rights.roles import Permissions
from bus.server import find_binary
from tests.e2e.processes import free_ports

EVERYTHING = Permissions(publish=(">",), subscribe=(">",))


class Operator:
    """An operator with its system account and one account with JetStream."""

    def __init__(self, *scopes: Scope) -> None:
        self._operator, self._account = Nkey.new(NkeyKind.OPERATOR), Nkey.new(NkeyKind.ACCOUNT)
        system = Nkey.new(NkeyKind.ACCOUNT).public
        now = time.time()
        self.operator = operator_jwt(self._operator, name="test", system_account=system, signing_keys=(), now=now)
        self.system = system
        self.accounts = {
            account: account_jwt(
                self._operator, account, name="test", signing_keys=keys, jetstream=account != system, now=now
            )
            for account, keys in ((self._account.public, scopes), (system, ()))
        }

    def configuration(self) -> str:
        """What a server needs to know of this operator."""
        preload = "\n".join(f"  {account}: {jwt}" for account, jwt in self.accounts.items())
        return (
            f"operator: {self.operator}\nsystem_account: {self.system}\n"
            f"resolver: MEMORY\nresolver_preload {{\n{preload}\n}}\n"
        )

    def credentials(self, name: str, permissions: Permissions = EVERYTHING, *, expires: float | None = None) -> str:
        """The credentials of a new user of the account."""
        key = Nkey.new(NkeyKind.USER)
        jwt = user_jwt(
            self._account,
            key.public,
            account=self._account.public,
            name=name,
            permissions=permissions,
            now=time.time(),
            expires=expires,
        )
        return credentials_text(jwt, key)


class OperatedServer:
    """A nats-server with a configuration of the test, at one address over restarts."""

    def __init__(self, folder: Path, configuration: str) -> None:
        (self._port,) = free_ports(1)
        self._folder = folder
        self.configuration = configuration
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def log(self) -> Path:
        return self._folder / "nats.log"

    def _write(self) -> Path:
        path = self._folder / "nats.conf"
        path.write_text(
            f'listen: "127.0.0.1:{self._port}"\nserver_name: test\n'
            f'jetstream {{ store_dir: "{self._folder}/store" }}\n{self.configuration}'
        )
        return path

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                await find_binary(), "--config", str(self._write()), stdout=log, stderr=log
            )

    async def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    def reload(self) -> None:
        """Lets the running server read the configuration again."""
        self._write()
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGHUP)


@asynccontextmanager
async def operated(folder: Path, configuration: str) -> AsyncIterator[OperatedServer]:
    """A running server."""
    server = OperatedServer(folder, configuration)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
