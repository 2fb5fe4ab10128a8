"""Builds a process from the settings: embedded server, connections, workers and supervisor."""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from bus.errors import MisconfiguredError, UnavailableError
from bus.server import EmbeddedServer
from cli.loop import run_to_end
from tas.values.window import near_window
from workers.context import Context
from workers.discovery import SHARED_MEMORY, announced, temporary_directory
from workers.http.listening import check_free
from workers.names import ALL_WORKERS, ON_EACH_NODE, run_by
from workers.process.errors import StartError, WorkerError
from workers.process.logs import configure_logging
from workers.process.signals import stop_signals
from workers.registry import WORKERS, needed_by
from workers.runtime import Supervisor, Worker, beside, new_registry
from workers.settings import EMBEDDED_PORT, Settings, flag, variable


class EmbeddedBus:
    """Watches a running server. The server starts before the workers and ends after them, so `run` never stops it."""

    name = "bus"

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    def unready(self) -> str | None:
        """Why clients cannot connect."""
        return None if self._server.running else "nats-server has ended"

    async def run(self) -> None:
        """Raises WorkerError when the server ends."""
        status = await self._server.wait()
        raise WorkerError(f"nats-server ended by itself (exit status {status})")


log = structlog.get_logger("tas")

TOKEN = "token"  # noqa: S105 - the name of a file
"""The file in the store of the embedded server with the token that it demands."""


class Process:
    """One process: workers are added, then all of them run. What they have in common is in `context`."""

    def __init__(self, settings: Settings, stack: AsyncExitStack) -> None:
        self.context = Context(settings, stack, new_registry())
        self._workers: list[Worker] = []

    async def start_bus(self, *, announce: bool = True, simulated: bool = False) -> None:
        """Starts the embedded server for this process; with `announce`, other commands of this user find it.

        With `simulated` they know that the cluster is none.
        """
        starting = embedded_bus(self.context.settings, announce=announce, simulated=simulated)
        server, self.context.token = await self.context.stack.enter_async_context(starting)
        self.context.url = server.url
        self.add(EmbeddedBus(server))

    async def build(self, names: Sequence[str]) -> None:
        """Builds and adds the workers `names`, all those of this process. Raises StartError."""
        self.context.workers, self.context.streams = names, needed_by(names)
        self.context.name = names[0] if names and tuple(names) == run_by(names[0]) else ALL_WORKERS
        for name in names:
            self.add(await WORKERS[name].build(self.context))

    def add(self, worker: Worker) -> None:
        """Adds a worker that was built elsewhere."""
        self._workers.append(worker)

    async def run(self, stop: asyncio.Event) -> int:
        """Runs until `stop` is set or a worker ends; returns the exit code."""
        supervisor = Supervisor(
            self._workers,
            registry=self.context.registry,
            health=self.context.settings.health_listen,
            bus_problem=self.context.bus_problem,
        )
        async with beside(*await self._parts_beside(supervisor)):
            return await supervisor.run(stop)

    async def _parts_beside(self, supervisor: Supervisor) -> list[Coroutine[None, None, None]]:
        """What nothing depends on; a program that runs on each node, and says nothing of itself, does not load it."""
        if ON_EACH_NODE.issuperset(self.context.workers):
            return []
        from cli.presence import parts_beside

        return await parts_beside(self.context, supervisor)

    def unready(self) -> dict[str, str]:
        """The workers that are not ready, each with the reason."""
        return {worker.name: reason for worker in self._workers if (reason := worker.unready()) is not None}


@asynccontextmanager
async def process(settings: Settings) -> AsyncIterator[tuple[Process, asyncio.Event]]:
    """A new process without workers, and the event that SIGTERM and SIGINT set. Closes all connections at the end."""
    async with stop_signals() as stop, AsyncExitStack() as stack:
        yield Process(settings, stack), stop


def run_process(settings: Settings, body: Coroutine[Any, Any, int]) -> int:
    """Configures logging, runs `body` and returns its exit code; a worker that cannot start is one log line."""
    configure_logging(settings.log_format, settings.log_level)
    try:
        return run_to_end(body)
    except WorkerError as error:
        log.error("start_failed", error=str(error))  # noqa: TRY400 - no traceback: it is no bug
        return error.exit_code


def run_workers(settings: Settings, names: Sequence[str], *, starts_bus: bool = False) -> int:
    """Runs the workers `names`, with `starts_bus` also the embedded server; returns the exit code."""

    async def body() -> int:
        _warn_of_metrics(settings.metrics or ())
        await check_addresses(settings, names)
        async with process(settings) as (parts, stop):
            if starts_bus:
                await parts.start_bus()
            await parts.build(names)
            return await parts.run(stop)

    return run_process(settings, body())


async def check_addresses(settings: Settings, names: Sequence[str]) -> None:
    """Raises StartError if another process listens where the workers `names` will: before a bus and workers start."""
    listens = [] if settings.share_listen else [purpose for name in names if (purpose := WORKERS[name].listens)]
    for name, purpose in (("health_listen", "health"), *(("listen", purpose) for purpose in listens)):
        await check_free(getattr(settings, name), purpose=purpose, setting=f"{flag(name)}, {variable(name)}")


def _warn_of_metrics(names: Iterable[str]) -> None:
    """Logs each name that is nearly one of a statistic: as a recording rule of Prometheus it may be meant so."""
    for name in names:
        if (reason := near_window(name)) is not None:
            log.warning(
                "metric_no_statistic",
                setting=f"{flag('metrics')} ({variable('metrics')})",
                value=name,
                reason=f"is the name of an ordinary metric, not of a statistic: {reason}",
            )


@asynccontextmanager
async def embedded_bus(
    settings: Settings, *, announce: bool = True, simulated: bool = False
) -> AsyncIterator[tuple[EmbeddedServer, Path]]:
    """The embedded server and the file with its token; with `announce`, other commands of this user find it.

    Raises StartError, WorkerError.
    """
    async with AsyncExitStack() as stack:
        store = settings.store
        if store is None:
            parent = temporary_directory()
            if parent == SHARED_MEMORY:
                log.warning("bus_in_shared_memory", free=shutil.disk_usage(parent).free)
            created = tempfile.TemporaryDirectory(prefix="tas-bus-", ignore_cleanup_errors=True, dir=parent)
            store = Path(stack.enter_context(created))
        token = store / TOKEN
        try:
            server = await stack.enter_async_context(_server(store, settings.embedded_port))
        except MisconfiguredError as error:
            raise StartError(f"bus: {error}") from error
        except UnavailableError as error:
            raise WorkerError(f"bus: {error}") from error
        if announce:
            stack.enter_context(announced(server.url, server.pid, token, simulated=simulated))
        log.info("bus_started", bus=server.url, pid=server.pid, store=str(store), token=str(token))
        yield server, token


@asynccontextmanager
async def _server(store: Path, port: int | None) -> AsyncIterator[EmbeddedServer]:
    """A server at `port`; with None at the default port, or at any free port if that is in use."""
    if port is not None and not _is_free(port):
        raise StartError(
            f"bus: cannot listen on 127.0.0.1:{port}: the port is in use (--embedded-port, TAS_EMBEDDED_PORT)"
        )
    start = partial(EmbeddedServer.start, store, token=store / TOKEN)
    async with AsyncExitStack() as stack:
        server = None
        if port is None and _is_free(EMBEDDED_PORT):
            with suppress(UnavailableError):  # another process has just taken the port
                server = await stack.enter_async_context(start(port=EMBEDDED_PORT))
        if server is None:
            server = await stack.enter_async_context(start(port=port or 0))
        yield server


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # The server sets this option, too: a port whose last connections are still closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
