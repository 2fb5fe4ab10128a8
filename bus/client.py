"""The NATS client, loaded without aiohttp.

If aiohttp is installed, the client loads it for WebSockets, which doubles the time of the import. TAS connects only to
`nats://` and `tls://`, so it needs no WebSockets.
"""

from bus.optional import without

with without("aiohttp"):
    from nats import errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

__all__ = ["Client", "Msg", "Subscription", "errors"]
