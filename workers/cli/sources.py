"""Where sources of telemetry are put together from the settings."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from workers.cli.settings import Settings
from workers.kubernetes.client import KubernetesClient
from workers.runtime import StartError
from workers.sources.base import Listener, Source, SourceKind, SourceSpec
from workers.sources.custom_metrics import CustomMetrics
from workers.sources.metrics_server import MetricsServer


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
        self, settings: Settings, stack: AsyncExitStack, connect_kubernetes: Callable[[], Awaitable[KubernetesClient]]
    ) -> None:
        self._settings = settings
        self._stack = stack
        self._connect_kubernetes = connect_kubernetes

    async def build(self) -> Mapping[SourceSpec, Source | Listener]:
        """Every source of the settings. Raises StartError."""
        return {spec: await self._build(spec) for spec in sources_of(self._settings)}

    async def _build(self, spec: SourceSpec) -> Source | Listener:
        match spec.kind:
            case SourceKind.CUSTOM_METRICS:
                return CustomMetrics(spec.name, await self._connect_kubernetes())
            case SourceKind.METRICS_SERVER:
                return MetricsServer(spec.name, await self._connect_kubernetes())
        raise StartError(f"source {spec}: this kind cannot be run yet")
