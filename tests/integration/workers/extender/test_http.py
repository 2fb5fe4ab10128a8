"""The extender on a real socket: the checks of requests, and the isolation of clients from each other."""

import asyncio
import gzip
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tas.extender.decision import Decider, FilterDecision, Outcome, ScoreDecision
from tas.extender.verbs import Answer
from tests.deciders import FixedDecider
from tests.integration.servers import eventually
from workers.http.address import Address
from workers.http.listening import listening
from workers.scheduler.http import UNFINISHED_BODIES, AnswerRing, build_app, verb_handlers
from workers.scheduler.metrics import CLIENT_GONE, ExtenderMetrics

LIMIT = 20_000
POD = {"metadata": {"name": "p", "namespace": "ns"}}
ASK = json.dumps({"Pod": POD, "Nodes": None, "NodeNames": ["a", "b"]}).encode()
PATIENCE = 120.0


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Connection:
    """An HTTP/1.1 connection, byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self) -> Reply:
        """The next response; raises IncompleteReadError if the server closed the connection."""
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")[:-2]
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Reply(int(first.split()[1]), headers, body)

    def abort(self) -> None:
        """Resets the connection, like a killed client."""
        self.writer.transport.abort()


def request(
    path: str = "/scheduler/filter",
    body: bytes = ASK,
    *,
    method: str = "POST",
    content_type: str | None = "application/json",
    length: int | None = -1,
    **headers: str,
) -> bytes:
    """A request; `length` overrides the declared length of the body, None omits it."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    if length is not None:
        lines.append(f"Content-Length: {len(body) if length == -1 else length}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunks(*parts: bytes) -> bytes:
    """The body with transfer encoding chunked."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


@dataclass
class Served:
    """A listening extender, with its answers and logs."""

    address: Address
    registry: CollectorRegistry
    answers: list[Answer] = field(default_factory=list)
    not_ready: str | None = None
    begun: int = 0
    """The number of requests to a verb whose headers were accepted."""

    def unready(self) -> str | None:
        self.begun += 1
        return self.not_ready

    @asynccontextmanager
    async def connect(self, source: str = "127.0.0.1") -> AsyncIterator[Connection]:
        """A connection from `source`, an address of this machine."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port, local_addr=(source, 0))
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()

    async def ask(self, data: bytes) -> Reply:
        async with self.connect() as connection:
            await connection.send(data)
            return await connection.receive()

    def metric(self, name: str, path: str = "/scheduler", **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"path": path} | labels)


@asynccontextmanager
async def serving(decider: Decider, *, body_seconds: float = PATIENCE) -> AsyncIterator[Served]:
    registry = CollectorRegistry()
    served = Served(Address("127.0.0.1", 0), registry)
    app = build_app(
        {"/scheduler": verb_handlers(decider), "/other": verb_handlers(FixedDecider())},
        unready=served.unready,
        on_answer=served.answers.append,
        metrics=ExtenderMetrics(registry),
        max_body_bytes=LIMIT,
        body_seconds=body_seconds,
        clock=lambda: 1234.5,
    )
    async with listening(app, Address("127.0.0.1", 0), purpose="test") as address:
        served.address = address
        yield served


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(FixedDecider(rejects={"a": "Node violates p: m GreaterThan 1"}, scores={"b": 10})) as served:
        yield served


async def test_facts_c1_a_verb_is_posted_below_the_prefix(served: Served) -> None:
    filtered = await served.ask(request("/scheduler/filter"))
    scored = await served.ask(request("/scheduler/prioritize"))

    assert (filtered.status, filtered.headers["content-type"]) == (200, "application/json")
    assert filtered.json["NodeNames"] == ["b"]
    assert (scored.status, scored.headers["content-type"]) == (200, "application/json")
    assert scored.json == [{"Host": "a", "Score": 0}, {"Host": "b", "Score": 10}]


async def test_each_prefix_has_its_own_decider(served: Served) -> None:
    reply = await served.ask(request("/other/filter"))

    assert reply.json["NodeNames"] == ["a", "b"]
    assert [answer.path for answer in served.answers] == ["/other"]


async def test_a_query_does_not_hide_the_verb(served: Served) -> None:
    assert (await served.ask(request("/scheduler/filter?timeout=5s"))).status == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/scheduler/filter", "/x"])
async def test_facts_H1_other_methods_get_405(served: Served, method: str, path: str) -> None:
    reply = await served.ask(request(path, b"", method=method, content_type=None))

    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert reply.headers["content-type"] == "application/json"
    assert reply.json == {"error": f"method = '{method}': must be POST"}


@pytest.mark.parametrize("content_type", ["text/plain", None, "application/jsonx", "application/xml; application/json"])
async def test_facts_H2_other_types_get_415(served: Served, content_type: str | None) -> None:
    reply = await served.ask(request(content_type=content_type))

    assert (reply.status, reply.headers["content-type"]) == (415, "application/json")
    assert reply.json == {"error": f"Content-Type = {content_type!r}: must be application/json"}


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "application/json;charset=UTF-8", "Application/JSON ; a=b"]
)
async def test_facts_H3_parameters_of_the_type_are_accepted(served: Served, content_type: str) -> None:
    assert (await served.ask(request(content_type=content_type))).status == 200


def padded(size: int) -> bytes:
    return ASK + b" " * (size - len(ASK))


async def test_facts_H4_a_body_of_exactly_the_limit_is_read(served: Served) -> None:
    assert (await served.ask(request(body=padded(LIMIT)))).status == 200


async def test_facts_H4_a_longer_declared_body_gets_413_before_it_is_sent(served: Served) -> None:
    reply = await served.ask(request(body=b"", length=LIMIT + 1))

    assert (reply.status, reply.headers["content-type"]) == (413, "application/json")
    assert reply.json == {"error": f"body = {LIMIT + 1} bytes: the limit is {LIMIT}"}


@pytest.mark.parametrize("size", [LIMIT + 1, 100 * LIMIT])
async def test_facts_H4_a_longer_body_of_undeclared_length_gets_413(served: Served, size: int) -> None:
    data = request(body=chunks(padded(size)), length=None, Transfer_Encoding="chunked")

    reply = await served.ask(data)

    assert reply.status == 413
    assert f"the limit is {LIMIT}" in reply.json["error"]


async def test_unfinished_bodies_have_a_limit_together_and_the_oldest_is_refused(served: Served) -> None:
    part = padded(LIMIT)[:-1]
    async with AsyncExitStack() as others:
        unfinished = []
        for number in range(UNFINISHED_BODIES + 1):
            connection = await others.enter_async_context(served.connect())
            await connection.send(request(body=part, length=LIMIT))
            await eventually(lambda number=number: served.begun == number + 1)  # type: ignore[misc]
            unfinished.append(connection)
        reply = await unfinished[0].receive()
        assert (reply.status, reply.headers["connection"]) == (503, "close")
        assert (await served.ask(request())).status == 200, "a request that arrives at once is answered"

        for connection in unfinished[1:]:
            await connection.send(padded(LIMIT)[-1:])
            assert (await connection.receive()).status == 200
        assert (await served.ask(request(body=padded(LIMIT)))).status == 200


async def test_unfinished_bodies_of_one_peer_cost_another_peer_none(served: Served) -> None:
    part = padded(LIMIT)[:-1]
    async with served.connect() as scheduler, AsyncExitStack() as others:
        await scheduler.send(request(body=part, length=LIMIT))
        await eventually(lambda: served.begun == 1)
        unfinished = []
        for number in range(UNFINISHED_BODIES):
            connection = await others.enter_async_context(served.connect("127.0.0.2"))
            await connection.send(request(body=part, length=LIMIT))
            await eventually(lambda number=number: served.begun == number + 2)  # type: ignore[misc]
            unfinished.append(connection)
        assert (await unfinished[0].receive()).status == 503
        await scheduler.send(padded(LIMIT)[-1:])
        assert (await scheduler.receive()).status == 200, "its body is the oldest of all"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "x", "identity, gzip"])
async def test_a_compressed_body_gets_415_before_it_is_unpacked(served: Served, encoding: str) -> None:
    async with served.connect() as connection:
        await connection.send(request(body=gzip.compress(ASK)[:-1], length=LIMIT, Content_Encoding=encoding))
        reply = await connection.receive()

    assert (reply.status, reply.headers["content-type"]) == (415, "application/json")
    assert reply.json == {"error": f"Content-Encoding = '{encoding}': must be absent, or identity"}


async def test_a_body_with_the_encoding_identity_is_answered(served: Served) -> None:
    assert (await served.ask(request(Content_Encoding="Identity"))).status == 200


@pytest.mark.parametrize("path", ["/scheduler/filter", "/nowhere"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_no_path_unpacks_a_body(served: Served, path: str, encoding: str) -> None:
    """What cannot be unpacked is discarded like any other body, and the connection is used again."""
    with capture_logs() as events:
        async with served.connect() as connection:
            await connection.send(request(path, b"neither gzip nor deflate", Content_Encoding=encoding))
            assert (await connection.receive()).status in (404, 415)
            await connection.send(request())
            assert (await connection.receive()).status == 200

    assert events == []


@pytest.mark.parametrize(
    "path",
    ["/", "/x", "/scheduler", "/scheduler/", "/scheduler/bind", "/scheduler/filter/", "/filter"],
)
async def test_facts_H5_c30_other_paths_get_404_and_bind_too(served: Served, path: str) -> None:
    reply = await served.ask(request(path))

    assert (reply.status, reply.headers["content-type"]) == (404, "application/json")
    assert reply.json == {"error": f"path = '{path}': no verb is answered here"}
    assert served.metric("tas_extender_requests_total", path="", verb="", code="404") == 1


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
async def test_facts_H7_garbage_after_the_value_gets_400(served: Served, verb: str) -> None:
    reply = await served.ask(request(f"/scheduler/{verb}", ASK + b" {}"))

    assert (reply.status, reply.headers["content-type"]) == (400, "application/json")
    assert "JSON is malformed: trailing characters" in reply.json["error"]


async def test_facts_c31_preempt_omits_rejected_nodes(served: Served) -> None:
    victims = {"Pods": [{"UID": "u"}], "NumPDBViolations": 2}
    asked = {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": {"a": victims, "b": victims}}

    reply = await served.ask(request("/scheduler/preempt", json.dumps(asked).encode()))

    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json == {"NodeNameToMetaVictims": {"b": victims}}
    assert [(answer.verb, answer.candidates, answer.passed) for answer in served.answers] == [("preempt", 2, 1)]
    assert served.metric("tas_extender_requests_total", verb="preempt", code="200") == 1


@pytest.mark.parametrize("body", [b"", b"{", b'{"Pod":null,"NodeNames":["a"]}', b"[" * LIMIT, b"\xff\xfe"])
async def test_facts_c4_an_invalid_request_gets_an_error_with_its_reason(served: Served, body: bytes) -> None:
    reply = await served.ask(request(body=body))

    assert (reply.status, reply.headers["content-type"]) == (400, "application/json")
    assert reply.json["error"].startswith("ExtenderArgs: ")
    assert [answer.error for answer in served.answers] == [reply.json["error"]]


async def test_a_body_in_pieces_is_read_completely(served: Served) -> None:
    async with served.connect() as connection:
        await connection.send(request()[:-30])
        await eventually(lambda: served.begun == 1)
        await connection.send(request()[-30:])
        declared = await connection.receive()
        await connection.send(request(body=chunks(ASK[:7], ASK[7:]), length=None, Transfer_Encoding="chunked"))
        chunked = await connection.receive()

    assert (declared.status, chunked.status) == (200, 200)
    assert declared.json == chunked.json


@pytest.mark.parametrize("body", [b"zz\r\n", b"5\r\nabcdefgh", b"-1\r\n"])
async def test_a_body_in_broken_chunks_gets_400(served: Served, body: bytes) -> None:
    async with served.connect() as connection:
        await connection.send(request(body=body + b"\r\n\r\n", length=None, Transfer_Encoding="chunked"))
        reply = await connection.receive()

    assert reply.status == 400
    assert (await served.ask(request())).status == 200


@pytest.mark.parametrize(
    "data",
    [request(), request(method="GET"), request("/nowhere"), request(body=b"{"), b"BROKEN\r\n\r\n"],
    ids=["answer", "method", "path", "body", "no-http"],
)
async def test_a_response_does_not_name_the_server(served: Served, data: bytes) -> None:
    assert "server" not in (await served.ask(data)).headers


async def test_a_connection_stays_open_after_answers_and_refusals(served: Served) -> None:
    async with served.connect() as connection:
        statuses = []
        for data in (
            request(),
            request(body=b"{"),
            request("/x"),
            request(method="GET", body=b""),
            request(content_type="text/plain"),
            request("/scheduler/prioritize"),
        ):
            await connection.send(data)
            statuses.append((await connection.receive()).status)

    assert statuses == [200, 400, 404, 405, 415, 200]


async def test_requests_sent_at_once_are_answered_in_order(served: Served) -> None:
    async with served.connect() as connection:
        await connection.send(request() + request("/scheduler/prioritize") + request(body=b"{"))
        replies = [await connection.receive() for _ in range(3)]

    assert [reply.status for reply in replies] == [200, 200, 400]
    assert replies[0].json["NodeNames"] == ["b"]
    assert [host["Host"] for host in replies[1].json] == ["a", "b"]


async def test_requests_get_503_with_the_reason_until_ready(served: Served) -> None:
    served.not_ready = "policies: not synced"

    refused = await served.ask(request())
    elsewhere = [(await served.ask(data)).status for data in (request(method="GET"), request("/x"))]
    served.not_ready = None
    answered = await served.ask(request())

    assert (refused.status, refused.headers["content-type"]) == (503, "application/json")
    assert refused.json == {"error": "not ready: policies: not synced"}
    assert elsewhere == [405, 404]
    assert answered.status == 200


async def test_a_missing_body_gets_408_and_closes_the_connection() -> None:
    async with serving(FixedDecider(), body_seconds=0.1) as served, served.connect() as connection:
        await connection.send(request(length=len(ASK) + 1))
        reply = await connection.receive()

        assert (reply.status, reply.headers["content-type"]) == (408, "application/json")
        assert reply.headers["connection"] == "close"
        assert reply.json == {"error": f"body: {len(ASK)} bytes in 0.1 s: too slow"}


class BrokenDecider(FixedDecider):
    """Has a bug for some pods."""

    def filter(self, pod: Any, candidates: Any, now: float) -> FilterDecision:
        if "a" in candidates:
            raise RuntimeError("a bug")
        return super().filter(pod, candidates, now)

    def score(self, pod: Any, candidates: Any, now: float) -> ScoreDecision:
        return ScoreDecision(outcome=Outcome.DECIDED, scores={"a": object()})  # type: ignore[dict-item]


async def test_facts_c3_a_bug_gets_500_and_a_traceback_and_affects_no_other_request() -> None:
    healthy = json.dumps({"Pod": POD, "NodeNames": ["b"]}).encode()
    async with serving(BrokenDecider()) as served, served.connect() as connection:
        replies = []
        with capture_logs() as logged:
            for data in (request(), request(body=healthy), request("/scheduler/prioritize"), request(body=healthy)):
                await connection.send(data)
                replies.append(await connection.receive())

        assert [reply.status for reply in replies] == [500, 200, 500, 200]
        assert replies[0].headers["content-type"] == "application/json"
        assert replies[0].json == {"error": "a bug, see the log: RuntimeError"}
        assert served.metric("tas_extender_requests_total", verb="filter", code="500") == 1
    assert [(event["event"], event["verb"], event["exc_info"]) for event in logged] == [
        ("extender_answer_failed", "filter", True),
        ("extender_answer_failed", "prioritize", True),
    ]


@pytest.mark.parametrize("part", [request()[:20], request(length=len(ASK) + 10), request(length=LIMIT)[:-5]])
async def test_a_client_that_disconnects_leaves_no_task_or_error(
    served: Served, part: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    before = len(asyncio.all_tasks())
    async with served.connect() as connection:
        with caplog.at_level(logging.DEBUG):
            await connection.send(part)
            await eventually(lambda: len(asyncio.all_tasks()) > before)
            connection.abort()
            await eventually(lambda: len(asyncio.all_tasks()) <= before)

    assert (await served.ask(request())).status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_client_that_disconnects_is_counted(served: Served) -> None:
    async with served.connect() as connection:
        await connection.send(request(length=len(ASK) + 10))
        await eventually(lambda: served.begun == 1)
        connection.abort()

        await eventually(
            lambda: served.metric("tas_extender_requests_total", verb="filter", code=str(CLIENT_GONE)) == 1
        )


async def test_a_slow_client_does_not_delay_others(served: Served) -> None:
    async with served.connect() as slow:
        await slow.send(request()[:-1])
        await eventually(lambda: served.begun == 1)
        others = await asyncio.gather(*(served.ask(request()) for _ in range(20)))
        await slow.send(request()[-1:])
        last = await slow.receive()

    assert {reply.status for reply in (*others, last)} == {200}


async def test_every_request_to_a_verb_is_reported(served: Served) -> None:
    await served.ask(request())
    await served.ask(request("/scheduler/prioritize", b"{"))

    answered, refused = served.answers
    assert 0 < answered.seconds < PATIENCE
    assert answered == Answer(
        time=1234.5,
        path="/scheduler",
        verb="filter",
        seconds=answered.seconds,
        namespace="ns",
        pod="p",
        policy="default/p",
        outcome=Outcome.DECIDED,
        candidates=2,
        passed=1,
        reasons={"Node violates p: m GreaterThan 1": 1},
        rejected=("a",),
    )
    assert (refused.path, refused.verb, refused.status, refused.outcome) == ("/scheduler", "prioritize", 400, None)
    assert refused.error.startswith("ExtenderArgs: body = ")


async def test_requests_and_answers_are_counted() -> None:
    decider = FixedDecider(rejects={"a": "x"}, scores={"b": 1}, unknown=3, unknown_rejected=1)
    async with serving(decider) as served:
        for data in (request(), request(), request(body=b"{"), request("/scheduler/prioritize")):
            await served.ask(data)
        await eventually(lambda: len(served.answers) == 4)

        assert served.metric("tas_extender_requests_total", verb="filter", code="200") == 2
        assert served.metric("tas_extender_requests_total", verb="filter", code="400") == 1
        assert served.metric("tas_extender_requests_total", verb="prioritize", code="200") == 1
        assert served.metric("tas_extender_request_seconds_count", verb="filter") == 3
        assert served.metric("tas_extender_decisions_total", verb="filter", outcome="decided") == 2
        assert served.metric("tas_extender_decisions_total", verb="filter", outcome="no_policy") == 0
        assert served.metric("tas_extender_candidates_total", verb="filter") == 4
        assert served.metric("tas_extender_candidates_total", verb="prioritize") == 2
        assert served.metric("tas_extender_rejected_total") == 2
        assert served.metric("tas_extender_unknown_passed_total") == 6
        assert served.metric("tas_extender_unknown_rejected_total") == 2
        assert served.metric("tas_extender_unknown_scored_total") == served.answers[-1].unknown > 0


def test_the_last_request_has_its_time_and_before_the_first_one_it_is_the_start() -> None:
    registry, before = CollectorRegistry(), time.time()
    metrics = ExtenderMetrics(registry)
    metrics.mount("/x", ["filter", "prioritize"])

    def last(verb: str) -> float:
        labels = {"path": "/x", "verb": verb}
        value = registry.get_sample_value("tas_extender_last_request_timestamp_seconds", labels)
        assert value is not None
        return value

    assert before <= last("filter") <= time.time()
    asked = time.time() + 60
    metrics.observe(Answer(time=asked, path="/x", verb="filter", status=503))
    metrics.observe(Answer(time=asked - 30, path="/x", verb="filter"))
    metrics.mount("/x", ["filter"])
    assert last("filter") == asked, "a refused request came, too, and an older one ends later"
    assert last("prioritize") < asked - 30


def test_times_are_counted_in_histogram_buckets() -> None:
    registry = CollectorRegistry()
    metrics = ExtenderMetrics(registry)
    metrics.mount("/x", ["filter"])
    for seconds in (0.0001, 0.0005, 0.0006, 3.0):
        metrics.observe(Answer(time=0.0, path="/x", verb="filter", seconds=seconds))
    labels = {"path": "/x", "verb": "filter"}

    def bucket(bound: str) -> float | None:
        return registry.get_sample_value("tas_extender_request_seconds_bucket", labels | {"le": bound})

    assert [bucket(bound) for bound in ("0.00025", "0.0005", "0.001", "2.5", "+Inf")] == [1, 2, 3, 3, 4]
    assert registry.get_sample_value("tas_extender_request_seconds_sum", labels) == pytest.approx(3.0012)


async def test_a_decision_with_an_error_counts_no_rejected_node() -> None:
    async with serving(FixedDecider(rejects={"a": "x"}, error="no such policy", unknown=1)) as served:
        assert (await served.ask(request())).json["Error"] == "no such policy"

        assert served.metric("tas_extender_decisions_total", verb="filter", outcome="decided") == 1
        assert served.metric("tas_extender_rejected_total") == 0
        assert served.metric("tas_extender_unknown_passed_total") == 0


def test_the_ring_keeps_the_last_answers_as_json() -> None:
    ring = AnswerRing(size=2)
    for number in range(3):
        ring.add(Answer(time=float(number), verb="filter", outcome=Outcome.NO_POLICY, best=(("a", 10),)))

    assert len(ring) == 2
    first, last = json.loads(ring.to_json())
    assert (first["time"], last["time"]) == (1.0, 2.0)
    assert last["outcome"] == "no_policy"
    assert last["best"] == [["a", 10]]
    assert set(last) == set(Answer.__struct_fields__)


def test_the_ring_keeps_no_more_bytes_than_its_limit() -> None:
    ring = AnswerRing(max_bytes=100_000)
    for number in range(500):
        ring.add(Answer(time=float(number), verb="filter", error="\U0001f600" * 1000))

    kept = json.loads(ring.to_json())
    assert 90_000 < len(ring.to_json()) <= 100_000 + len("[]") + len(kept)
    assert len(ring) == len(kept) < 500
    assert kept[-1]["time"] == 499.0, "the oldest are dropped first"

    ring.add(Answer(time=500.0, verb="filter", error="x" * 200_000))
    assert ring.to_json() == b"[]", "an answer that is too large alone is not kept"
