"""The floor: the same HTTP server, which only returns the bytes of the request.

`python -m tests.bench.echo --listen HOST:PORT`, as the extender takes it.
"""

import asyncio
import sys

import uvloop
from aiohttp import web

from workers.http.address import Address

MAX_BODY_BYTES = 1 << 30


async def _echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read(), headers={"Content-Type": "application/json"})


async def _serve(address: Address) -> None:
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_routes([web.post("/", _echo)])
    # aiohttp's own site: the extender's limits of connections are no part of the floor.
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, address.host, address.port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(Address.parse(sys.argv[2])))
