"""`tas run agents` as a process, with the environment of the original framework, and as docs/how-to/agents.md shows."""

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import aiohttp

from bus.buckets import NODES
from bus.connection import Bus
from bus.kinds import NODE_SAMPLES
from bus.records.nodes import encode_node_samples
from tas.samples.sample import Scrape
from tas.values.quantity import Quantity, parse_quantity
from tests.e2e.processes import free_ports
from tests.installed import write_package
from tests.integration.cli.tas import FREE, Tas
from tests.integration.servers import Server, eventually
from tests.integration.workers.agents.test_agents import complete
from tests.integration.workers.running import put

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
PAGE = (HOW_TO / "agents.md").read_text() + (HOW_TO / "write-an-agent.md").read_text()
CURLS = re.findall(r"^\$ (curl .*?'\n  \{.*?\}')\n([\[{][^\n]*)$", PAGE, re.DOTALL | re.MULTILINE)

MINE = """
    import numpy as np
    from tas.agent import Agent, Needs, Passes, Scores

    class Mine(Agent):
        def score(self, pod, nodes):
            count = len(nodes.names)
            return Scores(values=np.full(count, 0.4), known=np.ones(count, dtype=bool))

    class Warm(Agent):
        @property
        def needs(self):
            return Needs(metrics=["temperature"])

        def score(self, pod, nodes):
            known = np.array([name == "b" for name in nodes.names]) | ~np.isnan(nodes.metric("temperature"))
            return Scores(values=np.full(len(known), 0.4), known=known)

    class Spins(Mine):
        def score(self, pod, nodes):
            while True:
                pass
"""


async def test_it_serves_built_in_agents_and_those_of_packages_at_the_port_of_the_framework(
    tas: Tas, server: Server, bus: Bus, tmp_path: Path
) -> None:
    await complete(bus)
    site = write_package(
        tmp_path / "site", MINE, mine="own:Mine", spins="own:Spins", warm="own:Warm", group="tas.agents"
    )
    (tmp_path / "agents.yaml").write_text("agents: {foo: , mine: , spins: {timeout: 100ms}, warm: }")
    (port,) = free_ports(1)
    names: dict[str, Any] = {
        "Pod": {"metadata": {"name": "p", "namespace": "default"}},
        "Nodes": None,
        "NodeNames": ["a"],
    }
    environment = {"HTTP_PORT": str(port), "LOG_LEVEL": "Trace", "PYTHONPATH": str(site)}
    command = ("run", "agents", "--bus", server.url, "--agents", str(tmp_path / "agents.yaml"))
    async with (
        tas.running(*command, "--health-listen", "127.0.0.1:0", **environment) as running,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        await running.ready()

        async def asked(path: str, **more: Any) -> tuple[int, Any]:
            async with session.post(path, json=names | more) as answer:
                return answer.status, await answer.json()

        assert await asked("/scheduler/priorities/foo") == (200, [{"Host": "a", "Score": 1}])
        # The product's event loop, too, goes on after a call that would not have ended.
        status, answer = await asked("/scheduler/priorities/spins")
        assert (status, "no answer within 0.1 s" in answer["error"]) == (500, True)
        assert await asked("/mine/prioritize") == (200, [{"Host": "a", "Score": 4}])
        assert (await asked("/scheduler/predicates/foo"))[1]["NodeNames"] == ["a"]
        _, listed = await running.health("/agents")
        assert [(each["name"], each["verbs"]) for each in json.loads(listed)] == [
            ("foo", ["filter", "prioritize"]),
            ("mine", ["prioritize"]),
            ("spins", ["prioritize"]),
            ("warm", ["prioritize"]),
        ]

        assert [each["Score"] for each in (await asked("/warm/prioritize", NodeNames=["a", "b"]))[1]] == [4, 4]
        # Who asks at night learns which agent answered, and what it lacks.
        assert await asked("/warm/prioritize") == (200, [{"Host": "a", "Score": 0}])
        health = (await running.logged("health_listening"))["url"].removeprefix("http://")
        explained = await tas("explain", "pod", "default/p", "--bus", server.url, "--extender-health", health)
        assert explained.code == 0, explained.err
        assert re.search(r"/warm +prioritize +200 +decided +1 +1 +1 +a=0\n", explained.out)
        assert re.search(r"/warm +prioritize +a +0 +no opinion +unknown: temperature ", explained.out)
        assert re.search(r"/mine +prioritize +200 +decided +1 +1 +0 +a=4\n", explained.out)
        warned = await running.logged("agent_without_opinion")
        assert (warned["agent"], warned["nodes"], warned["example"]) == ("warm", 1, "node a: unknown: temperature")
        assert 'tas_extender_unknown_scored_total{path="/warm"} 2.0' in (await running.health("/metrics"))[1]
        assert await running.end() == 0
        assert running.events("extension_failed")
        line = next(line for line in running.events("request_answered") if line["path"] == "/mine")
        assert (line["level"], line["verb"], line["best"]) == ("debug", "prioritize", ["a=4"])


async def test_a_file_or_a_port_that_cannot_be_used_ends_the_start(tas: Tas, tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text("agents: {foo: {options: {a: 1}}}")
    command = ("run", "agents", "--bus", "nats://127.0.0.1:1", "--agents", str(tmp_path / "agents.yaml"), *FREE)
    refused = await tas("run", "agents", "--bus", "nats://127.0.0.1:1", HTTP_PORT="80a")
    assert (refused.code, "HTTP_PORT = '80a': must be a port from 1 to 65535" in refused.err) == (2, True)
    done = await tas(*command)
    assert done.code == 2
    assert "agents.foo.options.a = 1: is not a known option: the agent has none" in done.err


async def test_the_requests_of_the_page_get_the_answers_that_it_shows(
    tas: Tas, server: Server, bus: Bus, tmp_path: Path
) -> None:
    """Also the agent of the page that has needs and options, which no other test runs."""
    (code,) = re.findall(r'```python\n("""The agent `cool`.*?)```', PAGE, re.DOTALL)
    ((name, target),) = re.findall(r'^(\w+) = "my_package:(\w+)"$', PAGE, re.MULTILINE)
    (entry,) = re.findall(r"^agents:\n(  cool: .*)$", PAGE, re.MULTILINE)
    site = write_package(tmp_path / "site", code, group="tas.agents", **{name: f"own:{target}"})
    (tmp_path / "agents.yaml").write_text(f"agents:\n{entry}\n  congestion:\n  foo:\n")
    published: dict[str, dict[str, Quantity]] = {}
    for node, metric, value in re.findall(r"tas publish (\S+) (\S+)=(\d+)", PAGE):
        published.setdefault(node, {})[metric] = parse_quantity(value)
    for node, metrics in published.items():
        scrape = Scrape(source="cli", measured=time.time(), arrived=time.time(), sequence=1, metrics=metrics)
        await put(bus, NODES, NODE_SAMPLES.key(node), encode_node_samples((scrape,)))
    await complete(bus)
    (port,) = free_ports(1)
    command = ("run", "agents", "--bus", server.url, "--agents", str(tmp_path / "agents.yaml"))
    free = ("--listen", f"127.0.0.1:{port}", "--health-listen", "127.0.0.1:0")
    async with tas.running(*command, *free, PYTHONPATH=str(site)) as running, aiohttp.ClientSession() as session:
        await running.ready()
        assert len(CURLS) == 4
        for curl, shown in CURLS:
            words = shlex.split(curl)
            url = next(word for word in words if word.startswith("http://")).replace(":9030", f":{port}")
            expected, body = json.loads(shown), words[words.index("-d") + 1]

            async def as_shown(url: str = url, body: str = body, expected: object = expected) -> bool:
                headers = {"Content-Type": "application/json"}
                async with session.post(url, data=body, headers=headers) as answer:
                    return bool(await answer.json() == expected)

            await eventually(as_shown)
        assert await running.end() == 0
