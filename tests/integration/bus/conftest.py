"""The fixture `long_limits`."""

from tests.integration.bus.limits import long_limits

__all__ = ["long_limits"]
