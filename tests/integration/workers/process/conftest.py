"""Fixtures of the bus, for processes as a whole."""

from tests.integration.bus.limits import long_limits

__all__ = ["long_limits"]
