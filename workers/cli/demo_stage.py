"""What a story of `tas demo` can do and look at: a cluster, samples, and the extender's answers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import aiohttp
from rich.console import Console

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.errors import BusError
from bus.messages import encode_samples
from bus.subjects import samples_subject
from sandbox.cluster import Cluster
from sandbox.resources import NAMESPACES, NODES, PODS, TASPOLICIES, Object
from tas.policy import LABEL_PREFIX, POD_LABEL
from tas.quantity import parse_quantity
from tas.sample import Scrape
from tas.verdict import VIOLATING
from tas.waking import ANNOTATION

SOURCE = "demo"
MANAGER = "tas-demo"
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 2.0
"""How long the extender may take over one answer before it is asked again."""


class NotSeenError(Exception):
    """Something that was expected did not happen in time; it has been told."""


class Seen(NamedTuple):
    """What there is to see at a moment, and whether it is what was expected."""

    expected: bool
    what: str


Look = Callable[[], Seen | Awaitable[Seen]]


class Stage:
    """A cluster whose scheduler asks the extender, and hands to act on it.

    What is done is told at once. `expect` looks until it sees what it was told to expect.
    """

    def __init__(
        self,
        cluster: Cluster,
        bus: Bus,
        *,
        extender: str,
        unready: Callable[[], Mapping[str, str]],
        console: Console,
        within: float,
    ) -> None:
        self._cluster = cluster
        self._bus = bus
        self._extender = extender
        self._unready = unready
        self._console = console
        self._within = within
        self._steps = 0

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes."""
        return sorted(node["metadata"]["name"] for node in self._cluster.store.items(NODES))

    # Acting

    def policy(self, namespace: str, name: str, strategies: Object) -> None:
        """Creates a policy, and its namespace if that is not there."""
        self._did(f"TASPolicy {namespace}/{name} is created")
        if self._cluster.store.get(NAMESPACES, "", namespace) is None:
            self._cluster.create(NAMESPACES, "", {"metadata": {"name": namespace}}, manager=MANAGER)
        policy = {
            "apiVersion": TASPOLICIES.group_version,
            "kind": TASPOLICIES.kind,
            "metadata": {"name": name},
            "spec": {"strategies": strategies},
        }
        self._cluster.create(TASPOLICIES, namespace, policy, manager=MANAGER)

    async def report(self, metric: str, values: Mapping[str, str]) -> None:
        """Publishes a sample of a metric for each node of `values`, as any source does."""
        self._did(", ".join(f"{node} reports {metric}={value}" for node, value in values.items()))
        for node, value in values.items():
            now = time.time()
            scrape = Scrape(
                source=SOURCE, measured=now, arrived=now, sequence=0, metrics={metric: parse_quantity(value)}
            )
            try:
                await self._bus.publish(SAMPLES, samples_subject(node, SOURCE), encode_samples(scrape))
            except BusError as error:
                raise self._failed(f"the sample is not taken: {error}") from error

    def pod(self, namespace: str, name: str, *, policy: str, avoids: Mapping[str, str]) -> None:
        """Creates a pod under a policy, which must not be where a node has one of the labels `avoids`."""
        self._did(f"pod {name} is created")
        limits = {"telemetry/scheduling": "1"}  # the scheduler asks the extender about pods that name it
        expressions = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in avoids.items()]
        required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        spec: Object = {"containers": [{"name": "main", "image": "pause", "resources": {"limits": limits}}]}
        if expressions:
            spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        pod = {"metadata": {"name": name, "labels": {POD_LABEL: policy}}, "spec": spec}
        self._cluster.create(PODS, namespace, pod, manager=MANAGER)

    def evict(self, namespace: str, name: str) -> None:
        """Evicts a pod, as a descheduler does that finds its required node affinity violated."""
        self._did(f"pod {name} is evicted, as a descheduler does")
        self._cluster.evict(namespace, name)

    # Looking

    async def ready(self) -> None:
        """Expects every worker to be ready."""

        def look() -> Seen:
            waits = self._unready()
            return Seen(not waits, "; ".join(f"{worker}: {why}" for worker, why in waits.items()) or "all are")

        self._did("everything is started")
        await self.expect("every worker is ready", look)

    async def expect_scores(self, namespace: str, policy: str, expected: Mapping[str, int]) -> None:
        """Expects the extender's prioritize to give these scores."""

        async def look() -> Seen:
            hosts = await self._ask("prioritize", namespace, policy)
            if not isinstance(hosts, list):
                return Seen(expected=False, what=_problem(hosts))
            scores = {host["Host"]: host["Score"] for host in hosts}
            return Seen(scores == expected, _pairs(scores))

        await self.expect(f"the extender scores {_pairs(expected)}", look)

    async def expect_refused(self, namespace: str, policy: str, *nodes: str) -> None:
        """Expects the extender's filter to refuse these nodes and no others."""

        async def look() -> Seen:
            answer = await self._ask("filter", namespace, policy)
            if "FailedNodes" not in answer:
                return Seen(expected=False, what=_problem(answer))
            refused = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
            told = "; ".join(f"{node}: {why}" for node, why in sorted(refused.items()))
            return Seen(set(refused) == set(nodes), told or "every node passes")

        refused = f"the extender refuses {', '.join(nodes)} alone" if nodes else "the extender lets every node pass"
        await self.expect(refused, look)

    async def expect_placed(self, namespace: str, name: str, *nodes: str) -> str:
        """Expects a pod to be on one of these nodes, and returns which."""

        def look() -> Seen:
            node = self._node_of(namespace, name)
            return Seen(node in nodes, f"{name} is on {node}" if node else self._waits(namespace, name))

        await self.expect(f"{name} is placed on {' or '.join(nodes)}", look)
        return self._node_of(namespace, name)

    async def expect_waiting(self, namespace: str, name: str, *, words: str) -> None:
        """Expects the scheduler to find no node for a pod, for a reason with these words."""

        def look() -> Seen:
            what = self._waits(namespace, name)
            return Seen(not self._node_of(namespace, name) and words in what, what)

        await self.expect(f"{name} stays Pending: {words}", look)

    async def expect_labels(self, expected: Mapping[str, Mapping[str, str]]) -> None:
        """Expects the product's labels on all nodes to be these, by node; none on a node that is left out."""

        def look() -> Seen:
            found = {node: labels for node in self.nodes if (labels := self._labels(node))}
            return Seen(found == expected, _labelled(found))

        await self.expect(_labelled(expected), look)

    async def expect_woken(self, node: str) -> None:
        """Expects the annotation on a node that makes the scheduler try the pods again that fit nowhere."""

        def look() -> Seen:
            value = self._cluster.get(NODES, "", node)["metadata"].get("annotations", {}).get(ANNOTATION)
            return Seen(value is not None, f"{node} has {ANNOTATION}={value}" if value else f"{node} has none")

        await self.expect(f"{node} is annotated with {ANNOTATION}, which wakes the scheduler", look)

    async def expect_conditions(self, namespace: str, name: str, expected: Mapping[str, str]) -> None:
        """Expects a policy's status to say this, by the conditions' types."""

        def look() -> Seen:
            status = self._cluster.get(TASPOLICIES, namespace, name).get("status", {})
            found = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
            return Seen(found == expected, _pairs(found) or "it has no status yet")

        await self.expect(f"the policy's status says {_pairs(expected)}", look)

    async def expect(self, expected: str, look: Look) -> None:
        """Tells what is expected, and looks until it is seen.

        Raises:
            NotSeenError: if it is not in time.
        """
        self._tell("expected", expected, style="")
        began = time.monotonic()
        while True:
            seen = look()
            if not isinstance(seen, Seen):
                seen = await seen
            passed = time.monotonic() - began
            if seen.expected:
                self._tell("seen", f"{seen.what} ({_told(passed)})", style="green")
                return
            if passed >= self._within:
                raise self._failed(f"{seen.what} (after {self._within:g} s)")
            await asyncio.sleep(LOOK_SECONDS)

    # The rest

    async def _ask(self, verb: str, namespace: str, policy: str) -> Any:
        """The extender's answer about a pod of a policy and all nodes; text if it gives none."""
        metadata = {"name": "question", "namespace": namespace, "labels": {POD_LABEL: policy}}
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

    def _node_of(self, namespace: str, name: str) -> str:
        pod = self._cluster.store.get(PODS, namespace, name)
        return "" if pod is None else str(pod["spec"].get("nodeName", ""))

    def _waits(self, namespace: str, name: str) -> str:
        """Why a pod is on no node, in the scheduler's words."""
        pod = self._cluster.store.get(PODS, namespace, name)
        if pod is None:
            return f"there is no pod {name}"
        for condition in pod["status"].get("conditions", []):
            if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
                return f"{name} is {pod['status']['phase']}: {condition['message']}"
        return f"{name} is {pod['status']['phase']}"

    def _labels(self, node: str) -> dict[str, str]:
        """Those of a node's labels that are the product's."""
        found = self._cluster.get(NODES, "", node)["metadata"].get("labels", {})
        return {key: value for key, value in found.items() if is_own_label(key, value)}

    def _did(self, what: str) -> None:
        self._steps += 1
        self._console.print(f"{self._steps:2}  {what}", style="bold")

    def _tell(self, word: str, what: str, *, style: str) -> None:
        self._console.print(f"    {word:8}  {what}", style=style)

    def _failed(self, what: str) -> NotSeenError:
        self._tell("NOT SEEN", what, style="bold red")
        return NotSeenError(what)


def is_own_label(key: str, value: str) -> bool:
    """Whether a node's label is the product's, where nobody else sets such."""
    return key.startswith(LABEL_PREFIX) or value == VIOLATING


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def _labelled(found: Mapping[str, Mapping[str, str]]) -> str:
    labels: Iterable[str] = (
        f"{node} has {key}={value}" for node, labels in sorted(found.items()) for key, value in sorted(labels.items())
    )
    return ", ".join(labels) or "no node has a label of ours"


def _problem(answer: object) -> str:
    return f"the extender says {str(answer).strip()!r}"


def _told(seconds: float) -> str:
    return f"after {seconds:.2f} s" if seconds >= 0.005 else "at once"
