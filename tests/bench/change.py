"""How soon a sample changes an answer."""

import asyncio
import os
import random
import time
from collections.abc import Sequence
from itertools import cycle, islice

import orjson

from bus.buckets import SAMPLES
from bus.records.samples import encode_samples
from bus.subjects import samples_subject
from tas.values.quantity import parse_quantity
from tests.bench import cluster
from tests.bench.client import Client
from tests.bench.measure import ROUND_SECONDS, no_collection
from tests.bench.rows import Budget, Results, quantile_rows
from tests.bench.stand import FILTER, CpuMeter, RunningBus, Server, Stand
from tests.bench.traffic import traffic

NAME = "change"
NODES = 5000
RATE = 1500.0
BUDGETS = {"p99": Budget(10.0)}

PROBES = 50
"""Nodes that no other source reports; each keeps its state until its next change."""

POLICY = 0
POLL_SECONDS = 0.0002
"""The wait between two requests: they take processor time from the measured processes."""

CHANGE_SECONDS = 5.0
"""The limit of a wait: a change that takes longer counts as this."""


async def measure(stand: Stand) -> Results:
    """From before the sample is published until the answer of filter has changed."""
    names = cluster.node_names(NODES + PROBES)
    async with stand.bus(names) as running:
        with stand.extender(running.server.url) as extender, Client(extender.port) as client:
            async with traffic(stand, running, rate=RATE, nodes=NODES, extender=extender) as flow:
                probes = [_Probe(running, client, extender, name) for name in names[NODES:]]
                for probe in probes:
                    await probe.report(bad=False)
                meter = CpuMeter("the change", flow.pids | {"extender": extender.process.pid, "client": os.getpid()})
                chance = random.Random(0)
                with no_collection():
                    times = [await _round(probes, chance, changes=stand.some(400, 200)) for _ in range(stand.rounds)]
                cpu = meter.read()
    rows = quantile_rows(f"sample to answer, {RATE:,.0f} messages/s", times, budgets=BUDGETS)
    return Results(rows=[*rows, *flow.rows], cpu=cpu)


async def _round(probes: Sequence["_Probe"], chance: random.Random, *, changes: int) -> list[float]:
    ends = time.perf_counter() + ROUND_SECONDS
    found: list[float] = []
    for probe in islice(cycle(probes), changes):
        found.append(await probe.change(chance))
        if time.perf_counter() > ends:
            break
    return found


class _Probe:
    """A node that alternately violates and meets the policy."""

    def __init__(self, running: RunningBus, client: Client, extender: Server, name: str) -> None:
        self._bus = running.bus
        self._client = client
        self._name = name
        self._request = extender.request(cluster.names_only(POLICY, [name]), FILTER)
        self._bad = False

    async def report(self, *, bad: bool) -> None:
        """Publishes a sample of every metric, one of them used by the policy."""
        values = dict.fromkeys(cluster.METRIC_NAMES, parse_quantity("0"))
        values[cluster.METRIC_NAMES[POLICY]] = parse_quantity(str(cluster.VALUES if bad else 0))
        payload = encode_samples(cluster.scrape(values, time.time()))
        await self._bus.publish(SAMPLES, samples_subject(self._name, cluster.SOURCE), payload)
        self._bad = bad

    async def change(self, chance: random.Random) -> float:
        """Publishes the opposite state, and returns the seconds until the answer changes."""
        await asyncio.sleep(chance.uniform(0, 0.01))  # so that no other period is in phase
        began = time.perf_counter()
        await self.report(bad=not self._bad)
        return self._wait_until_counted(began) - began

    def _wait_until_counted(self, began: float) -> float:
        """Sends requests until the answer agrees with the last sample; blocking, so that no other task runs."""
        while self._passes() is self._bad and time.perf_counter() - began < CHANGE_SECONDS:
            time.sleep(POLL_SECONDS)
        return time.perf_counter()

    def _passes(self) -> bool:
        return bool(orjson.loads(self._client.ask(self._request))["NodeNames"])
