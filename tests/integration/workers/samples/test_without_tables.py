"""Where the bus takes no tables, or only small ones, the same samples are published by node."""

import json
import time
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import bus.server as embedded
from bus.buckets import ALL, NODES, TABLES
from bus.connection import Bus
from bus.kinds import NODE_SAMPLES, NODE_TABLES
from bus.record_kind import Entry, read_entries
from bus.records.nodes import StoredSamples
from bus.tables import last_tables
from cli.queries.query import stored_nodes
from tas.samples.parts import MAX_PARTS
from tas.samples.table import Table, TableKey
from tas.sources.result import ResultBuilder
from tests.integration.bus.limits import long_limits
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.collect.test_collect import Fake
from tests.integration.workers.collecting import World, collecting, polled
from tests.integration.workers.materialize.test_materialize import materializing
from tests.integration.workers.running import running
from tests.integration.workers.windows.test_windows import SOURCE, Cluster, cluster, worker

__all__ = ["cluster", "long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

RESERVED = sum(of.max_bytes for of in ALL)
"""What the streams take of a store."""


async def state_says(world: World, words: str, source: str = "fake") -> None:
    """Waits until the state of a source says this of tables; "": that it publishes them."""

    async def says() -> bool:
        state = await world.state(source)
        return (
            state is not None
            and state.polls > 0
            and (words in state.without_tables if words else not state.without_tables)
        )

    await polled(says)


async def tables_on(connection: Bus) -> int:
    """The number of messages on TABLES."""
    return int((await answered(lambda: connection.api("STREAM.INFO.TABLES")))["state"]["messages"])


class TestWithoutRoom:
    """The store was full enough without the stream that a new version adds."""

    @pytest.fixture
    async def server(self, tmp_path: Path) -> AsyncIterator[Server]:
        server = Server(tmp_path / "store")
        await server.start(store_bytes=RESERVED - 1)
        earlier = tuple(of for of in ALL if of is not TABLES)
        async with Bus.connect(server.url, name="earlier", streams=earlier) as connection:
            await connection.wait_connected()
            assert connection.problem is None
        yield server
        await server.stop()

    async def test_sources_and_statistics_go_on_with_samples_until_the_stream_can_be_had(
        self, server: Server, bus: Bus, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World(bus)
        await cluster.has("a", "node-1")
        await world.use("load", "cpu:mean:1m")
        await world.listed()
        for after, value in ((60, 1), (90, 2), (120, 9)):
            await cluster.measure("a", after, value)
        fake, asked, api = Fake(), list[str](), bus.api

        def recorded(verb: str, body: dict[str, Any] | None = None, **limit: float) -> Awaitable[dict[str, Any]]:
            asked.append(verb)
            return api(verb, body, **limit)

        async def is_missing(*, as_unread: bool) -> None:
            """Waits until it is said why a statistic is missing; `as_unread`: also, that TABLES is not read."""

            async def says() -> bool:
                state = await world.state(SOURCE)
                new = None if state is None else state.metrics.get("new:mean:1m")
                why = "" if new is None else new.missing or ""
                return why != "" and ("; TABLES cannot be read or created: STREAM.CREATE.TABLES: " in why) == as_unread

            await polled(says)

        monkeypatch.setattr(bus, "api", recorded)
        with capture_logs() as logs:
            async with materializing(bus) as materialized, running(worker(bus)), collecting(bus, fake):
                assert "insufficient storage resources available (10047)" in str(bus.problem)
                await state_says(world, "TABLES cannot be read or created: STREAM.CREATE.TABLES: insufficient storage")
                await materialized.has("node-1", "load", "1")
                await world.has("a", SOURCE, {"cpu:mean:1m": 4})
                await world.use("new:mean:1m", policy="of-tables")
                await is_missing(as_unread=True)
                await world.use("cpu:max:2m", policy="later")  # wanted only when its values are in the past
                await world.has("a", SOURCE, {"cpu:max:2m": 9})
                fake.value = "2"
                await materialized.has("node-1", "load", "2")
                assert bus.refused(TABLES)
                assert asked
                assert not [verb for verb in asked if ".TABLES" in verb], "who waits for the stream asks for it"
                assert await answered(lambda: last_tables(bus, "node-1")) == []  # tas trace goes on, too

                await server.restart(store_bytes=RESERVED + (64 << 20))
                await state_says(world, "")
                await eventually(lambda: bus.problem is None)
                await is_missing(as_unread=False)
                assert await tables_on(bus) > 0
                fake.value = "3"
                await world.has("node-1", "fake", {"load": 3, "cpu": 3, "new": 3})

                async def is_stored() -> bool:
                    samples = (await stored_nodes(bus)).samples["node-1"]
                    return max(scrape.metrics["load"] for scrape in samples if "load" in scrape.metrics) == 3 * 10**9

                await polled(is_stored)
                table = {"nodes": ["a"], "metrics": {"cpu": ["12"]}, "measured": _at(cluster.start + 120.5)}
                await answered(lambda: bus.publish(TABLES, "tas.tables.t.1-0", json.dumps(table).encode()))
                await world.has("a", SOURCE, {"cpu:mean:1m": 6, "cpu:max:2m": 12})
        events = ("source_without_tables", "source_with_tables")
        unread = {each["stream"]: each["reason"] for each in logs if each["event"] == "window_stream_not_read"}
        assert unread.keys() == {"TABLES"}
        assert "insufficient storage" in unread["TABLES"]
        said = [(each["source"], each["event"]) for each in logs if each["event"] in events]
        for source in ("fake", SOURCE):  # SOURCE is `windows`, which publishes statistics
            assert [event for of, event in said if of == source] == list(events)


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class TestSmallMessages:
    """A server that takes messages of 64 KiB: 64 tables of a third of that have no room for everything."""

    @pytest.fixture
    async def server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
        monkeypatch.setattr(embedded, "_CONFIG", embedded._CONFIG + f"max_payload: {64 << 10}\n")
        server = Server(tmp_path / "store")
        await server.start()
        yield server
        await server.stop()

    async def test_metrics_of_former_policies_do_not_keep_the_present_ones_away(self, bus: Bus) -> None:
        """In a stored table, which has them for an hour; the oldest go first."""
        async with materializing(bus) as materialized:
            names = [f"host-{number}" for number in range(100)]
            metrics = [f"metric_{number}" for number in range(12)]
            for number, metric in enumerate(metrics):
                at = time.time() - 60 + number
                table = {
                    "nodes": names,
                    "measured": [_at(at + row / 1000) for row in range(len(names))],
                    "metrics": {metric: [str(row) for row in range(len(names))]},
                }
                await answered(partial(bus.publish, TABLES, "tas.tables.t.1-0", json.dumps(table).encode()))

            async def has_newest() -> bool:
                samples = (await answered(partial(stored_nodes, bus))).samples.get("host-99", ())
                known = {metric for scrape in samples for metric in scrape.metrics}
                return known == set(metrics[-len(known) :]) and 1 < len(known) < len(metrics)

            await polled(has_newest)
            assert materialized.refusals() == {}

    @pytest.mark.ci
    async def test_what_has_no_room_in_tables_is_published_by_node_and_everything_is_stored(self, bus: Bus) -> None:
        world = World(bus)
        await world.listed()
        metrics = [f"metric_{number}" for number in range(70)]
        names = [f"host-{number}" for number in range(400)]

        def add(builder: ResultBuilder) -> None:
            for name in names:
                for number, metric in enumerate(metrics):
                    builder.add(node=name, metric=metric, value=str(10**39 + number))

        fake = Fake()
        fake.add_more = add
        async with materializing(bus), collecting(bus, fake, period=1.0, always=metrics):
            await state_says(world, f"{MAX_PARTS} tables of ")

            async def are_stored() -> bool:
                samples = (await stored_nodes(bus)).samples
                return all(
                    {metric for scrape in samples.get(name, ()) for metric in scrape.metrics} == set(metrics)
                    for name in names
                )

            await polled(are_stored)
        single: list[Entry[str, StoredSamples]] = []
        tables: list[Entry[TableKey, Table]] = []
        await answered(lambda: read_entries(bus, NODES, NODE_SAMPLES.to(single.append), NODE_TABLES.to(tables.append)))
        assert single
        assert tables
