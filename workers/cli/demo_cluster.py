"""`tas demo --kubeconfig`: a story on a cluster that has this product at work already, or the reason why not.

A story acts upon the cluster only after every question here has been answered well, and none of them changes
anything: the API server is only read, and the extender is asked as by any scheduler. That the cluster's scheduler
asks this extender is told by nothing that can be read of a scheduler, only by what it has asked already.
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
from bus.messages import decode_node_facts, decode_synced
from bus.subjects import node_facts_key
from tas.errors import InvalidInputError
from tas.extender.verbs import Answer
from tas.manifest import parse_policy
from tas.policy import PolicyKey
from tas.status import metrics_of
from workers.cli.demo_stage import HOSTNAME, SOURCE, Node, Stage
from workers.cli.demo_stories import Story
from workers.cli.demo_telling import Seen
from workers.cli.settings import flag
from workers.extender import PREFIX
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import KubernetesError, NotFoundError
from workers.kubernetes.resources import FULL_NODES, NAMESPACES, PODS, POLICIES, NodeObject, PolicyObject
from workers.runtime import Address

ASK_SECONDS = 5.0
PODS_LOOKED_AT = 50
"""So many of the pods that the extender was asked about last are looked for in the cluster."""

SCHEDULER = "default-scheduler"
"""The one that will find a node for the pods of a story."""

PROBE_POLICY, PROBE_METRIC, PROBE_POD = "tas-demo-probe", "tas_demo_probe", "tas-demo-probe"


class UnfitError(Exception):
    """Why a story cannot be played on a cluster. Nothing of it was touched."""


class Around:
    """A cluster, its bus and its extender, and whether a story can be played there. Every method raises UnfitError."""

    def __init__(self, client: KubernetesClient, bus: Bus, story: Story, *, extender: Address, health: Address) -> None:
        self._client = client
        self._bus = bus
        self._story = story
        self._extender = f"http://{extender}{PREFIX}"
        self._health = f"http://{health}"

    async def choose_nodes(self) -> list[Node]:
        """As many nodes as the story has, that take pods and that the bus knows as this cluster has them.

        Every condition of the story has been looked at, but whether the scheduler asks.
        """
        try:
            policies = await self._client.list(POLICIES)
        except NotFoundError as error:
            raise UnfitError(f"{self._client.server} serves no TASPolicies: tas crd | kubectl apply -f -") from error
        except KubernetesError as error:
            raise UnfitError(str(error)) from error
        for policy in policies.items:
            self._must_be_apart(policy)
        await self._must_have_no_namespace()
        found = await self._listed_nodes()
        takers = [node for node in found if _takes_pods(node)]
        wanted = len(self._story.nodes)
        if len(takers) < wanted:
            raise UnfitError(
                f"the story needs {wanted} nodes that are Ready, take pods and have the label {HOSTNAME}, and "
                f"{self._client.server} has {len(takers)} such of {len(found)}"
            )
        known = [node async for node in self._known(takers)]
        if len(known) < wanted:
            raise UnfitError(
                f"the bus at {self._bus.address} knows {len(known)} of the {len(takers)} nodes that take pods, and the "
                f"story needs {wanted}: is tas run all {flag('kubeconfig')} (or tas run watch) at work for "
                f"{self._client.server}, and does {flag('bus')} lead to its bus?"
            )
        await self._must_be_ready()
        return [Node(node.metadata.name, node.metadata.labels[HOSTNAME]) for node in known[:wanted]]

    async def asked_about(self) -> str | None:
        """A pod of this cluster that its scheduler has asked this extender about; None if there is none to be found.

        The pod stands at the API server, the scheduler has said there what became of it, and the extender has
        answered about it since it was created.
        """
        mine = f"question-{uuid.uuid4().hex}"
        question: dict[str, Any] = {
            "Pod": {"metadata": {"name": mine, "namespace": "default"}},
            "Nodes": None,
            "NodeNames": [],
        }
        await self._http("POST", f"{self._extender}/filter", question)
        answers = msgspec.convert(await self._http("GET", f"{self._health}/answers"), list[Answer])
        if not any(answer.pod == mine for answer in answers):
            raise UnfitError(
                f"what {self._extender} answers is not told at {self._health}/answers: {flag('listen')} and "
                f"{flag('extender_health')} must be those of one extender"
            )
        last = {(each.namespace, each.pod): each.time for each in answers if each.verb == "filter" and each.pod != mine}
        for (namespace, name), asked in list(reversed(last.items()))[:PODS_LOOKED_AT]:
            with suppress(KubernetesError):  # most are gone by now, and some never were
                pod = await self._client.get(PODS, name, namespace=namespace)
                created = pod.metadata.creation_timestamp
                told = any(condition.type == "PodScheduled" for condition in pod.status.conditions)
                # The API server counts whole seconds; a pod of the same name may have been there before.
                if pod.spec.scheduler_name == SCHEDULER and told and created and created.timestamp() <= asked + 1:
                    return f"{namespace}/{name}"
        return None

    def unasked(self) -> UnfitError:
        """Why nothing is done where no pod tells that the scheduler asks."""
        return UnfitError(
            f"nothing tells that the scheduler of {self._client.server} asks the extender at {self._extender}: among "
            "the pods that it was asked about lately none is one of this cluster. Have a pod scheduled that carries "
            "the label telemetry-policy (docs/scheduler.md) and try again; or let the story find out by creating a "
            "pod first that no node is good enough for: --probe"
        )

    async def look(self) -> Seen:
        """Whether the extender, and all that runs in its process, is ready."""
        try:
            await self._must_be_ready()
        except UnfitError as error:
            return Seen(expected=False, what=str(error))
        return Seen(expected=True, what="all are")

    def _must_be_apart(self, found: PolicyObject) -> None:
        """Raises UnfitError if what the story publishes would count in a policy of somebody else, or the other way."""
        key = PolicyKey(found.metadata.namespace, found.metadata.name)
        if key.name in (self._story.policy, PROBE_POLICY):
            raise UnfitError(f"TASPolicy {key} has the name of the story's own, and so the same labels on nodes")
        policy, _ = parse_policy(key, found.spec)
        for use in sorted(metrics_of(policy)):
            if use.metric in self._story.metrics and use.source in ("", SOURCE):
                raise UnfitError(
                    f"TASPolicy {key} reads {use}: what the story publishes of nodes would count there, too, and act "
                    f"upon pods of others. A rule with source: (another than {SOURCE}) would be left alone"
                )

    async def _must_have_no_namespace(self) -> None:
        name = self._story.namespace
        try:
            await self._client.get(NAMESPACES, name)
        except NotFoundError as error:
            if error.names(group="", plural=NAMESPACES.plural, name=name):
                return
            raise UnfitError(str(error)) from error
        except KubernetesError as error:
            raise UnfitError(str(error)) from error
        raise UnfitError(
            f"there is a namespace {name} already: the story is played by somebody else, or was killed before it "
            f"could clean up (kubectl delete namespace {name})"
        )

    async def _listed_nodes(self) -> Sequence[NodeObject]:
        try:
            return sorted((await self._client.list(FULL_NODES)).items, key=lambda node: node.metadata.name)
        except KubernetesError as error:
            raise UnfitError(str(error)) from error

    async def _known(self, nodes: Sequence[NodeObject]) -> AsyncIterator[NodeObject]:
        """Those of `nodes` that stand on the bus with the same uid."""
        try:
            entries = {entry.key: entry.value for entry in await self._bus.entries(NODES_BUCKET)}
        except BusError as error:
            raise UnfitError(f"the bus at {self._bus.address}: {error}") from error
        synced = entries.get(SYNCED)
        with suppress(InvalidInputError):
            if synced is None or not decode_synced(synced).cluster:
                return
        for node in nodes:
            facts = entries.get(node_facts_key(node.metadata.name))
            with suppress(InvalidInputError):
                if facts is not None and decode_node_facts(facts).uid == node.metadata.uid:
                    yield node

    async def _must_be_ready(self) -> None:
        told = await self._http("GET", f"{self._health}/readyz")
        workers: Mapping[str, str | None] = told.get("workers", {}) if isinstance(told, dict) else {}
        if "extender" not in workers:
            raise UnfitError(f"no extender tells its health at {self._health}: {flag('extender_health')}")
        if waits := [f"{worker}: {why}" for worker, why in workers.items() if why is not None]:
            raise UnfitError(f"not ready at {self._health}: {'; '.join(waits)}")

    async def _http(self, method: str, url: str, body: object = None) -> Any:
        """The JSON of an answer, whatever its status."""
        timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, url, json=body) as response,
            ):
                return msgspec.json.decode(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            raise UnfitError(
                f"no extender answers at {url}: {str(error) or type(error).__name__} "
                f"({flag('listen')}, {flag('extender_health')})"
            ) from error


async def probe(stage: Stage) -> None:
    """Creates a pod that no node is good enough for, and expects the scheduler to say so in the extender's words.

    A scheduler that does not ask the extender says something else, or places it where nodes offer the resource.
    """
    rule = {"metricname": PROBE_METRIC, "operator": "Equals", "target": 0}  # nobody publishes it
    await stage.policy(PROBE_POLICY, {"dontschedule": {"onStale": "fail", "rules": [rule]}})
    await stage.expect_refused(PROBE_POLICY, *stage.nodes)
    await stage.pod(PROBE_POD, policy=PROBE_POLICY, avoids={})
    await stage.expect_waiting(PROBE_POD, words=f"Node violates {PROBE_POLICY}")
    await stage.withdraw(PROBE_POD)


def _takes_pods(node: NodeObject) -> bool:
    """Whether a pod without tolerations can be told to go there."""
    ready = any((each.type, each.status) == ("Ready", "True") for each in node.status.conditions)
    kept_off: Collection[str] = {taint.effect for taint in node.spec.taints} - {"PreferNoSchedule"}
    hostname = node.metadata.labels.get(HOSTNAME)
    return ready and not node.spec.unschedulable and not kept_off and bool(hostname)
