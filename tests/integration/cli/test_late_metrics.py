"""A metric that comes late while another one of its source is fresh: what says so, from the view to the commands."""

import time
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import LEASES, NODES, POLICIES, SOURCES
from bus.connection import Bus
from bus.kinds import NODE_TABLES, PROCESSES
from bus.records.policies import PolicyRecord, encode_policy
from bus.records.sources import encode_source_state
from bus.subjects import ProcessKey, policy_key
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.processes.process import Process
from tas.samples import pace
from tas.samples.table import merge_tables
from tas.sources.state import SourceMetric, SourceState
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server, answered, eventually
from tests.integration.tables import tables
from tests.integration.workers.running import epoch_on, put, running
from workers.evaluate import late_metrics
from workers.evaluate.worker import Evaluate
from workers.following.followed_view import FollowedView
from workers.following.synced import write_synced
from workers.runtime import Supervisor

LATE_SECONDS = 30.0
"""Longer than a busy machine stands still."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_metrics, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(late_metrics, "SHARE", 1)
    monkeypatch.setattr(pace, "LEARNED_SECONDS", 0.2)
    monkeypatch.setattr(pace, "LATE_SECONDS", LATE_SECONDS)


async def prepare(bus: Bus) -> None:
    rules = [{"metricname": metric, "operator": "GreaterThan", "target": 1} for metric in ("heat", "load")]
    policy, _ = parse_policy(PolicyKey("default", "p"), {"strategies": {"dontschedule": {"rules": rules}}})
    record = PolicyRecord(policy=policy, uid="u", generation=1)
    await put(bus, POLICIES, policy_key(policy.key), encode_policy(record))
    for bucket in (NODES, POLICIES):
        epoch = await epoch_on(bus, bucket)
        await answered(partial(write_synced, bus, bucket, epoch, count=1, writer="test", cluster=False))
    metrics = dict.fromkeys(("heat", "load"), SourceMetric(nodes=1))
    state = SourceState(
        kind="custom-metrics", holder="h", since=1.0, time=time.time(), period=1.0, polls=1, metrics=metrics
    )
    await put(bus, SOURCES, "adapter", encode_source_state(state))
    await answered(
        lambda: bus.put(LEASES, "collect.adapter", b"{}", revision=0, read_at=time.monotonic(), ttl_seconds=600)
    )


async def store(bus: Bus, *, heat_measured: float) -> None:
    """As `materialize` does: the newest value of each metric."""
    ((key, heat),) = tables({"node-1": {"heat": "1"}}, source="adapter", ago=time.time() - heat_measured)
    ((_, load),) = tables({"node-1": {"load": "1"}}, source="adapter")
    merged = merge_tables(heat, load)

    async def write() -> None:
        revision = (await NODE_TABLES.get(bus, key)).revision
        await NODE_TABLES.put(bus, key, merged, revision=revision, read_at=time.monotonic())

    await answered(write)


async def test_the_view_the_record_of_the_process_and_each_command_name_the_late_metric(
    tas: Tas, server: Server, bus: Bus
) -> None:
    """All said "healthy": the newest value of the source was fresh."""
    tas.environment["TAS_BUS"] = server.url
    await prepare(bus)
    registry = CollectorRegistry()
    evaluate = Evaluate(bus, FollowedView(bus, default_stale_after=120.0, verdicts=True), registry=registry)
    supervisor = Supervisor([evaluate], registry=registry, health=None)

    def series() -> float | None:
        return registry.get_sample_value("tas_metric_late_seconds", {"metric": "heat", "source": "adapter"})

    async with running(evaluate):

        async def is_known() -> bool:
            await store(bus, heat_measured=time.time())
            return any(each.every for each in evaluate._late._paces._paces.values())

        await eventually(is_known)
        assert (series(), supervisor.late_metrics()) == (None, [])

        stopped = time.time() - 3 * LATE_SECONDS  # so nothing has to wait for the test

        async def is_late() -> bool:
            await store(bus, heat_measured=stopped)
            return series() is not None

        await eventually(is_late)
        late = supervisor.late_metrics()
        assert [(each.metric, each.source, each.others_come) for each in late] == [("heat", "adapter", True)]
        key = ProcessKey("evaluate", "h")
        process = Process(version="1", name="h", started=1.0, workers={"evaluate": ""}, late_metrics=late)
        await answered(lambda: PROCESSES.put(bus, key, process, revision=0, read_at=time.monotonic(), ttl_seconds=600))
        said = "the newest value of heat by adapter is"
        (source,) = (await tas("get", "sources", "--json")).json
        assert (source["state"], source["late"].startswith(said)) == ("late", True)
        done = await tas("status", "--json")
        (finding,) = [each["what"] for each in done.json["findings"] if each["check"] == "metrics.late"]
        assert (finding.startswith(said), done.code) == (True, 1)
        assert [(each["source"], each["state"]) for each in done.json["sources"]] == [("adapter", "late")]

        async def is_well_again() -> bool:
            await store(bus, heat_measured=time.time())
            return series() is None and not supervisor.late_metrics()

        await eventually(is_well_again)
