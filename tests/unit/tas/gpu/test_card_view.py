"""What is known of the cards of nodes."""

from tas.gpu.card_view import CardView, NodeCards
from tas.gpu.hold import EMPTY
from tests.unit.tas.gpu.notation import Node


def test_a_node_is_known_while_inventory_and_hold_are_known() -> None:
    view, node, used = CardView(), Node("N(0,1) i2"), Node("N(0) i1 ; card0: i1").hold
    nodes = view.nodes
    view.set_inventory("a", "1", node.inventory, node.facts)
    view.set_hold("b", "1", EMPTY)
    assert dict(nodes) == {}

    view.set_hold("a", "1", EMPTY)
    assert dict(nodes) == {"a": NodeCards(node.inventory, node.facts, EMPTY, 1, "1")}
    view.set_hold("a", "1", used)
    assert (nodes["a"].hold, nodes["a"].version) == (used, 2)

    view.drop_inventory("a")
    assert dict(nodes) == {}
    view.set_inventory("a", "1", node.inventory, node.facts)
    assert nodes["a"].hold == used
    view.drop_hold("a")
    view.drop_hold("a")
    assert dict(nodes) == {}


def test_with_a_new_epoch_of_the_holds_no_node_is_known() -> None:
    view, node = CardView(), Node("N(0) i1")
    for name in ("a", "b"):
        view.set_inventory(name, "1", node.inventory, node.facts)
        view.set_hold(name, "1", EMPTY)
    view.drop_holds()
    assert dict(view.nodes) == {}
    view.set_hold("b", "1", EMPTY)
    assert list(view.nodes) == ["b"]


def test_a_hold_of_another_node_of_the_name_does_not_count() -> None:
    view, node = CardView(), Node("N(0) i1")
    view.set_inventory("a", "1", node.inventory, node.facts)
    view.set_hold("a", "1", EMPTY)
    view.set_inventory("a", "2", node.inventory, node.facts)
    assert dict(view.nodes) == {}
    view.set_hold("a", "2", EMPTY)
    assert list(view.nodes) == ["a"]
