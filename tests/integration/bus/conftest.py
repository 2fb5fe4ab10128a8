"""Fixtures for time limits of calls: longer ones, and the lateness of the test."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.bus.limits import late_pulse, long_limits
from tests.integration.lateness import Lateness
from tests.integration.servers import Server
from tests.integration.watched import meanwhile

__all__ = ["late_pulse", "long_limits"]


@pytest.fixture
async def lateness() -> AsyncIterator[Lateness]:
    """Measures the lateness of this process during the test."""
    lateness = Lateness()
    async with meanwhile(lateness.run()):
        yield lateness


@pytest.fixture
def server(new_server: Server) -> Server:
    """The first connection of a test creates the streams: here that is a subject."""
    return new_server
