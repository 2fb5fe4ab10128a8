"""The resources that the sandbox serves: one entry for each kind of object."""

from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as JSON, without `kind` and `apiVersion`, which follow from its resource."""

TELEMETRY_GROUP = "telemetry.intel.com"
SCALE = "scale"
"""The subresource with the number of replicas. All others but `status` are posted only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind of object: its names and properties."""

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    is_namespaced: bool = True
    short_names: tuple[str, ...] = ()
    selectable: frozenset[str] = frozenset()
    """Paths that a field selector may name, besides `metadata.name` and `metadata.namespace`."""
    has_status: bool = False
    """Whether `status` is a subresource: writes of the object itself do not change the status."""
    has_generation: bool = False
    is_custom: bool = False
    """Whether a CustomResourceDefinition defines it: served only while that exists, and stored as sent."""
    further_subresources: dict[str, tuple[str, str, str]] = field(default_factory=dict, hash=False)
    """Group, version and kind of the objects of further subresources."""

    @property
    def subresources(self) -> frozenset[str]:
        """The subresources: what may follow an object's name in a path."""
        return frozenset({*self.further_subresources, *({"status"} if self.has_status else ())})

    @property
    def singular(self) -> str:
        """The kind as kubectl takes it."""
        return self.kind.lower()

    @property
    def group_version(self) -> str:
        """Group and version as in `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The name in messages and CustomResourceDefinitions: `taspolicies.telemetry.intel.com`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """The name in messages about invalid objects: `TASPolicy.telemetry.intel.com`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


NAMESPACES = Resource(plural="namespaces", kind="Namespace", is_namespaced=False, short_names=("ns",))
NODES = Resource(
    plural="nodes",
    kind="Node",
    is_namespaced=False,
    short_names=("no",),
    selectable=frozenset({"spec.unschedulable"}),
    has_status=True,
)
PODS = Resource(
    plural="pods",
    kind="Pod",
    short_names=("po",),
    selectable=frozenset({"spec.nodeName", "spec.schedulerName", "status.phase"}),
    has_status=True,
    has_generation=True,
    further_subresources={"binding": ("", "v1", "Binding"), "eviction": ("policy", "v1", "Eviction")},
)
EVENTS = Resource(
    plural="events",
    kind="Event",
    short_names=("ev",),
    selectable=frozenset(
        {"reason", "type", *(f"involvedObject.{key}" for key in ("kind", "namespace", "name", "uid"))}
    ),
)
CRDS = Resource(
    group="apiextensions.k8s.io",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    is_namespaced=False,
    short_names=("crd", "crds"),
    has_generation=True,
)
BUDGETS = Resource(
    group="policy", plural="poddisruptionbudgets", kind="PodDisruptionBudget", short_names=("pdb",), has_generation=True
)
DEPLOYMENTS = Resource(
    group="apps",
    plural="deployments",
    kind="Deployment",
    short_names=("deploy",),
    has_status=True,
    has_generation=True,
    further_subresources={SCALE: ("autoscaling", "v1", "Scale")},
)
TASPOLICIES = Resource(
    group=TELEMETRY_GROUP,
    version="v1alpha1",
    plural="taspolicies",
    kind="TASPolicy",
    has_status=True,
    has_generation=True,
    is_custom=True,
)

TASPOLICY_COLUMNS = (
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Metrics", "type": "string", "jsonPath": '.status.conditions[?(@.type=="MetricsSeen")].status'},
    {"name": "Violating", "type": "integer", "jsonPath": ".status.violating"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
)
"""`additionalPrinterColumns` of the product's CustomResourceDefinition."""

RESOURCES = (NAMESPACES, NODES, PODS, EVENTS, CRDS, BUDGETS, DEPLOYMENTS, TASPOLICIES)
