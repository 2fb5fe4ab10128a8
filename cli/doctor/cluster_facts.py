"""Facts from the API server."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from cli.configure.status import NAMESPACE as KUBE_SYSTEM
from cli.configure.status import SCHEDULERS, scheduler_states
from cli.doctor.probes import offset_of, probed
from tas.configuring.control_planes import SchedulerState
from tas.configuring.static_pod import Scheduler
from tas.configuring.versions import minor_of_version
from tas.diagnosis.clocks import Offset
from tas.diagnosis.descheduler import NodeState, is_descheduler
from tas.diagnosis.finding import Missing
from tas.diagnosis.rights import ACCOUNTS as KNOWN_ACCOUNTS
from tas.diagnosis.rights import ORIGINAL, SELF, Reviewed, Right, rights_of
from tas.diagnosis.workloads import Workload, workload_of
from tas.enforcing.node_resource import RESOURCE
from tas.errors import InvalidInputError
from tas.policy.policy import PolicyKey
from tas.sources.custom_metrics import GROUP, decode_group, decode_metric_names
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import NotFoundError
from workers.kubernetes.resources import (
    ACCOUNTS,
    CUSTOM_METRICS,
    FULL_NODES,
    NODE_LEASES,
    OWN_REVIEWS,
    POLICIES,
    REVIEWS,
    WHOLE_PODS,
    NodeObject,
    WholePod,
)

NODE_LEASE_NAMESPACE = "kube-node-lease"
MAX_NAMES_BYTES = 16 << 20
ENDED = ("Succeeded", "Failed")
ADMINISTRATOR = "tas doctor --kubeconfig FILE, of a user who may do this"


class Pods(NamedTuple):
    """The pods of the cluster.

    Attributes:
        running: Those that have not ended.
        deschedulers: The images of deschedulers, also of pods that have ended, as of a CronJob.
        environment: That of a kube-scheduler.
    """

    running: list[Workload]
    deschedulers: frozenset[str]
    environment: Mapping[str, str] | Missing


class ClusterRead(NamedTuple):
    """All facts from the API server; `minor` is its minor version."""

    server: str | Missing
    minor: int | None
    clock: Offset | Missing
    nodes: Sequence[NodeState] | Missing
    node_clocks: Mapping[str, float] | Missing
    pods: Pods | Missing
    control_planes: Sequence[SchedulerState] | Missing
    policies: frozenset[PolicyKey] | Missing
    is_served: bool
    offered: frozenset[str] | Missing
    rights: list[Reviewed] | Missing


def unread(server: Missing) -> ClusterRead:
    """The facts of an API server that does not answer."""
    absent = Missing("the API server does not answer")
    return ClusterRead(
        server=server,
        minor=None,
        clock=absent,
        nodes=absent,
        node_clocks=absent,
        pods=absent,
        control_planes=absent,
        policies=absent,
        is_served=True,
        offered=absent,
        rights=absent,
    )


async def read_cluster(client: KubernetesClient, *, namespace: str) -> ClusterRead:
    """Reads the cluster. `namespace` is that of the accounts of the workers."""
    asked = time.time()
    version = await probed(client.version(), mend="kubectl get --raw /readyz; correct --kubeconfig")
    answered = time.time()
    if isinstance(version, Missing):
        return unread(version)
    listed, pods, control_planes, policies, offered, rights = await asyncio.gather(
        probed(_nodes(client), mend=ADMINISTRATOR),
        probed(_pods(client), mend=ADMINISTRATOR),
        probed(scheduler_states(client), mend=ADMINISTRATOR),
        probed(_policies(client), mend=ADMINISTRATOR),
        probed(_offered(client), mend=ADMINISTRATOR),
        probed(_rights(client, namespace), mend=ADMINISTRATOR),
    )
    nodes: Sequence[NodeState] | Missing
    clocks: Mapping[str, float] | Missing
    if isinstance(listed, Missing):
        nodes = clocks = listed
    else:
        nodes, clocks = listed
    return ClusterRead(
        server=client.server,
        minor=_minor(version[0].git_version),
        clock=offset_of(version[1], asked, answered),
        nodes=nodes,
        node_clocks=clocks,
        pods=pods,
        control_planes=control_planes,
        policies=frozenset() if policies is None else policies,
        is_served=policies is not None,
        offered=offered,
        rights=rights,
    )


def _minor(version: str) -> int | None:
    try:
        return minor_of_version(version)
    except InvalidInputError:
        return None


async def _nodes(client: KubernetesClient) -> tuple[list[NodeState], Mapping[str, float] | Missing]:
    nodes = [_node(node) for node in (await client.list(FULL_NODES)).items]
    return nodes, await probed(_clocks(client, {node.name for node in nodes if node.ready}), mend=ADMINISTRATOR)


def _node(node: NodeObject) -> NodeState:
    ready = any((each.type, each.status) == ("Ready", "True") for each in node.status.conditions)
    return NodeState(node.metadata.name, ready, node.status.allocatable.get(RESOURCE, "0") != "0")


async def _clocks(client: KubernetesClient, ready: set[str]) -> Mapping[str, float] | Missing:
    """By Ready node, how far the clock of its kubelet is ahead: at least so far, since the lease is from before."""
    found: dict[str, float] = {}
    leases = await client.list(NODE_LEASES)
    now = time.time()
    for lease in leases.items:
        renewed = lease.spec.renew_time
        if lease.metadata.namespace != NODE_LEASE_NAMESPACE or lease.metadata.name not in ready or renewed is None:
            continue
        try:
            found[lease.metadata.name] = datetime.fromisoformat(renewed).timestamp() - now
        except ValueError:
            continue
    return found or Missing(f"no Ready node has a lease in {NODE_LEASE_NAMESPACE}")


async def _pods(client: KubernetesClient) -> Pods:
    pods = (await client.list(WHOLE_PODS)).items
    images = {image for pod in pods for image in _images(pod.spec)}
    return Pods(
        running=[_workload(pod) for pod in pods if pod.status.phase not in ENDED],
        deschedulers=frozenset(filter(is_descheduler, images)),
        environment=_environment(pods),
    )


def _workload(pod: WholePod) -> Workload:
    meta = pod.metadata
    owner = next((f"{each.kind} {each.name}" for each in meta.owner_references if each.controller), "")
    return workload_of(namespace=meta.namespace, name=meta.name, owner=owner, labels=meta.labels, spec=pod.spec)


def _images(spec: object) -> Iterable[str]:
    containers = spec.get("containers") if isinstance(spec, dict) else None
    for each in containers if isinstance(containers, list) else []:
        if isinstance(each, dict) and isinstance(each.get("image"), str):
            yield each["image"]


def _environment(pods: Iterable[WholePod]) -> Mapping[str, str] | Missing:
    name, _, value = SCHEDULERS.partition("=")
    for pod in pods:
        if pod.metadata.namespace == KUBE_SYSTEM and pod.metadata.labels.get(name) == value:
            try:
                return Scheduler({"kind": "Pod", "spec": pod.spec}).environment
            except InvalidInputError as error:
                return Missing(str(error))
    return Missing("no kube-scheduler runs as a pod", "tas doctor on a control plane node, with --manifest FILE")


async def _policies(client: KubernetesClient) -> frozenset[PolicyKey] | None:
    """The policies; None if the API server does not serve TASPolicies."""
    try:
        listed = await client.list(POLICIES)
    except NotFoundError:
        return None
    return frozenset(PolicyKey(each.metadata.namespace, each.metadata.name) for each in listed.items)


async def _offered(client: KubernetesClient) -> frozenset[str]:
    """The metrics of nodes of the custom metrics API; none if the cluster does not serve it."""
    try:
        version = decode_group(await client.read(CUSTOM_METRICS, f"/apis/{GROUP}", max_bytes=MAX_NAMES_BYTES))
        body = await client.read(CUSTOM_METRICS, f"/apis/{GROUP}/{version}", max_bytes=MAX_NAMES_BYTES)
    except NotFoundError:
        return frozenset()
    return decode_metric_names(body)


async def _rights(client: KubernetesClient, namespace: str) -> list[Reviewed]:
    """The rights of the accounts of the workers that exist; without any, those of this client."""
    existing = {
        each.metadata.name for each in (await client.list(ACCOUNTS)).items if each.metadata.namespace == namespace
    }
    accounts = [name for name in (*KNOWN_ACCOUNTS, ORIGINAL) if name in existing]
    return [await _reviewed(client, namespace, account) for account in accounts or [SELF]]


async def _reviewed(client: KubernetesClient, namespace: str, account: str) -> Reviewed:
    rights = rights_of(account)
    allowed = await asyncio.gather(*(_is_allowed(client, namespace, account, right) for right in rights))
    return Reviewed(account=account, allowed=dict(zip(rights, allowed, strict=True)))


async def _is_allowed(client: KubernetesClient, namespace: str, account: str, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
    spec: dict[str, object] = {"resourceAttributes": attributes}
    if account == SELF:
        return (await client.create(OWN_REVIEWS, {"spec": spec})).status.allowed
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    spec |= {"user": f"system:serviceaccount:{namespace}:{account}", "groups": groups}
    return (await client.create(REVIEWS, {"spec": spec})).status.allowed
