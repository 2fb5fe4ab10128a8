"""Processes that run a module of this tree: forks of a process that has already imported the product.

A new interpreter takes some 0.9 s of processor time until a worker runs, a fork 0.1 s. A fork is a process of its own
in all that a test does to it: own session, signals, exit code, files and environment. It has what the server had
when it was forked: imported modules, and the seed of hashes. It has no thread, socket or event loop of the server.
"""

import asyncio
import ctypes
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
from multiprocessing import forkserver
from pathlib import Path

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
}

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload([__name__, *(f"cli.{each.module}" for each in COMMANDS.values()), *IMPORTED_LATE])


def begin_imports() -> None:
    """Starts the process that is forked. The first fork waits until it has imported the product."""
    forkserver.ensure_running()


def _run(
    *,
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    output: tuple[Path, Path],
    limits: Mapping[str, float],
    death_signal: signal.Signals,
) -> None:
    """Runs `-m MODULE ARGUMENT...` in the fork, in `folder`; its output is added to two files, or twice to one."""
    os.setsid()  # Ctrl-C reaches only the test, which ends its children in order
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)  # the server ends with the test
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(output, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
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
    """A fork, with the part of the interface of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        output: tuple[Path, Path],
        env: Mapping[str, str],
        cwd: Path,
        death_signal: signal.Signals = signal.SIGKILL,
        limits: Mapping[str, float] | None = None,
    ) -> None:
        order = {"words": tuple(words), "environment": dict(env), "folder": cwd, "output": output}
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
        self.log.touch()  # before the fork has written a line
        output = (self.log, self.log)
        return Fork(words, output=output, env=self.env, cwd=self.cwd, death_signal=self.death_signal)


async def forked(
    arguments: Sequence[str], environment: Mapping[str, str], *, within: float, long_limits: bool
) -> tuple[int, str, str]:
    """Runs a command `tas` to its end; returns its exit code, stdout and stderr.

    `long_limits`: whether the command waits long for the bus.
    Raises TimeoutError after `within` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="tas-forked-") as folder:
        output = (Path(folder, "out"), Path(folder, "err"))
        limits = LIMITS if long_limits else {}
        words = ("-m", "cli", *arguments)
        fork = await asyncio.to_thread(  # the first start waits for the imports
            Fork, words, output=output, env=environment, cwd=Path.cwd(), limits=limits
        )
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(fork.sentinel, ended.set)
        try:
            async with asyncio.timeout(within):
                await ended.wait()
        finally:
            loop.remove_reader(fork.sentinel)
            fork.kill()
        out, err = (path.read_text() for path in output)
        return fork.wait(), out, err
