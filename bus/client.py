"""The only module that knows nats-py: its client without aiohttp, and without its own handling of errors.

If aiohttp is installed, the client loads it for WebSockets, which doubles the time of the import. TAS connects only to
`nats://` and `tls://`, so it needs no WebSockets.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


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

__all__ = ["Msg", "OneLife", "Subscription", "errors"]

DROP_SECONDS = 0.5
"""How long closing may take: after a failed TLS handshake the client waits for ever for the end of the connection."""


class OneLife(Client):
    """nats-py's client without its own handling of errors: it only reports them.

    nats-py 2.16 reconnects and then sends pending data, so a conditional write could be sent long after its reads; and
    it closes for ever after errors such as a server's shutdown notice.

    Each private name of nats-py that the product uses is in this class. `tests/unit/bus/test_client.py` fails if a
    release of nats-py does something else with one of them.

    Attributes:
        needs_tls: Whether a server without TLS is refused.
        has_certificate: Whether there is a certificate for a server that demands one.
    """

    def __init__(self, on_lost: Callable[[Exception], None], on_forbidden: Callable[[str], None]) -> None:
        super().__init__()
        self._on_lost = on_lost
        self._on_forbidden = on_forbidden
        self.needs_tls = self.has_certificate = False

    @property
    def server_info(self) -> dict[str, Any]:
        """What the server said about itself last; empty before it said anything."""
        return self._server_info

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002 - of nats-py
        """Refuses a server without TLS before anything is sent to it: nats-py would send the credentials in clear."""
        scheme = "" if self._current_server is None else self._current_server.uri.scheme
        if initial_connection and (self.needs_tls or scheme == "tls") and not info.get("tls_required"):
            raise errors.Error("the server offers no TLS, which this process demands: nothing was sent to it")
        if initial_connection and info.get("tls_verify") and not self.has_certificate:
            raise errors.Error("the server demands a certificate of its clients, and none is given")
        await super()._process_info(info, initial_connection)

    async def _process_op_err(self, e: Exception) -> None:
        self._on_lost(e)

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg:  # of one subject; the connection stays
            self._on_forbidden(err_msg)
        else:
            self._on_lost(errors.Error(f"nats: {err_msg}"))

    async def _process_pong(self) -> None:
        """Accepts the answer to a ping that was cancelled: nats-py would log an error and stop reading."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """The headers, or None if they are invalid: a publisher can write any bytes there."""
        try:
            return await super()._process_headers(headers)
        except (ValueError, IndexError):  # the client would stop reading messages
            return None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Any:
        """The message; a subject that is not UTF-8 gets replacement characters, and is later rejected as invalid."""
        try:
            return super()._build_message(sid, subject, reply, data, headers)
        except UnicodeDecodeError:
            return super()._build_message(sid, subject.decode(errors="replace").encode(), reply, data, headers)

    async def drop(self) -> None:
        """Closes at once, and discards unsent data: a server that hangs must not receive it later."""
        with suppress(AttributeError):  # without a transport, and if nats-py has other names inside
            self._pending.clear()
            self._pending_data_size = 0
            self._transport._io_writer.transport.abort()  # type: ignore[union-attr]
        if getattr(self, "_flush_queue", self) is not None:  # otherwise it never started to connect
            with suppress(OSError, TimeoutError, errors.Error):
                async with asyncio.timeout(DROP_SECONDS):
                    await self.close()
