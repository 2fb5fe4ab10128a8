"""Fixtures for time limits of calls: longer ones, and the lateness of the test."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.bus.limits import late_pulse, long_limits
from tests.integration.lateness import Lateness
from tests.integration.watched import meanwhile

__all__ = ["late_pulse", "long_limits"]


@pytest.fixture
async def lateness() -> AsyncIterator[Lateness]:
    """Measures the lateness of this process during the test."""
    lateness = Lateness()
    async with meanwhile(lateness.run()):
        yield lateness
