"""Builds the sinks of the settings."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bus.connection import Bus
from tas.notifying.config import (
    AlertmanagerConfig,
    ChatConfig,
    CloudEventsConfig,
    KubernetesEventsConfig,
    SinkConfig,
)
from workers.notify.sinks.base import Sink, SinkMetrics
from workers.notify.sinks_file import SinksFile
from workers.process.errors import StartError
from workers.settings import Settings, flag

if TYPE_CHECKING:  # the client is loaded by who connects
    from workers.kubernetes.client import KubernetesClient


def sinks_file(
    settings: Settings,
    bus: Bus,
    connect_kubernetes: Callable[[], Awaitable["KubernetesClient"]],
    metrics: SinkMetrics,
) -> SinksFile:
    """The sinks of the settings; the module of a kind is imported for the first of its sinks. Raises StartError."""
    path = settings.sinks
    if path is None:
        raise StartError(f"{flag('sinks')} must be given")
    folder, cluster = path.parent, settings.cluster_name or ""
    clients: list[KubernetesClient] = []

    async def client() -> "KubernetesClient":
        if not clients:
            clients.append(await connect_kubernetes())
        return clients[0]

    async def built(name: str, config: SinkConfig) -> Sink:
        match config:
            case AlertmanagerConfig():
                from workers.notify.sinks.alertmanager import AlertmanagerSink

                return AlertmanagerSink(bus, name, config, folder=folder, metrics=metrics, cluster=cluster)
            case ChatConfig():
                from workers.notify.sinks.chat import ChatSink

                return ChatSink(bus, name, config, folder=folder, metrics=metrics, cluster=cluster)
            case CloudEventsConfig():
                from workers.notify.sinks.cloudevents import CloudEventsSink

                return CloudEventsSink(bus, name, config, folder=folder, metrics=metrics)
            case KubernetesEventsConfig():
                from workers.notify.sinks.kubernetes_events import KubernetesEventsSink

                if settings.kubeconfig is None:
                    raise StartError(f"sinks {path}: sinks.{name} needs {flag('kubeconfig')}")
                return KubernetesEventsSink(bus, await client(), name, config, metrics=metrics)

    return SinksFile(path, built, metrics=metrics)
