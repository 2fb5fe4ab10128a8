"""The worker `marks` over any API server. The test is `labels`: it sets and removes the labels itself."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import BREAKERS, PAUSED, POLICIES, VERDICTS
from bus.connection import Bus
from bus.kinds import BREAKER_RECORDS, PAUSE_RECORDS
from bus.subjects import breaker_key
from tas.enforcing.marks import RULES_MET, RULES_VIOLATED
from tas.verdict.freeze import Breaker, Pause, Trip
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.running import running
from tests.kubernetes.world import STALE_SECONDS, World, deschedule, rule
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.reflectors import Reflectors
from workers.marks.worker import Marks

__all__ = ["MarkScenarios", "marks"]

PREFIX = "telemetry.aware.scheduling/"
TAINT: dict[str, Any] = {"taint": {"effect": "NoSchedule"}}
BOTH: dict[str, Any] = TAINT | {"nodeCondition": True}
FOREIGN_TAINT = {"key": "dedicated", "value": "gpu", "effect": "PreferNoSchedule"}
FOREIGN_CONDITION = {
    "type": "example.com/Disk",
    "status": "False",
    "reason": "Fine",
    "message": "fine",
    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


class Running:
    """A running worker."""

    def __init__(self, worker: Marks, registry: CollectorRegistry, bus: Bus) -> None:
        self.worker = worker
        self._registry = registry
        self._bus = bus

    def count(self, metric: str, **labels: str) -> float:
        return self._registry.get_sample_value(metric, labels) or 0.0

    async def settled(self, world: World) -> None:
        """Waits until the worker has handled every earlier change of the bus and of nodes. Marks a new node."""
        policy = await world.policy(await world.namespace(f"s{time.monotonic_ns()}"), world.name("settled"), SETTLED)
        node = await world.node(f"settled-{time.monotonic_ns()}")
        await world.sample(node, settled=1)
        await world.evaluate(node)
        for bucket, watch in ((VERDICTS, self.worker._inputs.verdicts), (POLICIES, self.worker._inputs.policies)):
            last = (await answered(partial(self._bus.epoch, bucket))).last_sequence
            await eventually(lambda watch=watch, last=last: watch.status.applied >= last)  # type: ignore[misc]
        await world.admin.label_node(node, {policy.name: "violating"})
        await eventually(partial(is_tainted, world, node, policy.name))
        await self.idle()
        await world.delete_policy(policy)
        await world.admin.delete_node(node)

    async def idle(self) -> None:
        """Waits until no node is being reconciled or due."""
        queue, loop = self.worker._queue, asyncio.get_running_loop()

        def is_idle() -> bool:
            due = queue._due.next()
            return not queue._busy and (due is None or due > loop.time())

        await eventually(is_idle)


SETTLED = deschedule(rule("settled"), **TAINT)


@asynccontextmanager
async def marks_running(
    kubeconfig: Path, url: str, *, wait: bool = True, worker: str = "marks"
) -> AsyncIterator[Running]:
    """A replica with its own bus connection and client; ready if `wait`."""
    registry = CollectorRegistry()
    async with (
        Bus.connect(url, name="marks") as bus,
        KubernetesClient.connect(kubeconfig, worker=worker) as client,
    ):
        replica = Marks(bus, client, Reflectors(client), registry=registry, default_stale_after=STALE_SECONDS)
        async with running(replica):
            if wait:
                await eventually(lambda: replica.unready() is None)
            yield Running(replica, registry, bus)


@pytest.fixture
async def marks(kubeconfig: Path, server: Server, world: World) -> AsyncIterator[Running]:
    async with marks_running(kubeconfig, server.url) as marks:
        yield marks


async def taints(world: World, node: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await world.admin.get(f"/api/v1/nodes/{node}"))["spec"].get("taints", [])
    return found


async def condition(world: World, node: str, name: str) -> dict[str, Any] | None:
    found = (await world.admin.get(f"/api/v1/nodes/{node}"))["status"]["conditions"]
    return next((each for each in found if each["type"] == name), None)


async def is_tainted(world: World, node: str, policy: str) -> bool:
    return {"key": PREFIX + policy, "value": "violating", "effect": "NoSchedule"} in await taints(world, node)


async def is_marked(world: World, node: str, policy: str) -> bool:
    """Whether taint and condition are there, as the policy wants them."""
    return await is_tainted(world, node, policy) and await has_condition(world, node, policy, RULES_VIOLATED)


async def is_met(world: World, node: str, policy: str) -> bool:
    """Whether there is no taint, and the condition is False."""
    return not await has_taint(world, node, policy) and await has_condition(world, node, policy, RULES_MET)


async def has_condition(world: World, node: str, policy: str, expected: tuple[str, str, str]) -> bool:
    found = await condition(world, node, PREFIX + policy)
    return found is not None and tuple(map(found.get, ("status", "reason", "message"))) == expected


async def has_taint(world: World, node: str, policy: str) -> bool:
    return any(each["key"] == PREFIX + policy for each in await taints(world, node))


async def is_bare(world: World, node: str, policy: str) -> bool:
    return not await has_taint(world, node, policy) and await condition(world, node, PREFIX + policy) is None


@pytest.mark.real_api
class MarkScenarios:
    """For subclasses with the fixtures `kubeconfig`, `server`, `bus`, `world` and `marks`."""

    async def test_marks_follow_the_label_hold_while_unknown_and_end_with_a_sample(
        self, world: World, marks: Running
    ) -> None:
        node, name = await world.node(), world.name()
        path = f"/api/v1/nodes/{node}"
        own = (await world.admin.get(path))["status"]["conditions"]
        await world.admin.patch(path, {"spec": {"taints": [FOREIGN_TAINT]}})
        await world.admin.patch(f"{path}/status", {"status": {"conditions": [*own, FOREIGN_CONDITION]}})
        await world.policy(await world.namespace(), name, deschedule(**BOTH))
        await world.sample(node, health=1)
        await world.evaluate(node)
        await marks.settled(world)
        assert await is_bare(world, node, name)  # violated, but without the label

        await world.admin.label_node(node, {name: "violating"})
        await eventually(partial(is_marked, world, node, name))
        shown = await condition(world, node, PREFIX + name)

        await world.sample(node, health=0, age=STALE_SECONDS + 1)
        await world.evaluate(node)
        await world.admin.label_node(node, {name: None})
        await marks.settled(world)
        assert await is_marked(world, node, name)
        assert marks.count("tas_marks_without_label") == 1

        await world.sample(node, health=0)
        await world.evaluate(node)
        await eventually(partial(is_met, world, node, name))
        await eventually(lambda: marks.count("tas_marks_without_label") == 0)
        met = await condition(world, node, PREFIX + name)
        assert shown is not None
        assert met is not None
        assert met["lastTransitionTime"] >= shown["lastTransitionTime"]
        assert await taints(world, node) == [FOREIGN_TAINT]
        assert await condition(world, node, FOREIGN_CONDITION["type"]) == FOREIGN_CONDITION

    async def test_marks_that_somebody_edits_are_restored_a_suspended_policy_keeps_them_and_a_deleted_one_does_not(
        self, world: World, marks: Running
    ) -> None:
        node, name = await world.node(), world.name()
        path = f"/api/v1/nodes/{node}"
        policy = await world.policy(await world.namespace(), name, deschedule(**BOTH))
        await world.sample(node, health=1)
        await world.evaluate(node)
        await world.admin.label_node(node, {name: "violating"})
        await eventually(partial(is_marked, world, node, name))
        edited: tuple[Collection[dict[str, Any]], ...] = ((), ({"key": PREFIX + name, "effect": "NoExecute"},))
        for taint in edited:
            await world.admin.patch(path, {"spec": {"taints": [*taint]}})
            await eventually(partial(is_marked, world, node, name))
        found = (await world.admin.get(path))["status"]["conditions"]
        others = [each for each in found if each["type"] != PREFIX + name]
        wrong = {"type": PREFIX + name, "status": "False", "reason": "Mine"}
        for conditions in (others, [*others, wrong]):
            await world.admin.patch(f"{path}/status", {"status": {"conditions": conditions}})
            await eventually(partial(is_marked, world, node, name))

        await world.policy(policy.namespace, name, deschedule(**BOTH), suspend=True)
        await marks.settled(world)
        assert await is_marked(world, node, name)
        await world.delete_policy(policy)
        await eventually(partial(is_bare, world, node, name))
        assert (await world.labels(node))[name] == "violating"

    async def test_a_node_that_meets_the_rules_has_the_condition_false_and_an_unknown_one_has_none(
        self, world: World, marks: Running
    ) -> None:
        met, unknown, name = await world.node("met"), await world.node("unknown"), world.name()
        await world.policy(await world.namespace(), name, deschedule(**BOTH))
        await world.sample(met, health=0)
        await world.evaluate(met, unknown)
        await eventually(partial(is_met, world, met, name))
        await marks.settled(world)
        assert await is_bare(world, unknown, name)

    async def test_no_node_gets_a_mark_while_another_has_one_without_the_label_and_a_freeze_keeps_all_marks(
        self, world: World, marks: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("workers.marks.worker.HELD_BACK_SECONDS", 3600.0)  # who waits does not come by itself
        first, second, name = await world.node("first"), await world.node("second"), world.name()
        await world.policy(await world.namespace(), name, deschedule(**BOTH))
        for node in (first, second):
            await world.sample(node, health=1)
        await world.evaluate(first, second)
        await world.admin.label_node(first, {name: "violating"})
        await eventually(partial(is_marked, world, first, name))
        await world.admin.label_node(first, {name: None})
        await eventually(lambda: marks.count("tas_marks_without_label") == 1)
        await world.admin.label_node(second, {name: "violating"})
        await marks.settled(world)
        assert await is_marked(world, first, name)  # still violated: `labels` will restore the label
        assert await is_bare(world, second, name)

        freezes, trip = marks.worker._freezes, Trip(since=time.time(), limit=1, wanted=2, selected=2)
        await world.put(BREAKERS, PAUSED, PAUSE_RECORDS.encode(Pause(by="test", since=time.time())))
        await world.put(BREAKERS, breaker_key(name), BREAKER_RECORDS.encode(Breaker(trip=trip)))
        await eventually(lambda: freezes.are_frozen(None) and freezes.are_frozen(name))
        await world.sample(first, health=0)
        await world.evaluate(first)
        await world.remove(BREAKERS, PAUSED)
        await marks.settled(world)
        assert await is_marked(world, first, name)
        await world.remove(BREAKERS, breaker_key(name))
        await eventually(partial(is_met, world, first, name))
        await eventually(partial(is_marked, world, second, name))
