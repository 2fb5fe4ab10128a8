"""The publisher with a real bus: each transition once and in order, whatever is killed, paused, wiped or discarded."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from prometheus_client import CollectorRegistry

from bus import verdict_log
from bus.buckets import ANNOUNCED, BREAKERS, EVENTS, NODES, POLICIES, SOURCES, VERDICT_LOG, VERDICTS
from bus.connection import Bus
from bus.errors import UnavailableError
from bus.event_position import AnnouncedUpTo, read_position, write_position
from bus.events import Expected, publish_events
from bus.kinds import LEASE_RECORDS, NODE_FACTS, NODE_VERDICTS
from bus.records.leases import LeaseRecord
from bus.subjects import policy_key
from bus.verdict_log import LoggedVerdict, verdicts_at
from tas.events import cloudevents
from tas.events.announcements import Announcements
from tas.events.data import EndReason, Gap, MetricEnded, MetricFresh, PolicyRefused, ViolationEnded
from tas.events.event import Cause, Event, event_of, source_of
from tas.events.transitions import Epoch
from tas.policy.policy import PolicyKey
from tas.policy.rules import State
from tas.values.backoff import Backoff
from tas.verdict.freeze import ALL
from tests.integration.bus.copies import copy_without
from tests.integration.proxy import Proxy
from tests.integration.replicas import Replica, replica, tas
from tests.integration.servers import Server, answered, eventually
from tests.integration.watched import meanwhile
from tests.integration.workers.event_world import KEY, World
from tests.integration.workers.running import put, running
from workers.events import announcer, session
from workers.events.metrics import Metrics
from workers.events.session import Session
from workers.events.worker import LEASE, EventPublisher

pytestmark = pytest.mark.usefixtures("long_limits")

VIOLATED, MET, UNKNOWN = State.VIOLATED, State.MET, State.UNKNOWN


@pytest.fixture
def world(bus: Bus) -> World:
    return World(bus)


@pytest.fixture(autouse=True)
def _position_is_stored_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "POSITION_SECONDS", 0.2)


@asynccontextmanager
async def publishing(bus: Bus) -> AsyncIterator[CollectorRegistry]:
    registry = CollectorRegistry()
    worker = EventPublisher(bus, registry=registry, source=source_of("prod"))
    async with running(worker):
        await eventually(lambda: worker.unready() is None)
        await position_stored(bus, 0)  # before, a label or a source may be older than the epoch
        yield registry


def value(registry: CollectorRegistry, name: str) -> float:
    found = registry.get_sample_value(name)
    assert found is not None, name
    return found


async def prepared(world: World) -> None:
    """A policy and lists of a cluster: nodes whose facts the test does not write are of unknown age."""
    await world.policy()
    await world.synced()


async def last_sequence(bus: Bus, *, messages: int = 0) -> int:
    """The last sequence of the log, when the log has so many messages."""

    async def is_copied() -> bool:
        state = (await bus.api(f"STREAM.INFO.{VERDICT_LOG.stream}"))["state"]
        return bool(state["messages"] >= messages)

    await eventually(is_copied)
    return (await bus.epoch(VERDICT_LOG)).last_sequence


async def position_stored(bus: Bus, sequence: int) -> None:
    async def is_stored() -> bool:
        position, _ = await read_position(bus)
        return position is not None and not position.comparing and position.sequence >= sequence

    await eventually(is_stored)


async def test_transitions_are_published_and_nothing_else(bus: Bus, world: World) -> None:
    await world.facts("node-1")
    await world.facts("node-2", created=2e9)
    await world.policy()
    await world.synced()
    await world.verdict_by_hand("node-9")
    await world.verdict("node-1", UNKNOWN)
    async with publishing(bus):
        await world.verdict("node-1", VIOLATED, VIOLATED, UNKNOWN, VIOLATED, MET)
        await world.verdict("node-2", VIOLATED, MET, UNKNOWN)
        await world.until(
            "violation.started node-1 resync",
            "violation.ended node-1",
            "violation.started node-2",
            "violation.ended node-2",
        )
        await world.until("metric.stale node-1", "metric.fresh node-1", "metric.stale node-2", channel="metric")
        assert await world.types("policy") == ["policy.accepted p resync"]
        # The bucket of each of these records has only the newest revision: so each change is waited for.
        by_hand: dict[str, Any] = {"no name": "violating"}
        await world.facts("node-1", p="violating", zone="a", **by_hand)
        await world.source(dry=False)
        await world.source(dry=True)
        await world.policy(generation=2, operator="Nonsense")
        for policy in (KEY.name, ALL):
            await world.breaker(policy, tripped=True)
        await world.pause("ops@host")
        await world.until("label.applied node-1", channel="label")
        await world.until("source.dry prometheus", channel="source")
        await world.until("policy.accepted p resync", "policy.refused p", channel="policy")
        await world.until("breaker.tripped p", "breaker.tripped _all", channel="breaker")
        await world.until("labels.paused pause", channel="pause")
        await world.facts("node-1", p="violating", zone="b")
        await world.facts("node-1", zone="b")
        await world.source(dry=True)
        await world.source(dry=False)
        await world.policy(generation=3)
        for policy in (KEY.name, ALL):
            await world.breaker(policy, tripped=False)
        await world.pause(None)
        await world.until("label.applied node-1", "label.removed node-1", channel="label")
        await world.until("source.dry prometheus", "source.back prometheus", channel="source")
        await world.until("policy.accepted p resync", "policy.refused p", "policy.accepted p", channel="policy")
        await world.until(
            "breaker.tripped p", "breaker.reset p", "breaker.tripped _all", "breaker.reset _all", channel="breaker"
        )
        await world.until("labels.paused pause", "labels.resumed pause", channel="pause")
        assert await world.types("bus") == ["bus.epochchanged bus"]
    events = await world.events()
    assert len({event.id for event in events}) == len(events)
    assert {event.source for event in events} == {"/telemetry-aware-scheduling/prod"}


async def test_what_happened_while_no_replica_ran_is_published_later_and_nothing_twice(
    bus: Bus, world: World, server: Server
) -> None:
    await prepared(world)
    await world.verdict("node-1", MET)
    async with publishing(bus):
        await world.verdict("node-1", VIOLATED)
        await world.until("violation.started node-1")
        await position_stored(bus, await last_sequence(bus))
    await world.verdict("node-1", MET, VIOLATED, MET, VIOLATED)
    expected = ("violation.started node-1", "violation.ended node-1") * 2 + ("violation.started node-1",)
    async with publishing(bus) as registry:
        await world.until(*expected)
        assert value(registry, "tas_events_gaps_total") == 0
        # A position that was never stored: everything is compared again.
        await server.restart()
        await bus.wait_connected()
        await world.verdict("node-1", MET)
        await world.until(*expected, "violation.ended node-1")
    async with publishing(bus):
        await world.verdict("node-2", MET, VIOLATED)
        await world.until(*expected, "violation.ended node-1", "violation.started node-2")
    ids = [event.id for event in await world.events()]
    assert len(ids) == len(set(ids))


async def test_after_a_wipe_what_only_restates_is_marked(bus: Bus, world: World, server: Server) -> None:
    await world.facts("node-1", p="violating")
    await prepared(world)
    await world.verdict("node-1", MET)
    async with publishing(bus):
        await world.verdict("node-1", VIOLATED)
        await world.until("violation.started node-1")
        old = {event.id for event in await world.events()}
        await server.restart(wiped=True)
        await bus.wait_connected()
        await answered(partial(bus.epoch, VERDICTS))
        world.forget()
        await world.facts("node-1", p="violating")
        await prepared(world)
        await world.facts("new", created=time.time() + 3600)
        await world.verdict("node-1", UNKNOWN, VIOLATED)
        await world.until("violation.started node-1 resync")
        await world.verdict("node-1", MET, VIOLATED)
        await world.verdict("new", VIOLATED)
        await world.until(
            "violation.started node-1 resync",
            "violation.ended node-1",
            "violation.started node-1",
            "violation.started new",
        )
        assert await world.types("label") == ["label.applied node-1 resync"]
        assert await world.types("bus") == ["bus.epochchanged bus"]
        assert not old & {event.id for event in await world.events()}


async def test_lost_verdicts_are_marked_before_what_follows(bus: Bus, world: World) -> None:
    await prepared(world)
    await world.verdict("node-1", MET)
    async with publishing(bus):
        await world.verdict("node-1", VIOLATED)
        await world.until("violation.started node-1")
        await position_stored(bus, await last_sequence(bus))
    await world.verdict("node-1", MET)
    await world.verdict("node-2", MET, VIOLATED, MET, VIOLATED)
    lost = await last_sequence(bus, messages=7)
    await bus.api(f"STREAM.PURGE.{VERDICT_LOG.stream}", {"seq": lost + 1})
    await world.verdict("node-3", VIOLATED)
    async with publishing(bus) as registry:
        await world.until("violation.started node-1", "violation.ended node-1", *STARTED_LATER)
        assert value(registry, "tas_events_gaps_total") == 1
    (gap,) = [event for event in await world.events() if isinstance(event.data, Gap)]
    assert isinstance(gap.data, Gap)
    assert (gap.data.stream, gap.data.last) == (VERDICT_LOG.name, lost)
    channels = [event.data.CHANNEL for event in await world.events() if event.data.CHANNEL in ("violation", "gap")]
    assert channels == ["violation", "gap", "violation", "violation", "violation"]


async def test_what_is_announced_of_a_node_ends_if_its_deletion_was_lost(bus: Bus, world: World) -> None:
    await prepared(world)
    await world.facts("node-1")
    async with publishing(bus):
        await world.verdict("node-1", MET, VIOLATED, UNKNOWN)
        await world.until("metric.stale node-1", channel="metric")
        await position_stored(bus, await last_sequence(bus))
    await world.delete_node("node-1")
    lost = await last_sequence(bus, messages=4)
    await bus.api(f"STREAM.PURGE.{VERDICT_LOG.stream}", {"seq": lost + 1})
    await world.verdict("node-2", MET)
    async with publishing(bus):
        await world.until("metric.stale node-1", "metric.ended node-1", channel="metric")
        await world.until("violation.started node-1", "violation.ended node-1")
    ends = [event.data for event in await world.events() if isinstance(event.data, MetricEnded | ViolationEnded)]
    assert [end.reason for end in ends] == [EndReason.NODE_REMOVED] * 2


async def test_a_metric_that_an_earlier_version_left_stale_ends_after_the_upgrade(bus: Bus, world: World) -> None:
    """The earlier version has announced up to the end of the log, which has the deletions, and no end."""
    await prepared(world)
    nodes = ["node-1", "node-2", "node-3"]
    for node in nodes:
        await world.facts(node)
    async with publishing(bus):
        for node in nodes:
            await world.verdict(node, MET, UNKNOWN)
        await world.until(*(f"metric.stale {node}" for node in nodes), channel="metric")
        await position_stored(bus, await last_sequence(bus, messages=6))
    await world.delete_node("node-1")
    await world.verdict_without_policies("node-2")
    end, log, verdicts = await last_sequence(bus, messages=8), await bus.epoch(VERDICT_LOG), await bus.epoch(VERDICTS)
    _, stored = await read_position(bus)
    earlier = AnnouncedUpTo(
        epoch=verdicts.created, log=log.created, sequence=end, revision=verdicts.last_sequence, ends_metrics=False
    )
    await write_position(bus, earlier, expected=stored)
    published = [*(f"metric.stale {node}" for node in nodes), "metric.ended node-1", "metric.ended node-2"]
    for _ in range(2):  # the second time it is known
        async with publishing(bus):
            await world.until(*published, channel="metric")
    ends = {event.data.node: event.data.reason for event in await world.events() if isinstance(event.data, MetricEnded)}
    assert ends == {"node-1": EndReason.NODE_REMOVED, "node-2": EndReason.POLICY_REMOVED}


async def test_a_refused_policy_ends_with_its_deletion_also_if_only_a_complete_list_lacks_it(
    bus: Bus, world: World
) -> None:
    await prepared(world)
    published = ["policy.accepted p resync"]

    async def refused() -> None:
        await world.policy(generation=2, operator="Nonsense")
        await world.until(*published, "policy.refused p", channel="policy")
        published.append("policy.refused p")

    async def removed() -> None:
        await world.until(*published, "policy.removed p", channel="policy")
        published.append("policy.removed p")

    async with publishing(bus):
        await refused()
        await world.delete(POLICIES, policy_key(KEY))
        await removed()
        await refused()
    await world.delete(POLICIES, policy_key(KEY), forgotten=True)  # while no replica runs
    async with publishing(bus):
        await removed()
        await refused()
        await bus.api(f"STREAM.DELETE.{POLICIES.stream}")
        await world.policy(PolicyKey(KEY.namespace, "q"))
        # That the policy is absent says nothing until the list of the new epoch is complete.
        await world.until(*published, "policy.accepted q resync", channel="policy")
        published.append("policy.accepted q resync")
        await world.synced(POLICIES)
        await removed()
    ids = [event.id for event in await world.events()]
    assert len(ids) == len(set(ids))


async def test_what_is_written_again_while_a_list_is_read_is_not_absent(bus: Bus, world: World) -> None:
    """The server delivers the new revision behind the others, maybe after the watch has caught up."""
    await prepared(world)
    keys = [PolicyKey(KEY.namespace, f"q{number}") for number in range(20)]
    nodes = [f"node-{number}" for number in range(20)]

    async def write() -> None:
        for node in nodes:
            await world.facts(node, p="violating")
        for key in keys:
            await world.policy(key)

    async def write_again() -> None:
        while True:
            await write()

    await write()
    async with publishing(bus):
        pass
    writing = asyncio.create_task(write_again())
    try:
        for _ in range(10):
            async with publishing(bus):
                pass
    finally:
        writing.cancel()
    assert sorted(await world.types("policy")) == sorted(
        f"policy.accepted {name} resync" for name in [KEY.name, *(key.name for key in keys)]
    )
    assert sorted(await world.types("label")) == sorted(f"label.applied {node} resync" for node in nodes)


async def test_labels_end_with_the_nodes_that_the_complete_list_of_a_new_epoch_lacks(bus: Bus, world: World) -> None:
    for node in ("node-1", "node-2"):
        await world.facts(node, p="violating")
    await prepared(world)
    published = ["label.applied node-1 resync", "label.applied node-2 resync"]
    async with publishing(bus):
        await world.until(*published, channel="label")
        await bus.api(f"STREAM.DELETE.{NODES.stream}")
        await put(bus, NODES, NODE_FACTS.key("node-2"), b"unreadable: but the node exists")
        await world.facts("node-3", p="violating")
        await world.until(*published, "label.applied node-3", channel="label")
        await world.synced(NODES)
        await world.until(*published, "label.applied node-3", "label.removed node-1", channel="label")


async def test_freezes_end_if_the_complete_list_of_a_new_epoch_lacks_them(bus: Bus, world: World) -> None:
    await prepared(world)
    tripped = ["breaker.tripped p", "breaker.tripped _all"]
    async with publishing(bus):
        for policy in (KEY.name, ALL):
            await world.breaker(policy, tripped=True)
        await world.pause("ops@host")
        await world.until(*tripped, channel="breaker")
        await world.until("labels.paused pause", channel="pause")
        await bus.api(f"STREAM.DELETE.{BREAKERS.stream}")
        await world.breaker("q", tripped=True)
        await world.until(*tripped, "breaker.tripped q", channel="breaker")
        assert await world.types("pause") == ["labels.paused pause"]
        await world.synced(BREAKERS)
        ends = ["breaker.reset p", "breaker.reset _all"]
        await world.until(*tripped, *ends, "breaker.tripped q", channel="breaker")
        await world.until("labels.paused pause", "labels.resumed pause", channel="pause")


async def test_a_source_is_back_if_its_state_has_expired_while_no_replica_ran(
    bus: Bus, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepared(world)
    await world.source(dry=False)
    async with publishing(bus):
        await world.source(dry=True)
        await world.until("source.dry prometheus", channel="source")
    await world.delete(SOURCES, "prometheus", forgotten=True)
    monkeypatch.setattr(session, "EPOCH_CHECK_SECONDS", 0.1)
    async with publishing(bus):
        await world.policy(generation=2)
        await world.until("policy.accepted p resync", "policy.accepted p", channel="policy")
        assert await world.types("source") == ["source.dry prometheus"]
    monkeypatch.setattr(session, "EXPIRE_SECONDS", 0.5)
    async with publishing(bus):
        await world.until("source.dry prometheus", "source.back prometheus", channel="source")


async def test_a_source_whose_state_is_stored_does_not_expire(
    bus: Bus, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago this process has seen a state."""
    await prepared(world)
    checks = 0

    async def tick(_: float) -> None:
        nonlocal checks
        checks += 1
        await asyncio.sleep(0.01)

    async with publishing(bus):
        await world.source(dry=False)
        await world.source(dry=True)
        await world.until("source.dry prometheus", channel="source")
    monkeypatch.setattr(session, "tick", tick)
    monkeypatch.setattr(session, "EXPIRE_SECONDS", 0.0)
    async with publishing(bus):
        before = checks
        await eventually(lambda: checks > before + 2)
        await world.policy(generation=2)  # announced behind what the checks have found
        await world.until("policy.accepted p resync", "policy.accepted p", channel="policy")
        assert await world.types("source") == ["source.dry prometheus"]
        await world.delete(SOURCES, "prometheus")
        await world.until("source.dry prometheus", "source.back prometheus", channel="source")


class MetricOfALaterVersion(MetricFresh, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "metric.later.v1"


async def test_an_event_of_a_later_version_keeps_no_other_one_back(bus: Bus, world: World) -> None:
    """As after an update that was undone."""
    await prepared(world)
    await world.verdict("node-1", MET)
    later = MetricOfALaterVersion(node="node-1", namespace="default", policy="p", strategy="deschedule", state="met")
    await publish_events(bus, [Expected(event_of(later, Cause("1", 1), time=time.time()), 0)])
    async with publishing(bus) as registry:
        await world.verdict("node-1", UNKNOWN)
        await world.until("metric.stale node-1", channel="metric")
        await world.verdict("node-1", VIOLATED)
        await world.until("violation.started node-1")
        assert value(registry, "tas_events_conflicts_total") == 1


async def test_an_event_about_another_thing_than_its_subject_keeps_no_other_one_back(bus: Bus, world: World) -> None:
    """`resources` may write it, and no policy can have this name: the publisher asked for the policy, and ended."""
    await prepared(world)
    data = PolicyRefused(namespace="a$b", policy="p", policy_uid="u", generation=1, problems=("why",), total=1)
    forged = event_of(data, Cause("1", 1), time=time.time())
    stored = await bus.publish_each(
        EVENTS, [("tas.events.resource.node-1", cloudevents.body(forged), cloudevents.headers(forged))]
    )
    assert isinstance(stored[0], int)
    async with publishing(bus):
        await world.verdict("node-1", MET, VIOLATED)
        await world.until("violation.started node-1")
        await position_stored(bus, await last_sequence(bus, messages=2))  # in a session that has compared all lists


STARTED_LATER = ("violation.started node-2", "violation.started node-3 resync")


async def test_events_that_the_stream_has_dropped_keep_no_later_one_back(
    bus: Bus, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepared(world)
    await world.verdict("node-1", MET)
    async with publishing(bus) as registry:
        monkeypatch.setattr(announcer, "POSITION_SECONDS", 3600.0)  # it is dropped, too: the session would end
        await world.verdict("node-1", VIOLATED)
        await world.until("violation.started node-1")
        await bus.api(f"STREAM.PURGE.{EVENTS.stream}")
        await world.verdict("node-1", MET)
        await world.until("violation.ended node-1")
        assert value(registry, "tas_events_conflicts_total") == 1


async def test_the_end_of_a_violation_is_published_if_the_server_has_not_copied_its_start_yet(
    bus: Bus, world: World
) -> None:
    await prepared(world)
    await world.verdict("node-1", MET)
    async with publishing(bus):
        config = (await bus.api(f"STREAM.INFO.{ANNOUNCED.stream}"))["config"]
        await bus.api(f"STREAM.UPDATE.{ANNOUNCED.stream}", config | {"sources": []})
        await world.verdict("node-1", VIOLATED)
        await world.until("violation.started node-1")
        await position_stored(bus, await last_sequence(bus, messages=2))
    await world.verdict("node-1", MET)
    async with publishing(bus):
        await world.until("violation.started node-1", "violation.ended node-1")


async def test_a_burst_of_transitions_costs_one_message_each(
    bus: Bus, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcer, "MAX_QUEUED", 512)  # the log waits on the bus
    nodes = [f"node-{number}" for number in range(400)]
    await prepared(world)
    async with publishing(bus) as registry:
        for state in (MET, VIOLATED, MET, VIOLATED, MET, MET):
            await world.verdicts(nodes, state)

        async def published() -> bool:
            state = (await bus.api(f"STREAM.INFO.{EVENTS.stream}", {"subjects_filter": "tas.events.violation.>"}))[
                "state"
            ]
            return bool(sum(state.get("subjects", {}).values()) == 4 * len(nodes))

        await eventually(published)
        state = (await bus.api(f"STREAM.INFO.{EVENTS.stream}"))["state"]
        assert value(registry, "tas_events_gaps_total") == 0
    assert state["messages"] < 4 * len(nodes) + 100
    assert state["bytes"] < 1000 * state["messages"]
    events: dict[str, list[str]] = {}
    for event in await world.events():
        if event.data.CHANNEL == "violation":
            events.setdefault(event.subject, []).append(event.data.TYPE)
    assert all(types == ["violation.started.v1", "violation.ended.v1"] * 2 for types in events.values())


async def test_replicas_that_are_paused_and_killed_publish_each_transition_once(
    bus: Bus, world: World, server: Server, tmp_path: Path
) -> None:
    await prepared(world)
    await world.verdict("node-1", MET)
    command = tas("events", bus=server.url)
    with replica("first", command, folder=tmp_path) as first, replica("second", command, folder=tmp_path) as second:
        await first.ready()
        await second.ready()
        published = ["violation.started node-1"]
        await world.verdict("node-1", VIOLATED)
        await world.until(*published)
        (holder,) = [each for each in (first, second) if holds(each)]
        other = second if holder is first else first
        # It has received the change that it publishes when it goes on, and the other has published it.
        holder.pause()
        await world.verdict("node-1", MET, VIOLATED)
        published += ["violation.ended node-1", "violation.started node-1"]
        await world.until(*published)
        assert holds(other)
        holder.resume()
        await world.verdict("node-1", MET)
        await world.until(*(published := [*published, "violation.ended node-1"]))
        other.kill()
        await world.verdict("node-1", VIOLATED, MET)
        published += ["violation.started node-1", "violation.ended node-1"]
        await world.until(*published)
        holder.must_run()
    ids = [event.id for event in await world.events()]
    assert len(ids) == len(set(ids))


async def test_a_replica_that_is_paused_while_it_compares_the_last_verdicts_loses_no_transition(
    bus: Bus, world: World, server: Server, tmp_path: Path
) -> None:
    await prepared(world)
    await world.verdict("node-1", MET, VIOLATED)
    await world.verdict("node-2", MET)
    async with Proxy.before(server.url) as proxy:
        proxy.halt_before = b'"comparing":""'
        with replica("first", tas("events", bus=proxy.url), folder=tmp_path) as first:
            await eventually(proxy.halted.is_set)
            first.pause()
            await world.until("violation.started node-1")
            begun, _ = await read_position(bus)
            assert begun is not None
            assert begun.comparing
            assert not begun.epoch
            await world.verdict("node-1", MET, VIOLATED, MET)
            await world.verdict("node-2", VIOLATED, MET)
            async with publishing(bus) as registry:
                await world.until(
                    *("violation.started node-1", "violation.ended node-1") * 2,
                    "violation.started node-2",
                    "violation.ended node-2",
                )
                assert value(registry, "tas_events_gaps_total") == 0
    ids = [event.id for event in await world.events()]
    assert len(ids) == len(set(ids))


async def test_a_violation_that_ended_before_it_could_be_compared_is_published(bus: Bus, world: World) -> None:
    await prepared(world)
    await world.verdict("node-1", MET, VIOLATED)
    await world.verdict("node-2", MET)
    # As of a replica that was killed before it had compared any verdict.
    begin, log = await last_sequence(bus, messages=3), await bus.epoch(VERDICT_LOG)
    verdicts = await bus.epoch(VERDICTS)
    position = AnnouncedUpTo(
        epoch="", log=log.created, sequence=begin, revision=verdicts.last_sequence, comparing=verdicts.created
    )
    await write_position(bus, position, expected=0)
    await world.verdict("node-1", UNKNOWN, MET)
    await world.verdict("node-2", VIOLATED, MET)
    await world.verdict("node-3", MET)
    async with publishing(bus):
        await world.until(
            *("violation.started node-1", "violation.ended node-1"),
            *("violation.started node-2", "violation.ended node-2"),
        )
        await world.until("metric.stale node-1", "metric.fresh node-1", channel="metric")


@pytest.mark.parametrize("filters", [2, 100])
async def test_what_verdicts_were_at_a_revision(
    bus: Bus, world: World, monkeypatch: pytest.MonkeyPatch, filters: int
) -> None:
    monkeypatch.setattr(verdict_log, "MAX_FILTERS", filters)
    nodes = [f"node-{number}" for number in range(5)]
    await world.verdicts([*nodes, "other"], MET)
    expected = {node: await world.verdict(node, VIOLATED) for node in nodes}
    revision = max(expected.values())
    await world.verdicts(["new", *nodes], MET)

    async def found() -> dict[str, int]:
        parts = verdicts_at(bus, revision, ["new", *nodes])
        return {entry.key: entry.revision async for part in parts for entry in part}

    assert await found() == expected
    subjects = [VERDICTS.subject(NODE_VERDICTS.key(node)) for node in ("new", *nodes)]
    with copy_without(VERDICTS, *subjects), pytest.raises(UnavailableError, match="lacks"):
        await found()


async def test_a_position_that_is_noted_while_another_one_is_stored_is_stored_next(bus: Bus, server: Server) -> None:
    async def read_nothing(_events: Sequence[Event]) -> bool:
        return False

    async with Proxy.before(server.url) as proxy, Bus.connect(proxy.url, name="far") as far:
        await far.wait_connected()
        announcing = announcer.Announcer(
            far,
            Metrics(CollectorRegistry()),
            announced=Announcements(),
            epoch=Epoch("1", 1.0),
            streams=("verdicts", "log"),
            position_sequence=0,
            source="test",
            read_unknown=read_nothing,
        )
        async with meanwhile(announcing.run()):
            proxy.flowing.clear()
            announcing.note_position(LoggedVerdict(None, 1, 1))
            await position_stored(bus, 1)  # the answer to this write does not come yet
            announcing.note_position(LoggedVerdict(None, 2, 2))
            proxy.flowing.set()
            await position_stored(bus, 2)


def holds(replica: Replica) -> bool:
    return any(event["event"] == "lease_acquired" for event in replica.events())


class NotedBackoff(Backoff):
    """Waits shortly, and notes after how many sessions."""

    sessions: ClassVar[list[int]] = []
    waits: ClassVar[list[int]] = []

    def after(self, failures: int, chance: Callable[[], float] = lambda: 0.0) -> float:
        self.waits.append(len(self.sessions))
        return super().after(failures, chance)


async def test_a_session_that_fails_after_a_long_wait_for_the_lease_is_followed_by_a_wait(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other replica was killed. Its lease expires after a longer time than that after which a session is stable."""
    noted = NotedBackoff(first=0.01, longest=0.01)

    async def begin(*_: object, **__: object) -> Session:
        noted.sessions.append(1)
        raise UnavailableError("no answer")

    monkeypatch.setattr("workers.events.worker.RETRY", noted)
    monkeypatch.setattr("workers.events.worker.STABLE_SECONDS", 1.0)
    monkeypatch.setattr(Session, "begin", begin)
    killed = LeaseRecord(holder="killed", token="1")
    await answered(partial(LEASE_RECORDS.put, bus, LEASE, killed, revision=0, read_at=time.monotonic(), ttl_seconds=2))
    async with running(EventPublisher(bus, registry=CollectorRegistry())):
        await eventually(lambda: len(noted.sessions) >= 2)
    assert noted.waits[0] == 1


async def test_replicas_whose_sessions_fail_say_so_until_one_works(
    bus: Bus, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a session a replica looks as if it were on standby: and then the other one is."""
    monkeypatch.setattr("workers.events.worker.STABLE_SECONDS", 0.2)
    await prepared(world)
    settings = (await bus.api(f"STREAM.INFO.{EVENTS.stream}"))["config"]
    await bus.api(f"STREAM.UPDATE.{EVENTS.stream}", settings | {"max_msg_size": 1})
    one, other = (EventPublisher(bus, registry=CollectorRegistry()) for _ in range(2))
    async with running(one):
        await eventually(lambda: "message size exceeds" in "".join(one.concerns()))
        async with running(other):
            await eventually(lambda: "message size exceeds" in "".join(other.concerns()))
            await bus.api(f"STREAM.UPDATE.{EVENTS.stream}", settings)
            await eventually(lambda: not [*one.concerns(), *other.concerns()])
            assert await world.types("bus") == ["bus.epochchanged bus"]
