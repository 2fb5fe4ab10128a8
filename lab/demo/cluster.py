"""`tas demo --kubeconfig`: checks whether a demo can run on a cluster where this product is already running.

The demo changes the cluster only after all checks have passed. The checks change nothing: they read from the API
server, and send the extender a request as a scheduler does. No API shows whether the cluster's scheduler asks this
extender: the only evidence are requests that the scheduler has sent before.
"""

import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from bus.buckets import NODES as NODES_BUCKET
from bus.buckets import SYNCED
from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import NODE_FACTS, synced_of
from bus.records.codec import UNREADABLE
from lab.demo.narration import Observed
from lab.demo.stage import HOSTNAME, SOURCE, Node, Stage
from lab.demo.stories import Story
from tas.extender.verbs import Answer
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.values.nouns import counted
from tas.verdict.status import metrics_of
from workers.extender.worker import PREFIX
from workers.http.address import Address
from workers.http.body import MAX_OWN_BYTES, TooLargeError, failed_request, whole_body
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import KubernetesError, NotFoundError
from workers.kubernetes.resources import FULL_NODES, NAMESPACES, PODS, POLICIES, NodeObject, PolicyObject
from workers.settings import flag

REQUEST_SECONDS = 5.0
MAX_CHECKED_PODS = 50
"""How many pods of the extender's last answers are looked up in the cluster, the newest first."""

SCHEDULER = "default-scheduler"
"""The scheduler of the demo's pods."""

PROBE_POLICY, PROBE_METRIC, PROBE_POD = "tas-demo-probe", "tas_demo_probe", "tas-demo-probe"


class UnfitError(Exception):
    """The reason why a demo cannot run on a cluster. Nothing was changed."""


class ClusterChecks:
    """Checks a cluster, its bus and its extender before a demo. Every method raises UnfitError."""

    def __init__(self, client: KubernetesClient, bus: Bus, story: Story, *, extender: Address, health: Address) -> None:
        self._client = client
        self._bus = bus
        self._story = story
        self._extender = f"http://{extender}{PREFIX}"
        self._health = f"http://{health}"

    async def choose_nodes(self) -> list[Node]:
        """The nodes for the demo: nodes that accept pods, and whose uids on the bus are those of this cluster.

        Of a demo with nodes of its own: their names, of which the cluster has none. All other conditions are checked
        too, except whether the scheduler asks the extender.
        """
        try:
            policies = await self._client.list(POLICIES)
        except NotFoundError as error:
            raise UnfitError(f"{self._client.server} serves no TASPolicies: tas crd | kubectl apply -f -") from error
        except KubernetesError as error:
            raise UnfitError(str(error)) from error
        for policy in policies.items:
            self._check_policy(policy)
        await self._check_namespace()
        listed = await self._listed_nodes()
        if self._story.own_nodes:
            return await self._own_nodes(listed)
        accepting = [node for node in listed if _accepts_pods(node)]
        needed = len(self._story.nodes)
        if len(accepting) < needed:
            raise UnfitError(
                f"the demo needs {needed} nodes that are Ready, accept pods and have the label {HOSTNAME}, and "
                f"{self._client.server} has {len(accepting)} such nodes of {len(listed)}"
            )
        known = [node async for node in self._known(accepting)]
        if len(known) < needed:
            raise UnfitError(
                f"the bus at {self._bus.address} knows {len(known)} of the {counted(len(accepting), 'node')} "
                f"that accept pods, and the demo needs {needed}: {self._is_watched()}"
            )
        await self._check_ready()
        return [Node(node.metadata.name, node.metadata.labels[HOSTNAME]) for node in known[:needed]]

    async def _own_nodes(self, listed: Sequence[NodeObject]) -> list[Node]:
        names = self._story.nodes
        if existing := sorted({node.metadata.name for node in listed}.intersection(names)):
            raise UnfitError(
                f"node {existing[0]} already exists: the demo is running, or was killed before it deleted the node "
                f"(kubectl delete node {existing[0]})"
            )
        if not [node async for node in self._known(listed)]:
            raise UnfitError(
                f"the bus at {self._bus.address} knows none of the {counted(len(listed), 'node')} of the cluster: "
                f"{self._is_watched()}"
            )
        await self._check_ready()
        return [Node(name, hostname=name) for name in names]

    def _is_watched(self) -> str:
        return (
            f"does tas run all {flag('kubeconfig')} (or tas run watch) run for {self._client.server}, and is "
            f"{flag('bus')} its bus?"
        )

    async def recent_pod(self) -> str | None:
        """A pod of this cluster about which its scheduler has asked this extender; None if none is found.

        The pod exists, has the scheduler's condition PodScheduled, and the extender has answered a request about the
        pod after the pod was created.
        """
        own = f"question-{uuid.uuid4().hex}"
        request: dict[str, Any] = {
            "Pod": {"metadata": {"name": own, "namespace": "default"}},
            "Nodes": None,
            "NodeNames": [],
        }
        await self._http("POST", f"{self._extender}/filter", request)
        answers = msgspec.convert(await self._http("GET", f"{self._health}/answers"), list[Answer])
        if not any(answer.pod == own for answer in answers):
            raise UnfitError(
                f"{self._health}/answers has no answer of {self._extender}: {flag('listen')} and "
                f"{flag('extender_health')} must be addresses of the same extender"
            )
        last = {
            (answer.namespace, answer.pod): answer.time
            for answer in answers
            if answer.verb == "filter" and answer.pod != own
        }
        for (namespace, name), answered in list(reversed(last.items()))[:MAX_CHECKED_PODS]:
            with suppress(KubernetesError):  # most of these pods are deleted by now
                pod = await self._client.get(PODS, name, namespace=namespace)
                created = pod.metadata.creation_timestamp
                scheduled = any(condition.type == "PodScheduled" for condition in pod.status.conditions)
                # The answer may be about an earlier pod of this name. The API server rounds times to whole seconds.
                if (
                    pod.spec.scheduler_name == SCHEDULER
                    and scheduled
                    and created
                    and created.timestamp() <= answered + 1
                ):
                    return f"{namespace}/{name}"
        return None

    def no_request_error(self) -> UnfitError:
        """The error for an extender without a request from this cluster's scheduler."""
        return UnfitError(
            f"no evidence that the scheduler of {self._client.server} asks the extender at {self._extender}: none of "
            "the extender's last answers is about a pod of this cluster. Create a pod with the label "
            "telemetry-policy (docs/start/scheduler.md) and try again; or use --probe: the demo first creates a pod "
            "that the extender rejects on every node"
        )

    async def observe_ready(self) -> Observed:
        """Whether all workers in the extender's process are ready."""
        try:
            await self._check_ready()
        except UnfitError as error:
            return Observed(expected=False, state=str(error))
        return Observed(expected=True, state="all workers are ready")

    def _check_policy(self, existing: PolicyObject) -> None:
        """Raises UnfitError if the demo's samples would count for this policy, or both policies set the same labels."""
        key = PolicyKey(existing.metadata.namespace, existing.metadata.name)
        if key.name in (self._story.policy, PROBE_POLICY):
            raise UnfitError(f"TASPolicy {key} has the name of a policy of the demo, and so the same labels on nodes")
        policy, _ = parse_policy(key, existing.spec)
        for use in sorted(metrics_of(policy)):
            if use.metric in self._story.metrics and use.source in ("", SOURCE):
                raise UnfitError(
                    f"TASPolicy {key} reads {use}: the demo's samples would count for this policy, too, and affect "
                    f"other pods. A rule with another source than {SOURCE} is not affected: set the field source"
                )

    async def _check_namespace(self) -> None:
        name = self._story.namespace
        try:
            await self._client.get(NAMESPACES, name)
        except NotFoundError as error:
            if error.confirms_missing(group="", plural=NAMESPACES.plural, name=name):
                return
            raise UnfitError(str(error)) from error
        except KubernetesError as error:
            raise UnfitError(str(error)) from error
        raise UnfitError(
            f"namespace {name} already exists: the demo is running, or was killed before it deleted the namespace "
            f"(kubectl delete namespace {name})"
        )

    async def _listed_nodes(self) -> Sequence[NodeObject]:
        try:
            return sorted((await self._client.list(FULL_NODES)).items, key=lambda node: node.metadata.name)
        except KubernetesError as error:
            raise UnfitError(str(error)) from error

    async def _known(self, nodes: Sequence[NodeObject]) -> AsyncIterator[NodeObject]:
        try:
            synced = (await synced_of(NODES_BUCKET).get(self._bus, SYNCED)).readable()
            facts = {entry.key: entry.readable() for entry in await NODE_FACTS.entries(self._bus)}
        except BusError as error:
            raise UnfitError(f"the bus at {self._bus.address}: {error}") from error
        if synced is None or not synced.cluster:
            return
        for node in nodes:
            known = facts.get(node.metadata.name)
            if known is not None and known.uid == node.metadata.uid:
                yield node

    async def _check_ready(self) -> None:
        readiness = await self._http("GET", f"{self._health}/readyz")
        workers: Mapping[str, str | None] = readiness.get("workers", {}) if isinstance(readiness, dict) else {}
        if self._story.answering not in workers:
            raise UnfitError(
                f"no worker {self._story.answering} reports its health at {self._health}: {flag('extender_health')}"
            )
        if unready := [f"{worker}: {reason}" for worker, reason in workers.items() if reason is not None]:
            raise UnfitError(f"not ready at {self._health}: {'; '.join(unready)}")

    async def _http(self, method: str, url: str, body: object = None) -> Any:
        """The JSON of the answer, with any status."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, url, json=body) as response,
            ):
                return msgspec.json.decode(await whole_body(response, max_bytes=MAX_OWN_BYTES))
        except (aiohttp.ClientError, TimeoutError, TooLargeError, OSError, *UNREADABLE) as error:
            raise UnfitError(
                f"no extender answers at {url}: {failed_request(error)} ({flag('listen')}, {flag('extender_health')})"
            ) from error


async def probe(stage: Stage) -> None:
    """Creates a pod that the extender rejects on every node, and expects the extender's reason in the pod's condition.

    A scheduler that does not ask the extender reports another reason, or places the pod if nodes offer the resource.
    """
    rule = {"metricname": PROBE_METRIC, "operator": "Equals", "target": 0}  # nobody publishes it
    await stage.policy(PROBE_POLICY, {"dontschedule": {"onStale": "fail", "rules": [rule]}})
    await stage.expect_rejected(PROBE_POLICY, *stage.nodes)
    await stage.pod(PROBE_POD, policy=PROBE_POLICY, avoids={})
    await stage.expect_waiting(PROBE_POD, reason=f"Node violates {PROBE_POLICY}")
    await stage.evict(PROBE_POD, what="deleted")


def _accepts_pods(node: NodeObject) -> bool:
    """Whether the scheduler can place a pod without tolerations on the node."""
    ready = any((condition.type, condition.status) == ("Ready", "True") for condition in node.status.conditions)
    blocking: Collection[str] = {taint.effect for taint in node.spec.taints} - {"PreferNoSchedule"}
    hostname = node.metadata.labels.get(HOSTNAME)
    return ready and not node.spec.unschedulable and not blocking and bool(hostname)
