"""What the cards of a node have, who has it, and why a card is given to nobody: for people.

A hold may name cards and tiles that the inventory does not have, for example after a card was taken out. They are shown
too: a pod still uses them. So does a card of which more is in use than it has.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from tas.enforcing.pod import PodKey
from tas.gpu.amounts import Amounts
from tas.gpu.asked import asked_of_cards, ignored_wishes
from tas.gpu.assigning import assign
from tas.gpu.claim import Claim, DevicePod, Options
from tas.gpu.hold import EMPTY, NOT_USED, CardUse, Held, Hold, Phase
from tas.gpu.inventory import Card, Inventory
from tas.gpu.labels import LabelProblem
from tas.gpu.names import TILES, card_name, tile_name
from tas.gpu.pod_annotations import cards_text, tiles_text
from tas.gpu.policy_facts import PolicyFacts
from tas.gpu.refusal import Refusal
from tas.gpu.search import room

UNKNOWN_HOLD = "nobody knows yet who has the cards of the node"
"""Why a pod gets no card of a node whose hold is not known."""


class NodeDevices(NamedTuple):
    """All on which it depends what a pod gets of a node; `hold` is None if nobody knows who has its cards."""

    inventory: Inventory
    facts: PolicyFacts
    hold: Hold | None


class AmountUse(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a resource there is, how much pods have, and how much a new pod can get."""

    capacity: int
    used: int
    free: int


class TileExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A tile of a card.

    Attributes:
        tile: Its name.
        pods: The pods that have it, the owner first: one, unless an adopted pod also claims the tile.
        disabled: The policies by which no new pod gets it.
        evicted: Those of them by which its pods are to leave.
        preferred: Whether new pods get it first.
        exists: Whether the card has it.
    """

    tile: str
    pods: Sequence[str]
    disabled: Sequence[str]
    evicted: Sequence[str]
    preferred: bool
    exists: bool


class CardPod(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod has of a card, in one of its containers.

    Attributes:
        pod: Namespace and name.
        uid: Of the pod.
        container: Its name.
        amounts: By resource.
        tiles: The names of its tiles.
        phase: How far the pod has come.
        until: When a reservation ends, in seconds since 1970.
        verified: Whether this product assigned the card; False: only annotations say so.
    """

    pod: str
    uid: str
    container: str
    amounts: Amounts
    tiles: Sequence[str]
    phase: Phase
    until: float | None
    verified: bool


class CardExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A card of a node.

    Attributes:
        card: Its name.
        resources: Its amounts by resource, those that the node has and those that pods have.
        tiles: In ascending order, also those that only pods name.
        pods: What each container has, by pod and place of the container.
        disabled: The policies by which no new pod gets the card.
        evicted: Those of them by which its pods are to leave.
        preferred: Whether new pods get the card first.
        exists: Whether the node has the card.
    """

    card: str
    resources: Mapping[str, AmountUse]
    tiles: Sequence[TileExplanation]
    pods: Sequence[CardPod]
    disabled: Sequence[str]
    evicted: Sequence[str]
    preferred: bool
    exists: bool

    @property
    def problem(self) -> str:
        """What is wrong with the card, or an empty text."""
        if not self.exists:
            return "the node has no such card"
        over = [resource for resource, use in self.resources.items() if use.used > use.capacity]
        if over:
            return f"more in use than it has: {', '.join(over)}"
        shared = [tile.tile for tile in self.tiles if len(tile.pods) > 1]
        if shared:
            return f"several pods claim {', '.join(shared)}"
        return ""


class CardsExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The cards of a node.

    Attributes:
        node: Its name.
        cards: In ascending order, also those that only pods name.
        resources: The amounts that belong to no card.
        problems: What cannot be read of labels and amounts.
        hold_known: Whether it is known who has the cards. Until then no pod gets one, and nothing is free.
    """

    node: str
    cards: Sequence[CardExplanation]
    resources: Mapping[str, AmountUse]
    problems: Sequence[LabelProblem]
    hold_known: bool = True


def explain_cards(node: str, devices: NodeDevices) -> CardsExplanation:
    """The cards of a node, with those that only its pods name."""
    inventory, facts, hold_or_none = devices
    hold = EMPTY if hold_or_none is None else hold_or_none
    is_known = hold_or_none is not None
    known = {card.number: card for card in inventory.cards}
    named = {share.card for held in hold.pods.values() for share in held.assignment.shares()}
    pods = _pods(hold.pods)
    return CardsExplanation(
        node=node,
        cards=[
            _card(number, known.get(number), facts, hold, pods, is_known=is_known)
            for number in sorted(known.keys() | named)
        ],
        resources={
            resource: _use(inventory.node.get(resource, 0), hold.node.get(resource, 0), is_known=is_known)
            for resource in sorted(inventory.node.keys() | hold.node.keys())
        },
        problems=[*inventory.problems, *facts.problems],
        hold_known=is_known,
    )


def _pods(held: Mapping[str, Held]) -> dict[int, list[CardPod]]:
    """What each pod has, by card; sorted by the names of the pods."""
    found: dict[int, list[CardPod]] = {}
    for uid, each in sorted(held.items(), key=lambda item: (str(item[1].pod), item[0])):
        for slot in each.assignment.slots:
            for share in slot.shares:
                pod = CardPod(
                    pod=str(each.pod),
                    uid=uid,
                    container=slot.container,
                    amounts=share.amounts,
                    tiles=[tile_name(tile) for tile in share.tiles],
                    phase=each.phase,
                    until=each.until,
                    verified=each.verified,
                )
                found.setdefault(share.card, []).append(pod)
    return found


def _card(
    number: int,
    card: Card | None,
    facts: PolicyFacts,
    hold: Hold,
    pods: Mapping[int, Sequence[CardPod]],
    *,
    is_known: bool,
) -> CardExplanation:
    use = hold.cards.get(number, NOT_USED)
    capacity: Amounts = {} if card is None else card.capacity
    resources = {}
    for resource in sorted(capacity.keys() | use.amounts.keys()):
        free = room(resource, card, use, facts) if card is not None and is_known else 0
        resources[resource] = AmountUse(
            capacity=capacity.get(resource, 0), used=use.amounts.get(resource, 0), free=free
        )
    return CardExplanation(
        card=card_name(number),
        resources=resources,
        tiles=_tiles(number, card, facts, hold, use),
        pods=pods.get(number, ()),
        disabled=facts.disabled.get(number, ()),
        evicted=facts.evicted.get(number, ()),
        preferred=number in facts.preferred,
        exists=card is not None,
    )


def _tiles(number: int, card: Card | None, facts: PolicyFacts, hold: Hold, use: CardUse) -> list[TileExplanation]:
    count = 0 if card is None else card.capacity.get(TILES, 0)
    disabled, evicted = facts.disabled_tiles.get(number, {}), facts.evicted_tiles.get(number, {})
    preferred = facts.preferred_tiles.get(number, ())
    return [
        TileExplanation(
            tile=tile_name(tile),
            pods=[str(hold.pods[uid].pod) for uid in use.owners.get(tile, ())],
            disabled=disabled.get(tile, ()),
            evicted=evicted.get(tile, ()),
            preferred=tile in preferred,
            exists=tile < count,
        )
        for tile in sorted({*range(count), *use.owners})
    ]


def _use(capacity: int, used: int, *, is_known: bool) -> AmountUse:
    return AmountUse(capacity=capacity, used=used, free=max(capacity - used, 0) if is_known else 0)


class CardPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod would get of a node now, or has of it already.

    Attributes:
        node: Its name.
        cards: What its containers get: the value of `gas-container-cards`; empty for no card.
        tiles: The value of `gas-container-tiles`.
        reason: Why the pod does not fit; empty if it does.
        refused: Why each card does not serve, by its name; empty if the reason is not about cards.
        held: Whether the pod has these cards already.
    """

    node: str
    cards: str = ""
    tiles: str = ""
    reason: str = ""
    refused: Mapping[str, str] = {}
    held: bool = False


class PodCards(msgspec.Struct, frozen=True, kw_only=True):
    """The cards of a pod on each node.

    Attributes:
        pod: Namespace and name.
        refusal: Why no node can ever fulfil the pod's claim; empty if one might.
        nodes: The nodes that have the pod, then those on which it fits, then the others; each by name.
        asks: Whether the pod requests GPU resources; None if nobody knows what it requests.
        ignored: The annotations of the pod that would choose its cards, and do not count by the settings.
    """

    pod: str
    refusal: str
    nodes: Sequence[CardPlacement]
    asks: bool | None = None
    ignored: Sequence[str] = ()


def explain_held(pod: PodKey, nodes: Mapping[str, NodeDevices]) -> PodCards:
    """The cards that a pod of this name has on each node: of a pod whose claim is not known."""
    found = []
    for node, devices in sorted(nodes.items()):
        for held in () if devices.hold is None else devices.hold.pods.values():
            if held.pod == pod:
                cards, tiles = cards_text(held.assignment), tiles_text(held.assignment)
                found.append(CardPlacement(node=node, cards=cards, tiles=tiles, held=True))
    return PodCards(pod=str(pod), refusal="", nodes=found)


def explain_claim(pod: DevicePod, nodes: Mapping[str, NodeDevices], options: Options) -> PodCards:
    """What each node answers to the claim of a pod: the same as filter and bind."""
    name, ignored = str(pod.key), ignored_wishes(pod, options)
    claim = asked_of_cards(pod, options)
    if claim is None:
        return PodCards(pod=name, refusal="", nodes=[], asks=False)
    if isinstance(claim, Refusal):
        return PodCards(pod=name, refusal=str(claim), nodes=[], asks=True, ignored=ignored)
    found = [_placement(node, devices, claim, options) for node, devices in nodes.items()]
    nodes_by_rank = sorted(found, key=lambda each: (not each.held, bool(each.reason), each.node))
    return PodCards(pod=name, refusal="", nodes=nodes_by_rank, asks=True, ignored=ignored)


def _placement(node: str, devices: NodeDevices, claim: Claim, options: Options) -> CardPlacement:
    inventory, facts, hold = devices
    if hold is None:
        return CardPlacement(node=node, reason=UNKNOWN_HOLD)
    found = assign(hold, inventory, facts, claim, options)
    if isinstance(found, Refusal):
        refused = {card_name(number): reason for number, reason in sorted(found.cards.items())}
        return CardPlacement(node=node, reason=str(found), refused=refused)
    return CardPlacement(node=node, cards=cards_text(found), tiles=tiles_text(found), held=claim.uid in hold.pods)
