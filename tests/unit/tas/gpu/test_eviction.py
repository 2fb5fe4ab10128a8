"""Which pods are to leave."""

import pytest

from tas.enforcing.pod import PodKey
from tas.gpu.assignment import Assignment
from tas.gpu.eviction import EvictionLabel, confirmed_changes, evictions, label_changes
from tas.gpu.hold import EMPTY, Held, Phase, confirm, hold_of
from tas.gpu.policy_facts import read_policy_facts
from tests.unit.tas.gpu.notation import Node, labels_of

NODE = "N(0,1) i4 t4 groups=0.1 ; card0: i1 gt0 ; card1: i1 gt0 ; card0: i1"


def wanted(facts: str) -> dict[str, tuple[str, ...]]:
    node = Node(f"{NODE.partition(' ;')[0]} {facts} ;{NODE.partition(' ;')[2]}")
    return evictions(node.hold, node.facts)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ("deschedule-pods-card0@b deschedule-pods-card0@a", {
            "used-0": ("card0 is emptied by a, b",),
            "used-2": ("card0 is emptied by a, b",),
        }),
        ("deschedule-pods-card1=PCI_GROUP", {
            "used-0": ("card0 is emptied by p",),
            "used-1": ("card1 is emptied by p",),
            "used-2": ("card0 is emptied by p",),
        }),
        ("tile-deschedule-card0_gt0", {"used-0": ("card0:gt0 is emptied by p",)}),
        ("tile-deschedule-card0_gt1", {}),
        ("deschedule-pods-card0 tile-deschedule-card0_gt0", {
            "used-0": ("card0 is emptied by p", "card0:gt0 is emptied by p"),
            "used-2": ("card0 is emptied by p",),
        }),
        ("", {}),
    ],
)  # fmt: skip
def test_EVI_01_pods_of_emptied_cards_and_tiles_leave(facts: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert wanted(facts) == expected


def test_EVI_02_a_tile_or_card_that_is_only_disabled_keeps_its_pods() -> None:
    assert wanted("tile-disable-card0_gt0 tile-disable-card0_gt1 disable-card0") == {}


def test_a_reservation_is_not_evicted() -> None:
    node = Node(NODE)
    facts = read_policy_facts(labels_of("deschedule-pods-card1")[0], ())
    assert list(evictions(node.hold, facts)) == ["used-1"]
    reserved = Node("N(0,1) i4 t4 deschedule-pods-card1 ; card1: i1 !")
    assert evictions(reserved.hold, reserved.facts) == {}
    assert list(evictions(confirm(reserved.hold, "used-0"), reserved.facts)) == ["used-0"]


OURS = EvictionLabel("gpu", ("tas-on-nats",))
OF_THE_ORIGINAL = EvictionLabel("gpu", ("kubectl", "extender"))
OF_ANOTHER = EvictionLabel("gpu", ("kubectl",))
FOREIGN = EvictionLabel("soon", ("tas-on-nats",))


def changes(text: str, **labels: EvictionLabel) -> dict[str, bool]:
    """The pods whose label is to change, by the bus: whether it is set. The pods are `used-0` and so on: `used_0`."""
    node = Node(text)
    found = label_changes(node.hold, node.facts, {uid.replace("_", "-"): label for uid, label in labels.items()})
    return {uid: bool(reasons) for uid, reasons in found.items()}


EMPTIED = f"N(0,1) i4 t4 groups=0.1 deschedule-pods-card0 ;{NODE.partition(' ;')[2]}"


def test_only_a_pod_without_the_label_gets_it() -> None:
    assert changes(EMPTIED) == {"used-0": True, "used-2": True}
    assert changes(EMPTIED, used_0=OURS, used_2=OF_ANOTHER) == {}


def test_somebody_elses_value_stays() -> None:
    assert changes(EMPTIED, used_0=FOREIGN) == {"used-2": True}
    assert changes(NODE, used_0=FOREIGN) == {}


def test_a_label_of_ours_goes_without_a_reason_and_that_of_others_stays() -> None:
    labels = {"used_0": OURS, "used_1": OF_THE_ORIGINAL, "used_2": OF_ANOTHER}
    assert changes(NODE, **labels) == {"used-0": False, "used-1": False}
    assert changes(EMPTIED, **labels) == {"used-1": False}


def test_a_label_stays_on_a_pod_of_which_the_hold_does_not_say_that_it_is_bound() -> None:
    assert changes("N(0) i4 ; card0: i1 !", used_0=OURS) == {}
    assert changes("N(0) i4 ; card0: i1", used_0=OURS) == {"used-0": False}
    assert label_changes(EMPTY, Node(NODE).facts, {"used-0": OURS}) == {}


@pytest.mark.parametrize(
    ("labels", "set_", "removed"),
    [
        pytest.param("N(0,1) deschedule-pods-card0", ["used-0"], ["used-1"], id="card"),
        pytest.param("N(0,1) tile-deschedule-card1_gt0", ["used-1"], ["used-0"], id="tile"),
        pytest.param("N(0,1) tile-deschedule-card1_gt1", [], ["used-0", "used-1"], id="another tile"),
        pytest.param("N(0,1)", [], ["used-0", "used-1"], id="no reason"),
        pytest.param("N(0,1) disable-card0", [], ["used-0", "used-1"], id="disabled is no reason"),
        pytest.param("N(1)", [], ["used-1"], id="a card is not named"),
        pytest.param("", [], [], id="no card is named"),
        pytest.param("deschedule-pods-card0", ["used-0"], [], id="a reason, and no card is named"),
        pytest.param("N(0..3) deschedule-pods-card2=PCI_GROUP", [], [], id="no groups are named"),
        pytest.param("N(0..3) groups=0.2@ deschedule-pods-card2=PCI_GROUP", [], [], id="groups are unreadable"),
        pytest.param("N(0..3) groups=0.2 deschedule-pods-card2=PCI_GROUP", ["used-0"], ["used-1"], id="group"),
        pytest.param("N(0..3) groups=0.2 deschedule-pods-card3=PCI_GROUP", [], ["used-0", "used-1"], id="no group"),
        pytest.param("N(0..3) disable-card2=PCI_GROUP", [], ["used-0", "used-1"], id="a disabled group is no reason"),
    ],
)  # fmt: skip
def test_the_labels_of_the_node_confirm_a_change(labels: str, set_: list[str], removed: list[str]) -> None:
    hold = Node("N(0,1) i4 t4 ; card0: i1 gt0 ; card1: i1 gt0").hold
    now = labels_of(labels)[0]
    assert list(confirmed_changes(hold, now, {})) == set_
    carried = {"used-0": OURS, "used-1": OURS}
    assert list(confirmed_changes(hold, now, carried)) == removed
    assert not any(confirmed_changes(hold, now, carried).values())
    assert confirmed_changes(EMPTY, now, carried) == {}


def test_a_pod_with_several_cards_keeps_the_label_until_all_are_named() -> None:
    share = Node("N(0) ; card0: i1").hold.pods["used-0"].assignment.slots[0]
    other = Node("N(1) ; card1: i1").hold.pods["used-0"].assignment.slots[0]
    held = Held(pod=PodKey("default", "both"), assignment=Assignment(slots=(share, other)), phase=Phase.BOUND)
    hold = hold_of({"both": held})
    assert confirmed_changes(hold, labels_of("N(0)")[0], {"both": OURS}) == {}
    assert confirmed_changes(hold, labels_of("N(0,1)")[0], {"both": OURS}) == {"both": ()}
