"""All faults at the same time, at random, from a seed.

Publishers send out of order, repeat messages and share sources; replicas of materialize are killed and paused; the bus
is wiped. After every publisher has reported all metrics again, every value in every extender is the newest published
one. Until then no value is replaced by an older one.

`TAS_CHAOS_SEEDS=50` runs the seeds 1 to 50, `TAS_CHAOS_SEEDS=7-9` those three. A seed determines the messages and the
faults, but not the order in which processes run.
"""

import asyncio
import json
import os
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bus.buckets import NODES
from bus.connection import Bus
from tests.integration.published import CLOCK, SECOND, Published, Publisher
from tests.integration.replicas import Replica, replica, tas
from tests.integration.servers import Server, eventually
from tests.integration.watched import STALE_SECONDS, Extender, asked, bucket, extender_view, has_read, meanwhile
from tests.integration.workers.running import all_handled, epoch_on

pytestmark = [pytest.mark.seeded, pytest.mark.ci]

DEFAULT_SEEDS = "1-3"

HISTORY_SECONDS = 9.0
"""How long messages and faults continue."""

PAUSES_SECONDS = ((0.02, 0.4), (0.4, 3.0))
LONG_PAUSE_SECONDS = (10.5, 12.0)
"""Longer than the ack wait: another replica gets the messages meanwhile."""

NODES_NAMES = ("node-1", "node-2", "ip-10-0-0-1.ec2.internal", "ip-10-0-0-2.ec2.internal", "edge.eu", "n")
METRICS = (CLOCK, "load1", "memory-free", "other")
SOURCES = ("agent", "agent", "exporter", "prometheus-1")
"""Each has one publisher."""

THRESHOLDS = tuple(range(-4 * SECOND, 24 * SECOND, SECOND // 2))
"""For each of them there is a policy that rejects nodes whose clock is beyond it."""


def seeds() -> range:
    first, dash, last = os.environ.get("TAS_CHAOS_SEEDS", DEFAULT_SEEDS).partition("-")
    return range(int(first), int(last) + 1) if dash else range(1, int(first) + 1)


class Journal:
    """The faults, printed with their time: pytest shows this if the test fails."""

    def __init__(self, seed: int) -> None:
        self._began = time.monotonic()
        print(f"again: TAS_CHAOS_SEEDS={seed}-{seed} python -m pytest tests/integration/test_chaos.py")

    def note(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.2f} s  {what}")


def write_policy(folder: Path, name: str, **strategy: Any) -> None:
    policy = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"strategies": {"dontschedule": strategy}},
    }
    unfinished = folder / f".{name}"
    unfinished.write_text(json.dumps(policy))
    unfinished.rename(folder / f"{name}.yaml")


def threshold(microseconds: int) -> str:
    return f"beyond-{microseconds}".replace("--", "-minus-")


async def kill_and_pause(one: Replica, chance: random.Random, journal: Journal, *, long_pause: bool) -> None:
    """Kills and pauses a replica again and again; in the end the replica runs."""
    until = time.monotonic() + HISTORY_SECONDS
    while True:
        await asyncio.sleep(chance.uniform(0.1, 2))
        if time.monotonic() > until:
            return
        sleeps = long_pause or chance.random() < 0.6
        dies = not sleeps or (chance.random() < 0.2 and not long_pause)
        if sleeps:
            seconds = chance.uniform(*(LONG_PAUSE_SECONDS if long_pause else chance.choice(PAUSES_SECONDS)))
            long_pause = False
            journal.note(f"{one.name} is paused for {seconds:.2f} s")
            one.pause()
            await asyncio.sleep(seconds)
        if dies:
            journal.note(f"{one.name} is killed")
            one.kill()
            await asyncio.sleep(chance.choice((0.0, chance.uniform(0, 1.5))))
            one.start()
        else:
            journal.note(f"{one.name} continues")
            one.resume()


async def break_bus(server: Server, policies: Replica, chance: random.Random, journal: Journal) -> None:
    """Kills the bus with a probability of one half; then wipes it."""
    await asyncio.sleep(chance.uniform(0.1, 0.3) * HISTORY_SECONDS)
    if chance.random() < 0.5:
        journal.note("the bus is killed")
        await server.restart()
    await asyncio.sleep(chance.uniform(0.1, 0.3) * HISTORY_SECONDS)
    journal.note("the bus is wiped")
    await server.kill()
    if dies := chance.random() < 0.3:
        journal.note("policies is killed")
        policies.kill()
    await asyncio.sleep(chance.choice((0.0, chance.uniform(0, 2))))
    server.wipe()
    await server.start()
    journal.note("the bus runs again, empty")
    if dies:
        await asyncio.sleep(chance.uniform(0, 2))
        policies.start()


@pytest.mark.parametrize("seed", seeds(), ids="seed-{}".format)
async def test_every_value_ends_as_the_newest_and_never_returns_to_an_older_one(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    journal = Journal(seed)
    published = Published()
    policies = tmp_path / "policies"
    policies.mkdir()
    for microseconds in THRESHOLDS:
        rule = {"metricname": CLOCK, "operator": "GreaterThan", "target": microseconds}
        write_policy(policies, threshold(microseconds), rules=[rule])
    async with AsyncExitStack() as stack:
        stack.enter_context(capture_logs())  # outages of the bus are expected
        server = Server(tmp_path / "store")
        await server.start()
        stack.push_async_callback(server.stop)

        def started(name: str, *arguments: str) -> Replica:
            return stack.enter_context(replica(name, tas(*arguments, bus=server.url), folder=tmp_path))

        replicas = [started(f"materialize-{number}", "materialize") for number in range(chance.randint(2, 3))]
        others = [
            started("policies", "policies", "--policies", str(policies)),
            started("extender", "extender", "--listen", "127.0.0.1:0", "--stale-after", f"{STALE_SECONDS:g}s"),
        ]
        reader = await stack.enter_async_context(bucket(server.url, published))
        views = [await stack.enter_async_context(extender_view(server.url, f"view-{n}", published)) for n in (1, 2)]
        for one in (*replicas, *others):
            await one.ready()
        extender = await stack.enter_async_context(asked(await others[1].address("extender"), NODES_NAMES))
        thresholds = [threshold(microseconds) for microseconds in THRESHOLDS]
        await stack.enter_async_context(meanwhile(extender.ask_on(thresholds, random.Random(f"{seed} requests"))))

        journal.note("all workers are ready")
        published.begin()
        report_again = asyncio.Event()
        publishers = []
        for number, source in enumerate(SOURCES):
            bus = await stack.enter_async_context(Bus.connect(server.url, name=f"publisher-{number}"))
            publishers.append(
                Publisher(
                    bus,
                    number=number,
                    source=source,
                    nodes=NODES_NAMES,
                    metrics=METRICS,
                    chance=random.Random(f"{seed} publisher {number}"),
                    published=published,
                )
            )
        long_pause = chance.random() < 0.4
        async with asyncio.TaskGroup() as tasks:
            for publisher in publishers:
                tasks.create_task(publisher.run(HISTORY_SECONDS, report_again))
            for number, one in enumerate(replicas):
                own = random.Random(f"{seed} replica {number}")
                tasks.create_task(kill_and_pause(one, own, journal, long_pause=long_pause and number == 0))
            await break_bus(server, others[0], chance, journal)
            report_again.set()
            views.append(await stack.enter_async_context(extender_view(server.url, "late view", published)))
        journal.note(f"{published.messages} messages were published")

        observer = await stack.enter_async_context(Bus.connect(server.url, name="observer"))
        await all_handled(observer)
        journal.note("all messages were handled")
        epoch = await epoch_on(observer, NODES)
        await eventually(lambda: has_read(reader.status, epoch) and all(has_read(view.status, epoch) for view in views))

        for each in (*replicas, *others):
            each.must_run()
        faults = reader.faults + [fault for view in views for fault in view.held.faults]
        assert not faults, "\n".join(faults)
        assert len(reader.epochs) == 2
        assert len(published.newest) == len(NODES_NAMES) * len(METRICS) * len(set(SOURCES))
        for held in (reader.epochs[-1], *(view.held for view in views)):
            differences = published.differences(held.values)
            assert not differences, f"{held.name}: {differences}"
        await answers_are_right(extender, policies, published)
        assert not extender.faults, "\n".join(extender.faults)
        await eventually(lambda: extender.asked > 100)  # a busy machine gives few answers a second


async def answers_are_right(extender: Extender, policies: Path, published: Published) -> None:
    """Waits until the extender has the newest values; then checks that its answers follow from them alone."""
    for number, node in enumerate(NODES_NAMES):
        rules = [
            {"metricname": metric, "source": source, "operator": "Equals", "target": value}
            for (place, metric, source), (_, value) in published.newest.items()
            if place == node
        ]
        write_policy(policies, f"exactly-{number}", logicalOperator="allOf", rules=rules)
    for number, node in enumerate(NODES_NAMES):

        async def rejects_this_node_alone(number: int = number, node: str = node) -> bool:
            return await extender.rejects(f"exactly-{number}") == {node}

        await eventually(rejects_this_node_alone)
    # So the extender has the newest values: each of its answers must follow from them.
    clocks = published.clocks()
    for microseconds in THRESHOLDS:
        beyond = {node for node, value in clocks.items() if value > microseconds}
        assert await extender.rejects(threshold(microseconds)) == beyond
