"""Which pods are to leave."""

import pytest

from tas.devices.eviction import evictions
from tas.devices.hold import confirm
from tas.devices.policy_facts import read_policy_facts
from tests.unit.tas.devices.notation import Node, labels_of

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
