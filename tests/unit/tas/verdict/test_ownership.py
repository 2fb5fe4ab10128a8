"""Which policy owns the labels of a name: the oldest in force, for each strategy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.policy.manifest import parse_policy
from tas.policy.policy import LABEL_PREFIX, PolicyKey, StrategyType
from tas.verdict.ownership import LABEL_STRATEGIES, Claim, Claims, claim_of, owner_of, strategy_of

A, B, C = (PolicyKey(namespace, "gold") for namespace in "abc")
DESCHEDULE, LABELING = LABEL_STRATEGIES
RULES = {"rules": [{"metricname": "m", "operator": "GreaterThan", "target": 1, "labels": ["x=1"]}]}


def claim(created: float | None, *strategies: StrategyType) -> Claim:
    return Claim("u", created, frozenset(strategies))


@pytest.mark.parametrize(
    ("claims", "owner"),
    [
        pytest.param({}, None, id="no policy"),
        pytest.param({B: claim(1.0, DESCHEDULE)}, B, id="one"),
        pytest.param({A: claim(2.0, DESCHEDULE), B: claim(1.0, DESCHEDULE)}, B, id="the older"),
        pytest.param({A: claim(1.0, DESCHEDULE), B: claim(1.0, DESCHEDULE)}, A, id="as old: by namespace"),
        pytest.param({B: claim(None, DESCHEDULE), A: claim(None, DESCHEDULE)}, A, id="of a directory: by namespace"),
        pytest.param({A: claim(1.0, DESCHEDULE), B: claim(None, DESCHEDULE)}, B, id="without a time before one with"),
        pytest.param({A: claim(1.0, LABELING), B: claim(2.0, DESCHEDULE)}, B, id="the older has another strategy"),
        pytest.param({A: claim(1.0), B: claim(2.0, DESCHEDULE)}, B, id="the older is suspended"),
        pytest.param({A: claim(1.0), B: claim(2.0)}, None, id="all are suspended"),
        pytest.param({A: claim(1.0, LABELING)}, None, id="none with the strategy"),
        pytest.param({A: claim(1.0, DESCHEDULE), B: None}, None, id="one that cannot be read"),
        pytest.param({A: claim(3.0, DESCHEDULE), B: claim(2.0, DESCHEDULE), C: claim(1.0, LABELING)}, B, id="of three"),
    ],
)
def test_facts_D39_the_oldest_policy_in_force_owns_a_label(
    claims: dict[PolicyKey, Claim | None], owner: PolicyKey | None
) -> None:
    assert owner_of(DESCHEDULE, claims) == owner
    assert owner_of(DESCHEDULE, dict(reversed(claims.items()))) == owner


@pytest.mark.parametrize(
    ("spec", "strategies"),
    [
        ({"strategies": {"deschedule": RULES, "labeling": RULES}}, {DESCHEDULE, LABELING}),
        ({"strategies": {"deschedule": RULES, "dontschedule": RULES}}, {DESCHEDULE}),
        ({"strategies": {"labeling": RULES, "deschedule": {"rules": []}}}, {LABELING}),
        ({"strategies": {"deschedule": {"rules": [1]}}}, {DESCHEDULE}),
        ({"strategies": {"deschedule": RULES}, "suspend": True}, set()),
        ({"strategies": {"deschedule": RULES}, "dryRun": True}, set()),
        ({"strategies": {}}, set()),
    ],
    ids=["both", "deschedule", "labeling, and no rules", "unreadable", "suspended", "dry-run", "none"],
)
def test_a_policy_claims_the_labels_of_its_strategies_while_it_is_in_force(
    spec: object, strategies: set[StrategyType]
) -> None:
    policy, _ = parse_policy(A, spec)
    assert claim_of(policy, uid="u", created=1.0) == Claim("u", 1.0, frozenset(strategies))


@pytest.mark.parametrize(
    ("label", "strategy"), [("gold", DESCHEDULE), (f"{LABEL_PREFIX}gold/x", LABELING), (LABEL_PREFIX, LABELING)]
)
def test_a_label_belongs_to_a_strategy(label: str, strategy: StrategyType) -> None:
    assert strategy_of(label) is strategy


def test_claims_report_changes_and_forget_deleted_policies() -> None:
    claims, other = Claims(), PolicyKey("a", "silver")
    assert claims.set(A, claim(1.0, DESCHEDULE))
    assert not claims.set(A, claim(1.0, DESCHEDULE))
    assert claims.owns(A, "u", DESCHEDULE)
    assert not claims.owns(A, "another", DESCHEDULE)
    assert not claims.owns(B, "u", DESCHEDULE)
    assert not claims.owns(other, "u", DESCHEDULE)
    assert claims.set(B, None)
    assert not claims.owns(A, "u", DESCHEDULE)
    assert claims.named("gold") == {A, B}
    assert claims.drop(B)
    assert not claims.drop(B)
    assert not claims.drop(other)
    assert claims.owns(A, "u", DESCHEDULE)
    claims.clear()
    assert claims.named("gold") == frozenset()
    assert not claims.owns(A, "u", DESCHEDULE)


claims_of_all = st.dictionaries(
    st.sampled_from([A, B, C]),
    st.builds(
        Claim,
        st.just("u"),
        st.none() | st.sampled_from([1.0, 2.0]),
        st.frozensets(st.sampled_from(LABEL_STRATEGIES)),
    ),
)


@given(claims_of_all, st.sampled_from([A, B, C]))
def test_a_policy_created_anew_owns_nothing_that_another_claims(
    claims: dict[PolicyKey, Claim | None], created: PolicyKey
) -> None:
    youngest = {key: each for key, each in claims.items() if key != created} | {created: claim(3.0, DESCHEDULE)}
    before = owner_of(DESCHEDULE, {key: each for key, each in claims.items() if key != created})
    assert owner_of(DESCHEDULE, youngest) == (before or created)
