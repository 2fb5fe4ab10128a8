"""Announces and finds the embedded servers of this user, so that `tas publish` finds the server of `tas run all`.

Each server has a small file in a directory that only this user may write. The next reader deletes a file whose server
has ended.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from bus.rights.access import Access
from workers.process.errors import StartError
from workers.settings import DEFAULT_URL, EMBEDDED, Settings

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - files in it get random names or are private
"""The only folder that a container with a read-only root can write; Kubernetes gives it 64 MiB."""


def temporary_directory() -> str:
    """The directory for temporary files; in a container with a read-only root, its shared memory."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return SHARED_MEMORY


class _Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """A running server; `started` distinguishes its process from a later process with the same id.

    `token` is the file with the token that it demands. `simulated`: its cluster is that of `tas up`.
    """

    url: str
    pid: int
    started: float
    token: str = ""
    simulated: bool = False


def runtime_directory() -> Path:
    """The directory of announcements: below `$XDG_RUNTIME_DIR`, else below the directory for temporary files."""
    if base := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(base, "tas")
    return Path(temporary_directory(), f"tas-{os.getuid()}")


ATTEMPTS = 5
"""How often an announcement is written again because another server has removed the directory."""


@contextmanager
def announced(url: str, pid: int, token: Path, *, simulated: bool = False) -> Iterator[None]:
    """Announces the server `pid` while the body runs. A failure is logged; clients then need `--bus`."""
    import psutil

    path: Path | None = None
    try:
        started = psutil.Process(pid).create_time()
        file = str(token.absolute())
        path = _announce(_Announcement(url=url, pid=pid, started=started, token=file, simulated=simulated))
    except (OSError, psutil.Error) as error:
        _log().warning("bus_not_announced", bus=url, error=str(error))
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # not empty: another server is announced
                path.parent.rmdir()


def running_bus() -> str | None:
    """The address of the embedded server that this user started last; None if none runs."""
    running = _running()
    return max(running, key=lambda announcement: announcement.started).url if running else None


def is_simulated(url: str) -> bool:
    """Whether this is the address of an embedded server of this user whose cluster is simulated."""
    return any(announcement.url == url and announcement.simulated for announcement in _running())


def _running() -> list[_Announcement]:
    """The embedded servers of this user."""
    directory = runtime_directory()
    if not _is_private(directory):
        return []
    return [announcement for path in directory.glob("bus-*.json") if (announcement := _read(path)) is not None]


def _announce(announcement: _Announcement) -> Path:
    directory = runtime_directory()
    path = directory / f"bus-{announcement.pid}.json"
    unfinished = path.with_suffix(".unfinished")
    for left in reversed(range(ATTEMPTS)):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(directory):
                directory.lstat()  # raises FileNotFoundError if it has been removed meanwhile
                raise PermissionError(f"{directory} is not a directory that only this user may write")
            unfinished.write_bytes(msgspec.json.encode(announcement))
            break
        except (FileNotFoundError, FileExistsError):  # another server has just ended, and has removed the directory
            if not left:
                raise
    unfinished.replace(path)
    return path


def _is_private(directory: Path) -> bool:
    """Whether only this user may write: other users may create files in the directory for temporary files."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _read(path: Path) -> _Announcement | None:
    """The announcement in a file, if its server still runs; otherwise deletes the file."""
    import psutil  # here: most processes find no announcement

    try:
        announcement = msgspec.json.decode(path.read_bytes(), type=_Announcement)
        process = psutil.Process(announcement.pid)
        # A killed server may stay a zombie, for example in a container whose init does not reap orphans.
        if process.create_time() == announcement.started and process.status() != psutil.STATUS_ZOMBIE:
            return announcement
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, psutil.Error) as error:
        _log().debug("announcement_stale", path=str(path), error=str(error))
    with suppress(OSError):
        path.unlink()
    return None


def _log() -> Any:
    """The logger of this module, loaded only for a line: `tas bus url` logs nothing."""
    import structlog

    return structlog.get_logger("discovery")


def bus_url(settings: Settings) -> str:
    """The address of the bus. Raises StartError if `--bus embedded` is given and no embedded server runs."""
    if settings.bus is not None and settings.bus != EMBEDDED:
        return settings.bus
    found = running_bus()
    if found is None and settings.bus == EMBEDDED:
        raise StartError(
            "this user runs no embedded bus: start one (tas run all, tas run bus), or give its address with --bus"
        )
    return found or DEFAULT_URL


def bus_access(settings: Settings, url: str) -> Access:
    """The files that a process shows to the bus at `url`, and by which it recognizes the bus.

    To an embedded server of this user a process shows its token, also if the server starts later.
    """

    def find_token() -> Path | None:
        return next((Path(each.token) for each in _running() if each.url == url and each.token), None)

    return Access(
        credentials=settings.bus_credentials,
        token=settings.bus_token,
        cacert=settings.bus_cacert,
        cert=settings.bus_cert,
        key=settings.bus_key,
        find_token=find_token,
    )
