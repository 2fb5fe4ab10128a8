"""The health port while the loop of the workers turns, stands still, and turns again."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.integration.servers import eventually
from workers.health import told_apart
from workers.runtime import Address, StartError, listening

PATIENCE = 30.0
LOOPBACK = Address("127.0.0.1", 0)


def ask(url: str) -> tuple[int, Any]:
    """Asks from whichever thread calls."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def ask_until(url: str, status: int) -> tuple[int, Any]:
    """Asks again and again until it is answered with this status."""
    deadline = time.monotonic() + PATIENCE
    while (answer := ask(url))[0] != status and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer


class Told:
    """A route that tells on which loop its handler ran."""

    def __init__(self) -> None:
        self.loops: list[Any] = []
        self.stalls = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.loops.append(asyncio.get_running_loop())
        if "broken" in request.query:
            raise RuntimeError("a bug")
        return web.json_response({"ok": True})

    def count(self) -> None:
        self.stalls += 1


@asynccontextmanager
async def telling(told: Told) -> AsyncIterator[str]:
    serve = partial(listening, address=LOOPBACK, purpose="health")
    async with told_apart([web.get("/x", told.handle)], serve, on_stall=told.count, check_seconds=0.2) as address:
        yield f"http://{address}/x"


async def elsewhere(url: str) -> tuple[int, Any]:
    return await asyncio.to_thread(ask, url)


def spin(until: "Future[Any]") -> None:
    """Runs without awaiting."""
    deadline = time.monotonic() + PATIENCE
    while not until.done() and time.monotonic() < deadline:
        pass


async def spinning(until: "Future[Any]") -> None:
    spin(until)


async def test_handlers_run_on_the_loop_of_the_workers() -> None:
    told = Told()
    async with telling(told) as url:
        assert await elsewhere(url) == (200, {"ok": True})

    assert told.loops == [asyncio.get_running_loop()]


async def test_a_loop_that_stands_still_is_told_with_the_task_and_the_line_and_turns_again() -> None:
    told = Told()
    with ThreadPoolExecutor(1) as pool, capture_logs() as logs:
        async with telling(told) as url:
            assert await elsewhere(url) == (200, {"ok": True})
            asked = pool.submit(ask_until, url, 503)
            await asyncio.create_task(spinning(asked), name="extension gpu: filter")
            status, body = asked.result()

            async def turns() -> bool:
                return (await elsewhere(url))[0] == 200

            await eventually(turns, within=PATIENCE)

    assert (status, body["ok"]) == (503, False)
    assert body["stalled"]["task"] == "extension gpu: filter"
    assert body["stalled"]["at"].startswith("test_health.py:")
    assert body["stalled"]["seconds"] > 0
    stalled = [line for line in logs if line["event"] == "event_loop_stalled"]
    assert told.stalls == len(stalled) > 0
    assert (stalled[0]["log_level"], stalled[0]["task"]) == ("error", "extension gpu: filter")
    assert "in spin" in stalled[0]["stack"]
    assert [line for line in logs if line["event"] == "event_loop_turns_again"]


async def test_who_has_asked_before_it_stands_still_is_told_too() -> None:
    told = Told()
    with ThreadPoolExecutor(1) as pool:
        async with telling(told) as url:
            asked = pool.submit(ask, url)  # the one and only question: it waits for the loop until that is given up
            spin(asked)
            assert asked.result()[0] == 503


async def test_a_bug_of_a_handler_is_that_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with telling(Told()) as url:
        with pytest.raises(json.JSONDecodeError):  # the body is text
            await elsewhere(f"{url}?broken=1")
        assert (await elsewhere(url))[0] == 200
    assert "a bug" in caplog.text


async def test_what_keeps_it_from_listening_is_raised_here() -> None:
    async with listening(web.Application(), LOOPBACK, purpose="other") as taken:
        serve = partial(listening, address=taken, purpose="health")
        with pytest.raises(StartError, match="health: cannot listen"):
            async with told_apart([], serve):
                pass


async def test_a_body_that_fails_ends_the_thread_as_well() -> None:
    told = Told()
    with pytest.raises(ValueError, match="mine"):
        async with telling(told) as url:
            raise ValueError("mine")

    with pytest.raises(urllib.error.URLError):
        await elsewhere(url)
