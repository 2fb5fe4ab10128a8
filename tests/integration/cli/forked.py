"""The command `tas` in a process of its own: a fork of a process that has already imported the product."""

import asyncio
import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli import COMMANDS, main
from tests.integration.bus.limits import LONG_LIMITS

IMPORTED_LATE = ("bus.connection", "cli.queries.query", "cli.wiring")
"""Modules that commands import only when they run."""

LIMITS = LONG_LIMITS | {
    "cli.queries.query.CONNECT_SECONDS": 60.0,
    "cli.publish.OUTCOME_SECONDS": 0.3,  # short: where nothing stores samples, every publish would wait for it
}

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload([__name__, *(f"cli.{each.module}" for each in COMMANDS.values()), *IMPORTED_LATE])


def run_tas(arguments: Sequence[str], environment: Mapping[str, str], folder: str, long_limits: bool) -> None:
    """Runs the command in the fork; its output goes to the files `out` and `err` in the folder."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # not that of the process that was forked
    sys.argv = ["tas", *arguments]
    if long_limits:
        for path, limit in LIMITS.items():
            module, _, name = path.rpartition(".")
            setattr(importlib.import_module(module), name, limit)
    main()


async def forked(
    arguments: Sequence[str], environment: Mapping[str, str], *, within: float, long_limits: bool
) -> tuple[int, str, str]:
    """Runs a command to its end; returns its exit code, stdout and stderr.

    `long_limits`: whether the command waits long for the bus.
    Raises TimeoutError after `within` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="tas-forked-") as folder:
        process = _forking.Process(
            target=run_tas, args=(arguments, dict(environment), folder, long_limits), daemon=True
        )
        await asyncio.to_thread(process.start)  # the first start waits for the imports
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, ended.set)
        try:
            async with asyncio.timeout(within):
                await ended.wait()
        finally:
            loop.remove_reader(process.sentinel)
            process.kill()
            process.join()
        assert process.exitcode is not None
        out, err = (path.read_text() for path in (Path(folder, "out"), Path(folder, "err")))
        return process.exitcode, out, err
