"""`tas trace`: a value stops at the stage whose worker does not run."""

import json
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bus.buckets import NODES, SOURCES, TABLES, VERDICTS
from bus.connection import Bus
from tas.samples.parts import parts_with
from tests.integration.bus.limits import long_limits
from tests.integration.cli.tas import HEALTH, Done, Tas, demo_policy, policy_folder
from tests.integration.servers import Server, eventually
from tests.integration.tables import PARTS, publish

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

POLICY = demo_policy("""\
    deschedule:
      rules:
        - {metricname: health_metric, operator: Equals, target: 2}
""")


@pytest.fixture
def tas(tas: Tas, server: Server) -> Tas:
    """A user whose TAS_BUS is the test's server."""
    tas.environment["TAS_BUS"] = server.url
    return tas


async def test_a_value_stops_at_the_first_stage_without_its_worker(tas: Tas, tmp_path: Path) -> None:
    folder = policy_folder(tmp_path, POLICY)

    async def trace() -> Done:
        return await tas("trace", "health_metric", "node-1", "--json")

    async def stopped_at(stage: str | None) -> None:
        async def is_stopped_there() -> bool:
            found: str | None = (await trace()).json["stopped_at"]
            return found == stage

        await eventually(is_stopped_there, every=0.2)

    async with AsyncExitStack() as stack:
        policies = ("run", "policies", "--policies", str(folder), *HEALTH)
        await (await stack.enter_async_context(tas.running(*policies))).ready()
        await stopped_at("source")
        assert (await tas("publish", "node-1", "health_metric=2")).code == 0
        await stopped_at("view")
        for worker, stage in (("materialize", "verdict"), ("evaluate", None)):
            await (await stack.enter_async_context(tas.running("run", worker, *HEALTH))).ready()
            await stopped_at(stage)
        done = await trace()
        assert done.code == 0
        *_, verdict, label = done.json["stages"]
        assert verdict["details"] == [
            "default/demo-policy deschedule: health_metric Equals 2 is violated, the strategy violated"
        ]
        assert label["details"][-1] == "without a cluster no label is written"
        done = await tas("trace", "health_metric", "node-1")
        assert "health_metric of node-1 passed all stages" in done.out
        assert (await tas("publish", "node-1", "load1=1")).code == 0
        await stopped_at(None)
        done = await tas("trace", "nothing", "node-1")
        assert done.code == 1
        assert (
            "nothing of node-1 stopped at source: no replica of collect has a source, and no program publishes it"
            in done.out
        )


async def test_a_value_of_a_table_is_followed_as_that_of_a_scrape(tas: Tas, bus: Bus, tmp_path: Path) -> None:
    folder = policy_folder(tmp_path, POLICY)
    nodes = [f"node-{number}" for number in range(1, 9)]

    async def stages(node: str) -> dict[str, list[str]]:
        done = (await tas("trace", "health_metric", node, "--json")).json
        return {each["stage"]: each["details"] for each in done["stages"]}

    async with AsyncExitStack() as stack:
        policies = ("run", "policies", "--policies", str(folder), *HEALTH)
        await (await stack.enter_async_context(tas.running(*policies))).ready()
        await publish(bus, {node: {"health_metric": "2"} for node in nodes}, source="prober")
        assert len(await bus.last_messages(TABLES, "tas.tables.>")) > 1
        found = await stages("node-1")
        assert list(found) == ["source", "sample", "view"]
        assert found["source"] == ["prober: publishes by itself"]
        assert re.fullmatch(r"2 from prober, sequence \d+ of TABLES", found["sample"][0])
        assert found["view"] == [
            "materialize has stored no health_metric of node-1: is it running? has it refused the value?"
        ]
        assert list(await stages("node-9")) == ["source"]
        for worker in ("materialize", "evaluate"):
            await (await stack.enter_async_context(tas.running("run", worker, *HEALTH))).ready()
        for node in nodes:

            async def has_passed(node: str = node) -> bool:
                return "label" in await stages(node)

            await eventually(has_passed, every=0.2)

        # Another table of the same moment, as for values with another window: the last message has nothing of node-1.
        part = next(part for part in parts_with("node-1") if part.of == PARTS)
        other = next(f"other-{number}" for number in range(100) if part.has(f"other-{number}"))
        await publish(bus, {other: {"health_metric": "2"}}, source="prober")
        found = await stages("node-1")
        assert "label" in found
        assert found["source"] == ["prober: publishes by itself; its newest message has no health_metric"]


async def test_what_is_refused_of_the_row_of_the_node_is_shown_and_nothing_of_other_rows(tas: Tas, bus: Bus) -> None:
    nodes = [f"node-{number}" for number in range(100)]
    body = {"nodes": nodes, "metrics": {"load": ["x"] * 99 + ["NaN"], "free": ["1"]}}
    for subject in ("tas.tables.prober.1-0", "tas.tables.No.1-0"):
        await bus.publish(TABLES, subject, json.dumps(body).encode())
    done = await tas("trace", "load", "node-99")
    assert (done.code, "Traceback" in done.err) == (1, False)
    assert done.err.splitlines() == [
        "refused: table: subject = 'tas.tables.No.1-0': must be tas.tables.<source>.<parts>-<number>",
        "refused: table prober/1-0: metrics.load.node-99 = 'NaN': 'NaN' is no Kubernetes quantity",
        "refused: table prober/1-0: metrics.free = '1 value': must be one for each of 100 nodes",
    ]


async def test_unreadable_entries_are_reported_and_left_out(tas: Tas, bus: Bus) -> None:
    places = (
        (SOURCES, "strange"),
        (NODES, "node-1.metrics"),
        (NODES, "node-1.facts"),
        (NODES, "_table.x.1-0"),
        (VERDICTS, "node-1"),
    )
    for bucket, key in places:
        await bus.put(bucket, key, b"?", revision=0, read_at=time.monotonic())
    done = await tas("trace", "load", "node-1")
    assert done.code == 1
    assert "load of node-1 stopped at source" in done.out
    for bucket, key in places:
        assert done.err.count(f"left out: {bucket.name}/{key}: ") == 1  # although it looks twice
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("metric", "node", "message"), [("a.b", "n", "METRIC = 'a.b'"), ("a", "No_Node", "NODE = 'No_Node'")]
)
async def test_an_invalid_name_is_refused(tas: Tas, metric: str, node: str, message: str) -> None:
    done = await tas("trace", metric, node)
    assert done.code == 1
    assert message in done.err
