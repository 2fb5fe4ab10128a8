"""Decides for pods that request GPU cards: which nodes have cards with room, and which of them come first.

Filter is advice from a view that may be behind. Who gets which card is decided by bind alone (`tas.devices.reserving`).
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from tas.devices.asked import asked_of_cards
from tas.devices.assigning import fits_within
from tas.devices.claim import Claim, DevicePod, Options
from tas.devices.refusal import PREFIX, TEXTS, Refusal, Why
from tas.enforcing.pod import PodKey
from tas.extender.decision import FilterDecision, Pod
from tas.scoring.cards import CardScore, card_score
from tas.view.cards import NodeCards

MAX_KNOWN_PODS = 10_000
"""The most pods whose claims are remembered between filter and bind."""

MAX_ASKED = 50
"""For how many different claims it is remembered on which nodes they fit, and with which scores."""


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
    """What was found for claims that ask for the same, by node.

    `fits` has the version of the node's cards, negative if the claim does not fit. `scores` has the version and the
    score.
    """

    fits: dict[str, int]
    scores: dict[str, tuple[int, int]]


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
        found = self._asked_before(claim).fits
        for node in candidates:
            cards = self._nodes.get(node)
            if cards is None:
                why = Why.UNKNOWN_NODE
            elif found.get(node) == cards.version:
                continue
            elif found.get(node) == -cards.version and claim.uid not in cards.hold.pods:
                why = Why.WILL_NOT_FIT
            else:
                fit = fits_within(cards.hold, cards.inventory, cards.facts, claim, self._options, steps=steps)
                steps = fit.steps
                if claim.uid not in cards.hold.pods and not fit.exhausted:
                    found[node] = cards.version if fit.fits else -cards.version
                if fit.fits:
                    continue
                why = Why.GIVEN_UP if fit.exhausted else Why.WILL_NOT_FIT
            rejected[node] = TEXTS[why]
            refused[why] += 1
        decision = FilterDecision(rejected=rejected, unresolvable=False, unknown_rejected=refused[Why.UNKNOWN_NODE])
        return CardsFilter(decision, refused)

    def score(self, pod: Pod, candidates: Collection[str]) -> dict[str, int]:
        """The score of each candidate with known cards; none for a pod without cards. Raises as `filter`."""
        claim = self._of(pod).claim
        if claim is None or isinstance(claim, Refusal) or not claim.units:
            return {}
        options = msgspec.structs.replace(self._options, steps=max(self._options.steps // max(len(candidates), 1), 1))
        scores, known = {}, self._asked_before(claim).scores
        for node in candidates:
            if (cards := self._nodes.get(node)) is None:
                continue
            version, score = known.get(node, (0, 0))
            if version != cards.version or claim.uid in cards.hold.pods:
                score = card_score(cards.hold, cards.inventory, cards.facts, claim, options, by=self._by)
                # With preferred cards the score also depends on the steps that this request allows.
                if not cards.facts.preferred and claim.uid not in cards.hold.pods:
                    known[node] = cards.version, score
            scores[node] = score
        return scores

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

    def _asked_before(self, claim: Claim) -> "_Asked":
        """What was found for claims that ask for the same.

        Most pods come from templates, so another pod has asked for the same before.
        """
        units = tuple((unit.slots, unit.cards, unit.needs) for unit in claim.units)
        wishes = claim.linked, claim.single_numa, claim.allow, claim.deny
        key = claim.resources, units, tuple(claim.node_amounts.items()), wishes
        found = self._asked.setdefault(key, _Asked({}, {}))
        self._asked.move_to_end(key)
        if len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)
        for of_nodes in found:
            if len(of_nodes) > 2 * len(self._nodes) + 100:  # names of nodes that are gone
                of_nodes.clear()
        return found

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
