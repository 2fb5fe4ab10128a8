"""Three nats-servers under load: one is killed, restored, wiped; two at once; each loses its store; then all.

All streams have three copies and each write is on the disk before it is acknowledged (docs/how-to/three-servers.md).
Two replicas of every worker run on the real API server. Meanwhile a program publishes, and the extenders are asked.
"""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bus.buckets import ALL, SAMPLES, VERDICTS, Bucket, Stream
from bus.connection import Bus
from bus.errors import BusError, UnavailableError
from bus.kinds import NODE_SAMPLES
from bus.records.nodes import StoredSamples
from bus.scrapes import publish_scrape
from bus.streams import has_majority, late_copies
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tests.integration.servers import eventually

from .cluster import Cluster
from .nats import Servers, nats_servers
from .processes import free_ports, running
from .product import TAS, environment

SICK = ("trio-1", "trio-2")
WELL = ("trio-3", "trio-4")
NODES = (*SICK, *WELL)
POLICY = "trio"
RULE = {"metricname": "trio_health", "operator": "Equals", "target": 1}


class Load:
    """A publisher, whose confirmed samples are noted.

    Attributes:
        confirmed: The last count of each node that the bus has confirmed.
        refused: How many publishes failed.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.confirmed: dict[str, int] = {}
        self.refused = 0
        self.accepted = 0
        self._count = 0

    async def run(self) -> None:
        """Publishes until cancelled; after a failure the same node comes again with its next count."""
        while True:
            for node in NODES:
                await self._publish(node)
                await asyncio.sleep(0.01)

    async def _publish(self, node: str) -> None:
        self._count += 1
        now = time.time()
        values = {"trio_health": str(int(node in SICK)), "trio_count": str(self._count)}
        metrics = {name: parse_quantity(text) for name, text in values.items()}
        scrape = Scrape(source="trio", measured=now, arrived=now, sequence=0, metrics=metrics)
        try:
            await publish_scrape(self._bus, node, scrape)
        except BusError:
            self.refused += 1
        else:
            self.accepted += 1
            self.confirmed[node] = self._count


class Replica:
    """A process `tas run all`, which is asked all the time.

    Attributes:
        answers: How many answers of filter there were, all with 200 and the right nodes.
    """

    def __init__(self, port: int, health: int) -> None:
        self.answers = 0
        self._url = f"http://127.0.0.1:{port}/scheduler/filter"
        self._health = f"http://127.0.0.1:{health}/readyz"

    async def ask(self, session: aiohttp.ClientSession, namespace: str) -> None:
        """Asks until cancelled. AssertionError for any answer but the right one."""
        while True:
            status, text = await self._answer(session, namespace)
            assert status == 200, text
            assert json.loads(text)["NodeNames"] == list(WELL)
            self.answers += 1
            await asyncio.sleep(0.05)

    async def is_right(self, session: aiohttp.ClientSession, namespace: str) -> bool:
        """Whether one answer is right."""
        status, text = await self._answer(session, namespace)
        return status == 200 and json.loads(text)["NodeNames"] == list(WELL)

    async def _answer(self, session: aiohttp.ClientSession, namespace: str) -> tuple[int, str]:
        pod = {"metadata": {"name": "p", "namespace": namespace, "labels": {"telemetry-policy": POLICY}}}
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(NODES)}
        async with session.post(self._url, json=body) as answer:
            return answer.status, await answer.text()

    async def ready(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """What `/readyz` says, with its status."""
        with suppress(aiohttp.ClientError):
            async with session.get(self._health) as answer:
                found: dict[str, Any] = await answer.json()
                return found | {"status": answer.status}
        return {"status": 0, "bus": None}


@contextmanager
def replicas(cluster: Cluster, servers: Servers, folder: Path) -> Iterator[list[Replica]]:
    """Two processes with every worker."""
    (first, first_health), (second, second_health) = (free_ports(2) for _ in range(2))
    ports = [(first, first_health), (second, second_health)]
    common = ["--bus", servers.address, "--replicas", "3", "--kubeconfig", str(cluster.kubeconfig), "--breaker", "off"]
    commands = [
        [*TAS, "run", "all", *common, "--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{health}"]
        for port, health in ports
    ]
    env = environment(folder)
    with (
        running("trio-a", commands[0], folder=folder, env=env),
        running("trio-b", commands[1], folder=folder, env=env),
    ):
        yield [Replica(port, health) for port, health in ports]


async def info(bus: Bus, of: Stream | Bucket) -> dict[str, Any]:
    """What a server says about a stream; nothing while none answers."""
    with suppress(UnavailableError):
        return await bus.api(f"STREAM.INFO.{of.stream}")
    return {}


async def leader(bus: Bus, of: Stream | Bucket) -> int:
    """The number of the server that leads a stream."""
    found: list[str] = []

    async def is_known() -> bool:
        found[:] = [(await info(bus, of)).get("cluster", {}).get("leader") or ""]
        return found[0] != ""

    await eventually(is_known)
    return int(found[0].removeprefix("n"))


async def created(bus: Bus) -> str:
    """When the stream of verdicts was created."""
    found: list[str] = []

    async def is_known() -> bool:
        found[:] = [(await info(bus, VERDICTS)).get("created", "")]
        return found[0] != ""

    await eventually(is_known)
    return found[0]


@asynccontextmanager
async def kept(work: Callable[[], Any]) -> AsyncIterator[None]:
    """Something that goes on meanwhile, and whose errors count."""
    task = asyncio.ensure_future(work())
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Stage:
    """The cluster of servers, the processes, and those who ask."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        servers: Servers,
        both: list[Replica],
        session: aiohttp.ClientSession,
        bus: Bus,
        measured: Callable[[str], None],
    ) -> None:
        self.cluster = cluster
        self.servers = servers
        self.both = both
        self.bus = bus
        self.load = Load(bus)
        self.unwell: list[object] = []
        self._session = session
        self._measured = measured

    def labelled(self) -> set[str]:
        return {name for name, labels in self.cluster.labels_of_nodes().items() if POLICY in labels}

    def label_times(self) -> dict[str, str]:
        """By node, when the label of the policy was last written, by the API server's own record."""
        return {
            node["metadata"]["name"]: entry["time"]
            for node in self.cluster.api.get("/api/v1/nodes")["items"]
            for entry in node["metadata"]["managedFields"]
            if f"f:{POLICY}" in entry["fieldsV1"].get("f:metadata", {}).get("f:labels", {})
        }

    async def all_are_ready(self) -> bool:
        return all([(await replica.ready(self._session))["status"] == 200 for replica in self.both])

    async def all_complain(self) -> bool:
        return all([(await replica.ready(self._session))["bus"] is not None for replica in self.both])

    async def all_is_well(self) -> bool:
        """Whether nobody complains and all copies are current; `unwell` has what is not so."""
        ready = [await replica.ready(self._session) for replica in self.both]
        self.unwell = [each for each in ready if each["status"] != 200 or each["bus"] is not None]
        answers = {} if self.unwell else {of.stream: await info(self.bus, of) for of in ALL}
        self.unwell += [
            (stream, answer.get("cluster"))
            for stream, answer in answers.items()
            if not answer or not has_majority(answer) or late_copies(answer)
        ]
        return not self.unwell

    async def has(self, confirmed: dict[str, int]) -> bool:
        """Whether NODES has these counts, or later ones."""
        for node, count in confirmed.items():
            try:
                scrapes = ((await NODE_SAMPLES.get(self.bus, node)).readable() or StoredSamples()).samples
            except BusError:
                return False
            counts = [each.metrics["trio_count"] for each in scrapes if "trio_count" in each.metrics]
            if not counts or max(counts) < parse_quantity(str(count)):
                return False
        return True

    async def led_by_another(self, number: int) -> bool:
        answer = await info(self.bus, VERDICTS)
        return bool(answer) and answer["cluster"].get("leader") not in (None, f"n{number}")

    async def recovers(self, what: str) -> None:
        """Without a hand: what was confirmed until now is in NODES, all copies are current, and nobody complains."""
        before, accepted, began = dict(self.load.confirmed), self.load.accepted, time.monotonic()
        await eventually(lambda: self.load.accepted > accepted)
        first = time.monotonic() - began
        await eventually(lambda: self.has(before))
        try:
            await eventually(self.all_is_well)
        except AssertionError as error:
            raise AssertionError(f"{what}: {self.unwell}") from error
        self._measured(f"{what}: published after {first:.1f} s, all well after {time.monotonic() - began:.1f} s")
        assert self.labelled() == set(SICK)

    async def one_is_killed(self) -> None:
        number = await leader(self.bus, VERDICTS)
        self.servers.processes[number].kill()
        await eventually(lambda: self.led_by_another(number))
        self.servers.processes[number].restart()
        await self.recovers("one server was killed")

    async def each_loses_its_store(self, folder: Path) -> None:
        first = await leader(self.bus, SAMPLES)
        for number in (first, (first + 1) % 3, (first + 2) % 3):
            self.servers.processes[number].kill()
            shutil.rmtree(folder / f"n{number}")
            self.servers.processes[number].restart()
            await self.recovers("the store of one server was lost")

    async def two_are_killed(self) -> None:
        """There is no majority, and nobody says that all is well."""
        for number in (0, 1):
            self.servers.processes[number].kill()
        began, load = time.monotonic(), self.load
        refused, accepted, answers = load.refused, load.accepted, [replica.answers for replica in self.both]
        await eventually(self.all_complain)
        self._measured(f"without a majority: /readyz says so after {time.monotonic() - began:.1f} s")
        await eventually(lambda: load.refused > refused + 2)
        assert load.accepted <= accepted + len(NODES), "what was on its way, and nothing more"
        await eventually(lambda: all(each.answers > n + 20 for each, n in zip(self.both, answers, strict=True)))
        assert await self.all_are_ready(), "the extender answers from its view"
        assert await self.all_complain(), "also when all are connected to the server that is left"
        for number in (0, 1):
            self.servers.processes[number].restart()
        await self.recovers("two servers were killed")

    async def all_lose_their_stores(self, folder: Path) -> None:
        """Nothing of the old bus is left: labels stay, and the next samples are the new truth."""
        before = await created(self.bus)
        for process in self.servers.processes:
            process.kill()
        self.load.confirmed.clear()  # no server has them any more
        for number, process in enumerate(self.servers.processes):
            shutil.rmtree(folder / f"n{number}")
            process.restart()
        began = time.monotonic()
        await eventually(lambda: self.load.confirmed.keys() == set(NODES))
        await self.recovers("all stores were lost")
        self._measured(f"all stores were lost: all well after {time.monotonic() - began:.1f} s")
        assert await created(self.bus) > before, "the stream is a new one"


@pytest.mark.usefixtures("crd")
async def test_nothing_that_was_confirmed_is_lost_and_no_label_is_wrong(
    cluster: Cluster, namespace: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    cluster.create_nodes(*NODES)
    body = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": POLICY},
        # While there is no majority no value is new. On a busy machine that may last longer than the usual minute.
        "spec": {
            "staleAfter": "1h",
            "strategies": {"deschedule": {"rules": [RULE]}, "dontschedule": {"rules": [RULE]}},
        },
    }
    cluster.api.create(f"/apis/telemetry.intel.com/v1alpha1/namespaces/{namespace}/taspolicies", body)
    with nats_servers(tmp_path, 3) as servers, replicas(cluster, servers, tmp_path) as both:
        async with (
            aiohttp.ClientSession() as session,
            Bus.connect(servers.address, name="trio", streams=(), replicas=3) as bus,
        ):
            stage = Stage(cluster=cluster, servers=servers, both=both, session=session, bus=bus, measured=measured)
            await eventually(stage.all_is_well)
            async with kept(stage.load.run):
                await eventually(lambda: stage.labelled() == set(SICK))
                # Each has a view of its own, which may be behind that of the worker that has written the labels.
                for replica in both:
                    await eventually(partial(replica.is_right, session, namespace))
                first, second = (partial(replica.ask, session, namespace) for replica in both)
                written = stage.label_times()
                assert written.keys() == set(SICK)
                async with kept(first), kept(second):
                    await stage.one_is_killed()
                    await stage.each_loses_its_store(tmp_path)
                    await stage.two_are_killed()
                    await stage.all_lose_their_stores(tmp_path)
                assert stage.label_times() == written, "a label was removed, or set again"
    cluster.delete_nodes(*NODES)
