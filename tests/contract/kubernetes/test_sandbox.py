"""Runs the contract on the sandbox."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.sandbox import Sandbox

from .client import Client
from .suite import KubernetesContract, Server
from .tables import TableContract


class SandboxServer(Server):
    """The sandbox, in the process of the tests."""

    def __init__(self, sandbox: Sandbox, session: aiohttp.ClientSession) -> None:
        self._sandbox = sandbox
        self.client = Client(session, sandbox.url)

    @asynccontextmanager
    async def without_policies(self) -> AsyncIterator[None]:
        self._sandbox.remove_crd()
        yield
        self._sandbox.install_crd()

    async def forget(self) -> str:
        self._sandbox.forget_history()
        return "1"


class TestSandbox(KubernetesContract, TableContract):
    @pytest.fixture
    async def server(self) -> AsyncIterator[Server]:
        async with Sandbox.start(bookmark_seconds=0.05) as sandbox, aiohttp.ClientSession() as session:
            yield SandboxServer(sandbox, session)
