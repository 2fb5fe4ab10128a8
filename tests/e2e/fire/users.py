"""Users of a cluster: they change values, nodes and policies, and create pods."""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp

from tas.policy.policy import LABEL_PREFIX
from tests.e2e.cluster import POLICY_LABEL, RESOURCE
from tests.kubernetes.admin import AdminError

from .stage import Stage

NAMESPACE = "default"
VIOLATING = "violating"
CAPACITY = {"cpu": "8", "memory": "32Gi", "pods": "110"}
KEPT_PODS = 20
"""How many placed pods stay."""

AT_ONCE = 16
OURS = (LABEL_PREFIX, "fire-")
"""How the keys of labels of policies begin."""

VALUES = (0, 1, 2)
WEIGHTS = (6, 3, 1)
TARGETS = (2, 2, 1)
"""The value that violates a policy; an edit picks another."""

ABSENT, PRESENT = 404, 409


class Users:
    """The nodes, their values and the policies as users left them, and what follows from both.

    Attributes:
        values: The value of each metric of each node that exists.
        policies: For each policy that exists its metric, and the value that violates the policy.
        waits: When each placed pod was created, and the seconds until a poll found it placed.
        pending: When each pod that is not known to be placed was created.
    """

    def __init__(self, stage: Stage) -> None:
        self.values: dict[str, dict[str, int]] = {}
        self.policies: dict[str, tuple[str, int]] = {}
        self.waits: list[tuple[float, float]] = []
        self.pending: dict[str, float] = {}
        self._size = stage.size
        self._admin = stage.admin
        self._metrics = stage.adapter.metrics
        self._chance = random.Random("users")
        self._numbers = itertools.count(1)
        self._placed: list[str] = []

    # What must be true

    def labels(self) -> dict[str, dict[str, str]]:
        """The labels of the policies that each node must have."""
        return {node: self._labels(values) for node, values in self.values.items()}

    async def with_wrong_labels(self) -> list[str]:
        """The nodes whose labels of policies are not these."""
        found = {}
        for node in (await self._admin.get("/api/v1/nodes"))["items"]:
            labels = node["metadata"].get("labels", {})
            found[node["metadata"]["name"]] = {key: labels[key] for key in labels if key.startswith(OURS)}
        return [node for node, labels in self.labels().items() if labels != found.get(node)]

    def a_policy(self) -> str:
        """Any of the policies that exist."""
        return self._chance.choice(list(self.policies))

    def rejected(self, policy: str) -> set[str]:
        """The nodes that a pod of this policy may not get."""
        metric, target = self.policies[policy]
        return {node for node, values in self.values.items() if values[metric] == target}

    def _labels(self, values: Mapping[str, int]) -> dict[str, str]:
        violated = [policy for policy, (metric, target) in self.policies.items() if values[metric] == target]
        return dict.fromkeys(violated, VIOLATING) | {f"{LABEL_PREFIX}{policy}/level": "hot" for policy in violated}

    # What they do

    async def arrive(self) -> None:
        """Creates all policies and nodes."""
        for number in range(self._size.policies):
            await self._put_policy(f"fire-{number}")
        names = iter([f"fire-node-{number}" for number in range(self._size.nodes)])

        async def create_some() -> None:
            for name in names:
                await self._create_node(name)

        await asyncio.gather(*(create_some() for _ in range(AT_ONCE)))

    async def change_values(self) -> None:
        """Runs until cancelled."""
        while True:
            for _ in range(self._size.values_a_second):
                node = self._chance.choice(list(self.values))
                metric = self._chance.choice(list(self.values[node]))
                self._set(node, metric, self._value())
            await asyncio.sleep(1)

    async def change_objects(self) -> None:
        """Nodes and policies come and go, also under a name that was used before. Runs until cancelled."""
        changes = (self._replace_node, self._replace_policy, self._edit_policy, self._move_node)
        for change in itertools.cycle(changes):
            await change()
            await asyncio.sleep(self._size.change_seconds)

    async def create_pods(self) -> None:
        """Runs until cancelled."""
        while True:
            policy = self.a_policy()
            await self.create_pod(f"fire-pod-{next(self._numbers)}", policy)
            await self.follow_pods()
            for name in self._placed[:-KEPT_PODS]:
                await self._delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
                self._placed.remove(name)
            await asyncio.sleep(self._size.pod_seconds)

    async def create_pod(self, name: str, policy: str) -> None:
        container = {"name": "main", "image": "pause", "resources": {"limits": {RESOURCE: "1"}}}
        body = {
            "metadata": {"name": name, "labels": {POLICY_LABEL: policy}},
            "spec": {"containers": [container]},
        }
        self.pending[name] = time.time()
        await self._create(f"/api/v1/namespaces/{NAMESPACE}/pods", body)

    async def follow_pods(self) -> dict[str, str]:
        """The node of each pod that has one; notes the pods that were placed since the last call."""
        found = await insist(lambda: self._admin.get(f"/api/v1/namespaces/{NAMESPACE}/pods"))
        nodes = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in found["items"]}
        # A pod goes with its node.
        gone = self.pending.keys() - nodes.keys()
        placed = {name: node for name, node in nodes.items() if node}
        for name in (self.pending.keys() & placed.keys()) | gone:
            created = self.pending.pop(name)
            if name in placed:
                self.waits.append((created, time.time() - created))
                self._placed.append(name)
        return placed

    async def _replace_node(self) -> None:
        """A node is deleted, and one with the same name and other values takes its place at once."""
        name = self._chance.choice(list(self.values))
        await self._delete_node(name)
        await self._create_node(name)

    async def _move_node(self) -> None:
        """A node goes for good, and a new one comes."""
        await self._delete_node(self._chance.choice(list(self.values)))
        await self._create_node(f"fire-new-{next(self._numbers)}")

    async def _replace_policy(self) -> None:
        name = self.a_policy()
        await self._delete(f"{self._admin.policies(NAMESPACE)}/{name}")
        del self.policies[name]
        await asyncio.sleep(self._size.change_seconds)
        await self._put_policy(name)

    async def _edit_policy(self) -> None:
        name = self.a_policy()
        metric, target = self._metric(name), self._chance.choice(TARGETS)
        path = f"{self._admin.policies(NAMESPACE)}/{name}"
        await insist(lambda: self._admin.patch(path, {"spec": spec(metric, target)}))
        self.policies[name] = (metric, target)

    async def _put_policy(self, name: str) -> None:
        metric, target = self._metric(name), self._chance.choice(TARGETS)
        body = {
            "apiVersion": "telemetry.intel.com/v1alpha1",
            "kind": "TASPolicy",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec(metric, target),
        }
        await self._create(self._admin.policies(NAMESPACE), body)
        self.policies[name] = (metric, target)

    def _metric(self, policy: str) -> str:
        return f"metric_{int(policy.rpartition('-')[2]) % self._size.metrics}"

    async def _create_node(self, name: str) -> None:
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        status = {"capacity": CAPACITY, "allocatable": CAPACITY}
        await self._create("/api/v1/nodes", {"metadata": metadata, "status": status})
        self.values[name] = {}
        for number in range(self._size.metrics):
            self._set(name, f"metric_{number}", self._value())

    async def _delete_node(self, name: str) -> None:
        for metric in self.values.pop(name):
            self._metrics.forget(metric, name)
        await self._delete(f"/api/v1/nodes/{name}")

    def _set(self, node: str, metric: str, value: int) -> None:
        self.values[node][metric] = value
        self._metrics.set(metric, node, value)

    def _value(self) -> int:
        return self._chance.choices(VALUES, WEIGHTS)[0]

    async def _create(self, path: str, body: dict[str, Any]) -> None:
        await insist(lambda: self._admin.create(path, body), settled=PRESENT)

    async def _delete(self, path: str) -> None:
        await insist(lambda: self._admin.delete(path), settled=ABSENT)


def spec(metric: str, target: int) -> dict[str, Any]:
    """A policy that labels the nodes with this value, gives them no pods, and prefers a low value."""
    rule = {"metricname": metric, "operator": "Equals", "target": target}
    return {
        "strategies": {
            "dontschedule": {"rules": [rule]},
            "deschedule": {"rules": [rule]},
            "labeling": {"rules": [rule | {"labels": ["level=hot"]}]},
            "scheduleonmetric": {"rules": [{"metricname": metric, "operator": "LessThan"}]},
        }
    }


STARTING = "not yet ready to handle request"
"""With this text and the status 403 an admission plugin of an API server that has just started refuses writes."""


async def insist(call: Callable[[], Awaitable[Any]], *, settled: int | None = None) -> Any:
    """Repeats a call while the API server refuses it for a while or does not run.

    The status `settled` ends the repetition: an earlier attempt had its effect, though its answer was lost.
    """
    while True:
        with suppress(aiohttp.ClientError):
            try:
                return await call()
            except AdminError as error:
                if error.status == settled:
                    return None
                if 400 <= error.status < 500 and error.status != 429 and STARTING not in str(error):
                    raise
        await asyncio.sleep(0.2)
