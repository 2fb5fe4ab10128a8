"""Where sources of telemetry are put together from the settings."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from workers.cli.settings import Settings
from workers.kubernetes.client import KubernetesClient
from workers.runtime import Address
from workers.sources.base import Listener, Source, SourceKind, SourceSpec
from workers.sources.config import ConfigFile
from workers.sources.custom_metrics import CustomMetrics
from workers.sources.metrics_server import MetricsServer
from workers.sources.prometheus import Prometheus


def sources_of(settings: Settings) -> tuple[SourceSpec, ...]:
    """The sources of a process: those named, else the custom metrics API where there is a cluster."""
    if settings.source is not None:
        return settings.source
    if settings.kubeconfig is None:
        return ()
    return (SourceSpec(name=SourceKind.CUSTOM_METRICS.value, kind=SourceKind.CUSTOM_METRICS),)


class Sources:
    """Builds sources, each with connections of its own, so that one that hangs takes none from another.

    `connect_kubernetes` gives a new client of the API server; what `stack` holds is closed at the end.
    """

    def __init__(
        self,
        settings: Settings,
        stack: AsyncExitStack,
        connect_kubernetes: Callable[[], Awaitable[KubernetesClient]],
        registry: CollectorRegistry,
    ) -> None:
        self._settings = settings
        self._stack = stack
        self._connect_kubernetes = connect_kubernetes
        self._registry = registry

    async def build(self) -> Mapping[SourceSpec, Source | Listener]:
        """Every source of the settings. Raises StartError."""
        specs = sources_of(self._settings)
        asked = {spec.name for spec in specs if spec.kind is SourceKind.PROMETHEUS}
        config = ConfigFile.load(self._settings.source_config, sources=asked, registry=self._registry)
        received = self._received([spec for spec in specs if spec.kind is SourceKind.REMOTE_WRITE], config)
        return {spec: received[spec] if spec in received else await self._asked(spec, config) for spec in specs}

    def _received(self, specs: Sequence[SourceSpec], config: ConfigFile) -> dict[SourceSpec, Listener]:
        if not specs:
            return {}
        # Only where it is used: protobuf takes longer to load than all else of ours together.
        from workers.sources.remote_write import RemoteWrite, RemoteWriteMetrics  # noqa: PLC0415

        metrics = RemoteWriteMetrics(self._registry)
        return {spec: RemoteWrite(spec.name, Address.parse(spec.address), config, metrics=metrics) for spec in specs}

    async def _asked(self, spec: SourceSpec, config: ConfigFile) -> Source:
        match spec.kind:
            case SourceKind.CUSTOM_METRICS:
                return CustomMetrics(spec.name, await self._connect_kubernetes())
            case SourceKind.METRICS_SERVER:
                return MetricsServer(spec.name, await self._connect_kubernetes())
            case SourceKind.PROMETHEUS:
                prometheus = Prometheus(spec.name, spec.address, config)
                self._stack.push_async_callback(prometheus.close)
                return prometheus
        raise AssertionError(f"source {spec}: is written to, not asked")
