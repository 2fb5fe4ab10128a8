"""Which embedded servers this user runs, so that `tas publish` finds the one of `tas run all`.

Each is told by a small file in a folder that only this user may write. A file whose server is gone says nothing, and
is removed by whoever comes across it.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil
import structlog

log = structlog.get_logger("discovery")


class _Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """A running server; `started` tells its process from a later one of the same id."""

    url: str
    pid: int
    started: float


def runtime_folder() -> Path:
    """Where announcements are: below `$XDG_RUNTIME_DIR`, else below the folder for temporary files."""
    if base := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(base, "tas")
    return Path(tempfile.gettempdir(), f"tas-{os.getuid()}")


@contextmanager
def announced(url: str, pid: int) -> Iterator[None]:
    """Tells of the server `pid` within the body. If that cannot be told, it is logged, and clients need `--bus`."""
    path: Path | None = None
    try:
        path = _announce(_Announcement(url=url, pid=pid, started=psutil.Process(pid).create_time()))
    except (OSError, psutil.Error) as error:
        log.warning("bus_not_announced", bus=url, error=str(error))
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # another server's announcement is in it
                path.parent.rmdir()


def running_bus() -> str | None:
    """The address of the embedded server that this user started last; None if none runs."""
    folder = runtime_folder()
    if not _is_ours_alone(folder):
        return None
    running = [announcement for path in folder.glob("bus-*.json") if (announcement := _read(path)) is not None]
    return max(running, key=lambda announcement: announcement.started).url if running else None


def _announce(announcement: _Announcement) -> Path:
    """Writes the announcement as a whole, and returns where. Raises OSError."""
    folder = runtime_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours_alone(folder):
        raise PermissionError(f"{folder} is not a folder that this user alone may write")
    path = folder / f"bus-{announcement.pid}.json"
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(msgspec.json.encode(announcement))
    unfinished.replace(path)
    return path


def _is_ours_alone(folder: Path) -> bool:
    """Whether nobody else could have put something there: the folder for temporary files is everybody's."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _read(path: Path) -> _Announcement | None:
    """What a file tells, if its server still runs; else the file is removed."""
    try:
        announcement = msgspec.json.decode(path.read_bytes(), type=_Announcement)
        process = psutil.Process(announcement.pid)
        # One that was killed may wait for ever to be looked after, as where nobody reaps orphans.
        if process.create_time() == announcement.started and process.status() != psutil.STATUS_ZOMBIE:
            return announcement
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, psutil.Error) as error:
        log.debug("announcement_stale", path=str(path), error=str(error))
    with suppress(OSError):
        path.unlink()
    return None
