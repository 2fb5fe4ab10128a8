"""What the pod of a request asks for: read from the request, when an agent needs it."""

import msgspec
from msgspec import Raw

from tas.agents.agent import PodDemand
from tas.allocation.pod import ContainerResources, PodResources, PodTotals, pod_totals
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
    """The pod for an agent, with `amounts` also its requests and limits. Raises InvalidInputError."""
    totals = _totals(pod.document) if amounts else PodTotals()
    return PodDemand(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        labels=pod.labels,
        requests={name: float(amount) for name, amount in totals.requests},
        limits={name: float(amount) for name, amount in totals.limits},
    )


def _totals(document: Raw) -> PodTotals:
    pod = decode_field(SUBJECT, "Pod", document, _decoder) or _Pod()
    spec = pod.spec or _Spec()
    return pod_totals(
        PodResources(
            containers=tuple(each.as_resources() for each in spec.containers or ()),
            init_containers=tuple(each.as_resources() for each in spec.init_containers or ()),
            overhead=spec.overhead or {},
            pod=_Container(resources=spec.resources).as_resources(),
        ),
        subject=SUBJECT,
    )
