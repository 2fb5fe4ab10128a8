"""The command `tas` in a process of its own that imports nothing: a fork of one that has imported it."""

import asyncio
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli import COMMANDS, main

AT_WORK = ("bus.connection", "cli.queries.query", "cli.wiring")
"""What commands import only once they work."""

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload([__name__, *(f"cli.{each.module}" for each in COMMANDS.values()), *AT_WORK])


def run_tas(arguments: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
    """What the fork does: it becomes the command, and writes to `out` and `err` in the folder."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # of this environment, not of who was asked before
    sys.argv = ["tas", *arguments]
    main()


async def forked(arguments: Sequence[str], environment: Mapping[str, str], *, patience: float) -> tuple[int, str, str]:
    """Runs a command to its end; gives its exit code and what it wrote to stdout and stderr.

    Raises:
        TimeoutError: if it takes longer than so many seconds.
    """
    with tempfile.TemporaryDirectory(prefix="tas-forked-") as folder:
        process = _forking.Process(target=run_tas, args=(arguments, dict(environment), folder), daemon=True)
        await asyncio.to_thread(process.start)  # the first one waits for all that is imported
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, ended.set)
        try:
            async with asyncio.timeout(patience):
                await ended.wait()
        finally:
            loop.remove_reader(process.sentinel)
            process.kill()
            process.join()
        assert process.exitcode is not None
        out, err = (path.read_text() for path in (Path(folder, "out"), Path(folder, "err")))
        return process.exitcode, out, err
