"""Claims that the device plugin of a node would misread."""

import pytest

from tas.devices.annotations import annotations
from tas.devices.asked import misread
from tas.devices.assignment import Assignment
from tas.devices.refusal import Cause
from tests.unit.tas.devices.device_plugin import DevicePlugin, Pending
from tests.unit.tas.devices.notation import Node, claim, placed

NODE = "N(0,1) i20 t20 mon2"


@pytest.mark.parametrize(
    "pod",
    [
        "A{i1}",
        "A{i1 t1}",
        "A{i1} B{i1}",
        "A{i1 t1} B{i1 t2}",
        "A{i1 t1} B{i1}",
        "A{} B{i1 t1}",
        "A{mon1} B{i1 t1}",
        "A{i1 t1} B{} C{i2 t2} D{i1}",
    ],
)
def test_facts_g7_each_container_of_an_accepted_claim_gets_its_own_tiles(pod: str) -> None:
    assert misread(claim(pod)) is None
    assignment = placed(Node(NODE), pod)
    assert isinstance(assignment, Assignment)
    slots = [slot for slot in assignment.slots if slot.shares]
    plugin, pending = DevicePlugin(), {"p": Pending(annotations(assignment, 1), len(slots))}
    for slot in slots:
        given = plugin.allocate(pending)
        own = sorted((share.card, share.tiles) for share in slot.shares if share.tiles)
        assert given.cards == [f"card{share.card}" for share in slot.shares]
        assert given.tiles == [f"card{card}:{'+'.join(f'gt{tile}' for tile in tiles)}" for card, tiles in own]


@pytest.mark.parametrize("pod", ["A{i1} B{i1 t1}", "A{i1 t1} B{i1} C{} D{i1 t1}"])
def test_TIL_11_facts_g7_a_container_that_would_get_the_tiles_of_another_is_refused_for_ever(pod: str) -> None:
    refusal = misread(claim(pod))
    assert refusal is not None
    assert (refusal.cause, refusal.permanent) == (Cause.RESOURCES_CONFLICT, True)
    first, second = ("A", "B") if pod.startswith("A{i1} ") else ("B", "D")
    assert f"container {first} requests a card" in refusal.reason
    assert f"container {second}, whose tiles" in refusal.reason
