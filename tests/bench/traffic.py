"""Node messages at an even rate through all parts: publisher, server, materialize, extender."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from bus.buckets import NODES
from tests.bench.publisher import Published
from tests.bench.rows import Row, row
from tests.bench.stand import RunningBus, Server, Stand, module, product
from tests.e2e.processes import Process

SETTLE_SECONDS = 1.0
FLOWING_SECONDS = 30.0


@dataclass(slots=True)
class Traffic:
    """The traffic. `rows` has its amount after the body of `traffic`."""

    pids: dict[str, int]
    rows: list[Row] = field(default_factory=list)


@asynccontextmanager
async def traffic(
    stand: Stand, running: RunningBus, *, rate: float, nodes: int, extender: Server
) -> AsyncIterator[Traffic]:
    """`rate` messages a second, of all metrics of one of `nodes` nodes each, once they arrive in NODES."""
    url = running.server.url
    with (
        stand.process("materialize", product("materialize", url)) as materialize,
        stand.process("publisher", [*module("tests.bench.publisher"), url, str(rate), str(nodes)]) as publisher,
    ):
        await _flowing(running, materialize, publisher)
        pids = {"nats-server": running.server.pid, "materialize": materialize.pid, "publisher": publisher.pid}
        found = Traffic(pids=pids | {"extender": extender.process.pid})
        began, first = time.monotonic(), (await running.bus.epoch(NODES)).last_sequence
        yield found
        last, ended = (await running.bus.epoch(NODES)).last_sequence, time.monotonic()
        behind = extender.metric('tas_view_lag{bucket="NODES"}')
        materialize.must_run()
        publisher.stop()
        published = msgspec.json.decode(publisher.log.read_bytes().splitlines()[-1], type=Published)
        series = f"load of {rate:,.0f} messages/s"
        for what, measured in (("published", published.rate), ("written to NODES", (last - first) / (ended - began))):
            found.rows.append(row(series, what, [measured], [rate], unit="/s", floor_name="target"))
        found.rows.append(row(series, "entries the extender is behind", [behind], unit=""))


async def _flowing(running: RunningBus, *processes: Process) -> None:
    """Waits until messages are written to NODES and the backlog is empty."""
    first = (await running.bus.epoch(NODES)).last_sequence
    async with asyncio.timeout(FLOWING_SECONDS):
        while (await running.bus.epoch(NODES)).last_sequence == first:
            for process in processes:
                process.must_run()
            await asyncio.sleep(0.05)
    await asyncio.sleep(SETTLE_SECONDS)
