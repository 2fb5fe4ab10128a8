"""What the pod of a request asks for: read from the request, when an agent needs it."""

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from tas.agents.agent import ContainerDemand, PodDemand
from tas.allocation.pod import ContainerResources, PodResources, pod_totals, read_amounts, running_together
from tas.extender.decision import Pod
from tas.extender.fields import decode_field

SUBJECT = "pod of the request"

_Quantities = dict[str, str | int | float]


class _Resources(msgspec.Struct, gc=False):
    requests: _Quantities | None = None
    limits: _Quantities | None = None


class _Container(msgspec.Struct, rename="camel", gc=False):
    resources: _Resources | None = None
    restart_policy: str | None = None

    def as_resources(self) -> ContainerResources:
        sent = self.resources or _Resources()
        return ContainerResources(
            requests=sent.requests or {}, limits=sent.limits or {}, sidecar=self.restart_policy == "Always"
        )


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    overhead: _Quantities | None = None
    resources: _Resources | None = None


class _Pod(msgspec.Struct):
    spec: _Spec | None = None


_decoder: msgspec.json.Decoder[_Pod | None] = msgspec.json.Decoder(_Pod | None)


def demand_of(pod: Pod, *, amounts: bool) -> PodDemand:
    """The pod for an agent, with `amounts` also what it asks for. Raises InvalidInputError."""
    asked = _resources(pod.document) if amounts else PodResources()
    totals = pod_totals(asked, subject=SUBJECT)
    containers = () if asked.pod.requests or asked.pod.limits else running_together(asked, subject=SUBJECT)
    return PodDemand(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        labels=pod.labels,
        requests=_floats(totals.requests),
        limits=_floats(totals.limits),
        containers=tuple(
            ContainerDemand(requests=_floats(each.requests), limits=_floats(each.limits)) for each in containers
        ),
        overhead=_floats(read_amounts(asked.overhead, "spec.overhead", subject=SUBJECT).items()) if containers else {},
    )


def _resources(document: Raw) -> PodResources:
    pod = decode_field(SUBJECT, "Pod", document, _decoder) or _Pod()
    spec = pod.spec or _Spec()
    return PodResources(
        containers=tuple(each.as_resources() for each in spec.containers or ()),
        init_containers=tuple(each.as_resources() for each in spec.init_containers or ()),
        overhead=spec.overhead or {},
        pod=_Container(resources=spec.resources).as_resources(),
    )


def _floats(amounts: Iterable[tuple[str, int]]) -> dict[str, float]:
    return {resource: float(amount) for resource, amount in amounts}
