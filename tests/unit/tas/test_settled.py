"""What is settled; that nothing is by mistake, the histories of `test_view` show."""

from typing import Any

import msgspec
import pytest

from tas.manifest import parse_policy
from tas.policy import Policy, PolicyKey, StrategyType
from tas.quantity import parse_quantity
from tas.sample import Scrape
from tas.settled import Settled
from tas.verdict import PolicyVerdict, evaluate_policy
from tas.view import View

KEY = PolicyKey("default", "p")
LIMIT = {"metricname": "m", "operator": "GreaterThan", "target": 40}


def known(**strategies: dict[str, Any]) -> tuple[View, Policy]:
    """A view of nodes with values around the limit, one without any, and a policy."""
    policy, problems = parse_policy(KEY, {"strategies": strategies})
    assert not problems
    view = View(verdicts=True)
    for node, value in {"over": "50", "under": "30"}.items():
        metrics = {"m": parse_quantity(value)}
        view.add_samples(node, [Scrape(source="s", measured=1.0, arrived=1.0, sequence=1, metrics=metrics)], 1.0)
    view.set_labels("silent", {})
    view.set_policy(policy, 1.0)
    return view, policy


def verdict_of(view: View, policy: Policy, node: str, *, before: PolicyVerdict | None = None, now: float) -> Any:
    return evaluate_policy(
        policy,
        uid="u",
        generation=1,
        samples=view.samples(node),
        labels=view.labels(node),
        stale_after=view.default_stale_after,
        before=before,
        now=now,
    )[0]


@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [
        pytest.param({"dontschedule": {"rules": [LIMIT]}}, {"over", "under", "silent"}, id="dontschedule"),
        # Whether there was a sample by now, and so whether `sampled` is right, a state that is unknown does not tell.
        pytest.param({"deschedule": {"rules": [LIMIT]}}, {"over", "under"}, id="deschedule"),
        pytest.param({"labeling": {"rules": [LIMIT | {"labels": ["a=1"]}]}}, {"under"}, id="labeling"),
        pytest.param({"deschedule": {"rules": [LIMIT], "for": "9s"}}, {"under"}, id="for-is-waited-for"),
        pytest.param({"deschedule": {"rules": [LIMIT], "clearFor": "9s"}}, {"over"}, id="clearFor-is-waited-for"),
    ],
)
def test_what_is_sure_is_settled(strategy: dict[str, Any], nodes: set[str]) -> None:
    view, policy = known(**strategy)
    settled = Settled(policy, uid="u", generation=1, states=view.states(KEY))
    verdicts = {node: verdict_of(view, policy, node, now=2.0) for node in view.nodes}
    assert {node for node, verdict in verdicts.items() if settled.is_settled(node, verdict, 3.0)} == nodes


def test_what_has_become_stale_meanwhile_is_not() -> None:
    view, policy = known(deschedule={"rules": [LIMIT]})
    verdict = verdict_of(view, policy, "over", now=2.0)
    view.advance(200.0)
    assert not Settled(policy, uid="u", generation=1, states=view.states(KEY)).is_settled("over", verdict, 200.0)


@pytest.mark.parametrize("other", [{"uid": "v"}, {"generation": 2}])
def test_a_verdict_of_another_policy_or_generation_is_not(other: dict[str, Any]) -> None:
    view, policy = known(dontschedule={"rules": [LIMIT]})
    verdict = verdict_of(view, policy, "over", now=2.0)
    identity: dict[str, Any] = {"uid": "u", "generation": 1} | other
    assert not Settled(policy, **identity, states=view.states(KEY)).is_settled("over", verdict, 3.0)


def test_no_verdict_is_not() -> None:
    view, policy = known(dontschedule={"rules": [LIMIT]})
    assert not Settled(policy, uid="u", generation=1, states=view.states(KEY)).is_settled("over", None, 3.0)


def test_a_verdict_that_says_something_else_of_filter_is_not() -> None:
    view, policy = known(dontschedule={"rules": [LIMIT], "onStale": "fail"})
    settled = Settled(policy, uid="u", generation=1, states=view.states(KEY))
    for node, rejects in {"over": True, "under": False, "silent": True}.items():
        verdict = verdict_of(view, policy, node, now=2.0)
        strategy = verdict.strategies[StrategyType.DONTSCHEDULE]
        assert strategy.rejects is rejects
        assert settled.is_settled(node, verdict, 3.0)
        other = {StrategyType.DONTSCHEDULE: msgspec.structs.replace(strategy, rejects=not rejects)}
        assert not settled.is_settled(node, msgspec.structs.replace(verdict, strategies=other), 3.0)
