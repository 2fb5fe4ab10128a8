"""`tas run all` at about twice the load that the machine can handle: no answer is older than is said."""

from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.hold import PERIOD, POLICY, Holder, changing_prometheus
from tests.integration.cli.tas import FREE, Tas, demo_policy, policy_folder


@pytest.mark.parametrize("seconds", [15.0, pytest.param(60.0, marks=pytest.mark.nightly)])
async def test_at_twice_the_load_every_answer_is_as_new_as_is_said(tmp_path: Path, seconds: float) -> None:
    tas = Tas(tmp_path / "home")
    policies = policy_folder(tmp_path, demo_policy(POLICY))
    async with changing_prometheus() as prometheus, aiohttp.ClientSession() as session:
        command = [
            *(
                "run",
                "all",
                "--bus",
                "embedded",
                "--policies",
                str(policies),
                "--period",
                f"{PERIOD * 1000:.0f}ms",
                *FREE,
            ),
            *("--source", f"prometheus={prometheus.url}", "--publish", "tables"),
        ]
        async with tas.running(*command) as running:
            await running.ready()
            process = psutil.Process(running.process.pid)
            holder = Holder(
                session,
                prometheus,
                extender=(await running.logged("extender_listening"))["url"],
                health=(await running.logged("health_listening"))["url"],
                memory=lambda: process.memory_info().rss,
            )
            held = await holder.hold(seconds, telling=1000)
            assert held.wrong == []
            assert held.longest > PERIOD, f"never behind: {held}"
            assert held.telling > 1000, f"any answer would have been right: {held}"
            assert held.answers > seconds
            # Flat: what grows with the nodes has grown before the hold.
            assert max(held.memory[5:]) < 1.25 * max(held.memory[:5]), held.memory
            # The first of these may have begun under the load.
            assert await holder.recover() <= 3
