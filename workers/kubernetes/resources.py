"""The resources of the API server that the product uses, and the fields of their objects that it reads."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import force_setattr

from tas.allocation.pod import ContainerResources, PodResources
from tas.enforcing.pod import PodKey
from tas.errors import shortened
from tas.gpu.claim import ContainerRequest, DevicePod
from tas.gpu.eviction import EvictionLabel
from tas.gpu.names import EVICTION_LABEL
from tas.outcomes.runs import ContainerState, Ended, Run, runs_of
from tas.policy.policy import API_VERSION, PolicyKey
from tas.values.names import is_dns_label
from tas.verdict.verdict import VIOLATING
from workers.kubernetes.errors import RejectedError

_GROUP, _, _VERSION = API_VERSION.partition("/")

Time = Annotated[datetime, msgspec.Meta(tz=True)]


class ManagedFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields that a field manager has set, and when it last changed one; `fields_v1` maps `f:<field>` to subfields.

    The time is text, as in `Condition`.
    """

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    time: str | None = None
    fields_v1: dict[str, Any] = msgspec.field(name="fieldsV1", default_factory=dict)


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`ObjectMeta`, and the metadata of a list."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Writes(NamedTuple):
    """By whom and when the status of an object was last changed, and when anything else, as text; empty: not known."""

    status: tuple[tuple[str, str], ...] = ()
    others: str = ""


class NodeMetadata(Metadata, frozen=True, kw_only=True, rename="camel"):
    """The metadata of a node with what workers read of it: a list of all nodes must take little memory.

    The annotations are dropped. Of `managed_fields` there is what tells who set `unprefixed`, and `writes`. Each node
    has the same keys and many of the same values of labels: each text is stored once.
    """

    managed_fields: tuple[ManagedFields, ...] = ()
    writes: Writes = Writes()

    def __post_init__(self) -> None:
        # Here and not after the list: then only the nodes of one page are in memory as they were sent.
        labels = {sys.intern(key): sys.intern(value) for key, value in self.labels.items()}
        force_setattr(self, "labels", labels)
        force_setattr(self, "annotations", {})
        if self.managed_fields:
            force_setattr(self, "writes", _writes(self.managed_fields))
            force_setattr(self, "managed_fields", tuple(_setters(self.managed_fields, self.unprefixed)))

    @property
    def unprefixed(self) -> frozenset[str]:
        """The labels without a prefix whose value is `violating`."""
        return frozenset(key for key, value in self.labels.items() if value == VIOLATING and "/" not in key)


MAX_ANNOTATION = 100
"""The most characters of an annotation that are kept: a number has fewer, and more are cut."""


class AnnotatedMetadata(NodeMetadata, frozen=True, kw_only=True, rename="camel"):
    """The metadata of a node with the annotations `keys`, and when each was written at the latest, if that is known.

    The API server has a time for each field manager, not for each field: when it last changed any field of its own.
    """

    keys: ClassVar[frozenset[str]] = frozenset()
    written: dict[str, float] = {}

    def __post_init__(self) -> None:
        kept = {key: self.annotations[key][:MAX_ANNOTATION] for key in self.keys & self.annotations.keys()}
        written: dict[str, float] = {}
        for each in self.managed_fields if kept else ():
            owned = _metadata_fields(each.fields_v1, "annotations")
            if (at := time_in(each.time)) is None:
                continue
            for key in kept:
                if f"f:{key}" in owned:
                    written[key] = max(at.timestamp(), written.get(key, 0.0))
        super().__post_init__()
        force_setattr(self, "annotations", kept)
        force_setattr(self, "written", written)


def labels_of(fields: Mapping[str, Any]) -> Collection[str]:
    """The labels `f:<label>` among the fields of a manager."""
    return _metadata_fields(fields, "labels")


def _metadata_fields(fields: Mapping[str, Any], name: str) -> Collection[str]:
    of_metadata = fields.get("f:metadata")
    found = of_metadata.get(f"f:{name}") if isinstance(of_metadata, dict) else None
    return found if isinstance(found, dict) else ()


def _writes(managed: Iterable[ManagedFields]) -> Writes:
    """Facts.md n82: the times have whole seconds, and the same form, so the later text is the later time."""
    status: dict[str, str] = {}
    others = ""
    for each in managed:
        if each.subresource == "status":
            status[sys.intern(each.manager)] = max(status.get(each.manager, ""), each.time or "")
        else:
            others = max(others, each.time or "")
    return Writes(tuple(sorted(status.items())), others)


def _setters(managed: Iterable[ManagedFields], labels: Collection[str]) -> Iterator[ManagedFields]:
    for each in managed if labels else ():
        owned = labels_of(each.fields_v1)
        if found := [f"f:{label}" for label in labels if f"f:{label}" in owned]:
            fields: dict[str, Any] = {"f:metadata": {"f:labels": {label: {} for label in found}}}
            yield msgspec.structs.replace(each, fields_v1=fields)


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """An object with its metadata only (`PartialObjectMetadata`), and the base of the others."""

    metadata: Metadata


class PolicyObject(Object, frozen=True, kw_only=True):
    """A TASPolicy. `spec` and `status` are decoded JSON; `tas.policy.manifest` parses them."""

    spec: Any = None
    status: Any = None

    @property
    def key(self) -> PolicyKey:
        """Its name in the cluster."""
        return PolicyKey(self.metadata.namespace, self.metadata.name)


class PodSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The pod's node, and the scheduler that places the pod."""

    node_name: str = ""
    scheduler_name: str = ""


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A condition of a pod or a node; `status` is `True`, `False` or `Unknown`.

    The time is text: a kubelet may write one of the year 0 or 10000, and one such object must not spoil a whole list.
    """

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


EPOCH_YEAR = 1970


def time_in(text: str | None) -> datetime | None:
    """A time in UTC; None if there is none, or none from 1970 to 9999: the zero time of Go is of the year 1."""
    try:
        found = None if text is None else datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return None if found is None or found.year < EPOCH_YEAR else found


MAX_DIGITS = 40
"""The most digits of a resource version that is read as a number: of 128 bits. Anybody may write a record."""


def version_number(resource_version: str) -> int:
    """A resource version as a number that grows with time (Kubernetes KEP-5504); 0 if it is not a number."""
    is_number = resource_version.isascii() and resource_version.isdigit() and len(resource_version) <= MAX_DIGITS
    return int(resource_version) if is_number else 0


class PodStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Phase and conditions of a pod, and when its kubelet has seen it, as text as in `Condition`."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None


class PodObject(Object, frozen=True, kw_only=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A taint keeps pods off a node; `PreferNoSchedule` is only a preference."""

    key: str = ""
    effect: str = ""


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a node accepts new pods."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions and resources of a node: quantities as text, by resource name."""

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()


class LabelledNode(Object, frozen=True, kw_only=True):
    """A node without spec and status, for `LABELLED_NODES`."""

    metadata: NodeMetadata


class NodeObject(Object, frozen=True, kw_only=True):
    """A whole node, for `FULL_NODES`; `LABELLED_NODES` has the metadata only."""

    metadata: NodeMetadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NodeAddress(msgspec.Struct, frozen=True, kw_only=True):
    """An address of a node, an IP address or a name."""

    address: str = ""


class AddressedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a node."""

    addresses: tuple[NodeAddress, ...] | None = None


class AddressedNode(Object, frozen=True, kw_only=True):
    """A node with its addresses, for `ADDRESSED_NODES`."""

    metadata: NodeMetadata
    status: AddressedStatus = AddressedStatus()


class WholeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The taints of a node as decoded JSON, so that those of others are written back as they are."""

    taints: tuple[dict[str, Any], ...] = ()


class WholeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a node as in `NodeStatus`, and its conditions as decoded JSON."""

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[dict[str, Any], ...] = ()


class WholeNode(Object, frozen=True, kw_only=True):
    """A node with what `marks` and `resources` read and write, for `WHOLE_NODES`."""

    metadata: NodeMetadata
    spec: WholeSpec = WholeSpec()
    status: WholeStatus = WholeStatus()


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """An owner of an object; of several owners, one is the controller."""

    kind: str = ""
    name: str = ""
    controller: bool = False


class OwnedMetadata(Metadata, frozen=True, kw_only=True, rename="camel"):
    """The metadata with the owners."""

    owner_references: tuple[Owner, ...] = ()


class Expression(msgspec.Struct, frozen=True, kw_only=True):
    """A requirement for labels of nodes."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Requirements that a node must meet together."""

    match_expressions: tuple[Expression, ...] = ()


class PreferredTerm(msgspec.Struct, frozen=True, kw_only=True):
    """A term that nodes should match."""

    preference: NodeTerm = NodeTerm()


class NodeTerms(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Terms of which a node must match one."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class NodeAffinity(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod requires of its node, and what it prefers."""

    required: NodeTerms | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: tuple[PreferredTerm, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class Affinity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The affinity of a pod for nodes."""

    node_affinity: NodeAffinity | None = None


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of a container, by name."""

    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container."""

    image: str = ""
    resources: Requirements = Requirements()


class PlacementSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What decides where a pod may run."""

    affinity: Affinity | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    node_selector: dict[str, str] = {}


class PlacementPod(Object, frozen=True, kw_only=True):
    """A pod for `PLACEMENT_PODS`: only what matters for placement, since a cluster has many pods."""

    metadata: OwnedMetadata
    spec: PlacementSpec = PlacementSpec()
    status: PodStatus = PodStatus()


class GpuNodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts of a node. A quantity may be a number in JSON."""

    capacity: dict[str, str | int | float] = {}
    allocatable: dict[str, str | int | float] = {}


class GpuNode(Object, frozen=True, kw_only=True):
    """A node for `GPU_NODES`: what matters for GPU cards and requests."""

    metadata: NodeMetadata
    status: GpuNodeStatus = GpuNodeStatus()


class GpuContainer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A container with its resources; an init container that is restarted `Always` is a sidecar."""

    name: str = ""
    resources: Requirements = Requirements()
    restart_policy: str = ""

    def as_resources(self) -> ContainerResources:
        """The container for the rules about requests."""
        return ContainerResources(
            requests=self.resources.requests,
            limits=self.resources.limits,
            sidecar=self.restart_policy == "Always",
        )

    def as_request(self) -> ContainerRequest:
        """The container for the rules about cards. A quantity may be a number in JSON."""
        return ContainerRequest(
            name=self.name,
            requests={name: str(amount) for name, amount in self.resources.requests.items()},
            limits={name: str(amount) for name, amount in self.resources.limits.items()},
        )


class GpuPodSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The node of a pod, and what its containers request."""

    node_name: str = ""
    containers: tuple[GpuContainer, ...] = ()
    init_containers: tuple[GpuContainer, ...] = ()
    overhead: dict[str, Any] = {}
    resources: Requirements = Requirements()


class GpuPod(Object, frozen=True, kw_only=True):
    """A pod for `GPU_PODS`: what matters for GPU cards and requests."""

    spec: GpuPodSpec = GpuPodSpec()
    status: PodStatus = PodStatus()

    def refusal(self) -> Condition | None:
        """Why the scheduler has not placed the pod; None if the scheduler has placed the pod or not tried it."""
        for condition in self.status.conditions:
            if (condition.type, condition.status) == ("PodScheduled", "False"):
                return condition
        return None

    def scheduled_at(self) -> float | None:
        """When the pod was placed, in seconds since 1970; None if that is not known.

        Without the condition, it is when the kubelet has seen the pod (facts.md c63).
        """
        for condition in self.status.conditions:
            at = _seconds(condition.last_transition_time)
            if (condition.type, condition.status) == ("PodScheduled", "True") and at is not None:
                return at
        return _seconds(self.status.start_time)

    def as_pod_resources(self) -> PodResources:
        """The pod for the rules about requests."""
        return PodResources(
            containers=tuple(each.as_resources() for each in self.spec.containers),
            init_containers=tuple(each.as_resources() for each in self.spec.init_containers),
            overhead=self.spec.overhead,
            pod=ContainerResources(requests=self.spec.resources.requests, limits=self.spec.resources.limits),
        )

    def as_device_pod(self) -> DevicePod:
        """The pod for the rules about cards."""
        return DevicePod(
            key=PodKey(self.metadata.namespace, self.metadata.name),
            uid=self.metadata.uid,
            containers=tuple(each.as_request() for each in self.spec.containers),
            init_containers=tuple(each.as_request() for each in self.spec.init_containers),
            annotations=self.metadata.annotations,
            node=self.spec.node_name or None,
            phase=self.status.phase,
        )


class RunningState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Since when a container runs. Text, as in `Condition`."""

    started_at: str | None = None


class TerminatedState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a run of a container has ended. Times are text, as in `Condition`."""

    exit_code: int = 0
    started_at: str | None = None
    finished_at: str | None = None

    def as_ended(self) -> Ended:
        """The end for the rules about outcomes."""
        return Ended(exit_code=self.exit_code, started=_seconds(self.started_at), finished=_seconds(self.finished_at))


class StateOfContainer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a container: one of the two, or it waits."""

    running: RunningState | None = None
    terminated: TerminatedState | None = None


class ContainerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The status of a container."""

    name: str = ""
    restart_count: int = 0
    state: StateOfContainer = StateOfContainer()
    last_state: StateOfContainer = StateOfContainer()

    def as_state(self) -> ContainerState:
        """The status for the rules about outcomes."""
        running, ended, before = self.state.running, self.state.terminated, self.last_state.terminated
        return ContainerState(
            name=self.name,
            restarts=self.restart_count,
            running=running is not None,
            started=None if running is None else _seconds(running.started_at),
            ended=None if ended is None else ended.as_ended(),
            before=None if before is None else before.as_ended(),
        )


class ObservedPodStatus(PodStatus, frozen=True, kw_only=True, rename="camel"):
    """The status of a pod with that of its containers."""

    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class ObservedPod(GpuPod, frozen=True, kw_only=True):
    """A pod for `OBSERVED_PODS`."""

    status: ObservedPodStatus = ObservedPodStatus()

    def runs(self) -> tuple[Run, ...]:
        """The runs of its containers."""
        statuses = (*self.status.init_container_statuses, *self.status.container_statuses)
        # The API server checks the name of a container, but not in what a kubelet reports.
        states = tuple(each.as_state() for each in statuses if is_dns_label(each.name))
        return runs_of(self.status.phase, states)


def _seconds(text: str | None) -> float | None:
    """A time in seconds since 1970; None if there is none."""
    return None if (at := time_in(text)) is None else at.timestamp()


class LabelledPodMetadata(Metadata, frozen=True, kw_only=True, rename="camel"):
    """The metadata of a pod with the field managers that have set the eviction label. The rest is dropped."""

    managed_fields: tuple[ManagedFields, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "annotations", {})
        force_setattr(self, "managed_fields", tuple(_setters(self.managed_fields, (EVICTION_LABEL,))))


class LabelledPod(Object, frozen=True, kw_only=True):
    """A pod without spec and status, for `LABELLED_PODS`."""

    metadata: LabelledPodMetadata

    @property
    def eviction(self) -> EvictionLabel | None:
        """The eviction label; None without it."""
        value = self.metadata.labels.get(EVICTION_LABEL)
        if value is None:
            return None
        return EvictionLabel(value, tuple(each.manager for each in self.metadata.managed_fields))


class PodTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """The template of the pods of a workload."""

    spec: PlacementSpec = PlacementSpec()


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a workload creates."""

    template: PodTemplate = PodTemplate()


class DaemonSet(Object, frozen=True, kw_only=True):
    """A DaemonSet with its template: its pods do not have the affinity of the template (facts.md c50)."""

    spec: WorkloadSpec = WorkloadSpec()


class WholePod(Object, frozen=True, kw_only=True):
    """A pod for `WHOLE_PODS`, with its spec as decoded JSON."""

    spec: Any = None


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When the holder renewed a lease, by its own clock. Text, as in `Condition`."""

    renew_time: str | None = None


class LeaseObject(Object, frozen=True, kw_only=True):
    """A lease; the kubelet of each node renews one in the namespace `kube-node-lease`."""

    spec: LeaseSpec = LeaseSpec()


class ServicePort(msgspec.Struct, frozen=True, kw_only=True):
    """A port of a Service."""

    port: int = 0


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a Service can be reached: `cluster_ip` is the text `None` for a headless Service."""

    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    external_name: str = ""
    ports: tuple[ServicePort, ...] = ()


class ServiceObject(Object, frozen=True, kw_only=True):
    """A Service."""

    spec: ServiceSpec = ServiceSpec()


class EndpointConditions(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an endpoint takes requests; None counts as yes."""

    ready: bool | None = None


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A pod behind a Service."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()


class EndpointSlice(Object, frozen=True, kw_only=True):
    """Some endpoints of the Service in its label."""

    endpoints: tuple[Endpoint, ...] | None = None


class ReviewStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the right exists."""

    allowed: bool = False


class AccessReview(Object, frozen=True, kw_only=True):
    """The answer to a question about a right."""

    status: ReviewStatus


T_co = TypeVar("T_co", bound=Object, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource(Generic[T_co]):
    """A resource and the type of its objects. With `metadata_only` the API server sends nothing else.

    `page_objects` is the size of a page of a list: a worker has all bytes of one page in memory.
    """

    group: str
    version: str
    plural: str
    type: type[T_co]
    metadata_only: bool = False
    page_objects: int = 500

    def __str__(self) -> str:
        """The name in RBAC rules and in messages of the API server: `taspolicies.telemetry.intel.com`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object; without `name` of the collection, without `namespace` of all namespaces.

        Raises RejectedError for a name that no object can have, and that would make it another path.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        if not {".", ".."}.isdisjoint(parts):  # a URL cannot quote them
            raise RejectedError(f"{self}: no object has the name {shortened(name)}, namespace {shortened(namespace)}")
        return "/" + "/".join(quote(part, safe="") for part in parts)


POLICIES = Resource(group=_GROUP, version=_VERSION, plural="taspolicies", type=PolicyObject)
NODES = Resource(group="", version="v1", plural="nodes", type=Object, metadata_only=True)
"""With annotations."""
LABELLED_NODES = Resource(
    group="", version="v1", plural="nodes", type=LabelledNode, metadata_only=True, page_objects=100
)
FULL_NODES = Resource(group="", version="v1", plural="nodes", type=NodeObject, page_objects=100)
"""The list of its images makes a node ten times as large as its metadata."""
ADDRESSED_NODES = Resource(group="", version="v1", plural="nodes", type=AddressedNode, page_objects=100)
WHOLE_NODES = Resource(group="", version="v1", plural="nodes", type=WholeNode, page_objects=100)
PODS = Resource(group="", version="v1", plural="pods", type=PodObject)
NAMESPACES = Resource(group="", version="v1", plural="namespaces", type=Object, metadata_only=True)
EVENTS = Resource(group="", version="v1", plural="events", type=Object, metadata_only=True)
SERIES_EVENTS = Resource(group="events.k8s.io", version="v1", plural="events", type=Object, metadata_only=True)
"""The same objects as `EVENTS`, in the form that has a series."""
CUSTOM_METRICS = Resource(group="custom.metrics.k8s.io", version="", plural="nodes", type=Object)
"""Read by path, in the version that the API server serves."""
NODE_METRICS = Resource(group="metrics.k8s.io", version="v1beta1", plural="nodes", type=Object)
GPU_NODES = Resource(group="", version="v1", plural="nodes", type=GpuNode, page_objects=100)
GPU_PODS = Resource(group="", version="v1", plural="pods", type=GpuPod)
OBSERVED_PODS = Resource(group="", version="v1", plural="pods", type=ObservedPod)
"""As `GPU_PODS`, with what agents learn from: who does not need it does not decode it."""


def annotated_nodes(keys: Iterable[str]) -> Resource[GpuNode]:
    """As `GPU_NODES`, with these annotations: all annotations of a large cluster would fill the memory."""
    wanted = frozenset(keys)

    class Kept(AnnotatedMetadata, frozen=True, kw_only=True, rename="camel"):
        keys: ClassVar[frozenset[str]] = wanted

    class AnnotatedNode(GpuNode, frozen=True, kw_only=True):
        metadata: Kept

    return replace(GPU_NODES, type=AnnotatedNode)


LABELLED_PODS = Resource(group="", version="v1", plural="pods", type=LabelledPod, metadata_only=True)
PLACEMENT_PODS = Resource(group="", version="v1", plural="pods", type=PlacementPod)
DAEMON_SETS = Resource(group="apps", version="v1", plural="daemonsets", type=DaemonSet)
WHOLE_PODS = Resource(group="", version="v1", plural="pods", type=WholePod)
ACCOUNTS = Resource(group="", version="v1", plural="serviceaccounts", type=Object, metadata_only=True)
NODE_LEASES = Resource(group="coordination.k8s.io", version="v1", plural="leases", type=LeaseObject)
"""Of all namespaces."""
SERVICES = Resource(group="", version="v1", plural="services", type=ServiceObject)
ENDPOINT_SLICES = Resource(group="discovery.k8s.io", version="v1", plural="endpointslices", type=EndpointSlice)
SERVICE_OF_SLICE = "kubernetes.io/service-name"
"""The label of an EndpointSlice that names its Service."""
OWN_REVIEWS = Resource(group="authorization.k8s.io", version="v1", plural="selfsubjectaccessreviews", type=AccessReview)
"""Created to ask whether this client has a right; the API server stores nothing."""
REVIEWS = Resource(group="authorization.k8s.io", version="v1", plural="subjectaccessreviews", type=AccessReview)
"""Created to ask whether another account has a right."""
VERSIONS = Resource(group="", version="", plural="version", type=Object)
"""Read by path."""
