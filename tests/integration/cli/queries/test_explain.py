"""`tas explain policy|pod` and `/debug/explain`: they agree with the answers of the extender."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.integration.cli.tas import FREE, Running, Tas, demo_policy, filter_request, policy_folder
from tests.integration.servers import eventually

POLICY = demo_policy("""\
    dontschedule:
      rules:
        - {metricname: health_metric, operator: Equals, target: 2}
    scheduleonmetric:
      rules:
        - {metricname: load1, operator: LessThan}
""")
NODES = ("node-1", "node-2", "node-3")


@pytest.fixture
async def everything(tas: Tas, tmp_path: Path) -> AsyncIterator[Running]:
    """`tas run all`, with `/debug/explain` also on the extender's port; node-1 violates, node-3 has no load1."""
    folder = policy_folder(tmp_path, POLICY)
    async with tas.running("run", "all", "--policies", str(folder), *FREE, "--debug-explain", "on") as running:
        await running.ready()
        for node, health, load in (("node-1", 2, 1), ("node-2", 0, 5), ("node-3", 0, 3)):
            metrics = (f"health_metric={health}", f"load1={load}")[: 1 if node == "node-3" else 2]
            assert (await tas("publish", node, *metrics)).code == 0

        async def has_all_samples() -> bool:
            nodes = (await debug(running, "policy=default/demo-policy"))["nodes"]
            values = {
                node: [rule["value"] for strategy in each["strategies"] for rule in strategy["rules"]]
                for node, each in nodes.items()
            }
            return values == {"node-1": ["2", "1"], "node-2": ["0", "5"], "node-3": ["0", None]}

        await eventually(has_all_samples)
        yield running


async def extender(running: Running) -> str:
    url: str = (await running.logged("extender_listening"))["url"]
    return url


async def answer(running: Running, verb: str, **changes: Any) -> Any:
    url = await extender(running)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/{verb}", json=filter_request(*NODES) | changes) as response,
    ):
        assert response.status == 200
        return await response.json()


async def debug(running: Running, query: str) -> Any:
    status, text = await running.health(f"/debug/explain?{query}")
    assert status == 200, text
    return json.loads(text)


async def test_a_pod_is_explained_as_it_is_answered(tas: Tas, everything: Running) -> None:
    filtered = await answer(everything, "filter")
    scored = await answer(everything, "prioritize", NodeNames=filtered["NodeNames"])
    health = (await everything.logged("health_listening"))["url"].removeprefix("http://")
    command = ("explain", "pod", "p", "--policy", "demo-policy", "--extender-health", health)
    done = await tas(*command, "--json")
    assert done.code == 0, done.err
    candidates = {each["node"]: each for each in done.json["now"]["candidates"]}
    assert {node for node, each in candidates.items() if each["passes"]} == set(filtered["NodeNames"])
    assert candidates["node-1"]["reason"] == filtered["FailedAndUnresolvableNodes"]["node-1"]
    assert {node: each["score"] for node, each in candidates.items() if each["passes"]} == {
        each["Host"]: each["Score"] for each in scored
    }
    (dontschedule, scheduleonmetric) = candidates["node-2"]["policy"]["strategies"]
    assert (dontschedule["rules"][0]["value"], dontschedule["rules"][0]["source"]) == ("0", "cli")
    assert scheduleonmetric["rules"][0]["age_seconds"] >= 0
    answered = [(each["verb"], each["candidates"], each["passed"]) for each in done.json["answered"]]
    assert answered[:2] == [("prioritize", 2, 2), ("filter", 3, 2)]

    done = await tas(*command)
    assert re.search(r"^node-2 +passes +10 +dontschedule +health_metric Equals 2 +0 ", done.out, re.MULTILINE)
    assert re.search(r"^node-1 +Node violates demo-policy: health_metric Equals 2 +- ", done.out, re.MULTILINE)
    assert re.search(r"filter +200 +decided +3 +2 +0 +1 × Node violates demo-policy", done.out)

    assert re.search(r"node-1 +- +health_metric Equals 2 +2 +[0-9.]+s +cli *$", done.out, re.MULTILINE)

    # Without a cluster the policy of the pod is known from the last answers.
    done = await tas("explain", "pod", "p", "--extender-health", health)
    assert (done.code, done.err) == (0, "")
    assert "pod default/p, policy default/demo-policy: decided" in done.out


async def test_without_the_bus_a_pod_is_explained_from_the_view_of_the_extender(tas: Tas, everything: Running) -> None:
    await answer(everything, "filter")
    health = (await everything.logged("health_listening"))["url"].removeprefix("http://")
    away = ("--bus", "nats://127.0.0.1:1", "--extender-health", health)
    tas.long_limits = False  # no bus ever answers

    done = await tas("explain", "pod", "p", *away)

    assert done.code == 0
    assert "no bus answers at nats://127.0.0.1:1" in done.err
    assert f"The extender at {health} answers; this is from its view" in done.err
    assert "Start one" not in done.err
    assert re.search(r"^node-1 +Node violates demo-policy: health_metric Equals 2 +- ", done.out, re.MULTILINE)
    assert re.search(r"filter +200 +decided +3 +2 ", done.out)

    done = await tas("explain", "pod", "q", *away)
    assert (done.code, done.out) == (1, "")
    assert "last answers contain none for pod default/q: give --policy NAME" in done.err


async def test_a_pod_without_requests_of_the_scheduler_has_no_answers(tas: Tas, everything: Running) -> None:
    health = (await everything.logged("health_listening"))["url"].removeprefix("http://")
    done = await tas("explain", "pod", "other/q", "--policy", "demo-policy", "--extender-health", health)
    assert done.code == 0
    assert "pod other/q, policy other/demo-policy: policy_not_found" in done.out
    assert "contain none for this pod" in done.out
    done = await tas("explain", "pod", "q", "--extender-health", health)
    assert done.code == 1
    assert "pod default/q: not known" in done.err
    assert "give --extender-health with their health port" in done.err


async def test_a_pod_without_a_policy_has_its_answers(tas: Tas, everything: Running) -> None:
    without = filter_request(*NODES)["Pod"] | {"metadata": {"namespace": "default", "name": "q"}}
    assert len((await answer(everything, "filter", Pod=without))["NodeNames"]) == 3
    health = (await everything.logged("health_listening"))["url"].removeprefix("http://")
    done = await tas("explain", "pod", "q", "--extender-health", health)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("last answers:")
    assert re.search(r"filter +200 +[a-z_]+ +3 +3 ", done.out)


async def test_without_an_extender_the_rest_is_explained(tas: Tas, everything: Running) -> None:
    done = await tas("explain", "pod", "p", "--policy", "demo-policy", "--extender-health", "127.0.0.1:1")
    assert done.code == 0
    assert (
        "no last answers: 127.0.0.1:1 (--extender-health, TAS_EXTENDER_HEALTH): "
        "cannot connect to 127.0.0.1:1: Connection refused" in done.err
    )
    assert "node-2" in done.out


async def test_another_port_than_the_health_port_of_the_extender_is_named(tas: Tas, everything: Running) -> None:
    listen = (await everything.logged("extender_listening"))["url"].removeprefix("http://").partition("/")[0]
    done = await tas("explain", "pod", "p", "--policy", "demo-policy", "--extender-health", listen)
    assert done.code == 0
    assert f"no last answers: {listen} (--extender-health, TAS_EXTENDER_HEALTH): 405" in done.err
    assert "give the health port of the extender, by default 127.0.0.1:9002" in done.err


async def test_the_explanation_of_a_policy_lists_violating_nodes_first(tas: Tas, everything: Running) -> None:
    done = await tas("explain", "policy", "demo-policy", "--json")
    assert done.json["total"] == 3
    states = {node: each["strategies"][0]["state"] for node, each in done.json["nodes"].items()}
    assert states == {"node-1": "violated", "node-2": "met", "node-3": "met"}
    assert next(iter(states)) == "node-1"
    explained = await debug(everything, "policy=default/demo-policy")
    assert {node: each["strategies"][0]["state"] for node, each in explained["nodes"].items()} == states
    done = await tas("explain", "policy", "default/demo-policy")
    assert "dontschedule: 1 violated, 2 met, 0 unknown" in done.out
    done = await tas("explain", "policy", "nobody")
    assert done.code == 1
    assert "policy default/nobody: does not exist" in done.err


async def test_invalid_parameters_of_debug_explain_are_refused(everything: Running) -> None:
    for query, message in (
        ("", "one of"),
        ("node=a&pod=default/p", "one of"),
        ("node=No_Node", "node = 'No_Node'"),
        ("policy=demo", "policy = 'demo': must be NAMESPACE/NAME"),
        ("pod=p", "pod = 'p': must be NAMESPACE/NAME"),
        ("pod=default/p&policy=not%20so", "policy = 'not so'"),
        (f"pod=default/p&nodes={','.join(f'n{number}' for number in range(101))}", "101 given"),
        ("metric=x", "'metric': not a parameter"),
    ):
        status, text = await everything.health(f"/debug/explain?{query}")
        assert (status, query) == (400, query)
        assert message in json.loads(text)["error"]


async def test_the_port_of_the_extender_explains_only_with_the_setting(tas: Tas, everything: Running) -> None:
    async def status(running: Running) -> int:
        base = (await extender(running)).removesuffix("/scheduler")
        url = f"{base}/debug/explain?node=node-1"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status

    assert await status(everything) == 200
    bus = (await everything.logged("bus_started"))["bus"]
    async with tas.running("run", "extender", "--bus", bus, *FREE) as without:
        assert await status(without) != 200
        assert (await without.health("/debug/explain?node=node-1"))[0] == 200


async def test_a_statistic_whose_window_is_not_covered_yet_says_so(tas: Tas, tmp_path: Path) -> None:
    policy = demo_policy("    dontschedule: {rules: [{metricname: 'cpu:mean:5m', operator: GreaterThan, target: 9}]}\n")
    folder = policy_folder(tmp_path, policy)
    async with tas.running("run", "all", "--policies", str(folder), *FREE) as running:
        await running.ready()
        assert (await tas("publish", "node-1", "cpu=1")).code == 0
        window = "the window of 300 s is not covered yet: the values of cpu span 0 s so far, 150 s are needed"

        async def says_so() -> bool:
            return f"\ncpu:mean:5m is unknown: windows: {window}\n" in (await tas("explain", "node", "node-1")).out

        await eventually(says_so)
        explained = await tas("explain", "node", "node-1", "--json")
        assert explained.json["unknown"] == {"cpu:mean:5m": [f"windows: {window}"]}
        assert f"cpu:mean:5m: {window}" in " ".join((await tas("get", "sources")).out.split())
