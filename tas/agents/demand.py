"""What the pod of a request asks for, as the scheduler counts it: read from the request, when an agent needs it."""

from collections import Counter
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from tas.agents.agent import PodDemand
from tas.errors import InvalidInputError
from tas.extender.decision import Pod
from tas.extender.fields import decode_field
from tas.values.quantity import NANO, QuantityError, parse_quantity

SUBJECT = "pod of the request"

MILLI = NANO // 1000


class _Resources(msgspec.Struct, gc=False):
    requests: dict[str, str] | None = None
    limits: dict[str, str] | None = None


class _Container(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    overhead: dict[str, str] | None = None


class _Pod(msgspec.Struct):
    spec: _Spec | None = None


_decoder: msgspec.json.Decoder[_Pod | None] = msgspec.json.Decoder(_Pod | None)


def demand_of(pod: Pod, *, amounts: bool) -> PodDemand:
    """The pod for an agent, with `amounts` also its requests and limits. Raises InvalidInputError."""
    if not amounts:
        return PodDemand(namespace=pod.namespace, name=pod.name, uid=pod.uid, labels=pod.labels)
    spec = _spec(pod.document)
    return PodDemand(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        labels=pod.labels,
        requests=_effective(spec, "requests"),
        limits=_effective(spec, "limits"),
    )


def _spec(document: Raw) -> _Spec:
    pod = decode_field(SUBJECT, "Pod", document, _decoder) or _Pod()
    return pod.spec or _Spec()


def _effective(spec: _Spec, field: str) -> dict[str, float]:
    """The larger of all containers together, and of each init container with the sidecars before it; and the overhead.

    An init container that restarts always is a sidecar: it runs beside the containers, and so it adds to them.
    """
    total, sidecars, largest = Counter[str](), Counter[str](), Counter[str]()
    for container in spec.init_containers or ():
        amounts = _amounts(container, field)
        if container.restart_policy == "Always":
            sidecars.update(amounts)
            largest |= sidecars
        else:
            largest |= amounts + sidecars
    total.update(sidecars)
    for container in spec.containers or ():
        total.update(_amounts(container, field))
    needed = total | largest
    for name, text in (spec.overhead or {}).items():
        if field == "requests" or name in needed:  # the overhead makes no limit where there is none
            needed[name] += _amount("overhead", name, text)
    return {name: each / (MILLI if name == "cpu" else NANO) for name, each in needed.items()}


def _amounts(container: _Container, field: str) -> Counter[str]:
    given: Mapping[str, str] = getattr(container.resources or _Resources(), field) or {}
    return Counter({name: _amount(f"{container.name}.{field}", name, text) for name, text in given.items()})


def _amount(field: str, name: str, text: str) -> int:
    try:
        return max(parse_quantity(text), 0)
    except QuantityError as error:
        raise InvalidInputError(SUBJECT, f"{field}.{name}", text, str(error)) from error
