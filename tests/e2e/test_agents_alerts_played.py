"""The alerts about agents, brought about with a real process: they fire in its faults, and end with them."""

from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from bus.connection import Bus
from bus.outcomes import publish_outcomes
from tas.outcomes.outcome import Placed
from tests.installed import write_package
from tests.integration.cli.tas import (
    FREE,
    HEALTH,
    Running,
    Tas,
    demo_policy,
    filter_request,
    policy_folder,
    replace_file,
)
from tests.integration.servers import Server, answered, eventually

from .alerts import check
from .test_alerts_played import Stage

NODES = ("a", "b")
STRATEGIES = "    dontschedule: {rules: [{metricname: m, operator: Equals, target: 2}]}\n"
SLOW = """
    from tas.agent import Agent

    class Slow(Agent):
        def observe(self, event):
            while True:
                pass
"""
GOOD = "agents: {congestion: {options: {limit: 10}}}"


@pytest.mark.nightly
async def test_the_alerts_about_agents_fire_and_end_as_their_rows_say(
    tas: Tas, server: Server, bus: Bus, tmp_path: Path, prometheus_binary: Path
) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text(GOOD)
    async with aiohttp.ClientSession() as session, AsyncExitStack() as stack:
        site = str(write_package(tmp_path / "site", SLOW, slow="own:Slow", group="tas.agents"))

        async def run(worker: str, *flags: str) -> Running:
            arguments = ("run", worker, "--bus", server.url, *flags, *FREE)
            return await stack.enter_async_context(tas.running(*arguments, PYTHONPATH=site))

        rules = policy_folder(tmp_path, demo_policy(STRATEGIES))
        policies = ("run", "policies", "--bus", server.url, "--policies", str(rules))
        await stack.enter_async_context(tas.running(*policies, *HEALTH))
        agents, extender = await run("agents", "--agents", str(file)), await run("extender")
        await stack.enter_async_context(tas.running("run", "materialize", "--bus", server.url, *HEALTH))
        await agents.ready()
        await extender.ready()
        url = (await agents.logged("extender_listening"))["url"]

        async def scores() -> list[int]:
            async with session.post(f"{url}/priorities/congestion", json=filter_request(*NODES)) as answer:
                assert answer.status == 200
                return [each["Score"] for each in await answer.json()]

        async def ask() -> int:
            await scores()
            return 200

        async def measure() -> None:
            for node in NODES:
                assert (await tas("publish", node, "congestion-factor=5", "--bus", server.url)).code == 0

            async def is_known() -> bool:
                return await scores() == [5, 5]

            await eventually(is_known)

        await measure()
        stage = Stage(agents, ask, extender)
        async with stage.story("TasAgentsUnreadable", minutes=7) as during:
            replace_file(file, "agents: {congestion: {options: {limit: none}}}")
            await stage.is_at("tas_agents_readable", lambda readable: readable == 0)
            during.extend(await stage.scrapes())
            assert "congestion.options.limit" in (await agents.logged("agents_unreadable"))["error"]
            replace_file(file, GOOD)
            await stage.is_at("tas_agents_readable", lambda readable: readable == 1)
        async with stage.story("TasAgentKnowsTooLittle", minutes=12) as during:
            replace_file(file, "agents: {congestion: {options: {limit: 10, factor: nobody-publishes-this}}}")

            async def knows_nothing() -> bool:
                return await scores() == [0, 0]

            await eventually(knows_nothing)
            during.append(await stage.scrape())
            for _ in range(5):
                await scores()
            during.append(await stage.scrape())
            replace_file(file, GOOD)
            await measure()
        async with stage.story("TasAgentLearningStopped", minutes=3) as during:
            replace_file(file, GOOD.replace("}}}", "}}, slow: {timeout: 100ms}}"))
            await stage.is_at('tas_agent_learning{agent="slow"', lambda learning: learning == 1)
            events = [Placed(uid=str(number), node="a", at=1.0, requests={}) for number in range(3)]
            await answered(lambda: publish_outcomes(bus, events))
            await stage.is_at('tas_agent_learning{agent="slow"', lambda learning: learning == 0)
            during.extend(await stage.scrapes())
            # On a busy machine another agent may have stopped before.
            stopped = await agents.logged("agent_learning_stopped", agent="slow")
            assert "3 times in a row" in stopped["error"]
            replace_file(file, GOOD)

            async def is_gone() -> bool:
                return await stage.values('tas_agent_learning{agent="slow"') == []

            await eventually(is_gone)
            await measure()
    check(prometheus_binary.with_name("promtool"), stage.stories, tmp_path)
