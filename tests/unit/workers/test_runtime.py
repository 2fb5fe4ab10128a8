"""The supervisor: health of its workers, orderly stop, and failures."""

import asyncio
import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs

from tas.processes.process import LastAnswer
from workers.http.address import Address
from workers.http.connections import bind
from workers.http.listening import listening
from workers.process.errors import StartError, WorkerError
from workers.process.signals import stop_signals
from workers.runtime import Supervisor, new_registry

LOOPBACK = Address("127.0.0.1", 0)


class Steady:
    """Works until cancelled; needs one turn of the loop to finish."""

    def __init__(self, name: str = "steady", *, reason: str | None = None) -> None:
        self.name = name
        self.reason = reason
        self.started = asyncio.Event()
        self.finished = False

    def unready(self) -> str | None:
        return self.reason

    async def run(self) -> None:
        self.started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            self.finished = True


class Failing(Steady):
    def __init__(self, error: Exception | None) -> None:
        super().__init__("failing")
        self.error = error

    async def run(self) -> None:
        if self.error is not None:
            raise self.error


class Stuck(Steady):
    """Does not end when cancelled, until `released` is set."""

    def __init__(self) -> None:
        super().__init__("stuck")
        self.released = asyncio.Event()

    async def run(self) -> None:
        self.started.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await self.released.wait()


class WithRoutes(Steady):
    def health_routes(self) -> Iterable[web.RouteDef]:
        async def more(_request: web.Request) -> web.Response:
            return web.Response(text="more")

        return [web.get("/more", more)]


@asynccontextmanager
async def running(
    *workers: Steady, registry: CollectorRegistry | None = None, bus_problem: str | None = None
) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Task[int]]]:
    """The URL of the health server, the stop event and the task of a supervisor."""
    stop = asyncio.Event()
    supervisor = Supervisor(
        workers,
        registry=registry or CollectorRegistry(),
        health=LOOPBACK,
        bus_problem=lambda: bus_problem,
        stop_seconds=60.0,  # a worker that is stuck is waited for, also on a busy machine
    )
    with capture_logs() as logs:
        task = asyncio.create_task(supervisor.run(stop))
        try:
            async with asyncio.timeout(60):
                for worker in workers:
                    await worker.started.wait()
            yield next(line["url"] for line in logs if line["event"] == "health_listening"), stop, task
        finally:
            stop.set()
            await task


async def get(url: str) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.read()


async def test_health_and_readiness_of_ready_workers() -> None:
    async with running(Steady("one"), Steady("two")) as (url, _, _):
        assert await get(f"{url}/healthz") == (200, b'{"ok":true,"ended":[]}\n')
        status, body = await get(f"{url}/readyz")
        assert status == 200
        assert orjson.loads(body) == {"ready": True, "workers": {"one": None, "two": None}, "bus": None, "behind": {}}


class Late(Steady):
    def behind(self) -> dict[str, float]:
        return {"prometheus": 12.5}


async def test_what_is_behind_is_said_and_does_not_make_the_process_unready() -> None:
    async with running(Steady("one"), Late("two")) as (url, _, _):
        status, body = await get(f"{url}/readyz")
        assert (status, orjson.loads(body)["behind"]) == (200, {"two": {"prometheus": 12.5}})


async def test_an_unready_worker_makes_the_process_unready_with_its_reason() -> None:
    async with running(Steady("one"), Steady("two", reason="POLICIES: not caught up"), bus_problem="no bus") as (
        url,
        _,
        _,
    ):
        status, body = await get(f"{url}/readyz")
        assert status == 503
        assert orjson.loads(body) == {
            "ready": False,
            "workers": {"one": None, "two": "POLICIES: not caught up"},
            "bus": "no bus",
            "behind": {},
        }


class Answering(Steady):
    def last_answers(self) -> dict[str, LastAnswer]:
        return {}


async def serving(url: str) -> int:
    status, body = await get(f"{url}/readyz/serving")
    assert orjson.loads(body) == {"serving": status == 200}
    return status


async def test_who_answers_the_scheduler_goes_on_serving_while_another_worker_is_unready() -> None:
    """Else the pod would leave its Service, and no extender would answer, although each has all that it needs."""
    extender, watch = Answering("extender"), Steady("watch", reason="not listed yet")
    async with running(extender, watch) as (url, _, _):
        assert await serving(url) == 503, "it never was ready"
        watch.reason = None
        assert (await get(f"{url}/readyz"))[0] == 200  # whoever asks, not only the probe
        watch.reason = "the API server does not answer"
        assert (await serving(url), (await get(f"{url}/readyz"))[0]) == (200, 503)
        extender.reason = "the holds are not complete"
        assert await serving(url) == 503
        extender.reason = None
        assert await serving(url) == 200
    watch = Steady("watch")
    async with running(watch) as (url, _, _):
        assert await serving(url) == 200
        watch.reason = "the API server does not answer"
        assert await serving(url) == 503, "it answers nobody"


async def test_a_bus_problem_does_not_change_readiness() -> None:
    async with running(Steady(), bus_problem="no bus") as (url, _, _):
        status, body = await get(f"{url}/readyz")
        assert (status, orjson.loads(body)["bus"]) == (200, "no bus")


async def test_metrics_of_process_build_and_workers_are_served() -> None:
    registry = new_registry()
    Counter("tas_things", "Things.", registry=registry).inc(3)
    async with running(Steady("one", reason="not yet"), registry=registry) as (url, _, _):
        status, body = await get(f"{url}/metrics")
        assert status == 200
        lines = body.decode().splitlines()
        assert "tas_things_total 3.0" in lines
        assert 'tas_worker_ready{worker="one"} 0.0' in lines
        assert not any("_created" in line for line in lines)
        assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
        assert any(line.startswith("tas_build_info{") for line in lines)


async def test_a_worker_can_add_health_routes() -> None:
    async with running(WithRoutes()) as (url, _, _):
        assert await get(f"{url}/more") == (200, b"more")


async def test_a_stop_lets_every_worker_finish_and_exits_with_code_0() -> None:
    one, two = Steady("one"), Steady("two")
    async with running(one, two) as (_, stop, task):
        stop.set()
        assert await task == 0
    assert one.finished
    assert two.finished


async def test_a_process_with_a_worker_that_has_ended_is_not_healthy() -> None:
    class Ending(Steady):
        async def run(self) -> None:
            self.started.set()

    stuck = Stuck()
    with capture_logs():
        async with running(Ending("ending"), stuck) as (url, _, task):
            async with asyncio.timeout(60):
                while (answer := await get(f"{url}/healthz"))[0] == 200:
                    pass
            assert answer == (503, b'{"ok":false,"ended":["ending"]}\n')
            stuck.released.set()
            assert await task == 1


async def test_no_worker_is_ready_while_the_process_stops() -> None:
    stuck = Stuck()
    async with running(stuck) as (url, stop, task):
        stop.set()
        async with asyncio.timeout(60):
            while (answer := await get(f"{url}/readyz"))[0] == 200:
                pass
        assert orjson.loads(answer[1])["workers"] == {"stuck": "stopping"}
        assert not task.done()
        stuck.released.set()
        assert await task == 0


async def test_a_worker_that_does_not_finish_in_time_does_not_delay_the_stop() -> None:
    stuck = Stuck()
    stop = asyncio.Event()
    stop.set()
    with capture_logs() as logs:
        code = await Supervisor([stuck], registry=CollectorRegistry(), health=None, stop_seconds=0.05).run(stop)
    assert code == 0
    assert [line["worker"] for line in logs if line["event"] == "worker_stop_timed_out"] == ["stuck"]
    stuck.released.set()


async def failed(error: Exception | None) -> tuple[int, list[str], Steady]:
    steady = Steady()
    with capture_logs() as logs:
        supervisor = Supervisor([Failing(error), steady], registry=CollectorRegistry(), health=None)
        code = await supervisor.run(asyncio.Event())
    return code, [line["event"] for line in logs if line["log_level"] == "error"], steady


async def test_a_bug_in_one_worker_stops_all_workers_with_code_1() -> None:
    code, events, steady = await failed(RuntimeError("a bug"))
    assert (code, events) == (1, ["worker_crashed"])
    assert steady.finished


async def test_a_worker_that_ends_by_itself_is_a_failure() -> None:
    assert (await failed(None))[:2] == (1, ["worker_ended"])


async def test_a_worker_error_is_logged_in_one_line() -> None:
    assert (await failed(WorkerError("the server is gone")))[:2] == (1, ["worker_failed"])


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_single_error_in_task_groups_is_unwrapped(depth: int) -> None:
    error: Exception = StartError("the port is in use")
    for _ in range(depth):
        error = ExceptionGroup("tasks", [error])
    assert (await failed(error))[:2] == (2, ["worker_failed"])


async def test_a_start_error_ends_the_process_with_code_2() -> None:
    assert (await failed(StartError("the port is in use")))[:2] == (2, ["worker_failed"])


async def test_an_address_in_use_is_a_start_error_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(
            StartError,
            match=rf"^health: cannot listen on {address}: the port is in use \(--health-listen, TAS_HEALTH_LISTEN\)$",
        ):
            await Supervisor([Steady()], registry=CollectorRegistry(), health=address).run(asyncio.Event())


async def test_an_address_of_another_machine_is_a_start_error() -> None:
    with pytest.raises(StartError, match=r"^extender: cannot listen on 192\.0\.2\.1:9001: ."):
        async with listening(web.Application(), Address("192.0.2.1", 9001), purpose="extender"):
            pass


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_an_address_without_a_host_is_every_interface_of_both_families(host: str) -> None:
    async with listening(web.Application(), Address.parse(":0"), purpose="extender") as address:
        _, writer = await asyncio.open_connection(host, address.port)
        writer.close()


async def test_an_address_without_a_host_is_that_of_ipv4_where_there_is_no_ipv6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WithoutIpv6(socket.socket):
        def __init__(self, family: int = -1, *rest: Any, **more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *rest, **more)

    monkeypatch.setattr("socket.socket", WithoutIpv6)
    listeners = await bind("", 0)
    assert [each.family for each in listeners] == [socket.AF_INET]
    listeners[0].close()
    with pytest.raises(OSError, match="Address family"):
        await bind("::", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_requests_an_orderly_stop(number: signal.Signals) -> None:
    async with stop_signals() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(60):
            await stop.wait()
    assert not asyncio.get_running_loop().remove_signal_handler(number)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9001", Address("127.0.0.1", 9001)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:80", Address("::1", 80)),
        (":9001", Address("", 9001)),
    ],
)
def test_valid_addresses_are_parsed(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "near"),
    [(":9001", "127.0.0.1:9001"), ("0.0.0.0:9001", "127.0.0.1:9001"), ("[::]:9001", "[::1]:9001"), ("a:1", "a:1")],
)
def test_a_program_on_the_same_machine_reaches_every_interface_by_loopback(text: str, near: str) -> None:
    assert str(Address.parse(text).near) == near


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9001",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "h:65536",
        "h:-1",
        "::1:80",
        "http://h:1/",
        "h h:1",
        "h:\uff11",
    ],
)
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets"):
        Address.parse(text)
