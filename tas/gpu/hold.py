"""The hold of a node: every pod that has cards of it, and the sums for each card.

A hold is a value: each operation returns a new one, which shares what has not changed. Its cost grows with the number
of pods only by one copy of a dictionary. The sums follow from the pods, so only the pods are stored.

Most pods are *verified*: this product assigned their cards. A pod is *adopted* if only annotations say what it has, and
anybody may have written them. It counts in all sums, but a tile belongs first to verified pods.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from tas.enforcing.pod import PodKey
from tas.errors import TasError
from tas.gpu.amounts import AmountError, Amounts, decreased, increased
from tas.gpu.assignment import Assignment, Share
from tas.gpu.names import MAX_TILES, card_name, tile_name

RESERVED_SECONDS = 65.0
"""How long a reservation lasts: longer than the API server works on one request (a minute), after it was sent."""


class Phase(StrEnum):
    """How far a pod has come."""

    RESERVED = "reserved"
    """Its cards are assigned, and it is not known to be bound yet."""
    BOUND = "bound"


class Held(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What one pod has of a node.

    The garbage collector does not search it, nor its parts (gc=False), because no such value is part of a cycle. With a
    hundred pods on each node its search took 20 ms, now and then within a bind.

    Attributes:
        pod: Namespace and name, for people.
        assignment: Cards, tiles and amounts.
        phase: How far the pod has come.
        until: When the reservation ends, in seconds since 1970; None for a bound pod.
        verified: Whether this product assigned the cards; False: adopted.
        nanoseconds: When the cards were assigned, in nanoseconds since 1970: the annotation `gas-ts`, after that of
            each pod that the hold had then. 0 if it is not known.
    """

    pod: PodKey
    assignment: Assignment
    phase: Phase
    until: float | None = None
    verified: bool = True
    nanoseconds: int = 0


class HoldError(TasError, ValueError):
    """An operation that the hold does not allow; the message names the pod, the card and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """What all pods have of one card.

    Attributes:
        amounts: The sums by resource.
        owners: The uids of the pods that have a tile, by its number: one, unless an adopted pod also claims the tile.
            The first one is the owner: the verified one, else the first by uid.
        tiles: The owned tiles as the bits of an integer, from tile 0; tiles that no card has are left out.
    """

    amounts: Amounts = field(default_factory=dict)
    owners: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    tiles: int = 0


NOT_USED = CardUse()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Who has what on a node.

    Attributes:
        pods: What each pod has, by its uid.
        cards: What all pods have of each card, by its number. A card that nobody uses may be missing.
        node: What all pods have of the node as a whole.
    """

    pods: Mapping[str, Held] = field(default_factory=dict)
    cards: Mapping[int, CardUse] = field(default_factory=dict)
    node: Amounts = field(default_factory=dict)


EMPTY = Hold()


def hold_of(pods: Mapping[str, Held]) -> Hold:
    """The hold with these pods. Raises HoldError as `add`."""
    sums = _Sums(pods={}, cards={}, node={})
    for uid, held in sorted(pods.items()):
        sums.add(uid, held)
    return sums.hold()


def add(hold: Hold, uid: str, held: Held) -> Hold:
    """The hold with one more pod, or the same hold if it already has what the pod is given.

    A pod that is only adopted changes nothing of a pod that the hold has. A verified pod replaces an adopted one of the
    same uid. Raises HoldError, and nothing has changed, if the hold has other cards for a verified pod, if another
    verified pod has the same tile, or if a sum would exceed `MAX_AMOUNT`.
    """
    known = hold.pods.get(uid)
    if known is not None:
        if not held.verified or (known.verified and known.assignment == held.assignment):
            return hold
        if known.verified:
            raise HoldError(f"pod {held.pod} ({uid}) already has other cards of the node")
        hold = remove(hold, uid)
    sums = _Sums(pods=dict(hold.pods), cards=dict(hold.cards), node=hold.node)
    sums.add(uid, held)
    return sums.hold()


@dataclass(slots=True, kw_only=True)
class _Sums:
    """A hold while pods are added. An error leaves it half changed."""

    pods: dict[str, Held]
    cards: dict[int, CardUse]
    node: Amounts

    def add(self, uid: str, held: Held) -> None:
        """Adds a pod that is not there. Raises HoldError."""
        try:
            for share in held.assignment.shares():
                use = self.cards.get(share.card, NOT_USED)
                self.cards[share.card] = _with_share(self.pods, use, uid, share, verified=held.verified)
            self.node = increased(self.node, held.assignment.node_amounts)
        except AmountError as error:
            raise HoldError(f"pod {held.pod} ({uid}): {error}") from error
        self.pods[uid] = held

    def hold(self) -> Hold:
        return Hold(pods=self.pods, cards=self.cards, node=self.node)


def remove(hold: Hold, uid: str) -> Hold:
    """The hold without a pod. Raises HoldError if it does not have the pod."""
    held = _known(hold, uid)
    cards = dict(hold.cards)
    for share in held.assignment.shares():
        use = _without_share(cards[share.card], uid, share)
        if use == NOT_USED:
            del cards[share.card]
        else:
            cards[share.card] = use
    pods = {each: other for each, other in hold.pods.items() if each != uid}
    return Hold(pods=pods, cards=cards, node=decreased(hold.node, held.assignment.node_amounts))


def confirm(hold: Hold, uid: str) -> Hold:
    """The hold with a pod that is bound now. Raises HoldError if it does not have the pod."""
    held = _known(hold, uid)
    if held.phase is Phase.BOUND:
        return hold
    return replaced(hold, uid, msgspec.structs.replace(held, phase=Phase.BOUND, until=None))


def replaced(hold: Hold, uid: str, held: Held) -> Hold:
    """The hold with another phase or time of a pod. Raises HoldError if it has other cards for the pod, or none."""
    if _known(hold, uid).assignment != held.assignment:
        raise HoldError(f"pod {held.pod} ({uid}) already has other cards of the node")
    return Hold(pods={**hold.pods, uid: held}, cards=hold.cards, node=hold.node)


def _known(hold: Hold, uid: str) -> Held:
    held = hold.pods.get(uid)
    if held is None:
        raise HoldError(f"pod {uid} has no cards of the node")
    return held


def _with_share(pods: Mapping[str, Held], use: CardUse, uid: str, share: Share, *, verified: bool) -> CardUse:
    owners = dict(use.owners)
    bits = use.tiles
    for tile in share.tiles:
        others = [other for other in owners.get(tile, ()) if other != uid]
        owner = [other for other in others if pods[other].verified]
        if verified and owner:
            raise HoldError(f"{card_name(share.card)}:{tile_name(tile)} belongs to pod {pods[owner[0]].pod}")
        first = [uid] if verified else owner
        owners[tile] = (*first, *sorted({uid, *others}.difference(first)))
        bits |= _bit(tile)
    return CardUse(amounts=increased(use.amounts, share.amounts), owners=owners, tiles=bits)


def _without_share(use: CardUse, uid: str, share: Share) -> CardUse:
    owners = dict(use.owners)
    bits = use.tiles
    for tile in share.tiles:
        others = tuple(other for other in owners.pop(tile, ()) if other != uid)
        if others:
            owners[tile] = others
        else:
            bits &= ~_bit(tile)
    return CardUse(amounts=decreased(use.amounts, share.amounts), owners=owners, tiles=bits)


def _bit(tile: int) -> int:
    return 1 << tile if tile < MAX_TILES else 0
