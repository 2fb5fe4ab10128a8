"""Serves an app of aiohttp at an address."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from workers.http.address import Address
from workers.http.certificates import Certificates
from workers.http.connections import Acceptor, ConnectionMetrics, bind, without_server
from workers.http.limits import Limits
from workers.process.errors import StartError

READY_POLL_SECONDS = 0.05


@asynccontextmanager
async def listening(
    app: web.Application,
    address: Address,
    *,
    purpose: str,
    setting: str = "",
    limits: Limits | None = None,
    certificates: Certificates | None = None,
    metrics: ConnectionMetrics | None = None,
    shared: bool = False,
) -> AsyncIterator[Address]:
    """Serves `app` at `address` within the body, and yields the address (with the chosen port if it was 0).

    With `certificates` it serves HTTPS to admitted clients only. `shared`: other processes may listen there as well.
    Raises StartError if the address cannot be used; the message has `purpose` and the name of the `setting`.
    """
    app.on_response_prepare.append(without_server)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=2.0)
    await runner.setup()
    try:
        sockets = await _bound(address, purpose=purpose, setting=setting, shared=shared)
        acceptor = Acceptor(runner, sockets, limits=limits or Limits(), certificates=certificates, metrics=metrics)
        host, port, *_ = sockets[0].getsockname()
        acceptor.start()
        try:
            yield Address(host, port)
        finally:
            await acceptor.stop()
    finally:
        await runner.cleanup()


async def check_free(address: Address, *, purpose: str, setting: str) -> None:
    """Raises StartError as `listening` does, if the address cannot be used now: before anything else has started."""
    for each in await _bound(address, purpose=purpose, setting=setting, shared=False):
        each.close()


async def _bound(address: Address, *, purpose: str, setting: str, shared: bool) -> list[socket.socket]:
    try:
        return await bind(address.host, address.port, shared=shared)
    except OSError as error:
        reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        hint = f" ({setting})" if setting else ""
        raise StartError(f"{purpose}: cannot listen on {address}: {reason}{hint}") from error


async def first_ready(unready: Callable[[], str | None]) -> None:
    """Waits until `unready` returns None for the first time: so long only other processes listen on a shared port."""
    while unready() is not None:  # noqa: ASYNC110 - several watches together make a worker ready
        await asyncio.sleep(READY_POLL_SECONDS)
