"""What people see of the cards of a node agrees with what a new pod gets of them."""

import msgspec
from hypothesis import event, given

from tas.enforcing.pod import PodKey
from tas.gpu.adoption import adopt
from tas.gpu.assigning import assign
from tas.gpu.assignment import Assignment
from tas.gpu.claim import Claim, ContainerRequest, DevicePod, Options, read_claim
from tas.gpu.explanation import (
    UNKNOWN_HOLD,
    AmountUse,
    CardExplanation,
    CardPlacement,
    CardsExplanation,
    NodeDevices,
    PodCards,
    explain_cards,
    explain_claim,
    explain_held,
)
from tas.gpu.hold import EMPTY, Held, Phase, add
from tas.gpu.inventory import read_inventory
from tas.gpu.policy_facts import read_policy_facts
from tests.unit.tas.gpu.generators import nodes, pods
from tests.unit.tas.gpu.notation import GPU, Node, bound, pod

I915, MILLICORES, MEMORY, TILES = f"{GPU}i915", f"{GPU}millicores", f"{GPU}memory.max", f"{GPU}tiles"
OPTIONS = Options()


def explained(text: str) -> CardsExplanation:
    """The cards of a node in the notation of `tests/unit/tas/gpu`."""
    return of(Node(text))


def devices(node: Node) -> NodeDevices:
    return NodeDevices(node.inventory, node.facts, node.hold)


def of(node: Node) -> CardsExplanation:
    return explain_cards("n", devices(node))


def card(cards: CardsExplanation, name: str) -> CardExplanation:
    (found,) = [each for each in cards.cards if each.card == name]
    return found


def uses(cards: CardsExplanation, name: str) -> dict[str, tuple[int, int, int]]:
    """Capacity, used and free by resource."""
    return {
        resource.removeprefix(GPU): (use.capacity, use.used, use.free)
        for resource, use in card(cards, name).resources.items()
    }


def tiles(cards: CardsExplanation, name: str) -> dict[str, list[str]]:
    return {tile.tile: list(tile.pods) for tile in card(cards, name).tiles}


def test_a_card_has_its_share_and_what_its_pods_leave() -> None:
    cards = explained("N(0,10) i20 mc2000 t4 ; card0: i1 mc500 ; card0: mc100 gt1 ; card10: mc1000!")
    assert [each.card for each in cards.cards] == ["card0", "card10"]
    assert uses(cards, "card0") == {"i915": (10, 1, 9), "millicores": (1000, 600, 400), "tiles": (2, 1, 1)}
    assert uses(cards, "card10") == {"i915": (10, 0, 10), "millicores": (1000, 1000, 0), "tiles": (2, 0, 2)}
    assert tiles(cards, "card0") == {"gt0": [], "gt1": ["default/used"]}
    assert [each.problem for each in cards.cards] == ["", ""]
    (reserved,) = card(cards, "card10").pods
    assert (reserved.phase, reserved.container, dict(reserved.amounts)) == (Phase.RESERVED, "c", {MILLICORES: 1000})
    assert [list(each.tiles) for each in card(cards, "card0").pods] == [[], ["gt1"]]


def test_nothing_of_a_disabled_card_is_free_and_its_policies_are_named() -> None:
    cards = explained("N(0..2) i3 disable-card0@hot disable-card0@old deschedule-pods-card1@bad prefer-gpu=card2")
    assert uses(cards, "card0") == {"i915": (1, 0, 0)}
    assert uses(cards, "card1") == {"i915": (1, 0, 0)}
    assert uses(cards, "card2") == {"i915": (1, 0, 1)}
    assert [(each.disabled, each.evicted, each.preferred) for each in cards.cards] == [
        (("hot", "old"), (), False),
        (("bad",), ("bad",), False),
        ((), (), True),
    ]


def test_a_disabled_tile_is_not_free_and_other_tiles_are() -> None:
    cards = explained(
        "N(0) i1 t4 tile-disable-card0_gt1@a tile-deschedule-card0_gt2@b tile-preferred-card0=gt3 ; card0: gt2"
    )
    assert uses(cards, "card0")["tiles"] == (4, 1, 2)
    states = [(tile.tile, tile.disabled, tile.evicted, tile.preferred) for tile in card(cards, "card0").tiles]
    assert states == [
        ("gt0", (), (), False),
        ("gt1", ("a",), (), False),
        ("gt2", ("b",), ("b",), False),
        ("gt3", (), (), True),
    ]


def test_a_card_and_a_tile_that_only_a_pod_names_are_shown_as_a_problem() -> None:
    cards = explained("N(0) i1 t1 ; card0: gt1 ; card7: i1 gt0")
    assert uses(cards, "card7") == {"i915": (0, 1, 0), "tiles": (0, 1, 0)}
    assert card(cards, "card7").problem == "the node has no such card"
    assert [(tile.tile, tile.exists) for tile in card(cards, "card0").tiles] == [("gt0", True), ("gt1", False)]


def test_more_in_use_than_there_is_is_a_problem_and_leaves_nothing() -> None:
    cards = explained("N(0,1) i2 mc100 ; card0: mc60 ; card0: mc1")
    assert uses(cards, "card0") == {"i915": (1, 0, 1), "millicores": (50, 61, 0)}
    assert card(cards, "card0").problem == f"more in use than it has: {MILLICORES}"
    assert card(cards, "card1").problem == ""
    assert card(explained("N(0) i2 mc60 ; card0: mc60"), "card0").problem == ""


def test_a_tile_of_two_pods_is_a_problem_and_the_verified_one_is_named_first() -> None:
    node = Node("N(0) i2 t2 ; card0: gt0")
    node.hold, problems = adopt(node.hold, [bound("A{i1 t1}", "card0", "card0:gt0")], verified=False)
    assert problems == {}
    cards = of(node)
    assert tiles(cards, "card0")["gt0"] == ["default/used", "default/u"]
    assert card(cards, "card0").problem == "several pods claim gt0"
    assert [each.verified for each in card(cards, "card0").pods] == [False, True]


def test_amounts_of_the_whole_node_belong_to_no_card() -> None:
    node = Node("N(0) i1 mon1")
    assert of(node).resources == {f"{GPU}i915_monitoring": AmountUse(capacity=1, used=0, free=1)}
    held = Held(
        pod=PodKey("default", "m"),
        assignment=Assignment(slots=(), node_amounts={f"{GPU}i915_monitoring": 2}),
        phase=Phase.BOUND,
    )
    node.hold = add(node.hold, "m", held)
    assert of(node).resources == {f"{GPU}i915_monitoring": AmountUse(capacity=1, used=2, free=0)}
    assert [each.card for each in of(node).cards] == ["card0"]


def test_what_cannot_be_read_of_labels_amounts_and_policies_is_listed() -> None:
    cards = explained("N(0) i1 links=zero disable-gpu0")
    assert [problem.field for problem in cards.problems] == [
        f"{GPU}xe-links",
        "telemetry.aware.scheduling.p/gas-disable-gpu0",
    ]


def test_a_node_without_cards_has_none() -> None:
    assert explain_cards("n", devices(Node(""))) == CardsExplanation(node="n", cards=[], resources={}, problems=[])


def test_a_pod_whose_claim_is_not_known_is_told_what_it_has() -> None:
    node, other = Node("N(0) i2 t2 ; card0: i1 gt1"), Node("N(0) i2")
    found = explain_held(PodKey("default", "used"), {"b": devices(node), "a": devices(other)})
    assert found.nodes == [CardPlacement(node="b", cards="card0", tiles="card0:gt1", held=True)]
    assert explain_held(PodKey("other", "used"), {"b": devices(node)}).nodes == []


def test_nothing_is_free_while_nobody_knows_who_has_the_cards() -> None:
    node = Node("N(0) i2 mon1")
    unknown = devices(node)._replace(hold=None)
    cards = explain_cards("n", unknown)
    assert uses(cards, "card0") == {"i915": (2, 0, 0)}
    assert cards.resources[f"{GPU}i915_monitoring"].free == 0
    assert (cards.hold_known, of(node).hold_known) == (False, True)
    (placement,) = explain_claim(pod("A{i1}"), {"n": unknown}, OPTIONS).nodes
    assert placement.reason == UNKNOWN_HOLD
    assert explain_held(PodKey("default", "used"), {"n": unknown}).nodes == []


def one_card(whole: DevicePod) -> DevicePod:
    """The pod with its first container alone, which wants one card."""
    (first, *_) = whole.containers
    amounts = {resource: amount for resource, amount in first.requests.items() if resource != I915}
    only = ContainerRequest(name="A", requests=amounts | {I915: "1"})
    return msgspec.structs.replace(whole, containers=(only,), annotations={})


@given(nodes(), pods(plain=True), pods(plain=True))
def test_a_pod_with_one_card_fits_exactly_where_a_card_has_enough_free(
    node: tuple[dict[str, str], dict[str, str]], running: DevicePod, new: DevicePod
) -> None:
    inventory = read_inventory(*node)
    facts = read_policy_facts(node[0], inventory.pci_groups)
    hold = EMPTY
    claim = read_claim(running, OPTIONS)
    assert isinstance(claim, Claim)
    assignment = assign(hold, inventory, facts, claim, OPTIONS)
    if isinstance(assignment, Assignment):
        hold = add(hold, "running", Held(pod=running.key, assignment=assignment, phase=Phase.BOUND))
    wanted = read_claim(one_card(msgspec.structs.replace(new, uid="new")), OPTIONS)
    assert isinstance(wanted, Claim)
    cards = explain_cards("n", NodeDevices(inventory, facts, hold)).cards
    has_room = any(
        all(
            each.resources[resource].free >= need if resource in each.resources else not need
            for resource, need in zip(wanted.resources, wanted.units[0].needs, strict=True)
        )
        for each in cards
    )
    fits = isinstance(assign(hold, inventory, facts, wanted, OPTIONS), Assignment)
    event(f"fits: {fits}, others: {bool(hold.pods)}")
    assert fits == has_room
    assert all(use.free <= max(use.capacity - use.used, 0) for each in cards for use in each.resources.values())


def claimed(text: str, options: Options = OPTIONS, **nodes: str) -> PodCards:
    """The explanation of a pod for nodes, both in the notation of `tests/unit/tas/gpu`."""
    found = {name: devices(Node(described)) for name, described in nodes.items()}
    return explain_claim(pod(text, uid="new"), found, options)


def test_a_pod_is_told_for_each_node_which_card_lacks_what() -> None:
    cards = claimed(
        "A{i1 mc600}",
        full="N(0,1) i20 mc2000 disable-card1@hot ; card0: mc500",
        empty="N(0,1) i20 mc2000",
        without="i1",
    )
    assert (cards.pod, cards.refusal) == ("default/new", "")
    fits, full, without = cards.nodes
    assert fits == CardPlacement(node="empty", cards="card0")
    assert full.node == "full"
    assert full.reason == "will not fit: no card has room for container A"
    assert full.refused == {"card0": f"{MILLICORES}: needs 600, 500 free", "card1": "disabled by hot"}
    assert (without.node, without.refused) == ("without", {})
    assert without.reason.startswith("will not fit: no cards: neither label")


def test_a_pod_that_has_cards_comes_first_with_what_it_has() -> None:
    node = Node("N(0,1) i2 t2")
    node.hold, _ = adopt(node.hold, [bound("A{i1 t1}", "card1", "card1:gt0", uid="new")], verified=True)
    other = devices(Node("N(0) i1 t1"))
    cards = explain_claim(pod("A{i1 t1}", uid="new"), {"a": other, "has": devices(node), "z": other}, OPTIONS)
    assert [(each.node, each.held, each.cards, each.tiles) for each in cards.nodes] == [
        ("has", True, "card1", "card1:gt0"),
        ("a", False, "card0", "card0:gt0"),
        ("z", False, "card0", "card0:gt0"),
    ]


def test_a_claim_that_no_node_can_fulfil_is_told_once() -> None:
    cards = claimed("A{i2 mc3}", one="N(0,1) i2 mc2")
    assert cards.nodes == []
    assert cards.refusal.startswith("bad args: container A")
    cards = claimed("A{i1} B{i1 t1}", one="N(0,1) i2 t2")
    assert cards.nodes == []
    assert cards.refusal.startswith("resources conflict: container A requests a card and no")


def test_wishes_about_cards_count_as_they_count_for_the_binder() -> None:
    wishes = "A{i1} allow=card1,card2 deny=card2"
    free = "N(0..2) i3"
    cards = claimed(wishes, one=free)
    assert (cards.asks, cards.ignored) == (True, ["gas-allow", "gas-deny"])
    assert [each.cards for each in cards.nodes] == ["card0"]
    cards = claimed(wishes, Options(denylist=True), one=free)
    assert (cards.ignored, cards.nodes[0].cards) == (["gas-allow"], "card0")
    both = Options(allowlist=True, denylist=True)
    cards = claimed(wishes, both, one=free)
    assert (cards.ignored, cards.nodes[0].cards) == ([], "card1")
    (full,) = claimed(wishes, both, one=f"{free} ; card1: i1").nodes
    assert full.refused == {
        "card0": "not in gas-allow",
        "card1": f"{I915}: needs 1, 0 free",
        "card2": "in gas-deny",
    }
    malformed = claimed("A{i1} allow=x", both, one=free)
    assert (malformed.asks, malformed.nodes) == (True, [])
    assert malformed.refusal.startswith("malformed annotation: pod: annotation gas-allow = ")


def test_the_annotations_of_a_pod_without_gpu_requests_mean_nothing() -> None:
    """Filter lets such a pod pass everywhere, however malformed they are."""
    lists = Options(allowlist=True, denylist=True)
    for text in ("A{} allow=x", "A{} deny=x xelink same=A"):
        asked = pod(text, uid="new")
        assert "gas-allow" in asked.annotations or "gas-deny" in asked.annotations
        cards = explain_claim(asked, {"n": devices(Node("N(0) i1"))}, lists)
        assert cards == PodCards(pod="default/new", refusal="", nodes=[], asks=False)
