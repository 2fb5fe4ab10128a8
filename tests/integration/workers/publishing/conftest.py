"""Longer time limits of calls."""

from tests.integration.bus.limits import long_limits

__all__ = ["long_limits"]
