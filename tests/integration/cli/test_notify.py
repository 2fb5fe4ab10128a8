"""`tas run all --sinks`: from a published sample to an event at a sink, as a user sees it."""

from pathlib import Path

import orjson

from tests.integration.cli.tas import FREE, HEALTH, Tas, demo_policy, policy_folder
from tests.integration.servers import eventually
from tests.integration.workers.notify.receiver import Receiver, receiving

POLICY = demo_policy("""\
    dontschedule:
      rules:
        - {metricname: health_metric, operator: Equals, target: 2}
""")


async def test_a_violation_reaches_a_sink_and_so_does_its_end(tas: Tas, tmp_path: Path) -> None:
    def nodes(receiver: Receiver, kind: str) -> list[str]:
        return [each.data["node"] for each in receiver.accepted if kind in each.json["type"]]

    async with receiving() as receiver, receiving() as added:
        sinks = tmp_path / "sinks.yaml"
        hook = {"type": "cloudevents", "url": receiver.url}
        sinks.write_bytes(orjson.dumps({"sinks": {"hook": hook}}))
        options = ("--cluster-name", "prod", *FREE)
        policies = policy_folder(tmp_path, POLICY)
        async with tas.running("run", "all", "--policies", str(policies), "--sinks", str(sinks), *options) as running:
            await running.ready()
            await tas("publish", "node-1", "health_metric=2")
            await eventually(lambda: "node-1" in nodes(receiver, "violation.started"))
            sinks.write_bytes(orjson.dumps({"sinks": {"hook": hook, "added": hook | {"url": added.url}}}))
            await tas("publish", "node-1", "health_metric=0")
            await eventually(lambda: "node-1" in nodes(receiver, "violation.ended"))
            await eventually(lambda: "node-1" in nodes(added, "violation.ended"))
        assert {each.json["source"] for each in receiver.accepted} == {"/telemetry-aware-scheduling/prod"}


async def test_a_wrong_file_of_sinks_is_one_line_and_exit_code_2(tas: Tas, tmp_path: Path) -> None:
    sinks = tmp_path / "sinks.yaml"
    sinks.write_text("sinks: {team: {type: chat}, k: {type: kubernetes-events}}")
    done = await tas("run", "notify", "--bus", "nats://127.0.0.1:9", "--sinks", str(sinks), *HEALTH)
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert "sinks.team" in line
