"""Builds the sources of the settings."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from tas.sources.nodes import NodeNames
from workers.collect.sources.base import Source
from workers.collect.sources.config import ConfigFile
from workers.collect.sources.tokens import TokenFile
from workers.http.address import Address
from workers.http.certificates import Certificates, TlsMetrics
from workers.http.tls_files import TlsError, TlsFiles
from workers.process.errors import StartError
from workers.samples.source import Listener
from workers.samples.source_spec import SourceKind, SourceSpec
from workers.settings import Settings

if TYPE_CHECKING:  # the client is loaded by who connects
    from workers.kubernetes.client import KubernetesClient


def sources_of(settings: Settings) -> tuple[SourceSpec, ...]:
    """The sources of the settings; by default the custom metrics API if there is a cluster."""
    if settings.source is not None:
        return settings.source
    if settings.kubeconfig is None:
        return ()
    return (SourceSpec(name=SourceKind.CUSTOM_METRICS.value, kind=SourceKind.CUSTOM_METRICS),)


class Sources:
    """Builds sources, each with its own connections: a source that hangs does not block another source.

    The module of a kind is imported when a source of this kind is built.

    `connect_kubernetes` returns a new client of the API server. `stack` closes the connections at the end. `tls` counts
    for the certificates of all servers of the process.
    """

    def __init__(
        self,
        settings: Settings,
        stack: AsyncExitStack,
        connect_kubernetes: Callable[[], Awaitable["KubernetesClient"]],
        registry: CollectorRegistry,
        tls: TlsMetrics,
        *,
        nodes: Callable[[], NodeNames],
    ) -> None:
        self._settings = settings
        self._stack = stack
        self._connect_kubernetes = connect_kubernetes
        self._registry = registry
        self._tls = tls
        self._nodes = nodes
        self._config: ConfigFile | None = None

    async def tolerances(self) -> Mapping[str, float]:
        """The tolerance of each metric that has one in the configuration; none before `build`."""
        return {} if self._config is None else (await self._config.current()).mappings.tolerances

    async def build(self) -> Mapping[SourceSpec, Source | Listener]:
        """Every source of the settings. Raises StartError."""
        specs = sources_of(self._settings)
        configured = {spec.name for spec in specs if spec.kind is SourceKind.PROMETHEUS}
        config = ConfigFile.load(self._settings.source_config, sources=configured, registry=self._registry)
        self._config = config
        listeners = self._listeners([spec for spec in specs if spec.kind is SourceKind.REMOTE_WRITE], config)
        return {spec: listeners[spec] if spec in listeners else await self._polled(spec, config) for spec in specs}

    def _listeners(self, specs: Sequence[SourceSpec], config: ConfigFile) -> dict[SourceSpec, Listener]:
        if not specs:
            return {}
        from workers.collect.sources.remote_write import RemoteWrite, RemoteWriteMetrics

        metrics = RemoteWriteMetrics(self._registry)
        tokens = None if self._settings.remote_write_token is None else TokenFile(self._settings.remote_write_token)
        return {
            spec: RemoteWrite(
                spec.name,
                Address.parse(spec.address),
                config,
                metrics=metrics,
                certificates=self._certificates(),
                tokens=tokens,
                nodes=self._nodes,
            )
            for spec in specs
        }

    def _certificates(self) -> Certificates | None:
        cert, key = self._settings.remote_write_cert, self._settings.remote_write_key
        if cert is None or key is None:
            return None
        try:
            return Certificates(TlsFiles(cert=cert, key=key, cacert=None, prefix="remote-write-"), metrics=self._tls)
        except TlsError as error:
            raise StartError(str(error)) from error

    async def _polled(self, spec: SourceSpec, config: ConfigFile) -> Source:
        match spec.kind:
            case SourceKind.CUSTOM_METRICS:
                from workers.collect.sources.custom_metrics import CustomMetrics

                return CustomMetrics(spec.name, await self._connect_kubernetes(), config, nodes=self._nodes)
            case SourceKind.METRICS_SERVER:
                from workers.collect.sources.metrics_server import MetricsServer

                return MetricsServer(spec.name, await self._connect_kubernetes(), config, nodes=self._nodes)
            case SourceKind.PROMETHEUS:
                from workers.collect.sources.prometheus import Prometheus

                prometheus = Prometheus(spec.name, spec.address, config, nodes=self._nodes)
                self._stack.push_async_callback(prometheus.close)
                return prometheus
        raise AssertionError(f"source {spec}: receives samples and is not polled")
