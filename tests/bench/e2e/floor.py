"""The floor: an extender that passes every node and scores none, without reading the request as JSON.

`python -m tests.bench.e2e.floor --listen HOST:PORT [CERT KEY CACERT] [same]`. It is served by the same HTTP server as
the product's extender and, with three files, with the same TLS and a required client certificate. With `same` it
answers names as the product would, with a tenth of the nodes rejected and a score for each of the others, from a
dictionary: what the scheduler spends on such an answer is no cost of the product.
"""

import asyncio
import ssl
import sys
from pathlib import Path
from zlib import crc32

import msgspec
import orjson
import uvloop
from aiohttp import web

from tests.bench.stand import FILTER, PRIORITIZE
from workers.http.address import Address
from workers.http.tls import load_tls
from workers.http.tls_files import TlsFiles

MAX_BODY_BYTES = 1 << 30
REASON = "Node violates policy-00: node_metric_00 > 95"
NAMES, NODES = b',"NodeNames":', b'"Nodes":'


def _all_pass(body: bytes) -> bytes:
    """The answer to filter: the nodes of the request, in its form, as the scheduler wrote them."""
    names = body.rindex(NAMES)
    if not body.startswith(b"null", names + len(NAMES)):
        return b"{" + body[names + 1 :]
    return b"{" + body[body.index(NODES + b"{") : names] + b"}"


class _SameAnswer:
    """Answers in the form of the product's, by the hash of a name; each part is made once for a name."""

    def __init__(self) -> None:
        self._rejected: dict[str, bool] = {}
        self._scores: dict[str, bytes] = {}

    def rejects(self, name: str) -> bool:
        """Whether filter rejects a node."""
        if name not in self._rejected:
            self._rejected[name] = crc32(name.encode()) % 10 == 0
        return self._rejected[name]

    async def filter(self, request: web.Request) -> web.Response:
        """An ExtenderFilterResult."""
        names = _read_names(await request.read()).names
        failed = {name: REASON for name in names if self.rejects(name)}
        passed = [name for name in names if name not in failed]
        body = {
            "Nodes": None,
            "NodeNames": passed,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": failed,
            "Error": "",
        }
        return web.Response(body=orjson.dumps(body), headers={"Content-Type": "application/json"})

    async def prioritize(self, request: web.Request) -> web.Response:
        """A HostPriorityList."""
        names = _read_names(await request.read()).names
        for name in names:
            if name not in self._scores:
                self._scores[name] = orjson.dumps({"Host": name, "Score": crc32(name.encode()) % 11})
        body = b"[" + b",".join(map(self._scores.__getitem__, names)) + b"]"
        return web.Response(body=body, headers={"Content-Type": "application/json"})


class _Names(msgspec.Struct):
    names: list[str] = msgspec.field(name="NodeNames")


_read_names = msgspec.json.Decoder(_Names).decode


async def _filter(request: web.Request) -> web.Response:
    return web.Response(body=_all_pass(await request.read()), headers={"Content-Type": "application/json"})


async def _prioritize(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b"[]", headers={"Content-Type": "application/json"})


async def _serve(address: Address, tls: ssl.SSLContext | None, *, same: bool) -> None:
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    answer = _SameAnswer()
    filters, prioritizes = (answer.filter, answer.prioritize) if same else (_filter, _prioritize)
    app.add_routes([web.post(FILTER, filters), web.post(PRIORITIZE, prioritizes)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, address.host, address.port, ssl_context=tls).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    files = [Path(each) for each in sys.argv[3:] if each != "same"]
    tls = None
    if files:
        cert, key, cacert = files
        tls = load_tls(TlsFiles(cert=cert, key=key, cacert=cacert)).context
    uvloop.run(_serve(Address.parse(sys.argv[2]), tls, same="same" in sys.argv[3:]))
