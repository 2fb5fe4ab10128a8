"""The commands of README.md, and the answers that it shows."""

import json
import re
import shlex
from pathlib import Path

import aiohttp

from tests.integration.cli.tas import Tas
from tests.integration.servers import eventually

ROOT = Path(__file__).parents[3]
COMMANDS, ANSWER = re.findall(
    r"\$ (\.venv/bin/tas publish .*?)^(\{.*?\})\n", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
)[0]


async def test_the_commands_of_the_readme_get_the_answers_that_it_shows(tas: Tas) -> None:
    publish, curl = COMMANDS.split("\n$ ")
    words = shlex.split(curl)
    url = next(word for word in words if word.startswith("http://"))
    body = words[words.index("-d") + 1]
    policies = str(ROOT / "deploy" / "policies")
    free = ("--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0")
    async with tas.running("run", "all", "--policies", policies, *free) as running:
        await running.ready()
        for node in json.loads(body)["NodeNames"]:
            assert (await tas("publish", node, "health_metric=0")).code == 0
        done = await tas(*shlex.split(publish, comments=True)[1:])
        assert done.code == 0, done.err
        filter_url = (await running.logged("extender_listening"))["url"] + url.partition("/scheduler")[2]

        async def as_shown() -> bool:
            headers = {"Content-Type": "application/json"}
            async with (
                aiohttp.ClientSession() as session,
                session.post(filter_url, data=body, headers=headers) as response,
            ):
                return bool(await response.json() == json.loads(ANSWER))

        await eventually(as_shown)
        explained = await tas("explain", "node", "node-1")
        assert explained.code == 0
        assert "violated" in explained.out
        assert await running.end() == 0
    assert tas.left_behind() == []
