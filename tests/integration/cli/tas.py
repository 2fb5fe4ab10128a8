"""The command `tas` as a user runs it: processes, their output, and the files that remain."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.forks import LIMITS, ForkedCommand
from tests.integration.servers import eventually

COMMAND = (sys.executable, "-m", "cli")
HEALTH = ("--health-listen", "127.0.0.1:0")
FREE = ("--listen", "127.0.0.1:0", *HEALTH)
"""Ports that the system chooses."""

SHORT = {
    "bus",
    "demo",
    "publish",
    "pause",
    "resume",
    "reset",
    "get",
    "events",
    "explain",
    "trace",
    "doctor",
    "policy",
    "certs",
    "configure",
    "crd",
    "docs",
    "simulate",
    "status",
    "support",
    "dismiss",
    "release",
}
"""The commands that end by themselves."""

COMMAND_SECONDS = 240.0
"""How long a command may take: `tas demo` takes seconds, and on a busy machine a minute."""


Command = asyncio.subprocess.Process | ForkedCommand
"""A command that has been started."""


def demo_policy(strategies: str) -> str:
    """A file of the TASPolicy `demo-policy` with these lines as its strategies."""
    head = "apiVersion: telemetry.intel.com/v1alpha1\nkind: TASPolicy\nmetadata: {name: demo-policy}\n"
    return f"{head}spec:\n  strategies:\n{strategies}"


def policy_folder(parent: Path, policy: str) -> Path:
    """A new folder of policies with `policy` in `demo.yaml`."""
    folder = parent / "policies"
    folder.mkdir()
    (folder / "demo.yaml").write_text(policy)
    return folder


def replace_file(path: Path, text: str) -> None:
    """Replaces the content at once: a reader never sees an empty file, which is logged as invalid."""
    new = path.with_name(f".{path.name}")
    new.write_text(text)
    new.replace(path)


def filter_request(*nodes: str, namespace: str = "default") -> dict[str, Any]:
    """The request of kube-scheduler with these candidate nodes, for a pod of `demo-policy`."""
    metadata = {"name": "p", "namespace": namespace, "labels": {"telemetry-policy": "demo-policy"}}
    return {"Pod": {"metadata": metadata}, "Nodes": None, "NodeNames": nodes}


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Running:
    """A process that runs until it gets a signal.

    Attributes:
        log: The lines of stderr that are JSON.
        noise: The other lines of stderr.
    """

    def __init__(self, process: Command) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self.noise: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.noise.append(line.decode(errors="replace"))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == name]

    async def logged(self, event: str, **fields: object) -> dict[str, Any]:
        """The first log line with this event and these fields."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.events(event) if fields.items() <= line.items()]

        def is_logged() -> bool:
            assert found() or not self._reading.done(), (self.log, self.noise)
            return bool(found())

        await eventually(is_logged)
        return found()[0]

    async def has_logged(self, event: str, field: str, text: str) -> None:
        """Waits for a log line with this event and this text in a field.

        It need not be the first line of the event: on a busy machine the same may have failed for another reason.
        """

        def is_logged() -> bool:
            found = any(text in str(line[field]) for line in self.events(event))
            assert found or not self._reading.done(), (self.log, self.noise)
            return found

        await eventually(is_logged)

    async def health(self, path: str) -> tuple[int, str]:
        url = (await self.logged("health_listening"))["url"]
        async with aiohttp.ClientSession() as session, session.get(f"{url}{path}") as response:
            return response.status, await response.text()

    async def ready(self) -> None:
        async def is_ready() -> bool:
            return (await self.health("/readyz"))[0] == 200

        await eventually(is_ready)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal, and returns the exit code once stderr is read completely."""
        # `Process.send_signal` first checks whether the process has ended, and so takes the exit status from asyncio.
        os.kill(self.process.pid, number)
        return await self.ended()

    async def ended(self, within: float = 120.0) -> int:
        """The exit code, once the process has ended by itself and stderr is read completely."""
        _, late = await asyncio.wait([asyncio.ensure_future(self.process.wait()), self._reading], timeout=within)
        if late:
            process = psutil.Process(self.process.pid)
            state = process.status(), process.children(recursive=True), process.threads()
            raise AssertionError(f"still running after {within:g} s: {state} {late} {self.log} {self.noise}")
        assert self.process.returncode is not None
        return self.process.returncode


async def _done(process: Command) -> Done:
    """Reads its output to the end. Raises TimeoutError after `COMMAND_SECONDS`, and kills it then."""
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


class Tas:
    """A user: an environment with folders of its own, so that no other user's bus is found.

    A command is a fork of a process that has imported the product. Each command runs as a new process in some test:
    only there an import that the command itself lacks is noticed.

    Attributes:
        command: What a new process runs.
        forks: Whether commands are forks. Those of a program that changes the product before its import are not.
        long_limits: Whether commands that end by themselves wait long for the bus, as a busy machine requires.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.command: tuple[str, ...] = tuple(COMMAND)
        self.forks = True
        self.long_limits = True
        self.runtime = home / "runtime"
        self.temporary = home / "temporary"
        for folder in (self.runtime, self.temporary):
            folder.mkdir(parents=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TAS_")}
        self.environment |= {"XDG_RUNTIME_DIR": str(self.runtime), "TMPDIR": str(self.temporary)}
        self.environment["TAS_NEW_BUS_WAIT"] = "0s"  # every test has a new bus
        self.environment["TAS_STALE_AFTER"] = "30m"  # longer than a test on a busy machine

    async def start(self, *arguments: str, **environment: str) -> Command:
        """Starts a command; the test reads its output."""
        if self.forks:
            return await ForkedCommand.start(("-m", "cli", *arguments), self.environment | environment)
        return await self.new(*arguments, **environment)

    async def new(self, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
        """Starts a command as a new process, as a user starts it."""
        return await asyncio.create_subprocess_exec(
            *self.command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment | environment,
        )

    async def __call__(self, *arguments: str, **environment: str) -> Done:
        """Runs a command to its end."""
        limits = LIMITS if self.long_limits and arguments[0] in SHORT else {}
        words = ("-m", "cli", *arguments)
        return await _done(await ForkedCommand.start(words, self.environment | environment, limits=limits))

    async def process(self, *arguments: str, **environment: str) -> Done:
        """Runs a command to its end as a new process, as a user starts it."""
        return await _done(await self.new(*arguments, **environment))

    @asynccontextmanager
    async def running(self, *arguments: str, **environment: str) -> AsyncIterator[Running]:
        """A process that is killed when the body ends."""
        running = Running(await self.start(*arguments, **environment))
        try:
            yield running
        finally:
            if running.process.returncode is None:
                running.process.kill()
            await running.ended()
            assert running.process.stdout is not None
            await running.process.stdout.read()  # both pipes are closed then

    def left_behind(self) -> list[str]:
        """The files and folders that remain in the folders for temporary files."""
        return [str(path) for folder in (self.runtime, self.temporary) for path in folder.rglob("*")]
