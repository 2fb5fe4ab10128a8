"""`/api/v1/query` on a real socket: GET, POST as clients of Prometheus send it, and the bounds."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tas.view.view import View
from tests.integration.servers import eventually
from workers.extender import instant_query
from workers.extender.instant_query import MAX_BODY_BYTES, MAX_WAITING, PATH, InstantQueryHandler
from workers.http.address import Address
from workers.http.listening import listening

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Served:
    """A handler behind a socket, with `load1` of two nodes in its view."""

    def __init__(self) -> None:
        self.unready: str | None = None
        self.registry = CollectorRegistry()
        self.url = ""
        self.session: aiohttp.ClientSession
        self.view = View()
        now = time.time()
        for node, value in (("node-1", "0.9"), ("node-2", "0.1")):
            metrics = {"load1": parse_quantity(value)}
            scrape = Scrape(source="s", measured=now, arrived=now, sequence=1, metrics=metrics)
            self.view.add_samples(node, [scrape], now)

    async def ask(self, method: str, **request: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.url, **request) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    def count(self, code: int) -> float:
        return self.registry.get_sample_value("tas_extender_queries_total", {"code": str(code)}) or 0.0


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Served]:
    served = Served()
    handler = InstantQueryHandler(served.view, unready=lambda: served.unready, registry=served.registry, **options)
    app = web.Application()
    app.add_routes(handler.routes())
    async with (
        listening(app, Address.parse("127.0.0.1:0"), purpose="test") as address,
        aiohttp.ClientSession() as session,
    ):
        served.url, served.session = f"http://{address}{PATH}", session
        yield served


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as served:
        yield served


def values(answer: Any) -> dict[str, str]:
    assert answer["status"] == "success", answer
    return {each["metric"]["instance"]: each["value"][1] for each in answer["data"]["result"]}


async def test_get_and_post_have_one_answer(served: Served) -> None:
    everything = {"node-1": "0.9", "node-2": "0.1"}
    now = str(time.time())
    requests: tuple[dict[str, Any], ...] = (
        {"method": "GET", "params": {"query": "load1"}},
        {"method": "GET", "params": {"query": "load1", "time": now}, "headers": {"Authorization": "Bearer x"}},
        {"method": "POST", "data": {"query": "load1", "time": now}},
        {"method": "POST", "data": {"time": now}, "params": {"query": "load1"}},
    )
    for request in requests:
        status, answer = await served.ask(**request)
        assert (status, values(answer)) == (200, everything)
    status, answer = await served.ask("POST", data={"query": 'load1{instance="node-2"}'})
    assert (status, values(answer)) == (200, {"node-2": "0.1"})
    assert served.count(200) == 5


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        ({"method": "GET"}, 400, "query = ''"),
        ({"method": "GET", "params": {"query": "max(load1)"}}, 400, "max(load1)"),
        ({"method": "GET", "params": [("query", "a"), ("query", "b")]}, 400, "once"),
        ({"method": "POST", "data": {"query": "a"}, "params": {"query": "b"}}, 400, "once"),
        ({"method": "POST", "data": b"query=%ff", "headers": FORM}, 400, "cannot be read"),
        ({"method": "POST", "data": b"\xff", "headers": FORM}, 400, "cannot be read"),
        ({"method": "POST", "data": b"a=1&" * 100, "headers": FORM}, 400, "cannot be read"),
        ({"method": "POST", "json": {"query": "a"}}, 415, "form-urlencoded"),
        ({"method": "POST", "data": b"x", "headers": FORM | {"Content-Encoding": "br"}}, 415, "encoding"),
        ({"method": "POST", "data": b"x" * (MAX_BODY_BYTES + 1), "headers": FORM}, 413, "8190"),
    ],
)
async def test_an_invalid_request_gets_an_error_of_prometheus(
    served: Served, request_: dict[str, Any], status: int, words: str
) -> None:
    code, answer = await served.ask(**request_)
    assert (code, answer["status"], answer["errorType"]) == (status, "error", "bad_data")
    assert words in answer["error"]
    assert served.count(status) == 1


async def test_another_method_is_not_answered(served: Served) -> None:
    assert (await served.ask("DELETE"))[0] == 405


async def test_before_the_view_is_complete_a_query_gets_no_values(served: Served) -> None:
    served.unready = "NODES: not caught up with the bus"
    status, answer = await served.ask("GET", params={"query": "load1"})
    assert (status, answer["errorType"]) == (503, "unavailable")
    assert "not caught up" in answer["error"]
    served.unready = None
    assert (await served.ask("GET", params={"query": "load1"}))[0] == 200


async def test_a_slow_body_ends_with_its_time() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"query="
        await asyncio.sleep(600)

    async with serving(body_seconds=0.1) as served:
        status, answer = await served.ask("POST", data=body(), headers=FORM)
    assert status == 408
    assert "0.1 s" in answer["error"]


async def test_answers_take_a_part_of_the_time_and_only_some_queries_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instant_query, "MAX_SHARE", 1e-6)
    pauses: list[float] = []
    freed = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if seconds > 0:
            await freed.wait()

    async with serving(sleep=sleep) as served:
        asked = [asyncio.create_task(served.ask("GET", params={"query": "load1"})) for _ in range(2 * MAX_WAITING)]

        async def one_is_answered_and_some_wait() -> bool:
            return served.count(200) == 1 and served.count(503) == 2 * MAX_WAITING - 1 - MAX_WAITING

        await eventually(one_is_answered_and_some_wait)
        assert pauses[-1] > 0
        freed.set()
        answers = await asyncio.gather(*asked)
    assert sorted(status for status, _ in answers) == [200] * (MAX_WAITING + 1) + [503] * (MAX_WAITING - 1)
    assert all("10 queries wait" in answer["error"] for status, answer in answers if status == 503)
    assert all(values(answer) for status, answer in answers if status == 200)
