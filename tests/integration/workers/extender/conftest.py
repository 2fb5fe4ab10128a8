"""The tests of connections also run on the product's event loop, which has another TLS implementation."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

ON_BOTH = ("test_tls.py", "test_limits.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loops that a test runs on, by name."""
    if item.path.name in ON_BOTH:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
