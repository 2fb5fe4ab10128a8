"""Decides for pods that request GPU cards: which nodes have cards with room, and which of them come first.

Filter is advice from a view that may be behind. Who gets which card is decided by bind alone (`tas.gpu.reserving`).
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tas.enforcing.pod import PodKey
from tas.extender.decision import FilterDecision, Pod
from tas.gpu.asked import asked_of_cards
from tas.gpu.assigning import fits_within
from tas.gpu.card_rooms import UNKNOWN, CardRooms
from tas.gpu.card_score import CardScore
from tas.gpu.card_view import NodeCards
from tas.gpu.claim import Claim, DevicePod, Options
from tas.gpu.node_score import card_score
from tas.gpu.refusal import PREFIX, TEXTS, Refusal, Why
from tas.gpu.room import Shape, shape_of

MAX_KNOWN_PODS = 10_000
"""The most pods whose claims are remembered between filter and bind."""

MAX_ASKED = 50
"""For how many different claims it is remembered in which rooms they fit, and with which scores."""

MAX_SHAPES = 8
"""For how many shapes of claims the room of each node is remembered: a node takes 0.1 to 1 KB for each."""


class KnownPod(NamedTuple):
    """A pod with its claim, a permanent refusal, or None if it requests no GPU resources."""

    pod: PodKey
    claim: Claim | Refusal | None


class CardsFilter(NamedTuple):
    """The decision of filter, and how many nodes it refuses for which cause."""

    decision: FilterDecision
    refused: Mapping[Why, int]


PASSED = CardsFilter(FilterDecision(), {})


class _Asked(NamedTuple):
    """What was found for claims that ask for the same, by the number of a room."""

    rooms: CardRooms
    fits: dict[int, bool]
    scores: dict[int, int]


class CardsDecider:
    """Decides by the cards of the nodes.

    Args:
        nodes: The cards of each known node, kept up to date.
        options: Settings of the operator; all candidates of one request share `options.steps`.
        by: By what nodes are scored.
    """

    def __init__(self, nodes: Mapping[str, NodeCards], *, options: Options, by: CardScore) -> None:
        self._nodes = nodes
        self._options = options
        self._by = by
        self._known: OrderedDict[str, KnownPod] = OrderedDict()
        self._asked: OrderedDict[object, _Asked] = OrderedDict()
        self._rooms: OrderedDict[Shape | None, CardRooms] = OrderedDict()

    def filter(self, pod: Pod, candidates: Collection[str]) -> CardsFilter:
        """The candidates without room for the pod. A pod without GPU requests passes everywhere.

        A node whose cards are not known is refused, because bind would refuse it. Raises InvalidInputError for a pod
        whose containers or annotations are invalid JSON of their types.
        """
        claim = self._of(pod).claim
        if claim is None:
            return PASSED
        if isinstance(claim, Refusal):
            decision = FilterDecision(rejected=dict.fromkeys(candidates, f"{PREFIX}{claim}"), unresolvable=True)
            return CardsFilter(decision, {Why.NEVER: len(candidates)})
        rejected: dict[str, str] = {}
        refused: Counter[Why] = Counter()
        steps = self._options.steps
        asked = self._asked_before(claim)
        for room, alike in asked.rooms.alike(candidates).items():
            if room == UNKNOWN:
                why, refusing = Why.UNKNOWN_NODE, alike
            else:
                known = asked.fits.get(room)
                if known:
                    continue
                refusing = self._not_holding(alike, claim)
                why = Why.WILL_NOT_FIT
                if not refusing:
                    continue
                if known is None:
                    cards = self._nodes[refusing[0]]
                    fit = fits_within(cards.hold, cards.inventory, cards.facts, claim, self._options, steps=steps)
                    steps = fit.steps
                    if fit.exhausted:
                        why = Why.GIVEN_UP
                    else:
                        asked.fits[room] = fit.fits
                    if fit.fits:
                        continue
            rejected.update(dict.fromkeys(refusing, TEXTS[why]))
            refused[why] += len(refusing)
        decision = FilterDecision(rejected=rejected, unresolvable=False, unknown_rejected=refused[Why.UNKNOWN_NODE])
        return CardsFilter(decision, refused)

    def score(self, pod: Pod, candidates: Collection[str]) -> dict[str, int]:
        """The score of each candidate with known cards; none for a pod without cards. Raises as `filter`."""
        claim = self._of(pod).claim
        if claim is None or isinstance(claim, Refusal) or not claim.units:
            return {}
        scores: dict[str, int] = {}
        options = msgspec.structs.replace(self._options, steps=max(self._options.steps // max(len(candidates), 1), 1))
        asked = self._asked_before(claim)
        for room, alike in asked.rooms.alike(candidates).items():
            if room == UNKNOWN:
                continue
            others = self._not_holding(alike, claim)
            if len(others) < len(alike):
                scores.update((node, self._score(node, claim, options)) for node in set(alike).difference(others))
            if not others:
                continue
            score = asked.scores.get(room)
            if score is None:
                score = self._score(others[0], claim, options)
                # With preferred cards the score also depends on the steps that this request allows.
                if not self._nodes[others[0]].facts.preferred:
                    asked.scores[room] = score
            scores.update(dict.fromkeys(others, score))
        return scores

    def _score(self, node: str, claim: Claim, options: Options) -> int:
        cards = self._nodes[node]
        return card_score(cards.hold, cards.inventory, cards.facts, claim, options, by=self._by)

    def _not_holding(self, nodes: Sequence[str], claim: Claim) -> list[str]:
        """The nodes of which the pod has no cards: the pod keeps those that it has."""
        return [node for node in nodes if claim.uid not in self._nodes[node].hold.pods]

    def known(self, uid: str) -> KnownPod | None:
        """What a request of filter or prioritize said about a pod; None if it is not remembered."""
        return self._known.get(uid)

    def remember(self, pod: DevicePod) -> KnownPod:
        """The claim of a pod, from now on remembered by its uid."""
        known = KnownPod(pod.key, asked_of_cards(pod, self._options))
        if pod.uid:
            self._known[pod.uid] = known
            self._known.move_to_end(pod.uid)
            if len(self._known) > MAX_KNOWN_PODS:
                self._known.popitem(last=False)
        return known

    def _asked_before(self, claim: Claim) -> _Asked:
        """What was found for claims that ask for the same.

        Most pods come from templates, so another pod has asked for the same before.
        """
        units = tuple((unit.slots, unit.cards, unit.needs) for unit in claim.units)
        wishes = claim.linked, claim.single_numa, claim.allow, claim.deny
        key = claim.resources, units, tuple(claim.node_amounts.items()), wishes
        rooms = self._rooms_for(claim)
        asked = self._asked.get(key)
        if asked is None or asked.rooms is not rooms:
            asked = self._asked[key] = _Asked(rooms, {}, {})
        self._asked.move_to_end(key)
        if len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)
        for of_rooms in (asked.fits, asked.scores):
            if len(of_rooms) > 2 * len(self._nodes) + 100:  # rooms that no node has any more
                of_rooms.clear()
        return asked

    def _rooms_for(self, claim: Claim) -> CardRooms:
        shape = shape_of(claim)
        rooms = self._rooms.get(shape)
        if rooms is None:
            rooms = self._rooms[shape] = CardRooms(self._nodes, shape)
        self._rooms.move_to_end(shape)
        if len(self._rooms) > MAX_SHAPES:
            self._rooms.popitem(last=False)
        return rooms

    def _of(self, pod: Pod) -> KnownPod:
        """The pod of a request. It is read anew each time: somebody may have changed its annotations."""
        containers, init_containers = pod.all_containers
        key = PodKey(pod.namespace, pod.name)
        annotations = pod.annotations if any(each.amounts() for each in (*containers, *init_containers)) else {}
        return self.remember(
            DevicePod(
                key=key, uid=pod.uid, containers=containers, init_containers=init_containers, annotations=annotations
            )
        )
