"""`tas run all` on a cluster with an adapter for custom metrics, and `tas get sources`."""

import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest

from bus.buckets import LEASES, SOURCES, Bucket
from bus.connection import Bus
from bus.entry import RawEntry
from bus.kinds import NODE_SAMPLES
from bus.records.nodes import StoredSamples
from bus.records.sources import encode_source_state
from cli.queries.query import stored_sources
from tas.samples.sample import Scrape
from tas.sources.result import RefusalReason, SuspectReason
from tas.sources.state import Health, RefusedValues, SourceMetric, SourceState
from tas.values.quantity import parse_quantity
from tests.integration.cli.tas import FREE, Tas
from tests.integration.servers import Server, eventually
from tests.integration.workers.collecting import World
from tests.kubernetes.admin import Admin
from tests.kubernetes.watch_scenarios import strategies
from tests.sandbox import Sandbox

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start(nodes=["node-1"]) as sandbox:
        yield sandbox


async def test_on_a_cluster_the_default_source_is_the_custom_metrics_api(
    tas: Tas, sandbox: Sandbox, tmp_path: Path
) -> None:
    kubeconfig = sandbox.kubeconfig(tmp_path / "kubeconfig")
    sandbox.metrics.set("health_metric", "node-1", "2")
    async with Admin.connect(kubeconfig) as admin:
        await admin.create_policy("default", "demo-policy", strategies=strategies(2))
    async with tas.running("run", "all", "--kubeconfig", str(kubeconfig), *FREE) as running:
        await running.ready()

        async def violated() -> bool:
            done = await tas("explain", "node", "node-1", "--json")
            rules = done.json["policies"][0]["strategies"][0]["rules"]
            return [(rule["value"], rule["source"], rule["state"]) for rule in rules] == [
                ("2", "custom-metrics", "violated")
            ]

        await eventually(violated, every=0.5)

        listed: list[dict[str, Any]] = []

        async def healthy() -> bool:  # the state is written after the samples
            # A source whose lease is lost on a busy machine is unattended for a moment: the same listing is looked at.
            listed[:] = (await tas("get", "sources", "--json")).json
            return [source["state"] for source in listed] == ["healthy"]

        await eventually(healthy, every=0.1)
        (source,) = listed
        assert (source["source"], source["state"], source["kind"]) == ("custom-metrics", "healthy", "custom-metrics")
        assert source["metrics"] == {"health_metric": {"nodes": 1}}
        assert source["periodSeconds"] == 1.0
        assert await running.end() == 0
        assert running.noise == []
    assert tas.left_behind() == []


async def put_state(bus: Bus, source: str, *, held: bool = True, **changes: object) -> None:
    state = SourceState(
        **{"kind": "prometheus", "holder": "a-1", "since": 1.0, "time": 1.0, "period": 1.0, "polls": 1} | changes  # type: ignore[arg-type]
    )
    await bus.put(SOURCES, source, encode_source_state(state), revision=0, read_at=time.monotonic())
    if held:
        await bus.put(LEASES, f"collect.{source}", b"{}", revision=0, read_at=time.monotonic(), ttl_seconds=600)


async def test_get_sources_shows_state_and_problems_of_each_source(tas: Tas, server: Server, bus: Bus) -> None:
    seen = {"m": SourceMetric(nodes=2)}
    now = time.time()
    refused = {
        RefusalReason.NODE: RefusedValues(count=3, example="m of web: kind = 'Pod': must be Node", time=now - 60)
    }
    await put_state(bus, "idle")
    suspect = {SuspectReason.JUMP: RefusedValues(count=2, example="m of n1: value = 644245923", time=now - 3600)}
    await put_state(bus, "healthy", metrics=seen, last_success=now, refused=refused, suspect=suspect)
    await put_state(bus, "alone", metrics=seen, last_success=now - 3700, held=False)
    await put_state(bus, "failing", metrics=seen, problem="connection refused")
    await put_state(bus, "partial", metrics=seen | {"n": SourceMetric(missing="not known")}, last_success=now)
    await put_state(bus, "written", metrics={"m": SourceMetric()}, period=None, held=False, time=now, polls=0)
    await put_state(
        bus, "many", metrics=seen | {"n": SourceMetric(missing="?")}, metrics_left_out=2200, missing_left_out=2100
    )
    await put_state(bus, "single", metrics=seen, last_success=now, without_tables="no room")
    await bus.put(SOURCES, "strange", b"?", revision=0, read_at=time.monotonic())
    done = await tas("get", "sources", "--json", "--bus", server.url)
    assert done.code == 0
    assert "left out: SOURCES/strange: state of a source" in done.err
    assert {each["source"]: each["state"] for each in done.json} == {
        "alone": "unattended",
        "failing": "failing",
        "idle": "idle",
        "partial": "partial",
        "healthy": "healthy",
        "many": "partial",
        "single": "healthy",
        "written": "waiting",
    }
    done = await tas("get", "sources", "--bus", server.url)
    for words in (
        "connection refused",
        "n: not known",
        "3 refused, the last 1m",
        "2 suspect (jump), the",
        "m: 2 nodes",
        "1h0",
        "and 2200 more",
        "and 2100 more without a fresh sample",
        "published by node: no room",
    ):
        assert words in done.out


async def test_a_source_that_a_replica_takes_during_the_reading_is_attended(bus: Bus) -> None:
    """The replica gets the lease and writes the state between any two reads of a command."""
    taken = 0

    class Between(Bus):
        async def entries(self, bucket: Bucket, keys: Collection[str] = (">",)) -> list[RawEntry]:
            nonlocal taken
            entries = await super().entries(bucket, keys)
            taken += 1
            await put_state(bus, f"taken-{taken}", metrics={"m": SourceMetric(nodes=1)})
            return entries

    async with Between.connect(bus.address, name="reader", streams=()) as reader:
        await reader.wait_connected()
        await put_state(bus, "before")
        sources = await stored_sources(reader)
        assert taken == len((SOURCES, LEASES))
        assert {"before"} <= sources.states.keys() <= sources.held
        assert {"taken-1"} <= sources.held


def test_every_state_and_reason_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "source-states.md").read_text()
    for word in (*Health, *RefusalReason):
        assert f"| `{word}` |" in page


async def test_get_sources_shows_sources_that_contradict_each_other(tas: Tas, server: Server, bus: Bus) -> None:
    """Two programs publish one metric of one node; a source has a stricter tolerance."""
    await World(bus).use("m")
    now = time.time()

    async def store(node: str, **values: str) -> None:
        scrapes = tuple(
            Scrape(source=source, measured=now, arrived=now, sequence=1, metrics={"m": parse_quantity(value)})
            for source, value in sorted(values.items())
        )
        await NODE_SAMPLES.put(bus, node, StoredSamples(scrapes), revision=0, read_at=time.monotonic())

    async def shown() -> list[str]:
        done = await tas("get", "sources", "--bus", server.url)
        assert done.code == 0
        return [line for line in done.out.splitlines() if "contradiction" in line]

    await store("n1", x="10", y="90")
    await store("n2", x="80", y="90")
    assert await shown() == ["contradiction: m of n1: 10 by x, and 90 by y"]
    await put_state(bus, "x", metrics={"m": SourceMetric(nodes=2, tolerance=0.1)}, last_success=now)
    assert await shown() == [
        "contradiction: m of n1: 10 by x, and 90 by y",
        "contradiction: m of n2: 80 by x, and 90 by y",
    ]
    done = await tas("get", "sources", "--json", "--bus", server.url)
    assert len(done.json[0]["contradictions"]) == 2
