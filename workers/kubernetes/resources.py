"""The resources we ask for: where they are, and as much of their objects as anybody here reads."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from tas.policy import API_VERSION

_GROUP, _, _VERSION = API_VERSION.partition("/")

Time = Annotated[datetime, msgspec.Meta(tz=True)]


class ManagedFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who set which fields; `fields_v1` maps `f:<field>` to what of it is theirs."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: dict[str, Any] = msgspec.field(name="fieldsV1", default_factory=dict)


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`ObjectMeta`, and what a list has of its own."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    managed_fields: tuple[ManagedFields, ...] = ()


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """An object of which the metadata is enough (`PartialObjectMetadata`), and the base of the others."""

    metadata: Metadata


class PolicyObject(Object, frozen=True, kw_only=True):
    """A TASPolicy. `spec` and `status` are as decoded from JSON: what they mean `tas.manifest` says."""

    spec: Any = None
    status: Any = None


class SchedulingGate(msgspec.Struct, frozen=True, kw_only=True):
    """While a pod has one, the scheduler leaves it alone."""

    name: str = ""


class PodSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What of a pod's spec says whether it waits for a node, and whose it is to find one."""

    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of a pod or a node; `status` is `True`, `False` or `Unknown`."""

    type: str = ""
    status: str = ""
    message: str = ""


class PodStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a pod has come."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class PodObject(Object, frozen=True, kw_only=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps pods off a node; only `PreferNoSchedule` is no more than a wish."""

    key: str = ""
    effect: str = ""


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Whether new pods may come."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a node is, and what it offers: quantities as text, by resource name."""

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()


class NodeObject(Object, frozen=True, kw_only=True):
    """A whole node; who needs no spec and no status asks for `NODES`."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


T_co = TypeVar("T_co", bound=Object, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource(Generic[T_co]):
    """What is asked for, and as what its objects are read. With `metadata_only` nothing else of them travels."""

    group: str
    version: str
    plural: str
    namespaced: bool
    type: type[T_co]
    metadata_only: bool = False

    def __str__(self) -> str:
        """As in rules of RBAC and in messages of the API server: `taspolicies.telemetry.intel.com`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, or without `name` of a collection; without `namespace` that of all namespaces."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)


POLICIES = Resource(group=_GROUP, version=_VERSION, plural="taspolicies", namespaced=True, type=PolicyObject)
NODES = Resource(group="", version="v1", plural="nodes", namespaced=False, type=Object, metadata_only=True)
FULL_NODES = Resource(group="", version="v1", plural="nodes", namespaced=False, type=NodeObject)
PODS = Resource(group="", version="v1", plural="pods", namespaced=True, type=PodObject)
NAMESPACES = Resource(group="", version="v1", plural="namespaces", namespaced=False, type=Object, metadata_only=True)
EVENTS = Resource(group="", version="v1", plural="events", namespaced=True, type=Object, metadata_only=True)
CUSTOM_METRICS = Resource(group="custom.metrics.k8s.io", version="", plural="nodes", namespaced=False, type=Object)
"""Read by paths, in the version that is served."""
NODE_METRICS = Resource(group="metrics.k8s.io", version="v1beta1", plural="nodes", namespaced=False, type=Object)
