"""The view of the nodes for an extension."""

from typing import Any

import pytest

from tas.extender.node_view import NodeView
from tas.gpu.card_view import NodeCards
from tas.samples.sample import Scrape
from tas.values.quantity import Quantity
from tas.view.view import View
from tests.unit.tas.gpu.notation import Node


def scrape(time: float, source: str = "s", **metrics: int) -> Scrape:
    values = {name: Quantity(value) for name, value in metrics.items()}
    return Scrape(source=source, measured=time, arrived=time, sequence=int(time), metrics=values)


def test_a_metric_is_updated_from_its_first_use_on() -> None:
    view = View(default_stale_after=100.0)
    nodes = NodeView(view)
    load = nodes.metric("load")
    view.add_samples("a", [scrape(10.0, load=1)], 10.0)
    view.add_samples("b", [scrape(50.0, load=2, other=3)], 50.0)
    nodes.advance(50.0)

    assert dict(load) == {"a": 1, "b": 2}
    assert dict(nodes.metric("other")) == {"b": 3}
    assert nodes.metric("load") is load
    view.add_samples("a", [scrape(60.0, load=5)], 60.0)
    assert load["a"] == 5
    nodes.advance(151.0)
    assert dict(load) == {"a": 5}
    view.drop_samples("a")
    assert dict(load) == {}


def test_a_value_that_was_stale_before_the_first_use_is_unknown() -> None:
    view = View(default_stale_after=100.0)
    view.add_samples("old", [scrape(10.0, load=1)], 10.0)
    view.add_samples("new", [scrape(150.0, load=2)], 150.0)
    nodes = NodeView(view)
    load = nodes.metric("load")

    nodes.advance(160.0)

    assert dict(load) == {"new": 2}
    assert dict(nodes.metric("load", stale_after=5.0)) == {}
    assert dict(nodes.metric("load", stale_after=1000.0)) == {"old": 1, "new": 2}


def test_a_source_may_be_named() -> None:
    view = View()
    view.add_samples("a", [scrape(10.0, "one", load=1)], 10.0)
    view.add_samples("a", [scrape(11.0, "two", load=2)], 11.0)
    nodes = NodeView(view)
    nodes.advance(12.0)

    assert dict(nodes.metric("load")) == {"a": 2}
    assert dict(nodes.metric("load", source="one")) == {"a": 1}


def test_names_and_labels() -> None:
    view = View()
    view.add_samples("a", [scrape(10.0, load=1)], 10.0)
    view.set_labels("b", {"zone": "z"})
    nodes = NodeView(view)

    assert set(nodes.names) == {"a", "b"}
    assert (nodes.labels("a"), nodes.labels("b")) == (None, {"zone": "z"})


def test_an_extension_cannot_change_the_view() -> None:
    load: Any = NodeView(View()).metric("load")

    with pytest.raises(TypeError):
        load["a"] = 1


def test_the_cards_of_nodes_are_followed_only_if_an_extension_needs_them() -> None:
    assert NodeView(View()).followed_cards is None
    nodes = NodeView(View())
    cards = nodes.cards()
    assert nodes.cards() is cards
    followed = nodes.followed_cards
    assert followed is not None
    node = Node("N(0) i1")
    followed.set_inventory("a", "u", node.inventory, node.facts)
    followed.set_hold("a", "u", node.hold)
    assert dict(cards) == {"a": NodeCards(node.inventory, node.facts, node.hold, 1, "u")}
