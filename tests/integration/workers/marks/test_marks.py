"""The worker `marks` over the sandbox and a real nats-server, also while things go wrong."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bus.buckets import BREAKERS, PAUSED, SYNCED
from bus.feed import Feed
from bus.kinds import BREAKER_RECORDS, LEASE_RECORDS, PAUSE_RECORDS, REFUSED_MARKS
from lab.sandbox.resources import NODES
from tas.enforcing.marks import RULES_VIOLATED
from tas.verdict.freeze import ALL, Breaker, Pause, Trip
from tas.verdict.refused import RefusedLabel
from tests.integration.replicas import replica as running_replica
from tests.integration.servers import Server, answered, eventually
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.mark_scenarios import (
    BOTH,
    FOREIGN_TAINT,
    PREFIX,
    MarkScenarios,
    Running,
    has_condition,
    has_taint,
    is_bare,
    is_marked,
    is_met,
    marks,
    marks_running,
    taints,
)
from tests.kubernetes.world import World, deschedule
from tests.sandbox import Call, Sandbox, Which

__all__ = ["marks", "world"]

OURS = "tas-on-nats/marks"
UNKNOWN_FREEZES = "BREAKERS: no complete list yet (key _synced)"


class TestMarks(MarkScenarios):
    pass


def ours(verb: str, subresource: str = "") -> Which:
    """Requests of the worker for nodes."""
    return lambda call: (
        (call.verb, call.resource, call.subresource, call.user_agent)
        == (
            *(verb, "nodes", subresource),
            OURS,
        )
    )


def before_the_first(which: Which, happens: Callable[[], object]) -> Which:
    """Matches nothing; calls `happens` once, when the first such request arrives."""
    done: list[Call] = []

    def note(call: Call) -> bool:
        if not done and which(call):
            done.append(call)
            happens()
        return False

    return note


async def refused_marks(world: World, policy: str) -> tuple[RefusedLabel, ...]:
    """The refused marks of a policy, once there are some."""
    found: tuple[RefusedLabel, ...] = ()

    async def are_reported() -> bool:
        nonlocal found
        found = (await answered(partial(REFUSED_MARKS.get, world.bus, policy))).readable() or ()
        return bool(found)

    await eventually(are_reported)
    return found


async def has_lease_holder(world: World) -> bool:
    return (await answered(partial(LEASE_RECORDS.get, world.bus, "marks"))).present


@pytest.fixture
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused marks are written to the bus at once."""
    monkeypatch.setattr("workers.reconcile.refusal_records.CHECK_SECONDS", 0.05)
    monkeypatch.setattr("workers.reconcile.refusal_records.WRITE_SECONDS", 0.1)


async def has_no_refused_marks(world: World, policy: str) -> bool:
    return not (await answered(partial(REFUSED_MARKS.get, world.bus, policy))).present


async def violating(world: World, **options: Any) -> tuple[str, str]:
    """A node with the label of a policy that it violates, and the policy's name."""
    node, name = await world.node(), world.name()
    await world.policy(await world.namespace(), name, deschedule(**(options or BOTH)))
    await world.sample(node, health=1)
    await world.evaluate(node)
    await world.admin.label_node(node, {name: "violating"})
    return node, name


async def test_a_node_that_changes_before_the_patch_gets_no_mark_and_keeps_the_change(
    sandbox: Sandbox, world: World, marks: Running
) -> None:
    def change() -> None:
        patch = {"metadata": {"labels": {name: None}}, "spec": {"taints": [FOREIGN_TAINT]}}
        sandbox.cluster.patch(NODES, "", node, patch, manager="user")

    name = world.name()
    sandbox.faults.answer(500, which=before_the_first(ours("patch"), change))
    node, _ = await violating(world)
    await eventually(lambda: marks.count("tas_mark_patches_total", result="conflict") >= 1)
    await marks.settled(world)
    assert await is_bare(world, node, name)
    assert await taints(world, node) == [FOREIGN_TAINT]


async def test_a_taint_that_the_api_server_refuses_is_reported_and_the_condition_is_set(
    sandbox: Sandbox, world: World, quick_refusals: None, marks: Running
) -> None:
    sandbox.faults.answer(422, which=ours("patch"))
    node, name = await violating(world)
    await eventually(partial(has_condition, world, node, name, RULES_VIOLATED))
    assert marks.count("tas_marks_refused_total") == 1
    await marks.settled(world)
    assert not await has_taint(world, node, name)
    found = await refused_marks(world, name)
    assert [(each.label, each.value, each.nodes) for each in found] == [
        (f"taint {PREFIX}{name}", "NoSchedule", (node,)),
    ]
    await world.admin.label_node(node, {name: None})  # violated, but not labelled: nothing is refused any more
    await eventually(partial(has_no_refused_marks, world, name))


async def test_a_right_that_marks_lacks_is_reported_and_the_other_kind_of_marks_is_set(
    sandbox: Sandbox, world: World, quick_refusals: None, marks: Running
) -> None:
    sandbox.faults.answer(403, times=10_000, which=ours("patch"))
    node, name = await violating(world)
    await eventually(partial(has_condition, world, node, name, RULES_VIOLATED))
    (found,) = await refused_marks(world, name)
    assert (found.label, found.count) == (f"taint {PREFIX}{name}", 1)
    await eventually(lambda: marks.count("tas_mark_nodes_failing") == 1)
    sandbox.faults.clear()
    await eventually(partial(is_marked, world, node, name))
    await eventually(partial(has_no_refused_marks, world, name))


async def test_a_mark_does_not_end_by_reads_that_are_too_old(sandbox: Sandbox, world: World, marks: Running) -> None:
    node, name = await violating(world)
    await eventually(partial(is_marked, world, node, name))
    sandbox.faults.delay(2.1, which=ours("get"))
    await world.admin.label_node(node, {name: None})
    await world.sample(node, health=0)
    await world.evaluate(node)
    await eventually(lambda: marks.count("tas_mark_patches_total", result="conflict") >= 1)
    await eventually(partial(is_met, world, node, name))


async def test_a_verdict_alone_ends_no_mark(world: World, marks: Running) -> None:
    node, name = await violating(world)
    await eventually(partial(is_marked, world, node, name))
    await world.sample(node, health=0)
    await world.evaluate(node)
    await world.sample(node, health=1)  # violated again, without a new verdict
    await world.admin.label_node(node, {name: None})
    await eventually(lambda: marks.count("tas_mark_removals_unconfirmed_total") >= 1)
    assert await is_marked(world, node, name)


async def test_while_no_policy_has_marks_the_nodes_are_listed_once_and_orphans_go(
    sandbox: Sandbox, world: World, kubeconfig: Path, server: Server
) -> None:
    node, name = await world.node(), world.name()
    namespace = await world.namespace()
    await world.policy(namespace, name, deschedule())
    await world.remove(BREAKERS, SYNCED)
    async with marks_running(kubeconfig, server.url, worker="idle") as idle:  # ready, also on a new bus
        await eventually(lambda: not idle.worker._is_needed.is_set())
        assert idle.worker.unready() is None
    taint = {"key": PREFIX + name, "value": "violating", "effect": "NoSchedule"}
    sandbox.cluster.patch(NODES, "", node, {"spec": {"taints": [taint, FOREIGN_TAINT]}}, manager="user")

    async with marks_running(kubeconfig, server.url, wait=False) as marks:
        await eventually(lambda: marks.worker.unready() == UNKNOWN_FREEZES)
        assert await has_taint(world, node, name), "an orphan may be frozen, too"
        await world.synced(BREAKERS)
        await eventually(partial(is_bare, world, node, name))
        assert await taints(world, node) == [FOREIGN_TAINT]
        await eventually(lambda: not marks.worker._nodes)
        await eventually(lambda: sandbox.watches == 0)
        before = len(sandbox.calls)
        assert sandbox.count(which=ours("list"))[("list", "nodes")] == 1
        await world.sample(node, health=1)
        await world.evaluate(node)
        await world.admin.label_node(node, {name: "violating"})
        await world.policy(namespace, world.name("other"), deschedule())
        await eventually(lambda: len(marks.worker._policies) == 2)
        assert not [call for call in sandbox.calls[before:] if call.user_agent == OURS]

        await world.policy(namespace, name, deschedule(**BOTH))
        await world.evaluate(node)
        await eventually(partial(is_marked, world, node, name))


def pause() -> tuple[str, bytes]:
    return PAUSED, PAUSE_RECORDS.encode(Pause(by="test", since=time.time()))


def trip() -> tuple[str, bytes]:
    """Of the breaker over all policies."""
    return ALL, BREAKER_RECORDS.encode(Breaker(trip=Trip(since=time.time(), limit=1, wanted=2, selected=2)))


@pytest.mark.parametrize("freeze", [pause, trip])
async def test_after_a_wipe_no_mark_changes_until_the_freezes_are_complete_again(
    world: World,
    marks: Running,
    kubeconfig: Path,
    server: Server,
    freeze: Callable[[], tuple[str, bytes]],
) -> None:
    node, name = await violating(world)
    await eventually(partial(is_marked, world, node, name))
    key, record = freeze()
    await world.put(BREAKERS, key, record)
    await eventually(lambda: marks.worker._freezes.are_frozen(name))

    await server.restart(wiped=True)
    await world.bus.wait_connected()
    await world.begin(freezes=False)
    await world.facts(node, await world.admin.get(f"/api/v1/nodes/{node}"))
    await world.policy(world.namespaces[0], name, deschedule(**BOTH))
    await world.sample(node, health=0)
    await world.evaluate(node)
    await world.admin.label_node(node, {name: None})
    async with marks_running(kubeconfig, server.url, wait=False, worker="later") as later:  # never saw the freeze
        for replica in (marks, later):
            await eventually(lambda replica=replica: replica.worker.unready() == UNKNOWN_FREEZES)  # type: ignore[misc]
            await eventually(lambda replica=replica: node in replica.worker._nodes)  # type: ignore[misc]
            await replica.idle()
        assert await is_marked(world, node, name)
        await world.put(BREAKERS, key, record)  # as `labels` does, and then says that this was all
        await world.synced(BREAKERS)
        for replica in (marks, later):
            await eventually(lambda replica=replica: replica.worker.unready() is None)  # type: ignore[misc]
            await replica.idle()
        assert await is_marked(world, node, name)
        await world.remove(BREAKERS, key)
        await eventually(partial(is_met, world, node, name))


async def test_a_pause_that_the_watch_has_not_delivered_is_obeyed(
    world: World, marks: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, name = await violating(world)
    await eventually(partial(is_marked, world, node, name))
    receive = Feed._receive
    monkeypatch.setattr(
        Feed, "_receive", lambda feed, message: "" if feed._bucket is BREAKERS else receive(feed, message)
    )
    await world.put(BREAKERS, *pause())
    await world.sample(node, health=0)
    await world.evaluate(node)
    await world.admin.label_node(node, {name: None})
    await eventually(lambda: marks.count("tas_mark_nodes_failing") == 1)
    assert not marks.worker._freezes.are_frozen(name)
    assert await is_marked(world, node, name)


async def test_two_replicas_that_act_at_once_patch_each_mark_once(
    sandbox: Sandbox, world: World, kubeconfig: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.reconcile.lease_first.HOLD_BACK_SECONDS", 0.0)
    name, nodes = world.name(), [await world.node(f"node-{number}") for number in range(5)]
    await world.policy(await world.namespace(), name, deschedule(**BOTH))
    async with (
        marks_running(kubeconfig, server.url) as first,
        marks_running(kubeconfig, server.url, worker="second") as second,
    ):
        for health, label, is_as_wanted in ((1, "violating", is_marked), (0, None, is_met)):
            for node in nodes:
                await world.sample(node, health=health)
                await world.evaluate(node)
                await world.admin.label_node(node, {name: label})
            for node in nodes:
                await eventually(partial(is_as_wanted, world, node, name))
        for replica in (first, second):
            await replica.idle()
        changes = {
            (mark, change): sum(
                replica.count("tas_mark_changes_total", mark=mark, change=change) for replica in (first, second)
            )
            for mark, change in (("taint", "set"), ("taint", "removed"), ("condition", "set"), ("condition", "met"))
        }
        assert set(changes.values()) == {len(nodes)}, changes
    readers = {call.user_agent for call in sandbox.calls if (call.verb, call.resource) == ("get", "nodes")}
    assert {OURS, "tas-on-nats/second"} <= readers, "both wanted to patch"


async def test_another_replica_sets_the_mark_that_a_killed_replica_was_about_to_set(
    world: World, kubeconfig: Path, server: Server, tmp_path: Path
) -> None:
    name, node = world.name(), await world.node()
    await world.policy(await world.namespace(), name, deschedule(**BOTH))
    command = ["-m", "tests.integration.workers.halting_labels", server.url, str(kubeconfig), "KILL", "send"]
    with running_replica("marks", [*command, "--worker", "marks"], folder=tmp_path) as killed:
        await eventually(partial(has_lease_holder, world))
        await killed.ready()  # it may have the lease before; the other replica acts when it does nothing for a second
        async with marks_running(kubeconfig, server.url) as other:
            await world.sample(node, health=1)
            await world.evaluate(node)
            await world.admin.label_node(node, {name: "violating"})
            await eventually(lambda: killed.ended)
            await eventually(partial(is_marked, world, node, name))
            await eventually(lambda: other.count("tas_mark_changes_total", mark="taint", change="set") == 1)
            assert len(await taints(world, node)) == 1
