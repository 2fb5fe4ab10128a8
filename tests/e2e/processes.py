"""Child processes that end with their test, free ports, and bounded polls."""

import fcntl
import functools
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")

REPOSITORY = Path(__file__).parents[2]
TETHER = Path(__file__).with_name("tether.py")
# Below the ports of outgoing connections on Linux, which could otherwise take a port between choice and use.
PORTS = range(20_000, 32_000)
BLOCK = 100
"""The number of ports that a process reserves at once."""


def until(probe: Callable[[], T | None], what: str, *, timeout: float = 120.0) -> T:
    """Calls `probe` until its answer is true, and returns the answer.

    The next call is after a tenth of the wait so far: most calls are requests to the API server, and cost processor
    time that other tests need.

    Raises:
        TimeoutError: With `what` and the last answer, after `timeout` seconds.
    """
    began = time.monotonic()
    while True:
        answer = probe()
        if answer:
            return answer
        waited = time.monotonic() - began
        if waited > timeout:
            raise TimeoutError(f"{what}: not within {timeout:g} s, last answer {answer!r}")
        time.sleep(min(max(waited / 10, 0.02), 0.3))


def free_ports(count: int) -> list[int]:
    """Different free ports of 127.0.0.1. No process gets a port that another one got."""
    free: list[int] = []
    while len(free) < count:
        port = next(_own_ports())
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            free.append(port)
    return free


@functools.cache
def _own_ports() -> Iterator[int]:
    """Each port of this process once. A lock reserves its block until this process ends, for any reason."""
    folder = Path(tempfile.gettempdir(), f"tas-test-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    blocks = PORTS[::BLOCK]
    for first in random.Random().sample(blocks, k=len(blocks)):
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            yield from range(first, first + BLOCK)
    raise RuntimeError(f"every port between {PORTS.start} and {PORTS.stop} is reserved; locks: {folder}")


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment of this process, without variables that lead a Go client to another cluster or a proxy."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KUBERNETES_") and not name.upper().endswith("_PROXY") and name != "KUBECONFIG"
    } | extra


class Child(Protocol):
    """What is used of a `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Process:
    """A child process, with its output in a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path,
        death_signal: signal.Signals,
    ) -> None:
        self.name = name
        self.log = log
        self.command = command
        self.env = dict(env)
        self.cwd = cwd
        self.death_signal = death_signal
        self._child = self._start()

    def _start(self) -> Child:
        tether = [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), str(int(self.death_signal))]
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [*tether, *map(str, self.command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.env,
                cwd=self.cwd,
                start_new_session=True,  # Ctrl-C reaches only the test, which ends its children in order
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    def must_run(self) -> None:
        """Raises RuntimeError with the end of the log if the process has ended."""
        if (code := self._child.poll()) is not None:
            raise RuntimeError(f"{self.name} ended with {code}; the end of {self.log}:\n{self.tail()}")

    def tail(self, lines: int = 25) -> str:
        """The end of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """Kills the process."""
        self._child.kill()
        self._child.wait()

    def restart(self) -> None:
        """Kills the process, and starts the same command again. Call this method from the main thread."""
        self.kill()
        self._child = self._start()

    def stop(self, *, patience: float = 10.0) -> int:
        """Terminates the process, kills it after `patience` seconds, kills its children, and returns its exit code."""
        self._child.terminate()
        try:
            return self._child.wait(patience)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


@contextmanager
def running(
    name: str,
    command: Sequence[str | Path],
    *,
    folder: Path,
    env: Mapping[str, str] | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    kind: Callable[..., Process] = Process,
) -> Iterator[Process]:
    """Runs `command` in `folder`, with its output in `folder/logs/NAME.log`, and ends it on exit.

    `kind` makes the process; that of `tests.forks` forks it.

    Call it from the main thread: on Linux the child gets `death_signal` when the thread that started it ends.
    """
    log = folder / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    environment = clean_environment(HOME=str(folder)) if env is None else env
    process = kind(name, command, log=log, env=environment, cwd=folder, death_signal=death_signal)
    try:
        yield process
    finally:
        process.stop()
