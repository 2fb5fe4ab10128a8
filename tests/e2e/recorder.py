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
class Answered:
    """An answer to the scheduler: a status and a body, which is sent `pause` seconds after the headers."""

    status: int
    raw: bytes
    pause: float = 0.0

    @property
    def body(self) -> Any:
        """The decoded body: an object or a list, depending on the verb."""
        return json.loads(self.raw)


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request of the scheduler, and its answer."""

    verb: str
    headers: Mapping[str, str]
    raw: bytes
    answered: Answered = field(init=False)

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


Answer = Callable[[Asked], Answered]


def answer_with(body: object, status: int = 200) -> Answered:
    """An answer with this body as JSON."""
    return Answered(status, json.dumps(body).encode())


def passing(asked: Asked, names: Iterable[str], *, failed: str = "FailedNodes", reason: str = "rejected") -> Answered:
    """The answer to filter that passes these names, in the form of the request, and rejects the others."""
    wanted, body = set(names), asked.body
    answer: dict[str, object] = {"Nodes": None, "NodeNames": None, "Error": ""}
    if body["NodeNames"] is not None:
        answer["NodeNames"] = [name for name in body["NodeNames"] if name in wanted]
    else:
        answer["Nodes"] = {"items": [node for node in body["Nodes"]["items"] if node["metadata"]["name"] in wanted]}
    answer[failed] = {name: reason for name in asked.names if name not in wanted}
    return answer_with(answer)


def scoring(scores: Mapping[str, int]) -> Answered:
    """The answer to prioritize with these scores of nodes."""
    return answer_with([{"Host": host, "Score": score} for host, score in scores.items()])


def offering(asked: Asked, names: Iterable[str]) -> Answered:
    """The answer to preempt with these of the request's nodes, and with the victims of the request."""
    body = asked.body
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

    def forward(asked: Asked) -> Answered:
        connection = http.client.HTTPConnection(address, timeout=10)
        try:
            connection.request(
                "POST", f"/scheduler/{asked.verb}", asked.raw, {"Content-Type": asked.headers["Content-Type"]}
            )
            response = connection.getresponse()
            return Answered(response.status, response.read())
        finally:
            connection.close()

    return forward


class Recorder:
    """A running extender, and its requests so far, oldest first."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []

    def about(self, pod: str, verb: str | None = None) -> list[Asked]:
        """The requests about one pod."""
        return [asked for asked in list(self.asked) if asked.pod == pod and verb in (None, asked.verb)]


@contextmanager
def recording(answer: Answer) -> Iterator[Recorder]:
    """Runs an extender on a free port of 127.0.0.1 that answers with `answer` and records every request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            asked = Asked(verb=self.path.removeprefix("/scheduler/"), headers=dict(self.headers), raw=raw)
            recorder.asked.append(asked)
            given = asked.answered = answer(asked)
            self.send_response(given.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(given.raw)))
            self.end_headers()
            ended.wait(given.pause)
            self.wfile.write(given.raw)

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
