"""The file of `--source-config`, reloaded when it changes.

An invalid change is logged, and the last valid configuration stays in use.
"""

import asyncio
import time
from collections.abc import Collection
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Gauge

from tas.sources.config import SourceConfig, parse_source_config
from tas.values.document import DocumentError
from workers.process.errors import StartError
from workers.process.manifests import MAX_BYTES, ManifestError, read_yaml

log = structlog.get_logger("collect")

CHECK_SECONDS = 1.0
"""How often the file is checked, on use."""

SETTLE_SECONDS = 0.1
"""How long a changed file must stay as it is before it is read: an editor empties a file, and then writes it."""

_Stamp = tuple[int, int, int, int]


class ConfigFileError(ValueError):
    """The file is no valid source configuration; the message names file, field and value."""


def read_source_config(path: Path, sources: Collection[str]) -> SourceConfig:
    """The configuration in a file. Blocks. Raises ConfigFileError."""
    origin = f"source configuration {path}"
    try:
        with path.open("rb") as file:
            documents = read_yaml(file.read(MAX_BYTES + 1))
        return parse_source_config(origin, documents[0] if len(documents) == 1 else documents or None, sources=sources)
    except OSError as error:
        raise _UnreadError(f"{origin}: {error.strerror or error}") from error
    except ManifestError as error:
        raise ConfigFileError(f"{origin}: {error}") from error
    except DocumentError as error:
        raise ConfigFileError(str(error)) from error


class _UnreadError(ConfigFileError):
    """The file was not read: the next attempt may succeed, although nothing has changed its contents."""


class ConfigFile:
    """The current configuration; without a file, an empty one.

    Attributes:
        folder: The folder that paths in the configuration are relative to.
    """

    def __init__(
        self, path: Path | None, *, sources: Collection[str], registry: CollectorRegistry | None = None
    ) -> None:
        self._path = path
        self._sources = sources
        self.folder = Path() if path is None else path.parent
        self._config = SourceConfig()
        self._stamp: _Stamp | None = None
        self._problem = ""
        self._is_unread = False
        self._checked_at = -CHECK_SECONDS
        self._lock = asyncio.Lock()
        self._readable = Gauge(
            "tas_source_config_readable", "1 while the file of --source-config can be read, else 0.", registry=registry
        )
        self._readable.set(1)

    @classmethod
    def load(
        cls, path: Path | None, *, sources: Collection[str] = (), registry: CollectorRegistry | None = None
    ) -> "ConfigFile":
        """Reads the file for the first time; `sources` are the names of the running sources.

        Raises StartError with all errors of the file.
        """
        loaded = cls(path, sources=sources, registry=registry)
        if path is not None:
            try:
                loaded._stamp = _stamp(path)
                loaded._config = read_source_config(path, sources)
            except ConfigFileError as error:
                raise StartError(str(error)) from error
        return loaded

    async def current(self) -> SourceConfig:
        """The current configuration: the same object until the file's content changes."""
        path = self._path
        if path is None or time.monotonic() - self._checked_at < CHECK_SECONDS:
            return self._config
        async with self._lock:
            if time.monotonic() - self._checked_at >= CHECK_SECONDS:
                await self._check(path)
                self._checked_at = time.monotonic()
        return self._config

    async def _check(self, path: Path) -> None:
        stamp = await asyncio.to_thread(_stamp, path)
        if stamp == self._stamp and not self._is_unread:
            return
        await asyncio.sleep(SETTLE_SECONDS)
        if await asyncio.to_thread(_stamp, path) != stamp:
            return  # it is being written, and is looked at again by the next check
        found: SourceConfig | ConfigFileError
        try:
            found = await asyncio.to_thread(read_source_config, path, self._sources)
        except ConfigFileError as error:
            found = error
        if await asyncio.to_thread(_stamp, path) != stamp:
            return  # perhaps half of it was read
        was, self._stamp = self._stamp, stamp
        self._is_unread = isinstance(found, _UnreadError)
        if isinstance(found, SourceConfig):
            self._accept(path, found)
        elif stamp != was or str(found) != self._problem:
            self._problem = str(found)
            self._readable.set(0)
            log.error("source_config_unreadable", file=str(path), error=self._problem)

    def _accept(self, path: Path, config: SourceConfig) -> None:
        self._problem = ""
        self._readable.set(1)
        if config != self._config:
            self._config = config
        log.info("source_config_read", file=str(path), metrics=len(config.mappings.metrics))


def _stamp(path: Path) -> _Stamp | None:
    """A value that changes with the file; None while the file is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
