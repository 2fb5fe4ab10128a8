"""Writes the records that `labels` reads: policies, samples and verdicts, by the rules of `tas`."""

import itertools
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from bus.buckets import BREAKERS, NODES, PODS, POLICIES, SYNCED, VERDICTS, Bucket
from bus.connection import Bus
from bus.kinds import NODE_FACTS, NODE_SAMPLES, NODE_VERDICTS
from bus.records.codec import encode
from bus.records.nodes import NodeFacts, decode_node_samples, encode_node_samples
from bus.records.pods import PodRecord
from bus.records.policies import PolicyRecord, decode_policy, encode_policy
from bus.records.synced import Synced
from bus.records.verdicts import decode_verdict, encode_verdict
from bus.subjects import (
    parse_policy_key,
    pod_key,
    policy_key,
)
from tas.enforcing.pod import PodKey
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.sample import NodeSamples, Scrape
from tas.values.quantity import parse_quantity
from tas.verdict.evaluation import evaluate_policy
from tas.verdict.verdict import NodeVerdict, PolicyVerdict
from tests.integration.servers import answered, eventually
from tests.kubernetes.admin import Admin

STALE_SECONDS = 60.0
HOSTNAME = "kubernetes.io/hostname"

_numbers = itertools.count(1)


def rule(metric: str = "health", target: int = 1, operator: str = "Equals", *labels: str) -> dict[str, Any]:
    """A rule; by default `health=1` violates the rule."""
    fields: dict[str, Any] = {"metricname": metric, "operator": operator, "target": target}
    return fields | ({"labels": list(labels)} if labels else {})


def deschedule(*rules: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"deschedule": {"rules": list(rules) or [rule()], **fields}}


def labeling(*rules: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"labeling": {"rules": list(rules), **fields}}


class World:
    """One API server and one bus, as a test changes and reads them.

    Each test has other names, since an API server may serve several tests one after the other.
    """

    def __init__(self, admin: Admin, bus: Bus) -> None:
        self.admin = admin
        self.bus = bus
        self.number = next(_numbers)
        self.namespaces: list[str] = []
        self.nodes: list[str] = []

    def name(self, what: str = "p") -> str:
        """A name that no other test uses."""
        return f"{what}-{self.number}"

    async def served(self) -> None:
        """Waits until the API server serves policies, some time after the CRD is created."""
        await eventually(self.admin.policies_are_served, every=0.05)

    async def begin(self, *, freezes: bool = True) -> None:
        """Writes `_synced` to all buckets; without `freezes` not to BREAKERS."""
        await self.served()
        for bucket in (NODES, POLICIES, PODS, *([BREAKERS] if freezes else [])):
            await self.synced(bucket)

    async def synced(self, bucket: Bucket) -> None:
        """Writes that the list in a bucket is complete."""
        epoch = await answered(partial(self.bus.epoch, bucket))
        synced = Synced(epoch=epoch.created, count=0, time=datetime.now(UTC), writer="test", cluster=True)
        await self.put(bucket, SYNCED, encode(synced))

    async def end(self) -> None:
        """Removes all objects of this test from the API server."""
        for node in self.nodes:
            await self.admin.delete_node(node)
        for namespace in self.namespaces:
            found = await self.admin.get(self.admin.policies(namespace))
            for policy in found["items"]:
                await self.admin.delete_policy(namespace, policy["metadata"]["name"])

    # The cluster

    async def namespace(self, name: str = "a") -> str:
        name = self.name(name)
        await self.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.namespaces.append(name)
        return name

    async def node(self, name: str = "node", **labels: str) -> str:
        """A new node, with its facts on the bus."""
        name = f"{name}-{self.number}.example.com"
        if name not in self.nodes:
            self.nodes.append(name)
        # Every real node has this label. The API server tracks no field managers of a node created without any label.
        created = await self.admin.create_node(name, **{HOSTNAME: name} | labels)
        await self.facts(name, created)
        return name

    async def facts(self, node: str, created: Mapping[str, Any]) -> None:
        metadata = created["metadata"]
        facts = NodeFacts(uid=metadata["uid"], labels=metadata.get("labels", {}))
        await self.put(NODES, NODE_FACTS.key(node), encode(facts))

    async def labels(self, node: str) -> dict[str, str]:
        found = await self.admin.get(f"/api/v1/nodes/{node}")
        labels: dict[str, str] = found["metadata"].get("labels", {})
        return labels

    async def has(self, node: str, label: str, value: str | None) -> bool:
        return (await self.labels(node)).get(label) == value

    async def annotation(self, node: str, name: str) -> str | None:
        found = await self.admin.get(f"/api/v1/nodes/{node}")
        value: str | None = found["metadata"].get("annotations", {}).get(name)
        return value

    async def events(self, node: str) -> list[dict[str, Any]]:
        found = await self.admin.get("/api/v1/namespaces/default/events")
        return [event for event in found["items"] if event["involvedObject"].get("name") == node]

    async def policy(self, namespace: str, name: str, strategies: Mapping[str, Any], **spec: Any) -> PolicyKey:
        """Creates a policy, or replaces its spec, in the cluster and on the bus."""
        key = PolicyKey(namespace, name)
        spec = {"strategies": strategies, **spec}
        listed = await self.admin.get(self.admin.policies(namespace))
        stored = {each["metadata"]["name"]: each["spec"] for each in listed["items"]}.get(name)
        if stored is None:
            stored = await self.admin.create_policy(namespace, name, **spec)
        else:
            removed = dict.fromkeys(stored.keys() - spec.keys())
            removed_strategies = dict.fromkeys(stored["strategies"].keys() - strategies.keys())
            patch = removed | spec | {"strategies": removed_strategies | dict(strategies)}
            stored = await self.admin.change_policy(namespace, name, {"spec": patch})
        await self.record(key, stored)
        return key

    async def record(self, key: PolicyKey, stored: Mapping[str, Any]) -> None:
        policy, problems = parse_policy(key, stored["spec"])
        metadata = stored["metadata"]
        created = metadata.get("creationTimestamp")
        record = PolicyRecord(
            policy=policy,
            uid=metadata["uid"],
            generation=metadata["generation"],
            problems=problems,
            created=None if created is None else datetime.fromisoformat(created).timestamp(),
        )
        await self.put(POLICIES, policy_key(key), encode_policy(record))

    async def claim(self, key: PolicyKey) -> None:
        """Stores a policy with the uid `u` that only the bus has, so that verdicts may name its labels."""
        if await answered(partial(self.bus.get, POLICIES, policy_key(key))) is None:
            metadata = {"uid": "u", "generation": 1}
            strategies = deschedule() | labeling(rule("health", 1, "Equals", "card=0"))
            await self.record(key, {"metadata": metadata, "spec": {"strategies": strategies}})

    async def second_after(self, created: str) -> None:
        """Waits until an object that is created now is younger: times of creation are in whole seconds."""
        later = datetime.fromisoformat(created).timestamp() + 1
        await eventually(lambda: time.time() >= later)

    async def delete_policy(self, key: PolicyKey) -> None:
        await self.admin.delete_policy(key.namespace, key.name)
        await self.remove(POLICIES, policy_key(key))

    # The bus

    async def sample(self, node: str, *, age: float = 0.0, **metrics: str | int) -> None:
        """Writes the newest samples of a node; other metrics are unknown."""
        now = time.time() - age
        values = {metric: parse_quantity(str(value)) for metric, value in metrics.items()}
        scrape = Scrape(source="test", measured=now, arrived=now, sequence=next(_numbers), metrics=values)
        await self.put(NODES, NODE_SAMPLES.key(node), encode_node_samples((scrape,)))

    async def evaluate(self, *nodes: str) -> None:
        """Evaluates these nodes by the records on the bus, and writes their verdicts."""
        policies: dict[PolicyKey, PolicyRecord] = {}
        for entry in await answered(partial(self.bus.entries, POLICIES)):
            if entry.key != SYNCED and entry.value is not None:
                key = parse_policy_key(entry.key)
                policies[key] = decode_policy(key, entry.value)
        for node in nodes:
            await self._evaluate(node, policies)

    async def _evaluate(self, node: str, policies: Mapping[PolicyKey, PolicyRecord]) -> None:
        before: Mapping[PolicyKey, PolicyVerdict] = {}
        stored = await answered(partial(self.bus.get, VERDICTS, NODE_VERDICTS.key(node)))
        if stored is not None and stored.value is not None:
            before = decode_verdict(stored.value).policies
        samples: NodeSamples = ()
        metrics = await answered(partial(self.bus.get, NODES, NODE_SAMPLES.key(node)))
        if metrics is not None and metrics.value is not None:
            samples = decode_node_samples(metrics.value).samples
        metadata = (await self.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
        verdicts = {
            key: evaluate_policy(
                record.policy,
                uid=record.uid,
                generation=record.generation,
                samples=samples,
                labels=metadata.get("labels", {}),
                default_stale_after=STALE_SECONDS,
                before=before.get(key),
                now=time.time(),
            )[0]
            for key, record in policies.items()
        }
        await self.verdict(node, metadata["uid"], verdicts)

    async def verdict(self, node: str, uid: str, policies: Mapping[PolicyKey, PolicyVerdict]) -> int:
        """Writes a verdict, and returns its revision."""
        verdict = NodeVerdict(node_uid=uid, nodes_revision=1, policies_revision=1, policies=policies)
        return await self.put(VERDICTS, NODE_VERDICTS.key(node), encode_verdict(verdict))

    async def pod(self, namespace: str, name: str, policy: str, *, waits: bool = True) -> None:
        record = PodRecord(policy=policy, uid=name, waiting_since=datetime.now(UTC) if waits else None)
        await self.put(PODS, pod_key(PodKey(namespace, name)), encode(record))

    async def put(self, bucket: Bucket, key: str, value: bytes) -> int:
        """Writes once, also if the answer to the write is lost, and returns the revision."""
        sent = False

        async def write() -> int:
            nonlocal sent
            stored = await self.bus.get(bucket, key)
            if sent and stored is not None and stored.value == value:
                return stored.revision
            sent = True
            revision = 0 if stored is None else stored.revision
            return await self.bus.put(bucket, key, value, revision=revision, read_at=time.monotonic())

        return await answered(write)

    async def remove(self, bucket: Bucket, key: str) -> None:
        sent = False

        async def delete() -> None:
            nonlocal sent
            stored = await self.bus.get(bucket, key)
            exists = stored is not None and stored.value is not None
            assert exists or sent, f"{bucket.name}/{key} does not exist"
            if stored is not None and exists:
                sent = True
                await self.bus.delete(bucket, key, revision=stored.revision, read_at=time.monotonic())

        await answered(delete)
