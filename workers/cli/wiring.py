"""The one place where everything is put together: the server, connections, workers, and what watches over them."""

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
import uvloop
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.errors import MisconfiguredError, UnavailableError
from bus.server import EmbeddedServer
from tas.errors import shortened
from workers.certificates import Certificates
from workers.cli.discovery import announced, running_bus
from workers.cli.settings import (
    DEFAULT_URL,
    EMBEDDED,
    EMBEDDED_PORT,
    FailedNodes,
    Settings,
    UnknownPolicy,
    flag,
    variable,
)
from workers.cli.sources import Sources, sources_of
from workers.collect import Collect
from workers.connections import Limits
from workers.embedded import EmbeddedBus
from workers.evaluate import Evaluate
from workers.extender import ExtenderWorker
from workers.extensions import installed
from workers.kubernetes.client import KubernetesClient, RequestMetrics
from workers.kubernetes.errors import ConfigurationError
from workers.labels import Labels
from workers.logs import configure_logging
from workers.machine import Machine
from workers.materialize import Materialize
from workers.policies import PolicyDirectory
from workers.resources import Resources
from workers.runtime import StartError, Supervisor, Worker, WorkerError, new_registry, stop_signals
from workers.status import PolicyStatus
from workers.tls import TlsError, TlsFiles
from workers.watch import WatchWorker

log = structlog.get_logger("tas")


def _policies(bus: Bus, settings: Settings, registry: CollectorRegistry) -> Worker:
    if settings.policies is None:
        raise StartError("no directory of policies is given")
    return PolicyDirectory(bus, directory=settings.policies, registry=registry)


def _certificates(settings: Settings, registry: CollectorRegistry) -> Certificates | None:
    """What the extender's HTTPS needs; None: it speaks plain HTTP."""
    if settings.cert is None or settings.key is None or settings.cacert is None:
        return None
    files = TlsFiles(cert=settings.cert, key=settings.key, cacert=settings.cacert)
    try:
        return Certificates(files, allowed=settings.client_names or (), registry=registry)
    except TlsError as error:
        raise StartError(str(error)) from error


def _extender(bus: Bus, settings: Settings, registry: CollectorRegistry) -> Worker:
    return ExtenderWorker(
        bus,
        listen=settings.listen,
        registry=registry,
        default_stale_after=settings.stale_after,
        max_body_bytes=settings.max_body,
        unknown_policy_fails=settings.unknown_policy is UnknownPolicy.ERROR,
        unresolvable=settings.failed_nodes is FailedNodes.UNRESOLVABLE,
        debug_explain=settings.debug_explain,
        share_listen=settings.share_listen,
        extensions=installed(),
        only=settings.only,
        extension_seconds=settings.extension_timeout,
        limits=Limits(connections=settings.max_connections, idle_seconds=settings.idle_timeout),
        certificates=_certificates(settings, registry),
    )


LEFTOVER_ATTEMPTS = 20
"""How often a task that is left at the end is asked to end, a tenth of a second apart."""

BUILD: dict[str, Callable[[Bus, Settings, CollectorRegistry], Worker]] = {
    "materialize": lambda bus, _, registry: Materialize(bus, registry=registry),
    "policies": _policies,
    "evaluate": lambda bus, settings, registry: Evaluate(
        bus, registry=registry, default_stale_after=settings.stale_after
    ),
    "extender": _extender,
    "machine": lambda bus, settings, registry: Machine(
        bus, node=settings.node, period=settings.period, registry=registry
    ),
}
"""Every worker that lives by a connection, by its name."""

BUILD_WITH_KUBERNETES: dict[str, Callable[[Bus, KubernetesClient, Settings, CollectorRegistry], Worker]] = {
    "watch": lambda bus, client, _, registry: WatchWorker(bus, client, registry=registry),
    "status": lambda bus, client, settings, registry: PolicyStatus(
        bus, client, registry=registry, default_stale_after=settings.stale_after
    ),
    "resources": lambda bus, client, settings, registry: Resources(
        bus, client, registry=registry, count=settings.node_resource
    ),
    "labels": lambda bus, client, settings, registry: Labels(
        bus, client, registry=registry, default_stale_after=settings.stale_after
    ),
}
"""Those that ask the API server as well, each with a client of its own."""


def all_workers(settings: Settings) -> tuple[str, ...]:
    """The workers of `tas run all`, besides the embedded server."""
    collect = ("collect",) if sources_of(settings) else ()
    if settings.kubeconfig is None:
        return ("materialize", "policies", "evaluate", "extender", *collect)
    resources = ("resources",) if settings.node_resource else ()
    return ("materialize", "watch", "evaluate", "status", "extender", "labels", *collect, *resources)


def kubeconfig_problem(kubeconfig: Path | str, error: ConfigurationError) -> str:
    """Why no API server can be found by the setting, and what to do."""
    told = f"{flag('kubeconfig')} ({variable('kubeconfig')}) = {shortened(str(kubeconfig))}: {error}"
    return told if isinstance(kubeconfig, Path) else f"{told} Outside of a pod, name a file with {flag('kubeconfig')}"


class Process:
    """What one process is made of. Workers are added while it is put together, then it is run.

    Each worker has a connection of its own, in one process as in several: a slow reader holds up nobody else's
    acknowledgements, the server shows who is who, and what works in one process works the same in many.
    """

    def __init__(self, settings: Settings, stack: AsyncExitStack) -> None:
        self.settings = settings
        self.registry = new_registry()
        self._stack = stack
        self._workers: list[Worker] = []
        self._buses: list[Bus] = []
        self._requests = RequestMetrics(self.registry)

    async def start_bus(self, *, announce: bool = True) -> str:
        """Starts the embedded server and returns its address; `announce`: so that other commands find it."""
        server = await self._stack.enter_async_context(embedded_bus(self.settings, announce=announce))
        self.add(EmbeddedBus(server))
        return server.url

    async def connect(self, url: str, name: str) -> Bus:
        """A connection of its own, closed at the end."""
        try:
            bus = await self._stack.enter_async_context(
                Bus.connect(url, name=f"tas-{name}", replicas=self.settings.replicas)
            )
        except MisconfiguredError as error:
            raise StartError(str(error)) from error
        self._buses.append(bus)
        return bus

    async def connect_kubernetes(self, name: str) -> KubernetesClient:
        """A client of the API server for the worker of this name, closed at the end."""
        kubeconfig = self.settings.kubeconfig
        if kubeconfig is None:
            raise StartError("no Kubernetes API server is given")
        file = kubeconfig if isinstance(kubeconfig, Path) else None
        try:
            return await self._stack.enter_async_context(
                KubernetesClient.connect(file, worker=name, metrics=self._requests)
            )
        except ConfigurationError as error:
            raise StartError(kubeconfig_problem(kubeconfig, error)) from error

    async def build(self, url: str, names: Sequence[str]) -> None:
        """Adds the workers of these names, each with its connections."""
        for name in names:
            bus = await self.connect(url, name)
            if name == "collect":
                self.add(await self._collect(bus))
            elif name in BUILD:
                self.add(BUILD[name](bus, self.settings, self.registry))
            else:
                client = await self.connect_kubernetes(name)
                self.add(BUILD_WITH_KUBERNETES[name](bus, client, self.settings, self.registry))

    async def _collect(self, bus: Bus) -> Worker:
        sources = Sources(self.settings, self._stack, lambda: self.connect_kubernetes("collect"), self.registry)
        return Collect(bus, await sources.build(), period=self.settings.period, registry=self.registry)

    def add(self, worker: Worker) -> None:
        """Adds a worker that was built elsewhere."""
        self._workers.append(worker)

    async def run(self, stop: asyncio.Event) -> int:
        """Runs until `stop` is set or a worker ends; returns the exit code."""
        supervisor = Supervisor(
            self._workers,
            registry=self.registry,
            health=self.settings.health_listen,
            bus_problem=self._bus_problem,
        )
        return await supervisor.run(stop)

    def unready(self) -> dict[str, str]:
        """Why a worker is not ready, by the name of each that is not."""
        return {worker.name: why for worker in self._workers if (why := worker.unready()) is not None}

    def _bus_problem(self) -> str | None:
        problems = [
            f"{bus.name}: {bus.problem or 'not connected'}"
            for bus in self._buses
            if bus.problem is not None or not bus.connected
        ]
        return "; ".join(problems) or None


@asynccontextmanager
async def process(settings: Settings) -> AsyncIterator[tuple[Process, asyncio.Event]]:
    """A process to be put together and run, and the event that SIGTERM and SIGINT set. Ends what was started in it."""
    async with stop_signals() as stop, AsyncExitStack() as stack:
        yield Process(settings, stack), stop


def run_process(settings: Settings, body: Coroutine[Any, Any, int]) -> int:
    """Configures logging, runs `body` on a fast loop and returns its exit code; what cannot start is one line."""
    configure_logging(settings.log_format, settings.log_level)
    try:
        return run_to_end(body)
    except WorkerError as error:
        log.error("start_failed", error=str(error))  # noqa: TRY400 - one line: it is no bug
        return error.exit_code


def run_to_end(body: Coroutine[Any, Any, int]) -> int:
    """Runs `body` on a fast loop of its own, and returns its exit code when no task of it is left.

    The loop itself asks each task to end once; Python 3.11's `wait_for` and some libraries swallow one such request. A
    task that swallows them all, as one of an extension may, ends with the process, which ends at once then.
    """
    return uvloop.run(_leaving_nothing(body))


async def _leaving_nothing(body: Coroutine[Any, Any, int]) -> int:
    try:
        code = await body
    finally:
        left = await _end_tasks()
    if left:
        log.error("tasks_do_not_end", tasks=sorted(task.get_name() for task in left))
        sys.stdout.flush()
        os._exit(code)
    return code


async def _end_tasks() -> set[asyncio.Task[Any]]:
    """Asks every other task to end, again and again, and returns those that do not."""
    left: set[asyncio.Task[Any]] = set()
    for _ in range(LEFTOVER_ATTEMPTS):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            break
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)
    return {task for task in left if not task.done()}


@asynccontextmanager
async def embedded_bus(settings: Settings, *, announce: bool = True) -> AsyncIterator[EmbeddedServer]:
    """The embedded server, if wished announced to other commands of this user. Raises StartError, WorkerError."""
    async with AsyncExitStack() as stack:
        store = settings.store
        if store is None:
            store = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="tas-bus-", ignore_cleanup_errors=True))
            )
        try:
            server = await stack.enter_async_context(_server(store, settings.embedded_port))
        except MisconfiguredError as error:
            raise StartError(f"bus: {error}") from error
        except UnavailableError as error:
            raise WorkerError(f"bus: {error}") from error
        if announce:
            stack.enter_context(announced(server.url, server.pid))
        log.info("bus_started", bus=server.url, pid=server.pid, store=str(store))
        yield server


@asynccontextmanager
async def _server(store: Path, port: int | None) -> AsyncIterator[EmbeddedServer]:
    """A server at `port`; None: at the usual one, or at any if somebody has that."""
    if port is not None and not _is_free(port):
        raise StartError(
            f"bus: cannot listen on 127.0.0.1:{port}: the port is in use (--embedded-port, TAS_EMBEDDED_PORT)"
        )
    async with AsyncExitStack() as stack:
        server = None
        if port is None and _is_free(EMBEDDED_PORT):
            with suppress(UnavailableError):  # another was quicker
                server = await stack.enter_async_context(EmbeddedServer.start(store, port=EMBEDDED_PORT))
        if server is None:
            server = await stack.enter_async_context(EmbeddedServer.start(store, port=port or 0))
        yield server


def bus_url(settings: Settings) -> str:
    """Where to connect to. Raises StartError if an embedded server is asked for and none runs."""
    if settings.bus is not None and settings.bus != EMBEDDED:
        return settings.bus
    found = running_bus()
    if found is None and settings.bus == EMBEDDED:
        raise StartError("no embedded bus of this user runs: start one (tas run all, tas run bus), or say --bus")
    return found or DEFAULT_URL


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server itself does it: a port whose last connections are still closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
