"""The commands of people on a closed bus: each works with the rights of its role, and is refused nothing."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.kinds import BREAKER_RECORDS, EXPECTED_NUMBERS, NODE_FACTS, POLICY_RECORDS, PROCESSES
from bus.records.nodes import NodeFacts
from bus.records.policies import PolicyRecord
from bus.subjects import ProcessKey
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.processes.expected import Expected
from tas.processes.process import Process
from tas.verdict.freeze import Breaker, Trip
from tests.integration.bus.closed import Closed, closed
from tests.integration.cli.tas import Tas
from tests.integration.servers import eventually

__all__ = ["closed"]

NODE, POLICY = "node-1", PolicyKey("default", "hot")
SPEC = {"strategies": {"deschedule": {"rules": [{"metricname": "load", "operator": "GreaterThan", "target": 5}]}}}


async def put_records(bus: Bus) -> None:
    """A node, a policy whose breaker has tripped, and a process of which more should run."""
    now = time.time()
    policy, problems = parse_policy(POLICY, SPEC)
    record = PolicyRecord(policy=policy, uid="u", generation=1, problems=problems)
    facts = NodeFacts(uid="u", labels={}, created=datetime.fromtimestamp(now, UTC))
    tripped = Breaker(nodes={NODE: 7}, trip=Trip(since=now, limit=10, wanted=11, selected=30))
    process = Process(version="1", name="h-1", started=now, workers={"labels": ""})
    await POLICY_RECORDS.put(bus, POLICY, record, revision=0, read_at=time.monotonic())
    await NODE_FACTS.put(bus, NODE, facts, revision=0, read_at=time.monotonic())
    await BREAKER_RECORDS.put(bus, POLICY.name, tripped, revision=0, read_at=time.monotonic())
    await EXPECTED_NUMBERS.put(bus, "labels", Expected(count=3), revision=0, read_at=time.monotonic())
    await PROCESSES.put(bus, ProcessKey("labels", "a"), process, revision=0, read_at=time.monotonic())


@pytest.mark.parametrize("role", ["reader", "operator"])
async def test_each_command_of_a_person_is_refused_nothing(closed: Closed, tas: Tas, tmp_path: Path, role: str) -> None:
    tas.environment |= {"TAS_BUS": closed.server.url, "TAS_BUS_CREDENTIALS": str(closed.user(role, "ann"))}
    await closed.with_streams()
    async with closed.connected_as(closed.owner()) as owner:
        await put_records(owner)
        file = tmp_path / "hot.yaml"
        file.write_text(
            "apiVersion: telemetry.intel.com/v1alpha1\nkind: TASPolicy\nmetadata: {name: hot}\n"
            "spec: {strategies: {deschedule: {rules: [{metricname: load, operator: GreaterThan, target: 5}]}}}\n"
        )
        for words, shown in (
            (("get", "nodes"), NODE),
            (("get", "policies"), POLICY.name),
            (("get", "verdicts"), ""),
            (("get", "sources"), ""),
            (("get", "gpus"), ""),
            (("events",), ""),
            (("explain", "node", NODE), POLICY.name),
            (("trace", "load", NODE), NODE),
            (("policy", "impact", str(file)), ""),
            (("status",), "tripped"),
            (("doctor",), "bus"),
            (("support", "--output", str(tmp_path / "archive")), ""),
        ):
            done = await tas(*words)
            assert shown in done.out, (words, done)
            assert not [text for text in ("may not", "permission", "refuses:") if text in done.err], (words, done)
        async with tas.running("events", "--follow"), tas.running("top"):

            async def reads_both() -> bool:
                consumers = (await owner.api("STREAM.INFO.EVENTS"))["state"]["consumer_count"]
                view = (await owner.api("STREAM.INFO.KV_NODES"))["state"]["consumer_count"]
                return bool(consumers and view)

            await eventually(reads_both)
        if role == "operator":
            for words, shown in (
                (("pause", "--reason", "test"), "paused"),
                (("resume",), "resumed"),
                (("reset", POLICY.name), ""),
                (("release", NODE), NODE),
                (("dismiss", "labels"), "of labels 1 should run"),
                (("publish", NODE, "load=7"), ""),
            ):
                done = await tas(*words)
                assert (done.code, shown in done.out) == (0, True), (words, done)
            assert (await owner.epoch(SAMPLES)).last_sequence
            assert (await BREAKER_RECORDS.get(owner, POLICY.name)).readable() == Breaker(nodes={NODE: 7}, trip=None)
    assert closed.violations() == []
