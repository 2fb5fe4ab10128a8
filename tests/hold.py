"""The product at more load than it can handle: every answer is compared with what was served, and when.

A Prometheus on loopback serves other values of all nodes in each poll. The load grows until the product says that it is
behind by more than a period; then it gets twice as many nodes. An answer may be as old as is said, and not older.
"""

import asyncio
import random
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import inf

import aiohttp
from aiohttp import web

from tests.integration.servers import eventually

PERIOD = 0.25
"""Seconds between two polls, as the product is told."""

FIRST_NODES = 1000
GROWTH = 1.5
MOST_NODES = 32_000
RELIEVED_SECONDS = 2.0
"""How long each answer of the source takes when the load has gone."""

STEP_SECONDS = 2.5
"""How long a load is tried."""

CANDIDATES = 500
"""So many nodes are in each request to filter."""

KEPT_SECONDS = 300.0
"""How long it is known what was served."""

POLICY = """\
    dontschedule:
      rules:
        - {metricname: load, operator: GreaterThan, target: 5}
"""

NAMES = [f"node-{number:05}" for number in range(2 * MOST_NODES)]


class ChangingPrometheus:
    """Serves a random value of each node, another one in each poll: 9 if the bit of the node is set, else 1."""

    def __init__(self) -> None:
        self.url = ""
        self.nodes = FIRST_NODES
        self.polls = 0
        self.seconds = 0.0
        self._served: deque[tuple[float, int, int, int]] = deque()
        self._heads = [f'{{"metric":{{"__name__":"load","instance":"{name}:9100"}},"value":[' for name in NAMES]

    @property
    def last(self) -> int:
        """The number of the last poll that was answered."""
        return self._served[-1][3] if self._served else 0

    async def answer(self, _request: web.Request) -> web.Response:
        self.polls += 1
        await asyncio.sleep(self.seconds)
        now, nodes = round(time.time(), 3), self.nodes
        bits = random.Random(self.polls).getrandbits(nodes)
        self._served.append((now, nodes, bits, self.polls))
        while self._served[0][0] < now - KEPT_SECONDS:
            self._served.popleft()
        high, low = f'{now},"9"]}}', f'{now},"1"]}}'
        digits = f"{bits:b}".zfill(nodes)[::-1]
        series = ",".join(
            head + (high if digit == "1" else low) for head, digit in zip(self._heads, digits, strict=False)
        )
        return web.Response(
            text=f'{{"status":"success","data":{{"resultType":"vector","result":[{series}]}}}}',
            content_type="application/json",
        )

    def may_be_rejected(self, node: int, since: float = 0.0, until: float = inf, *, last: int = 0) -> set[bool]:
        """What filter may say of a node whose value was served between these times, of so many `last` polls."""
        return {
            bool(bits >> node & 1)
            for served, nodes, bits, _ in islice(reversed(self._served), last or None)
            if node < nodes and since <= served <= until
        }


@asynccontextmanager
async def changing_prometheus() -> AsyncIterator[ChangingPrometheus]:
    """A Prometheus on loopback."""
    prometheus = ChangingPrometheus()
    app = web.Application()
    app.router.add_get("/{path:.*}", prometheus.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port, *_ = runner.addresses[0]
        prometheus.url = f"http://{host}:{port}"
        yield prometheus
    finally:
        await runner.cleanup()


@dataclass(kw_only=True)
class Held:
    """What the comparison found.

    Attributes:
        ability: The nodes at which the product was behind by more than a period.
        nodes: The nodes of the hold.
        answers, values: How many answers and values of single nodes were compared.
        telling: How many values would have been wrong by what was served before the said time.
        wrong: The first wrong answers.
        longest: The longest said age, in seconds.
        memory: The memory of the process after each tenth of the hold, in bytes.
    """

    ability: int = 0
    nodes: int = 0
    answers: int = 0
    values: int = 0
    telling: int = 0
    wrong: list[str] = field(default_factory=list)
    longest: float = 0.0
    memory: list[int] = field(default_factory=list)
    behind: float = 0.0


class Holder:
    """Asks the extender at `extender` and the metrics at `health`, both URLs."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        prometheus: ChangingPrometheus,
        *,
        extender: str,
        health: str,
        memory: Callable[[], int],
    ) -> None:
        self._session = session
        self._prometheus = prometheus
        self._extender = extender
        self._health = health
        self._memory = memory
        self.held = Held()

    async def hold(self, seconds: float, *, telling: int = 0) -> Held:
        """Finds the ability, and holds twice as much for so many seconds.

        Beside other programs fewer answers come in this time: then it goes on, up to four times as long, until more
        than `telling` values could have been wrong.
        """
        await eventually(self._answers)
        self.held.ability = await self._find_ability()
        self._prometheus.nodes = self.held.nodes = 2 * self.held.ability
        await self._has_all()
        began, chance = time.monotonic(), random.Random(1)
        while (passed := time.monotonic() - began) < seconds or (self.held.telling <= telling and passed < 4 * seconds):
            await self._compare(chance)
            if passed >= seconds * len(self.held.memory) / 10:
                self.held.memory.append(self._memory())
        return self.held

    async def recover(self) -> int:
        """The load goes, as the source takes seconds to answer; returns how many polls began until all is current.

        That is: filter says of all asked nodes what was served last.
        """
        self._prometheus.seconds = RELIEVED_SECONDS
        before, chance = self._prometheus.polls, random.Random(2)

        async def is_current() -> bool:
            last = self._prometheus.last
            numbers = chance.sample(range(self._prometheus.nodes), CANDIDATES)
            rejected = await self._rejected(numbers)
            return last == self._prometheus.last > before and all(
                self._prometheus.may_be_rejected(number, last=1) == {NAMES[number] in rejected} for number in numbers
            )

        await eventually(is_current, every=0.02)
        return self._prometheus.last - before

    async def _answers(self) -> bool:
        """Whether the extender is ready, and the view has tables."""
        async with self._session.get(f"{self._health}/readyz") as response:
            return response.status == 200 and (await self._said())[1] < inf

    async def _find_ability(self) -> int:
        while True:
            tried = time.monotonic()
            least = inf
            await asyncio.sleep(STEP_SECONDS / 2)
            while time.monotonic() - tried < STEP_SECONDS:
                least = min(least, max(await self._said()))
                await asyncio.sleep(0.05)
            if least > PERIOD or self._prometheus.nodes >= MOST_NODES:
                return self._prometheus.nodes
            self._prometheus.nodes = min(MOST_NODES, round(self._prometheus.nodes * GROWTH))

    async def _has_all(self) -> None:
        """Waits until the view has each node."""

        async def has_all() -> bool:
            return (await self._metrics()).get("tas_view_nodes", 0) >= self._prometheus.nodes

        await eventually(has_all, every=0.1)

    async def _metrics(self) -> dict[str, float]:
        async with self._session.get(f"{self._health}/metrics") as response:
            text = await response.text()
        return {
            name: float(value) for name, value in re.findall(r"^(tas_\w+)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE)
        }

    async def _said(self) -> tuple[float, float]:
        """By how many seconds the source is behind, and how old the table is that is most behind."""
        metrics = await self._metrics()
        return metrics["tas_source_behind_seconds"], metrics.get("tas_view_value_age_seconds", inf)

    async def _compare(self, chance: random.Random) -> None:
        numbers = chance.sample(range(self._prometheus.nodes), CANDIDATES)
        asked = time.time()
        behind, age = await self._said()
        rejected = await self._rejected(numbers)
        until, since = time.time(), asked - age - 0.002  # the times in the answers of Prometheus have milliseconds
        held = self.held
        held.answers += 1
        held.longest, held.behind = max(held.longest, age), max(held.behind, behind)
        for number in numbers:
            allowed = self._prometheus.may_be_rejected(number, since, until)
            held.values += 1
            held.telling += len(allowed) == 1
            is_rejected = NAMES[number] in rejected
            if is_rejected not in allowed and len(held.wrong) < 10:
                held.wrong.append(f"{NAMES[number]} rejected: {is_rejected}; said {age:.3f} s, at {asked:.3f}")

    async def _rejected(self, numbers: Sequence[int]) -> Collection[str]:
        """The names of those of these nodes that filter rejects."""
        body = {
            "Pod": {"metadata": {"name": "p", "namespace": "default", "labels": {"telemetry-policy": "demo-policy"}}},
            "Nodes": None,
            "NodeNames": [NAMES[number] for number in numbers],
        }
        async with self._session.post(f"{self._extender}/filter", json=body) as response:
            answer = await response.json()
        return {**(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}
