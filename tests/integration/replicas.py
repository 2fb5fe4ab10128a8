"""Workers as the processes they are, and what can befall a process."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import psutil

from tests.e2e.processes import Process, clean_environment
from tests.integration.servers import eventually

REPOSITORY = Path(__file__).parents[2]

START_SECONDS = 120.0
"""How long a process may take until it is ready, on a machine that has other things to do."""


class Replica:
    """One command in one process at a time; what its lives wrote is in one file."""

    def __init__(self, name: str, command: Sequence[str], *, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = command
        self._process: Process | None = None
        self._told = 0

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def paused(self) -> bool:
        """Whether it is stopped, by us or by itself."""
        return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)

    @property
    def ended(self) -> bool:
        """Whether its present life is over."""
        assert self._process is not None, f"{self.name} does not run"
        return not self._process.is_running

    def start(self) -> None:
        # Nothing of whoever runs the tests: neither their settings nor a bus that they run themselves.
        settings = {name: value for name, value in clean_environment().items() if not name.startswith("TAS_")}
        self._told = self.log.stat().st_size if self.log.exists() else 0
        self._process = Process(
            self.name,
            [sys.executable, *self._command],
            log=self.log,
            env=settings | {"XDG_RUNTIME_DIR": str(self.log.parent)},
            cwd=REPOSITORY,
            death_signal=signal.SIGKILL,
        )

    def kill(self) -> None:
        """Ends it as a power switch would, paused or not."""
        if self._process is not None:
            self._process.kill()

    def pause(self) -> None:
        """It keeps its connection and all that comes over it, and does nothing."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def catches(self, number: signal.Signals) -> bool:
        """Whether it has got so far as to do something of its own at this signal; only Linux tells."""
        status = Path(f"/proc/{self.pid}/status")
        masks = (
            [line.split()[1] for line in status.read_text().splitlines() if line.startswith("SigCgt:")]
            if status.exists()
            else []
        )
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)

    def must_run(self) -> None:
        """Fails with the end of what it wrote if it has ended by itself, in this life or in an earlier one."""
        assert self._process is not None, f"{self.name} does not run"
        self._process.must_run()
        assert not any(event["event"] == "worker_crashed" for event in self.events()), self._process.tail()

    def events(self, *, since: int = 0) -> Iterator[dict[str, str]]:
        """What it told, oldest first, from so many bytes on; a line that its death cut off is left out."""
        for line in self.log.read_bytes()[since:].decode(errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            yield event

    async def address(self, purpose: str) -> str:
        """Where the last life that got so far listens for `purpose`: `health` or `extender`."""
        found: list[str] = []

        def told() -> bool:
            self.must_run()
            found[:] = [event["url"] for event in self.events() if event["event"] == f"{purpose}_listening"]
            return bool(found)

        await eventually(told, within=START_SECONDS, every=0.05)
        return found[-1]

    async def ready(self) -> None:
        """Waits until its present life says so itself."""
        async with aiohttp.ClientSession() as session:

            async def says_so() -> bool:
                self.must_run()
                told = [each["url"] for each in self.events(since=self._told) if each["event"] == "health_listening"]
                if not told:
                    return False
                async with session.get(f"{told[-1]}/readyz") as answer:
                    return answer.status == 200

            await eventually(says_so, within=START_SECONDS, every=0.05)


def tas(*arguments: str, bus: str) -> list[str]:
    """The command `tas run`, with ports that the system picks."""
    return ["-m", "cli", "run", *arguments, "--bus", bus, "--health-listen", "127.0.0.1:0"]


@contextmanager
def replica(name: str, command: Sequence[str], *, folder: Path) -> Iterator[Replica]:
    """Runs it, and ends whichever life of it is left."""
    replica = Replica(name, command, folder=folder)
    try:
        replica.start()
        yield replica
    finally:
        replica.kill()
