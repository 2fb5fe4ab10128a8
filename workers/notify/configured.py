"""Builds the sinks of the settings."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from bus.connection import Bus
from tas.notifying.config import (
    AlertmanagerConfig,
    ChatConfig,
    CloudEventsConfig,
    KubernetesEventsConfig,
    SinkConfig,
    parse_sinks,
)
from tas.values.document import DocumentError
from workers.notify.sinks.base import Sink, SinkMetrics
from workers.process.errors import StartError
from workers.process.followed_file import FollowedFile
from workers.settings import Settings, flag

if TYPE_CHECKING:  # the client is loaded by who connects
    from workers.kubernetes.client import KubernetesClient

log = structlog.get_logger("notify")


class SinksFile:
    """The sinks of a file. `build` makes a sink of its settings, and raises StartError."""

    def __init__(
        self, path: Path, build: Callable[[str, SinkConfig], Awaitable[Sink]], *, metrics: SinkMetrics
    ) -> None:
        self._path = path
        self._build = build
        self._sinks: dict[str, tuple[SinkConfig, Sink]] = {}
        self._file = FollowedFile(
            path,
            self._built,
            kind="sinks",
            readable=metrics.sinks_readable.set,
            refused=lambda problem: log.error("sinks_unreadable", error=problem),
            recovered=self._log,
        )

    async def load(self) -> Sequence[Sink]:
        """All sinks, at the start. Blocks while the file is read. Raises StartError with all mistakes of the file."""
        return await self._file.load()

    async def changed(self) -> Sequence[Sink]:
        """Waits for other settings, and returns all sinks; a sink with the same settings is the same object."""
        sinks = await self._file.changed()
        self._log()
        return sinks

    def _log(self) -> None:
        log.info("sinks_read", file=str(self._path), sinks=sorted(self._sinks))

    async def _built(self, document: object) -> Sequence[Sink]:
        """The sinks of the settings. Raises StartError; then nothing has changed."""
        try:
            configs = parse_sinks(self._file.origin, document)
        except DocumentError as error:
            raise StartError(str(error)) from error
        found: dict[str, tuple[SinkConfig, Sink]] = {}
        for name, config in configs.items():
            known = self._sinks.get(name)
            found[name] = (
                known if known is not None and known[0] == config else (config, await self._build(name, config))
            )
        self._sinks = found
        return [sink for _, sink in found.values()]


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
