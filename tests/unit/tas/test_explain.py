"""What is explained first; that rules are told as they are judged, `test_view` shows against the view."""

from typing import Any

import pytest

from tas.explain import PolicyNodes, explain_policy
from tas.manifest import parse_policy
from tas.policy import PolicyKey
from tas.quantity import parse_quantity
from tas.sample import Scrape
from tas.view import View

KEY = PolicyKey("default", "p")
NOW = 1000.0


def explained(*, limit: int | None = None, **extra: Any) -> PolicyNodes:
    """A policy for four nodes: `a` and `d` meet it, `b` is unknown, `c` violates it."""
    rule = {"metricname": "m", "operator": "GreaterThan", "target": 40}
    policy, problems = parse_policy(KEY, {"strategies": {"dontschedule": {"rules": [rule], **extra}}})
    assert not problems
    view = View()
    view.set_policy(policy, NOW)
    view.set_labels("b", {})
    for node, value in {"a": "1", "c": "50", "d": "2"}.items():
        metrics = {"m": parse_quantity(value)}
        view.add_samples(node, [Scrape(source="s", measured=NOW, arrived=NOW, sequence=1, metrics=metrics)], NOW)
    return explain_policy(view, KEY, NOW, limit=limit)


@pytest.mark.parametrize(("on_stale", "nodes"), [("pass", "cabd"), ("fail", "cbad")])
def test_nodes_that_are_rejected_come_first(on_stale: str, nodes: str) -> None:
    assert list(explained(onStale=on_stale).nodes) == list(nodes)


def test_of_many_nodes_the_first_are_told_and_all_counted() -> None:
    found = explained(limit=1)
    assert (list(found.nodes), found.total, found.known) == (["c"], 4, True)


def test_a_policy_that_does_not_exist_is_not_known() -> None:
    assert explain_policy(View(), KEY, NOW) == PolicyNodes(policy="default/p", known=False, total=0, nodes={})
