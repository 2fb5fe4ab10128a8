"""How many nodes may have labels, and which breakers must admit a node."""

from typing import Any

import pytest

from tas.enforcing.breaker import LabelledNodes
from tas.enforcing.limits import DefaultLimit, KeptLimits, Limit, Limits, limit_of
from tas.policy.manifest import parse_policy
from tas.policy.policy import LABEL_PREFIX, BreakerLimits, Policy, PolicyKey
from tas.policy.selector import parse_selector
from tas.verdict.freeze import ALL

P, OURS = "p", {"p": "violating"}
DEFAULT = DefaultLimit(30, 10)


def policy(namespace: str = "a", **fields: Any) -> Policy:
    return Policy(key=PolicyKey(namespace, P), strategies={}, **fields)


def labelling(namespace: str, nodes: int | None, *kinds: str, **spec: Any) -> Policy:
    """A policy with these strategies, and the limit `nodes`."""
    rule = {"metricname": "m", "operator": "GreaterThan", "target": 1, "labels": ["k=v"]}
    limit = {} if nodes is None else {"breaker": {"maxNodes": nodes}}
    strategies = {kind: {"rules": [rule]} for kind in kinds}
    return parse_policy(PolicyKey(namespace, P), {"strategies": strategies, **limit, **spec})[0]


def limits_of(
    *policies: Policy, default: DefaultLimit | None = DEFAULT, over_all: DefaultLimit | None = None
) -> Limits:
    limits = Limits(default, over_all)
    for each in policies:
        limits.take_in(each.key, each)
    return limits


def seen_nodes(count: int) -> LabelledNodes:
    seen = LabelledNodes()
    for number in range(count):
        seen.take_in(f"n{number}", 1, {"pool": "a"} if number < 40 else {})
    return seen


@pytest.mark.parametrize(
    ("own", "selected", "limit"),
    [
        (None, 3, 10),
        (None, 100, 30),
        (BreakerLimits(max_nodes=4), 100, 4),
        (BreakerLimits(max_percent=5), 100, 5),
        (BreakerLimits(max_percent=5), 3, 1),
        (BreakerLimits(max_nodes=4, max_percent=5), 100, 4),
        (BreakerLimits(max_nodes=40, max_percent=5), 100, 5),
    ],
)
def test_the_lower_own_limit_counts_and_the_larger_part_of_the_default(
    own: BreakerLimits | None, selected: int, limit: int
) -> None:
    assert limit_of(own, DefaultLimit(30, 10), selected) == limit


def test_without_a_default_only_a_policy_has_a_limit() -> None:
    assert limit_of(None, None, 100) is None
    assert limit_of(BreakerLimits(max_nodes=4), None, 100) == 4


@pytest.mark.parametrize(
    ("policies", "limit"),
    [
        ((), Limit(30, 100)),
        ((policy(),), Limit(30, 100)),
        ((policy(breaker=BreakerLimits(max_nodes=4)),), Limit(4, 100)),
        ((policy(node_selector=parse_selector({"matchLabels": {"pool": "a"}})),), Limit(12, 40)),
        ((policy(breaker=BreakerLimits(max_nodes=4)), policy("b")), Limit(4, 100)),
        ((policy(breaker=BreakerLimits(max_nodes=4), suspend=True), policy("b")), Limit(30, 100)),
        ((policy(breaker=BreakerLimits(max_nodes=4), dry_run=True),), Limit(30, 100)),
    ],
)
def test_the_lowest_limit_of_the_policies_of_a_name_that_may_label_counts(
    policies: tuple[Policy, ...], limit: Limit
) -> None:
    assert limits_of(*policies).of(P, seen_nodes(100)) == limit


OLD, NEW = 1000.0, 2000.0


@pytest.mark.parametrize(
    ("policies", "limit"),
    [
        pytest.param([(labelling("a", 4, "deschedule"), NEW), (labelling("b", 8, "deschedule"), OLD)], 8, id="older"),
        pytest.param([(labelling("a", 8, "deschedule"), OLD), (labelling("b", 4, "deschedule"), OLD)], 8, id="equal"),
        pytest.param([(labelling("a", 4, "deschedule"), OLD), (labelling("b", 8, "deschedule"), None)], 8, id="no age"),
        pytest.param(
            [(labelling("a", 4, "deschedule", suspend=True), OLD), (labelling("b", 8, "deschedule"), NEW)],
            8,
            id="a suspended one owns nothing",
        ),
        pytest.param(
            [(labelling("a", 4, "dontschedule"), OLD), (labelling("b", 8, "deschedule"), NEW)], 8, id="no labels"
        ),
        pytest.param(
            [(labelling("a", 8, "deschedule"), OLD), (labelling("b", 4, "deschedule", "labeling"), NEW)],
            4,
            id="the owners of two strategies: the lowest",
        ),
        pytest.param(
            [(labelling("a", None, "deschedule"), OLD), (labelling("b", 4, "deschedule"), NEW)], 30, id="the default"
        ),
    ],
)
def test_only_the_limits_of_policies_that_own_labels_count(
    policies: list[tuple[Policy, float | None]], limit: int
) -> None:
    for several in (policies, policies[::-1]):
        limits = limits_of()
        for each, created in several:
            limits.take_in(each.key, each, created)
        assert limits.of(P, seen_nodes(100)) == Limit(limit, 100)


def test_a_limit_counts_once_its_policy_owns_a_label() -> None:
    older, younger = labelling("b", 8, "deschedule"), labelling("a", 4, "deschedule")
    limits, seen = limits_of(), seen_nodes(100)
    for each, created in ((older, OLD), (younger, NEW)):
        limits.take_in(each.key, each, created)
    assert limits.of(P, seen) == Limit(8, 100)
    limits.drop(older.key)
    assert limits.of(P, seen) == Limit(4, 100)
    limits.take_in(older.key, older, OLD)
    assert limits.of(P, seen) == Limit(8, 100)
    limits.take_in(older.key, None)
    assert limits.of(P, seen) == Limit(4, 100), "whose record cannot be read may be the owner: nobody owns a label"
    limits.clear()
    limits.take_in(younger.key, younger, NEW)
    assert limits.of(P, seen) == Limit(4, 100)


@pytest.mark.parametrize("is_owner", [True, False])
def test_a_node_needs_an_admission_only_if_there_is_a_limit(is_owner: bool) -> None:
    """Else it would be asked for again and again: no breaker is written without a limit."""
    limited, other = labelling("a", 4, "deschedule"), labelling("b", None, "deschedule")
    limits = limits_of(default=None)
    for each, created in ((limited, OLD if is_owner else NEW), (other, NEW if is_owner else OLD)):
        limits.take_in(each.key, each, created)
    assert limits.of(P, seen_nodes(100)) == (Limit(4, 100) if is_owner else None)
    assert limits.admitting(P, {}, ()) == ({P} if is_owner else set())


def test_over_all_policies_only_the_default_counts() -> None:
    limits = limits_of(policy(breaker=BreakerLimits(max_nodes=4)), over_all=DefaultLimit(50, 20))
    assert limits.of(ALL, seen_nodes(100)) == Limit(50, 100)
    assert limits_of(policy()).of(ALL, seen_nodes(100)) is None


def test_a_node_with_labels_needs_no_admission() -> None:
    limits = limits_of(policy(), over_all=DefaultLimit(50, 20))
    assert limits.admitting(P, {}, ()) == {P, ALL}
    assert limits.admitting(P, OURS, {P}) == set()
    prefixed = {f"{LABEL_PREFIX}q/x": "1"}
    assert limits.admitting(P, prefixed, {"q"}) == {P}
    assert limits.admitting(P, {"others": "violating"}, {"others"}) == {P, ALL}


def test_without_a_limit_no_node_needs_an_admission() -> None:
    assert limits_of(policy(), default=None).admitting(P, {}, ()) == set()
    own = limits_of(policy(breaker=BreakerLimits(max_nodes=4)), default=None)
    assert own.admitting(P, {}, ()) == {P}
    suspended = policy(breaker=BreakerLimits(max_nodes=4), suspend=True)
    for limits in (limits_of(suspended, policy("b"), default=None), limits_of(suspended, default=None)):
        assert limits.of(P, seen_nodes(100)) is None
        assert limits.admitting(P, {}, ()) == set(), "no breaker would ever admit it"


def test_a_name_is_that_of_a_policy_until_the_last_policy_of_the_name_is_deleted() -> None:
    limits = limits_of(policy(), policy("b"))
    assert not limits.drop(PolicyKey("a", P))
    assert limits.is_policy(P)
    assert limits.drop(PolicyKey("b", P))
    assert not limits.is_policy(P)
    assert limits.drop(PolicyKey("b", P))
    limits = limits_of(policy())
    limits.clear()
    assert not limits.is_policy(P)


@pytest.mark.parametrize("key", [P, ALL])
def test_a_limit_follows_the_nodes_within_a_second_and_the_policies_at_once(key: str) -> None:
    """Of nodes it takes time in proportion to them, for each patch."""
    limits = limits_of(policy(), default=DefaultLimit(50, 1), over_all=DefaultLimit(50, 1))
    kept, start = KeptLimits(limits), 1000.0
    assert kept.of(key, seen_nodes(100), start) == Limit(50, 100)
    assert kept.of(key, seen_nodes(10), start + 0.99) == Limit(50, 100)
    assert kept.of(key, seen_nodes(10), start + 1.0) == Limit(5, 10)
    assert kept.of(key, seen_nodes(20), start + 1.99) == Limit(5, 10), "a second after it was computed"
    kept.forget("other")
    assert kept.of(key, seen_nodes(20), start + 1.99) == Limit(5, 10)
    kept.forget(key)
    assert kept.of(key, seen_nodes(20), start + 1.99) == Limit(10, 20)
    kept.clear()
    assert kept.of(key, seen_nodes(30), start + 1.99) == Limit(15, 30)


def test_that_there_is_no_limit_is_kept_too() -> None:
    limits = limits_of(default=None)
    kept = KeptLimits(limits)
    assert kept.of(P, seen_nodes(10), 0.0) is None
    limits.take_in(PolicyKey("a", P), policy(breaker=BreakerLimits(max_nodes=4)))
    assert kept.of(P, seen_nodes(10), 0.5) is None
    assert kept.of(P, seen_nodes(10), 1.0) == Limit(4, 10)


def test_over_all_policies_a_name_that_only_looks_like_one_needs_an_admission() -> None:
    """Others use the value `violating` too, and people set it by hand: such a node has no label of TAS yet."""
    limits = limits_of(policy(), over_all=DefaultLimit(50, 20))
    assert limits.admitting("q", {"others": "violating"}, {"others"}) == {"q", ALL}
    assert limits.admitting("q", {"others": "violating"} | OURS, {"others", P}) == {"q"}
