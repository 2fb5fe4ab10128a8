"""The worker `evaluate` on a real bus: which verdicts it writes, and the faults of its replicas."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import FORGET_SECONDS, NODES, POLICIES, SYNCED, VERDICT_LOG, VERDICTS, Bucket, Stream
from bus.connection import WRITE_SECONDS, Bus, Epoch, RawEntry
from bus.errors import ExpiredError, UnavailableError
from bus.feed import Feed
from bus.kinds import NODE_FACTS, NODE_SAMPLES, NODE_VERDICTS
from bus.records.codec import encode
from bus.records.nodes import NodeFacts, decode_node_samples, encode_node_samples
from bus.records.policies import PolicyRecord, encode_policy
from bus.records.synced import Synced
from bus.records.tables import encode_stored_table
from bus.records.verdicts import decode_verdict, encode_verdict
from bus.subjects import node_table_key, policy_key
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tas.samples.parts import Part
from tas.samples.sample import Scrape, merge
from tas.samples.table import Column, Reading, Table, TableKey
from tas.values.quantity import parse_quantity
from tas.verdict.knowledge import LastRevisions
from tas.verdict.pending import Touched
from tas.verdict.verdict import (
    ABSENT,
    HOLD,
    VIOLATING,
    DesiredKind,
    DesiredLabel,
    LabelVerdict,
    NodeVerdict,
    PolicyVerdict,
    StrategyVerdict,
)
from tests.integration.proxy import Proxy
from tests.integration.replicas import replica, tas
from tests.integration.servers import Server, all_answered, answered, eventually
from tests.integration.tables import put_tables
from tests.integration.workers.running import put, running
from workers.evaluate.node_evaluation import NodeEvaluation
from workers.evaluate.worker import EPOCH_CHECK_SECONDS, MAX_CONCURRENT, Evaluate
from workers.following import followed_view
from workers.following.followed_view import FollowedView
from workers.following.synced import SyncedWatch
from workers.reconcile.work_queue import LOST_SECONDS

NODE = "node-1.example"
SET = DesiredLabel(DesiredKind.SET, VIOLATING)
VIOLATED, MET, UNKNOWN = State.VIOLATED, State.MET, State.UNKNOWN
STALE_AFTER = 60.0
KEY = PolicyKey("default", "p")
QUIET_SECONDS = 0.3
"""How long `quiet` watches for writes: many times the duration of a write."""


class World:
    """The records on the bus, those of other workers written by the test."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.sequence = 0

    async def put(self, bucket: Bucket, key: str, value: bytes | None) -> int:
        return await put(self.bus, bucket, key, value)

    async def sample(
        self,
        node: str = NODE,
        *,
        age: float = 0.0,
        source: str = "s",
        left_out: Collection[str] = (),
        **metrics: object,
    ) -> None:
        self.sequence += 1
        now = round(time.time() - age, 6)
        values = {name: parse_quantity(str(value)) for name, value in metrics.items()}
        news = Scrape(source=source, measured=now, arrived=now, sequence=self.sequence, metrics=values)
        stored = await answered(partial(self.bus.get, NODES, NODE_SAMPLES.key(node)))
        known = () if stored is None or stored.value is None else decode_node_samples(stored.value).samples
        await self.put(NODES, NODE_SAMPLES.key(node), encode_node_samples(merge(known, [news]), left_out))

    async def table(self, *, left_out: Collection[str] = (), **metrics: object) -> None:
        """Stores a table with a row for the node, as `materialize` does that has left values out."""
        self.sequence += 1
        now = round(time.time(), 6)
        reading = Reading(now, now, self.sequence)
        columns = {name: Column((parse_quantity(str(value)),), reading) for name, value in metrics.items()}
        table = Table("poll", (NODE,), columns, frozenset(left_out))
        await self.put(NODES, node_table_key(TableKey("poll", Part(1, 0))), encode_stored_table(table))

    async def samples_for(self, seconds: float, **metrics: Any) -> None:
        """Keeps the samples of a node fresh for so many seconds."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            await self.sample(**metrics)

    async def facts(self, node: str = NODE, *, uid: str = "uid-1", left_out: int = 0, **labels: str) -> None:
        facts = NodeFacts(uid=uid, labels=labels, labels_left_out=left_out)
        await self.put(NODES, NODE_FACTS.key(node), encode(facts))

    async def delete_node(self, node: str = NODE) -> None:
        await self.put(NODES, NODE_FACTS.key(node), None)

    async def policy(self, name: str = "p", *, uid: str = "u", generation: int = 1, **spec: Any) -> None:
        key = PolicyKey("default", name)
        policy, problems = parse_policy(key, spec)
        record = PolicyRecord(policy=policy, uid=uid, generation=generation, problems=problems)
        await self.put(POLICIES, policy_key(key), encode_policy(record))

    async def delete_policy(self, name: str = "p") -> None:
        await self.put(POLICIES, policy_key(PolicyKey("default", name)), None)

    async def synced(self, *, cluster: bool = True) -> None:
        for bucket in (POLICIES, NODES):
            epoch = (await answered(partial(self.bus.epoch, bucket))).created
            synced = Synced(epoch=epoch, count=1, time=datetime.now(UTC), writer="test", cluster=cluster)
            await self.put(bucket, SYNCED, encode(synced))

    async def verdict(self, node: str = NODE) -> NodeVerdict | None:
        entry = await answered(partial(self.bus.get, VERDICTS, NODE_VERDICTS.key(node)))
        return None if entry is None or entry.value is None else decode_verdict(entry.value)

    async def strategy(self, node: str = NODE, name: str = "p") -> StrategyVerdict | None:
        """The one strategy of a policy."""
        verdict = await self.verdict(node)
        policy = None if verdict is None else verdict.policies.get(PolicyKey("default", name))
        return None if policy is None else next(iter(policy.strategies.values()), None)

    async def desired_labels(self, node: str = NODE, name: str = "p") -> dict[str, DesiredLabel]:
        strategy = await self.strategy(node, name)
        return {} if strategy is None else {label: each.desired for label, each in strategy.labels.items()}

    async def log(self) -> list[NodeVerdict | None]:
        """Every verdict that was written in this epoch, None for a removal."""
        entries: list[NodeVerdict | None] = []
        state = (await answered(partial(self.bus.api, f"STREAM.INFO.{VERDICTS.stream}")))["state"]
        for sequence in range(state["first_seq"], state["last_seq"] + 1):
            message = (await answered(partial(self.bus.api, f"STREAM.MSG.GET.{VERDICTS.stream}", {"seq": sequence})))[
                "message"
            ]
            value = base64.b64decode(message.get("data", ""))
            entries.append(decode_verdict(value) if value else None)
        return entries

    async def eventually(self, state: State, *desired_labels: DesiredLabel, node: str = NODE, name: str = "p") -> float:
        async def is_stored() -> bool:
            strategy = await self.strategy(node, name)
            if strategy is None or strategy.state is not state:
                return False
            return [each.desired for each in strategy.labels.values()] == list(desired_labels)

        return await eventually(is_stored)

    async def sampled_until(self, state: State, *desired_labels: DesiredLabel, **metrics: Any) -> float:
        """Writes fresh samples until the verdict is this one; returns a time just before the last sample."""
        measured = 0.0

        async def sampled() -> bool:
            nonlocal measured
            measured = time.time() - 1e-6  # a record has whole microseconds
            await self.sample(**metrics)
            strategy = await self.strategy()
            desired = [] if strategy is None else [each.desired for each in strategy.labels.values()]
            return strategy is not None and strategy.state is state and desired == list(desired_labels)

        await eventually(sampled, every=0.05)
        return measured

    async def samples_revision(self, node: str = NODE) -> int:
        stored = await answered(partial(self.bus.get, NODES, NODE_SAMPLES.key(node)))
        assert stored is not None
        return stored.revision

    async def held_after_a_violation(self) -> None:
        """Violates the rules of a policy with `clearFor` and meets them, and returns before `clearFor` has ended.

        Again if it has ended: on a busy machine the verdict in between may come and go before the test sees it.
        """
        for _ in range(10):
            await self.sample(m=2)
            await self.eventually(VIOLATED, SET)
            await self.sample(m=1)
            await eventually(self.is_met)
            if await self.desired_labels() == {"p": HOLD}:
                return
        raise AssertionError("clearFor is too short for this machine")

    async def is_met(self) -> bool:
        strategy = await self.strategy()
        return strategy is not None and strategy.state is MET

    async def quiet(self) -> None:
        """Fails if a verdict is written within a short time."""
        before = (await answered(partial(self.bus.epoch, VERDICTS))).last_sequence
        began = time.monotonic()
        while time.monotonic() - began < QUIET_SECONDS:
            assert (await answered(partial(self.bus.epoch, VERDICTS))).last_sequence == before


def deschedule(over: int = 1, /, **extra: Any) -> dict[str, Any]:
    rules = [{"metricname": "m", "operator": "GreaterThan", "target": over}]
    outside: dict[str, Any] = {
        name: extra.pop(name) for name in ("staleAfter", "nodeSelector", "suspend", "dryRun") if name in extra
    }
    return {"strategies": {"deschedule": {"rules": rules, **extra}}, **outside}


def worker(bus: Bus, *, forget_seconds: float = FORGET_SECONDS, registry: CollectorRegistry | None = None) -> Evaluate:
    followed = FollowedView(bus, default_stale_after=STALE_AFTER, verdicts=True)
    return Evaluate(bus, followed, registry=registry or CollectorRegistry(), forget_seconds=forget_seconds)


@asynccontextmanager
async def evaluating(server: Server, *, replicas: int = 1) -> AsyncIterator[list[Evaluate]]:
    """Runs replicas, each with its own connection, while the body runs."""
    async with AsyncExitStack() as stack:
        workers = []
        for number in range(replicas):
            bus = await stack.enter_async_context(Bus.connect(server.url, name=f"evaluate-{number}"))
            workers.append(worker(bus))
            await stack.enter_async_context(running(workers[-1]))
        yield workers


class GatedBus(Bus):
    """A bus that follows some buckets and reads some keys only after `gate` is set."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        super().__init__(*arguments, **keywords)  # type: ignore[arg-type]
        self.gate = asyncio.Event()
        self.not_followed: tuple[Bucket, ...] = ()
        self.not_read: tuple[str, ...] = ()

    async def feed(
        self,
        bucket: Bucket,
        *,
        keys: Collection[str] = (">",),
        after: Callable[[Epoch], int | None] | None = None,
        pace: float = 0.0,
    ) -> Feed:
        if bucket in self.not_followed:
            await self.gate.wait()
        return await super().feed(bucket, keys=keys, after=after, pace=pace)

    async def get(self, bucket: Bucket, key: str) -> RawEntry | None:
        if key in self.not_read:
            await self.gate.wait()
        return await super().get(bucket, key)


@asynccontextmanager
async def gated(server: Server) -> AsyncIterator[GatedBus]:
    async with GatedBus.connect(server.url, name="gated") as bus:
        assert isinstance(bus, GatedBus)
        yield bus


@pytest.fixture
async def world(bus: Bus) -> World:
    return World(bus)


async def test_tables_that_come_before_the_lists_are_complete_do_not_pile_up(bus: Bus) -> None:
    followed = FollowedView(bus, default_stale_after=STALE_AFTER, verdicts=True)
    async with running(Evaluate(bus, followed, registry=CollectorRegistry(), forget_seconds=FORGET_SECONDS)):
        await answered(partial(put_tables, bus, {"node-1": {"m": "1"}}))
        await eventually(lambda: followed.view.has_samples("node-1"))
        assert followed.unready() is not None
        await eventually(lambda: not followed.tables)


# From samples to desired labels


async def test_a_sample_that_violates_sets_the_desired_label_and_one_that_meets_ends_it(
    server: Server, world: World
) -> None:
    await world.facts()
    await world.policy(**deschedule())
    await world.synced()
    async with evaluating(server) as (evaluate,):
        await world.eventually(UNKNOWN, HOLD)
        assert evaluate.unready() is None
        await world.sample(m=2)
        await world.eventually(VIOLATED, SET)
        await world.sample(m=1)
        await world.eventually(MET, ABSENT)
        verdict = await world.verdict()
    assert verdict is not None
    assert verdict.node_uid == "uid-1"
    assert verdict.policies[PolicyKey("default", "p")].uid == "u"
    metrics, policy = [
        await answered(partial(world.bus.get, *place))
        for place in ((NODES, NODE_SAMPLES.key(NODE)), (POLICIES, policy_key(PolicyKey("default", "p"))))
    ]
    assert metrics is not None
    assert policy is not None
    assert verdict.nodes_revision == metrics.revision
    assert verdict.policies_revision >= policy.revision


async def test_without_a_cluster_every_node_with_samples_has_a_verdict(server: Server, world: World) -> None:
    await world.sample(m=2)
    await world.policy(**deschedule())
    await world.synced(cluster=False)
    async with evaluating(server):
        await world.eventually(VIOLATED, SET)
        verdict = await world.verdict()
    assert verdict is not None
    assert verdict.node_uid == ""


async def test_on_a_cluster_a_node_without_facts_has_no_verdict(server: Server, world: World) -> None:
    await world.sample("stranger", m=2)
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule())
    await world.synced()
    async with evaluating(server):
        await world.eventually(VIOLATED, SET)
        await world.quiet()
    assert await world.verdict("stranger") is None


async def test_a_change_without_effect_on_the_verdict_is_not_written(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule())
    await world.synced()
    async with evaluating(server, replicas=2):
        await world.eventually(VIOLATED, SET)
        await world.sample(m=3)
        await world.sample(k=3)
        await world.facts(zone="a")
        await world.policy(**deschedule())
        await world.synced()
        await world.policy("other", strategies={})
        await eventually(lambda: verdict_has(world, "other"))
        await world.sample(m=4)
        await world.policy(**deschedule())
        await world.quiet()
    states = [verdict.policies.keys() for verdict in await world.log() if verdict is not None]
    assert len(states) <= 3  # `other`, and the first sample of k at most


async def verdict_has(world: World, *names: str, node: str = NODE) -> bool:
    verdict = await world.verdict(node)
    return verdict is not None and {key.name for key in verdict.policies} >= set(names)


async def test_facts_D41_S9_an_edit_without_effect_changes_no_desired_label(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule(**{"for": "300ms"}))
    await world.synced()
    async with evaluating(server, replicas=2):
        await world.eventually(VIOLATED, SET)
        before = await world.strategy()
        for generation in (2, 3, 4):
            await world.policy(generation=generation, **deschedule(**{"for": "300ms"}))
        await eventually(lambda: generation_is(world, 4))
        assert await world.strategy() == before
    desired_labels = [next(iter(each.strategies.values())).labels["p"].desired for each in await written(world)]
    assert desired_labels[desired_labels.index(SET) :] == [SET] * (len(desired_labels) - desired_labels.index(SET))


async def generation_is(world: World, generation: int) -> bool:
    verdict = await world.verdict()
    return verdict is not None and verdict.policies[PolicyKey("default", "p")].generation == generation


async def written(world: World) -> list[PolicyVerdict]:
    """Every verdict of the one policy that was written for the one node."""
    return [
        verdict.policies[PolicyKey("default", "p")]
        for verdict in await world.log()
        if verdict is not None and PolicyKey("default", "p") in verdict.policies
    ]


async def test_facts_D36_C5_a_removed_strategy_and_a_removed_policy_leave_the_verdict(
    server: Server, world: World
) -> None:
    await world.facts()
    await world.sample(m=2)
    both = deschedule()
    both["strategies"]["dontschedule"] = {"rules": both["strategies"]["deschedule"]["rules"]}
    await world.policy(**both)
    await world.synced()
    key = PolicyKey("default", "p")

    async def has(*kinds: StrategyType) -> bool:
        verdict = await world.verdict()
        return verdict is not None and key in verdict.policies and {*verdict.policies[key].strategies} == {*kinds}

    async with evaluating(server):
        await eventually(lambda: has(StrategyType.DONTSCHEDULE, StrategyType.DESCHEDULE))
        del both["strategies"]["deschedule"]
        await world.policy(generation=2, **both)
        await eventually(lambda: has(StrategyType.DONTSCHEDULE))
        await world.delete_policy()

        async def is_removed() -> bool:
            verdict = await world.verdict()
            return verdict is not None and not verdict.policies

        await eventually(is_removed)


async def test_a_node_that_the_selector_no_longer_selects_meets_the_policy(server: Server, world: World) -> None:
    await world.facts(zone="a")
    await world.sample(m=2)
    await world.policy(**deschedule(nodeSelector={"matchLabels": {"zone": "a"}}))
    await world.synced()
    async with evaluating(server):
        await world.eventually(VIOLATED, SET)
        await world.facts(zone="b")
        await world.eventually(MET, ABSENT)


async def test_a_node_with_labels_that_its_record_lacks_is_unknown_to_a_selector(server: Server, world: World) -> None:
    await world.facts(zone="a")
    await world.sample(m=2)
    await world.policy(**deschedule(nodeSelector={"matchLabels": {"zone": "a"}}))
    await world.synced()
    async with evaluating(server):
        await world.eventually(VIOLATED, SET)
        await world.facts(left_out=1)  # perhaps the zone
        await world.eventually(UNKNOWN, HOLD)


# Time


async def test_facts_D22_a_node_without_new_samples_becomes_unknown_without_any_event(
    server: Server, world: World
) -> None:
    await world.facts()
    await world.policy(**deschedule(staleAfter="1s"))
    await world.synced()
    async with evaluating(server, replicas=2):
        await world.eventually(UNKNOWN, HOLD)

        async def stale_after() -> float | None:
            """By when the last sample was stale; None if the one before was, when the last one was written."""
            measured = await world.sampled_until(VIOLATED, SET, m=2)
            await world.eventually(UNKNOWN, HOLD)
            verdict = await world.verdict()
            assert verdict is not None
            return verdict.time - measured if verdict.nodes_revision == await world.samples_revision() else None

        seconds = await stale_after()
        while seconds is None:
            seconds = await stale_after()
        assert seconds >= 1
        await world.sampled_until(MET, ABSENT, m=1)


async def test_for_and_clear_for_delay_the_desired_label(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule(**{"for": "700ms", "clearFor": "700ms"}))
    await world.synced()
    async with evaluating(server, replicas=2):
        await world.eventually(VIOLATED, SET)
        await world.sample(m=1)
        await world.eventually(MET, ABSENT)
    labels = [each.strategies[StrategyType.DESCHEDULE].labels["p"] for each in await written(world)]
    assert [(each.state, each.desired) for each in labels] == [
        (VIOLATED, HOLD),
        (VIOLATED, SET),
        (MET, HOLD),
        (MET, ABSENT),
    ]
    times = [verdict.time for verdict in await world.log() if verdict is not None]
    assert labels[0].violated_since == labels[1].violated_since
    assert times[1] - (labels[1].violated_since or 0) >= 0.7
    assert times[3] - (labels[3].met_since or 0) >= 0.7


async def test_the_end_of_for_is_awaited_though_another_policy_is_evaluated_meanwhile(
    server: Server, world: World
) -> None:
    """A new label concerns only the policy with a selector, and changes nothing: then the earlier wait goes on."""
    await world.facts(zone="a")
    await world.policy("q", **deschedule(nodeSelector={"matchLabels": {"zone": "a"}}))
    await world.synced()

    async def is_violated(name: str) -> bool:
        strategy = await world.strategy(name=name)
        return strategy is not None and strategy.state is VIOLATED

    async with evaluating(server) as (evaluate,):
        for seconds in (2, 10, 30):  # a longer one if this machine was too slow for the one before
            name = f"p{seconds}"
            await world.sample(m=2)
            await world.policy(name, **deschedule(**{"for": f"{seconds}s"}))
            await eventually(partial(is_violated, name))
            await world.facts(zone="a", team=name)
            await eventually(
                lambda name=name: (evaluate._followed.view.labels(NODE) or {}).get("team") == name  # type: ignore[misc]
            )
            if await world.desired_labels(name=name) == {name: HOLD}:
                break
        else:
            raise AssertionError("`for` is too short for this machine")
        await world.eventually(VIOLATED, SET, name=name)


async def test_the_time_of_for_continues_after_a_restart(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule(**{"for": "60s"}))
    await world.synced()
    async with evaluating(server):
        await world.eventually(VIOLATED, HOLD)
    verdict, strategy = await world.verdict(), await world.strategy()
    assert verdict is not None
    assert strategy is not None
    since = (strategy.labels["p"].violated_since or 0) - 60  # as if the worker had ended a minute ago
    label = msgspec.structs.replace(strategy.labels["p"], violated_since=since)
    strategies = {StrategyType.DESCHEDULE: msgspec.structs.replace(strategy, labels={"p": label})}
    policy = msgspec.structs.replace(verdict.policies[KEY], strategies=strategies)
    stored = msgspec.structs.replace(verdict, policies={KEY: policy})
    await world.put(VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(stored))
    async with evaluating(server):
        await world.eventually(VIOLATED, SET)
    ended = await world.strategy()
    assert ended is not None
    assert ended.labels["p"].violated_since == since


async def test_clear_for_does_not_count_time_without_a_replica(server: Server, world: World) -> None:
    """Without a replica the node may have violated the policy: a new replica counts what it has observed itself."""
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule(clearFor="60s"))
    await world.synced()
    async with evaluating(server):
        await world.eventually(VIOLATED, SET)
        await world.sample(m=1)
        await world.eventually(MET, HOLD)
    await world.policy(**deschedule(clearFor="2s"))
    await world.sample(m=2)
    await world.samples_for(2, m=1)
    began = time.time()
    async with evaluating(server):
        await world.eventually(MET, ABSENT)
    verdict = await world.verdict()
    assert verdict is not None
    assert verdict.time - began >= 2


async def waiting_for_clear_for(world: World) -> None:
    """Stores a verdict of a replica that has ended: met for long, and `clearFor` has not ended."""
    label = LabelVerdict(state=MET, desired=HOLD, met_since=1.0)
    strategy = StrategyVerdict(state=MET, changed=1.0, labels={"p": label}, sampled=("m",))
    policy = PolicyVerdict(uid="u", generation=1, strategies={StrategyType.DESCHEDULE: strategy})
    policies = {PolicyKey("default", "p"): policy}
    stored = NodeVerdict(node_uid="uid-1", nodes_revision=1, policies_revision=1, policies=policies)
    await world.put(VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(stored))


async def test_what_happened_before_the_lists_were_complete_counts_for_no_clear_for(
    server: Server, world: World
) -> None:
    """A replica that follows NODES already, but not every policy yet, notes no break."""
    await waiting_for_clear_for(world)
    await world.facts()
    await world.sample(m=1)
    await world.policy(**deschedule(clearFor="1s"))
    async with evaluating(server) as (evaluate,):
        await eventually(lambda: evaluate._followed.watches[NODES.name].attached < time.time() - 1)
        await world.sample(m=2)
        await world.sample(m=1)
        began = time.time()
        await world.synced()
        await world.eventually(MET, ABSENT)
    verdict = await world.verdict()
    assert verdict is not None
    assert verdict.time - began >= 1


async def test_clear_for_counts_from_a_violation_that_ends_during_the_first_evaluation(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a large cluster this takes seconds. Until then it is unknown since when the rules of a node are met."""
    monkeypatch.setattr("workers.evaluate.worker.MAX_CONCURRENT", 1)
    monkeypatch.setattr("workers.evaluate.worker.MAX_QUEUED", 0)
    await waiting_for_clear_for(world)
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule(clearFor="2s"))
    others = ("other-1", "other-2")
    for node in others:  # nodes without a verdict come first
        await world.facts(node, uid=node)
    await world.synced()
    async with gated(server) as bus:
        bus.not_read = tuple(NODE_VERDICTS.key(node) for node in others)
        evaluate = worker(bus)
        async with running(evaluate):
            await eventually(lambda: evaluate.unready() is None)
            ready = time.monotonic()
            await eventually(lambda: time.monotonic() - ready > 1)
            ended = time.time()
            await world.sample(m=1)
            await eventually(lambda: bool(evaluate._followed.view.samples(NODE)[0].metrics["m"] == parse_quantity("1")))
            bus.gate.set()
            await world.eventually(MET, ABSENT)
    verdict = await world.verdict()
    assert verdict is not None
    assert verdict.time - ended >= 2


async def test_clear_for_does_not_count_time_without_the_bus(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule(clearFor="4s"))
    await world.synced()
    async with Proxy.before(server.url) as proxy, Bus.connect(proxy.url, name="far") as bus, running(worker(bus)):
        await world.held_after_a_violation()
        proxy.open = False
        proxy.cut()
        await world.sample(m=2)
        await world.sample(m=1)
        away = time.monotonic()
        await eventually(lambda: time.monotonic() - away > 0.5)
        began = time.time()
        proxy.open = True
        await world.eventually(MET, ABSENT)
    verdict = await world.verdict()
    assert verdict is not None
    assert verdict.time - began >= 4


@pytest.mark.parametrize("form", ["overwritten before delivery", "left out of a table", "left out of a record"])
async def test_a_value_that_was_never_seen_begins_clear_for_anew(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A bucket keeps one version of a key, and `materialize` stores no value of which it knows a newer one."""
    stores: dict[str, Callable[..., Awaitable[None]]] = {
        "left out of a table": world.table,
        "left out of a record": world.sample,
    }
    store = stores.get(form)
    if store is None:  # what is written during the pause arrives together: of each key the newest
        monkeypatch.setattr(followed_view, "SyncedWatch", partial(SyncedWatch, pace=0.45))
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule(clearFor="3s"))
    await world.synced()
    registry = CollectorRegistry()

    def unseen() -> float:
        return registry.get_sample_value("tas_verdict_values_unseen_total") or 0.0

    async with Bus.connect(server.url, name="evaluate") as bus, running(evaluate := worker(bus, registry=registry)):
        await world.held_after_a_violation()
        before = unseen()  # more than 0 if the start was slow: then a sample was overwritten there, too
        began = time.time()
        if store is not None:
            await store(left_out=("elsewhere",), m=1)
            await store(m=1)
            await store(left_out=("m",), m=1)
        else:
            others = count()

            async def is_overwritten() -> bool:
                for _ in range(10):  # fast enough for a pause; each only once, so that none of them is overwritten
                    await world.sample(f"node-{next(others)}", m=1)
                await world.sample(m=2)
                await world.sample(m=1)
                return unseen() > before

            await eventually(is_overwritten)
        await eventually(lambda: unseen() > before)

        def met_since() -> float:  # infinite while the last value that was judged violates
            return evaluate._nodes.unmet.until(NODE, KEY)["p"]

        await eventually(lambda: began < met_since() < inf)
        since = met_since()
        await world.eventually(MET, ABSENT)
    verdict = await world.verdict()
    assert verdict is not None
    assert verdict.time >= since + 3


async def test_a_restarted_replica_keeps_absent_if_the_label_is_not_set(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=1)
    await world.policy(**deschedule(clearFor="500ms"))
    await world.synced()
    async with evaluating(server):
        await world.eventually(MET, ABSENT)
    async with evaluating(server) as (again,):
        await eventually(lambda: again.unready() is None)
        await world.quiet()
    assert (await world.desired_labels()) == {"p": ABSENT}


@pytest.mark.parametrize("ahead", [0.0, 4.0], ids=["", "stored by a clock that is ahead"])
async def test_after_a_restart_a_label_that_is_still_set_waits_for_clear_for_again(
    server: Server, world: World, ahead: float
) -> None:
    await world.facts(p=VIOLATING)
    await world.sample(m=1)
    await world.policy(**deschedule(clearFor="2s"))
    await world.synced()
    stored = replace_time(foreign(0, 0), time.time() + ahead)
    await world.put(VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(stored))
    began = time.time()
    async with evaluating(server):
        await eventually(lambda: desired_were(world, ABSENT, HOLD, ABSENT))
    assert time.time() - began >= 2


async def test_a_label_that_is_still_set_waits_for_clear_for_again_after_the_bus_was_away(
    server: Server, world: World
) -> None:
    await world.facts(p=VIOLATING)
    await world.sample(m=1)
    # If the read before the write takes longer than `clearFor`, the label is never held, and nobody waits again.
    await world.policy(**deschedule(clearFor="2s"))
    await world.synced()
    async with evaluating(server):
        waits = 0

        async def has_waited_again() -> bool:  # also more than once: a busy server is away for seconds
            return await waits_for_clear_for(world) > waits

        await eventually(has_waited_again)
        waits = await waits_for_clear_for(world)
        await server.restart()
        await world.bus.wait_connected()
        await eventually(lambda: again(world))
        await eventually(has_waited_again)


async def test_without_the_bus_nodes_are_evaluated_only_a_few_at_a_time(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation finds out only at its end that nothing can be written; an extender may share the process."""
    evaluated = 0

    async def update(self: NodeEvaluation, *_: Any) -> float:
        nonlocal evaluated
        evaluated += 1
        await self._bus.epoch(NODES)
        return inf

    monkeypatch.setattr(NodeEvaluation, "update", update)
    await world.synced()
    async with evaluating(server) as [evaluate]:
        await eventually(lambda: evaluate._ready)
        await server.stop()
        await eventually(lambda: not evaluate._bus.connected)
        began, evaluated = time.monotonic(), 0
        for number in range(4 * MAX_CONCURRENT):
            evaluate._add_by_all(f"{number}.example")
        await eventually(lambda: evaluated > 2 * MAX_CONCURRENT)
        assert evaluated <= MAX_CONCURRENT * (1 + (time.monotonic() - began) / LOST_SECONDS)
        await server.start()
        await eventually(lambda: not len(evaluate._queue))


async def again(world: World) -> bool:
    with suppress(UnavailableError):
        await world.sample(m=1)
        return True
    return False


def replace_time(verdict: NodeVerdict, at: float) -> NodeVerdict:
    return msgspec.structs.replace(verdict, time=round(at, 6))


async def waits_for_clear_for(world: World) -> int:
    """How often the label was held and then absent, in the verdicts that were ever stored; 0 while it is held."""
    with suppress(UnavailableError):
        log = await desired_log(world)
        if log == len(log) // 2 * [HOLD, ABSENT]:
            return len(log) // 2
    return 0


async def desired_log(world: World) -> list[DesiredLabel]:
    """The desired labels of all verdicts that were ever stored."""
    policies = [each.policies[KEY] for each in await world.log() if each is not None]
    return [each.strategies[StrategyType.DESCHEDULE].labels["p"].desired for each in policies]


async def desired_were(world: World, *desired: DesiredLabel) -> bool:
    """Whether these are the desired labels of all verdicts that were ever stored."""
    with suppress(UnavailableError):
        return await desired_log(world) == list(desired)
    return False


async def test_a_violation_during_a_pause_of_the_replica_interrupts_clear_for(
    server: Server, world: World, tmp_path: Path
) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule(clearFor="4s"))
    await world.synced()
    with replica("evaluate", tas("evaluate", bus=server.url), folder=tmp_path) as paused:
        await world.held_after_a_violation()
        paused.pause()
        broken = time.time()
        await world.sample(m=2)
        await world.sample(m=1)
        paused.resume()
        await world.eventually(MET, ABSENT)
        paused.must_run()
    verdict = await world.verdict()
    assert verdict is not None
    assert verdict.time - broken >= 4


@pytest.mark.parametrize("uid", ["u", "another"])
async def test_clear_for_begins_when_an_edit_or_a_new_policy_brings_it(server: Server, world: World, uid: str) -> None:
    """Until then no replica notes violations, and a time in the verdict may be by the wrong clock of another one."""
    await world.facts(p=VIOLATING)
    await world.sample(m=2)
    await world.policy(**deschedule(**({} if uid == "u" else {"clearFor": "2s"})))
    await world.synced()
    async with evaluating(server) as (evaluate,):
        await world.eventually(VIOLATED, SET)
        edited = time.time()
        await world.policy(uid=uid, generation=2, **deschedule(3, clearFor="2s"))
        await eventually(lambda: evaluate._nodes.unmet.since(KEY).get("p", 0.0) > edited)
        stored = await world.verdict()
        assert stored is not None
        of_other = foreign(
            stored.nodes_revision,
            stored.policies_revision,
            desired=HOLD,
            met_since=edited - 0.7,
            uid=uid,
            generation=2,
        )
        await world.put(VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(of_other))
        await world.eventually(MET, ABSENT)
    verdict = await world.verdict()
    assert verdict is not None
    assert verdict.time - edited >= 2


async def test_clear_for_begins_when_a_new_node_has_the_name(server: Server, world: World) -> None:
    """The replica has seen the rules met for long, but not on this node. Another one's clock is behind."""
    await world.facts()
    await world.sample(m=1)
    await world.policy(**deschedule(clearFor="1s"))
    await world.synced()
    async with evaluating(server):
        await world.eventually(MET, ABSENT)
        created = time.time()
        await world.facts(uid="uid-2", p=VIOLATING)

        async def is_of_the_new_node() -> bool:  # on a slow machine `clearFor` may have ended for it
            verdict = await world.verdict()
            return verdict is not None and verdict.node_uid == "uid-2"

        await eventually(is_of_the_new_node)
        stored = await world.verdict()
        assert stored is not None
        earlier = stored.nodes_revision - 1
        of_other = foreign(earlier, stored.policies_revision, desired=HOLD, met_since=created - 0.7)
        of_other = msgspec.structs.replace(of_other, node_uid="uid-2")
        await world.put(VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(of_other))
        await world.eventually(MET, ABSENT)
    verdict = await world.verdict()
    assert verdict is not None
    assert verdict.node_uid == "uid-2"
    assert verdict.time - created >= 1


@pytest.mark.parametrize("desired", [HOLD, ABSENT])
async def test_clear_for_begins_at_the_end_of_a_violation_that_no_stored_verdict_has(
    server: Server, world: World, desired: DesiredLabel
) -> None:
    """If the bus refused all writes during a violation, only the replica that observed it knows of it."""
    await world.facts(p=VIOLATING)
    await world.sample(m=2)
    await world.policy(**deschedule(clearFor="4s"))
    await world.synced()
    async with evaluating(server):
        await world.eventually(VIOLATED, SET)
        await world.samples_for(2, m=2)
        ended = time.time()
        await world.sample(m=1)
        await world.eventually(MET, HOLD)
        stored = await world.verdict()
        assert stored is not None
        of_before = foreign(stored.nodes_revision - 1, stored.policies_revision, desired=desired)
        await world.put(VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(of_before))
        again = [HOLD] if desired == ABSENT else []
        await eventually(lambda: desired_were(world, SET, HOLD, desired, *again, ABSENT))
        stored = await world.verdict()
        assert stored is not None
        assert stored.time - ended >= 4


async def test_at_its_start_a_replica_evaluates_every_node_and_writes_only_changed_verdicts(
    server: Server, world: World
) -> None:
    nodes = [f"node-{number}" for number in range(40)]
    for node in nodes:
        await world.facts(node)
        await world.sample(node, m=2)
    for name in ("p", "q"):
        await world.policy(name, **deschedule())
    await world.synced()
    async with evaluating(server):
        for node in nodes:
            await world.eventually(VIOLATED, SET, node=node, name="q")
    for node in nodes:
        await world.sample(node, m=3)  # without effect on the verdict
    await world.sample(nodes[7], m=1)
    with capture_logs() as logs:
        async with evaluating(server) as (evaluate,):
            await world.eventually(MET, ABSENT, node=nodes[7])
            await world.quiet()
            await eventually(lambda: any(line["event"] == "nodes_evaluated" for line in logs))
            assert evaluate.unready() is None
    assert [line["nodes"] for line in logs if line["event"] == "nodes_evaluated"] == [40]
    assert [line["node"] for line in logs if line["event"] == "verdict_written"] == [nodes[7]]


async def test_a_policy_deleted_while_no_replica_ran_leaves_the_verdict(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=2)
    for name in ("p", "q"):
        await world.policy(name, **deschedule())
    await world.synced()
    async with evaluating(server):
        await eventually(lambda: verdict_has(world, "p", "q"))
    await world.delete_policy("q")

    async def is_removed() -> bool:
        verdict = await world.verdict()
        return verdict is not None and {key.name for key in verdict.policies} == {"p"}

    async with evaluating(server):
        await eventually(is_removed)


# What absence means


async def test_nothing_is_written_before_both_lists_are_complete(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule())
    async with evaluating(server) as (evaluate,):
        await eventually(lambda: "no complete list" in (evaluate.unready() or ""))
        await world.quiet()
        assert await world.verdict() is None
        await world.synced()
        await world.eventually(VIOLATED, SET)


async def test_a_stored_verdict_is_not_removed_before_both_lists_are_complete(server: Server, world: World) -> None:
    stored = NodeVerdict(node_uid="uid-1", nodes_revision=1, policies_revision=1, policies={})
    await world.put(VERDICTS, NODE_VERDICTS.key("other"), encode_verdict(stored))
    await world.facts()
    async with evaluating(server) as (evaluate,):
        await eventually(lambda: "no complete list" in (evaluate.unready() or ""))
        await world.quiet()
        assert await world.verdict("other") == stored
        await world.synced()

        async def is_removed() -> bool:
            return await world.verdict("other") is None

        await eventually(is_removed)


async def test_invalid_records_of_a_node_change_nothing(server: Server, world: World) -> None:
    """Neither its labels nor its samples are taken for missing, and its verdict is not deleted."""
    selector = {"matchLabels": {"zone": "a"}}
    await world.facts(zone="a")
    await world.sample(m=2)
    await world.policy(**deschedule(nodeSelector=selector))
    await world.synced()
    async with evaluating(server):
        await world.eventually(VIOLATED, SET)
        for key in (NODE_FACTS.key(NODE), NODE_SAMPLES.key(NODE)):
            await world.put(NODES, key, b"?")
        await world.policy("later", **deschedule(nodeSelector=selector))
        await eventually(lambda: verdict_has(world, "later"))
        verdict = await world.verdict()
    assert verdict is not None
    assert verdict.node_uid == "uid-1"
    states = {key.name: next(iter(each.strategies.values())).state for key, each in verdict.policies.items()}
    assert states == {"p": VIOLATED, "later": VIOLATED}
    assert None not in await world.log()


async def test_interruptions_of_clear_for_of_a_deleted_node_are_forgotten(server: Server, world: World) -> None:
    """Else they would grow without limit in a cluster whose nodes get new names."""
    await world.policy(**deschedule(clearFor="1s"))
    await world.synced()
    async with evaluating(server) as (evaluate,):
        for number, samples in enumerate((True, False)):
            node = f"node-{number}"
            await world.facts(node)
            if samples:
                await world.sample(node, m=2)
                await world.eventually(VIOLATED, SET, node=node)
            else:
                await world.eventually(UNKNOWN, HOLD, node=node)
            assert len(evaluate._nodes.unmet) == 1
            await world.delete_node(node)
            if samples:
                await world.put(NODES, NODE_SAMPLES.key(node), None)
            await eventually(lambda: len(evaluate._nodes.unmet) == 0)
        assert await world.verdict("node-0") is None


async def test_the_verdict_of_a_deleted_node_is_removed_and_leaves_no_entry(server: Server, world: World) -> None:
    await world.facts()
    await world.facts("node-2")
    await world.sample(m=2)
    await world.policy(**deschedule())
    await world.synced()
    async with evaluating(server, replicas=2):
        await world.eventually(VIOLATED, SET)
        await world.eventually(UNKNOWN, HOLD, node="node-2")
        await world.delete_node()

        async def is_removed() -> bool:
            return await world.verdict() is None

        await eventually(is_removed)
        await world.quiet()
        assert await world.verdict("node-2") is not None
        async with Bus.connect(server.url, name="forgets") as bus, running(worker(bus, forget_seconds=0.05)):

            async def is_forgotten() -> bool:
                request = partial(world.bus.api, f"STREAM.INFO.{VERDICTS.stream}", {"subjects_filter": ">"})
                subjects = (await answered(request))["state"]["subjects"]
                return set(subjects) == {VERDICTS.subject(NODE_VERDICTS.key("node-2"))}

            await eventually(is_forgotten)
        # For the other replicas the last revision is that of the deletion.
        await world.facts(uid="uid-2")
        await world.eventually(VIOLATED, SET)


async def test_a_new_node_of_the_same_name_waits_for_its_own_for(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule(**{"for": "500ms"}))
    await world.synced()
    async with evaluating(server):
        await world.eventually(VIOLATED, SET)
        first = await world.strategy()
        await world.facts(uid="uid-2")

        async def has_new_verdict() -> bool:
            verdict, strategy = await world.verdict(), await world.strategy()
            return verdict is not None and verdict.node_uid == "uid-2" and strategy is not None and is_set(strategy)

        await eventually(has_new_verdict)
        second = await world.strategy()
    assert [is_set(each.strategies[StrategyType.DESCHEDULE]) for each in await written(world)] == 2 * [False, True]
    assert first is not None
    assert second is not None
    assert (second.labels["p"].violated_since or 0) > (first.labels["p"].violated_since or 0) + 0.5


def is_set(strategy: StrategyVerdict) -> bool:
    return strategy.labels["p"].desired == SET


async def test_after_a_wipe_all_nodes_are_evaluated_again_and_no_label_becomes_absent(
    server: Server, world: World
) -> None:
    async def fill() -> None:
        await world.facts()
        await world.policy(**deschedule(**{"for": "500ms"}))
        await world.synced()

    await fill()
    await world.sample(m=2)
    async with evaluating(server, replicas=2) as workers:
        await world.eventually(VIOLATED, SET)
        await server.restart(wiped=True)
        await eventually(lambda: world.bus.connected)
        await eventually(lambda: all(each.unready() for each in workers))
        assert await world.verdict() is None
        await fill()
        await world.eventually(VIOLATED, SET)
        kinds = {desired.kind for policy in await written(world) for each in policy.strategies.values()
                 for desired in [label.desired for label in each.labels.values()]}  # fmt: skip
        assert kinds == {DesiredKind.HOLD, DesiredKind.SET}
        await world.sample(m=1)
        await world.eventually(MET, ABSENT)


async def test_no_verdict_is_written_from_a_list_of_an_earlier_epoch(server: Server, world: World) -> None:
    """After a wipe, one watch may notice later than others; its old revisions would be higher than all new ones."""

    async def fill() -> None:
        await world.facts()
        await world.sample(m=2)
        await world.policy(**deschedule())
        await world.synced()

    await fill()
    async with gated(server) as bus:
        evaluate = worker(bus)
        async with running(evaluate):
            await world.eventually(VIOLATED, SET)
            bus.not_followed = (POLICIES,)
            await server.restart(wiped=True)
            await eventually(lambda: world.bus.connected)
            await fill()
            lives = {of.name: (await answered(partial(world.bus.epoch, of))).created for of in (NODES, VERDICTS)}

            def followed() -> bool:
                nodes, verdicts = evaluate._followed.watches[NODES.name].epoch, evaluate._verdicts.epoch
                epochs = {NODES.name: nodes, VERDICTS.name: verdicts}
                return evaluate.unready() is None and lives == {
                    name: None if epoch is None else epoch.created for name, epoch in epochs.items()
                }

            await eventually(followed)
            await world.quiet()
            assert await world.verdict() is None
            bus.gate.set()
            await world.eventually(VIOLATED, SET)


async def test_changes_while_a_bucket_is_missing_do_not_make_the_checks_of_its_epoch_more_frequent(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change once began a series of checks of its own, until the process used a whole processor."""
    checks: list[float] = []

    async def is_current(self: Evaluate) -> bool:
        checks.append(time.monotonic())
        return False

    monkeypatch.setattr(Evaluate, "_is_current_epoch", is_current)
    await world.synced()
    async with evaluating(server) as (evaluate,):
        await eventually(lambda: len(checks) > 0)
        for _ in range(50):
            evaluate._wake_up()
            await asyncio.sleep(EPOCH_CHECK_SECONDS / 50)
        begun = len(checks)
        await eventually(lambda: len(checks) >= begun + 5)
        assert checks[begun + 4] - checks[begun] >= 4 * EPOCH_CHECK_SECONDS


# Replicas


async def test_a_replica_that_lags_does_not_replace_a_verdict_of_newer_policies(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, last_revisions = [], NodeEvaluation._last_revisions

    async def noted(self: NodeEvaluation) -> LastRevisions:
        compared.append(await last_revisions(self))
        return compared[-1]

    monkeypatch.setattr(NodeEvaluation, "_last_revisions", noted)
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule())
    await world.synced()
    async with gated(server) as bus:
        evaluate = worker(bus)
        async with running(evaluate):
            await world.eventually(VIOLATED, SET)
            bus.not_followed = (POLICIES,)
            await server.restart()
            await eventually(lambda: world.bus.connected)
            await world.policy("other", **deschedule())
            later = (await answered(partial(world.bus.epoch, POLICIES))).last_sequence
            stored = NodeVerdict(node_uid="uid-1", nodes_revision=1, policies_revision=later, policies={})
            await world.put(VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(stored))
            await eventually(lambda: len(compared) >= 2)
            assert evaluate._followed.watches[POLICIES.name].applied < later == compared[-1].policies
            assert await world.verdict() == stored
            bus.gate.set()
            await world.eventually(VIOLATED, SET)


@pytest.mark.parametrize("last", ["facts", "samples"])
async def test_a_verdict_by_reads_of_the_node_has_the_last_revision_of_its_records(
    bus: Bus, world: World, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """Else each replica evaluates the node again, and one that lags waits for a verdict of what it has read itself."""
    monkeypatch.setattr("workers.evaluate.node_evaluation.REACH_SECONDS", 0.0)  # this view follows nothing
    if last == "facts":
        await world.sample(m=2)
    await world.facts()
    if last == "samples":
        await world.sample(m=2)
    written = (await answered(partial(bus.epoch, NODES))).last_sequence
    await worker(bus)._nodes.update(NODE, Touched(by_all=True, since=time.monotonic()), inf)
    verdict = await world.verdict()
    assert verdict is not None
    assert (verdict.node_uid, verdict.nodes_revision) == ("uid-1", written)


async def test_a_verdict_with_revisions_that_nothing_has_is_replaced(server: Server, world: World) -> None:
    async def is_replaced() -> bool:
        verdict, strategy = await world.verdict(), await world.strategy()
        return verdict is not None and verdict.nodes_revision < 2**62 and strategy is not None and is_set(strategy)

    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule())
    await world.synced()
    async with evaluating(server, replicas=2):
        await world.eventually(VIOLATED, SET)
        right = await world.verdict()
        assert right is not None
        # A forged content, and the right content, which is not written again for any other reason.
        for forged in (
            foreign(2**62, 2**62),
            msgspec.structs.replace(right, nodes_revision=2**62, policies_revision=2**62),
        ):
            await world.put(VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(forged))
            await eventually(is_replaced)
    await world.put(VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(forged))
    async with evaluating(server):
        await eventually(is_replaced)


def foreign(
    nodes_revision: int,
    policies_revision: int,
    *,
    desired: DesiredLabel = ABSENT,
    met_since: float = 1.0,
    uid: str = "u",
    generation: int = 1,
) -> NodeVerdict:
    """A verdict of another replica, with met rules."""
    label = LabelVerdict(state=MET, desired=desired, met_since=met_since)
    strategy = StrategyVerdict(state=MET, changed=1.0, labels={"p": label}, sampled=("m",))
    policy = PolicyVerdict(uid=uid, generation=generation, strategies={StrategyType.DESCHEDULE: strategy})
    return NodeVerdict(
        node_uid="uid-1",
        nodes_revision=nodes_revision,
        policies_revision=policies_revision,
        policies={KEY: policy},
    )


async def test_a_verdict_of_older_records_is_replaced_and_one_of_equal_records_is_not(
    server: Server, world: World
) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule())
    await world.synced()
    async with evaluating(server, replicas=2):
        await world.eventually(VIOLATED, SET)
        await world.quiet()  # the second replica has dropped its write
        right = await world.verdict()
        assert right is not None
        await world.put(
            VERDICTS,
            NODE_VERDICTS.key(NODE),
            encode_verdict(foreign(right.nodes_revision - 1, right.policies_revision)),
        )
        await world.eventually(VIOLATED, SET)
        await world.quiet()
        equal = foreign(right.nodes_revision, right.policies_revision)
        await world.put(VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(equal))
        await world.quiet()
        assert await world.verdict() == equal
        await world.sample(m=3)
        await world.sample(m=1)
        await world.sample(m=2)
        await world.eventually(VIOLATED, SET)


async def test_an_unreadable_or_deleted_verdict_is_written_again(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule())
    await world.synced()
    async with evaluating(server, replicas=2):
        await world.eventually(VIOLATED, SET)
        for value in (b"{}", None):
            await world.put(VERDICTS, NODE_VERDICTS.key(NODE), value)

            async def again() -> bool:
                entry = await answered(partial(world.bus.get, VERDICTS, NODE_VERDICTS.key(NODE)))
                return entry is not None and bool(entry.value) and entry.value != b"{}"

            await eventually(again)
            await world.eventually(VIOLATED, SET)


async def test_a_replica_whose_clock_is_behind_does_not_undo_a_change_by_time(server: Server, world: World) -> None:
    """Another replica, whose clock is 5 s ahead, found the sample stale; by our clock it is fresh."""
    await world.facts()
    await world.policy(**deschedule(staleAfter="4s"))
    await world.synced()
    async with evaluating(server):
        await world.sampled_until(VIOLATED, SET, m=2)
        right = await world.verdict()
        assert right is not None
        label = LabelVerdict(state=UNKNOWN, desired=HOLD, violated_since=1.0)
        strategy = StrategyVerdict(state=UNKNOWN, changed=1.0, labels={"p": label}, sampled=("m",))
        policy = PolicyVerdict(uid="u", generation=1, strategies={StrategyType.DESCHEDULE: strategy})
        ahead = NodeVerdict(
            node_uid="uid-1",
            nodes_revision=await world.samples_revision(),
            policies_revision=right.policies_revision,
            time=round(time.time() + 5, 6),
            policies={KEY: policy},
        )
        await world.put(VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(ahead))
        await world.policy("other", strategies={})  # so the node is evaluated again
        await eventually(lambda: verdict_has(world, "other"))
        assert (await world.desired_labels())["p"] == HOLD


async def test_killed_replicas_miss_no_change(server: Server, world: World, tmp_path: Path) -> None:
    """Two processes, killed alternately by SIGKILL while samples change."""
    await world.facts()
    await world.policy(**deschedule())
    await world.synced()
    with (
        replica("evaluate-1", tas("evaluate", bus=server.url), folder=tmp_path) as one,
        replica("evaluate-2", tas("evaluate", bus=server.url), folder=tmp_path) as two,
    ):
        await world.eventually(UNKNOWN, HOLD)
        for number in range(12):
            await world.sample(m=number % 2 + 1)
            if number % 3 == 2:
                victim = (one, two)[number // 3 % 2]
                victim.kill()
                victim.start()
            await world.eventually(*((MET, ABSENT) if number % 2 == 0 else (VIOLATED, SET)))
    states = [each.strategies[StrategyType.DESCHEDULE].state for each in await written(world)]
    assert states == [UNKNOWN, *[MET, VIOLATED] * 6]


async def test_a_replica_paused_longer_than_stale_after_writes_no_stale_verdict(
    server: Server, world: World, tmp_path: Path
) -> None:
    """After such a pause all samples in its view are stale, until its watch delivers new ones."""
    await world.facts()
    await world.policy(**deschedule(staleAfter="3s", onStale="clear"))
    await world.synced()
    with replica("evaluate", tas("evaluate", bus=server.url), folder=tmp_path) as paused:
        await paused.ready()
        async with evaluating(server):
            await world.sample(m=2)
            await world.eventually(VIOLATED, SET)
            paused.pause()
            await world.samples_for(5, m=2)
            paused.resume()
            await world.samples_for(2, m=2)
            paused.must_run()
    assert {each.strategies[StrategyType.DESCHEDULE].state for each in await written(world)} <= {UNKNOWN, VIOLATED}
    desired_labels = [each.strategies[StrategyType.DESCHEDULE].labels["p"].desired for each in await written(world)]
    assert desired_labels[desired_labels.index(SET) :] == [SET]


class ReadingBus(Bus):
    """A bus that notes which verdicts are read from the leader."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.read: list[str] = []

    @classmethod
    @asynccontextmanager
    async def reading(cls, server: Server) -> AsyncIterator["ReadingBus"]:
        async with cls.connect(server.url, name="reading") as bus:
            assert isinstance(bus, cls)
            yield bus

    async def get(self, bucket: Bucket, key: str) -> RawEntry | None:
        if bucket is VERDICTS:
            self.read.append(key)
        return await super().get(bucket, key)


@pytest.mark.usefixtures("long_limits")
async def test_a_verdict_that_nobody_else_writes_is_never_read_from_the_leader(server: Server, world: World) -> None:
    nodes = [f"node-{number}" for number in range(20)]
    for node in nodes:
        await world.facts(node)
    await world.policy(**deschedule())
    await world.synced()
    async with ReadingBus.reading(server) as bus, running(worker(bus)):
        for value, state, desired in ((2, VIOLATED, SET), (1, MET, ABSENT)):
            for node in nodes:
                await world.sample(node, m=value)
            for node in nodes:
                await world.eventually(state, desired, node=node)
        assert bus.read == []


async def test_a_verdict_that_another_wrote_unseen_is_read_before_it_is_replaced(server: Server, world: World) -> None:
    await world.facts()
    await world.policy(**deschedule())
    await world.synced()
    async with ReadingBus.reading(server) as bus:
        registry = CollectorRegistry()
        evaluate = worker(bus, registry=registry)
        async with running(evaluate):
            await world.sample(m=2)
            await world.eventually(VIOLATED, SET)
            first = await world.verdict()
            assert first is not None
            # The replica has never seen this entry: as if its watch were behind.
            known = evaluate._verdicts.get(NODE)
            await world.put(
                VERDICTS, NODE_VERDICTS.key(NODE), encode_verdict(msgspec.structs.replace(first, time=first.time + 1))
            )
            await eventually(lambda: evaluate._verdicts.get(NODE).revision > known.revision)
            evaluate._verdicts.stored[NODE] = known
            await world.sample(m=1)
            await world.eventually(MET, ABSENT)
            assert bus.read == [NODE_VERDICTS.key(NODE)]
            assert registry.get_sample_value("tas_verdict_write_conflicts_total") == 1
            last = await world.verdict()
            assert last is not None
            assert last.time >= first.time + 1, "it follows on the verdict of the other"


async def test_a_verdict_whose_reads_are_too_old_is_not_written(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule())
    await world.synced()
    expired: list[ExpiredError] = []

    class StallingBus(Bus):
        """Stalls once after the leader of NODES was asked before a write, while another sample arrives."""

        stalled = False

        async def epoch(self, of: Stream | Bucket) -> Epoch:
            epoch = await super().epoch(of)
            if of is NODES and evaluate._ready and not self.stalled:
                self.stalled = True
                await world.sample(m=1)
                await asyncio.sleep(WRITE_SECONDS + 0.1)
            return epoch

        async def put(
            self, bucket: Bucket, key: str, value: bytes, *, revision: int, read_at: float, ttl_seconds: int = 0
        ) -> int:
            try:
                return await super().put(bucket, key, value, revision=revision, read_at=read_at)
            except ExpiredError as error:
                expired.append(error)
                raise

    async with StallingBus.connect(server.url, name="stalling") as stalling:
        evaluate = worker(stalling)
        async with running(evaluate):
            await world.eventually(MET, ABSENT)
    assert expired
    assert [each.strategies[StrategyType.DESCHEDULE].state for each in await written(world)] == [MET]


# Many


@pytest.mark.ci
async def test_500_new_policies_are_all_evaluated(server: Server, world: World) -> None:
    nodes = [f"node-{number}" for number in range(5)]
    for node in nodes:
        await world.facts(node)
        await world.sample(node, m=2)
    await world.synced()
    async with evaluating(server, replicas=2):

        async def all_there() -> bool:
            return all([await world.verdict(node) is not None for node in nodes])

        await eventually(all_there)
        await all_answered(partial(world.policy, f"p{number}", **deschedule()) for number in range(500))

        async def all_evaluated() -> bool:
            for node in nodes:
                verdict = await world.verdict(node)
                if verdict is None or len(verdict.policies) != 500:
                    return False
            return True

        await eventually(all_evaluated, every=0.2)
        await world.sample(nodes[3], m=1)
        await world.eventually(MET, ABSENT, node=nodes[3], name="p499")
        verdict = await world.verdict(nodes[3])
    assert verdict is not None
    assert {next(iter(each.strategies.values())).state for each in verdict.policies.values()} == {MET}


@asynccontextmanager
async def small_bucket(server: Server, size: int) -> AsyncIterator[World]:
    """A bus with a small bucket VERDICTS."""
    await server.restart(wiped=True)
    small = replace(VERDICTS, max_bytes=size)
    async with Bus.connect(server.url, name="creator", streams=(small,)) as creator:
        await creator.wait_connected()
    async with Bus.connect(server.url, name="test") as bus:
        await bus.wait_connected()
        yield World(bus)


async def test_a_full_bucket_loses_its_history_and_no_current_verdict(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.evaluate.history.PURGE_INTERVAL_SECONDS", 0.1)
    async with small_bucket(server, 32 << 10) as world:
        for name, over in (("p", 1), ("q", 1), ("r", 1)):
            await world.policy(name, **deschedule(over))
        for node in (NODE, "calm.example"):
            await world.facts(node)
            await world.sample(node, m=2)
        await world.synced()
        with capture_logs() as logs:
            async with evaluating(server, replicas=2):
                for node in (NODE, "calm.example"):
                    await world.eventually(VIOLATED, SET, node=node)
                calm = await answered(partial(world.bus.get, VERDICTS, NODE_VERDICTS.key("calm.example")))
                written = 0
                while not any(line["event"] == "verdicts_full" for line in logs) or written % 4:
                    written += 1
                    assert written < 200, "32 KiB hold fewer"
                    state = VIOLATED if written % 2 else MET
                    await world.sample(m=2 if written % 2 else 1)
                    await world.eventually(state, SET if written % 2 else ABSENT)
        full = [line for line in logs if line["event"] == "verdicts_full"]
        assert sum(line["forgotten"] for line in full) > 10  # one of two replicas may have been first
        assert "(10077)" in full[0]["error"]
        assert await answered(partial(world.bus.get, VERDICTS, NODE_VERDICTS.key("calm.example"))) == calm
        state = (await answered(partial(world.bus.api, f"STREAM.INFO.{VERDICTS.stream}")))["state"]
        assert state["bytes"] <= 32 << 10


async def test_a_long_history_is_purged_before_the_bucket_is_full(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.evaluate.history.CHECK_SECONDS", 0.05)
    monkeypatch.setattr("workers.evaluate.history.FREE_BYTES", 2 << 10)
    await world.facts()
    await world.policy(**deschedule())
    await world.synced()
    async with evaluating(server, replicas=2):
        for _ in range(10):
            await world.sample(m=2)
            await world.eventually(VIOLATED, SET)
            await world.sample(m=1)
            await world.eventually(MET, ABSENT)

        async def is_short() -> bool:
            state = (await answered(partial(world.bus.api, f"STREAM.INFO.{VERDICTS.stream}")))["state"]
            return bool(state["messages"] < 10)

        await eventually(is_short)
    log = (await answered(partial(world.bus.api, f"STREAM.INFO.{VERDICT_LOG.stream}")))["state"]
    assert log["messages"] >= 20


async def test_a_bucket_that_is_too_small_is_logged_and_keeps_the_stored_verdicts(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.evaluate.history.PURGE_INTERVAL_SECONDS", 0.1)
    async with small_bucket(server, 4 << 10) as world:
        await world.policy("p", **deschedule())
        nodes = [f"node-{number}.example" for number in range(20)]
        for node in nodes:
            await world.facts(node)
            await world.sample(node, m=2)
        await world.synced()
        with capture_logs() as logs:
            async with evaluating(server):

                async def is_logged() -> bool:
                    return any(line["event"] == "verdicts_full" and line["forgotten"] == 0 for line in logs)

                await eventually(is_logged)
                before = {entry.key: entry for entry in await answered(partial(world.bus.entries, VERDICTS))}
                assert 0 < len(before) < len(nodes)
                config = (await answered(partial(world.bus.api, f"STREAM.INFO.{VERDICTS.stream}")))["config"]
                await answered(
                    partial(world.bus.api, f"STREAM.UPDATE.{VERDICTS.stream}", config | {"max_bytes": 1 << 20})
                )
                for node in nodes:
                    await world.eventually(VIOLATED, SET, node=node)
        after = {entry.key: entry.revision for entry in await answered(partial(world.bus.entries, VERDICTS))}
        assert {key: entry.revision for key, entry in before.items()}.items() <= after.items()


async def test_a_verdict_that_the_bus_does_not_take_is_pending_for_ever_longer_until_it_is_stored(
    server: Server, world: World
) -> None:
    for node in (NODE, "calm.example"):
        await world.facts(node)
        await world.sample(node, m=1)
    await world.policy(**deschedule())
    await world.synced()
    registry = CollectorRegistry()

    def pending() -> float:
        return registry.get_sample_value("tas_verdict_pending_seconds") or 0.0

    async with Bus.connect(server.url, name="evaluate") as bus, running(worker(bus, registry=registry)):
        for node in (NODE, "calm.example"):
            await world.eventually(MET, ABSENT, node=node)
        await eventually(lambda: pending() == 0)
        config = (await answered(partial(world.bus.api, f"STREAM.INFO.{VERDICTS.stream}")))["config"]
        await answered(partial(world.bus.api, f"STREAM.UPDATE.{VERDICTS.stream}", config | {"max_msg_size": 1}))
        await world.sample(m=2)
        await eventually(lambda: pending() > 1.0)
        await world.sample("calm.example", m=0)  # its verdict does not change, so there is nothing to write
        before = pending()
        await eventually(lambda: pending() > before + 0.5)
        await answered(partial(world.bus.api, f"STREAM.UPDATE.{VERDICTS.stream}", config))
        await world.eventually(VIOLATED, SET)
        await eventually(lambda: pending() == 0)


async def test_every_verdict_is_copied_to_the_verdict_log(server: Server, world: World) -> None:
    await world.facts()
    await world.sample(m=2)
    await world.policy(**deschedule())
    await world.synced()
    async with evaluating(server):
        await world.eventually(VIOLATED, SET)
        await world.sample(m=1)
        await world.eventually(MET, ABSENT)

    async def copied() -> bool:
        state: Mapping[str, Any] = (await answered(partial(world.bus.api, f"STREAM.INFO.{VERDICT_LOG.stream}")))[
            "state"
        ]
        return bool(state["messages"] == 2)

    await eventually(copied)
