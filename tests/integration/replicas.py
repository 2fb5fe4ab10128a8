"""Workers as processes, and the faults of a process."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.processes import REPOSITORY, Process, clean_environment
from tests.forks import ForkedProcess
from tests.integration.servers import eventually

START_SECONDS = 120.0
"""How long a process may take until it is ready, on a busy machine."""


class Replica:
    """A command, in one process at a time; all its processes write to one log file.

    Attributes:
        tree: Where the next process finds the code.
    """

    def __init__(self, name: str, command: Sequence[str], *, folder: Path, tree: Path = REPOSITORY) -> None:
        self.name = name
        self.tree = tree
        self.log = folder / f"{name}.log"
        self._command = command
        self._process: Process | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def paused(self) -> bool:
        """Whether it is stopped, by the test or by itself."""
        return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)

    @property
    def ended(self) -> bool:
        """Whether the current process has ended."""
        assert self._process is not None, f"{self.name} does not run"
        return not self._process.is_running

    def start(self) -> None:
        # Neither the settings of the user who runs the tests nor a bus that this user runs.
        settings = {name: value for name, value in clean_environment().items() if not name.startswith("TAS_")}
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        # Another tree has another product, and a program changes the product before the product is imported.
        is_ours = self.tree == REPOSITORY and self._command[0] == "-m"
        self._process = (ForkedProcess if is_ours else Process)(
            self.name,
            self._command if is_ours else [sys.executable, *self._command],
            log=self.log,
            env=settings | {"XDG_RUNTIME_DIR": str(self.log.parent), "TAS_NEW_BUS_WAIT": "0s"},  # a new bus
            cwd=self.tree,
            death_signal=signal.SIGKILL,
        )

    def kill(self) -> None:
        """Ends it by SIGKILL, paused or not."""
        if self._process is not None:
            self._process.kill()

    async def end(self) -> None:
        """Ends it in an orderly way, by SIGTERM."""
        self.send(signal.SIGTERM)
        await eventually(lambda: self.ended, every=0.02)

    def pause(self) -> None:
        """Stops it by SIGSTOP: it keeps its connection and the data that arrives over it."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        """Fails with the exit code and the end of the log if the process has already ended."""
        assert self._process is not None, f"{self.name} does not run"
        self._process.must_run()
        os.kill(self.pid, number)

    def catches(self, number: signal.Signals) -> bool:
        """Whether the process has a handler of this signal; only Linux shows this."""
        status = Path(f"/proc/{self.pid}/status")
        masks = (
            [line.split()[1] for line in status.read_text().splitlines() if line.startswith("SigCgt:")]
            if status.exists()
            else []
        )
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)

    def must_run(self) -> None:
        """Fails with the end of the log if the current or an earlier process has ended by itself."""
        assert self._process is not None, f"{self.name} does not run"
        self._process.must_run()
        assert not any(event["event"] == "worker_crashed" for event in self.events()), self._process.tail()

    def events(self, *, since: int = 0) -> Iterator[dict[str, str]]:
        """Its log events from byte `since` on, oldest first, without lines that a kill has cut off."""
        for line in self.log.read_bytes()[since:].decode(errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            yield event

    async def address(self, purpose: str) -> str:
        """The last logged URL for `purpose`: `health` or `extender`."""
        found: list[str] = []

        def is_logged() -> bool:
            self.must_run()
            found[:] = [event["url"] for event in self.events() if event["event"] == f"{purpose}_listening"]
            return bool(found)

        await eventually(is_logged, within=START_SECONDS, every=0.05)
        return found[-1]

    def health_url(self) -> str | None:
        """The URL of the current process's `/readyz`; None as long as the process does not listen."""
        events = self.events(since=self._log_start)
        return next((each["url"] for each in events if each["event"] == "health_listening"), None)

    async def ready(self) -> None:
        """Waits until the current process is ready by its own `/readyz`."""
        async with aiohttp.ClientSession() as session:

            async def is_ready() -> bool:
                self.must_run()
                url = self.health_url()
                if url is None:
                    return False
                async with session.get(f"{url}/readyz") as answer:
                    return answer.status == 200

            await eventually(is_ready, within=START_SECONDS, every=0.05)


async def metric(one: Replica, name: str) -> float:
    """The value of a metric of a replica."""
    async with aiohttp.ClientSession() as session, session.get(f"{await one.address('health')}/metrics") as answer:
        text = await answer.text()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                return sample.value
    raise AssertionError(f"{one.name} has no metric {name}")


def tas(*arguments: str, bus: str) -> list[str]:
    """The command `tas run`, with ports that the system picks."""
    return ["-m", "cli", "run", *arguments, "--bus", bus, "--health-listen", "127.0.0.1:0"]


@contextmanager
def replica(name: str, command: Sequence[str], *, folder: Path, tree: Path = REPOSITORY) -> Iterator[Replica]:
    """Runs it while the body runs. If that fails, the end of the log is printed."""
    replica = Replica(name, command, folder=folder, tree=tree)
    try:
        replica.start()
        yield replica
    except BaseException:
        lines = replica.log.read_text(errors="replace").splitlines() if replica.log.exists() else []
        print(f"the log of {name} ends:", *lines[-40:], sep="\n")
        raise
    finally:
        replica.kill()
