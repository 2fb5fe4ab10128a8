"""The floor: an extender that passes every node and scores none, without reading the request as JSON.

`python -m tests.bench.e2e.floor --listen HOST:PORT [CERT KEY CACERT]`. It is served by the same HTTP server as the
product's extender and, with three files, with the same TLS and a required client certificate.
"""

import asyncio
import ssl
import sys
from pathlib import Path

import uvloop
from aiohttp import web

from tests.bench.stand import FILTER, PRIORITIZE
from workers.process.address import Address
from workers.process.tls import TlsFiles, load_credentials

MAX_BODY_BYTES = 1 << 30
NAMES, NODES = b',"NodeNames":', b'"Nodes":'


def _all_pass(body: bytes) -> bytes:
    """The answer to filter: the nodes of the request, in its form, as the scheduler wrote them."""
    names = body.rindex(NAMES)
    if not body.startswith(b"null", names + len(NAMES)):
        return b"{" + body[names + 1 :]
    return b"{" + body[body.index(NODES + b"{") : names] + b"}"


async def _filter(request: web.Request) -> web.Response:
    return web.Response(body=_all_pass(await request.read()), headers={"Content-Type": "application/json"})


async def _prioritize(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b"[]", headers={"Content-Type": "application/json"})


async def _serve(address: Address, tls: ssl.SSLContext | None) -> None:
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_routes([web.post(FILTER, _filter), web.post(PRIORITIZE, _prioritize)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, address.host, address.port, ssl_context=tls).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    files = [Path(each) for each in sys.argv[3:]]
    tls = None
    if files:
        cert, key, cacert = files
        tls = load_credentials(TlsFiles(cert=cert, key=key, cacert=cacert)).context
    uvloop.run(_serve(Address.parse(sys.argv[2]), tls))
