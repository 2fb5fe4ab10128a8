"""What the workers of one process have in common: settings, metrics, and connections to the bus and the API server."""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from bus.buckets import ALL, Bucket, Stream
from bus.connection import Bus
from bus.errors import MisconfiguredError
from bus.rights.access import Access
from tas.errors import shortened
from tas.processes.process import most_behind
from workers.discovery import bus_access, bus_url
from workers.names import ALL_WORKERS, workers_of
from workers.process.bus_metrics import BusMetrics
from workers.process.errors import StartError
from workers.runtime import invalid_entries
from workers.settings import Settings, flag, variable

if TYPE_CHECKING:  # each is loaded by who needs it
    from workers.following.followed_view import FollowedView
    from workers.following.roster import Roster
    from workers.http.certificates import Certificates, TlsMetrics
    from workers.kubernetes.client import KubernetesClient
    from workers.kubernetes.errors import ConfigurationError
    from workers.kubernetes.metrics import RequestMetrics
    from workers.kubernetes.reflectors import Reflectors
    from workers.samples.metrics import SourceMetrics
    from workers.scheduler.server import SchedulerServer


class Context:
    """What a process has once and gives to its workers; the only place where connections of workers are made.

    Attributes:
        name: The name of the process: of its worker, or `all`.
        workers: The names of its workers.
        streams: The streams and buckets without which these cannot work.
        settings: The settings of the command.
        registry: The metrics of the process, served at `--health-listen`.
        stack: Closes at the end what is made for the process.
        url: The address of the bus.
        token: The file with the token of the embedded server that this process runs.
    """

    def __init__(self, settings: Settings, stack: AsyncExitStack, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.registry = registry
        self.stack = stack
        self.token: Path | None = None
        self.name = ALL_WORKERS
        self.workers: Sequence[str] = ()
        self.streams: Sequence[Stream | Bucket] = ALL
        self._bus: Bus | None = None
        self._view: FollowedView | None = None
        self._roster: Roster | None = None
        self._buses: list[Bus] = []
        self._kubeconfig_expires = inf
        self._reflectors: Reflectors | None = None
        self._invalid = invalid_entries(registry)
        self._bus_metrics = BusMetrics(registry)

    @cached_property
    def url(self) -> str:
        """The address of the bus: of the settings, unless the process runs an embedded server and sets it."""
        return bus_url(self.settings)

    async def bus(self) -> Bus:
        """The connection to the bus that all workers share. Raises StartError.

        `tas run all` has a second one, over which all watches come: an answer to a request, which is waited for 2 s,
        does not come after the bytes of 15,000 nodes, and the extender's view does not wait for what other workers ask.
        """
        if self._bus is None:
            self._bus = await self.connect(self.name, streams=self.streams)
            if self.name == ALL_WORKERS:
                self._bus.readers = await self.connect(f"{self.name}-watches", streams=self.streams)
        return self._bus

    async def view(self) -> "FollowedView":
        """The view that all workers share; built only if one needs it, since it needs all of NODES."""
        from workers.following.followed_view import FollowedView
        from workers.following.view_metrics import KeptRejections, ValueAges

        if self._view is None:
            self._view = FollowedView(
                await self.bus(),
                default_stale_after=self.settings.stale_after,
                verdicts="evaluate" in self.workers,
                pods="extender" in self.workers,
            )
            view = self._view
            self.registry.register(ValueAges(lambda: view.value_times))
            self.registry.register(KeptRejections(view.view.kept_rejections))
        return self._view

    async def roster(self) -> "Roster":
        """Which processes run, for all workers that ask; `Process` runs it."""
        from workers.following.roster import Roster

        if self._roster is None:
            self._roster = Roster(await self.bus(), self.registry, workers_of(ALL_WORKERS))
        return self._roster

    async def connect(self, name: str, *, streams: Sequence[Stream | Bucket] = ALL) -> Bus:
        """A new connection to the bus for who needs these streams, closed at the end. Raises StartError."""
        access = Access(token=self.token) if self.token is not None else bus_access(self.settings, self.url)
        try:
            bus = await self.stack.enter_async_context(
                Bus.connect(
                    self.url,
                    name=f"tas-{name}",
                    replicas=self.settings.replicas,
                    on_invalid=self._invalid,
                    access=access,
                    # On a closed bus a worker may not even look at the streams of others.
                    streams=streams if access.credentials is not None else ALL,
                )
            )
        except MisconfiguredError as error:
            raise StartError(str(error)) from error
        self._buses.append(bus)
        self._bus_metrics.add(bus)
        return bus

    async def connect_kubernetes(self, name: str) -> "KubernetesClient":
        """A new client of the API server for the worker `name`, closed at the end. Raises StartError."""
        from workers.kubernetes.client import KubernetesClient
        from workers.kubernetes.errors import ConfigurationError

        kubeconfig = self.settings.kubeconfig
        if kubeconfig is None:
            raise StartError("--kubeconfig must be given")
        file = kubeconfig if isinstance(kubeconfig, Path) else None
        try:
            client = await self.stack.enter_async_context(
                KubernetesClient.connect(file, worker=name, metrics=self._requests)
            )
        except ConfigurationError as error:
            raise StartError(kubeconfig_problem(kubeconfig, error)) from error
        if isfinite(client.expires):
            self._kubeconfig_expires = min(self._kubeconfig_expires, client.expires)
            self.tls.remaining.labels("kubeconfig").set_function(lambda: self._kubeconfig_expires - time.time())
        return client

    def reflectors(self, client: "KubernetesClient") -> "Reflectors":
        """The lists and watches of the API server that all workers share, over the client of the first one."""
        from workers.kubernetes.reflectors import Reflectors

        if self._reflectors is None:
            self._reflectors = Reflectors(client)
        return self._reflectors

    def server(self, name: str, *, purpose: str = "", setting: str = "--listen, TAS_LISTEN") -> "SchedulerServer":
        """The server of the worker `name` that answers kube-scheduler. Raises StartError."""
        from workers.http.limits import Limits
        from workers.scheduler.server import SchedulerServer

        settings = self.settings
        return SchedulerServer(
            name,
            settings.listen,
            self.registry,
            purpose=purpose,
            setting=setting,
            max_body_bytes=settings.max_body,
            shared=settings.share_listen,
            limits=Limits(connections=settings.max_connections, idle_seconds=settings.idle_timeout),
            certificates=self._certificates(),
        )

    def _certificates(self) -> "Certificates | None":
        """The files of HTTPS, or None for plain HTTP. Raises StartError."""
        from workers.http.certificates import Certificates
        from workers.http.tls_files import TlsError, TlsFiles

        settings = self.settings
        if settings.cert is None or settings.key is None or settings.cacert is None:
            return None
        files = TlsFiles(cert=settings.cert, key=settings.key, cacert=settings.cacert)
        try:
            return Certificates(files, allowed=settings.client_names or (), metrics=self.tls)
        except TlsError as error:
            raise StartError(str(error)) from error

    @cached_property
    def tls(self) -> "TlsMetrics":
        """The metrics of the certificates of all servers of the process."""
        from workers.http.certificates import TlsMetrics

        return TlsMetrics(self.registry)

    @cached_property
    def source_metrics(self) -> "SourceMetrics":
        """The metrics of sources: `windows` is one beside those of `collect`."""
        from workers.samples.metrics import SourceMetrics

        return SourceMetrics(self.registry)

    @cached_property
    def _requests(self) -> "RequestMetrics":
        from workers.kubernetes.metrics import RequestMetrics

        return RequestMetrics(self.registry)

    @property
    def leases(self) -> list[str]:
        """The names of the leases that the process holds."""
        return sorted({lease for bus in self._buses for lease in bus.leases})

    @property
    def lag(self) -> dict[str, int]:
        """By how many messages the process is behind, by what it follows."""
        return most_behind(bus.lag for bus in self._buses)

    @property
    def expires(self) -> dict[str, float]:
        """When the first certificate of each file, and the credentials for the bus, expire; without what never does."""
        served = self.tls.served if "tls" in vars(self) else ()  # most processes serve no certificate
        dates = [
            *(date for each in served for date in each.current.expires.items()),
            *(date for bus in self._buses for date in bus.expires.items()),
            ("kubeconfig", self._kubeconfig_expires),
        ]
        return {file: min(at for name, at in dates if name == file) for file, at in dates if isfinite(at)}

    def bus_problem(self) -> str | None:
        """What is wrong with the connections to the bus."""
        problems = [
            f"{bus.name}: {bus.problem or f'not connected: {bus.last_error}'}"
            for bus in self._buses
            if bus.problem is not None or not bus.connected
        ]
        return "; ".join(problems) or None


def kubeconfig_problem(kubeconfig: Path | str, error: "ConfigurationError") -> str:
    """The error message for a kubeconfig that cannot be used, with what to do."""
    problem = f"{flag('kubeconfig')} ({variable('kubeconfig')}) = {shortened(str(kubeconfig))}: {error}"
    return (
        problem
        if isinstance(kubeconfig, Path)
        else f"{problem} Outside of a pod, name a file with {flag('kubeconfig')}"
    )
