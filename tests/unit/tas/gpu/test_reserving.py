"""What a bind writes to the hold of a node."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.enforcing.pod import PodKey
from tas.gpu.assignment import Assignment
from tas.gpu.claim import Claim, DevicePod, Options, read_claim
from tas.gpu.hold import EMPTY, RESERVED_SECONDS, Held, Hold, HoldError, Phase, add, hold_of, replaced
from tas.gpu.inventory import read_inventory
from tas.gpu.policy_facts import NO_FACTS
from tas.gpu.refusal import Refusal
from tas.gpu.reserving import Reserved, bound, released, reserve
from tests.unit.tas.gpu import generators
from tests.unit.tas.gpu.notation import NO_OPTIONS, Node, claim

POD = PodKey("default", "p")
NOW = 1000.0


def reserved(node: Node, hold: Hold, asked: Claim, *, now: float = NOW, nanoseconds: int = 7) -> object:
    return reserve(hold, node.inventory, node.facts, asked, NO_OPTIONS, pod=POD, now=now, nanoseconds=nanoseconds)


def first(node: Node, hold: Hold, asked: Claim, *, now: float = NOW, nanoseconds: int = 7) -> Reserved:
    found = reserved(node, hold, asked, now=now, nanoseconds=nanoseconds)
    assert isinstance(found, Reserved), found
    return found


def test_a_reservation_has_cards_and_an_end() -> None:
    found = first(Node("N(0,1) i2"), EMPTY, claim("A{i1}", uid="u"))
    assert found.is_new
    assert (found.held.pod, found.held.phase, found.held.until) == (POD, Phase.RESERVED, NOW + RESERVED_SECONDS)
    assert (found.held.verified, found.held.nanoseconds) == (True, 7)
    assert [share.card for share in found.held.assignment.shares()] == [0]
    assert found.hold.pods == {"u": found.held}


def test_BND_03_the_second_of_two_pods_for_one_card_is_refused() -> None:
    node = Node("N(0) i1")
    hold = first(node, EMPTY, claim("A{i1}")).hold
    assert isinstance(reserved(node, hold, claim("A{i1}")), Refusal)


def test_BND_05_a_pod_with_a_reservation_keeps_its_cards_and_its_time_and_the_reservation_is_renewed() -> None:
    node, asked = Node("N(0) i1"), claim("A{i1}", uid="u")
    before = first(node, EMPTY, asked)
    again = first(node, before.hold, asked, now=NOW + 30, nanoseconds=99)
    assert not again.is_new
    assert again.held == msgspec.structs.replace(before.held, until=NOW + 30 + RESERVED_SECONDS)
    assert again.hold == hold_of({"u": again.held})


def test_a_bound_pod_has_what_it_has() -> None:
    node, asked = Node("N(0) i1"), claim("A{i1}", uid="u")
    hold = bound(first(node, EMPTY, asked).hold, "u")
    assert hold is not None
    held = reserved(node, hold, asked)
    assert isinstance(held, Held)
    assert (held.phase, held.until) == (Phase.BOUND, None)
    assert bound(hold, "u") is None
    assert bound(hold, "other") is None


def test_each_pod_of_a_node_has_a_later_time_than_those_before() -> None:
    """Clocks of binders differ, and the device plugin takes the pod with the first time (facts.md g6)."""
    node, hold, times = Node("N(0) i9"), EMPTY, []
    for uid, nanoseconds in (("a", 500), ("b", 400), ("c", 501), ("d", 900), ("e", 900)):
        found = first(node, hold, claim("A{i1}", uid=uid), nanoseconds=nanoseconds)
        hold = found.hold
        times.append(found.held.nanoseconds)
    assert times == [500, 501, 502, 900, 901]


def test_only_the_very_reservation_is_released() -> None:
    node, asked = Node("N(0) i1"), claim("A{i1}", uid="u")
    ours = first(node, EMPTY, asked)
    assert released(ours.hold, "u", ours.held) == EMPTY
    renewed = first(node, ours.hold, asked, now=NOW + 1)
    assert released(renewed.hold, "u", ours.held) is None
    confirmed = bound(ours.hold, "u")
    assert confirmed is not None
    assert released(confirmed, "u", ours.held) is None
    assert released(EMPTY, "u", ours.held) is None


def test_a_pod_is_not_given_other_cards_by_a_new_phase() -> None:
    node = Node("N(0,1) i2")
    ours = first(node, EMPTY, claim("A{i1}", uid="u"))
    other = first(node, ours.hold, claim("A{i1}", uid="v"))
    with pytest.raises(HoldError, match="already has other cards"):
        replaced(ours.hold, "u", other.held)
    with pytest.raises(HoldError, match="has no cards"):
        replaced(ours.hold, "v", other.held)


@given(generators.nodes(), st.lists(generators.pods(), max_size=6), st.lists(st.integers(0, 5), max_size=12))
def test_binds_in_any_order_never_give_more_than_there_is(
    described: tuple[dict[str, str], dict[str, str]], pods: list[DevicePod], steps: list[int]
) -> None:
    """Each step is a bind, its end, or its release; the sums are always those of the pods."""
    inventory = read_inventory(*described)
    hold, held = EMPTY, dict[str, Held]()
    options = Options(steps=200)
    for number, step in enumerate(steps):
        if not pods:
            return
        index = step % len(pods)
        uid = f"pod-{index}"
        asked = read_claim(msgspec.structs.replace(pods[index], uid=uid), options)
        if isinstance(asked, Refusal):
            continue
        found = reserve(hold, inventory, NO_FACTS, asked, options, pod=POD, now=float(number), nanoseconds=number)
        if isinstance(found, Reserved):
            hold, held[uid] = found.hold, found.held
            if step == 0:
                hold = released(hold, uid, found.held) or hold
            elif step % 2:
                hold = bound(hold, uid) or hold
        assert hold == hold_of(hold.pods)
        for card in inventory.cards:
            use = hold.cards.get(card.number)
            for resource, amount in {} if use is None else use.amounts.items():
                assert amount <= card.capacity[resource]
            assert use is None or all(len(owners) == 1 for owners in use.owners.values())
        assert all(isinstance(each.assignment, Assignment) for each in hold.pods.values())
        assert len({each.nanoseconds for each in hold.pods.values()}) == len(hold.pods)


def test_an_adopted_pod_keeps_its_cards() -> None:
    node, asked = Node("N(0,1) i2"), claim("A{i1}", uid="u")
    assignment = first(node, EMPTY, asked).held.assignment
    adopted = Held(pod=POD, assignment=assignment, phase=Phase.BOUND, verified=False)
    assert reserved(node, add(EMPTY, "u", adopted), asked) == adopted
