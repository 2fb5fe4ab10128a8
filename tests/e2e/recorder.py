"""An extender of the tests: it answers as a test decides, or forwards, and keeps all requests."""

import http.client
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FILTER = "filter"
PRIORITIZE = "prioritize"
PREEMPT = "preempt"
BIND = "bind"


@dataclass(frozen=True, slots=True)
class Response:
    """An answer to the scheduler: a status and a body, which is sent `pause` seconds after the headers."""

    status: int
    raw: bytes
    pause: float = 0.0

    @property
    def body(self) -> Any:
        """The decoded body: an object or a list, depending on the verb."""
        return json.loads(self.raw)


@dataclass(slots=True, kw_only=True)
class Request:
    """One request of the scheduler, and its answer."""

    verb: str
    headers: Mapping[str, str]
    raw: bytes
    response: Response = field(init=False)

    @property
    def body(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.raw)
        return decoded

    @property
    def pod(self) -> str:
        """The name of the request's pod."""
        body = self.body
        return str(body["PodName"] if "PodName" in body else body["Pod"]["metadata"]["name"])

    @property
    def names(self) -> list[str]:
        """The names of the candidate nodes, from either form of the request."""
        body = self.body
        if self.verb == PREEMPT:
            return list(body["NodeNameToMetaVictims"] or body["NodeNameToVictims"] or ())
        if body["NodeNames"] is not None:
            return list(body["NodeNames"])
        return [node["metadata"]["name"] for node in body["Nodes"]["items"]]


Answer = Callable[[Request], Response]


def answer_with(body: object, status: int = 200) -> Response:
    """An answer with this body as JSON."""
    return Response(status, json.dumps(body).encode())


def passing(
    request: Request, names: Iterable[str], *, failed: str = "FailedNodes", reason: str = "rejected"
) -> Response:
    """The answer to filter that passes these names, in the form of the request, and rejects the others."""
    wanted, body = set(names), request.body
    answer: dict[str, object] = {"Nodes": None, "NodeNames": None, "Error": ""}
    if body["NodeNames"] is not None:
        answer["NodeNames"] = [name for name in body["NodeNames"] if name in wanted]
    else:
        answer["Nodes"] = {"items": [node for node in body["Nodes"]["items"] if node["metadata"]["name"] in wanted]}
    answer[failed] = {name: reason for name in request.names if name not in wanted}
    return answer_with(answer)


def scoring(scores: Mapping[str, int]) -> Response:
    """The answer to prioritize with these scores of nodes."""
    return answer_with([{"Host": host, "Score": score} for host, score in scores.items()])


def offering(request: Request, names: Iterable[str]) -> Response:
    """The answer to preempt with these of the request's nodes, and with the victims of the request."""
    body = request.body
    if body["NodeNameToMetaVictims"] is not None:
        victims = body["NodeNameToMetaVictims"]
    else:
        victims = {
            node: each | {"Pods": [{"UID": pod["metadata"]["uid"]} for pod in each["Pods"]]}
            for node, each in body["NodeNameToVictims"].items()
        }
    return answer_with({"NodeNameToMetaVictims": {name: victims[name] for name in names if name in victims}})


def forwarding(url: str) -> Answer:
    """Forwards every request to the extender at `url`, and returns its answer byte for byte."""
    address = url.removeprefix("http://")

    def forward(request: Request) -> Response:
        connection = http.client.HTTPConnection(address, timeout=60)
        try:
            connection.request(
                "POST", f"/scheduler/{request.verb}", request.raw, {"Content-Type": request.headers["Content-Type"]}
            )
            answer = connection.getresponse()
            return Response(answer.status, answer.read())
        finally:
            connection.close()

    return forward


class Recorder:
    """A running extender, and its requests so far, oldest first."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []

    def about(self, pod: str, verb: str | None = None) -> list[Request]:
        """The requests about one pod."""
        return [request for request in list(self.requests) if request.pod == pod and verb in (None, request.verb)]

    def answered(self, pod: str, verb: str) -> int:
        """How many requests about a pod have their answer; one that has only arrived may yet get another one."""
        return sum(hasattr(request, "response") for request in self.about(pod, verb))


@contextmanager
def recording(answer: Answer) -> Iterator[Recorder]:
    """Runs an extender on a free port of 127.0.0.1 that answers with `answer` and records every request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            request = Request(verb=self.path.removeprefix("/scheduler/"), headers=dict(self.headers), raw=raw)
            recorder.requests.append(request)
            response = request.response = answer(request)
            self.send_response(response.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(response.raw)))
            self.end_headers()
            ended.wait(response.pause)
            self.wfile.write(response.raw)

        def log_message(self, *_: object) -> None:
            """Logs nothing: all requests are recorded."""

    ended = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    recorder = Recorder(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield recorder
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
