"""What a story of `tas demo` can do and look at: a cluster, samples, and the extender's answers."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.errors import BusError
from bus.messages import encode_samples
from bus.subjects import samples_subject
from tas.node_resource import RESOURCE
from tas.policy import API_VERSION, LABEL_PREFIX, POD_LABEL
from tas.quantity import parse_quantity
from tas.sample import Scrape
from tas.verdict import VIOLATING
from tas.waking import ANNOTATION
from workers.cli.demo_telling import LOOK_SECONDS, Look, Seen, Telling
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ForbiddenError, KubernetesError, NotFoundError
from workers.kubernetes.resources import NAMESPACES, NODES, PODS, POLICIES, PodObject

SOURCE = "demo"
"""Whose samples a story publishes, and the only ones that its policies read."""

RUN_LABEL = "tas-demo-run"
"""On a namespace: the run that created it, and will delete it."""

IMAGE = "registry.k8s.io/pause:3.10"
"""What a pod of a story would run; all that is looked at is where it is placed."""

HOSTNAME = "kubernetes.io/hostname"

LEAVE_SECONDS = 60.0
"""How long a namespace may take at least until it is gone: its pods go first."""

PATIENCE_SECONDS = 2.0
"""How long the extender may take over one answer before it is asked again."""

Json = dict[str, Any]


class Node(NamedTuple):
    """A node of the story, and its label `kubernetes.io/hostname`, by which pods are kept to these nodes."""

    name: str
    hostname: str


class Stage:
    """Nodes of a cluster whose scheduler asks the extender, and hands to act on it, in one namespace of its own.

    What is done is told at once. Whatever is expected is looked for until it is seen; NotSeenError if it is not.
    """

    def __init__(
        self,
        client: KubernetesClient,
        bus: Bus,
        *,
        nodes: Sequence[Node],
        namespace: str,
        extender: str,
        ready: Look,
        telling: Telling,
    ) -> None:
        self.nodes = sorted(node.name for node in nodes)
        self._hostnames = sorted(node.hostname for node in nodes)
        self._client = client
        self._bus = bus
        self._namespace = namespace
        self._extender = extender
        self._ready = ready
        self._telling = telling
        self._run = uuid.uuid4().hex
        self._entered = False
        self._policies: list[str] = []
        self._woken: dict[str, str] = {}

    # Acting

    async def enter(self) -> None:
        """Expects all to be ready, and creates the story's namespace."""
        self._telling.did("everything is started")
        await self._telling.expect("every worker is ready", self._ready)
        self._telling.did(f"namespace {self._namespace} is created")
        self._entered = True  # from here on it may be there, also if no answer comes
        body = {"metadata": {"name": self._namespace, "labels": {RUN_LABEL: self._run}}}
        await self._done(self._client.create(NAMESPACES, body))
        for node in self.nodes:
            annotations = (await self._done(self._client.get(NODES, node))).metadata.annotations
            self._woken[node] = annotations.get(ANNOTATION, "")

    async def policy(self, name: str, strategies: Json) -> None:
        """Creates a policy whose rules read the story's own samples, and those of no other source."""
        self._telling.did(f"TASPolicy {self._namespace}/{name} is created")
        self._policies.append(name)
        own = {
            kind: strategy | {"rules": [rule | {"source": SOURCE} for rule in strategy["rules"]]}
            for kind, strategy in strategies.items()
        }
        body = {
            "apiVersion": API_VERSION,
            "kind": "TASPolicy",
            "metadata": {"name": name},
            "spec": {"strategies": own},
        }
        await self._done(self._client.create(POLICIES, body, namespace=self._namespace))

    async def report(self, metric: str, values: Mapping[str, str]) -> None:
        """Publishes a sample of a metric for each node of `values`, as any source does."""
        self._telling.did(", ".join(f"{node} reports {metric}={value}" for node, value in values.items()))
        for node, value in values.items():
            now = time.time()
            scrape = Scrape(
                source=SOURCE, measured=now, arrived=now, sequence=0, metrics={metric: parse_quantity(value)}
            )
            try:
                await self._bus.publish(SAMPLES, samples_subject(node, SOURCE), encode_samples(scrape))
            except BusError as error:
                raise self._telling.failed(f"the sample is not taken: {error}") from error

    async def pod(self, name: str, *, policy: str, avoids: Mapping[str, str]) -> None:
        """Creates a pod under a policy, which must not be where a node has one of the labels `avoids`."""
        self._telling.did(f"pod {name} is created")
        limits = {RESOURCE: "1"}  # the scheduler asks the extender about pods that name it
        expressions = [{"key": HOSTNAME, "operator": "In", "values": self._hostnames}]
        expressions += [{"key": key, "operator": "NotIn", "values": [value]} for key, value in avoids.items()]
        required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        spec = {
            "containers": [{"name": "main", "image": IMAGE, "resources": {"limits": limits}}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "terminationGracePeriodSeconds": 0,
        }
        body = {"metadata": {"name": name, "labels": {POD_LABEL: policy}}, "spec": spec}
        await self._done(self._accepted(body))

    async def evict(self, name: str) -> None:
        """Evicts a pod, as a descheduler does that finds its required node affinity violated."""
        self._telling.did(f"pod {name} is evicted, as a descheduler does")
        await self._done(self._client.evict(name, namespace=self._namespace))

    async def withdraw(self, name: str) -> None:
        """Deletes a pod."""
        self._telling.did(f"pod {name} is deleted")
        await self._done(self._client.evict(name, namespace=self._namespace))

    async def leave(self) -> None:
        """Deletes the story's namespace with all that is in it, and expects nothing to be left on the nodes.

        Raises:
            NotSeenError: if something is left, which has been told.
        """
        if not self._entered:
            return
        self._telling.did(f"namespace {self._namespace} is deleted, with all that is in it")
        self._telling.within = max(self._telling.within, LEAVE_SECONDS)
        await self._telling.expect("it is gone", self._deleted)
        await self.expect_labels({})

    # Looking

    async def expect_scores(self, policy: str, expected: Mapping[str, int]) -> None:
        """Expects the extender's prioritize to give these scores."""

        async def look() -> Seen:
            hosts = await self._ask("prioritize", policy)
            if not isinstance(hosts, list):
                return Seen(expected=False, what=_problem(hosts))
            scores = {host["Host"]: host["Score"] for host in hosts}
            return Seen(scores == expected, _pairs(scores))

        await self._telling.expect(f"the extender scores {_pairs(expected)}", look)

    async def expect_refused(self, policy: str, *nodes: str) -> None:
        """Expects the extender's filter to refuse these nodes and no others."""

        async def look() -> Seen:
            answer = await self._ask("filter", policy)
            if "FailedNodes" not in answer:
                return Seen(expected=False, what=_problem(answer))
            refused = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
            told = "; ".join(f"{node}: {why}" for node, why in sorted(refused.items()))
            return Seen(set(refused) == set(nodes), told or "every node passes")

        refused = f"the extender refuses {', '.join(nodes)} alone" if nodes else "the extender lets every node pass"
        await self._telling.expect(refused, look)

    async def expect_placed(self, name: str, *nodes: str) -> str:
        """Expects a pod to be on one of these nodes, and returns which."""
        found = ""

        async def look() -> Seen:
            nonlocal found
            pod = await self._client.get(PODS, name, namespace=self._namespace)
            found = pod.spec.node_name
            return Seen(found in nodes, f"{name} is on {found}" if found else _waits(pod))

        await self._telling.expect(f"{name} is placed on {' or '.join(nodes)}", look)
        return found

    async def expect_waiting(self, name: str, *, words: str) -> None:
        """Expects the scheduler to find no node for a pod, for a reason with these words."""

        async def look() -> Seen:
            pod = await self._client.get(PODS, name, namespace=self._namespace)
            if pod.spec.node_name:
                return Seen(expected=False, what=f"{name} is on {pod.spec.node_name}")
            return Seen(words in _waits(pod), _waits(pod))

        await self._telling.expect(f"{name} stays Pending: {words}", look)

    async def expect_labels(self, expected: Mapping[str, Mapping[str, str]]) -> None:
        """Expects the labels of the story's policies to be these, by node; none on a node that is left out."""

        async def look() -> Seen:
            found = {node: labels for node in self.nodes if (labels := await self._labels(node))}
            return Seen(found == expected, _labelled(found))

        await self._telling.expect(_labelled(expected), look)

    async def expect_woken(self, node: str) -> None:
        """Expects the annotation on a node that makes the scheduler try the pods again that fit nowhere."""

        async def look() -> Seen:
            value = (await self._client.get(NODES, node)).metadata.annotations.get(ANNOTATION, "")
            return Seen(
                value != self._woken[node],
                f"{node} has {ANNOTATION}={value}" if value else f"{node} has none",
            )

        await self._telling.expect(f"{node} is annotated with {ANNOTATION}, which wakes the scheduler", look)

    async def expect_conditions(self, name: str, expected: Mapping[str, str]) -> None:
        """Expects a policy's status to say this, by the conditions' types."""

        async def look() -> Seen:
            status = (await self._client.get(POLICIES, name, namespace=self._namespace)).status or {}
            found = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
            return Seen(found == expected, _pairs(found) or "it has no status yet")

        await self._telling.expect(f"the policy's status says {_pairs(expected)}", look)

    # The rest

    async def _ask(self, verb: str, policy: str) -> Any:
        """The extender's answer about a pod of a policy and the story's nodes; text if it gives none."""
        metadata = {"name": "question", "namespace": self._namespace, "labels": {POD_LABEL: policy}}
        question = {"Pod": {"metadata": metadata}, "Nodes": None, "NodeNames": self.nodes}
        timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(f"{self._extender}/{verb}", json=question) as response,
            ):
                return await response.json() if response.status == 200 else await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return str(error) or type(error).__name__

    async def _labels(self, node: str) -> Mapping[str, str]:
        """Those of a node's labels that are of the story's policies."""
        found = (await self._client.get(NODES, node)).metadata.labels
        return {key: value for key, value in found.items() if self._is_ours(key)}

    def _is_ours(self, key: str) -> bool:
        return any(key == name or key.startswith(f"{LABEL_PREFIX}{name}/") for name in self._policies)

    async def _deleted(self) -> Seen:
        """Deletes the namespace if it still stands and is that of this run, and says how far that is."""
        try:
            metadata = (await self._client.get(NAMESPACES, self._namespace)).metadata
            if metadata.labels.get(RUN_LABEL) != self._run:
                return Seen(expected=True, what=f"namespace {self._namespace} is somebody else's")
            if metadata.deletion_timestamp is None:
                await self._client.delete(NAMESPACES, self._namespace, uid=metadata.uid)
        except NotFoundError as error:
            gone = error.names(group="", plural=NAMESPACES.plural, name=self._namespace)
            return Seen(gone, f"there is no namespace {self._namespace}" if gone else str(error))
        return Seen(expected=False, what=f"namespace {self._namespace} still stands")

    async def _accepted(self, pod: Json) -> None:
        """Creates a pod. A namespace refuses pods until it has its service account, a moment after it was created."""
        until = time.monotonic() + self._telling.within
        while True:
            try:
                await self._client.create(PODS, pod, namespace=self._namespace)
            except ForbiddenError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(LOOK_SECONDS)
            else:
                return

    async def _done(self, act: Awaitable[Any]) -> Any:
        """What an act upon the cluster returns. Raises NotSeenError if it is refused or not answered."""
        try:
            return await act
        except KubernetesError as error:
            raise self._telling.failed(str(error)) from error


def is_own_label(key: str, value: str) -> bool:
    """Whether a node's label is the product's, where nobody else sets such."""
    return key.startswith(LABEL_PREFIX) or value == VIOLATING


def scheduler_says(pod: PodObject) -> str:
    """Why the scheduler has not placed a pod, in its words; empty if it has not turned it away."""
    for condition in pod.status.conditions:
        if (condition.type, condition.status) == ("PodScheduled", "False"):
            return condition.message
    return ""


def _waits(pod: PodObject) -> str:
    """How it is with a pod that is on no node."""
    said = scheduler_says(pod)
    return f"{pod.metadata.name} is {pod.status.phase}" + (f": {said}" if said else "")


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def _labelled(found: Mapping[str, Mapping[str, str]]) -> str:
    labels: Iterable[str] = (
        f"{node} has {key}={value}" for node, labels in sorted(found.items()) for key, value in sorted(labels.items())
    )
    return ", ".join(labels) or "no node has a label of ours"


def _problem(answer: object) -> str:
    return f"the extender says {str(answer).strip()!r}"
