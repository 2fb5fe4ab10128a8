"""What every process of the product has in common: workers, their health, and an orderly end.

A worker runs until it is cancelled. The supervisor runs one or several on one event loop, tells on a port of its own
how they are (`/healthz`, `/readyz`, `/metrics`), stops them on a signal, and ends the process loudly as soon
as one of them ends by itself: a process that is half alive is worse than one that is started again.
"""

import asyncio
import errno
import platform
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, runtime_checkable

import orjson
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Info
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from workers.certificates import Certificates
from workers.connections import ConnectionMetrics, Limits, Listener, bind
from workers.health import told_apart

log = structlog.get_logger("runtime")

STOP_SECONDS = 15.0
"""How long workers may take to finish what they have in hand: more than a consumer's ack wait (10 s)."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What asks for an orderly stop: a supervisor, Ctrl-C, a terminal that is closed."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CANNOT_START = 2


class WorkerError(Exception):
    """Ends the process with one line: something outside of it, and no bug, makes it useless to go on."""

    exit_code = EXIT_FAILED


class StartError(WorkerError):
    """Cannot start, because of something that whoever starts it can put right: a port in use, a folder that is away."""

    exit_code = EXIT_CANNOT_START


class Worker(Protocol):
    """One stateless worker. Any copy of it can be killed at any line."""

    @property
    def name(self) -> str:
        """As in `tas run <name>`, and in logs, metrics and `/readyz`."""
        ...

    def unready(self) -> str | None:
        """Why it cannot do its work yet, for a person to read; None once it can."""
        ...

    async def run(self) -> None:
        """Works until cancelled, then finishes what it has in hand. Raises `WorkerError`; anything else is a bug."""
        ...


@runtime_checkable
class WithHealthRoutes(Protocol):
    """A worker that has more to tell on the health port."""

    def health_routes(self) -> Iterable[web.RouteDef]:
        """Routes beside `/healthz`, `/readyz` and `/metrics`."""
        ...


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """The address of `127.0.0.1:9001`, `[::1]:9001` or `:9001` (every interface). Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("expected HOST:PORT with a port from 0 to 65535")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("an IPv6 address stands in brackets: [::1]:9001")
        if any(character.isspace() or character == "/" for character in host):
            raise ValueError("expected HOST:PORT, no URL")
        return cls(host or "0.0.0.0", int(port))  # noqa: S104 - what `:PORT` means everywhere, and asked for


def product_version() -> str:
    """The version of the installed product."""
    try:
        return version("tas-on-nats")
    except PackageNotFoundError:
        return "unknown"


def new_registry() -> CollectorRegistry:
    """Metrics of this process and build; workers add theirs."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    Info("tas_build", "What runs here.", registry=registry).info(
        {"version": product_version(), "python": platform.python_version()}
    )
    return registry


@asynccontextmanager
async def stop_signals() -> AsyncIterator[asyncio.Event]:
    """Signals to stop as an event, from here to the end of the body: the first asks for an orderly stop."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def ask(received: signal.Signals) -> None:
        log.info("stop_requested", signal=received.name)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, ask, number)
    try:
        yield stop
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def listening(
    app: web.Application,
    address: Address,
    *,
    purpose: str,
    setting: str = "",
    limits: Limits | None = None,
    certificates: Certificates | None = None,
    metrics: ConnectionMetrics | None = None,
    shared: bool = False,
) -> AsyncIterator[Address]:
    """Serves `app` at `address` within the body, and yields where (the port chosen if 0 was asked for).

    With `certificates` by HTTPS, and only to clients that they admit. `shared`: others may listen there as well.

    Raises:
        StartError: if the address cannot be listened on; `purpose` says whose it is, `setting` where it is set.
    """
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=2.0)
    await runner.setup()
    try:
        try:
            sockets = await bind(address.host, address.port, shared=shared)
        except OSError as error:
            reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            told = f" ({setting})" if setting else ""
            raise StartError(f"{purpose}: cannot listen on {address}: {reason}{told}") from error
        listener = Listener(runner, sockets, limits=limits or Limits(), certificates=certificates, metrics=metrics)
        host, port, *_ = sockets[0].getsockname()
        listener.start()
        try:
            yield Address(host, port)
        finally:
            await listener.stop()
    finally:
        await runner.cleanup()


def version_route() -> web.RouteDef:
    """`GET /version`: what runs here."""
    return web.get("/version", _version)


async def _version(_request: web.Request) -> web.Response:
    return json_response({"version": product_version(), "python": platform.python_version()})


class Supervisor:
    """Runs workers until `stop` is set, or until one of them ends by itself.

    `bus_problem` says what is wrong with the bus as far as a connection knows; it is told, but it makes nobody unready:
    that is for each worker to judge.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        registry: CollectorRegistry,
        health: Address | None,
        bus_problem: Callable[[], str | None] = lambda: None,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self._workers = workers
        self._registry = registry
        self._health = health
        self._bus_problem = bus_problem
        self._stop_seconds = stop_seconds
        self._tasks: dict[asyncio.Task[None], Worker] = {}
        self._stopping = False
        ready = Gauge(
            "tas_worker_ready", "1 while the worker can do its work, else 0.", ["worker"], registry=self._registry
        )
        for worker in workers:
            ready.labels(worker.name).set_function(partial(_is_ready, worker))
        self._stalls = Counter(
            "tas_event_loop_stalls",
            "How often something ran for seconds without awaiting, and held up all else in this process.",
            registry=self._registry,
        )

    async def run(self, stop: asyncio.Event) -> int:
        """The exit code of the process: 0 after `stop`, else that of the worker that ended.

        Raises:
            StartError: if the health address cannot be listened on.
        """
        if self._health is None:
            return await self._run_workers(stop)
        serve = partial(listening, address=self._health, purpose="health", setting="--health-listen, TAS_HEALTH_LISTEN")
        async with told_apart(self._health_routes(), serve, on_stall=self._stalls.inc) as address:
            log.info("health_listening", url=f"http://{address}")
            return await self._run_workers(stop)

    async def _run_workers(self, stop: asyncio.Event) -> int:
        self._tasks = {asyncio.create_task(worker.run(), name=worker.name): worker for worker in self._workers}
        log.info("workers_started", workers=[worker.name for worker in self._workers])
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopped, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            self._stopping = True
            ended = {task for task in self._tasks if task.done()}
            await self._stop_workers()
        code = max((self._exit_code_of(task, unasked=task in ended) for task in self._tasks), default=EXIT_OK)
        log.info("workers_stopped", exit_code=code)
        return code

    async def _stop_workers(self) -> None:
        """Cancels all workers, and waits for them to finish what they have in hand."""
        for task in self._tasks:
            task.cancel()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=self._stop_seconds)
        for task in late:
            # Nothing is lost: what it has in hand was not acknowledged, and comes again to another copy.
            log.warning("worker_stop_timed_out", worker=self._tasks[task].name, seconds=self._stop_seconds)

    def _exit_code_of(self, task: asyncio.Task[None], *, unasked: bool) -> int:
        """Reports how a worker ended, and what that means for the process."""
        name = self._tasks[task].name
        if not task.done() or task.cancelled():
            return EXIT_OK
        error = task.exception()
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]  # a group of one, as TaskGroup makes it, is that one
        if isinstance(error, WorkerError):
            log.error("worker_failed", worker=name, error=str(error))
            return error.exit_code
        if error is not None:
            log.error("worker_crashed", worker=name, exc_info=error)
            return EXIT_FAILED
        if unasked:
            log.error("worker_ended", worker=name, error="a worker runs until it is told to stop")
            return EXIT_FAILED
        return EXIT_OK

    def _health_routes(self) -> Iterator[web.RouteDef]:
        yield web.get("/healthz", self._healthz)
        yield web.get("/readyz", self._readyz)
        yield web.get("/metrics", self._metrics)
        yield version_route()
        for worker in self._workers:
            if isinstance(worker, WithHealthRoutes):
                yield from worker.health_routes()

    async def _healthz(self, _request: web.Request) -> web.Response:
        # That this runs at all says that the loop turns; while it does not, `told_apart` answers.
        ended = [worker.name for task, worker in self._tasks.items() if task.done()]
        return json_response({"ok": not ended, "ended": ended}, status=503 if ended else 200)

    async def _readyz(self, _request: web.Request) -> web.Response:
        reasons = self.unready()
        body = {"ready": not any(reasons.values()), "workers": reasons, "bus": self._bus_problem()}
        return json_response(body, status=200 if body["ready"] else 503)

    def unready(self) -> Mapping[str, str | None]:
        """Each worker's name to why it is not ready, or to None."""
        if self._stopping:
            return {worker.name: "stopping" for worker in self._workers}
        return {worker.name: worker.unready() for worker in self._workers}

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})


def _is_ready(worker: Worker) -> float:
    return float(worker.unready() is None)


def json_response(value: object, *, status: int = 200) -> web.Response:
    """`value` as JSON, with a line end for whoever reads it in a terminal."""
    body = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
    return web.Response(body=body, status=status, content_type="application/json")
