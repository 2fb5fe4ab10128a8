"""The cells of the table of GPU cards."""

import pytest

from cli.queries.card_tables import bar, card_rows, pod_text, state_texts
from tas.gpu.adoption import adopt
from tas.gpu.explanation import AmountUse, CardPod, CardsExplanation, NodeDevices, explain_cards
from tas.gpu.hold import Phase
from tests.unit.tas.gpu.notation import Node, bound


@pytest.mark.parametrize(
    ("capacity", "used", "free", "expected"),
    [
        (10, 0, 10, "░░░░░░░░░░"),
        (10, 3, 7, "███░░░░░░░"),
        (1000, 1, 999, "█░░░░░░░░░"),
        (1000, 999, 1, "█████████░"),
        (10, 10, 0, "██████████"),
        (10, 12, 0, "██████████"),
        (10, 0, 0, "----------"),
        (10, 4, 0, "████------"),
        (4, 1, 2, "██░░░░░---"),
        (20, 11, 9, "██████░░░░"),
        (0, 1, 0, "-"),
    ],
)
def test_a_bar_has_parts_for_used_free_and_neither(capacity: int, used: int, free: int, expected: str) -> None:
    assert bar(AmountUse(capacity=capacity, used=used, free=free)) == expected


@pytest.mark.parametrize(
    ("phase", "until", "verified", "expected"),
    [
        (Phase.BOUND, None, True, "default/web main gt0+gt2"),
        (Phase.RESERVED, 142.0, True, "default/web main gt0+gt2 (reserved for 42s)"),
        (Phase.RESERVED, 90.0, True, "default/web main gt0+gt2 (reserved for 0.0s)"),
        (Phase.RESERVED, None, True, "default/web main gt0+gt2 (reserved)"),
        (Phase.BOUND, None, False, "default/web main gt0+gt2 (adopted)"),
        (Phase.RESERVED, None, False, "default/web main gt0+gt2 (reserved, adopted)"),
    ],
)
def test_a_pod_is_told_with_its_container_its_tiles_and_what_is_special(
    phase: Phase, until: float | None, verified: bool, expected: str
) -> None:
    pod = CardPod(
        pod="default/web",
        uid="u",
        container="main",
        amounts={},
        tiles=["gt0", "gt2"],
        phase=phase,
        until=until,
        verified=verified,
    )
    assert pod_text(pod, 100.0) == expected


def explained(text: str) -> CardsExplanation:
    node = Node(text)
    return explain_cards("n", NodeDevices(node.inventory, node.facts, node.hold))


def test_the_state_names_the_policies_of_the_card_and_of_its_tiles() -> None:
    text = "N(0) i1 t4 disable-card0@a disable-card0@b deschedule-pods-card0@b prefer-gpu=card0"
    (card,) = explained(f"{text} tile-disable-card0_gt0@c tile-deschedule-card0_gt1@d tile-preferred-card0=gt2").cards
    assert list(state_texts(card)) == [
        "emptied by b",
        "disabled by a",
        "preferred",
        "gt0 disabled by c",
        "gt1 emptied by d",
        "gt2 preferred",
    ]
    (card, _) = explained("N(0) i1 ; card3: i1").cards
    assert list(state_texts(card)) == []


def test_a_row_of_the_live_view_has_each_resource_the_state_and_each_pod_once() -> None:
    node = Node("N(0,1) i20 mc2000 disable-card1@hot ; card0: i1 mc500 ; card0: i1")
    node.hold, _ = adopt(node.hold, [bound("A{i1}", "card0")], verified=False)
    devices = NodeDevices(node.inventory, node.facts, node.hold)
    assert card_rows([explain_cards("gpu-1", devices)]) == {
        "gpu-1 card0": "i915 3/10 ███░░░░░░░  millicores 500/1000 █████░░░░░; pods: u, used",
        "gpu-1 card1": "i915 0/10 ----------  millicores 0/1000 ----------; disabled by hot; pods: –",
    }
    unknown = card_rows([explain_cards("gpu-1", devices._replace(hold=None))])
    assert unknown["gpu-1 card0"].endswith("; nobody knows yet who has the cards of the node; pods: –")
