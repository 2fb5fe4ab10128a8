"""The connection of the test. Workers have their own, so this one may be patient."""

from collections.abc import AsyncIterator

import pytest

from bus.connection import Bus
from tests.integration.servers import PatientBus, Server


@pytest.fixture
async def bus(server: Server) -> AsyncIterator[Bus]:
    async with PatientBus.connect(server.url, name="test") as bus:
        await bus.wait_connected()
        yield bus
