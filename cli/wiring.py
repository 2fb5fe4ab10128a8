"""Builds a process from the settings: embedded server, connections, workers and supervisor."""

import asyncio
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Gauge

from bus.buckets import ALL
from bus.connection import Bus
from bus.errors import MisconfiguredError, UnavailableError
from bus.rights.access import Access
from bus.rights.roles import streams_of
from bus.server import EmbeddedServer
from cli.discovery import SHARED_MEMORY, announced, bus_access, bus_url, temporary_directory
from cli.loop import run_to_end
from cli.settings import (
    EMBEDDED_PORT,
    FailedNodes,
    Settings,
    UnknownPolicy,
    flag,
    variable,
)
from cli.sinks import sinks_file
from cli.sources import Sources, sources_of
from tas.allocation.annotations import WRITTEN
from tas.errors import shortened
from tas.events.event import source_of
from tas.values.window import near_window
from workers.enforcing.annotations import AnnotationWriter
from workers.enforcing.brake import BrakeSettings
from workers.enforcing.evaluate import Evaluate
from workers.enforcing.evictions import Evictions
from workers.enforcing.labels import Labels
from workers.enforcing.marks import Marks
from workers.enforcing.resources import Resources
from workers.ingest.annotations import Annotations
from workers.ingest.collect import Collect, SourceMetrics
from workers.ingest.machine import Machine
from workers.ingest.materialize import Materialize
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConfigurationError
from workers.kubernetes.metrics import RequestMetrics
from workers.kubernetes.resources import GPU_NODES, annotated_nodes
from workers.process.certificates import Certificates, TlsMetrics
from workers.process.embedded import EmbeddedBus
from workers.process.errors import StartError, WorkerError
from workers.process.keeper import Keeper
from workers.process.limits import Limits
from workers.process.logs import configure_logging
from workers.process.runtime import Supervisor, Worker, check_free, invalid_entries, new_registry, stop_signals
from workers.process.tls import TlsError, TlsFiles
from workers.publishing.events import EventPublisher
from workers.publishing.notify import Notify
from workers.publishing.sinks.base import SinkMetrics
from workers.serving.extender import ExtenderWorker
from workers.serving.extensions import installed
from workers.serving.gpu import GpuExtender
from workers.watching.inventory import Inventory, MakePart
from workers.watching.policies import PolicyDirectory
from workers.watching.status import PolicyStatus
from workers.watching.watch import WatchWorker

log = structlog.get_logger("tas")

TOKEN = "token"  # noqa: S105 - the name of a file
"""The file in the store of the embedded server with the token that it demands."""


def _policies(bus: Bus, settings: Settings, registry: CollectorRegistry) -> Worker:
    if settings.policies is None:
        raise StartError("--policies must be given")
    return PolicyDirectory(bus, directory=settings.policies, registry=registry)


def _certificates(settings: Settings, metrics: TlsMetrics) -> Certificates | None:
    if settings.cert is None or settings.key is None or settings.cacert is None:
        return None
    files = TlsFiles(cert=settings.cert, key=settings.key, cacert=settings.cacert)
    try:
        return Certificates(files, allowed=settings.client_names or (), metrics=metrics)
    except TlsError as error:
        raise StartError(str(error)) from error


def _extender(bus: Bus, settings: Settings, registry: CollectorRegistry, tls: TlsMetrics) -> Worker:
    return ExtenderWorker(
        bus,
        listen=settings.listen,
        registry=registry,
        default_stale_after=settings.stale_after,
        max_body_bytes=settings.max_body,
        unknown_policy_fails=settings.unknown_policy is UnknownPolicy.ERROR,
        unresolvable=settings.failed_nodes is FailedNodes.UNRESOLVABLE,
        debug_explain=settings.debug_explain,
        prometheus_query=settings.prometheus_query,
        share_listen=settings.share_listen,
        extensions=installed(),
        only=settings.only,
        extension_seconds=settings.extension_timeout,
        limits=Limits(connections=settings.max_connections, idle_seconds=settings.idle_timeout),
        certificates=_certificates(settings, tls),
    )


def _gpu(
    bus: Bus, client: KubernetesClient, settings: Settings, registry: CollectorRegistry, tls: TlsMetrics
) -> Worker:
    return GpuExtender(
        bus,
        client,
        listen=settings.listen,
        registry=registry,
        options=settings.card_options,
        by=settings.card_score,
        one_start=settings.one_start,
        max_body_bytes=settings.max_body,
        share_listen=settings.share_listen,
        limits=Limits(connections=settings.max_connections, idle_seconds=settings.idle_timeout),
        certificates=_certificates(settings, tls),
    )


async def _agents(bus: Bus, settings: Settings, registry: CollectorRegistry, tls: TlsMetrics) -> Worker:
    # Only agents and windows compute with numpy, which takes other processes 0.1 s and 20 MB.
    from cli.agents import agents_file, hooks_of
    from workers.serving.agents import AgentsWorker

    source = agents_file(settings, registry)
    return AgentsWorker(
        bus,
        source,
        await source.load(),
        hooks_of=hooks_of,
        listen=settings.listen,
        registry=registry,
        default_stale_after=settings.stale_after,
        max_body_bytes=settings.max_body,
        share_listen=settings.share_listen,
        limits=Limits(connections=settings.max_connections, idle_seconds=settings.idle_timeout),
        certificates=_certificates(settings, tls),
    )


def _inventory(bus: Bus, client: KubernetesClient, settings: Settings, registry: CollectorRegistry) -> Worker:
    prefix = settings.annotation_prefix
    names = WRITTEN if settings.write_annotations else settings.annotation_names
    keys = {prefix + name: name for name in names}
    more: list[MakePart] = []
    if settings.annotations:
        more.append(
            lambda is_active, _: Annotations(bus, registry, is_active, keys=keys, lifetime=settings.annotation_lifetime)
        )
    if settings.write_annotations:
        more.append(partial(AnnotationWriter, bus, client, registry, prefix=prefix))
    return Inventory(
        bus,
        client,
        registry=registry,
        new_bus_wait=settings.new_bus_wait,
        card_metrics=settings.card_metrics,
        cards=settings.cards,
        allocations=settings.allocations,
        outcomes=settings.outcomes,
        nodes=annotated_nodes(keys) if more else GPU_NODES,
        more=more,
    )


BUILD: dict[str, Callable[[Bus, Settings, CollectorRegistry], Worker]] = {
    "materialize": lambda bus, _, registry: Materialize(bus, registry=registry),
    "policies": _policies,
    "evaluate": lambda bus, settings, registry: Evaluate(
        bus, registry=registry, default_stale_after=settings.stale_after
    ),
    "events": lambda bus, settings, registry: EventPublisher(
        bus, registry=registry, source=source_of(settings.cluster_name or "")
    ),
    "keeper": lambda bus, _, __: Keeper(bus),
    "machine": lambda bus, settings, registry: Machine(
        bus, node=settings.node, period=settings.period, registry=registry
    ),
}
"""The workers that need only the bus, by name."""

BUILD_WITH_KUBERNETES: dict[str, Callable[[Bus, KubernetesClient, Settings, CollectorRegistry], Worker]] = {
    "watch": lambda bus, client, _, registry: WatchWorker(bus, client, registry=registry),
    "status": lambda bus, client, settings, registry: PolicyStatus(
        bus, client, registry=registry, default_stale_after=settings.stale_after
    ),
    "resources": lambda bus, client, settings, registry: Resources(
        bus,
        client,
        registry=registry,
        count=settings.node_resource,
        event_source=source_of(settings.cluster_name or ""),
    ),
    "labels": lambda bus, client, settings, registry: Labels(
        bus,
        client,
        registry=registry,
        default_stale_after=settings.stale_after,
        overwrite=settings.overwrite_labels or (),
        brake=BrakeSettings(
            settings.breaker, settings.breaker_all, settings.flap_budget, new_bus_wait=settings.new_bus_wait
        ),
    ),
    "inventory": _inventory,
    "evictions": lambda bus, client, _, registry: Evictions(bus, client, registry=registry),
    "marks": lambda bus, client, settings, registry: Marks(
        bus, client, registry=registry, default_stale_after=settings.stale_after
    ),
}
"""The workers that also use the API server, each with its own client."""


def all_workers(settings: Settings) -> tuple[str, ...]:
    """The workers of `tas run all`, besides the embedded server.

    With credentials each connection creates only the streams of its own worker, and the keeper those of nobody here.
    """
    keeper = ("keeper",) if settings.bus_credentials is not None else ()
    collect = ("collect",) if sources_of(settings) else ()
    notify = ("notify",) if settings.sinks is not None else ()
    if settings.kubeconfig is None:
        return ("materialize", "windows", "policies", "evaluate", "extender", "events", *collect, *notify, *keeper)
    resources = ("resources",) if settings.node_resource else ()
    enforcing = ("labels", "marks", *resources)
    return (
        "materialize",
        "windows",
        "watch",
        "evaluate",
        "status",
        "extender",
        *enforcing,
        "events",
        *collect,
        *notify,
        *keeper,
    )


def kubeconfig_problem(kubeconfig: Path | str, error: ConfigurationError) -> str:
    """The error message for a kubeconfig that cannot be used, with what to do."""
    problem = f"{flag('kubeconfig')} ({variable('kubeconfig')}) = {shortened(str(kubeconfig))}: {error}"
    return (
        problem
        if isinstance(kubeconfig, Path)
        else f"{problem} Outside of a pod, name a file with {flag('kubeconfig')}"
    )


class Process:
    """One process: workers are added, then all of them run.

    Each worker has its own connection, also within one process: a slow worker does not delay the acknowledgements of
    another worker, the server lists each worker by name, and one process behaves like several.
    """

    def __init__(self, settings: Settings, stack: AsyncExitStack) -> None:
        self.settings = settings
        self.registry = new_registry()
        self._stack = stack
        self._workers: list[Worker] = []
        self._buses: list[Bus] = []
        self._token: Path | None = None  # of the embedded server
        self._invalid = invalid_entries(self.registry)
        self._requests = RequestMetrics(self.registry)
        self._connected = Gauge(
            "tas_bus_connected",
            "1 while a connection to the bus is open, else 0.",
            ["connection"],
            registry=self.registry,
        )
        self._unavailable = Gauge(
            "tas_bus_unavailable",
            "1 while a connection to the bus is open, and a stream gives no answer, else 0.",
            ["connection"],
            registry=self.registry,
        )
        self._credentials = Gauge(
            "tas_bus_credentials_remaining_seconds",
            "Seconds until the credentials of a connection to the bus expire; +Inf: never.",
            ["connection"],
            registry=self.registry,
        )
        self._refusing = Gauge(
            "tas_bus_refusing",
            "1 while a connection is open and the bus refuses a stream, consumer, lease or new credentials, else 0.",
            ["connection"],
            registry=self.registry,
        )

    @cached_property
    def _tls(self) -> TlsMetrics:
        return TlsMetrics(self.registry)

    @cached_property
    def _sources(self) -> SourceMetrics:
        return SourceMetrics(self.registry)

    async def start_bus(self, *, announce: bool = True) -> str:
        """Starts the embedded server and returns its address; with `announce`, other commands of this user find it."""
        server, token = await self._stack.enter_async_context(embedded_bus(self.settings, announce=announce))
        self._token = token
        self.add(EmbeddedBus(server))
        return server.url

    async def connect(self, url: str, name: str) -> Bus:
        """A new connection to the bus, closed at the end."""
        access = Access(token=self._token) if self._token is not None else bus_access(self.settings, url)
        try:
            bus = await self._stack.enter_async_context(
                Bus.connect(
                    url,
                    name=f"tas-{name}",
                    replicas=self.settings.replicas,
                    on_invalid=self._invalid,
                    access=access,
                    # On a closed bus a worker may not even look at the streams of others.
                    streams=ALL if access.credentials is None else streams_of(name),
                )
            )
        except MisconfiguredError as error:
            raise StartError(str(error)) from error
        self._buses.append(bus)
        self._connected.labels(bus.name).set_function(lambda: float(bus.connected))
        self._unavailable.labels(bus.name).set_function(lambda: float(bus.connected and bus.unavailable))
        self._credentials.labels(bus.name).set_function(lambda: bus.credentials_expire - time.time())
        self._refusing.labels(bus.name).set_function(lambda: float(bus.connected and bus.refusing))
        return bus

    async def connect_kubernetes(self, name: str) -> KubernetesClient:
        """A new client of the API server for the worker `name`, closed at the end."""
        kubeconfig = self.settings.kubeconfig
        if kubeconfig is None:
            raise StartError("--kubeconfig must be given")
        file = kubeconfig if isinstance(kubeconfig, Path) else None
        try:
            return await self._stack.enter_async_context(
                KubernetesClient.connect(file, worker=name, metrics=self._requests)
            )
        except ConfigurationError as error:
            raise StartError(kubeconfig_problem(kubeconfig, error)) from error

    async def build(self, url: str, names: Sequence[str]) -> None:
        """Builds and adds the workers `names`, each with its own connections."""
        for name in names:
            bus = await self.connect(url, name)
            if name == "collect":
                self.add(await self._collect(bus))
            elif name == "windows":
                self.add(self._windows(bus))
            elif name == "notify":
                self.add(await self._notify(bus))
            elif name == "agents":
                self.add(await _agents(bus, self.settings, self.registry, self._tls))
            elif name == "extender":
                self.add(_extender(bus, self.settings, self.registry, self._tls))
            elif name == "gpu":
                client = await self.connect_kubernetes(name)
                self.add(_gpu(bus, client, self.settings, self.registry, self._tls))
            elif name in BUILD:
                self.add(BUILD[name](bus, self.settings, self.registry))
            else:
                client = await self.connect_kubernetes(name)
                self.add(BUILD_WITH_KUBERNETES[name](bus, client, self.settings, self.registry))

    async def _collect(self, bus: Bus) -> Worker:
        sources = Sources(
            self.settings, self._stack, lambda: self.connect_kubernetes("collect"), self.registry, self._tls
        )
        return Collect(
            bus,
            await sources.build(),
            period=self.settings.period,
            default_stale_after=self.settings.stale_after,
            metrics=self._sources,
            always=self.settings.metrics or (),
        )

    def _windows(self, bus: Bus) -> Worker:
        from workers.ingest.windows import Windows  # with numpy

        return Windows(
            bus,
            default_stale_after=self.settings.stale_after,
            registry=self.registry,
            metrics=self._sources,
            always=self.settings.metrics or (),
        )

    async def _notify(self, bus: Bus) -> Worker:
        metrics = SinkMetrics(self.registry)
        file = sinks_file(self.settings, bus, lambda: self.connect_kubernetes("notify"), metrics)
        return Notify(bus, await file.load(), metrics=metrics, changed=file.changed)

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
        """The workers that are not ready, each with the reason."""
        return {worker.name: reason for worker in self._workers if (reason := worker.unready()) is not None}

    def _bus_problem(self) -> str | None:
        problems = [
            f"{bus.name}: {bus.problem or f'not connected: {bus.last_error}'}"
            for bus in self._buses
            if bus.problem is not None or not bus.connected
        ]
        return "; ".join(problems) or None


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
            url = await parts.start_bus() if starts_bus else bus_url(settings)
            await parts.build(url, names)
            return await parts.run(stop)

    return run_process(settings, body())


_LISTENERS = {"extender": "extender", "agents": "agents", "gpu": "GPU extender"}
"""The workers that listen at `--listen`, each with its name in errors."""


async def check_addresses(settings: Settings, names: Sequence[str]) -> None:
    """Raises StartError if another process listens where the workers `names` will: before a bus and workers start."""
    listens = [] if settings.share_listen else [_LISTENERS[name] for name in names if name in _LISTENERS]
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
async def embedded_bus(settings: Settings, *, announce: bool = True) -> AsyncIterator[tuple[EmbeddedServer, Path]]:
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
            stack.enter_context(announced(server.url, server.pid, token))
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
