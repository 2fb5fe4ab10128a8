"""The workers of a process, their health routes, and an orderly stop.

A worker runs until it is cancelled. The supervisor runs one or several workers on one event loop, serves `/healthz`,
`/readyz` and `/metrics` on a separate port, and stops the workers on a signal. When a worker ends by itself, the
process ends with an error: a restarted process is better than a process without one of its workers.
"""

import asyncio
import platform
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, runtime_checkable

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Info, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from bus.buckets import ALL, Bucket
from bus.invalid import InvalidEntries
from tas.processes.process import LastAnswer, NotReady, RefusedSamples
from tas.samples.pace import LateMetric
from workers.http.address import Address
from workers.http.listening import listening
from workers.process.errors import EXIT_FAILED, EXIT_OK, WorkerError
from workers.process.garbage import collected_in_steps
from workers.process.stalls import stalls_logged
from workers.process.version import product_version

log = structlog.get_logger("runtime")

STOP_SECONDS = 15.0
"""How long workers may take to finish their current work: more than a consumer's ack wait (10 s)."""


class Worker(Protocol):
    """A stateless worker. Any replica can be killed at any line."""

    @property
    def name(self) -> str:
        """As in `tas run <name>`, and in logs, metrics and `/readyz`."""
        ...

    def unready(self) -> str | None:
        """Why the worker is not ready, for a person to read; None if it is ready."""
        ...

    async def run(self) -> None:
        """Works until cancelled, then finishes its current work. Raises `WorkerError`; any other error is a bug."""
        ...


@runtime_checkable
class WithHealthRoutes(Protocol):
    """A worker with its own routes on the health port."""

    def health_routes(self) -> Iterable[web.RouteDef]:
        """Routes beside `/healthz`, `/readyz` and `/metrics`."""
        ...


@runtime_checkable
class WithBehind(Protocol):
    """A worker that may be behind, although it is ready."""

    def behind(self) -> Mapping[str, float]:
        """By how many seconds what is behind: part of `/readyz`."""
        ...


@runtime_checkable
class WithAnswers(Protocol):
    """A worker that answers kube-scheduler."""

    def last_answers(self) -> Mapping[str, LastAnswer]:
        """The last answer by verb."""
        ...


@runtime_checkable
class WithWaitingLabels(Protocol):
    """A worker that makes nodes wait for labels."""

    def waiting_labels(self) -> Mapping[str, int]:
        """By name of the policies, how many nodes wait for their turn to get their first label."""
        ...


@runtime_checkable
class WithRefusedSamples(Protocol):
    """A worker that refuses samples of other programs."""

    def refused_samples(self) -> Sequence[RefusedSamples]:
        """What it has refused lately, the newest first."""
        ...


@runtime_checkable
class WithLateMetrics(Protocol):
    """A worker that knows when the values were measured that rules read."""

    def late_metrics(self) -> Sequence[LateMetric]:
        """The metrics that come late, the oldest first; part of the record in WORKERS."""
        ...


@runtime_checkable
class WithConcerns(Protocol):
    """A worker that may see that something does not go as it should, although it is ready."""

    def concerns(self) -> Iterable[str]:
        """What that is, each as a sentence; part of the record in WORKERS."""
        ...


@runtime_checkable
class WithNotReady(Protocol):
    """A worker that writes the status of policies."""

    def policies_not_ready(self) -> Mapping[str, NotReady]:
        """By reason, those that are not ready; part of the record in WORKERS."""
        ...


@runtime_checkable
class WithNewestPods(Protocol):
    """A worker that knows about which pods kube-scheduler has to ask."""

    def newest_pods(self) -> Mapping[str, float]:
        """By state, when the newest one was created, in seconds since 1970; part of the record in WORKERS."""
        ...


def new_registry() -> CollectorRegistry:
    """A registry with the metrics of this process and build; workers add theirs."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second line for each counter, which nobody needs
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    Info("tas_build", "Version of the product and of Python.", registry=registry).info(
        {"version": product_version(), "python": platform.python_version()}
    )
    return registry


def invalid_entries(registry: CollectorRegistry) -> InvalidEntries:
    """The reporter of unreadable entries, for all connections of a process."""
    count = Counter(
        "tas_bus_entries_invalid", "Entries of the bus that could not be read.", ["bucket"], registry=registry
    )
    for each in ALL:
        if isinstance(each, Bucket):
            count.labels(each.name)  # from the start on, so that a rate is never without its zero
    return InvalidEntries(lambda bucket: count.labels(bucket).inc())


def version_route() -> web.RouteDef:
    """`GET /version`: the versions of the product and of Python."""

    async def answer(_request: web.Request) -> web.Response:
        return json_response({"version": product_version(), "python": platform.python_version()})

    return web.get("/version", answer)


@asynccontextmanager
async def beside(*parts: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Runs within the body what no worker depends on: its end is logged, and ends nothing else."""
    tasks = [asyncio.create_task(part) for part in parts]
    for task in tasks:
        task.add_done_callback(_log_end)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("part_crashed", exc_info=error)


class Supervisor:
    """Runs workers until `stop` is set, or until one of them ends by itself.

    `bus_problem` returns the current problem of the bus connection for `/readyz`. It does not change readiness: each
    worker decides whether it is ready.
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
        self._was_ready = False
        ready = Gauge(
            "tas_worker_ready", "1 while the worker can do its work, else 0.", ["worker"], registry=self._registry
        )
        for worker in workers:
            ready.labels(worker.name).set_function(partial(_is_ready, worker))
        self._stalls = Counter(
            "tas_event_loop_stalls",
            "Times that code ran for seconds without awaiting, and blocked the event loop.",
            registry=self._registry,
        )

    async def run(self, stop: asyncio.Event) -> int:
        """The exit code of the process: 0 after `stop`, else that of the worker that ended.

        Raises StartError if the health address cannot be used.
        """
        async with stalls_logged(self._stalls.inc), collected_in_steps():
            return await self._run_with_health(stop)

    async def _run_with_health(self, stop: asyncio.Event) -> int:
        if self._health is None:
            return await self._run_workers(stop)
        app = web.Application()
        app.add_routes(self._health_routes())
        setting = "--health-listen, TAS_HEALTH_LISTEN"
        async with listening(app, self._health, purpose="health", setting=setting) as address:
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
        code = max((self._exit_code_of(task, by_itself=task in ended) for task in self._tasks), default=EXIT_OK)
        log.info("workers_stopped", exit_code=code)
        return code

    async def _stop_workers(self) -> None:
        for task in self._tasks:
            task.cancel()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=self._stop_seconds)
        for task in late:
            # Nothing is lost: unacknowledged messages are delivered again to another replica.
            log.warning("worker_stop_timed_out", worker=self._tasks[task].name, seconds=self._stop_seconds)

    def _exit_code_of(self, task: asyncio.Task[None], *, by_itself: bool) -> int:
        name = self._tasks[task].name
        if not task.done() or task.cancelled():
            return EXIT_OK
        error = task.exception()
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]  # TaskGroup wraps even a single error in a group
        if isinstance(error, WorkerError):
            log.error("worker_failed", worker=name, error=str(error))
            return error.exit_code
        if error is not None:
            log.error("worker_crashed", worker=name, exc_info=error)
            return EXIT_FAILED
        if by_itself:
            log.error(
                "worker_ended", worker=name, error="the worker ended by itself; it must run until it is cancelled"
            )
            return EXIT_FAILED
        return EXIT_OK

    def _health_routes(self) -> Iterator[web.RouteDef]:
        yield web.get("/healthz", self._healthz)
        yield web.get("/readyz", self._readyz)
        yield web.get("/readyz/serving", self._serving)
        yield web.get("/metrics", self._metrics)
        yield version_route()
        for worker in self._workers:
            if isinstance(worker, WithHealthRoutes):
                yield from worker.health_routes()

    async def _healthz(self, _request: web.Request) -> web.Response:
        ended = [worker.name for task, worker in self._tasks.items() if task.done()]
        return json_response({"ok": not ended, "ended": ended}, status=503 if ended else 200)

    async def _readyz(self, _request: web.Request) -> web.Response:
        reasons = self.unready()
        body = {
            "ready": not any(reasons.values()),
            "workers": reasons,
            "bus": self._bus_problem(),
            "behind": self.behind(),
        }
        return json_response(body, status=200 if body["ready"] else 503)

    async def _serving(self, _request: web.Request) -> web.Response:
        """For the probe that takes a pod out of its Service.

        Once all workers have been ready at one time, those count that answer kube-scheduler, if there are some: an
        extender with a complete view would leave the Service because another worker of the process does not reach the
        API server.
        """
        reasons = self.unready()
        answering = [reasons[each.name] for each in self._workers if isinstance(each, WithAnswers)]
        counting: Iterable[str | None] = answering if answering and self._was_ready else reasons.values()
        serves = not any(counting)
        return json_response({"serving": serves}, status=200 if serves else 503)

    def behind(self) -> dict[str, dict[str, float]]:
        """For each worker by name that is behind, by how many seconds what is."""
        found = {each.name: dict(each.behind()) for each in self._workers if isinstance(each, WithBehind)}
        return {name: seconds for name, seconds in found.items() if seconds}

    def waiting_labels(self) -> dict[str, int]:
        """By name of the policies, how many nodes wait for their turn to get their first label."""
        found: dict[str, int] = {}
        for worker in self._workers:
            found |= worker.waiting_labels() if isinstance(worker, WithWaitingLabels) else {}
        return found

    def refused_samples(self) -> list[RefusedSamples]:
        """What its workers have refused lately, the newest of each first."""
        found = (each.refused_samples() for each in self._workers if isinstance(each, WithRefusedSamples))
        return [refused for of_worker in found for refused in of_worker]

    def late_metrics(self) -> list[LateMetric]:
        """The metrics that come late to its workers."""
        found = (each.late_metrics() for each in self._workers if isinstance(each, WithLateMetrics))
        return [late for of_worker in found for late in of_worker]

    def last_answers(self) -> dict[str, LastAnswer]:
        """The last answer of its workers by verb; of several with one verb that of the newest request."""
        found: dict[str, LastAnswer] = {}
        for worker in self._workers:
            for verb, answer in worker.last_answers().items() if isinstance(worker, WithAnswers) else ():
                found[verb] = max(answer, found.get(verb, answer), key=lambda each: each.time)
        return found

    def concerns(self) -> dict[str, tuple[str, ...]]:
        """For each worker by name that sees that something does not go as it should, what that is."""
        found = {each.name: tuple(each.concerns()) for each in self._workers if isinstance(each, WithConcerns)}
        return {name: concerns for name, concerns in found.items() if concerns}

    def policies_not_ready(self) -> dict[str, NotReady]:
        """By reason, the policies that are not ready, by the worker that writes their status."""
        found: dict[str, NotReady] = {}
        for worker in self._workers:
            found |= worker.policies_not_ready() if isinstance(worker, WithNotReady) else {}
        return found

    def newest_pods(self) -> dict[str, float]:
        """By state, when the newest pod was created about which kube-scheduler has to ask."""
        found: dict[str, float] = {}
        for worker in self._workers:
            found |= worker.newest_pods() if isinstance(worker, WithNewestPods) else {}
        return found

    def unready(self) -> Mapping[str, str | None]:
        """For each worker by name, why it is not ready, or None."""
        if self._stopping:
            return {worker.name: "stopping" for worker in self._workers}
        reasons = {worker.name: worker.unready() for worker in self._workers}
        self._was_ready = self._was_ready or not any(reasons.values())
        return reasons

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})


def _is_ready(worker: Worker) -> float:
    return float(worker.unready() is None)


def json_response(value: object, *, status: int = 200) -> web.Response:
    """`value` as JSON, with a final newline for reading in a terminal."""
    return web.Response(body=msgspec.json.encode(value) + b"\n", status=status, content_type="application/json")
