"""`tas run all` with Prometheus as source: from its values to an answer of the extender."""

import json
import time
from pathlib import Path

import aiohttp
import pytest

from tests.integration.cli.tas import FREE, Tas, demo_policy, filter_request, policy_folder
from tests.integration.servers import eventually
from tests.sources import writing
from tests.sources.answers import golden, simulated_prometheus

POLICY = demo_policy("""\
    dontschedule:
      rules:
        - {metricname: health_metric, operator: GreaterThan, target: 2, source: edge}
        - {metricname: load, operator: GreaterThan, target: 8}
""")


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    return policy_folder(tmp_path, POLICY)


async def test_a_polled_and_a_remote_write_source_both_change_what_the_extender_answers(
    tas: Tas, policies: Path, tmp_path: Path
) -> None:
    configuration = tmp_path / "sources.yaml"
    configuration.write_text("metrics: {health_metric: {query: my own query}, load: {series: node_load1}}")
    async with simulated_prometheus() as prometheus:
        at = time.time()
        prometheus.answers["my own query"] = golden("vector", evaluated=at)
        command = [
            *("run", "all", "--bus", "embedded", "--policies", str(policies), "--period", "100ms", *FREE),
            *("--source", f"edge:prometheus={prometheus.url.replace('://', '://tas:hunter2@')}"),
            *("--source", "remote-write=127.0.0.1:0", "--source-config", str(configuration)),
        ]
        async with tas.running(*command) as running:
            await running.ready()
            extender = (await running.logged("extender_listening"))["url"]
            receiver = (await running.logged("remote_write_listening"))["url"]
            sent = [
                writing.series("node_load1", (load, round(at * 1000)), node=node)
                for node, load in (("node-1", 1.0), ("node-2", 9.0))
            ]

            async def written_and_rejected() -> dict[str, str]:
                body = filter_request("node-1", "node-2", "node-3")
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(f"{extender}/filter", json=body) as answer,
                    session.post(receiver, data=writing.body(sent), headers=writing.HEADERS) as written,
                ):
                    assert written.status in (204, 503)
                    nodes: dict[str, str] = (await answer.json())["FailedAndUnresolvableNodes"]
                    return nodes

            async def rejects(*names: str) -> bool:
                return set(await written_and_rejected()) == set(names)

            await eventually(lambda: rejects("node-2"), every=0.1)
            sick = json.loads(golden("vector", evaluated=at + 1).body)
            sick["data"]["result"][0]["value"][1] = "3"
            prometheus.answers["my own query"] = golden("vector")._replace(body=json.dumps(sick).encode())
            await eventually(lambda: rejects("node-1", "node-2"), every=0.1)

            async def states_are_listed() -> bool:
                await written_and_rejected()  # nodes of remote write count for a minute
                listed = await tas("get", "sources", "--json")
                # Edge is polled for the load as well, and has no value.
                return {each["source"]: each["state"] for each in listed.json} == {
                    "edge": "partial",
                    "remote-write": "healthy",
                }

            await eventually(states_are_listed, every=0.5)
            code = await running.end()
        assert code == 0, running.log
        assert "hunter2" not in json.dumps(running.log)
        assert not running.noise


async def test_an_invalid_source_configuration_is_reported_before_anything_starts(
    tas: Tas, policies: Path, tmp_path: Path
) -> None:
    configuration = tmp_path / "sources.yaml"
    configuration.write_text("metrics: {load: {agregate: max}}")
    common = ("run", "all", "--bus", "embedded", "--policies", str(policies), *FREE)
    done = await tas(
        *common,
        "--source",
        "prometheus=http://127.0.0.1:1",
        "--source-config",
        str(configuration),
        "--log-format",
        "json",
    )
    assert done.code == 2
    assert f"source configuration {configuration}: metrics.load.agregate = <str>: is not a known field" in done.err
