"""Kubernetes Events of `notify` in a real API server, with the rights of deploy/rbac."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bus.buckets import POLICIES
from bus.connection import Bus
from bus.records.policies import PolicyRecord, encode_policy
from bus.subjects import policy_key
from tas.events.data import BreakerReset, BreakerTripped, EndReason, ViolationEnded, ViolationStarted
from tas.notifying.config import KubernetesEventsConfig
from tas.notifying.node_events import MAX_ALIKE
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tests.e2e.cluster import Cluster
from tests.e2e.processes import until
from tests.e2e.test_rights import account, is_allowed
from tests.integration.servers import eventually
from tests.integration.workers.notify.test_notify import World
from tests.integration.workers.running import put
from tests.kubernetes.admin import Admin
from tests.kubernetes.watch_scenarios import strategies
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ForbiddenError
from workers.kubernetes.resources import NODES
from workers.notify.sinks.kubernetes_events import KubernetesEventsSink

RIGHTS = Path(__file__).parents[2] / "deploy" / "rbac" / "notify.yaml"

Object = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def rights(cluster: Cluster, product_namespace: str) -> None:
    cluster.apply(RIGHTS)
    allowed = partial(is_allowed, cluster, "tas-notify", "create", "events", "", group="events.k8s.io")
    until(allowed, "tas-notify may create events")


class Events:
    """The Events of one policy and of its nodes."""

    def __init__(self, admin: Admin, namespace: str, policy: str, uids: dict[str, str]) -> None:
        self._admin = admin
        self._namespace = namespace
        self._policy = policy
        self._uids = uids

    def started(self, node: str) -> ViolationStarted:
        return ViolationStarted(
            node=node,
            node_uid=self._uids[node],
            namespace=self._namespace,
            policy=self._policy,
            policy_uid=self._uids[self._policy],
            strategy="dontschedule",
            value="1",
        )

    def ended(self, node: str) -> ViolationEnded:
        return ViolationEnded(
            node=node,
            node_uid=self._uids[node],
            namespace=self._namespace,
            policy=self._policy,
            policy_uid=self._uids[self._policy],
            strategy="dontschedule",
            reason=EndReason.MET,
            value="0",
        )

    async def on_node(self, node: str, reason: str) -> list[Object]:
        return [each for each in await self._of("default", node) if each["reason"] == reason]

    async def on_policy(self, reason: str) -> list[Object]:
        return [each for each in await self._of(self._namespace, self._policy) if each["reason"] == reason]

    async def _of(self, namespace: str, name: str) -> Sequence[Object]:
        listed = await self._admin.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
        found: list[Object] = [each for each in listed["items"] if each["regarding"]["name"] == name]
        return found


@pytest.fixture
def world(bus: Bus, tmp_path: Path) -> World:
    return World(bus, tmp_path)


async def stored_policy(bus: Bus, key: PolicyKey, uid: str) -> None:
    """Stores a policy with labels."""
    rule = {"metricname": "m", "operator": "GreaterThan", "target": 1}
    policy, _ = parse_policy(key, {"strategies": {"deschedule": {"rules": [rule]}}})
    await put(bus, POLICIES, policy_key(key), encode_policy(PolicyRecord(policy=policy, uid=uid, generation=1)))


async def test_nodes_and_policies_have_events_with_a_correct_series(
    cluster: Cluster, admin: Admin, world: World, namespace: str, node: str
) -> None:
    policy = await admin.create_policy(namespace, "noticed", strategies=strategies())
    others = [f"gone-{number}.{namespace}" for number in range(12)]
    uids = {"noticed": policy["metadata"]["uid"], **{name: f"uid-{name}" for name in others}}
    uids[node] = (await admin.get(f"/api/v1/nodes/{node}"))["metadata"]["uid"]
    events = Events(admin, namespace, "noticed", uids)
    config = KubernetesEventsConfig(wait="1s", interval="1s")
    async with KubernetesClient.connect(account(cluster, "tas-notify"), worker="notify") as client:
        sink = KubernetesEventsSink(world.bus, client, "cluster", config, metrics=world.metrics)
        async with world.running(sink):
            await world.publish(events.started(node))

            async def has_event() -> bool:
                return len(await events.on_node(node, "NodeViolatesPolicy")) == 1

            await eventually(has_event)
            (event,) = await events.on_node(node, "NodeViolatesPolicy")
            assert "series" not in event
            assert event["type"] == "Warning"
            assert event["note"] == f"{node} violates {namespace}/noticed (dontschedule): 1"
            assert event["reportingController"] == "tas-on-nats"
            assert event["regarding"]["uid"] == uids[node]
            assert event["related"]["name"] == "noticed"
            assert "NodeViolatesPolicy" in cluster.kubectl("describe", "node", node)

            # The node violates again: the same Event, with a series.
            await world.publish(events.ended(node))
            await world.publish(events.started(node))

            async def has_series() -> bool:
                found = await events.on_node(node, "NodeViolatesPolicy")
                return [each.get("series", {}).get("count") for each in found] == [2]

            await eventually(has_series)
            await world.acknowledged("cluster")
            (again,) = await events.on_node(node, "NodeViolatesPolicy")
            assert again["metadata"]["name"] == event["metadata"]["name"]
            assert len(await events.on_node(node, "NodeMeetsPolicy")) == 1

            # Many nodes at once: ten have an Event, one of them above, and the policy has one for all of them.
            before = world.value("tas_notify_requests_total", sink="cluster", code="200")
            await world.publish(*(events.ended(name) for name in others))
            await world.acknowledged("cluster")
            (group,) = await events.on_policy("NodeMeetsPolicy")
            assert group["regarding"]["kind"] == "TASPolicy"
            written = world.value("tas_notify_requests_total", sink="cluster", code="200") - before
            on_others = [await events.on_node(name, "NodeMeetsPolicy") for name in others]
            assert sum(map(len, on_others)) == MAX_ALIKE - 1 < len(others)
            assert MAX_ALIKE <= written <= MAX_ALIKE + 2

            # Its breaker, and the breaker over all policies, trip again and again: an Event with a series for each.
            await stored_policy(world.bus, PolicyKey(namespace, "noticed"), uids["noticed"])
            tripped = BreakerTripped(policy="noticed", limit=1, wanted=12, selected=13)
            for _ in range(2):
                await world.publish(tripped, BreakerTripped(limit=1, wanted=12, selected=13))
                await world.acknowledged("cluster")
                await world.publish(BreakerReset(policy="noticed"), BreakerReset())
                await world.acknowledged("cluster")
            found = await events.on_policy("BreakerTripped")
            assert [each["series"]["count"] for each in found] == [2, 2]
            assert {each["regarding"]["uid"] for each in found} == {uids["noticed"]}
            described = cluster.kubectl("describe", "taspolicy", "noticed", "-n", namespace)
            assert "BreakerTripped" in described
            assert "12 of 13 nodes would have labels, 1 may" in described
        with pytest.raises(ForbiddenError):
            await client.merge_patch(NODES, node, {"metadata": {"labels": {"a": "b"}}}, field_manager="test")
