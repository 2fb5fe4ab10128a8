"""`onStale: keep`: by which last known values filter rejects a node, and until when."""

from collections.abc import Mapping
from math import inf
from typing import Any

import pytest

from tas.policy.manifest import parse_policy
from tas.policy.policy import Policy, PolicyKey, StrategyType
from tas.policy.rules import State
from tas.samples.freshness import kept_from
from tas.samples.sample import NodeSamples, Scrape
from tas.values.quantity import parse_quantity
from tas.verdict.evaluation import evaluate_policy
from tas.verdict.knowledge import same_meaning
from tas.verdict.verdict import PolicyVerdict, StrategyVerdict

KEY = PolicyKey("default", "p")
NOW = 1_000_000.0
STALE_AFTER = 120.0
HOUR = 3600.0


def policy(*metrics: str, spec: Mapping[str, Any] | None = None, **strategy: Any) -> Policy:
    rules = [{"metricname": metric, "operator": "GreaterThan", "target": 1} for metric in metrics]
    parsed, problems = parse_policy(
        KEY,
        {
            "strategies": {"dontschedule": {"rules": rules, **strategy}, "deschedule": {"rules": rules}},
            **(spec or {}),
        },
    )
    assert not [problem for problem in problems if problem.refused]
    return parsed


def sampled(age: float, ends: float | None = None, **metrics: int) -> Scrape:
    time = NOW - age
    values = {name: parse_quantity(str(value)) for name, value in metrics.items()}
    return Scrape(source="s", measured=time, arrived=time, sequence=1, metrics=values, ends=ends)


def verdict_of(
    of: Policy, *samples: Scrape, since: float = 0.0, before: PolicyVerdict | None = None
) -> tuple[PolicyVerdict, float | None]:
    known: NodeSamples = tuple(sorted(samples, key=lambda scrape: scrape.order))
    return evaluate_policy(
        of,
        uid="u",
        generation=1,
        samples=known,
        labels={},
        default_stale_after=STALE_AFTER,
        before=before,
        now=NOW,
        kept_from=since,
    )


def filtered(of: Policy, *samples: Scrape, since: float = 0.0) -> StrategyVerdict:
    return verdict_of(of, *samples, since=since)[0].strategies[StrategyType.DONTSCHEDULE]


@pytest.mark.parametrize(
    ("age", "value", "rejects", "state"),
    [
        pytest.param(119.0, 2, True, State.VIOLATED, id="fresh"),
        pytest.param(120.0, 2, True, State.UNKNOWN, id="just-stale"),
        pytest.param(3599.0, 2, True, State.UNKNOWN, id="nearly-an-hour"),
        pytest.param(3600.0, 2, False, State.UNKNOWN, id="an-hour"),
        pytest.param(120.0, 1, False, State.UNKNOWN, id="met"),
    ],
)
def test_by_default_the_last_known_value_counts_for_an_hour(
    age: float, value: int, rejects: bool, state: State
) -> None:
    found = filtered(policy("m"), sampled(age, m=value))
    assert (found.rejects, found.state) == (rejects, state)
    assert found.kept_since == (NOW - age if rejects and state is State.UNKNOWN else None)


@pytest.mark.parametrize(
    ("keep", "age", "rejects"),
    [
        ({"keepFor": "10m"}, 599.0, True),
        ({"keepFor": "10m"}, 600.0, False),
        ({"keepFor": "0s"}, 120.0, False),
        ({"keepFor": "90s"}, 119.0, True),  # still fresh
        ({"keepFor": "90s"}, 120.0, False),
        ({"onStale": "pass"}, 120.0, False),
        ({"onStale": "keep"}, 120.0, True),
    ],
)
def test_for_how_long(keep: dict[str, Any], age: float, rejects: bool) -> None:
    assert filtered(policy("m", **keep), sampled(age, m=2)).rejects is rejects


@pytest.mark.parametrize(
    ("operator", "samples", "rejects", "kept_age"),
    [
        pytest.param("anyOf", [sampled(200, a=2), sampled(300, b=0)], True, 200, id="any-one-of-two"),
        pytest.param("anyOf", [sampled(200, a=2), sampled(300, b=2)], True, 300, id="any-both"),
        pytest.param("anyOf", [sampled(200, a=2), sampled(10, b=2)], True, None, id="any-fresh-alone-is-enough"),
        pytest.param("anyOf", [sampled(200, a=0), sampled(10, b=0)], False, None, id="any-both-met"),
        pytest.param("anyOf", [sampled(200, a=2), sampled(10, b=0)], True, 200, id="any-kept-beside-a-fresh-one"),
        pytest.param("allOf", [sampled(200, a=2), sampled(10, b=2)], True, 200, id="all-one-kept"),
        pytest.param("allOf", [sampled(200, a=2), sampled(300, b=2)], True, 300, id="all-both-kept"),
        pytest.param("allOf", [sampled(200, a=2), sampled(10, b=0)], False, None, id="all-one-met"),
        pytest.param("allOf", [sampled(200, a=2)], False, None, id="all-one-never-seen"),
        pytest.param("anyOf", [sampled(200, a=2)], True, 200, id="any-one-never-seen"),
    ],
)
def test_fresh_and_kept_values_combine_by_rule(
    operator: str, samples: list[Scrape], rejects: bool, kept_age: float | None
) -> None:
    found = filtered(policy("a", "b", logicalOperator=operator), *samples)
    assert found.rejects is rejects
    assert found.kept_since == (None if kept_age is None else NOW - kept_age)


@pytest.mark.parametrize(("since", "rejects"), [(NOW - 200.0, True), (NOW - 199.0, False), (inf, False), (-inf, True)])
def test_a_value_of_an_earlier_node_of_this_name_never_counts(since: float, rejects: bool) -> None:
    assert filtered(policy("m"), sampled(200, m=2), since=since).rejects is rejects


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"listed": True, "created": 5.0, "cluster": True}, 5.0),
        ({"listed": True, "created": None, "cluster": True}, inf),
        ({"listed": False, "created": None, "cluster": True}, inf),
        ({"listed": False, "created": None, "cluster": False}, -inf),
        ({"listed": True, "created": 5.0, "cluster": True, "released": 9.0}, 9.0),
        ({"listed": True, "created": 5.0, "cluster": True, "released": 3.0}, 5.0),
        ({"listed": False, "created": None, "cluster": False, "released": 9.0}, 9.0),
    ],
)
def test_since_when_a_value_is_one_of_this_node(facts: dict[str, Any], expected: float) -> None:
    assert kept_from(**facts) == expected


def test_a_series_that_has_ended_is_silent_and_not_gone() -> None:
    found = filtered(policy("m"), sampled(30, ends=NOW - 10, m=2))
    assert (found.state, found.rejects, found.kept_since) == (State.UNKNOWN, True, NOW - 30)


def test_labels_never_see_kept_values() -> None:
    """The hard case: the label was set by the value that is now kept."""
    fresh, _ = verdict_of(policy("m"), sampled(10, m=2))
    later, _ = evaluate_policy(
        policy("m"),
        uid="u",
        generation=1,
        samples=(sampled(10, m=2),),
        labels={},
        default_stale_after=STALE_AFTER,
        before=fresh,
        now=NOW + 200,
        kept_from=0.0,
    )
    assert later.strategies[StrategyType.DONTSCHEDULE].rejects
    descheduled = later.strategies[StrategyType.DESCHEDULE]
    assert (descheduled.state, descheduled.rejects, descheduled.kept_since) == (State.UNKNOWN, False, None)
    assert [label.desired.kind.value for label in descheduled.labels.values()] == ["hold"]


def test_each_end_is_a_deadline() -> None:
    of = policy("a", "b", keepFor="10m")
    _, due = verdict_of(of, sampled(200, a=2), sampled(300, b=2))
    assert due == NOW - 300 + 600
    _, due = verdict_of(of, sampled(10, a=2))
    assert due == NOW - 10 + STALE_AFTER


@pytest.mark.parametrize("silent", ["suspend", "dryRun"])
def test_a_policy_that_is_not_in_force_rejects_nothing(silent: str) -> None:
    assert not filtered(policy("m", spec={silent: True}), sampled(200, m=2)).rejects


def test_a_node_that_the_policy_does_not_select_is_not_rejected() -> None:
    for selector, rejects in (({"matchLabels": {"pool": "x"}}, False), ({}, True)):
        assert filtered(policy("m", spec={"nodeSelector": selector}), sampled(200, m=2)).rejects is rejects


def test_the_verdict_is_written_when_a_rejection_begins_to_be_by_kept_values() -> None:
    of = policy("a", "b")
    (one, _), (other, _) = verdict_of(of, sampled(200, a=2)), verdict_of(of, sampled(300, a=2))
    assert not same_meaning(one, other)
    assert same_meaning(one, verdict_of(of, sampled(200, a=3))[0])
