"""Sources that contradict each other, as a metric, over a real nats-server."""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import NODES, POLICIES
from bus.connection import Bus
from bus.kinds import SOURCE_STATES
from bus.records.policies import PolicyRecord, encode_policy
from bus.subjects import policy_key
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.sources.state import SourceMetric, SourceState
from tests.integration.bus.limits import long_limits
from tests.integration.servers import answered, eventually
from tests.integration.tables import put_tables
from tests.integration.workers.evaluate.closed import with_rights_of_before
from tests.integration.workers.running import epoch_on, put, running
from workers.evaluate import compared_sources
from workers.evaluate.compared_sources import MAX_METRICS, ComparedSources
from workers.following.followed_view import FollowedView
from workers.following.synced import write_synced

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_sources, "CHECK_SECONDS", 0.05)


class Compared:
    """Two sources with values of some nodes, and what is said about them."""

    def __init__(self, bus: Bus, followed: FollowedView) -> None:
        self.bus = bus
        self.followed = followed
        self.registry = CollectorRegistry()
        self.worker = ComparedSources(bus, followed, registry=self.registry)

    async def use(self, *metrics: str) -> None:
        rules = [{"metricname": metric, "operator": "GreaterThan", "target": 1} for metric in metrics]
        policy, _ = parse_policy(PolicyKey("default", "p"), {"strategies": {"dontschedule": {"rules": rules}}})
        record = PolicyRecord(policy=policy, uid="u", generation=1)
        await put(self.bus, POLICIES, policy_key(policy.key), encode_policy(record))
        for bucket in (NODES, POLICIES):
            epoch = await epoch_on(self.bus, bucket)
            await answered(partial(write_synced, self.bus, bucket, epoch, count=1, writer="test", cluster=False))

    async def give(self, source: str, values: Mapping[str, Mapping[str, str]]) -> None:
        await put_tables(self.bus, values, source=source)

    def series(self) -> dict[str, tuple[float, float]]:
        return {metric: self._of(metric) for metric in self._metrics()}

    def _metrics(self) -> Iterator[str]:
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name == "tas_metric_contradictions":
                    yield sample.labels["metric"]

    def _of(self, metric: str) -> tuple[float, float]:
        names = ("tas_metric_contradictions", "tas_metric_nodes_compared")
        one, other = (self.registry.get_sample_value(name, {"metric": metric}) for name in names)
        assert one is not None
        assert other is not None
        return one, other


async def test_contradictions_have_series_while_they_last_and_tolerances_count(bus: Bus) -> None:
    followed = FollowedView(bus, default_stale_after=60.0)
    compared = Compared(bus, followed)
    await compared.use("load", "heat")
    state = SourceState(kind="k", holder="h", since=0, time=0, metrics={"heat": SourceMetric(nodes=3, tolerance=0.9)})
    await answered(lambda: SOURCE_STATES.put(bus, "one", state, revision=0, read_at=time.monotonic(), ttl_seconds=60))
    one = {node: {"load": "10", "heat": "20", "unused": "1"} for node in ("a", "b", "c")}
    await compared.give("one", one)
    async with running(followed), running(compared.worker):
        other = {node: {"load": "90", "heat": "90", "unused": "9"} for node in ("a", "b")} | {"c": {"load": "11"}}
        await compared.give("two", other)
        await eventually(lambda: compared.series() == {"load": (2.0, 3.0)})
        await compared.give("two", {node: {"load": "10", "heat": "1"} for node in ("a", "b", "c")})
        await eventually(lambda: compared.series() == {"heat": (3.0, 3.0)})
        await compared.give("two", one)
        await eventually(lambda: compared.series() == {})


async def test_metrics_of_one_source_each_cost_no_read_and_the_number_of_series_is_bounded(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly every installation is the first one: then no value is read."""
    followed = FollowedView(bus, default_stale_after=60.0)
    compared = Compared(bus, followed)
    names = [f"m{number:02}" for number in range(MAX_METRICS + 5)]
    await compared.use(*names)
    looked_at: list[str] = []
    samples = followed.view.samples

    def counted(node: str) -> object:
        looked_at.append(node)
        return samples(node)

    monkeypatch.setattr(followed.view, "samples", counted)
    await compared.give("one", {"a": dict.fromkeys(names, "1"), "b": {"unused": "1"}})
    await compared.give("two", {"b": dict.fromkeys(names, "9"), "a": {"unused": "9"}})
    async with running(followed), running(compared.worker):
        await eventually(lambda: followed.view.sampled_nodes == {"a", "b"})
        await compared.worker._compared()
        assert looked_at == []
        await compared.give("two", {"a": dict.fromkeys(names, "9"), "b": {names[-1]: "9"}})
        await compared.give("one", {"a": dict.fromkeys(names, "1"), "b": {names[-1]: "1"}})
        await eventually(lambda: compared.series().get(names[-1]) == (2.0, 2.0))
        assert compared.series().keys() == {names[-1], *names[: MAX_METRICS - 1]}, "the worst ones"


async def test_on_a_closed_bus_with_the_rights_of_before_nothing_is_compared_and_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared_sources, "FORBIDDEN_SECONDS", 0.05)
    tries = 0
    entries = SOURCE_STATES.entries

    async def counted(_: object, bus: Bus) -> object:
        nonlocal tries
        tries += 1
        return await entries(bus)

    monkeypatch.setattr(type(SOURCE_STATES), "entries", counted)
    async with with_rights_of_before(tmp_path, "SOURCES") as (everything, own):
        followed = FollowedView(own, default_stale_after=60.0)
        worker = ComparedSources(own, followed, registry=CollectorRegistry())
        compared = Compared(everything, followed)
        await compared.use("load")
        await compared.give("one", {"a": {"load": "1"}})
        await compared.give("two", {"a": {"load": "9"}})
        with capture_logs() as logs:
            async with running(followed), running(worker):
                await eventually(lambda: tries > 2)
        assert (worker.found, own.problem) == ({}, None)
        (said,) = [line for line in logs if line["event"] == "sources_not_compared"]
        assert said["log_level"] == "info"
