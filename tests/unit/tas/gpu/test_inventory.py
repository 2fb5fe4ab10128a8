"""What the labels and the amounts of a node say about its cards."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.gpu.inventory import Card, Inventory, Link, NumaNode, read_inventory
from tas.gpu.labels import MAX_PARTS
from tas.gpu.names import MAX_CARDS
from tests.unit.growth import grows_linearly
from tests.unit.tas.gpu.notation import GPU, Node, split_label

I915 = f"{GPU}i915"


def inventory(text: str) -> Inventory:
    return Node(text).inventory


def problems(text: str) -> list[str]:
    return [str(each) for each in inventory(text).problems]


def test_each_card_has_an_equal_share_rounded_down() -> None:
    found = inventory("numbers=10.2 i5 mc2001 mem16 t3 mon1 foo1 xe0")
    capacity = {I915: 2, f"{GPU}millicores": 1000, f"{GPU}memory.max": 8 * 10**9, f"{GPU}tiles": 1}
    assert found == Inventory(
        cards=(Card(number=2, capacity=capacity), Card(number=10, capacity=capacity)),
        node={f"{GPU}i915_monitoring": 1},
    )
    assert [card.name for card in found.cards] == ["card2", "card10"]


def test_amounts_of_others_are_ignored_and_quantities_are_exact() -> None:
    allocatable = {"cpu": "x", f"{GPU}memory.max": "16Gi", I915: "1e1"}
    found = read_inventory({f"{GPU}gpu-numbers": "0.1"}, allocatable)
    assert found.cards[0].capacity == {f"{GPU}memory.max": 8 * 2**30, I915: 5}
    assert found.problems == ()


@pytest.mark.parametrize("text", ["1.5", "-1", "x", "1e30", "9223372036854775808", "1" * 1_000_000])
def test_an_amount_that_cannot_be_read_is_missing_and_no_other(text: str) -> None:
    found = read_inventory({f"{GPU}gpu-numbers": "0"}, {I915: "1", f"{GPU}millicores": text})
    assert found.cards == (Card(number=0, capacity={I915: 1}),)
    (problem,) = found.problems
    assert problem.field == "allocatable gpu.intel.com/millicores"


def test_the_largest_amount_is_read() -> None:
    found = read_inventory({f"{GPU}gpu-numbers": "0"}, {I915: "9223372036854775807"})
    assert found.cards[0].capacity == {I915: 2**63 - 1}


def test_cards_of_two_drivers_are_not_given_away() -> None:
    found = inventory("N(0,1) i2 xe2 mc10")
    assert found.cards[0].capacity == {f"{GPU}millicores": 5}
    assert "no label says which driver a card has" in found.problems[0].reason


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("N(0,1)", [0, 1]),
        ("numbers=0.1 numbers2=Z0.3", [0, 3, 10]),
        ("cards=card3.card1", [1, 3]),
        ("numbers= cards=card3", [3]),
        ("numbers=5 cards=card3", [5]),
        ("", []),
        ("numbers=999999", [999999]),
    ],
)
def test_the_list_of_cards(text: str, cards: list[int]) -> None:
    found = inventory(text)
    assert [card.number for card in found.cards] == cards
    assert found.problems == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("numbers=0.1.0", "gpu.intel.com/gpu-numbers = '0.1.0': card0 is there twice"),
        ("numbers=0..1", "gpu.intel.com/gpu-numbers = '0..1': '' is no number of a card"),
        ("numbers=0.01", "gpu.intel.com/gpu-numbers = '0.01': '01' is no number of a card"),
        ("numbers=0.-1", "gpu.intel.com/gpu-numbers = '0.-1': '-1' is no number of a card"),
        ("numbers=1000000", "gpu.intel.com/gpu-numbers = '1000000': '1000000' is no number of a card"),
        ("numbers=0.\u0661", "gpu.intel.com/gpu-numbers = '0.\u0661': '\u0661' is no number of a card"),
        ("cards=card0.gpu1", "gpu.intel.com/cards = 'card0.gpu1': 'gpu1' is no name of a card"),
        ("cards=card0.card0", "gpu.intel.com/cards = 'card0.card0': card0 is there twice"),
    ],
)
def test_a_list_of_cards_that_cannot_be_read_is_reported_and_no_card_is_given_away(text: str, problem: str) -> None:
    assert problems(f"{text} i4") == [problem]
    assert inventory(f"{text} i4").cards == ()


def test_the_other_list_counts_if_one_cannot_be_read() -> None:
    found = inventory("numbers=0.x cards=card0.card1 i2")
    assert [card.number for card in found.cards] == [0, 1]
    assert len(found.problems) == 1


@pytest.mark.parametrize(("count", "read"), [(500, 500), (MAX_CARDS, MAX_CARDS), (MAX_CARDS + 1, 0)])
def test_many_cards(count: int, read: int) -> None:
    labels = split_label(f"{GPU}gpu-numbers", ".".join(map(str, range(count))))
    assert len(labels) < MAX_PARTS
    found = read_inventory(labels, {I915: "10000"})
    assert len(found.cards) == read
    assert all(card.capacity == {I915: 10000 // count} for card in found.cards)
    assert [each.reason for each in found.problems] == ([] if read else ["513 cards: at most 512 are read"])


def test_more_tiles_than_a_card_can_have_are_no_tiles() -> None:
    assert inventory("N(0,1) i2 t128").cards[0].capacity == {I915: 1, f"{GPU}tiles": 64}
    found = inventory(f"N(0,1) i2 t{10**18}")
    assert found.cards[0].capacity == {I915: 1}
    assert [each.field for each in found.problems] == ["allocatable gpu.intel.com/tiles"]


def test_groups_links_and_numa_nodes() -> None:
    found = inventory("numbers=1.10.2.3 i4 t8 groups=1.2_10.3 links=1.0-2.1_3.1-0.0_1.0-2.1 numa=1-1.10_0-3.2")
    assert found.pci_groups == ((1, 2), (3, 10))
    assert found.links == (Link(2, 0, 3, 1), Link(10, 1, 1, 0))
    assert found.numa == (NumaNode(1, (1, 10)), NumaNode(0, (2, 3)))
    assert found.problems == ()


@pytest.mark.parametrize(
    ("text", "links", "problem"),
    [
        ("links=0.0-5.0_0.1-1.1", [(0, 1, 1, 1)], "= '0.0-5.0': the node has 3 cards"),
        ("links=3.0-0.0_0.1-1.1", [(0, 1, 1, 1)], "= '3.0-0.0': the node has 3 cards"),
        ("links=0.4-1.0_0.1-1.1", [(0, 1, 1, 1)], "= '0.4-1.0': the cards have no gt4"),
        ("links=0.0-1.4_0.1-1.1", [(0, 1, 1, 1)], "= '0.0-1.4': the cards have no gt4"),
        ("links=0.0-0.1_0.1-1.1", [(0, 1, 1, 1)], "= '0.0-0.1': connects a card with itself"),
        ("links=0.0-1.0-2.0", [], "= '0.0-1.0-2.0': '0.0-1.0-2.0' is no link such as 0.0-1.0"),
        ("links=0.0-1.0_", [], "= '0.0-1.0_': '' is no link such as 0.0-1.0"),
    ],
)
def test_a_link_of_what_the_node_does_not_have_is_ignored_and_reported(
    text: str, links: list[tuple[int, ...]], problem: str
) -> None:
    assert list(inventory(f"N(0..2) i3 t12 {text}").links) == links
    assert problems(f"N(0..2) i3 t12 {text}") == [f"gpu.intel.com/xe-links {problem}"]


def test_without_a_number_of_tiles_a_link_has_any_tile_that_a_card_can_have() -> None:
    assert inventory("N(0,1) i2 links=0.63-1.63_0.64-1.0").links == (Link(0, 63, 1, 63),)


@pytest.mark.parametrize(
    ("text", "numa", "problem"),
    [
        ("numa=0-0.7_1-1", [(0, (0,)), (1, (1,))], "= '0-0.7': the node has no card7"),
        ("numa=0-0_1-0", [], "= '0-0_1-0': card0 is there twice"),
        ("numa=0-0_0-1", [], "= '0-0_0-1': a NUMA node is there twice"),
        ("numa=0-0_1-", [], "= '0-0_1-': '' is no number of a card"),
        ("numa=0-0_x-1", [], "= '0-0_x-1': 'x-1' is no NUMA node with its cards such as 0-0.1"),
    ],
)
def test_a_numa_map_that_cannot_be_read_is_missing(text: str, numa: list[object], problem: str) -> None:
    found = inventory(f"N(0,1) i2 {text}")
    assert list(found.numa) == numa
    assert len(found.cards) == 2
    assert problems(f"N(0,1) i2 {text}") == [f"gpu.intel.com/numa-gpu-map {problem}"]


def test_groups_that_cannot_be_read_are_missing() -> None:
    found = inventory("N(0,1) i2 groups=0.1_x")
    assert found.pci_groups == ()
    assert len(found.cards) == 2
    assert len(found.problems) == 1


names = st.sampled_from(["gpu-numbers", "gpu-numbers2", "cards", "pci-groups", "xe-links", "xe-links2", "numa-gpu-map"])
texts = st.text("01239.-_Zxcard", max_size=20)


@given(st.dictionaries(names.map(GPU.__add__), texts), st.dictionaries(st.sampled_from([I915]), texts))
def test_any_labels_are_read_or_reported(labels: dict[str, str], allocatable: dict[str, str]) -> None:
    found = read_inventory(labels, allocatable)
    numbers = {card.number for card in found.cards}
    assert all(set(node.cards) <= numbers for node in found.numa)
    assert all({link.card, link.partner} <= numbers for link in found.links)
    assert all(each.field.removeprefix("allocatable ") in {**labels, **allocatable} for each in found.problems)


@pytest.mark.parametrize("name", ["gpu-numbers", "xe-links", "numa-gpu-map", "pci-groups"])
@pytest.mark.parametrize("item", ["0", ".", "_", "-", "0.", "0-0_", "9" * 63])
def test_the_time_grows_with_the_length_of_a_label(name: str, item: str) -> None:
    def prepare(size: int) -> object:
        labels = split_label(GPU + name, (item * size)[:size])
        return lambda: read_inventory(labels | {f"{GPU}cards": "card0"}, {I915: "1"})

    assert grows_linearly(prepare, 4000)  # type: ignore[arg-type]


def test_what_is_known_of_a_node_can_be_stored_as_json() -> None:
    node = Node(
        "N(0..3) i4 t8 mon1 links=0.0-1.0 numa=0-0.1_1-2.x groups=0.1 disable-card1 prefer-gpu=card1 disable-x "
        "tile-deschedule-card0_gt1 tile-preferred-card2=gt1 ; card0: i1 gt0 ; card1: i1 !"
    )
    for value in (node.inventory, node.facts, *node.hold.pods.values()):
        assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value
    assert node.inventory.problems
    assert node.facts.problems
