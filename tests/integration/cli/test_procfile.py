"""The Procfile: its lines run a whole cluster, also several of one kind, and one of each may be killed."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.processes import free_ports
from tests.forks import ForkedCommand
from tests.integration.cli.tas import Running, Tas, demo_policy, filter_request, policy_folder, replace_file
from tests.integration.servers import eventually

PROCFILE = Path("Procfile").read_text()
LINES = dict(re.findall(r"^([a-z]+): (.+)$", PROCFILE, re.MULTILINE))
RULE = "{metricname: fire, operator: Equals, target: 2}"
POLICY = demo_policy(f"    dontschedule: {{rules: [{RULE}]}}\n    deschedule: {{rules: [{RULE}]}}\n")
DOUBLED = ("materialize", "evaluate", "extender", "labels")
STARTED = (*DOUBLED, *DOUBLED, "watch", "events")


class Played:
    """The processes of the Procfile by their names, in the order of their start, and what they serve."""

    def __init__(self, tas: Tas, environment: Mapping[str, str], cluster: str, extender: str) -> None:
        self._tas = tas
        self._environment = environment
        self._cluster = cluster
        self._extender = extender
        self.processes: dict[str, list[Running]] = {}

    @asynccontextmanager
    async def running(self, name: str) -> AsyncIterator[Running]:
        """A line of the Procfile, as honcho starts it, but as a fork of a process that has imported the product."""
        environment = {**self._environment, "PORT": str(free_ports(1)[0])}
        shell = await asyncio.create_subprocess_exec(
            *("sh", "-c", LINES[name]), stdout=asyncio.subprocess.PIPE, env=environment
        )
        words = (await shell.communicate())[0].decode().splitlines()
        process = await ForkedCommand.start(words, environment)
        running = Running(process)
        self.processes.setdefault(name, []).append(running)
        try:
            yield running
        finally:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGTERM)
            await running.ended()
            await process.stdout.read()  # both pipes are closed then

    async def rejected(self) -> set[str] | None:
        """The nodes that an extender rejects; None if none answered, after which a scheduler asks again."""
        request = filter_request("node-1", "node-2")
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{self._extender}/scheduler/filter", json=request) as answer,
            ):
                found = await answer.json()
        except aiohttp.ClientConnectionError:
            return None
        assert found["Error"] == "", found
        return {*(found["FailedNodes"] or {}), *(found["FailedAndUnresolvableNodes"] or {})}

    async def labelled(self) -> set[str]:
        """The nodes with the label of the policy."""
        async with aiohttp.ClientSession() as session, session.get(f"{self._cluster}/api/v1/nodes") as answer:
            nodes = (await answer.json())["items"]
        return {node["metadata"]["name"] for node in nodes if "demo-policy" in node["metadata"]["labels"]}

    async def shows(self, node: str) -> None:
        """Waits until this node, and no other, is rejected by each extender and labelled.

        Each request is a new connection, of which the system gives some to each extender.
        """

        async def is_shown() -> bool:
            rejected = [await self.rejected() for _ in range(20)]
            return rejected == [{node}] * 20 and await self.labelled() == {node}

        await eventually(is_shown)

    async def publish(self, **values: int) -> None:
        for node, value in values.items():
            arguments = (node.replace("_", "-"), f"fire={value}", "--bus", self._environment["TAS_BUS"])
            done = await self._tas("publish", *arguments)
            assert done.code == 0, done.err

    async def violations(self) -> Counter[tuple[str, str, str]]:
        """How often a violation of each node by a strategy was published as begun or ended."""
        done = await self._tas("events", "--json", "--policy", "demo-policy", "--bus", self._environment["TAS_BUS"])
        events: list[dict[str, Any]] = [json.loads(line) for line in done.out.splitlines()]
        return Counter(
            (event["data"]["node"], event["data"]["strategy"], event["type"].split(".")[-2])
            for event in events
            if ".violation." in event["type"]
        )


@pytest.fixture
async def played(tas: Tas, tmp_path: Path) -> AsyncIterator[Played]:
    """The simulated cluster with its bus, and two each of the workers that may be killed."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, arguments in (("tas", "-m cli"), ("python", "")):
        (binaries / name).write_text(f"#!/bin/sh\nprintf '%s\\n' {arguments} \"$@\"\n")
        (binaries / name).chmod(0o755)
    bus, cluster, extender = free_ports(3)
    environment = {
        **tas.environment,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path.cwd()),
        "TAS_BUS": f"nats://127.0.0.1:{bus}",
        "TAS_EMBEDDED_PORT": str(bus),
        "TAS_CLUSTER_PORT": str(cluster),
        "TAS_CLUSTER_FOLDER": str(tmp_path / "cluster"),
        "TAS_EXTENDER_PORT": str(extender),
        "TAS_POLICIES": str(policy_folder(tmp_path, "")),
    }
    found = Played(tas, environment, f"http://127.0.0.1:{cluster}", f"http://127.0.0.1:{extender}")
    async with AsyncExitStack() as stack:
        # Workers first: what they need is not there yet, and none of them ends.
        for name in STARTED:
            await stack.enter_async_context(found.running(name))
        for one in (*found.processes["labels"], *found.processes["watch"]):
            await one.logged("waits_for_file")
        for one in (*found.processes["materialize"], *found.processes["evaluate"]):
            await one.logged("bus_unreachable")
        for name in ("bus", "cluster"):
            await stack.enter_async_context(found.running(name))
        for processes in found.processes.values():
            for one in processes:
                await one.ready()
        await found.publish(node_1=0, node_2=0, node_3=0)  # before the simulated nodes publish this metric
        replace_file(tmp_path / "policies" / "demo.yaml", POLICY)
        yield found


def test_each_line_becomes_its_process_so_that_a_signal_of_honcho_reaches_it() -> None:
    """The test below starts the words of a line without its shell; `test_run.py` has some lines with honcho."""
    assert [name for name, line in LINES.items() if not re.search(r"(^|; )exec (tas|python) [^;]+$", line)] == []


async def test_one_of_each_is_killed_and_no_answer_or_transition_is_wrong(played: Played) -> None:
    await played.publish(node_1=2)
    await played.shows("node-1")
    answers: list[set[str] | None] = []

    async def ask() -> None:
        while True:
            answers.append(await played.rejected())
            await asyncio.sleep(0)

    asking = asyncio.create_task(ask())
    try:
        await eventually(lambda: len(answers) > 20)
        for name in DOUBLED:
            killed, other = played.processes[name]
            killed.process.kill()
            await killed.ended()
            assert other.process.returncode is None
        after = len(answers)
        await eventually(lambda: len([each for each in answers[after:] if each is not None]) > 20)
    finally:
        asking.cancel()
    assert [each for each in answers if each not in (None, {"node-1"})] == []
    await played.publish(node_1=0, node_2=2)
    await played.shows("node-2")
    transitions = (("node-1", "started"), ("node-1", "ended"), ("node-2", "started"))
    strategies = ("dontschedule", "deschedule")
    wanted = Counter((node, strategy, kind) for node, kind in transitions for strategy in strategies)

    async def are_published() -> bool:
        found = await played.violations()
        assert found <= wanted, found
        return found == wanted

    await eventually(are_published)
