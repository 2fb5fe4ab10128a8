"""Watch: copies policies, nodes and pods from the API server to the bus.

POLICIES has the TASPolicies of all namespaces, NODES the uid, labels and addresses of nodes, and PODS the pods that
name a policy. A record is deleted only if the API server reports a deletion, or sends a complete list without the
object.
"""

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate
from math import inf

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import FORGET_SECONDS, NODES
from bus.connection import Bus
from bus.errors import BusError
from bus.history import purge_tombstone
from bus.kinds import NODE_FACTS, NODE_RELEASES, NODE_SAMPLES, NODE_TABLES, POD_RECORDS, POLICY_RECORDS
from bus.records.codec import encode, optional_time_of
from bus.records.nodes import NodeFacts
from bus.records.pods import PodRecord
from bus.records.policies import PolicyRecord
from tas.enforcing.pod import PodKey, Unscheduled, binding_of, needs_filter, waiting_since
from tas.policy.policy import POD_LABEL, PolicyKey
from workers.following.policy_log import PolicyLog
from workers.kubernetes.admission import policy_record
from workers.kubernetes.reflectors import Reflectors
from workers.kubernetes.resources import (
    LabelledNode,
    Object,
    PodObject,
    time_in,
)
from workers.process.logs import ThrottledLog
from workers.process.tasks import together
from workers.runtime import json_response
from workers.watch.mirror import Mirror
from workers.watch.node_addresses import LIST_SECONDS, NodeAddresses

log = structlog.get_logger("watch")

WRITER = "watch"

GATHER_SECONDS = 0.1
"""How long changes of pods are gathered during a burst: a scheduler places hundreds of pods a second, and each write
alone costs `watch`, the bus and its readers more. A reader that acts on the first pods of a burst, such as the extender
for a `podCost`, may know the later ones so much later."""


MAX_LABELS_BYTES = 512 << 10
"""The most bytes of a node's labels in its record: half of a message. A node has about 5 KiB of labels.

A kubelet may set more than a message holds, and then no list of nodes would be complete.
"""


def node_facts(found: Object) -> tuple[str, NodeFacts]:
    """The record of a node for the bus; of more than `MAX_LABELS_BYTES` of labels it has the first ones by key.

    Then it is unknown whether a `nodeSelector` selects the node.
    """
    metadata = found.metadata
    labels = metadata.labels
    if len(encode(labels)) > MAX_LABELS_BYTES:
        sizes = accumulate(len(encode(label)) for label in sorted(labels.items()))
        labels = {key: labels[key] for key, size in zip(sorted(labels), sizes, strict=True) if size < MAX_LABELS_BYTES}
    return metadata.name, NodeFacts(
        uid=metadata.uid,
        labels=labels,
        resource_version=metadata.resource_version,
        labels_left_out=len(metadata.labels) - len(labels),
        created=metadata.creation_timestamp,
    )


def pod_record(found: PodObject) -> tuple[PodKey, PodRecord]:
    """The record of a pod for the bus, as it is seen now."""
    metadata = found.metadata
    policy = metadata.labels.get(POD_LABEL, "")
    node = found.spec.node_name or None
    phase = found.status.phase
    refusal = _refusal(found)
    waiting = waiting_since(policy, refusal, node=node, phase=phase, deleting=metadata.deletion_timestamp is not None)
    created = None if metadata.creation_timestamp is None else metadata.creation_timestamp.timestamp()
    started = time_in(found.status.start_time)
    bound = binding_of(
        node,
        phase,
        scheduled=_scheduled(found),
        started=None if started is None else started.timestamp(),
        earliest=created if refusal is None else max(refusal.since, created or 0.0),
        now=time.time(),
    )
    record = PodRecord(
        policy=policy,
        uid=metadata.uid,
        node=node,
        waiting_since=optional_time_of(waiting),
        bound_since=None if bound is None else optional_time_of(bound.since),
        bound_seen=bound is not None and bound.is_seen,
        resource_version=metadata.resource_version,
    )
    return PodKey(metadata.namespace, metadata.name), record


def as_first_seen(observed: PodRecord, stored: PodRecord) -> PodRecord:
    """The observed record with the earlier time at which any replica, or one before a restart, saw the pod bound."""
    if not (observed.bound_seen and stored.bound_seen and observed.bound_since and stored.bound_since):
        return observed
    if (observed.uid, observed.node) != (stored.uid, stored.node) or stored.bound_since >= observed.bound_since:
        return observed
    return msgspec.structs.replace(observed, bound_since=stored.bound_since)


def _scheduled(found: PodObject) -> float | None:
    for condition in found.status.conditions:
        if (condition.type, condition.status) == ("PodScheduled", "True"):
            since = time_in(condition.last_transition_time)
            return None if since is None else since.timestamp()
    return None


def _refusal(found: PodObject) -> Unscheduled | None:
    for condition in found.status.conditions:
        if (condition.type, condition.status) == ("PodScheduled", "False"):
            since = time_in(condition.last_transition_time) or found.metadata.creation_timestamp
            return None if since is None else Unscheduled(condition.reason, condition.message, since.timestamp())
    return None


class WatchWorker:
    """The worker. Its state can be rebuilt from the API server and the bus."""

    name = "watch"

    def __init__(
        self,
        bus: Bus,
        reflectors: Reflectors,
        *,
        registry: CollectorRegistry,
        forget_seconds: float = FORGET_SECONDS,
        address_seconds: float = LIST_SECONDS,
    ) -> None:
        """The addresses of nodes are listed at least once in `address_seconds`."""
        self._bus = bus
        self._forget_seconds = forget_seconds
        self._metrics = _Metrics(registry)
        self._filtered = NewestPods()
        self._policy_log = PolicyLog(log)
        self._policies = Mirror(
            bus,
            reflectors.policies,
            POLICY_RECORDS,
            record_of=policy_record,
            on_written=self._policy_written,
            forget_seconds=forget_seconds,
            writer=WRITER,
        )
        self._addresses = NodeAddresses(reflectors.client, on_read=self._addresses_read, list_seconds=address_seconds)
        self._nodes = Mirror(
            bus,
            reflectors.nodes,
            NODE_FACTS,
            record_of=self._node_record,
            on_written=self._node_written,
            forget_seconds=forget_seconds,
            before_forget=self._forget_samples,
            completed=self._addresses.completed,
            on_deleted=lambda deleted: self._addresses.deleted(deleted.metadata.uid),
            writer=WRITER,
        )
        self._pods = Mirror(
            bus,
            reflectors.pods,
            POD_RECORDS,
            record_of=self._pod_record,
            on_written=lambda _key, pod, _before: self._count("pods", pod),
            completed=lambda _key, pod, stored: pod if stored is None else as_first_seen(pod, stored),
            forget_seconds=forget_seconds,
            gather_seconds=GATHER_SECONDS,
            writer=WRITER,
        )
        for resource, mirror in (("taspolicies", self._policies), ("nodes", self._nodes), ("pods", self._pods)):
            self._metrics.objects.labels(resource).set_function(mirror.__len__)
        newest = self._metrics.newest_pod
        newest.labels("placed").set_function(lambda: self._filtered.placed)
        newest.labels("waiting").set_function(lambda: self._filtered.newest_waiting(self._pods.records()))

    def unready(self) -> str | None:
        """Why the bus may differ from the API server."""
        mirrors = (self._policies, self._nodes, self._pods)
        return "; ".join(reason for mirror in mirrors if (reason := mirror.unready()) is not None) or None

    def newest_pods(self) -> Mapping[str, float]:
        """By state, when the newest pod was created about which the scheduler has to have asked filter by now."""
        return self._filtered.settled(self._pods.records(), time.time())

    def health_routes(self) -> Iterable[web.RouteDef]:
        """`/problems`: the problems of policies, and their effects."""
        return [web.get("/problems", self._get_problems)]

    async def _get_problems(self, _request: web.Request) -> web.Response:
        problems = {str(key): [str(each) for each in record.problems] for key, record in self._policies.records()}
        return json_response({"problems": {key: found for key, found in problems.items() if found}})

    async def run(self) -> None:
        """Follows until cancelled."""
        await together(
            *(mirror.run() for mirror in (self._policies, self._nodes, self._pods)),
            self._addresses.run(),
            self._forget_tables(),
        )

    async def _forget_tables(self) -> None:
        """Purges the tombstones of tables that `materialize` has deleted. Runs until cancelled.

        Each name of a source that ever was would leave up to 127. A source of that name may publish again.
        """
        throttled = ThrottledLog(log, bucket=NODES.name)
        while True:
            await asyncio.sleep(self._forget_seconds)
            try:
                for key in await NODE_TABLES.listed(self._bus):
                    table = await NODE_TABLES.get(self._bus, key)
                    is_deleted = table.revision > 0 and not table.present
                    if is_deleted and time.time() >= table.created + self._forget_seconds:
                        await purge_tombstone(self._bus, NODES, NODE_TABLES.key(key), revision=table.revision)
            except BusError as error:
                throttled.warning("tombstones_not_removed", error=str(error))

    async def _forget_samples(self, node: str) -> bool:
        """Purges the tombstone of the samples of a deleted node, and its release.

        Returns whether the bus has no record of its samples.

        `materialize` deletes the samples. Until then the tombstone of the node's facts stays, since only this tombstone
        says whose samples are to be forgotten. A row of a table leaves no tombstone: `materialize` finds it in the
        table. Raises BusError.
        """
        samples = await NODE_SAMPLES.get(self._bus, node)
        if samples.revision:
            if samples.present or time.time() < samples.created + self._forget_seconds:
                return False
            await purge_tombstone(self._bus, NODES, NODE_SAMPLES.key(node), revision=samples.revision)
        release = await NODE_RELEASES.get(self._bus, node)
        if release.revision:
            await purge_tombstone(self._bus, NODES, NODE_RELEASES.key(node), revision=release.revision)
        return True

    def _node_record(self, found: LabelledNode) -> tuple[str, NodeFacts]:
        node, facts = node_facts(found)
        self._addresses.reported(node, facts, found.metadata.writes)
        return node, facts

    def _pod_record(self, found: PodObject) -> tuple[PodKey, PodRecord]:
        key, record = pod_record(found)
        self._filtered.take_in(key, found, time.time())
        return key, record

    def _addresses_read(self, nodes: Collection[str]) -> None:
        self._nodes.renew(nodes)

    def _policy_written(self, key: PolicyKey, record: PolicyRecord | None, _before: PolicyRecord | None) -> None:
        self._count("taspolicies", record)
        if record is None:
            self._policy_log.deleted(key)
            return
        self._policy_log.stored(key, record.problems, uid=record.uid, generation=record.generation)

    def _node_written(self, node: str, facts: NodeFacts | None, before: NodeFacts | None) -> None:
        self._count("nodes", facts)
        if facts is None:
            log.info("node_deleted", node=node)
        elif before is None or before.uid != facts.uid:
            log.debug("node_stored", node=node, uid=facts.uid)

    def _count(self, resource: str, record: object | None) -> None:
        self._metrics.writes.labels(resource, "delete" if record is None else "put").inc()


SETTLED_SECONDS = 25.0
"""After this time the record of an extender in WORKERS has the request about a pod."""


class NewestPods:
    """When the newest pods were created about which the scheduler must have asked filter, or must ask now.

    One that waits counts no more once the scheduler finds that no node fits. Times are in seconds since 1970.

    Attributes:
        placed: When the newest pod was created that has a node, or had one before it ended; 0 without one.
    """

    def __init__(self) -> None:
        self.placed = 0.0
        self._waiting: dict[PodKey, float] = {}
        self._lately: deque[tuple[float, float]] = deque()  # when pods were placed, and the newest creation until then
        self._settled = 0.0

    def take_in(self, key: PodKey, found: PodObject, now: float) -> None:
        """Applies the state of a pod at `now`.

        A creation in the future is of a clock that is ahead, and no request would ever be later: such a pod counts from
        when it was seen waiting, or not at all.
        """
        metadata, node = found.metadata, found.spec.node_name or None
        seen = self._waiting.pop(key, inf)
        deleting = metadata.deletion_timestamp is not None
        if metadata.creation_timestamp is None or not needs_filter(_refusal(found), node=node, deleting=deleting):
            return
        created = min(seen, metadata.creation_timestamp.timestamp())
        if node is None:
            self._waiting[key] = min(created, now)
        elif self.placed < created <= now:
            self.placed = created
            if not self._lately or now >= self._lately[-1][0] + SETTLED_SECONDS / 4:
                self._lately.append((now, created))

    def settled(self, known: Iterable[tuple[PodKey, PodRecord]], now: float) -> dict[str, float]:
        """By state, when the newest pod was created that has been so for `SETTLED_SECONDS`; only what there is."""
        self._forget(known)
        while self._lately and self._lately[0][0] <= now - SETTLED_SECONDS:
            self._settled = self._lately.popleft()[1]
        waiting = max((each for each in self._waiting.values() if each <= now - SETTLED_SECONDS), default=0.0)
        return {state: at for state, at in (("placed", self._settled), ("waiting", waiting)) if at}

    def newest_waiting(self, known: Iterable[tuple[PodKey, PodRecord]]) -> float:
        """When the newest pod was created that waits; 0 without one. Deleted ones are not `known`."""
        self._forget(known)
        return max(self._waiting.values(), default=0.0)

    def _forget(self, known: Iterable[tuple[PodKey, PodRecord]]) -> None:
        self._waiting = {key: self._waiting[key] for key, _ in known if key in self._waiting}


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.objects = Gauge("tas_watch_objects", "Known objects of the API server.", ["resource"], registry=registry)
        self.writes = Counter(
            "tas_watch_writes", "Records written to the bus.", ["resource", "operation"], registry=registry
        )
        self.newest_pod = Gauge(
            "tas_watch_newest_pod_timestamp_seconds",
            "When the newest pod with a policy was created about which the scheduler has asked filter, or has to ask.",
            ["state"],
            registry=registry,
        )
        for resource in ("taspolicies", "nodes", "pods"):
            for operation in ("put", "delete"):
                self.writes.labels(resource, operation)
