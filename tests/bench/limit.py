"""What a burst of nodes costs against the limit of a breaker: calls, messages, log lines and processor time.

All nodes violate a policy within a second, ten may have its label. Counted are the burst with the trip, a time in which
the labels are frozen and all nodes go on reporting, a reset after which the breaker trips again, and the raised limit.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bus.connection import Bus
from bus.kinds import BREAKER_RECORDS
from tas.enforcing import breaker
from tests.bench.enforcement import (
    BAD,
    GOOD,
    LABEL,
    MANIFEST,
    METRICS_API,
    USER,
    Seen,
    Sources,
    cluster,
    node_names,
    quiet,
    watching,
)
from tests.bench.rows import NotRun, Results, Row, Size, row
from tests.bench.stand import Stand, cpu_seconds
from tests.e2e import binaries
from tests.e2e.cluster import Cluster
from tests.e2e.controlplane import ControlPlane
from tests.e2e.product import Product

NAME = "limit"
COUNTS = (500, 1000)
LIMIT = 10
OPTIONS = ("--breaker", f"0%,{LIMIT}", "--breaker-all", "off", "--label-rate", "off", "--label-rate-all", "off")
FROZEN_SECONDS = 30.0
TRIP_SECONDS = 120.0
STREAMS = ("KV_BREAKERS", "KV_VERDICTS", "KV_REFUSALS", "EVENTS", "VERDICT_LOG", "ANNOUNCED")
"""The streams to which the product writes because of verdicts; SAMPLES and NODES have what sources report."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What had happened until some moment."""

    messages: int
    lines: int
    cpu: float


@dataclass(slots=True, kw_only=True)
class Scene:
    plane: ControlPlane
    running: Product
    bus: Bus
    log: Path
    size: Size

    async def counts(self) -> Counts:
        """What has happened so far."""
        states = [(await self.bus.api(f"STREAM.INFO.{stream}")) for stream in STREAMS]
        messages = sum(info["state"]["last_seq"] - info["config"].get("first_seq", 1) + 1 for info in states)
        return Counts(messages, self.log.read_bytes().count(b"\n"), cpu_seconds(self.running.process.pid))

    @asynccontextmanager
    async def counting(self, rows: list[Row], what: str) -> AsyncIterator[None]:
        """Adds rows about the body, until nothing that it caused is under way any more."""
        before, mark = await self.counts(), self.plane.audit.mark()
        yield
        await quiet(self.plane)
        after = await self.counts()
        calls = [
            call
            for call in self.plane.audit.calls(mark, user=USER)
            if call.verb != "watch" and not call.uri.startswith(METRICS_API)
        ]
        patches = sum(call.verb == "patch" and "/nodes/" in call.uri for call in calls)
        series = f"{what}, limit {LIMIT}"
        for statistic, figure, unit in (
            ("patches of nodes", patches, ""),
            ("other calls to the API server", len(calls) - patches, ""),
            ("messages on the bus", after.messages - before.messages, ""),
            ("log lines", after.lines - before.lines, ""),
            ("processor time", after.cpu - before.cpu, "s"),
        ):
            rows.append(row(series, statistic, [figure], unit=unit, size=self.size))


async def measure(stand: Stand) -> Results:
    """One process of the whole product on a control plane of its own, for each number of nodes."""
    found = binaries.find()
    if found is None:
        return Results(not_run=[NotRun("a burst of nodes against a limit", binaries.MISSING)])
    rows: list[Row] = []
    for count in COUNTS[: stand.some(2, 1)]:
        names = node_names(count)
        with cluster(stand.subfolder("control-plane"), found, names, OPTIONS) as (plane, running):
            async with Bus.connect(running.bus, name="bench") as bus, watching(plane.admin) as seen:
                await bus.wait_connected()
                log = next(plane.folder.rglob("tas-*.log"))
                scene = Scene(plane=plane, running=running, bus=bus, log=log, size=Size(count, "nodes"))
                rows += await _story(scene, Sources(bus, names), seen)
    return Results(rows=rows)


async def _story(scene: Scene, sources: Sources, seen: Seen) -> list[Row]:
    rows: list[Row] = []
    await sources.report_all(GOOD)
    await seen.until(lambda: seen.known >= set(sources.names), "every node is seen")
    await quiet(scene.plane)
    async with sources.reporting():
        async with scene.counting(rows, "all nodes violate and the breaker trips"):
            began = time.perf_counter()
            await sources.report_all(BAD)
            await _until(lambda: _is_tripped(scene.bus), "the breaker trips")
            rows.append(
                row("all nodes violate", "until the trip", [time.perf_counter() - began], unit="s", size=scene.size)
            )
        assert len(seen.labelled) <= LIMIT
        async with scene.counting(rows, f"{FROZEN_SECONDS:.0f} s frozen"):
            await asyncio.sleep(FROZEN_SECONDS)
        async with scene.counting(rows, "a reset, and the breaker trips again"):
            await _reset(scene.bus)
            await _until(lambda: _is_tripped(scene.bus), "the breaker trips again")
        assert len(seen.labelled) <= LIMIT
        async with scene.counting(rows, "the limit is raised and the breaker reset"):
            raised = MANIFEST.replace("  staleAfter:", f"  breaker: {{maxNodes: {len(sources.names)}}}\n  staleAfter:")
            Cluster(scene.plane).apply(raised)
            await asyncio.sleep(1)
            await _reset(scene.bus)
            await seen.until_labelled(sources.names, labelled=True)
    return rows


async def _is_tripped(bus: Bus) -> bool:
    record = (await BREAKER_RECORDS.get(bus, LABEL)).readable()
    return record is not None and record.trip is not None


async def _reset(bus: Bus) -> None:
    read_at = time.monotonic()
    entry = await BREAKER_RECORDS.get(bus, LABEL)
    record = entry.readable()
    assert record is not None
    await BREAKER_RECORDS.put(bus, LABEL, breaker.reset(record), revision=entry.revision, read_at=read_at)


async def _until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(TRIP_SECONDS):
            while not await holds():  # noqa: ASYNC110 - the bus has no event for it
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise TimeoutError(f"{what}: not within {TRIP_SECONDS:g} s") from error
