"""The file of `--sinks`, read again when it changes. While it is invalid, the sinks stay as they are."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import structlog

from tas.errors import line_of
from tas.notifying.config import SinkConfig, SinksConfigError, parse_sinks
from workers.process.errors import StartError
from workers.process.manifests import MAX_BYTES, ManifestError, read_yaml
from workers.publishing.sinks.base import Sink, SinkMetrics

log = structlog.get_logger("notify")

CHECK_SECONDS = 1.0
"""How often the file is read. A change counts once it is read twice, since the file may still be being written."""


class SinksFile:
    """The sinks of a file. `build` makes a sink of its settings, and raises StartError."""

    def __init__(
        self, path: Path, build: Callable[[str, SinkConfig], Awaitable[Sink]], *, metrics: SinkMetrics
    ) -> None:
        self._path = path
        self._build = build
        self._metrics = metrics
        self._content: bytes | None = None
        self._sinks: dict[str, tuple[SinkConfig, Sink]] = {}

    async def load(self) -> Sequence[Sink]:
        """All sinks, at the start. Blocks while the file is read. Raises StartError with all mistakes of the file."""
        self._content = self._read()
        return await self._built(self._parse(self._content))

    async def changed(self) -> Sequence[Sink]:
        """Waits for other settings, and returns all sinks; a sink with the same settings is the same object."""
        pending, refused, problem = self._content, None, ""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                content = await asyncio.to_thread(self._read)
                if content != pending:
                    pending = content
                elif content == self._content:
                    self._metrics.sinks_readable.set(1)
                    refused, problem = None, ""
                elif content != refused:
                    refused = content
                    sinks = await self._built(await asyncio.to_thread(self._parse, content))
                    self._content = content
                    log.info("sinks_read", file=str(self._path), sinks=sorted(self._sinks))
                    return sinks
            except StartError as error:
                self._metrics.sinks_readable.set(0)
                if str(error) != problem:
                    problem = str(error)
                    log.error("sinks_unreadable", error=line_of(problem))  # noqa: TRY400 - no bug

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except OSError as error:
            raise StartError(f"sinks {self._path}: {error.strerror or error}") from error

    async def _built(self, configs: Mapping[str, SinkConfig]) -> Sequence[Sink]:
        """The sinks of the settings. Raises StartError; then nothing has changed."""
        found: dict[str, tuple[SinkConfig, Sink]] = {}
        for name, config in configs.items():
            known = self._sinks.get(name)
            found[name] = (
                known if known is not None and known[0] == config else (config, await self._build(name, config))
            )
        self._sinks = found
        self._metrics.sinks_readable.set(1)
        return [sink for _, sink in found.values()]

    def _parse(self, content: bytes) -> dict[str, SinkConfig]:
        origin = f"sinks {self._path}"
        try:
            documents = read_yaml(content)
            return parse_sinks(origin, documents[0] if len(documents) == 1 else documents or None)
        except ManifestError as error:
            raise StartError(f"{origin}: {error}") from error
        except SinksConfigError as error:
            raise StartError(str(error)) from error
