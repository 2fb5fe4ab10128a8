"""The status of TASPolicies over any API server."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import BREAKERS, PAUSED, REFUSALS
from bus.connection import Bus
from bus.records.breakers import encode_breaker
from bus.records.refusals import encode_refused_marks
from bus.subjects import breaker_key, refused_marks_key
from tas.policy.policy import MARK_PREFIX, PolicyKey
from tas.verdict.freeze import UNREADABLE_PAUSE, Breaker, Trip
from tas.verdict.refused import RefusedLabel
from tests.integration.servers import Server, eventually
from tests.integration.workers.running import running
from tests.kubernetes.world import STALE_SECONDS, World, deschedule, labeling, rule
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.reflectors import Reflectors
from workers.status import worker as module
from workers.status.worker import PolicyStatus

__all__ = ["Checking", "StatusScenarios", "status", "wait_for_status"]


class Checking(PolicyStatus):
    """The worker, which notes its checks of policies.

    Attributes:
        checks: Of each finished check the policy, the monotonic time at which it began, and whether a patch was sent.
    """

    def __init__(self, bus: Bus, client: KubernetesClient) -> None:
        self.registry = CollectorRegistry()
        super().__init__(bus, client, Reflectors(client), registry=self.registry, default_stale_after=STALE_SECONDS)
        self.checks: list[tuple[PolicyKey, float, bool]] = []

    async def patch(self, written: Any, following: Any) -> bool:
        began = time.monotonic()
        sent = await super().patch(written, following)
        self.checks.append((written.policy.key, began, sent))
        return sent

    def suspended(self) -> float | None:
        """The number of policies that are not ready because they are suspended, as the metric has it."""
        return self.registry.get_sample_value("tas_policies_not_ready", {"reason": "Suspended"})

    def sent(self, key: PolicyKey) -> list[bool]:
        """Of each finished check of a policy, whether a patch was sent."""
        return [sent for checked, _, sent in self.checks if checked == key]


@asynccontextmanager
async def status_running(kubeconfig: Path, url: str) -> AsyncIterator[Checking]:
    async with (
        Bus.connect(url, name="status") as bus,
        KubernetesClient.connect(kubeconfig, worker="status") as client,
    ):
        await bus.wait_connected()
        worker = Checking(bus, client)
        async with running(worker):
            yield worker


@pytest.fixture
async def status(kubeconfig: Path, server: Server, world: World) -> AsyncIterator[Checking]:
    """The only replica, on a new bus."""
    async with status_running(kubeconfig, server.url) as worker:
        yield worker


async def wait_for_status(
    world: World, key: PolicyKey, fields: Mapping[str, Any] | None = None, /, **conditions: tuple[str, str]
) -> dict[str, Any]:
    """Waits until a status has these conditions (status and reason by type) and fields, and returns the status."""
    status: dict[str, Any] = {}

    async def is_reported() -> bool:
        nonlocal status
        status = (await world.admin.get(f"{world.admin.policies(key.namespace)}/{key.name}")).get("status", {})
        found = {each["type"]: (each["status"], each["reason"]) for each in status.get("conditions", ())}
        return conditions.items() <= found.items() and all(
            status.get(name) == value for name, value in (fields or {}).items()
        )

    await eventually(is_reported, every=0.05)
    return status


class StatusScenarios:
    """For subclasses with the fixtures `kubeconfig`, `server`, `bus`, `world` and `status`."""

    @pytest.mark.real_api
    async def test_a_status_has_the_state_of_the_policy(self, world: World, status: Checking) -> None:
        one, two = await world.node("one"), await world.node("two")
        key = await world.policy(
            await world.namespace(), world.name(), deschedule() | {"strategy_unavailable": {"rules": []}}
        )
        unknown = {"Violating": ("Unknown", "NoVerdict"), "MetricsSeen": ("False", "NoFreshSample")}
        await wait_for_status(world, key, Ready=("True", "PartlyIgnored"), **unknown)
        await world.sample(one, health=1)
        await world.sample(two, health=0)
        await world.evaluate(one, two)
        both = {"strategies": [{"name": "deschedule", "violated": 1, "met": 1, "unknown": 0}]}
        violating = {"Violating": ("True", "NodesViolate"), "MetricsSeen": ("True", "Fresh")}
        found = await wait_for_status(world, key, both, **violating)
        assert found["violating"] == 1
        assert found["violatingNodes"] == [one]
        assert found["observedGeneration"] == 1
        assert [each["field"] for each in found["problems"]] == ["spec.strategies.strategy_unavailable"]

    async def test_frozen_labels_are_in_the_status_until_the_reset_and_refused_marks_then(
        self, world: World, status: Checking
    ) -> None:
        namespace, name = await world.namespace(), world.name()
        mark = RefusedLabel(label=f"taint {MARK_PREFIX}{name}", value="NoSchedule", reason="why", count=1, nodes=("a",))
        await world.put(REFUSALS, refused_marks_key(name), encode_refused_marks((mark,)))
        trip = Trip(since=time.time(), limit=1, wanted=2, selected=3)
        await world.put(BREAKERS, breaker_key(name), encode_breaker(Breaker(trip=trip)))
        key = await world.policy(namespace, name, deschedule())
        found = await wait_for_status(world, key, Ready=("False", "BreakerTripped"))
        assert f"tas reset {key}" in found["message"]
        await world.put(BREAKERS, PAUSED, b"not a pause")
        found = await wait_for_status(world, key, Ready=("False", "Paused"))
        assert str(UNREADABLE_PAUSE) in found["message"]
        await world.remove(BREAKERS, PAUSED)
        await wait_for_status(world, key, Ready=("False", "BreakerTripped"))
        await world.put(BREAKERS, breaker_key(name), encode_breaker(Breaker()))
        found = await wait_for_status(world, key, Ready=("False", "MarksNotWritten"))
        (problem,) = found["problems"]
        assert problem["value"] == f"{mark.label}=NoSchedule"
        assert problem["reason"] == "the API server refuses the taint on 1 node (a): why"

    @pytest.mark.real_api
    async def test_an_edit_is_reported_with_its_generation(self, world: World, status: Checking) -> None:
        namespace, name = await world.namespace(), world.name()
        key = await world.policy(namespace, name, deschedule())
        await wait_for_status(world, key, Ready=("True", "InForce"))
        await world.policy(namespace, name, deschedule(), suspend=True)
        found = await wait_for_status(world, key, Ready=("False", "Suspended"))
        assert found["observedGeneration"] == 2
        await eventually(lambda: status.not_ready.get(key) == "Suspended")
        assert status.suspended() == list(status.not_ready.values()).count("Suspended")
        await world.delete_policy(key)
        await eventually(lambda: key not in status.not_ready)

    async def test_facts_D39_of_two_policies_of_one_name_the_younger_reports_who_owns_the_labels(
        self, world: World, status: Checking
    ) -> None:
        name = world.name()
        here = await world.policy(await world.namespace("a"), name, labeling(rule("health", 1, "Equals", "card=0")))
        there = await world.policy(await world.namespace("b"), name, labeling(rule("health", 1, "Equals", "card=1")))
        found = await wait_for_status(world, there, Ready=("True", "PartlyIgnored"))
        (problem,) = found["problems"]
        assert problem["field"] == "spec.strategies.labeling"
        assert str(here) in problem["reason"]
        assert (await wait_for_status(world, here, Ready=("True", "InForce"))).get("problems", []) == []
        await world.delete_policy(here)
        await wait_for_status(world, there, Ready=("True", "InForce"))

    async def test_facts_S4_a_foreign_value_under_the_label_of_a_policy_is_reported(
        self, world: World, status: Checking
    ) -> None:
        name = world.name()
        node, other = await world.node("node", **{name: "ssd"}), await world.node("other")
        key = await world.policy(await world.namespace(), name, deschedule())
        for each in (node, other):
            await world.sample(each, health=1)
        await world.evaluate(node, other)
        found = await wait_for_status(world, key, Ready=("True", "PartlyIgnored"), Violating=("True", "NodesViolate"))
        (problem,) = found["problems"]
        assert f"{node} ({name}=ssd)" in problem["reason"]
        assert other not in problem["reason"]

    async def test_a_label_that_is_never_set_is_reported(
        self, world: World, kubeconfig: Path, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No worker labels these nodes."""
        monkeypatch.setattr(module, "UNSET_SECONDS", 0.1)
        name, node = world.name(), await world.node()
        key = await world.policy(await world.namespace(), name, deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        async with status_running(kubeconfig, server.url):
            found = await wait_for_status(world, key, Ready=("False", "LabelsNotWritten"))
        (problem,) = found["problems"]
        assert (problem["field"], problem["value"]) == ("spec.strategies.deschedule", f"{name}=violating")
        assert f"nodes without the label for at least 0.1 s: 1 ({node})" in problem["reason"]

    @pytest.mark.real_api
    async def test_an_unchanged_status_is_not_patched(self, world: World, status: Checking) -> None:
        node = await world.node()
        key = await world.policy(await world.namespace(), world.name(), deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        await wait_for_status(world, key, Violating=("True", "NodesViolate"), MetricsSeen=("True", "Fresh"))
        for note in ("1", "2"):  # a changed annotation causes a check; the first may find a difference
            checks = len(status.sent(key))
            await world.admin.change_policy(key.namespace, key.name, {"metadata": {"annotations": {"note": note}}})
            await eventually(lambda checks=checks: len(status.sent(key)) > checks)  # type: ignore[misc]
        assert not status.sent(key)[-1]

    async def test_a_policy_is_patched_at_intervals_by_any_number_of_replicas(
        self, world: World, status: Checking, kubeconfig: Path, server: Server
    ) -> None:
        node = await world.node()
        key = await world.policy(await world.namespace(), world.name(), deschedule())
        await wait_for_status(world, key, Ready=("True", "InForce"))
        async with status_running(kubeconfig, server.url) as second:
            began, health = time.monotonic(), 0
            while time.monotonic() - began < module.PATCH_SECONDS - 1:
                health = 1 - health
                await world.sample(node, health=health)
                await world.evaluate(node)
            await world.sample(node, health=1)
            await world.evaluate(node)
            await wait_for_status(world, key, Violating=("True", "NodesViolate"), MetricsSeen=("True", "Fresh"))
            checks = sorted((*status.checks, *second.checks), key=itemgetter(1))
        times = [began for checked, began, sent in checks if checked == key and sent]
        assert len(times) > 1
        assert all(later - earlier >= module.PATCH_SECONDS for earlier, later in pairwise(times))
