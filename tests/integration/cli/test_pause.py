"""`tas pause`, `tas resume` and `tas reset`, and what `tas get policies` shows of them."""

import time

import pytest

from bus.buckets import PAUSED
from bus.connection import Bus
from bus.kinds import BREAKER_RECORDS, PAUSE_RECORDS, POLICY_RECORDS
from bus.records.policies import PolicyRecord
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.verdict.freeze import ALL, Breaker, Trip
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server

KEY = PolicyKey("default", "p")
TRIP = Trip(since=time.time(), limit=10, wanted=11, selected=30)


@pytest.fixture
def tas(tas: Tas, server: Server) -> Tas:
    """A user whose TAS_BUS is the test's server."""
    tas.environment["TAS_BUS"] = server.url
    return tas


async def put_policy(bus: Bus) -> None:
    rule = {"metricname": "m", "operator": "Equals", "target": 1}
    spec = {"breaker": {"maxPercent": 20}, "strategies": {"deschedule": {"rules": [rule]}}}
    policy, problems = parse_policy(KEY, spec)
    record = PolicyRecord(policy=policy, uid="u", generation=1, problems=problems)
    await POLICY_RECORDS.put(bus, KEY, record, revision=0, read_at=time.monotonic())


async def put_breaker(bus: Bus, key: str) -> int:
    record = Breaker(nodes={"a": 7}, trip=TRIP)
    return await BREAKER_RECORDS.put(bus, key, record, revision=0, read_at=time.monotonic())


async def test_a_pause_is_shown_with_who_and_why_until_it_ends(tas: Tas, bus: Bus) -> None:
    await put_policy(bus)
    assert (await tas("resume")).out == "not paused\n"
    done = await tas("pause", "--reason", "upgrade")
    assert (done.code, done.out) == (0, "paused: no label is set or removed until: tas resume\n")
    again = await tas("pause", "--reason", "another")
    assert again.code == 0
    assert again.out.startswith("already paused by ")
    assert again.out.endswith(": upgrade\n")
    shown = (await tas("get", "policies", "--json")).json[0]
    assert [each["value"] for each in shown["problems"]] == ["Paused"]
    assert shown["spec"]["breaker"] == {"maxPercent": 20}
    assert (await tas("resume")).out == "resumed\n"
    assert not (await PAUSE_RECORDS.get(bus, PAUSED)).present
    assert (await tas("get", "policies", "--json")).json[0]["problems"] == []


@pytest.mark.parametrize(("key", "arguments"), [("p", ("default/p",)), ("p", ("p",)), (ALL, ("--all",))])
async def test_a_reset_ends_a_trip_and_keeps_the_nodes(
    tas: Tas, bus: Bus, key: str, arguments: tuple[str, ...]
) -> None:
    await put_policy(bus)
    await put_breaker(bus, key)
    assert "11 of 30 nodes were to have labels, at most 10 may" in (await tas("get", "policies")).out
    assert (await tas("reset", *arguments)).code == 0
    assert (await BREAKER_RECORDS.get(bus, key)).readable() == Breaker(nodes={"a": 7})
    again = await tas("reset", *arguments)
    assert again.code == 1
    assert "has not tripped" in again.out


async def test_a_reset_replaces_a_record_that_cannot_be_read(tas: Tas, bus: Bus) -> None:
    bucket = BREAKER_RECORDS.bucket
    await put_policy(bus)
    await bus.put(bucket, "p", b"no JSON", revision=0, read_at=time.monotonic())
    assert "the breaker of this policy cannot be read" in (await tas("get", "policies")).out
    assert (await tas("reset", "p")).code == 0
    assert (await BREAKER_RECORDS.get(bus, "p")).readable() == Breaker()


async def test_a_reset_refuses_what_is_no_policy(tas: Tas) -> None:
    for name in ("a/b/c", "/p", "_all"):
        refused = await tas("reset", name)
        assert refused.code == 2
        assert "is not the name of a policy" in refused.err


async def test_a_reset_needs_a_policy_or_all(tas: Tas) -> None:
    done = await tas("reset")
    assert done.code == 2
    assert "give a policy, or --all" in done.err
