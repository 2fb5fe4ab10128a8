"""The actions and checks of `tas demo`: on the cluster, on samples, and on the extender's answers."""

import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp
import msgspec

from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import NODE_INVENTORY
from bus.records.codec import UNREADABLE
from bus.scrapes import publish_scrape
from lab.demo.narration import Check, Narration, Observed
from tas.enforcing.node_resource import RESOURCE
from tas.enforcing.waking import ANNOTATION
from tas.gpu.names import CONTAINER_CARDS, card_name
from tas.policy.policy import API_VERSION, LABEL_PREFIX, POD_LABEL
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from workers.http.body import MAX_OWN_BYTES, TooLargeError, body_start, failed_request, whole_body
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConflictError, ForbiddenError, KubernetesError, NotFoundError
from workers.kubernetes.resources import FULL_NODES, NAMESPACES, NODES, PODS, POLICIES, PodObject, PodSpec

SOURCE = "demo"
"""The source of the demo's samples; the demo's policies read only this source."""

RUN_LABEL = "tas-demo-run"
"""The label of a namespace with the id of the run that created it. Only this run deletes the namespace."""

MANAGER = "tas-demo"
"""The field manager of what the demo writes to nodes."""

IMAGE = "registry.k8s.io/pause:3.10"
"""The image of the demo's pods. The demo only checks where a pod is placed."""

HOSTNAME = "kubernetes.io/hostname"

DELETE_SECONDS = 60.0
"""How long the deletion of the namespace may take, at least: its pods are deleted first."""

STALE_AFTER = "1h"
"""For the demo's policies: each sample is published once, and counts to the end, however long the demo takes."""

MOST_EVICTIONS = 3
"""How often a pod is evicted that the scheduler places on a node with a label that the pod avoids."""

ANSWER_SECONDS = 2.0
"""How long one answer of the extender may take before the request is repeated."""

Json = dict[str, Any]


class Node(NamedTuple):
    """A node of the demo, and its label `kubernetes.io/hostname`, which the demo's pods require."""

    name: str
    hostname: str


class _Avoiding(NamedTuple):
    """A pod of the demo, and the labels of nodes that it avoids."""

    pod: Json
    avoids: Mapping[str, str]


class CardPlace(NamedTuple):
    """A GPU card of a node."""

    node: str
    card: str

    def __str__(self) -> str:
        return f"{self.card or 'no card'} of {self.node}"


class Stage:
    """Acts on a cluster in one namespace, and checks the results.

    Each action is printed. Each check is repeated until the state is as expected; StepFailedError after the time limit.
    """

    def __init__(
        self,
        client: KubernetesClient,
        bus: Bus,
        *,
        nodes: Sequence[Node],
        namespace: str,
        extender: str,
        ready: Check,
        narration: Narration,
        creates_nodes: bool = False,
    ) -> None:
        """With `creates_nodes` it creates the nodes, which kwok simulates, and deletes them at the end."""
        self.nodes = sorted(node.name for node in nodes)
        self._hostnames = sorted(node.hostname for node in nodes)
        self._client = client
        self._bus = bus
        self._namespace = namespace
        self._extender = extender
        self._ready = ready
        self._narration = narration
        self._creates_nodes = creates_nodes
        self._run = uuid.uuid4().hex
        self._created = False
        self._policies: list[str] = []
        self._woken: dict[str, str] = {}
        self._avoiding: dict[str, _Avoiding] = {}
        self._evictions: Counter[str] = Counter()
        self._evicted: set[str] = set()

    async def set_up(self) -> None:
        """Expects all workers to be ready, and creates the demo's namespace."""
        self._narration.step("all workers are started")
        await self._narration.expect("every worker is ready", self._ready)
        self._narration.step(f"namespace {self._namespace} is created")
        self._created = True  # the namespace may exist also if the request fails
        body = {"metadata": {"name": self._namespace, "labels": {RUN_LABEL: self._run}}}
        await self._done(self._client.create(NAMESPACES, body))
        if self._creates_nodes:
            await self._create_nodes()
        for node in self.nodes:
            annotations = (await self._done(self._client.get(NODES, node))).metadata.annotations
            self._woken[node] = annotations.get(ANNOTATION, "")

    async def policy(self, name: str, strategies: Json) -> None:
        """Creates a policy whose rules read only the demo's samples."""
        self._narration.step(f"TASPolicy {self._namespace}/{name} is created")
        self._policies.append(name)
        own = {
            kind: strategy | {"rules": [rule | {"source": SOURCE} for rule in strategy["rules"]]}
            for kind, strategy in strategies.items()
        }
        body = {
            "apiVersion": API_VERSION,
            "kind": "TASPolicy",
            "metadata": {"name": name},
            "spec": {"staleAfter": STALE_AFTER, "strategies": own},
        }
        await self._done(self._client.create(POLICIES, body, namespace=self._namespace))

    async def report(self, metric: str, values: Mapping[str, str]) -> None:
        """Publishes a sample of a metric for each node of `values`."""
        self._narration.step(", ".join(f"{node} reports {metric}={value}" for node, value in values.items()))
        for node, value in values.items():
            now = time.time()
            scrape = Scrape(
                source=SOURCE, measured=now, arrived=now, sequence=0, metrics={metric: parse_quantity(value)}
            )
            try:
                await publish_scrape(self._bus, node, scrape)
            except BusError as error:
                raise self._narration.failed(f"the bus does not accept the sample: {error}") from error

    async def pod(self, name: str, *, policy: str, avoids: Mapping[str, str]) -> None:
        """Creates a pod of a policy, with a node affinity that excludes nodes with one of the labels `avoids`."""
        self._narration.step(f"pod {name} is created")
        # The scheduler asks the extender only about pods with this resource.
        body = self._pod_body(name, {"limits": {RESOURCE: "1"}}, avoids)
        body["metadata"]["labels"] = {POD_LABEL: policy}
        self._avoiding[name] = _Avoiding(body, avoids)
        await self._done(self._create_pod(body))

    async def cards(self, node: str, labels: Mapping[str, str], amounts: Mapping[str, str]) -> None:
        """Describes the GPU cards of a node: its labels, and the amounts of its resources."""
        self._narration.step(f"{node} gets two GPU cards, as node feature discovery and the device plugin write them")
        await self._done(self._client.merge_patch(NODES, node, {"metadata": {"labels": labels}}, field_manager=MANAGER))
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        await self._done(self._client.merge_patch(NODES, node, status, field_manager=MANAGER, subresource="status"))

    async def pod_with_card(self, name: str, amounts: Mapping[str, str]) -> None:
        """Creates a pod that requests these amounts of a GPU card."""
        wishes = ", ".join(f"{key.partition('/')[2]} {amount}" for key, amount in amounts.items())
        self._narration.step(f"pod {name} is created, which requests {wishes}")
        body = self._pod_body(name, {"limits": amounts, "requests": amounts}, {})
        body["spec"]["tolerations"] = [{"key": RUN_LABEL, "operator": "Exists"}]
        await self._done(self._create_pod(body))

    def _pod_body(self, name: str, resources: Json, avoids: Mapping[str, str]) -> Json:
        """A pod that fits the demo's nodes, but for those with one of these labels."""
        expressions = [{"key": HOSTNAME, "operator": "In", "values": self._hostnames}]
        expressions += [{"key": key, "operator": "NotIn", "values": [value]} for key, value in avoids.items()]
        required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        spec = {
            "containers": [{"name": "main", "image": IMAGE, "resources": resources}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "terminationGracePeriodSeconds": 0,
        }
        return {"metadata": {"name": name}, "spec": spec}

    async def evict(self, name: str, *, what: str = "evicted, as a descheduler does") -> None:
        """Evicts a pod, as a descheduler does for a violated node affinity. `what` is the word for it."""
        self._narration.step(f"pod {name} is {what}")
        try:
            await self._client.evict(name, namespace=self._namespace)
        except KubernetesError as error:
            missing = isinstance(error, NotFoundError) and error.confirms_missing(
                group="", plural=PODS.plural, name=name
            )
            if not missing:  # else a descheduler of the cluster was faster
                raise self._narration.failed(str(error)) from error

    async def clean_up(self) -> None:
        """Deletes the demo's namespace with its contents, and expects no label of the demo on a node.

        Raises StepFailedError if the namespace or a label remains.
        """
        if not self._created:
            return
        self._narration.step(f"namespace {self._namespace} is deleted with its contents")
        self._narration.within = max(self._narration.within, DELETE_SECONDS)
        await self._narration.expect("the namespace is deleted", self._deleted)
        if self._creates_nodes:
            self._narration.step(f"the nodes {', '.join(self.nodes)} are deleted")
            await self._narration.expect("the nodes are deleted", self._deleted_nodes)
        else:
            await self.expect_labels({})

    async def expect_scores(self, policy: str, expected: Mapping[str, int]) -> None:
        """Expects these scores from the extender's prioritize."""

        async def check() -> Observed:
            hosts = await self._ask("prioritize", policy)
            if not isinstance(hosts, list):
                return Observed(expected=False, state=_problem(hosts))
            scores = {host["Host"]: host["Score"] for host in hosts}
            return Observed(scores == expected, _pairs(scores))

        await self._narration.expect(f"the extender scores {_pairs(expected)}", check)

    async def expect_rejected(self, policy: str, *nodes: str) -> None:
        """Expects the extender's filter to reject exactly these nodes."""

        async def check() -> Observed:
            answer = await self._ask("filter", policy)
            if "FailedNodes" not in answer:
                return Observed(expected=False, state=_problem(answer))
            rejected = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
            reasons = "; ".join(f"{node}: {reason}" for node, reason in sorted(rejected.items()))
            return Observed(set(rejected) == set(nodes), reasons or "every node passes")

        expected = (
            f"the extender rejects only {', '.join(nodes)}" if nodes else "every node passes the extender's filter"
        )
        await self._narration.expect(expected, check)

    async def expect_placed(self, name: str, *nodes: str) -> str:
        """Expects a pod to be placed on one of these nodes, and returns the node."""
        found = ""

        async def check() -> Observed:
            nonlocal found
            pod = await self._pod(name)
            found = pod.spec.node_name
            return Observed(found in nodes, f"{name} is on {found}" if found else _waiting(pod))

        await self._narration.expect(f"{name} is placed on {' or '.join(nodes)}", check)
        return found

    async def expect_card(self, name: str, places: Collection[CardPlace]) -> CardPlace:
        """Expects a pod to be bound with one of these cards, and returns its card."""
        found = CardPlace("", "")

        async def check() -> Observed:
            nonlocal found
            pod = await self._client.get(PODS, name, namespace=self._namespace)
            if not pod.spec.node_name:
                return Observed(expected=False, state=_waiting(pod))
            found = CardPlace(pod.spec.node_name, pod.metadata.annotations.get(CONTAINER_CARDS, ""))
            return Observed(found in places, f"{name} has {found}")

        await self._narration.expect(f"{name} gets {' or '.join(map(str, sorted(places)))}", check)
        return found

    async def expect_disabled(self, place: CardPlace) -> None:
        """Expects that no new pod gets this card, by what the bus has: each binding reads it there.

        The label on the node is not enough: on a busy cluster it reaches the bus later than a new pod is placed.
        """

        async def check() -> Observed:
            try:
                known = (await NODE_INVENTORY.get(self._bus, place.node)).readable()
            except BusError as error:  # the next request may succeed
                return Observed(expected=False, state=f"the bus does not say: {error}")
            disabled = sorted(card_name(number) for number in (known.facts.disabled if known is not None else ()))
            return Observed(place.card in disabled, f"{place.node} has disabled {', '.join(disabled) or 'no card'}")

        await self._narration.expect(f"no new pod gets {place}", check)

    async def expect_waiting(self, name: str, *, reason: str) -> None:
        """Expects a pod to stay Pending, with `reason` in the scheduler's message."""

        async def check() -> Observed:
            pod = await self._pod(name)
            if pod.spec.node_name:
                return Observed(expected=False, state=f"{name} is on {pod.spec.node_name}")
            return Observed(reason in _waiting(pod), _waiting(pod))

        await self._narration.expect(f"{name} stays Pending: {reason}", check)

    async def expect_labels(self, expected: Mapping[str, Mapping[str, str]]) -> None:
        """Expects exactly these labels of the demo's policies, by node; no labels on other nodes."""

        async def check() -> Observed:
            found = {node: labels for node in self.nodes if (labels := await self._labels(node))}
            return Observed(found == expected, _labelled(found))

        await self._narration.expect(_labelled(expected), check)

    async def expect_retried(self, name: str, *, node: str) -> None:
        """Expects that the scheduler tries a waiting pod again, after a new annotation on `node`.

        On a busy cluster the scheduler may have placed the pod before: after an annotation on another node, or after a
        change that has nothing to do with the demo. Then nobody needs the annotation on `node` any more.
        """

        async def check() -> Observed:
            # The pod is read first: if the annotation has led to its place meanwhile, the node is seen with it.
            pod = await self._client.get(PODS, name, namespace=self._namespace)
            value = (await self._client.get(NODES, node)).metadata.annotations.get(ANNOTATION, "")
            if value != self._woken[node]:
                return Observed(expected=True, state=f"{node} has {ANNOTATION}={value}")
            if pod.spec.node_name:
                return Observed(expected=True, state=f"the scheduler has placed {name} before")
            return Observed(expected=False, state=f"{node} has no new {ANNOTATION}; {_waiting(pod)}")

        await self._narration.expect(f"{node} is annotated with {ANNOTATION}, which wakes the scheduler", check)

    async def _pod(self, name: str) -> PodObject:
        """The pod; one on a node with a label that it avoids is evicted and created again.

        So do a descheduler and a controller. A scheduler follows nodes and pods separately: a busy one may place a pod
        before it has seen the label of a node, although the label was there first.
        """
        body, avoids = self._avoiding.get(name, _Avoiding({}, {}))
        if name in self._evicted:
            with suppress(ConflictError):  # it still exists
                await self._client.create(PODS, body, namespace=self._namespace)
                self._evicted.discard(name)
        pod = await self._client.get(PODS, name, namespace=self._namespace)
        node = pod.spec.node_name
        if not node or not avoids or self._evictions[name] >= MOST_EVICTIONS:
            return pod
        labels = (await self._client.get(NODES, node)).metadata.labels
        if found := [f"{key}={value}" for key, value in avoids.items() if labels.get(key) == value]:
            self._narration.note(
                f"the scheduler has placed {name} on {node} before it knew of {', '.join(found)} there: "
                f"{name} is evicted, and created again"
            )
            self._evictions[name] += 1
            self._evicted.add(name)
            await self._client.evict(name, namespace=self._namespace)
            return msgspec.structs.replace(pod, spec=PodSpec())
        return pod

    async def expect_conditions(self, name: str, expected: Mapping[str, str]) -> None:
        """Expects these conditions in a policy's status: status by type."""

        async def check() -> Observed:
            status = (await self._client.get(POLICIES, name, namespace=self._namespace)).status or {}
            found = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
            return Observed(found == expected, _pairs(found) or "the policy has no status yet")

        await self._narration.expect(f"the policy's status has {_pairs(expected)}", check)

    async def _ask(self, verb: str, policy: str) -> Any:
        """The extender's answer about a pod of a policy on the demo's nodes; the error as text if it fails."""
        metadata = {"name": "question", "namespace": self._namespace, "labels": {POD_LABEL: policy}}
        question = {"Pod": {"metadata": metadata}, "Nodes": None, "NodeNames": self.nodes}
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(f"{self._extender}/{verb}", json=question) as response,
            ):
                if response.status != 200:
                    return (await body_start(response)).decode(errors="replace")
                return msgspec.json.decode(await whole_body(response, max_bytes=MAX_OWN_BYTES))
        except (aiohttp.ClientError, TimeoutError, TooLargeError, *UNREADABLE) as error:
            return failed_request(error)

    async def _labels(self, node: str) -> Mapping[str, str]:
        found = (await self._client.get(NODES, node)).metadata.labels
        prefixes = tuple(f"{LABEL_PREFIX}{name}/" for name in self._policies)
        return {key: value for key, value in found.items() if key in self._policies or key.startswith(prefixes)}

    async def _deleted(self) -> Observed:
        """Deletes the namespace if this run created it; expected when the namespace no longer exists."""
        try:
            metadata = (await self._client.get(NAMESPACES, self._namespace)).metadata
            if metadata.labels.get(RUN_LABEL) != self._run:
                return Observed(expected=True, state=f"namespace {self._namespace} was created by another run")
            if metadata.deletion_timestamp is None:
                await self._client.delete(NAMESPACES, self._namespace, uid=metadata.uid)
        except NotFoundError as error:
            deleted = error.confirms_missing(group="", plural=NAMESPACES.plural, name=self._namespace)
            return Observed(deleted, f"there is no namespace {self._namespace}" if deleted else str(error))
        return Observed(expected=False, state=f"namespace {self._namespace} still exists")

    async def _create_nodes(self) -> None:
        """Creates the nodes, and expects kwok to make them Ready. Their taint keeps other pods away."""
        self._narration.step(f"the nodes {', '.join(self.nodes)} are created, which kwok simulates")
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        for node in self.nodes:
            metadata = {
                "name": node,
                "labels": {HOSTNAME: node, RUN_LABEL: self._run, "type": "kwok"},
                "annotations": {"kwok.x-k8s.io/node": "fake"},
            }
            taint = {"key": RUN_LABEL, "value": self._run, "effect": "NoSchedule"}
            body = {"metadata": metadata, "spec": {"taints": [taint]}}
            await self._done(self._client.create(NODES, body))
            status = {"status": {"capacity": amounts, "allocatable": amounts}}
            await self._done(self._client.merge_patch(NODES, node, status, field_manager=MANAGER, subresource="status"))

        async def check() -> Observed:
            states = {node: await self._readiness(node) for node in self.nodes}
            return Observed(set(states.values()) == {"True"}, f"Ready: {_pairs(states)}")

        await self._narration.expect("the nodes are Ready: kwok runs in the cluster, and simulates them", check)

    async def _readiness(self, node: str) -> str:
        conditions = (await self._client.get(FULL_NODES, node)).status.conditions
        return next((each.status for each in conditions if each.type == "Ready"), "not reported")

    async def _deleted_nodes(self) -> Observed:
        """Deletes the nodes that this run created; expected when they no longer exist."""
        left = []
        for node in self.nodes:
            try:
                metadata = (await self._client.get(NODES, node)).metadata
                if metadata.labels.get(RUN_LABEL) == self._run:
                    left.append(node)
                    if metadata.deletion_timestamp is None:
                        await self._client.delete(NODES, node, uid=metadata.uid)
            except NotFoundError as error:
                if not error.confirms_missing(group="", plural=NODES.plural, name=node):
                    left.append(node)
        return Observed(not left, f"{', '.join(left)} still exists" if left else "the nodes do not exist")

    async def _create_pod(self, pod: Json) -> None:
        """Creates a pod. A new namespace rejects pods until its service account exists."""
        await self._narration.tries(ForbiddenError).of(
            lambda: self._client.create(PODS, pod, namespace=self._namespace)
        )

    async def _done(self, request: Awaitable[Any]) -> Any:
        """The result of a request to the API server. Raises StepFailedError if the request fails."""
        try:
            return await request
        except (KubernetesError, TimeoutError) as error:
            raise self._narration.failed(str(error)) from error


def scheduler_message(pod: PodObject) -> str:
    """The scheduler's message for a pod without a node; empty if the scheduler has not rejected the pod."""
    for condition in pod.status.conditions:
        if (condition.type, condition.status) == ("PodScheduled", "False"):
            return condition.message
    return ""


def _waiting(pod: PodObject) -> str:
    message = scheduler_message(pod)
    return f"{pod.metadata.name} is {pod.status.phase}" + (f": {message}" if message else "")


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def _labelled(found: Mapping[str, Mapping[str, str]]) -> str:
    labels: Iterable[str] = (
        f"{node} has {key}={value}" for node, labels in sorted(found.items()) for key, value in sorted(labels.items())
    )
    return ", ".join(labels) or "no node has a label of the demo"


def _problem(answer: object) -> str:
    return f"unexpected answer of the extender: {str(answer).strip()!r}"
