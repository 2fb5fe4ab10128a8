"""The records that the publisher follows, written by the test, and the events that it publishes."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial

from bus.buckets import BREAKERS, NODES, PAUSED, POLICIES, SOURCES, SYNCED, VERDICTS, Bucket
from bus.connection import Bus
from bus.events import EventReader
from bus.history import purge_tombstone
from bus.kinds import NODE_FACTS, NODE_VERDICTS
from bus.records.breakers import encode_breaker, encode_pause
from bus.records.codec import encode, time_of
from bus.records.nodes import NodeFacts
from bus.records.policies import PolicyRecord, encode_policy
from bus.records.sources import encode_source_state
from bus.records.synced import Synced
from bus.records.verdicts import encode_verdict
from bus.stream_reader import FROM_START
from bus.subjects import breaker_key, policy_key
from tas.events.event import Event
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tas.sources.state import SourceMetric, SourceState
from tas.verdict.freeze import Breaker, Pause, Trip
from tas.verdict.verdict import NodeVerdict, PolicyVerdict, StrategyVerdict
from tests.integration.servers import answered, eventually
from tests.integration.workers.running import put

KEY = PolicyKey("default", "p")
POLICY_UID = "policy-1"
OLD = 1_000_000_000.0
"""Before every epoch."""


class World:
    """The records of the other workers."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._states: dict[str, list[State]] = {}
        self._revisions: dict[str, int] = {}

    def forget(self) -> None:
        """Begins a new epoch: no node has a state before."""
        self._states.clear()
        self._revisions.clear()

    async def facts(self, node: str, *, created: float = OLD, **labels: str) -> int:
        facts = NodeFacts(uid=f"uid-{node}", labels=labels, created=time_of(created))
        return await put(self.bus, NODES, NODE_FACTS.key(node), encode(facts))

    async def delete_node(self, node: str) -> None:
        await put(self.bus, NODES, NODE_FACTS.key(node), None)
        await put(self.bus, VERDICTS, NODE_VERDICTS.key(node), None)
        self._states.pop(node, None)
        self._revisions.pop(node, None)

    async def policy(
        self, key: PolicyKey = KEY, *, generation: int = 1, created: float = OLD, operator: str = "GreaterThan"
    ) -> None:
        rule = {"metricname": "m", "operator": operator, "target": 1}
        policy, problems = parse_policy(key, {"strategies": {"deschedule": {"rules": [rule]}}})
        record = PolicyRecord(policy=policy, uid=POLICY_UID, generation=generation, problems=problems, created=created)
        await put(self.bus, POLICIES, policy_key(key), encode_policy(record))

    async def delete(self, bucket: Bucket, key: str, *, forgotten: bool = False) -> None:
        """Deletes a key; `forgotten`: and its tombstone, so that nobody who comes later sees the deletion."""
        revision = await put(self.bus, bucket, key, None)
        if forgotten:
            await purge_tombstone(self.bus, bucket, key, revision=revision)

    async def source(self, *, dry: bool) -> None:
        now = time.time()
        metrics = {"m": SourceMetric(missing="no value") if dry else SourceMetric(nodes=1)}
        state = SourceState(kind="prometheus", holder="h", since=now, time=now, period=1.0, polls=1, metrics=metrics)
        await put(self.bus, SOURCES, "prometheus", encode_source_state(state))

    async def breaker(self, policy: str, *, tripped: bool) -> None:
        trip = Trip(since=time.time(), limit=1, wanted=2, selected=3) if tripped else None
        await put(self.bus, BREAKERS, breaker_key(policy), encode_breaker(Breaker(nodes={"node-1": 1}, trip=trip)))

    async def pause(self, by: str | None) -> None:
        pause = None if by is None else encode_pause(Pause(by=by, since=time.time()))
        await put(self.bus, BREAKERS, PAUSED, pause)

    async def synced(self, *buckets: Bucket) -> None:
        """Says that the lists of these buckets are complete; by default those of policies and nodes."""
        for bucket in buckets or (POLICIES, NODES):
            epoch = (await answered(partial(self.bus.epoch, bucket))).created
            synced = Synced(epoch=epoch, count=1, time=datetime.now(UTC), writer="test", cluster=True)
            await put(self.bus, bucket, SYNCED, encode(synced))

    def _verdict(self, node: str, state: State) -> bytes:
        states = self._states.setdefault(node, [])
        if not states or states[-1] is not state:
            states.append(state)
        now = time.time()
        strategy = StrategyVerdict(state=state, changed=now, value="2", before=states[-2] if len(states) > 1 else None)
        policy = PolicyVerdict(uid=POLICY_UID, generation=1, strategies={StrategyType.DESCHEDULE: strategy})
        verdict = NodeVerdict(
            node_uid=f"uid-{node}", nodes_revision=1, policies_revision=1, time=now, policies={KEY: policy}
        )
        return encode_verdict(verdict)

    async def verdict(self, node: str, *states: State) -> int:
        """Writes one verdict after the other, and returns the last revision."""
        for state in states:
            self._revisions[node] = await put(self.bus, VERDICTS, NODE_VERDICTS.key(node), self._verdict(node, state))
        return self._revisions[node]

    async def verdict_without_policies(self, node: str) -> None:
        """Writes the verdict of a node after the deletion of the only policy."""
        verdict = NodeVerdict(
            node_uid=f"uid-{node}", nodes_revision=1, policies_revision=2, time=time.time(), policies={}
        )
        await put(self.bus, VERDICTS, NODE_VERDICTS.key(node), encode_verdict(verdict))

    async def verdict_by_hand(self, node: str) -> None:
        """Writes a verdict with a namespace that no policy can have."""
        verdict = self._verdict(node, State.VIOLATED).replace(b'"namespace":"default"', b'"namespace":"no name"')
        assert b"no name" in verdict
        await put(self.bus, VERDICTS, NODE_VERDICTS.key(node), verdict)

    async def verdicts(self, nodes: Iterable[str], state: State) -> None:
        """Writes the verdicts of many nodes, together."""
        messages = [
            (
                VERDICTS.subject(NODE_VERDICTS.key(node)),
                self._verdict(node, state),
                {"Nats-Expected-Last-Subject-Sequence": str(self._revisions.get(node, 0))},
            )
            for node in nodes
        ]
        for start in range(0, len(messages), 250):
            some = messages[start : start + 250]
            outcomes = await self.bus.link.publish_each(some, seconds=60)
            for (subject, _, _), outcome in zip(some, outcomes, strict=True):
                assert isinstance(outcome, int), outcome
                self._revisions[NODE_VERDICTS.parse_key(VERDICTS.key(subject)) or ""] = outcome

    async def events(self) -> list[Event]:
        """Every event that the stream has."""

        async def read() -> list[Event]:
            found: list[Event] = []
            async for batch in EventReader(self.bus, FROM_START).stored():
                assert not batch.invalid
                found += (message.event for message in batch.messages)
            return found

        return await answered(read)

    async def types(self, channel: str = "") -> list[str]:
        """What was published, as `type subject`, with `resync` if it is."""
        return [
            f"{event.data.TYPE.removesuffix('.v1')} {event.subject.rpartition('/')[2]}{' resync' * event.resync}"
            for event in await self.events()
            if event.data.CHANNEL.startswith(channel)
        ]

    async def until(self, *types: str, channel: str = "violation") -> None:
        """Waits until the events of a channel are these, in this order for each object."""
        found: list[str] = []

        async def is_published() -> bool:
            found[:] = await self.types(channel)
            return len(found) >= len(types)

        try:
            await eventually(is_published)
        except AssertionError as error:
            error.add_note(f"published: {found}")
            raise
        assert sorted(found, key=_object) == sorted(types, key=_object)


def _object(text: str) -> str:
    return text.split()[1]
