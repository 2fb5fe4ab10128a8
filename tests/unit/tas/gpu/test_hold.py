"""The hold of a node."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.enforcing.pod import PodKey
from tas.gpu.amounts import MAX_AMOUNT
from tas.gpu.assignment import Assignment, Share, SlotAssignment
from tas.gpu.hold import EMPTY, CardUse, Held, Hold, HoldError, Phase, add, confirm, hold_of, remove
from tas.gpu.names import MAX_TILES


def held(
    *shares: Share, verified: bool = True, phase: Phase = Phase.RESERVED, until: float | None = None, node: int = 0
) -> Held:
    slots = (SlotAssignment(container="a", shares=shares), SlotAssignment(container="b"))
    assignment = Assignment(slots=slots, node_amounts={"m": node} if node else {})
    return Held(pod=PodKey("default", "p"), assignment=assignment, phase=phase, until=until, verified=verified)


def share(card: int, *tiles: int, x: int = 1) -> Share:
    return Share(card=card, amounts={"x": x}, tiles=tiles)


def test_sums_are_those_of_all_pods() -> None:
    hold = add(EMPTY, "u", held(share(0, 1), share(2, x=5), node=1))
    hold = add(hold, "v", held(share(0, 3, 0, x=2), node=2))
    assert hold.cards == {
        0: CardUse(amounts={"x": 3}, owners={0: ("v",), 1: ("u",), 3: ("v",)}, tiles=0b1011),
        2: CardUse(amounts={"x": 5}),
    }
    assert hold.node == {"m": 3}
    hold = remove(hold, "u")
    assert hold.cards == {0: CardUse(amounts={"x": 2}, owners={0: ("v",), 3: ("v",)}, tiles=0b1001)}
    assert remove(hold, "v") == EMPTY


def test_LIF_06_operations_that_the_hold_does_not_allow_change_nothing() -> None:
    hold = add(EMPTY, "u", held(share(0, 1, x=MAX_AMOUNT)))
    before = hold_of(hold.pods)
    with pytest.raises(HoldError, match=r"pod default/p \(v\): x = 9223372036854775808: must be at most"):
        add(hold, "v", held(share(1), share(0)))
    with pytest.raises(HoldError, match="card0:gt1 belongs to pod default/p"):
        add(hold, "v", held(share(0, 1, x=0)))
    with pytest.raises(HoldError, match=r"pod default/p \(u\) already has other cards"):
        add(hold, "u", held(share(1)))
    for operation in (remove, confirm):
        with pytest.raises(HoldError, match="pod v has no cards of the node"):
            operation(hold, "v")
    assert hold == before


def test_a_pod_is_confirmed_once() -> None:
    hold = add(EMPTY, "u", held(share(0), until=5.0))
    bound = confirm(hold, "u")
    assert bound.pods["u"] == held(share(0), phase=Phase.BOUND)
    assert bound.cards == hold.cards
    assert confirm(bound, "u") is bound
    assert add(bound, "u", held(share(0), until=9.0)) is bound
    assert hold.pods["u"].until == 5.0


class TestAdopted:
    """What only annotations say counts, and displaces nobody."""

    @pytest.mark.parametrize("adopted_first", [True, False])
    def test_a_tile_belongs_to_the_verified_pod(self, adopted_first: bool) -> None:
        forged = ("a", held(share(0, 1), verified=False))
        own = ("z", held(share(0, 1)))
        hold = EMPTY
        for uid, each in (forged, own) if adopted_first else (own, forged):
            hold = add(hold, uid, each)
        assert hold.cards[0].owners == {1: ("z", "a")}
        assert hold.cards[0].amounts == {"x": 2}
        assert remove(hold, "a").cards[0] == CardUse(amounts={"x": 1}, owners={1: ("z",)}, tiles=0b10)
        # The adopted pod still uses the tile, so nobody else gets it.
        assert remove(hold, "z").cards[0] == CardUse(amounts={"x": 1}, owners={1: ("a",)}, tiles=0b10)

    def test_a_tile_that_only_adopted_pods_have_belongs_to_the_first_uid(self) -> None:
        hold = add(EMPTY, "z", held(share(0, 1), verified=False))
        hold = add(hold, "a", held(share(0, 1), verified=False))
        hold = add(hold, "m", held(share(0, 1), verified=False))
        assert hold.cards[0].owners == {1: ("a", "m", "z")}

    def test_no_second_verified_pod_gets_the_tile(self) -> None:
        hold = add(add(EMPTY, "a", held(share(0, 1), verified=False)), "z", held(share(0, 1)))
        with pytest.raises(HoldError, match="card0:gt1 belongs to"):
            add(hold, "y", held(share(0, 1)))

    def test_annotations_change_nothing_of_a_pod_that_is_known(self) -> None:
        hold = add(EMPTY, "u", held(share(0)))
        assert add(hold, "u", held(share(1), verified=False)) is hold

    def test_a_verified_pod_replaces_the_adopted_one_of_the_same_uid(self) -> None:
        hold = add(EMPTY, "u", held(share(0, 1), verified=False))
        assert add(hold, "u", held(share(1))) == add(EMPTY, "u", held(share(1)))
        assert add(hold, "u", held(share(0, 1))).pods["u"].verified

    def test_tiles_that_no_card_has_are_kept_and_count_nothing(self) -> None:
        hold = add(EMPTY, "u", held(share(0, MAX_TILES, 999_999), verified=False))
        assert hold.cards[0].tiles == 0
        assert set(hold.cards[0].owners) == {MAX_TILES, 999_999}
        assert remove(hold, "u") == EMPTY

    def test_a_pod_may_name_one_tile_twice(self) -> None:
        hold = add(EMPTY, "u", held(share(0, 1), share(0, 1), verified=False))
        assert hold.cards[0].owners == {1: ("u",)}
        assert remove(hold, "u") == EMPTY


uids = st.sampled_from("abcd")
shares = st.lists(st.builds(share, st.integers(0, 2), st.integers(0, 3)), max_size=2)
pods = st.tuples(shares, st.booleans()).map(lambda drawn: held(*drawn[0], verified=drawn[1]))


@given(st.lists(st.tuples(uids, pods)))
def test_any_history_has_the_sums_of_its_pods(history: list[tuple[str, Held]]) -> None:
    hold = EMPTY
    for uid, each in history:
        with suppress(HoldError):
            hold = remove(hold, uid) if uid in hold.pods and not each.verified else add(hold, uid, each)
        assert hold == hold_of(hold.pods)
        assert hold == by_hand(hold)
        for use in hold.cards.values():
            for owners in use.owners.values():
                assert not any(hold.pods[uid].verified for uid in owners[1:])
    backwards = EMPTY
    for uid, each in reversed(list(hold.pods.items())):
        backwards = add(backwards, uid, each)
    assert backwards == hold


def by_hand(hold: Hold) -> Hold:
    """The same hold, with sums computed in the simplest terms."""
    cards: dict[int, CardUse] = {}
    for number in {each.card for pod in hold.pods.values() for each in pod.assignment.shares()}:
        found = [(uid, each) for uid, pod in hold.pods.items() for each in pod.assignment.shares()]
        own = [(uid, each) for uid, each in found if each.card == number]
        tiles = {tile for _, each in own for tile in each.tiles}
        owners = {
            tile: tuple(
                sorted(
                    {uid for uid, each in own if tile in each.tiles},
                    key=lambda uid: (not hold.pods[uid].verified, uid),
                )
            )
            for tile in tiles
        }
        bits = sum(1 << tile for tile in tiles)
        cards[number] = CardUse(amounts={"x": sum(each.amounts["x"] for _, each in own)}, owners=owners, tiles=bits)
    return Hold(pods=hold.pods, cards=cards)
