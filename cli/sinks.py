"""Builds the sinks of the settings."""

from collections.abc import Awaitable, Callable

from bus.connection import Bus
from cli.settings import Settings, flag
from tas.notifying.config import (
    AlertmanagerConfig,
    ChatConfig,
    CloudEventsConfig,
    KubernetesEventsConfig,
    SinkConfig,
)
from workers.kubernetes.client import KubernetesClient
from workers.process.errors import StartError
from workers.publishing.sinks.alertmanager import AlertmanagerSink
from workers.publishing.sinks.base import Sink, SinkMetrics
from workers.publishing.sinks.chat import ChatSink
from workers.publishing.sinks.cloudevents import CloudEventsSink
from workers.publishing.sinks.kubernetes_events import KubernetesEventsSink
from workers.publishing.sinks_file import SinksFile


def sinks_file(
    settings: Settings,
    bus: Bus,
    connect_kubernetes: Callable[[], Awaitable[KubernetesClient]],
    metrics: SinkMetrics,
) -> SinksFile:
    """The sinks of the settings. Raises StartError."""
    path = settings.sinks
    if path is None:
        raise StartError(f"{flag('sinks')} must be given")
    folder, cluster = path.parent, settings.cluster_name or ""
    clients: list[KubernetesClient] = []

    async def client() -> KubernetesClient:
        if not clients:
            clients.append(await connect_kubernetes())
        return clients[0]

    async def built(name: str, config: SinkConfig) -> Sink:
        match config:
            case AlertmanagerConfig():
                return AlertmanagerSink(bus, name, config, folder=folder, metrics=metrics, cluster=cluster)
            case ChatConfig():
                return ChatSink(bus, name, config, folder=folder, metrics=metrics, cluster=cluster)
            case CloudEventsConfig():
                return CloudEventsSink(bus, name, config, folder=folder, metrics=metrics)
            case KubernetesEventsConfig():
                if settings.kubeconfig is None:
                    raise StartError(f"sinks {path}: sinks.{name} needs {flag('kubeconfig')}")
                return KubernetesEventsSink(bus, await client(), name, config, metrics=metrics)

    return SinksFile(path, built, metrics=metrics)
