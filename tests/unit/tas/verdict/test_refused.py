"""Refused labels as problems of the policy that owns them."""

from tas.policy.policy import MARK_PREFIX, PolicyKey, StrategyType
from tas.verdict.ownership import Claim
from tas.verdict.refused import RefusedLabel, refused_problems

OLDER, YOUNGER = PolicyKey("a", "demo"), PolicyKey("b", "demo")
CARD = "telemetry.aware.scheduling.demo/card"


def claim(created: float, *strategies: StrategyType) -> Claim:
    return Claim("u", created, frozenset(strategies))


def test_each_refused_label_is_a_problem_of_its_owner_only() -> None:
    claims = {OLDER: claim(1, StrategyType.DESCHEDULE), YOUNGER: claim(2, *StrategyType)}
    refused = [
        RefusedLabel(label="demo", value="violating", reason="why", count=5, nodes=("n1", "n2", "n3")),
        RefusedLabel(label=CARD, reason="no", count=1, nodes=("node-1",)),
    ]
    (first,) = refused_problems(OLDER, claims, refused)
    assert (first.field, first.value, first.refused) == ("spec.strategies.deschedule", "demo=violating", False)
    assert first.reason == "the API server refuses the label on 5 nodes (n1, n2, n3 and 2 more): why"
    (second,) = refused_problems(YOUNGER, claims, refused)
    assert (second.field, second.value) == ("spec.strategies.labeling", CARD)
    assert second.reason == "the API server refuses the removal of the label on 1 node (node-1): no"


def test_a_refused_mark_is_a_problem_of_the_owner_of_the_label_that_it_repeats() -> None:
    claims = {OLDER: claim(1, StrategyType.DESCHEDULE), YOUNGER: claim(2, *StrategyType)}
    refused = [
        RefusedLabel(label=f"taint {MARK_PREFIX}demo", value="NoSchedule", reason="why", count=2, nodes=("a", "b")),
        RefusedLabel(label=f"condition {MARK_PREFIX}demo", reason="no", count=1, nodes=("a",)),
    ]
    taint, condition = refused_problems(OLDER, claims, refused)
    assert taint.value == "taint telemetry.aware.scheduling/demo=NoSchedule"
    assert taint.reason == "the API server refuses the taint on 2 nodes (a, b): why"
    assert condition.reason == "the API server refuses the removal of the condition on 1 node (a): no"
    assert taint.field == condition.field == "spec.strategies.deschedule"
    assert not list(refused_problems(YOUNGER, claims, refused))
