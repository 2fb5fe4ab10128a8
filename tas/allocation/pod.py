"""What one pod requests of its node, and its limits.

The rules are those of kube-scheduler (`PodRequests` and `PodLimits` of k8s.io/component-helpers): the containers run
together, init containers one after another before them, and sidecars from their turn on. The quantities of a pod are
added exactly. Then cpu counts in millicores and every other resource in whole units, both rounded up.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from tas.errors import InvalidInputError
from tas.values.quantity import NANO, Quantity, QuantityError, parse_quantity

CPU = "cpu"
PODS = "pods"
"""The resource that counts pods."""

MAX_AMOUNT = 2**62
"""The largest amount: larger ones count as this, so that a record holds every sum of a few."""

POD_LEVEL = frozenset({CPU, "memory"})
"""The resources that a pod may request as a whole (KEP-2837), beside huge pages."""

Quantities = Mapping[str, str | int | float]
"""As the API server sends them: a quantity may be a number in JSON."""


class ContainerResources(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a container, as the API server has them.

    Attributes:
        requests: By resource.
        limits: By resource.
        sidecar: Whether it is an init container that goes on running (`restartPolicy: Always`).
    """

    requests: Quantities = {}
    limits: Quantities = {}
    sidecar: bool = False


class PodResources(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a pod.

    Attributes:
        containers: Those that run together.
        init_containers: Those before, in their order.
        overhead: What the runtime class adds.
        pod: What the pod requests as a whole.
    """

    containers: tuple[ContainerResources, ...] = ()
    init_containers: tuple[ContainerResources, ...] = ()
    overhead: Quantities = {}
    pod: ContainerResources = ContainerResources()


class PodTotals(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """What a pod or a container requests, and its limits: sorted pairs of resource and amount."""

    requests: tuple[tuple[str, int], ...] = ()
    limits: tuple[tuple[str, int], ...] = ()

    def bounds(self) -> tuple[tuple[str, int], ...]:
        """The limits, where one below the request, or none, counts as the request."""
        limits = dict(self.limits)
        at_least = {resource: max(limits.get(resource, 0), amount) for resource, amount in self.requests}
        return tuple((limits | at_least).items())


def pod_totals(pod: PodResources, *, subject: str = "pod") -> PodTotals:
    """The totals of a pod. Raises InvalidInputError for a quantity that cannot be read or is negative."""
    try:
        requests = _total(pod, lambda each: each.requests, "requests")
        limits = _total(pod, lambda each: each.limits, "limits")
    except _QuantityProblem as problem:
        raise InvalidInputError(subject, problem.field, problem.value, problem.reason) from problem
    return PodTotals(requests=_rounded(requests), limits=_rounded(limits))


def running_together(pod: PodResources, *, subject: str = "pod") -> tuple[PodTotals, ...]:
    """What each container requests, and its limits: those that run together, with the sidecars.

    Raises InvalidInputError for a quantity that cannot be read or is negative.
    """
    found = [(f"spec.containers[{number}]", each) for number, each in enumerate(pod.containers)]
    sidecars = [(f"spec.initContainers[{number}]", each) for number, each in enumerate(pod.init_containers)]
    return tuple(
        PodTotals(
            requests=tuple(read_amounts(each.requests, f"{field}.resources.requests", subject=subject).items()),
            limits=tuple(read_amounts(each.limits, f"{field}.resources.limits", subject=subject).items()),
        )
        for field, each in (*found, *(pair for pair in sidecars if pair[1].sidecar))
    )


def _total(pod: PodResources, of: Callable[[ContainerResources], Quantities], field: str) -> dict[str, Quantity]:
    running: dict[str, Quantity] = {}
    for number, each in enumerate(pod.containers):
        _add(running, _read(of(each), f"spec.containers[{number}].resources.{field}"))
    sidecars: dict[str, Quantity] = {}
    starting: dict[str, Quantity] = {}
    for number, each in enumerate(pod.init_containers):
        found = _read(of(each), f"spec.initContainers[{number}].resources.{field}")
        if each.sidecar:
            _add(running, found)
            _add(sidecars, found)
            found = sidecars
        else:
            _add(found, sidecars)
        for resource, amount in found.items():
            starting[resource] = max(starting.get(resource, amount), amount)
    for resource, amount in starting.items():
        running[resource] = max(running.get(resource, amount), amount)
    whole = _read(of(pod.pod), f"spec.resources.{field}").items()
    running |= {name: amount for name, amount in whole if name in POD_LEVEL or name.startswith("hugepages-")}
    for resource, amount in _read(pod.overhead, "spec.overhead").items():
        if field == "requests" or resource in running:  # the overhead is no limit of its own
            running[resource] = Quantity(running.get(resource, 0) + amount)
    return running


def read_amounts(quantities: Quantities, field: str, *, subject: str) -> dict[str, int]:
    """Amounts by resource: cpu in millicores, others in whole units, rounded up.

    Raises InvalidInputError with `field` for a quantity that cannot be read or is negative.
    """
    try:
        return dict(_rounded(_read(quantities, field)))
    except _QuantityProblem as problem:
        raise InvalidInputError(subject, problem.field, problem.value, problem.reason) from problem


class _QuantityProblem(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(field, value, reason)
        self.field = field
        self.value = value
        self.reason = reason


def _read(quantities: Quantities, field: str) -> dict[str, Quantity]:
    found = {}
    for resource, text in quantities.items():
        try:
            nano = parse_quantity(str(text))
        except QuantityError as error:
            raise _QuantityProblem(f"{field}.{resource}", text, str(error)) from error
        if nano < 0:
            raise _QuantityProblem(f"{field}.{resource}", text, "must not be negative")
        found[resource] = nano
    return found


def _rounded(quantities: Mapping[str, Quantity]) -> tuple[tuple[str, int], ...]:
    """Sorted pairs of resource and amount."""
    return tuple(sorted((resource, _amount(resource, nano)) for resource, nano in quantities.items()))


def _amount(resource: str, nano: Quantity) -> int:
    unit = NANO // 1000 if resource == CPU else NANO
    return min(-(-nano // unit), MAX_AMOUNT)


def _add(total: dict[str, Quantity], quantities: Mapping[str, Quantity]) -> None:
    for resource, nano in quantities.items():
        total[resource] = Quantity(total.get(resource, 0) + nano)


def summed(totals: Iterable[tuple[tuple[str, int], ...]]) -> dict[str, int]:
    """The sum by resource."""
    found: dict[str, int] = {}
    for each in totals:
        for resource, amount in each:
            found[resource] = min(found.get(resource, 0) + amount, MAX_AMOUNT)
    return found
