"""Facts from the API server."""

import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TypeVar

from cli.configure.schedulers import NAMESPACE as KUBE_SYSTEM
from cli.configure.schedulers import SCHEDULERS, scheduler_states
from cli.doctor.cluster_read import ADMINISTRATOR, ClusterRead, Pods, unread
from cli.doctor.requests import offset_of, requested
from tas.configuring.control_planes import SchedulerState
from tas.configuring.static_pod import Scheduler
from tas.configuring.versions import minor_of_version
from tas.diagnosis.descheduler import Descheduler, NodeState, is_descheduler
from tas.diagnosis.finding import Missing
from tas.diagnosis.owner import Owner, owner_of
from tas.diagnosis.policies import strategy_fields
from tas.diagnosis.rights import ORIGINAL, SELF, Reviewed, Right, rights_in
from tas.diagnosis.workloads import DaemonSetTemplate, Expression, Term, Workload
from tas.enforcing.node_resource import RESOURCE
from tas.errors import InvalidInputError
from tas.policy.policy import API_VERSION, POD_LABEL, PolicyKey
from tas.sources.custom_metrics import GROUP, decode_group, decode_metric_names
from workers.kubernetes.client import LIST_SECONDS, KubernetesClient
from workers.kubernetes.errors import ConfigurationError, NotFoundError
from workers.kubernetes.resources import (
    ACCOUNTS,
    CUSTOM_METRICS,
    DAEMON_SETS,
    FULL_NODES,
    NODE_LEASES,
    OWN_REVIEWS,
    PLACEMENT_PODS,
    POLICIES,
    REVIEWS,
    WHOLE_PODS,
    NodeObject,
    NodeTerm,
    PlacementPod,
    PlacementSpec,
)
from workers.names import ALL_WORKERS
from workers.registry import WORKERS
from workers.settings import flag

TOGETHER = ("watch", "labels", "collect")
"""The workers of `tas run all` of which it always needs the rights."""


@cache
def accounts() -> Mapping[str, tuple[Right, ...]]:
    """The rights by account, without the metrics of `CUSTOM_METRICS`: each cluster has other ones."""
    own = [name for name, spec in WORKERS.items() if spec.account]
    of_all = (name for name in own if WORKERS[name].in_all is not None)
    return {f"tas-{name}": _rights_of(name) for name in own} | {f"tas-{ALL_WORKERS}": _joined(of_all)}


def rights_of(account: str) -> tuple[Right, ...]:
    """The rights that an account needs."""
    return accounts().get(account) or _joined(TOGETHER)


def _rights_of(worker: str) -> tuple[Right, ...]:
    return rights_in(WORKERS[worker].account)


def _joined(workers: Iterable[str]) -> tuple[Right, ...]:
    return tuple(dict.fromkeys(right for worker in workers for right in _rights_of(worker)))


T = TypeVar("T")

NODE_LEASE_NAMESPACE = "kube-node-lease"
MAX_SCHEMA_BYTES = 4 << 20
MAX_NAMES_BYTES = 16 << 20
ENDED = ("Succeeded", "Failed")


async def read_cluster(kubeconfig: Path | None, *, namespace: str) -> ClusterRead:
    """Reads the cluster of a kubeconfig, or of this pod (None). `namespace` is that of the accounts of the workers."""
    try:
        async with KubernetesClient.connect(kubeconfig, worker="doctor") as client:
            return await _read(client, namespace)
    except ConfigurationError as error:
        invalid = Missing(f"{flag('kubeconfig')}: {error}", "give a kubeconfig that can be read")
        return unread(invalid, Missing("the API server is not known"), is_asked=True)


async def _read(client: KubernetesClient, namespace: str) -> ClusterRead:
    asked = time.time()
    version = await requested(client.version(), mend="correct --kubeconfig", run="kubectl get --raw /readyz")
    answered = time.time()
    if isinstance(version, Missing):
        return unread(version, Missing("the API server does not answer"), is_asked=True, address=client.server)
    nodes, (pods, daemon_sets), environment, (policies, fields), offered, rights = await asyncio.gather(
        _listed(_nodes(client)),
        asyncio.gather(_listed(_pods(client)), _listed(_daemon_sets(client))),
        _listed(_environment(client)),
        asyncio.gather(_listed(_policies(client)), _listed(_strategy_fields(client))),
        _listed(_offered(client)),
        _listed(_rights(client, namespace)),
    )
    states: Sequence[NodeState] | Missing
    clocks: Mapping[str, float] | Missing
    control_planes: Sequence[SchedulerState] | Missing
    if isinstance(nodes, Missing):
        states = clocks = control_planes = nodes
    else:
        states = [_state(node) for node in nodes]
        ready = {node.name for node in states if node.ready}
        clocks, control_planes = await asyncio.gather(
            _listed(_clocks(client, ready)), _listed(scheduler_states(client, nodes))
        )
    return ClusterRead(
        is_asked=True,
        address=client.server,
        server=client.server,
        minor=_minor(version[0].git_version),
        clock=offset_of(version[1], asked, answered),
        nodes=states,
        node_clocks=clocks,
        pods=pods,
        daemon_sets=daemon_sets,
        environment=environment,
        control_planes=control_planes,
        policies=policies,
        strategy_fields=fields,
        offered=offered,
        rights=rights,
    )


async def _listed(call: Awaitable[T]) -> T | Missing:
    """As `requested`, with the time that a list of a large cluster may take."""
    return await requested(call, mend=ADMINISTRATOR, seconds=LIST_SECONDS)


def _minor(version: str) -> int | None:
    try:
        return minor_of_version(version)
    except InvalidInputError:
        return None


async def _nodes(client: KubernetesClient) -> Sequence[NodeObject]:
    return (await client.list(FULL_NODES)).items


def _state(node: NodeObject) -> NodeState:
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
    pods = (await client.list(PLACEMENT_PODS)).items
    workloads = [(pod, workload_of(pod)) for pod in pods]
    return Pods(
        running=[workload for pod, workload in workloads if pod.status.phase not in ENDED],
        deschedulers=frozenset(
            Descheduler(container.image, workload.owner)
            for pod, workload in workloads
            for container in pod.spec.containers
            if is_descheduler(container.image)
        ),
    )


def workload_of(pod: PlacementPod) -> Workload:
    """A pod as the checks see it."""
    meta, spec = pod.metadata, pod.spec
    controller = next(((each.kind, each.name) for each in meta.owner_references if each.controller), None)
    containers = (*spec.containers, *spec.init_containers)
    affinity = None if spec.affinity is None else spec.affinity.node_affinity
    return Workload(
        namespace=meta.namespace,
        name=meta.name,
        owner=owner_of(meta.namespace, meta.name, controller=controller, labels=meta.labels),
        policy=meta.labels.get(POD_LABEL, ""),
        resources=frozenset(
            name for each in containers for named in (each.resources.requests, each.resources.limits) for name in named
        ),
        required=_required(spec),
        preferred=() if affinity is None else tuple(e for each in affinity.preferred for e in _term(each.preference)),
    )


def _required(spec: PlacementSpec) -> tuple[Term, ...]:
    """The terms of the required node affinity. A nodeSelector is a part of each."""
    affinity = None if spec.affinity is None else spec.affinity.node_affinity
    required = None if affinity is None else affinity.required
    exact = tuple(Expression(key, "In", (value,)) for key, value in spec.node_selector.items())
    terms = () if required is None else required.node_selector_terms
    return tuple((*_term(each), *exact) for each in terms) or ((exact,) if exact else ())


def _term(term: NodeTerm) -> Term:
    return tuple(Expression(each.key, each.operator, each.values) for each in term.match_expressions)


async def _daemon_sets(client: KubernetesClient) -> list[DaemonSetTemplate]:
    return [
        DaemonSetTemplate(
            Owner(each.metadata.namespace, "DaemonSet", each.metadata.name), _required(each.spec.template.spec)
        )
        for each in (await client.list(DAEMON_SETS)).items
    ]


async def _environment(client: KubernetesClient) -> Mapping[str, str] | Missing:
    for pod in (await client.list(WHOLE_PODS, label_selector=SCHEDULERS)).items:
        if pod.metadata.namespace == KUBE_SYSTEM:
            return Scheduler({"kind": "Pod", "spec": pod.spec}).environment
    mend = "run tas doctor on a control plane node, or give --manifest FILE"
    return Missing("no kube-scheduler runs as a pod", mend)


async def _policies(client: KubernetesClient) -> frozenset[PolicyKey] | None:
    """The policies; None if the API server does not serve TASPolicies."""
    try:
        listed = await client.list(POLICIES)
    except NotFoundError:
        return None
    return frozenset(PolicyKey(each.metadata.namespace, each.metadata.name) for each in listed.items)


async def _strategy_fields(client: KubernetesClient) -> frozenset[str] | Missing:
    """The fields that a strategy has by the CRD of the cluster."""
    try:
        body = await client.read(POLICIES, f"/openapi/v3/apis/{API_VERSION}", max_bytes=MAX_SCHEMA_BYTES)
    except NotFoundError:
        return Missing("the API server publishes no schema of TASPolicies")
    return strategy_fields(body)


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
    known = [name for name in (*accounts(), ORIGINAL) if name in existing]
    return [await _reviewed(client, namespace, account) for account in known or [SELF]]


async def _reviewed(client: KubernetesClient, namespace: str, account: str) -> Reviewed:
    rights = rights_of(account)
    allowed = await asyncio.gather(*(_is_allowed(client, namespace, account, right) for right in rights))
    return Reviewed(account=account, allowed=dict(zip(rights, allowed, strict=True)))


async def _is_allowed(client: KubernetesClient, namespace: str, account: str, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": right.namespace,
    }
    spec: dict[str, object] = {"resourceAttributes": attributes}
    if account == SELF:
        return (await client.create(OWN_REVIEWS, {"spec": spec})).status.allowed
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    spec |= {"user": f"system:serviceaccount:{namespace}:{account}", "groups": groups}
    return (await client.create(REVIEWS, {"spec": spec})).status.allowed
