"""An extender of the tests' own, for the sandbox's scheduler to ask."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Reply = Callable[[dict[str, Any]], Any]


@dataclass
class FakeExtender:
    """An extender with fixed answers, which keeps its requests: verb and body, oldest first."""

    filter: Reply
    prioritize: Reply
    bind: Reply
    url: str = ""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def count(self, pod: str, verb: str = "filter") -> int:
        """How often `verb` was requested for a pod."""
        return sum(1 for sent, request in self.requests if (sent, pod_of(request)) == (verb, pod))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        verb, body = request.match_info["verb"], await request.json()
        self.requests.append((verb, body))
        answer = {"filter": self.filter, "prioritize": self.prioritize, "bind": self.bind}[verb](body)
        return answer if isinstance(answer, web.Response) else web.json_response(answer)


def pod_of(request: dict[str, Any]) -> str:
    """The name of the pod of a request."""
    return str(request["PodName"] if "PodName" in request else request["Pod"]["metadata"]["name"])


def passing(*names: str) -> Reply:
    """Passes these nodes; the other nodes are unresolvable."""
    return lambda request: {
        "Nodes": None,
        "NodeNames": [name for name in request["NodeNames"] if name in names],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {n: "Node violates demo" for n in request["NodeNames"] if n not in names},
        "Error": "",
    }


def scoring(**scores: int) -> Reply:
    """Returns these scores, by node with `_` for `-`."""
    return lambda _: [{"Host": name.replace("_", "-"), "Score": score} for name, score in scores.items()]


@asynccontextmanager
async def extender(
    filtering: Reply, prioritizing: Reply = lambda _: [], *, binding: Reply = lambda _: {"Error": "no binder"}
) -> AsyncIterator[FakeExtender]:
    """An extender that runs while the body runs."""
    fake = FakeExtender(filtering, prioritizing, binding)
    app = web.Application()
    app.router.add_post("/scheduler/{verb}", fake.handle)
    async with TestServer(app, host="127.0.0.1") as server:
        fake.url = str(server.make_url("")).rstrip("/")
        yield fake
