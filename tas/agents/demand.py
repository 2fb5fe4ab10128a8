"""What the pod of a request asks for: read from the request, when an agent needs it.

Pods of one workload ask for the same, and kube-scheduler asks twice for each pod. So what was read last is kept by the
text of the resources, up to `MAX_KEPT`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec import Raw

from tas.agents.agent import ContainerDemand, PodDemand
from tas.allocation.pod import ContainerResources, PodResources, pod_totals, read_amounts, running_together
from tas.extender.decision import Pod
from tas.extender.fields import decode_field

SUBJECT = "pod of the request"

MAX_KEPT = 256
"""Of so many different resources of pods the amounts are kept."""

MAX_KEPT_BYTES = 2048
"""Longer texts are not kept, where each container counts with 64 bytes more than its text."""

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


class _ContainerText(msgspec.Struct, rename="camel", gc=False):
    resources: Raw = Raw()
    restart_policy: Raw = Raw()


class _SpecText(msgspec.Struct, rename="camel", gc=False):
    containers: list[_ContainerText] | None = None
    init_containers: list[_ContainerText] | None = None
    overhead: Raw = Raw()
    resources: Raw = Raw()


class _PodText(msgspec.Struct, gc=False):
    spec: _SpecText | None = None


_text_decoder: msgspec.json.Decoder[_PodText | None] = msgspec.json.Decoder(_PodText | None)


class _Amounts(NamedTuple):
    requests: Mapping[str, float] = MappingProxyType({})
    limits: Mapping[str, float] = MappingProxyType({})
    containers: tuple[ContainerDemand, ...] = ()
    overhead: Mapping[str, float] = MappingProxyType({})


_kept: OrderedDict[tuple[bytes, ...], _Amounts] = OrderedDict()


def demand_of(pod: Pod, *, amounts: bool) -> PodDemand:
    """The pod for an agent, with `amounts` also what it asks for. Raises InvalidInputError."""
    found = _amounts_of(pod.document) if amounts else _Amounts()
    return PodDemand(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        labels=pod.labels,
        requests=found.requests,
        limits=found.limits,
        containers=found.containers,
        overhead=found.overhead,
    )


def _amounts_of(document: Raw) -> _Amounts:
    """The amounts, kept or read. Raises InvalidInputError."""
    text = _text_of(document)
    if text is None:
        return _read(document)
    found = _kept.get(text)
    if found is None:
        found = _kept[text] = _read(document)
        if len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)
    else:
        _kept.move_to_end(text)
    return found


def _text_of(document: Raw) -> tuple[bytes, ...] | None:
    """The texts on which the amounts depend; None if they are too long, or cannot be read."""
    try:
        pod = _text_decoder.decode(document)
    except msgspec.DecodeError:
        return None
    spec = (None if pod is None else pod.spec) or _SpecText()
    parts: list[Raw] = [spec.overhead, spec.resources]
    for containers in (spec.containers or (), spec.init_containers or ()):
        parts.append(Raw(b"%d" % len(containers)))
        for each in containers:
            parts += each.resources, each.restart_policy
    texts = tuple(map(bytes, parts))
    return texts if sum(map(len, texts)) + 32 * len(texts) <= MAX_KEPT_BYTES else None


def _read(document: Raw) -> _Amounts:
    asked = _resources(document)
    totals = pod_totals(asked, subject=SUBJECT)
    containers = () if asked.pod.requests or asked.pod.limits else running_together(asked, subject=SUBJECT)
    overhead = read_amounts(asked.overhead, "spec.overhead", subject=SUBJECT) if containers else {}
    return _Amounts(
        requests=_floats(totals.requests),
        limits=_floats(totals.limits),
        containers=tuple(
            ContainerDemand(requests=_floats(each.requests), limits=_floats(each.limits)) for each in containers
        ),
        overhead=_floats(overhead.items()),
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


def _floats(amounts: Iterable[tuple[str, int]]) -> Mapping[str, float]:
    """Read-only: several requests share them."""
    return MappingProxyType({resource: float(amount) for resource, amount in amounts})
