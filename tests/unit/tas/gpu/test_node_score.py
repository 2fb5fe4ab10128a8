"""Scores of nodes for pods that need cards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.enforcing.pod import PodKey
from tas.gpu.assigning import assign
from tas.gpu.assignment import Assignment
from tas.gpu.card_score import CardScore
from tas.gpu.claim import Claim, DevicePod, Options, read_claim
from tas.gpu.hold import EMPTY, Held, Phase, add
from tas.gpu.inventory import read_inventory
from tas.gpu.node_score import card_score
from tas.gpu.policy_facts import read_policy_facts
from tas.scoring.score import MAX_SCORE
from tests.unit.tas.gpu import generators
from tests.unit.tas.gpu.notation import Node, claim

PACK, SPREAD, PREFER = CardScore.PACK, CardScore.SPREAD, CardScore.PREFER


def score(node: str, pod: str, by: CardScore = PACK) -> int:
    found = Node(node)
    return card_score(found.hold, found.inventory, found.facts, claim(pod), Options(), by=by)


@pytest.mark.parametrize(
    ("node", "pod", "pack"),
    [
        ("N(0,1) i20", "A{i1}", 0),  # 1 of 20: 0.35 of 7
        ("N(0,1) i20", "A{i2}", 1),  # 0.7
        ("N(0,1) i20 ; card0: i9", "A{i1}", 4),  # 3.5, half up
        ("N(0,1) i20 ; card0: i9", "A{i1} B{i1}", 4),  # 3.85
        ("N(0,1) i20 ; card0: i10 ; card1: i9", "A{i1}", 7),
        ("N(0,1) i20 mc2000 ; card0: i1 mc900", "A{i1 mc100}", 4),  # the fuller of its resources
        ("N(0,1) i20 mc2000 ; card0: i9 mc100", "A{i1 mc100}", 4),
        ("N(0,1) i20 mc2000 ; card0: i1 mc900", "A{i1}", 1),  # only its own resources
        ("N(0,1) i20 ; card7: i9", "A{i1}", 0),  # a card that the node does not have
        ("N(0,1) i2 ; card0: i9", "A{i1}", 7),  # more in use than there is
    ],
)
def test_pack_prefers_the_fuller_node_and_spread_the_emptier(node: str, pod: str, pack: int) -> None:
    assert score(node, pod) == pack
    assert score(node, pod, SPREAD) == 7 - pack
    assert score(node, pod, PREFER) == 0


def test_SEL_10_a_preferred_card_raises_the_score() -> None:
    for by, more in ((PACK, 3), (SPREAD, 3), (PREFER, 10)):
        assert score("N(0,1) i20 prefer-gpu=card1", "A{i1}", by) == score("N(0,1) i20", "A{i1}", by) + more


def test_SEL_09_LNK_06_a_preferred_card_among_several_counts_for_its_container() -> None:
    assert score("N(0,1,2) i3 prefer-gpu=card2", "A{i2}", PREFER) == 10
    assert score("N(0,1) i2 t2 links=0.0-1.0 prefer-gpu=card1", "A{i2 t2} xelink", PREFER) == 10
    assert score("N(0,1) i2 prefer-gpu=card1", "A{i1} B{i1}", PREFER) == 5
    assert score("N(0,1,2) i3 prefer-gpu=card1", "A{i1} B{} C{i1} D{i1}", PREFER) == 3
    assert score("N(0,1) i2 prefer-gpu=card1", "A{i1} B{i1}", SPREAD) == 0 + 2


def test_SEL_11_a_preferred_card_that_the_node_does_not_have_gives_nothing() -> None:
    assert score("N(0,1) i2 prefer-gpu=card9", "A{i1}", PREFER) == 0


def test_a_preferred_card_that_the_pod_does_not_get_gives_nothing() -> None:
    assert score("N(0,1) i2 prefer-gpu=card1 ; card1: i1", "A{i1}", PREFER) == 0
    assert score("N(0) i1 prefer-gpu=card0 ; card0: i1", "A{i1}", PREFER) == 0


def test_a_pod_without_cards_scores_nothing() -> None:
    assert [score("N(0) i1 mon1 prefer-gpu=card0", "A{mon1}", by) for by in CardScore] == [0, 0, 0]


def test_a_pod_that_the_node_already_has_is_counted_once() -> None:
    node = Node("N(0,1) i8")
    asked = claim("A{i2}")
    found = assign(node.hold, node.inventory, node.facts, asked, Options())
    assert isinstance(found, Assignment)
    hold = add(EMPTY, asked.uid, Held(pod=PodKey("d", "p"), assignment=found, phase=Phase.BOUND))
    assert card_score(hold, node.inventory, node.facts, asked, Options(), by=PACK) == score("N(0,1) i8", "A{i2}") == 2


@given(generators.nodes(), st.lists(generators.pods(), min_size=1, max_size=4), generators.options)
def test_scores_stay_within_their_bounds_and_a_fuller_node_never_scores_lower_by_pack(
    described: tuple[dict[str, str], dict[str, str]], several: list[DevicePod], options: Options
) -> None:
    inventory = read_inventory(*described)
    facts = read_policy_facts({}, ())
    preferring = read_policy_facts(described[0], inventory.pci_groups)
    asked = read_claim(several[0], options)
    assert isinstance(asked, Claim)
    hold, last = EMPTY, -1
    for each in several[1:]:
        scores = {by: card_score(hold, inventory, facts, asked, options, by=by) for by in CardScore}
        assert scores[PACK] + scores[SPREAD] == (7 if asked.units else 0)
        assert scores[PACK] >= last
        last = scores[PACK]
        for by in CardScore:
            assert scores[by] <= card_score(hold, inventory, preferring, asked, options, by=by) <= MAX_SCORE
        other = read_claim(each, options)
        assert isinstance(other, Claim)
        found = assign(hold, inventory, facts, other, options)
        if isinstance(found, Assignment) and other.uid not in (asked.uid, *hold.pods):
            hold = add(hold, other.uid, Held(pod=each.key, assignment=found, phase=Phase.BOUND))
