"""What a pod asks of the cards of a node: its claim.

A container asks for a number of cards and, on each of them, an equal part of its other GPU resources. Annotations of
the pod are wishes: which cards may be used, and how cards must belong together. A pod whose claim no node can fulfil is
refused for ever, before any node is asked.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from tas.enforcing.pod import PodKey
from tas.errors import InvalidInputError, TasError
from tas.gpu.amounts import AmountError, Amounts, parse_amount
from tas.gpu.names import (
    ALLOW,
    DENY,
    I915,
    MAX_RESOURCES,
    MONITORING,
    RESOURCE_PREFIX,
    SAME_GPU,
    SINGLE_NUMA,
    TILES,
    XE,
    XELINK,
    card_number,
)
from tas.gpu.refusal import Cause, Refusal

MAX_GPU_CONTAINERS = 100
"""The most containers of a pod that request GPU resources."""

MAX_ANNOTATION = 16 << 10
"""The most characters of an annotation with a wish."""


class ContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A container of a pod, with its resources as the API server has them: quantities as text."""

    name: str
    requests: Mapping[str, str] = {}
    limits: Mapping[str, str] = {}

    def amounts(self) -> Mapping[str, str]:
        """The requested GPU resources. The API server takes a missing request from the limit."""
        if not self.requests and not self.limits:
            return {}
        return {
            resource: amount
            for resource, amount in (*self.limits.items(), *self.requests.items())
            if resource.startswith(RESOURCE_PREFIX)
        }


class DevicePod(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a pod that matter for cards.

    Attributes:
        key: Namespace and name.
        uid: Of the pod.
        containers: In the order of the spec.
        init_containers: Also those that go on running as sidecars.
        annotations: Of the pod.
        node: The node to which the pod is bound, or None.
        phase: `status.phase`.
    """

    key: PodKey
    uid: str
    containers: tuple[ContainerRequest, ...]
    init_containers: tuple[ContainerRequest, ...] = ()
    annotations: Mapping[str, str] = {}
    node: str | None = None
    phase: str = ""


class SingleNuma(StrEnum):
    """What must be on one NUMA node."""

    NOTHING = "nothing"
    CONTAINER = "container"
    """All cards of a container."""
    POD = "pod"
    """All cards of the pod: the annotation has the value `pod`."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the operator.

    Attributes:
        allowlist: Whether the annotation `gas-allow` counts.
        denylist: Whether the annotation `gas-deny` counts.
        balanced: The resource, for example `gpu.intel.com/tiles`, of which all cards are to have about the same amount
            in use. Empty: cards are filled one after another.
        steps: How many cards a search may take back until it gives up. Filter asks about many nodes, so it may give
            fewer to each.
    """

    allowlist: bool = False
    denylist: bool = False
    balanced: str = ""
    steps: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What one container asks for.

    Attributes:
        container: Its name.
        cards: How many cards; 0 if it needs none.
        amounts: What it needs of each card, without amounts of 0.
    """

    container: str
    cards: int = 0
    amounts: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Cards that are chosen together: those of one container, or the one card of all containers of `gas-same-gpu`.

    Attributes:
        slots: The indices of the containers.
        cards: How many different cards.
        needs: What each card must have, in the order of `Claim.resources`.
    """

    slots: tuple[int, ...]
    cards: int
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a pod asks of one node.

    Attributes:
        uid: Of the pod.
        slots: One for each container, in the order of the spec.
        node_amounts: What it needs of the node as a whole.
        same_gpu: The indices of the containers that share one card.
        linked: Whether the cards of each container are pairs with a direct link.
        single_numa: What must be on one NUMA node.
        allow: The only cards that may be used; None: all.
        deny: Cards that must not be used.
        resources: The resources of `Unit.needs`.
        units: What is chosen, in this order.
    """

    uid: str
    slots: tuple[Slot, ...]
    node_amounts: Amounts = field(default_factory=dict)
    same_gpu: tuple[int, ...] = ()
    linked: bool = False
    single_numa: SingleNuma = SingleNuma.NOTHING
    allow: frozenset[int] | None = None
    deny: frozenset[int] = frozenset()
    resources: tuple[str, ...] = field(init=False, repr=False, compare=False)
    units: tuple[Unit, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        resources = tuple(dict.fromkeys(resource for slot in self.slots for resource in slot.amounts))
        together = [self.same_gpu] if self.same_gpu else []
        alone = [(each,) for each, slot in enumerate(self.slots) if slot.cards and each not in self.same_gpu]
        object.__setattr__(self, "resources", resources)
        object.__setattr__(self, "units", tuple(self._unit(slots, resources) for slots in (*together, *alone)))

    def _unit(self, indices: tuple[int, ...], resources: Sequence[str]) -> Unit:
        slots = [self.slots[index] for index in indices]
        needs = tuple(sum(slot.amounts.get(resource, 0) for slot in slots) for resource in resources)
        return Unit(slots=indices, cards=slots[0].cards, needs=needs)


class _ClaimError(TasError):
    """A pod whose claim no node can fulfil."""

    def __init__(self, cause: Cause, field: str, value: object, reason: str, container: str = "") -> None:
        self.cause = cause
        self.error = InvalidInputError(f"container {container}" if container else "pod", field, value, reason)
        super().__init__(str(self.error))


def read_claim(pod: DevicePod, options: Options) -> Claim | Refusal:
    """The claim of a pod, or the permanent refusal of a claim that no node can fulfil."""
    try:
        return _claim(pod, options)
    except _ClaimError as error:
        return Refusal(cause=error.cause, reason=str(error), permanent=True)


def _claim(pod: DevicePod, options: Options) -> Claim:
    linked = XELINK in pod.annotations
    if linked and SAME_GPU in pod.annotations:
        value = pod.annotations[SAME_GPU]
        raise _ClaimError(Cause.BAD_ARGS, f"annotation {SAME_GPU}", value, f"must not be given with {XELINK}")
    _check_init_containers(pod)
    asked = [each.amounts() for each in pod.containers]
    _check_size(asked)
    amounts = [_amounts(each.name, texts) for each, texts in zip(pod.containers, asked, strict=True)]
    same_gpu = _same_gpu(pod, asked, amounts)
    slots = tuple(
        _slot(container.name, each, linked=linked) for container, each in zip(pod.containers, amounts, strict=True)
    )
    totals = {name: sum(each.get(name, 0) for each in amounts) for name in sorted(MONITORING)}
    return Claim(
        uid=pod.uid,
        slots=slots,
        node_amounts={resource: amount for resource, amount in totals.items() if amount},
        same_gpu=same_gpu,
        linked=linked,
        single_numa=_single_numa(pod),
        allow=_cards(pod, ALLOW) if options.allowlist else None,
        deny=(_cards(pod, DENY) if options.denylist else None) or frozenset(),
    )


def _check_init_containers(pod: DevicePod) -> None:
    """The device plugin counts no init container, so it would mix up the cards (facts.md g6)."""
    for container in pod.init_containers:
        for resource, amount in _amounts(container.name, container.amounts()).items():
            if amount:
                reason = "an init container cannot have GPU resources"
                raise _ClaimError(Cause.RESOURCES_CONFLICT, resource, amount, reason, container.name)


def _check_size(asked: Sequence[Mapping[str, str]]) -> None:
    containers = sum(1 for texts in asked if texts)
    if containers > MAX_GPU_CONTAINERS:
        reason = f"at most {MAX_GPU_CONTAINERS} containers of a pod can request GPU resources"
        raise _ClaimError(Cause.BAD_ARGS, "containers", containers, reason)
    resources = len(frozenset().union(*asked))
    if resources > MAX_RESOURCES:
        reason = f"at most {MAX_RESOURCES} different GPU resources can be requested"
        raise _ClaimError(Cause.BAD_ARGS, "resources", resources, reason)


def _amounts(container: str, texts: Mapping[str, str]) -> dict[str, int]:
    amounts = {}
    for resource, text in sorted(texts.items()):
        try:
            amounts[resource] = parse_amount(text)
        except AmountError as error:
            raise _ClaimError(Cause.BAD_ARGS, resource, text, str(error), container) from error
    return amounts


def _slot(container: str, amounts: Amounts, *, linked: bool) -> Slot:
    """What a container asks of each card."""
    plugin, other = (XE, I915) if amounts.get(XE) else (I915, XE)
    cards = amounts.get(plugin, 0)
    if amounts.get(other):
        reason = f"must not be requested with {plugin}"
        raise _ClaimError(Cause.RESOURCES_CONFLICT, other, amounts[other], reason, container)
    if linked and cards % 2:
        reason = f"must be even, as {XELINK} gives pairs of cards"
        raise _ClaimError(Cause.BAD_ARGS, plugin, cards, reason, container)
    of_each = {plugin: 1} if cards else {}
    for resource, amount in amounts.items():
        if resource == plugin or resource in MONITORING or not amount:
            continue
        if not cards:
            reason = f"is an amount of a card, so {I915} or {XE} must be requested too"
            raise _ClaimError(Cause.RESOURCES_CONFLICT, resource, amount, reason, container)
        if amount % cards:
            reason = f"must be divisible by {cards}, the number of cards"
            raise _ClaimError(Cause.BAD_ARGS, resource, amount, reason, container)
        of_each[resource] = amount // cards
    return Slot(container=container, cards=cards, amounts=of_each)


def _same_gpu(pod: DevicePod, asked: Sequence[Collection[str]], amounts: Sequence[Amounts]) -> tuple[int, ...]:
    """The containers that share one card, in the order of the spec."""
    names = _listed(pod, SAME_GPU)
    if names is None:
        return ()
    value = pod.annotations[SAME_GPU]
    known = {container.name: index for index, container in enumerate(pod.containers)}
    unknown = [name for name in names if name not in known]
    reason = ""
    if len(names) < 2:
        reason = "must name at least two containers, separated by commas"
    elif unknown:
        reason = f"the pod has no container {unknown[0]!r}"
    elif len(set(names)) < len(names):
        reason = "must name each container once"
    if reason:
        raise _ClaimError(Cause.MALFORMED_ANNOTATION, f"annotation {SAME_GPU}", value, reason)
    for name in names:
        index = known[name]
        for resource in sorted(asked[index]):
            if resource == TILES or resource in MONITORING:
                reason = f"must not be requested by a container of {SAME_GPU}"
                raise _ClaimError(Cause.RESOURCES_CONFLICT, resource, amounts[index][resource], reason, name)
        cards = amounts[index].get(XE) or amounts[index].get(I915, 0)
        if cards != 1:
            reason = f"a container of {SAME_GPU} must request one card"
            raise _ClaimError(Cause.RESOURCES_CONFLICT, f"{I915} or {XE}", cards, reason, name)
    return tuple(sorted(known[name] for name in names))


def _listed(pod: DevicePod, annotation: str) -> list[str] | None:
    """The entries of an annotation, separated by commas; None if the pod does not have it."""
    value = pod.annotations.get(annotation)
    if value is None:
        return None
    if len(value) > MAX_ANNOTATION:
        reason = f"is longer than {MAX_ANNOTATION} characters"
        raise _ClaimError(Cause.MALFORMED_ANNOTATION, f"annotation {annotation}", value, reason)
    return [name for each in value.split(",") if (name := each.strip())]


def _cards(pod: DevicePod, annotation: str) -> frozenset[int] | None:
    """The cards that an annotation lists; None if the pod does not have it."""
    names = _listed(pod, annotation)
    if names is None:
        return None
    numbers = set()
    for name in names:
        number = card_number(name)
        if number is None:
            reason = "must list cards such as card0,card1"
            raise _ClaimError(Cause.MALFORMED_ANNOTATION, f"annotation {annotation}", name, reason)
        numbers.add(number)
    return frozenset(numbers)


def _single_numa(pod: DevicePod) -> SingleNuma:
    value = pod.annotations.get(SINGLE_NUMA)
    if value is None:
        return SingleNuma.NOTHING
    return SingleNuma.POD if value.strip() == SingleNuma.POD else SingleNuma.CONTAINER
