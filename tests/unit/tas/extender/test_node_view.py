"""What an extension sees of the nodes."""

from typing import Any

import pytest

from tas.extender.node_view import NodeView
from tas.quantity import Quantity
from tas.sample import Scrape
from tas.view import View


def scrape(time: float, source: str = "s", **metrics: int) -> Scrape:
    values = {name: Quantity(value) for name, value in metrics.items()}
    return Scrape(source=source, measured=time, arrived=time, sequence=int(time), metrics=values)


def test_a_metric_follows_what_happens_once_it_was_asked_for() -> None:
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


def test_what_was_stale_before_it_was_asked_for_is_unknown_from_the_first_question_on() -> None:
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


def test_nobody_changes_the_view_by_what_it_is_shown() -> None:
    load: Any = NodeView(View()).metric("load")

    with pytest.raises(TypeError):
        load["a"] = 1
