"""What a sample becomes on a real API server: how soon a label stands, what is asked while nothing changes, and what
happens if every node turns at once. Without the binaries of a control plane the rows say how to get them.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path

import psutil
import structlog

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.records.samples import encode_samples
from bus.subjects import samples_subject
from cli.crd import crd_manifest
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tests.bench.measure import ROUND_SECONDS, no_collection
from tests.bench.memory import MEGABYTE
from tests.bench.rows import Budget, NotRun, Results, Row, quantile_rows, row
from tests.bench.stand import CpuMeter, Stand
from tests.e2e import binaries
from tests.e2e.cluster import Cluster
from tests.e2e.controlplane import ADMIN_GROUP, Call, ControlPlane, control_plane
from tests.e2e.product import Product, product
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.resources import NODES, Metadata

log = structlog.get_logger("bench")

NAME = "labels"
COUNT = 500
"""Nodes, of which each gets the label and loses it again."""

METRICS_API = "/apis/custom.metrics.k8s.io"

USER = "tas"
"""Whose calls are counted: the product's alone."""

METRIC = "bench_pressure"
LABEL = "bench-policy"
BAD, GOOD = 90, 10
MANIFEST = f"""
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {{name: {LABEL}, namespace: default}}
spec:
  staleAfter: 1h
  strategies:
    dontschedule: {{rules: [{{metricname: {METRIC}, operator: GreaterThan, target: 50}}]}}
    deschedule: {{rules: [{{metricname: {METRIC}, operator: GreaterThan, target: 50}}]}}
"""

PERIOD_SECONDS = 5.0
"""How often each node reports meanwhile."""

QUIET_SECONDS = 6.0
"""After so long without a call nothing is under way any more: a status is written once in 5 s."""

SETTLE_SECONDS = 120.0
TURN_SECONDS = 60.0
"""After which it is not waited any longer: labels that take more count as this."""

NO_LIMIT = (
    *("--breaker", "100%,1", "--breaker-all", "100%,1", "--flap-budget", "0"),
    *("--label-rate", "off", "--label-rate-all", "off"),
)
"""Limits that are never exceeded, so that admissions are measured, too."""

SOON = {"p99": Budget(50.0)}
AT_ONCE = Budget(5.0)
NONE = Budget(0.0)

ROWS = ("sample to label", "calls to the API server while nothing changes", f"{COUNT} nodes turn at once")


async def measure(stand: Stand) -> Results:
    """One process of the whole product on a control plane of its own, and a watch that sees what becomes of nodes."""
    found = binaries.find()
    if found is None:
        return Results(not_run=[NotRun(series, binaries.MISSING) for series in ROWS])
    names = node_names(COUNT)
    with cluster(stand.subfolder("control-plane"), found, names, NO_LIMIT) as (plane, running):
        async with Bus.connect(running.bus, name="bench") as bus, watching(plane.admin) as seen:
            await bus.wait_connected()
            sources = Sources(bus, names)
            await sources.report_all(GOOD)
            await seen.until(lambda: seen.known >= set(names), "every node is seen")
            async with sources.reporting():
                pids = {process.name: process.pid for process in plane.started if process.is_running}
                meter = CpuMeter(f"labels, {COUNT} nodes, {COUNT / PERIOD_SECONDS:,.0f} messages/s", pids)
                rows = await _soon(stand, sources, seen)
                rows += await _at_once(stand, plane, sources, seen)
                rows += await _idle(stand, plane)
                cpu = meter.read()
                resident = psutil.Process(running.process.pid).memory_info().rss / MEGABYTE
                rows.append(row(f"memory of tas run all, {COUNT} nodes, one policy", "resident", [resident], unit="MB"))
    return Results(rows=rows, cpu=cpu)


@contextmanager
def cluster(
    folder: Path, found: Mapping[str, Path], names: Sequence[str], options: Sequence[str]
) -> Iterator[tuple[ControlPlane, Product]]:
    """A control plane with these nodes and the policy, and `tas run all` with these options."""
    with control_plane(folder, found) as plane:
        cluster = Cluster(plane)
        cluster.apply(crd_manifest())
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{_CRD}", f"--timeout={SETTLE_SECONDS:.0f}s")
        cluster.create_nodes(*names)
        cluster.apply(MANIFEST)
        (folder / "product").mkdir()
        with product(cluster, folder / "product", *options, kubeconfig=plane.kubeconfig(USER, ADMIN_GROUP)) as running:
            yield plane, running


_CRD = "taspolicies.telemetry.intel.com"


def node_names(count: int) -> list[str]:
    return [f"node-{number:03}.example.com" for number in range(count)]


# What is measured


async def _soon(stand: Stand, sources: "Sources", seen: "Seen") -> list[Row]:
    """From before a sample is published until a watch of the API server reports the label, or its removal."""
    chance = random.Random(0)
    names = cycle(chance.sample(sources.names, COUNT))
    times: dict[bool, list[list[float]]] = {True: [], False: []}
    with no_collection():
        for _ in range(stand.rounds):
            for found in times.values():
                found.append([])
            ends = time.perf_counter() + ROUND_SECONDS
            for name in islice(names, stand.some(100, 40)):
                for bad, found in times.items():
                    await asyncio.sleep(chance.uniform(0.01, 0.03))  # in step with nothing else that is periodic
                    began = time.perf_counter()
                    await sources.report(name, BAD if bad else GOOD)
                    await seen.until_labelled([name], labelled=bad)
                    found[-1].append(seen.changed_at(name, since=began) - began)
                if time.perf_counter() > ends:
                    break
    series = "sample to label on the node"
    return [
        *quantile_rows(series, times[True], budgets=SOON),
        *quantile_rows("sample to label gone from the node", times[False]),
    ]


async def _at_once(stand: Stand, plane: ControlPlane, sources: "Sources", seen: "Seen") -> list[Row]:
    """Every node turns: seconds until the last has its label, or has lost it, and what the API server refused."""
    mark = plane.audit.mark()
    times: dict[int, list[float]] = {BAD: [], GOOD: []}
    for _ in range(stand.some(5, 3)):
        for value, found in times.items():
            began = time.perf_counter()
            await sources.report_all(value)
            await seen.until_labelled(sources.names, labelled=value == BAD)
            found.append(max(seen.changed_at(name, since=began) for name in sources.names) - began)
    calls = plane.audit.calls(mark, user=USER)
    series = f"{COUNT} nodes turn at once"
    patches = [call for call in calls if call.verb == "patch"]
    per_node = len(calls) / (sum(map(len, times.values())) * COUNT)
    return [
        row(series, "until all are labelled", times[BAD], unit="s", budget=AT_ONCE),
        row(series, "until no label is left", times[GOOD], unit="s"),
        row(series, "429 among its calls", [sum(call.status == 429 for call in calls)], unit="", budget=NONE),
        row(series, "409 among its patches", [sum(call.status == 409 for call in patches)], unit=""),
        row(series, "calls for each label", [per_node], unit=""),
    ]


async def _idle(stand: Stand, plane: ControlPlane) -> list[Row]:
    """Nodes go on reporting, and nothing that matters changes: calls by the API server's own log."""
    await quiet(plane)
    seconds = stand.some(60, 20)
    mark = plane.audit.mark()
    await asyncio.sleep(seconds)
    calls = plane.audit.calls(mark, user=USER)
    others = [call for call in calls if _is_caused(call)]
    if others:
        log.warning("calls_while_nothing_changed", calls=[f"{call.verb} {call.uri} {call.status}" for call in others])
    watches = sum(call.verb == "watch" for call in calls)
    series = f"calls to the API server while nothing changes, {seconds} s"
    return [
        row(series, "beyond watches and collect", [len(others)], unit="", budget=NONE),
        row(series, "watches opened again", [watches], unit=""),
        row(series, "polls of metrics by collect", [len(calls) - watches - len(others)], unit=""),
    ]


def _is_caused(call: Call) -> bool:
    """Whether a change causes a call: not for a watch, and not for a poll of `collect`."""
    return call.verb != "watch" and not call.uri.startswith(METRICS_API)


async def quiet(plane: ControlPlane) -> None:
    """Waits until what the changes before have caused is done."""
    async with asyncio.timeout(SETTLE_SECONDS):
        mark, since = plane.audit.mark(), time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS:
            await asyncio.sleep(0.2)
            if any(map(_is_caused, plane.audit.calls(mark, user=USER))):
                mark, since = plane.audit.mark(), time.monotonic()


# Sources, and a watch


class Sources:
    """What reports each node's one metric."""

    def __init__(self, bus: Bus, names: Sequence[str]) -> None:
        self.names = names
        self._bus = bus
        self._values = dict.fromkeys(names, GOOD)
        self._chance = random.Random(1)

    async def report(self, name: str, value: int) -> None:
        """`value` of a node from now on, with something behind it that is another each time."""
        self._values[name] = value
        now = time.time()
        metrics = {METRIC: parse_quantity(f"{value + self._chance.uniform(0, 5):.3f}")}
        scrape = Scrape(source="bench", measured=now, arrived=now, sequence=0, metrics=metrics)
        await self._bus.publish(SAMPLES, samples_subject(name, "bench"), encode_samples(scrape))

    async def report_all(self, value: int) -> None:
        """The same of every node, as fast as it goes."""
        await asyncio.gather(*(self.report(name, value) for name in self.names))

    @asynccontextmanager
    async def reporting(self) -> AsyncIterator[None]:
        """Within the body the last sample of every node is repeated."""

        async def go_on() -> None:
            for name in cycle(self.names):
                await asyncio.sleep(PERIOD_SECONDS / len(self.names))
                await self.report(name, self._values[name])

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class Seen:
    """The changes of nodes that a watch of the API server has reported, and when."""

    def __init__(self) -> None:
        self._labelled: dict[str, bool] = {}
        self._changed_at: dict[str, float] = {}
        self._changed = asyncio.Event()

    @property
    def known(self) -> set[str]:
        """Every reported node."""
        return set(self._labelled)

    @property
    def labelled(self) -> set[str]:
        """Every node with the label."""
        return {name for name, is_labelled in self._labelled.items() if is_labelled}

    def take_in(self, node: Metadata) -> None:
        """Applies the reported state of a node."""
        labelled = LABEL in node.labels
        if self._labelled.get(node.name) is not labelled:
            self._labelled[node.name] = labelled
            self._changed_at[node.name] = time.perf_counter()
            self._changed.set()

    def changed_at(self, name: str, *, since: float) -> float:
        """When its label came or went, by `time.perf_counter`; no earlier than `since`."""
        return max(self._changed_at[name], since)

    async def until_labelled(self, names: Sequence[str], *, labelled: bool) -> None:
        """Waits until all have the label, or none has."""
        left = set(names)

        def done() -> bool:
            left.difference_update([name for name in left if self._labelled[name] is labelled])
            return not left

        await self.until(done, f"labels of {len(names)} nodes")

    async def until(self, done: Callable[[], bool], what: str) -> None:
        """Waits for something that a change may bring. Raises TimeoutError with `what`."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                while not done():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise TimeoutError(f"{what}: not within {TURN_SECONDS:g} s") from error


@asynccontextmanager
async def watching(kubeconfig: Path) -> AsyncIterator[Seen]:
    """Follows the nodes within the body, by a connection of its own."""
    seen = Seen()
    async with KubernetesClient.connect(kubeconfig, worker="bench") as client:
        listing = await client.list(NODES)
        for each in listing.items:
            seen.take_in(each.metadata)

        async def follow() -> None:
            changes = client.watch(NODES, resource_version=listing.resource_version, seconds=3600, silent_seconds=3600)
            async with aclosing(changes):
                async for change in changes:
                    if change.object.metadata.name:  # else a bookmark
                        seen.take_in(change.object.metadata)

        task = asyncio.create_task(follow())
        try:
            yield seen
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
