"""Watch: what the API server says of policies, nodes and pods, onto the bus.

TASPolicies of all namespaces stand in POLICIES, the uid and labels of nodes in NODES, and the pods that name a policy
in PODS. Nothing goes from there but by a deletion that the API server told, or by its complete list without it.
"""

import asyncio
from collections.abc import Iterable

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import NODES as NODES_BUCKET
from bus.buckets import PODS as PODS_BUCKET
from bus.connection import Bus
from bus.messages import (
    NodeFacts,
    PodRecord,
    PolicyRecord,
    decode_node_facts,
    decode_pod,
    encode_node_facts,
    encode_pod,
    encode_policy,
)
from bus.subjects import NODE_FACTS_KEYS, node_facts_key, parse_node_key, parse_pod_key, pod_key
from tas.manifest import parse_policy
from tas.pod import PodKey, waiting_since
from tas.policy import POD_LABEL, Policy, PolicyKey, Problem
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.resources import NODES, PODS, POLICIES, Object, PodObject, PolicyObject
from workers.mirror import FORGET_SECONDS, Mirror
from workers.policies import MAX_RECORD_BYTES, POLICY_RECORDS
from workers.records import RecordKind
from workers.runtime import json_response

log = structlog.get_logger("watch")

BY = "watch"


def _node_of(key: str) -> str | None:
    node, kind = parse_node_key(key)
    return node if kind == "facts" else None


FACT_RECORDS: RecordKind[str, NodeFacts] = RecordKind(
    bucket=NODES_BUCKET,
    key=node_facts_key,
    parse_key=_node_of,
    encode=encode_node_facts,
    decode=lambda _, value: decode_node_facts(value),
    keys=NODE_FACTS_KEYS,
)
POD_RECORDS: RecordKind[PodKey, PodRecord] = RecordKind(
    bucket=PODS_BUCKET,
    key=pod_key,
    parse_key=parse_pod_key,
    encode=encode_pod,
    decode=lambda _, value: decode_pod(value),
)


def policy_record(found: PolicyObject) -> tuple[PolicyKey, PolicyRecord]:
    """How a TASPolicy stands on the bus, with all that is wrong with it.

    What could not be read acts on nobody (`tas.manifest`), so it is stored all the same; so is one that is too large
    for a message, without its rules and suspended.
    """
    metadata = found.metadata
    key = PolicyKey(metadata.namespace, metadata.name)
    policy, problems = parse_policy(key, found.spec)
    record = PolicyRecord(
        policy=policy,
        uid=metadata.uid,
        generation=metadata.generation,
        problems=problems,
        resource_version=metadata.resource_version,
    )
    size = len(encode_policy(record))
    if size <= MAX_RECORD_BYTES:
        return key, record
    reason = f"must be at most {MAX_RECORD_BYTES} bytes on the bus; the policy is read as suspended"
    too_large = Problem(field="spec", value=f"{size} bytes", reason=reason, refused=True)
    suspended = Policy(key=key, strategies={}, suspend=True)
    return key, msgspec.structs.replace(record, policy=suspended, problems=(too_large,))


def node_facts(found: Object) -> tuple[str, NodeFacts]:
    """How a node stands on the bus."""
    metadata = found.metadata
    facts = NodeFacts(uid=metadata.uid, labels=metadata.labels, resource_version=metadata.resource_version)
    return metadata.name, facts


def pod_record(found: PodObject) -> tuple[PodKey, PodRecord]:
    """How a pod stands on the bus."""
    metadata = found.metadata
    node = found.spec.node_name or None
    created = metadata.creation_timestamp
    since = None
    if created is not None:
        since = waiting_since(
            created=created.timestamp(),
            node=node,
            gated=bool(found.spec.scheduling_gates),
            phase=found.status.phase,
            deleting=metadata.deletion_timestamp is not None,
        )
    record = PodRecord(
        policy=metadata.labels.get(POD_LABEL, ""),
        uid=metadata.uid,
        node=node,
        waiting_since=since,
        resource_version=metadata.resource_version,
    )
    return PodKey(metadata.namespace, metadata.name), record


class WatchWorker:
    """The worker. What it keeps another copy of it can list anew."""

    name = "watch"

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        *,
        registry: CollectorRegistry,
        forget_seconds: float = FORGET_SECONDS,
    ) -> None:
        self._metrics = _Metrics(registry)
        self._policies = Mirror(
            bus, client, POLICIES, POLICY_RECORDS, record_of=policy_record, on_written=self._policy_written, by=BY
        )
        self._nodes = Mirror(
            bus, client, NODES, FACT_RECORDS, record_of=node_facts, on_written=self._node_written, by=BY
        )
        self._pods = Mirror(
            bus,
            client,
            PODS,
            POD_RECORDS,
            record_of=pod_record,
            on_written=self._pod_written,
            label_selector=POD_LABEL,
            # Of pods there is no end. Nodes are few, and who starts later learns of one that went by its marker.
            forget_seconds=forget_seconds,
            by=BY,
        )
        for resource, mirror in (("taspolicies", self._policies), ("nodes", self._nodes), ("pods", self._pods)):
            self._metrics.objects.labels(resource).set_function(mirror.__len__)

    def unready(self) -> str | None:
        """Why the bus may not be as the API server says."""
        mirrors = (self._policies, self._nodes, self._pods)
        return "; ".join(reason for mirror in mirrors if (reason := mirror.unready()) is not None) or None

    def health_routes(self) -> Iterable[web.RouteDef]:
        """`/problems`: what is wrong with policies, and what is made of it."""
        return [web.get("/problems", self._get_problems)]

    async def _get_problems(self, _request: web.Request) -> web.Response:
        problems = {str(key): [str(each) for each in record.problems] for key, record in self._policies.records()}
        return json_response({"problems": {key: found for key, found in problems.items() if found}})

    async def run(self) -> None:
        """Follows until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for mirror in (self._policies, self._nodes, self._pods):
                tasks.create_task(mirror.run())

    def _policy_written(self, key: PolicyKey, record: PolicyRecord | None, _before: PolicyRecord | None) -> None:
        self._count("taspolicies", record)
        if record is None:
            log.info("policy_removed", policy=str(key))
            return
        problems = [str(problem) for problem in record.problems]
        log.info("policy_stored", policy=str(key), uid=record.uid, generation=record.generation, problems=problems)

    def _node_written(self, node: str, facts: NodeFacts | None, before: NodeFacts | None) -> None:
        self._count("nodes", facts)
        if facts is None:
            log.info("node_removed", node=node)
        elif before is None or before.uid != facts.uid:
            log.debug("node_stored", node=node, uid=facts.uid)

    def _pod_written(self, _key: PodKey, record: PodRecord | None, _before: PodRecord | None) -> None:
        self._count("pods", record)

    def _count(self, resource: str, record: object | None) -> None:
        self._metrics.writes.labels(resource, "remove" if record is None else "put").inc()


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.objects = Gauge(
            "tas_watch_objects", "Objects that the API server has, as far as known.", ["resource"], registry=registry
        )
        self.writes = Counter(
            "tas_watch_writes", "Records written to the bus.", ["resource", "operation"], registry=registry
        )
        for resource in ("taspolicies", "nodes", "pods"):
            for operation in ("put", "remove"):
                self.writes.labels(resource, operation)
