"""The file of `--source-config`, followed while it changes.

A change that cannot be read is told and changes nothing: what stood there before goes on counting.
"""

import asyncio
import time
from collections.abc import Collection
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Gauge

from tas.sources.config import SourceConfig, SourceConfigError, parse_source_config
from workers.manifests import MAX_BYTES, ManifestError, read_yaml
from workers.runtime import StartError

log = structlog.get_logger("collect")

LOOK_SECONDS = 1.0
"""How often the file is looked at, by whoever needs it."""

_Stamp = tuple[int, int, int, int]


class ConfigFileError(ValueError):
    """A file that is no source configuration; the message names file, field and value."""


def read_source_config(path: Path, sources: Collection[str]) -> SourceConfig:
    """The configuration in a file. Blocks. Raises ConfigFileError."""
    origin = f"source configuration {path}"
    try:
        with path.open("rb") as file:
            documents = read_yaml(file.read(MAX_BYTES + 1))
        return parse_source_config(origin, documents[0] if len(documents) == 1 else documents or None, sources=sources)
    except OSError as error:
        raise ConfigFileError(f"{origin}: {error.strerror or error}") from error
    except ManifestError as error:
        raise ConfigFileError(f"{origin}: {error}") from error
    except SourceConfigError as error:
        raise ConfigFileError(str(error)) from error


class ConfigFile:
    """The configuration as it stands; without a file the one that says nothing.

    Attributes:
        folder: What paths in the configuration are relative to.
    """

    def __init__(
        self, path: Path | None, *, sources: Collection[str], registry: CollectorRegistry | None = None
    ) -> None:
        self._path = path
        self._sources = sources
        self.folder = Path() if path is None else path.parent
        self._config = SourceConfig()
        self._stamp: _Stamp | None = None
        self._looked = -LOOK_SECONDS
        self._lock = asyncio.Lock()
        self._readable = Gauge(
            "tas_source_config_readable", "1 while the file of --source-config can be read, else 0.", registry=registry
        )
        self._readable.set(1)

    @classmethod
    def load(
        cls, path: Path | None, *, sources: Collection[str] = (), registry: CollectorRegistry | None = None
    ) -> "ConfigFile":
        """Reads the file for the first time; `sources` are the names of those that run.

        Raises:
            StartError: with all that is wrong in it.
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
        """What counts now: the same object until the file says something else."""
        path = self._path
        if path is None or time.monotonic() - self._looked < LOOK_SECONDS:
            return self._config
        async with self._lock:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                await self._look(path)
                self._looked = time.monotonic()
        return self._config

    async def _look(self, path: Path) -> None:
        stamp = await asyncio.to_thread(_stamp, path)
        if stamp == self._stamp:
            return
        # Noted before it is read: what changes meanwhile has another stamp, and is read again.
        self._stamp = stamp
        try:
            config = await asyncio.to_thread(read_source_config, path, self._sources)
        except ConfigFileError as error:
            self._readable.set(0)
            log.error("source_config_unreadable", file=str(path), error=str(error))  # noqa: TRY400 - no bug
            return
        self._readable.set(1)
        if config != self._config:
            self._config = config
        log.info("source_config_read", file=str(path), metrics=len(config.mappings.metrics))


def _stamp(path: Path) -> _Stamp | None:
    """What changes when the file does; None while it is away."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
