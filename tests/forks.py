"""Processes that run a module of this tree: forks of a process that has already imported the product.

A new interpreter takes some 0.9 s of processor time until a worker runs, a fork 0.1 s. A fork is a process of its own
in all that a test does to it: own session, signals, exit code, files and environment. It has what the server had
when it was forked: imported modules, and the seed of hashes. It has no thread, socket or event loop of the server.
"""

import asyncio
import ctypes
import gc
import importlib
import multiprocessing
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, reduction
from pathlib import Path
from typing import Any, Self

import workers
from cli import COMMANDS
from tests.e2e.processes import Process
from tests.e2e.tether import PR_SET_PDEATHSIG
from tests.integration.bus.limits import LONG_LIMITS

_WORKERS = [each.name for each in pkgutil.walk_packages(workers.__path__, "workers.")]

IMPORTED_LATE = ("bus.connection", "cli.agents", "cli.queries.query", "cli.wiring", *_WORKERS)
"""Modules that commands import only when they run."""

LIMITS = LONG_LIMITS | {
    "cli.queries.query.CONNECT_SECONDS": 60.0,
    "cli.publish.OUTCOME_SECONDS": 0.3,  # short: where nothing stores samples, every publish would wait for it
    "tas.processes.process.ABANDONED_SECONDS": 3600.0,  # tests store records once, which no process writes again
}

FREE_MEMORY = signal.SIGUSR1
"""At this signal a fork collects its garbage, and returns to the system what its allocator keeps free.

Only the allocator of glibc can return it. A worker collects all its garbage only when it has grown by a quarter, or
after ten minutes."""

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload([__name__, *(f"cli.{each.module}" for each in COMMANDS.values()), *IMPORTED_LATE])


def begin_imports() -> None:
    """Starts the process that is forked. The first fork waits until it has imported the product."""
    forkserver.ensure_running()


class _Passed:
    """A file descriptor, which the fork gets as its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self._descriptor),)


def _received(duplicate: Any) -> int:
    """What the fork has in place of a `_Passed`: the descriptor."""
    descriptor: int = duplicate.detach()
    return descriptor


def _run(
    *,
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    output: tuple[int, int],
    limits: Mapping[str, float],
    death_signal: signal.Signals,
) -> None:
    """Runs `-m MODULE ARGUMENT...` in the fork, in `folder`, with these descriptors as stdout and stderr."""
    os.setsid()  # Ctrl-C reaches only the test, which ends its children in order
    libc = ctypes.CDLL(None)
    if sys.platform == "linux":
        libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)  # the server ends with the test
    if hasattr(libc, "malloc_trim"):
        signal.signal(FREE_MEMORY, lambda *_: (gc.collect(), libc.malloc_trim(0)))
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), *output)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - that of the parent may be for a file with positions
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None  # not that of the process that was forked
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    for path_of_limit, limit in limits.items():
        module, _, name = path_of_limit.rpartition(".")
        setattr(importlib.import_module(module), name, limit)
    option, module, *arguments = words
    assert option == "-m", words
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Fork:
    """A fork, with the part of the interface of `subprocess.Popen` that tests use.

    `output`: the file descriptors that become its stdout and its stderr.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        output: tuple[int, int],
        env: Mapping[str, str],
        cwd: Path,
        death_signal: signal.Signals = signal.SIGKILL,
        limits: Mapping[str, float] | None = None,
    ) -> None:
        passed = tuple(map(_Passed, output))
        order = {"words": tuple(words), "environment": dict(env), "folder": cwd, "output": passed}
        order |= {"limits": dict(limits or {}), "death_signal": death_signal}
        self._process = _forking.Process(target=_run, kwargs=order, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """A file descriptor that can be read once the fork has ended."""
        return self._process.sentinel

    def poll(self) -> int | None:
        """The exit code, or None while it runs; -N if signal N has ended it."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedProcess(Process):
    """A `Process` whose command is `-m MODULE ARGUMENT...` of this tree."""

    def _start(self) -> Fork:
        words = [*map(str, self.command)]
        with self.log.open("ab") as log:
            output = (log.fileno(), log.fileno())
            return Fork(words, output=output, env=self.env, cwd=self.cwd, death_signal=self.death_signal)


class ForkedCommand:
    """A fork, with the part of the interface of `asyncio.subprocess.Process` that tests use.

    Attributes:
        stdout: What the test can read while the fork runs.
        stderr: The same of its errors.
    """

    def __init__(self, fork: Fork, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader) -> None:
        self._fork = fork
        self.stdout = stdout
        self.stderr = stderr
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(fork.sentinel, self._end)

    @classmethod
    async def start(
        cls, words: Sequence[str], environment: Mapping[str, str], *, limits: Mapping[str, float] | None = None
    ) -> Self:
        """Starts `-m MODULE ARGUMENT...` in the folder of the test; `limits` replace those of the product."""
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        readers = await _reader(out), await _reader(err)
        try:
            fork = await asyncio.to_thread(  # the first start waits for the imports
                Fork, words, output=(its_out, its_err), env=environment, cwd=Path.cwd(), limits=limits
            )
        finally:  # then both pipes end with the fork
            os.close(its_out)
            os.close(its_err)
        return cls(fork, *readers)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fork.sentinel)
        self._ended.set()

    @property
    def pid(self) -> int:
        return self._fork.pid

    @property
    def returncode(self) -> int | None:
        """As `Fork.poll`."""
        return self._fork.poll()

    def kill(self) -> None:
        self._fork.kill()

    async def wait(self) -> int:
        """The exit code, once it has ended."""
        await self._ended.wait()
        return self._fork.wait()

    async def communicate(self) -> tuple[bytes, bytes]:
        """The rest of stdout and of stderr, once it has ended."""
        out, err, _ = await asyncio.gather(self.stdout.read(), self.stderr.read(), self.wait())
        return out, err


async def _reader(descriptor: int) -> asyncio.StreamReader:
    """The reading end of a pipe, which is closed at its end."""
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)  # which the transport closes
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader
