"""The worker `marks` over the sandbox and a real nats-server, also while things go wrong."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandbox import Sandbox
from sandbox.faults import Call, Which
from sandbox.resources import NODES
from tas.enforcing.marks import RULES_VIOLATED
from tests.integration.servers import Server, eventually
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

__all__ = ["marks", "world"]

OURS = "tas-on-nats/marks"


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start() as sandbox:
        yield sandbox


@pytest.fixture
def kubeconfig(sandbox: Sandbox, tmp_path: Path) -> Path:
    return sandbox.kubeconfig(tmp_path / "kubeconfig")


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
    sandbox: Sandbox, world: World, marks: Running
) -> None:
    sandbox.faults.answer(422, which=ours("patch"))
    node, name = await violating(world)
    await eventually(partial(has_condition, world, node, name, RULES_VIOLATED))
    assert marks.count("tas_marks_refused_total") == 1
    await marks.settled(world)
    assert not await has_taint(world, node, name)


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
    taint = {"key": PREFIX + name, "value": "violating", "effect": "NoSchedule"}
    sandbox.cluster.patch(NODES, "", node, {"spec": {"taints": [taint, FOREIGN_TAINT]}}, manager="user")

    async with marks_running(kubeconfig, server.url) as marks:
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
