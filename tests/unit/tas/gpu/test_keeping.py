"""What the answers of the API server about pods make of a hold."""

from collections.abc import Collection

import msgspec
import pytest

from tas.gpu import keeping
from tas.gpu.adoption import adopt
from tas.gpu.claim import DevicePod
from tas.gpu.hold import EMPTY, Held, Hold, Phase, add
from tas.gpu.keeping import (
    Ending,
    Reservations,
    adopted,
    answered,
    drifting,
    remembered,
    requests_cards,
    to_adopt,
    to_ask_for,
)
from tas.gpu.names import CONTAINER_CARDS, CONTAINER_TILES, TIMESTAMP
from tas.gpu.pod_annotations import annotations
from tests.unit.tas.gpu.notation import GPU, Node, bound, pod

NODE = "a"
NOT_THERE = "the pod is not there"


def hold_with(phase: Phase) -> tuple[Hold, Held]:
    """A hold in which the pod `u` has a card."""
    (held,) = Node("N(0,1) i2; card1: i1").hold.pods.values()
    until = None if phase is Phase.BOUND else 1.0
    held = msgspec.structs.replace(held, phase=phase, until=until, nanoseconds=7)
    return add(EMPTY, "u", held), held


def answer(held: Held, text: str) -> DevicePod | None:
    """The pod that the API server reports: where it is, with which uid, cards and phase."""
    if text == NOT_THERE:
        return None
    words = dict(word.partition("=")[::2] for word in text.split())
    cards = annotations(held.assignment, held.nanoseconds) if words.get("cards") == "own" else {}
    if words.get("cards") == "other":
        cards = {CONTAINER_CARDS: "card0"}
    found = pod("c{i1}", uid=words.get("uid", "u"))
    return msgspec.structs.replace(
        found, node=words.get("node"), phase=words.get("phase", "Running"), annotations=cards
    )


@pytest.mark.parametrize(
    ("phase", "found", "ending"),
    [
        (Phase.BOUND, NOT_THERE, Ending.GONE),
        (Phase.BOUND, "node=a uid=later", Ending.GONE),
        (Phase.BOUND, "node=a phase=Succeeded", Ending.GONE),
        (Phase.BOUND, "node=a phase=Failed", Ending.GONE),
        (Phase.BOUND, "node=b", Ending.ELSEWHERE),
        (Phase.RESERVED, NOT_THERE, Ending.GONE),
        (Phase.RESERVED, "uid=later", Ending.GONE),
        (Phase.RESERVED, "phase=Pending", Ending.EXPIRED),
        (Phase.RESERVED, "node=b cards=own", Ending.ELSEWHERE),
        (Phase.RESERVED, "node=a cards=other", Ending.ELSEWHERE),
        (Phase.RESERVED, "node=a", Ending.ELSEWHERE),
    ],
)
@pytest.mark.parametrize("is_over", [True, False])
def test_a_pod_loses_its_cards(phase: Phase, found: str, ending: Ending, *, is_over: bool) -> None:
    hold, held = hold_with(phase)
    # While a Binding may be on its way, a pod that is not bound yet keeps its cards. For any other pod none is.
    expected = (EMPTY, ending) if is_over or ending is not Ending.EXPIRED else None
    assert answered(hold, "u", held, answer(held, found), NODE, is_over=is_over) == expected


@pytest.mark.parametrize("found", ["phase=Pending", "node=a", "node=a cards=own", "node=a cards=other"])
@pytest.mark.parametrize("is_over", [True, False])
def test_a_bound_pod_keeps_its_cards(found: str, *, is_over: bool) -> None:
    hold, held = hold_with(Phase.BOUND)
    assert answered(hold, "u", held, answer(held, found), NODE, is_over=is_over) is None


@pytest.mark.parametrize("is_over", [True, False])
def test_a_reservation_whose_pod_is_bound_with_its_cards_is_confirmed(*, is_over: bool) -> None:
    hold, held = hold_with(Phase.RESERVED)
    step = answered(hold, "u", held, answer(held, "node=a cards=own"), NODE, is_over=is_over)
    assert step is not None
    assert step[1] is None
    assert step[0].pods["u"].phase is Phase.BOUND
    assert step[0].cards == hold.cards


def test_a_reservation_that_was_renewed_meanwhile_stays() -> None:
    hold, held = hold_with(Phase.RESERVED)
    earlier = msgspec.structs.replace(held, until=0.5)
    assert answered(hold, "u", earlier, None, NODE, is_over=True) is None
    assert answered(EMPTY, "u", held, None, NODE, is_over=True) is None


@pytest.mark.parametrize(
    ("phase", "seen", "expired", "asked"),
    [
        (Phase.BOUND, "node=a", (), False),
        (Phase.BOUND, "phase=Pending", (), False),
        (Phase.BOUND, "node=b", (), True),
        (Phase.BOUND, NOT_THERE, (), True),
        (Phase.RESERVED, NOT_THERE, (), False),
        (Phase.RESERVED, "node=b", (), False),
        (Phase.RESERVED, "phase=Pending", ("u",), True),
        (Phase.RESERVED, NOT_THERE, ("u",), True),
    ],
)
def test_for_which_pods_the_api_server_is_asked(
    phase: Phase, seen: str, expired: Collection[str], *, asked: bool
) -> None:
    hold, held = hold_with(phase)
    found = answer(held, seen)
    known = {} if found is None else {"u": found}
    assert to_ask_for(hold.pods, known, expired, NODE) == (["u"] if asked else [])


@pytest.mark.parametrize(
    ("text", "phase", "kept"),
    [("A{i1}", "Running", True), ("A{i1}", "Succeeded", False), ("A{i1}", "Failed", False), ("A{}", "Running", False)],
)
def test_only_pods_that_concern_cards_and_have_not_ended_are_remembered(text: str, phase: str, *, kept: bool) -> None:
    own = {CONTAINER_CARDS: "card0", CONTAINER_TILES: "card0:gt0", TIMESTAMP: "7"} if kept else {}
    found = msgspec.structs.replace(pod(text), phase=phase, annotations=own | {"large": "x" * 1000})
    assert remembered(found) == (msgspec.structs.replace(found, annotations=own) if kept else None)


def test_a_reservation_is_over_when_it_has_not_changed_for_its_time() -> None:
    reservations = Reservations(65.0)
    hold, held = hold_with(Phase.RESERVED)
    renewed = {"u": msgspec.structs.replace(held, until=2.0)}
    reservations.set_node("a", hold.pods, at=0.0)
    reservations.set_node("b", hold_with(Phase.BOUND)[0].pods, at=0.0)
    reservations.set_node("c", renewed, at=10.0)
    reservations.set_node("a", {**hold.pods, "v": held}, at=64.0)  # another pod changes nothing for this one

    def over(now: float) -> set[str]:
        known = dict.fromkeys("uv", pod("A{i1}"))
        nodes = reservations.nodes(now, known)
        for node in nodes:
            assert reservations.to_ask_for(node, now, known) == {"u": True}
        return nodes

    assert over(64.9) == set()
    assert over(65.0) == {"a"}
    assert over(75.0) == {"a", "c"}
    reservations.set_node("a", renewed, at=75.0)  # and without the other pod
    assert over(139.9) == {"c"}
    reservations.set_node("c", {}, at=76.0)
    reservations.set_node("c", renewed, at=77.0)  # reserved anew
    assert over(141.0) == {"a"}
    reservations.clear()
    assert over(1e9) == set()


@pytest.mark.parametrize("node", [None, "a", "b"])
def test_the_api_server_is_asked_once_for_a_reserved_pod_that_is_bound_or_not_there(node: str | None) -> None:
    reservations = Reservations(65.0)
    hold, held = hold_with(Phase.RESERVED)
    reservations.set_node("a", {**hold.pods, "v": held}, at=10.0)
    waiting = pod("A{i1}")
    settled = {} if node is None else dict.fromkeys("uv", msgspec.structs.replace(waiting, node=node))

    def asks(now: float, *unbound: str) -> dict[str, bool]:
        known = settled | dict.fromkeys(unbound, waiting)
        found = reservations.to_ask_for("a", now, known)
        assert reservations.nodes(now, known) == ({"a"} if found else set())
        return found

    assert asks(10.9) == {}
    assert asks(11.0, "v") == {"u": False}
    assert asks(11.0, "u", "v") == {}
    reservations.answered("a", "u")
    reservations.answered("a", "not there")
    reservations.answered("b", "u")
    assert asks(12.0) == {"v": False}
    assert asks(75.0, "v") == {"u": True, "v": True}
    reservations.set_node("a", {"u": msgspec.structs.replace(held, until=2.0)}, at=80.0)  # another bind of the pod
    assert asks(80.9) == {}
    assert asks(81.0) == {"u": False}


def test_a_pod_with_cards_is_adopted_and_displaces_nobody() -> None:
    hold, _ = hold_with(Phase.BOUND)
    pods = [bound("A{i1}", "card1", uid="v"), bound("c{i1}", "card0", uid="u")]
    assert to_adopt(hold.pods, pods) == pods[:1]
    assert to_adopt({}, [pod("A{i1}")]) == []
    found = adopted(hold, pods[:1])
    assert (found.problems, found.missing) == ({}, [])
    assert found.hold.pods["u"] == hold.pods["u"]
    assert (found.hold.pods["v"].verified, found.hold.pods["v"].phase) == (False, Phase.BOUND)


def test_a_pod_that_the_hold_cannot_have_is_missing() -> None:
    pods = [bound(f"A{{i1 mc{2**63 - 1}}}", "card0", uid=uid) for uid in "ab"]
    found = adopted(EMPTY, pods)
    assert found.hold.pods.keys() == {"a"}
    assert found.missing == pods[1:]
    assert found.problems.keys() == {"b"}


def test_adopted_pods_have_room_for_so_many_bytes_and_those_that_take_few_come_first() -> None:
    long = ",".join(f"card{number}" for number in range(400))
    pods = [bound("A{i1}", long, uid="a"), bound("A{i1}", "card0", uid="b"), bound("A{i1}", "card1", uid="c")]
    found = adopted(EMPTY, pods, most=1000)
    assert found.hold.pods.keys() == {"b", "c"}
    assert found.missing == pods[:1]
    again = adopted(found.hold, [bound("A{i1}", ",".join(f"card{number}" for number in range(30)), uid="d")], most=1000)
    assert again.hold == found.hold
    assert [each.uid for each in again.missing] == ["d"]
    assert adopted(EMPTY, pods).missing == []


def test_a_pod_that_takes_more_by_its_containers_or_amounts_displaces_no_adopted_pod() -> None:
    """Its annotation may be the shortest of all."""
    honest = bound("A{i1 mc500 mem4}", ",".join(f"card{number}" for number in range(8)), uid="honest")
    (container,) = bound("A{i1}", "card0").containers
    many = bound(" ".join(f"c{number}{{i0}}" for number in range(100)), "card0", uid="a-containers")
    invented = msgspec.structs.replace(container, requests={f"{GPU}a{number}": "1" for number in range(100)})
    amounts = bound("A{i1}", "card0,card1,card2,card3", uid="a-amounts")
    pods = [many, msgspec.structs.replace(amounts, containers=(invented,)), honest]
    size = _bytes_of(adopted(EMPTY, [honest]).hold)
    for displaced in pods[:2]:
        assert _bytes_of(adopted(EMPTY, [displaced]).hold) > size
        assert adopted(EMPTY, [displaced, honest], most=size + 100).missing == [displaced]


def test_of_pods_for_which_there_is_no_room_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 containers with 512 cards each take 70 ms, and a node may have a hundred such pods."""
    read: list[str] = []

    def noted(hold: Hold, pods: Collection[DevicePod], *, verified: bool) -> object:
        read.extend(each.uid for each in pods)
        return adopt(hold, pods, verified=verified)

    monkeypatch.setattr(keeping, "adopt", noted)
    long = ",".join(f"card{number}" for number in range(100))
    pods = [bound("A{i1}", long, uid=f"long-{number}") for number in range(9)]
    pods += [bound(f"A{{i1 mc{2**63 - 1}}}", "card0", uid=uid) for uid in "ab"]
    found = adopted(EMPTY, pods, most=2000)
    assert found.hold.pods.keys() == {"a"}
    assert [each.uid for each in found.missing] == ["b", *(f"long-{number}" for number in range(9))]
    assert read == ["a", "b", "long-0"]
    read.clear()
    full = _bytes_of(found.hold)
    assert adopted(found.hold, pods[:3], most=full + 100).missing == pods[:3]
    assert read == []  # their annotations alone are longer


def _bytes_of(hold: Hold) -> int:
    return sum(len(msgspec.json.encode({uid: held})) for uid, held in hold.pods.items())


def test_cards_with_many_tiles_have_longer_annotations_than_bytes_and_are_adopted() -> None:
    tiles = ",".join(f"card{card}:{'+'.join(f'gt{tile}' for tile in range(64))}" for card in range(8))
    one = bound("A{i8}", ",".join(f"card{card}" for card in range(8)), uid="v")
    one = msgspec.structs.replace(one, annotations={**one.annotations, CONTAINER_TILES: tiles})
    size = _bytes_of(adopted(EMPTY, [one]).hold)
    assert size < len(tiles)
    assert adopted(EMPTY, [one], most=size).missing == []


def test_what_binders_have_assigned_takes_no_room_of_adopted_pods() -> None:
    hold, _ = hold_with(Phase.BOUND)
    one = bound("A{i1}", "card1", uid="v")
    (size,) = (len(msgspec.json.encode({"v": held})) for held in adopted(EMPTY, [one]).hold.pods.values())
    assert adopted(hold, [one], most=size).missing == []
    assert adopted(hold, [one], most=size - 1).missing == [one]


def test_a_pod_on_the_node_without_known_cards_drifts() -> None:
    hold, _ = hold_with(Phase.BOUND)
    stray = msgspec.structs.replace(pod("A{i1}", uid="stray"), node=NODE, phase="Running")
    claimed = msgspec.structs.replace(stray, uid="u")
    with_cards = bound("A{i1}", "card0", uid="adopted")
    monitoring = msgspec.structs.replace(pod("A{mon1}", uid="monitoring"), node=NODE, phase="Running")
    assert requests_cards(monitoring)
    assert drifting(hold.pods, [with_cards, claimed, stray, monitoring]) == [stray]


@pytest.mark.parametrize(("text", "requests"), [("A{i1}", True), ("A{} init{i1}", True), ("A{}", False)])
def test_which_pods_concern_cards(text: str, *, requests: bool) -> None:
    assert requests_cards(pod(text)) is requests
    cards = msgspec.structs.replace(pod("A{}"), annotations={CONTAINER_CARDS: "card0"})
    assert requests_cards(cards)
