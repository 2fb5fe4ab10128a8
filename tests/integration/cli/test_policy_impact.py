"""`tas policy impact`: its exit codes and what it prints, with a real nats-server."""

import json
from pathlib import Path

import pytest

from bus.buckets import BREAKERS, NODES, POLICIES, VERDICTS
from bus.connection import Bus
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server
from tests.integration.tables import put_tables

MANIFEST = """
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {name: hot, namespace: default}
spec:
  strategies:
    deschedule:
      rules: [{metricname: health, operator: Equals, target: 1}]
"""


@pytest.fixture
def tas(tas: Tas, server: Server) -> Tas:
    """A user whose TAS_BUS is the test's server."""
    tas.environment["TAS_BUS"] = server.url
    return tas


async def sequences(bus: Bus) -> list[int]:
    return [(await bus.epoch(bucket)).last_sequence for bucket in (BREAKERS, NODES, POLICIES, VERDICTS)]


async def test_a_pipeline_learns_by_the_exit_code_whether_the_breaker_would_trip(
    tas: Tas, bus: Bus, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(MANIFEST)
    nothing = await tas("policy", "impact", str(file))
    assert nothing.code == 3
    assert "not known" in nothing.err
    await put_tables(bus, {f"node-{number}": {"health": "1" if number < 11 else "0"} for number in range(30)})
    before = await sequences(bus)
    trips = await tas("policy", "impact", str(file))
    assert trips.code == 1
    assert "  the breaker of hot WOULD TRIP: 11 of 30 nodes, at most 10 may have labels\n" in trips.out
    document = await tas("policy", "impact", str(file), "--output", "json")
    assert document.code == 1
    (found,) = json.loads(document.out)
    assert (found["policy"], found["trips"], found["known"], len(found["labels"])) == ("default/hot", True, True, 11)
    assert (await tas("policy", "impact", str(file), "--breaker", "50%,1")).code == 0
    assert await sequences(bus) == before, "it changes nothing"


async def test_a_file_that_is_no_policy_ends_with_2_and_a_bus_that_does_not_answer_with_3(
    tas: Tas, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    for content, text in (
        (MANIFEST.replace("Equals", "Roughly"), "policy default/hot: spec.strategies.deschedule.rules[0].operator = "),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}", "holds no policy"),
        ("{", "content = "),
        (MANIFEST + "---" + MANIFEST, "is there twice"),
    ):
        file.write_text(content)
        wrong = await tas("policy", "impact", str(file))
        assert wrong.code == 2, content
        assert text in wrong.err
    assert (await tas("policy", "impact", str(tmp_path / "none.yaml"))).code == 2
    file.write_text(MANIFEST)
    tas.long_limits = False
    tas.environment["TAS_BUS"] = "nats://127.0.0.1:1"
    unreachable = await tas("policy", "impact", str(file))
    assert unreachable.code == 3
    assert "no bus answers" in unreachable.err
