"""Requests to sinks that are hostile, broken or not there: each attempt ends in time, and costs little memory."""

import asyncio
import gzip
import socket
import ssl
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from tas.notifying.config import ChatConfig
from tas.values.http_config import TlsConfig
from tests.certificates import Authority
from tests.integration.servers import eventually
from tests.integration.workers.notify.receiver import Receiver, answering, flooding, receiving
from workers.notify.poster import MAX_RETRY_AFTER, Answer, Poster
from workers.notify.sinks.base import SinkMetrics

JSON = {"Content-Type": "application/json"}
BOMB_BYTES = 16 << 20


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "*")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@asynccontextmanager
async def posting(
    url: str, *, timeout: str = "60s", tls: TlsConfig | None = None, folder: Path = Path()
) -> AsyncIterator[Poster]:
    """A poster of a sink with this URL."""
    config = ChatConfig(url=url, timeout=timeout, tls_config=tls)
    metrics = SinkMetrics(CollectorRegistry())
    poster = Poster(config, sink="hook", folder=folder, requests=metrics.requests, url=url)
    try:
        yield poster
    finally:
        await poster.close()


async def answer_of(receiver: Receiver, *, timeout: str = "60s") -> Answer:
    async with posting(receiver.url, timeout=timeout) as poster:
        return await poster.post(b"{}", JSON)


async def dripping(request: web.Request) -> web.StreamResponse:
    """An error with one byte after the other, and no end."""
    response = web.StreamResponse(status=500)
    await response.prepare(request)
    while True:
        await response.write(b"x")
        await asyncio.sleep(0.05)


async def test_an_answer_that_never_ends_ends_at_the_time_limit(receiver: Receiver) -> None:
    receiver.behaviour = dripping
    answer = await answer_of(receiver, timeout="300ms")
    assert (answer.status, answer.problem) == (0, "no answer within 300ms")


async def test_of_an_error_only_the_start_is_read_also_if_it_is_compressed(receiver: Receiver) -> None:
    bomb = gzip.compress(bytes(BOMB_BYTES))

    async def explode(_request: web.Request) -> web.Response:
        return web.Response(status=503, body=bomb, headers={"Content-Encoding": "gzip"})

    receiver.behaviour = flooding
    assert (await answer_of(receiver)).status == 502
    receiver.behaviour = explode
    tracemalloc.start()
    try:
        answer = await answer_of(receiver)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status == 503
    assert len(answer.problem) < 1000
    assert peak < BOMB_BYTES / 4


async def test_the_body_of_an_accepted_event_is_not_read(receiver: Receiver) -> None:
    ended = asyncio.Event()

    async def accept_without_end(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        try:
            await response.prepare(request)
            while True:
                await response.write(bytes(65536))
        finally:
            ended.set()

    receiver.behaviour = accept_without_end
    assert (await answer_of(receiver)).accepted
    await eventually(ended.is_set)


async def test_a_redirection_is_named_without_its_password_and_not_followed(receiver: Receiver) -> None:
    receiver.behaviour = answering(308, Location="https://user:secret@elsewhere.example/in?token=secret")
    answer = await answer_of(receiver)
    assert answer.problem == "redirects to 'elsewhere.example', which is not followed (308)"
    receiver.behaviour = answering(302, Location="http://[not-an-address/")
    assert not (await answer_of(receiver)).accepted
    assert len(receiver.requests) == 2


@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [
        (503, "7", 7.0),
        (429, "86400", MAX_RETRY_AFTER),
        (429, "999999999", MAX_RETRY_AFTER),
        (503, "99999999999999999999", MAX_RETRY_AFTER),
        (429, "9" * 5000, 0.0),
        (429, "-1", 0.0),
        (503, "Fri, 31 Dec 1999 23:59:59 GMT", 0.0),
        (500, "7", 0.0),
    ],
)
async def test_a_sink_can_ask_for_a_wait_up_to_two_minutes(
    receiver: Receiver, status: int, header: str, seconds: float
) -> None:
    receiver.behaviour = answering(status, **{"Retry-After": header})
    assert (await answer_of(receiver)).retry_after == seconds


@pytest.mark.parametrize(
    ("status", "is_about_the_body"),
    [(400, True), (413, True), (415, True), (422, True), (401, False), (404, False), (429, False), (500, False)],
)
async def test_only_an_answer_about_the_body_says_that_another_attempt_changes_nothing(
    receiver: Receiver, status: int, is_about_the_body: bool
) -> None:
    receiver.behaviour = answering(status)
    answer = await answer_of(receiver)
    assert (answer.accepted, answer.refused) == (False, is_about_the_body)


async def test_a_url_in_a_file_counts_from_the_next_event_on(receiver: Receiver, tmp_path: Path) -> None:
    config = ChatConfig(url_file="url", timeout="60s")
    requests = SinkMetrics(CollectorRegistry()).requests
    poster = Poster(config, sink="hook", folder=tmp_path, requests=requests, url_file="url")
    async with receiving() as moved:
        try:
            for receives in (receiver, moved):
                (tmp_path / "url").write_text(receives.url)
                assert (await poster.post(b"{}", JSON)).accepted
                assert len(receives.requests) == 1
        finally:
            await poster.close()


async def test_a_server_with_a_certificate_of_another_authority_gets_nothing(tmp_path: Path) -> None:
    ours, theirs = Authority("ours"), Authority("theirs")
    (tmp_path / "ca.crt").write_bytes(ours.certificate)
    tls = TlsConfig(ca_file="ca.crt")
    for authority in (theirs, ours):
        pair = authority.server("sink")
        (tmp_path / "tls.crt").write_bytes(pair.certificate)
        (tmp_path / "tls.key").write_bytes(pair.key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        async with receiving(tls=context) as receiver, posting(receiver.url, tls=tls, folder=tmp_path) as poster:
            answer = await poster.post(b"{}", JSON)
            assert answer.accepted == (authority is ours), answer.problem
            assert len(receiver.requests) == (authority is ours)
            if authority is theirs:
                assert "certificate verify failed" in answer.problem
                assert (answer.status, answer.code, answer.refused) == (0, "none", False)


async def test_a_name_that_does_not_exist_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", missing)
    async with posting("http://sink.example/in") as poster:
        answer = await poster.post(b"{}", JSON)
    assert (answer.code, answer.refused) == ("none", False)
    assert "sink.example" in answer.problem
    assert "Name or service not known" in answer.problem


async def test_names_whose_servers_do_not_answer_delay_no_other_name(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool of threads of the event loop would be full; with uvloop, two names are sufficient for that."""
    released, asked = threading.Event(), []
    getaddrinfo = socket.getaddrinfo

    def slow(host: str, *arguments: Any, **options: Any) -> Any:
        if host.endswith(".example"):
            asked.append(host)
            released.wait(600)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return getaddrinfo(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    silent = 40
    attempts = [
        asyncio.create_task(_attempt(f"http://sink-{number}.example/in", timeout="120s")) for number in range(silent)
    ]
    try:
        await eventually(lambda: len(asked) == silent)
        answer = await _attempt(receiver.url.replace("127.0.0.1", "localhost"), timeout="120s")
        assert answer.accepted, answer.problem
        assert not any(attempt.done() for attempt in attempts)
    finally:
        released.set()
    answers = await asyncio.gather(*attempts)
    assert all("Temporary failure in name resolution" in answer.problem for answer in answers)


async def _attempt(url: str, *, timeout: str) -> Answer:
    async with posting(url, timeout=timeout) as poster:
        return await poster.post(b"{}", JSON)
