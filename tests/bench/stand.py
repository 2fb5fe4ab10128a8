"""The processes that are measured: a real bus, the product's own commands, and the floor beside them."""

import asyncio
import platform
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from urllib.request import urlopen

import orjson
import psutil

from bus.buckets import NODES, POLICIES, SYNCED, Bucket
from bus.connection import Bus
from bus.kinds import NODE_SAMPLES
from bus.records.codec import encode
from bus.records.nodes import encode_node_samples
from bus.records.policies import PolicyRecord, encode_policy
from bus.records.synced import Synced
from bus.server import EmbeddedServer
from bus.subjects import policy_key
from tests.bench import cluster
from tests.bench.client import Client, Request, post
from tests.bench.measure import Timed
from tests.bench.rows import CpuUse, Results
from tests.e2e.processes import Process, clean_environment, free_ports, running

REPOSITORY = Path(__file__).parents[2]

FILTER = "/scheduler/filter"
PRIORITIZE = "/scheduler/prioritize"

START_SECONDS = 30.0
RETRY_SECONDS = 0.01
"""The wait between two requests until a process answers."""

WRITES_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where to measure, and how long.

    `folder` is for stores and logs, and is deleted after the run. A quick run shows orders of magnitude; its p99
    is coarse. `found` takes what one part of a long measurement found, as soon as that part has ended.
    """

    folder: Path
    quick: bool
    found: Callable[[Results], None] = lambda _: None

    @property
    def rounds(self) -> int:
        """How often everything is repeated."""
        return 3 if self.quick else 9

    def some(self, full: int, quick: int) -> int:
        """A number by the length of the run."""
        return quick if self.quick else full

    @asynccontextmanager
    async def bus(self, nodes: Sequence[str]) -> AsyncIterator["RunningBus"]:
        """A bus of its own that holds every policy and a sample of each of `nodes`, as complete lists."""
        folder = self.subfolder("bus")
        async with EmbeddedServer.start(folder) as server, Bus.connect(server.url, name="bench") as bus:
            await bus.wait_connected()
            await _fill(bus, nodes)
            yield RunningBus(server=server, bus=bus)

    @contextmanager
    def extender(self, url: str, *, wait: bool = True) -> Iterator["Server"]:
        """The product's extender on the bus at `url`; `wait`: until it answers."""
        with self.serving("extender", product("extender", url), FILTER) as server:
            if wait:
                server.wait_ready()
            yield server

    @contextmanager
    def echo(self) -> Iterator["Server"]:
        """The floor."""
        with self.serving("echo", module("tests.bench.echo"), "/") as server:
            server.wait_ready()
            yield server

    @contextmanager
    def process(self, name: str, command: Sequence[str]) -> Iterator[Process]:
        """A command of ours, in a folder of its own; its code is compiled by the first start alone, as anywhere."""
        inherited = {key: value for key, value in clean_environment().items() if not key.startswith("TAS_")}
        inherited.pop("PYTHONDONTWRITEBYTECODE", None)
        environment = inherited | {"PYTHONPATH": str(REPOSITORY)}
        with running(name, command, folder=self.subfolder(name), env=environment) as process:
            yield process

    def subfolder(self, name: str) -> Path:
        """A new folder, which is deleted after the run."""
        return Path(mkdtemp(prefix=f"{name}-", dir=self.folder))

    @contextmanager
    def serving(self, name: str, command: Sequence[str], path: str) -> Iterator["Server"]:
        """A process that listens on a port of its own; `path` is where its requests go by default."""
        (port,) = free_ports(1)
        began = time.perf_counter()
        with self.process(name, [*command, "--listen", f"127.0.0.1:{port}"]) as process:
            yield Server(process=process, port=port, path=path, began=began)


def module(name: str) -> list[str]:
    """The command that runs a module of ours."""
    return [sys.executable, "-m", name]


def product(worker: str, url: str) -> list[str]:
    """The command that runs a worker on the bus at `url`."""
    common = ["--bus", url, "--health-listen", "127.0.0.1:0", "--log-format", "json"]
    return [*module("cli"), "run", worker, *common]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBus:
    """A running server and our connection to it."""

    server: EmbeddedServer
    bus: Bus


class Server:
    """A process that answers on a port of loopback."""

    def __init__(self, *, process: Process, port: int, path: str, began: float) -> None:
        self.process = process
        self.port = port
        self.path = path
        self.began = began
        """When it was started, by `time.perf_counter`."""

    def wait_ready(self) -> float:
        """Waits until it answers a request with 200, and returns the seconds since it was started."""
        request = self.request(cluster.names_only(0, cluster.node_names(1)))
        while (refusal := self._refusal(request)) is not None:
            self.process.must_run()
            if time.perf_counter() - self.began > START_SECONDS:
                raise RuntimeError(f"{self.process.name} does not answer: {refusal}\n{self.process.tail()}")
            time.sleep(RETRY_SECONDS)
        return time.perf_counter() - self.began

    def request(self, body: bytes, path: str = "") -> Request:
        """A request to it, by default on the path that was named when it was started."""
        return post(path or self.path, body)

    def logged(self, event: str) -> dict[str, str]:
        """The first `event` in its log. Raises RuntimeError if there is none."""
        for line in self.process.log.read_bytes().splitlines():
            if line.startswith(b"{"):
                found: dict[str, str] = orjson.loads(line)
                if found["event"] == event:
                    return found
        raise RuntimeError(f"{self.process.name} never logged {event}:\n{self.process.tail()}")

    def metric(self, name: str) -> float:
        """The value of a metric on the health port, named with its labels."""
        with urlopen(f"{self.logged('health_listening')['url']}/metrics", timeout=START_SECONDS) as response:
            for line in response.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.rpartition(" ")[2])
        raise RuntimeError(f"{self.process.name} has no metric {name}")

    def _refusal(self, request: Request) -> str | None:
        """Why it does not answer `request`; None once it does."""
        try:
            with Client(self.port) as client:
                client.ask(request)
        except (OSError, RuntimeError) as error:
            return str(error)
        return None


async def _fill(bus: Bus, nodes: Sequence[str]) -> None:
    chance = random.Random(0)
    now = time.time()
    turns = asyncio.Semaphore(WRITES_AT_ONCE)

    async def put(bucket: Bucket, key: str, value: bytes) -> None:
        async with turns:
            await bus.put(bucket, key, value, revision=0, read_at=time.monotonic())

    async def put_synced(bucket: Bucket, count: int) -> None:
        epoch = (await bus.epoch(bucket)).created
        synced = Synced(epoch=epoch, count=count, time=datetime.fromtimestamp(now, UTC), writer="bench", cluster=False)
        await put(bucket, SYNCED, encode(synced))

    policies = [PolicyRecord(policy=policy, uid=policy.key.name, generation=1) for policy in cluster.policies()]
    async with asyncio.TaskGroup() as tasks:
        for record in policies:
            tasks.create_task(put(POLICIES, policy_key(record.policy.key), encode_policy(record)))
        for node in nodes:
            value = encode_node_samples((cluster.scrape(cluster.metrics(chance), now),))
            tasks.create_task(put(NODES, NODE_SAMPLES.key(node), value))
    await put_synced(POLICIES, len(policies))
    await put_synced(NODES, len(nodes))


class CpuMeter:
    """The processor seconds of several processes since it was made."""

    def __init__(self, during: str, pids: Mapping[str, int]) -> None:
        self._during = during
        self._pids = pids
        self._began = time.monotonic()
        self._before = {name: cpu_seconds(pid) for name, pid in pids.items()}

    def read(self) -> list[CpuUse]:
        """What each has used so far."""
        seconds = time.monotonic() - self._began
        return [
            CpuUse(
                during=self._during, process=name, cpu_seconds=cpu_seconds(pid) - self._before[name], seconds=seconds
            )
            for name, pid in self._pids.items()
        ]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads, without its children."""
    if platform.system() == "Linux":
        return time.clock_gettime(~pid << 3 | 2)  # its clock, as clock_getcpuclockid(3) makes it: exact
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def processor_rounds(
    calls: Mapping[str, tuple[Server, Timed]], *, rounds: int, repetitions: int
) -> dict[str, list[float]]:
    """For each call and round the processor milliseconds that its server takes for it, as the mean of some."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (server, call) in calls.items():
            before = cpu_seconds(server.process.pid)
            for _ in range(repetitions):
                call()
            found[name].append((cpu_seconds(server.process.pid) - before) / repetitions * 1000)
    return found
