"""The NATS client, loaded without aiohttp.

If aiohttp is installed, the client loads it for WebSockets, which doubles the time of the import. TAS connects only to
`nats://` and `tls://`, so it needs no WebSockets.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Within the body an import of `package` fails, unless the package is loaded already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment] # the import system then raises ImportError
    try:
        yield
    finally:
        del sys.modules[package]


with _without("aiohttp"):
    from nats import errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

__all__ = ["Client", "Msg", "Subscription", "errors"]
