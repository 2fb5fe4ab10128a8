"""The test's own connections to the bus wait long for answers."""

import pytest

from tests.integration.bus.limits import long_limits

__all__ = ["long_limits"]


@pytest.fixture(autouse=True)
def _long_limits(long_limits: None) -> None:
    pass
