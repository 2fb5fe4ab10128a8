"""How many nodes may have labels, and which breakers must admit a node."""

from typing import Any

import pytest

from tas.enforcing.breaker import LabelledNodes
from tas.enforcing.limits import DefaultLimit, KeptLimits, Limit, Limits, limit_of
from tas.policy.policy import LABEL_PREFIX, BreakerLimits, Policy, PolicyKey
from tas.policy.selector import parse_selector
from tas.verdict.freeze import ALL

P, OURS = "p", {"p": "violating"}
DEFAULT = DefaultLimit(30, 10)


def policy(namespace: str = "a", **fields: Any) -> Policy:
    return Policy(key=PolicyKey(namespace, P), strategies={}, **fields)


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
