"""`tas run all` with three real sources that serve numbers that mean no value: from the source to what people see."""

import json
import re
import time
from pathlib import Path
from typing import Any

import aiohttp

from bus.buckets import SAMPLES
from bus.connection import Bus
from tests.integration.cli.tas import FREE, Tas, filter_request
from tests.integration.servers import answered, eventually
from tests.kubernetes.admin import Admin
from tests.sandbox import Sandbox
from tests.sources import writing
from tests.sources.answers import Answer, simulated_prometheus

QUERY = "max by (node, gpu) (DCGM_FI_DEV_GPU_TEMP)"
CONFIG = f"""
metrics:
  temperature: {{query: "{QUERY}", aggregate: max, max: 1000000000}}
  power: {{aggregate: sum, min: 0}}
"""
RULES = [
    {"metricname": "free", "operator": "LessThan", "target": 1000},
    {"metricname": "temperature", "operator": "GreaterThan", "target": 90},
    {"metricname": "power", "operator": "GreaterThan", "target": 500},
]


def vector(*series: tuple[str, str, str]) -> Answer:
    """An answer with the node, the card and the value of each series."""
    at = time.time()
    result = [{"metric": {"node": node, "gpu": gpu}, "value": [at, value]} for node, gpu, value in series]
    return Answer(json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode())


async def test_no_node_is_rejected_by_them_and_people_see_each_facts_n60(tas: Tas, tmp_path: Path) -> None:
    """node-1 has only blanks beside good values; node-2 is really hot."""
    (tmp_path / "sources.yaml").write_text(CONFIG)
    async with Sandbox.start(nodes=["node-1", "node-2"]) as sandbox, simulated_prometheus() as prometheus:
        kubeconfig = sandbox.kubeconfig(tmp_path / "kubeconfig")
        sandbox.metrics.set("free", "node-1", "-9223372036854775808m")
        sandbox.metrics.set("free", "node-2", "2147483632")  # a number of bytes, or a blank

        def serve(hot: str) -> None:
            blanks = ("9.223372036854776e+18", "1.40737488355328e+14", "2147483633")
            cold = [("node-1", str(gpu), value) for gpu, value in enumerate(("35", *blanks, "-9.223372036854776e+18"))]
            prometheus.answers[QUERY] = vector(*cold, ("node-2", "0", hot))

        serve("40")
        async with Admin.connect(kubeconfig) as admin:
            await admin.create_policy(
                "default", "demo-policy", strategies={"dontschedule": {"rules": RULES, "onStale": "pass"}}
            )
        command = [
            *("run", "all", "--kubeconfig", str(kubeconfig), "--period", "100ms", *FREE),
            *("--source", "custom-metrics", "--source", f"edge:prometheus={prometheus.url}"),
            *("--source", "remote-write=127.0.0.1:0", "--source-config", str(tmp_path / "sources.yaml")),
        ]
        async with tas.running(*command) as running:
            await running.ready()
            extender = (await running.logged("extender_listening"))["url"]
            receiver = (await running.logged("remote_write_listening"))["url"]
            began = time.time()

            async def write() -> None:
                """Of two cards of node-1 one has a blank, and of node-2 both have values that are too much together."""
                cards = [("node-1", "0", -(2.0**63)), ("node-1", "1", 300.0), ("node-2", "0", 300.0)]
                cards += [("node-2", "1", 300.0)]
                now = round(time.time() * 1000)
                sent = [
                    writing.series("power", (value, at), node=node, gpu=gpu)
                    for at in (now - 1000, now)
                    for node, gpu, value in cards
                ]
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(receiver, data=writing.body(sent), headers=writing.HEADERS) as written,
                ):
                    assert written.status in (204, 503)

            async def rejected() -> set[str]:
                await write()
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(f"{extender}/filter", json=filter_request("node-1", "node-2")) as answer,
                ):
                    nodes = (await answer.json())["FailedAndUnresolvableNodes"]
                    assert "node-1" not in nodes
                    return set(nodes)

            async def sources() -> dict[str, dict[str, Any]]:
                return {each["source"]: each for each in (await tas("get", "sources", "--json")).json}

            async def reasons(source: str, what: str) -> dict[str, str]:
                return {each["reason"]: each["example"] for each in (await sources()).get(source, {}).get(what, [])}

            async def are_shown() -> bool:
                await write()
                shown = {
                    source: await reasons(source, "refused") for source in ("custom-metrics", "edge", "remote-write")
                }
                return all("no value" in each.get("value", "") for each in shown.values())

            await eventually(are_shown, every=0.2)
            await eventually(lambda: _is(rejected, {"node-2"}), every=0.1)  # by its power
            assert (await reasons("custom-metrics", "suspect"))["blank"].startswith(
                "free of node-2: value = '2147483632'"
            )

            # For one scrape node-2 has 644245923 degrees, of which `max` of this metric says nothing.
            serve("644245923")
            await eventually(lambda: _is_value(tas, "644245923"), every=0.1)
            serve("41")

            async def jumped() -> bool:
                return "temperature of node-2: value = 644245923" in (await reasons("edge", "suspect")).get("jump", "")

            await eventually(jumped, every=0.2)

            # Another source contradicts the adapter.
            assert (await tas("publish", "node-2", "free=64Gi", "--source", "agent")).code == 0
            done = await tas("get", "sources")
            assert "contradiction: free of node-2: 2147483632 by custom-metrics, and 68719476736 by agent" in done.out
            done = await tas("publish", "node-1", "free=-9223372036854775808m")
            assert done.code == 1
            assert "means that there is no value" in done.err

            # A program that publishes by itself, and does not ask what is refused.
            blank = b'{"metrics": {"free": "-9223372036854775808m"}}'
            async with Bus.connect((await tas("bus", "url")).out.strip(), name="program", streams=()) as bus:
                await bus.wait_connected()
                await answered(lambda: bus.publish(SAMPLES, "tas.samples.node-1.program", blank))

            async def is_shown() -> bool:
                found = (await sources()).get("program", {"refusedSamples": []})
                return [(each["reason"], each["count"]) for each in found["refusedSamples"]] == [("value", 1)]

            await eventually(is_shown, every=0.5)
            done = await tas("get", "sources")
            assert re.search(r"program +publishes .*1 refused when they came \(value\), the last", done.out)
            assert "1 refused when they came, as sample node-1/program: metrics.free" in (await tas("status")).out
            done = await tas("doctor", "--kubeconfig", str(kubeconfig), "--json")
            found = {each["check"]: each["severity"] for each in done.json if each["check"].startswith("metrics.")}
            assert found["metrics.values"] == found["metrics.agree"] == "warning"
            assert time.time() - began < 600  # what was found before is no finding any more
            await running.end()


async def _is(question: Any, answer: object) -> bool:
    return bool(await question() == answer)


async def _is_value(tas: Tas, value: str) -> bool:
    nodes = (await tas("get", "nodes", "--json")).json
    return value in json.dumps(nodes)
