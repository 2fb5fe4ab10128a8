"""The policies for which a verdict has room."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.records.verdicts import encode_verdict, verdict_json
from tas.policy.manifest import parse_policy
from tas.policy.policy import Policy, PolicyKey, StrategyType
from tas.samples.sample import Scrape
from tas.values.quantity import MAX_QUANTITY, Quantity
from tas.verdict.evaluation import evaluate_policy
from tas.verdict.size import NODE_BYTES, PolicySize, VerdictRoom, policy_size
from tas.verdict.verdict import NodeVerdict, PolicyVerdict
from tests.unit.tas.generators import characters, policies

NOW = 1_795_000_000.123456
GENERATION = 2**63 - 1
NOTHING = len(
    encode_verdict(NodeVerdict(node_uid="", nodes_revision=0, policies_revision=0, time=NOW, policies={})).decode()
)


def evaluated(policy: Policy, uid: str, value: Quantity | None, before: PolicyVerdict | None = None) -> PolicyVerdict:
    rules = [rule for strategy in policy.strategies.values() for rule in strategy.rules]
    scrapes = tuple(
        Scrape(source=source, measured=NOW, arrived=NOW, sequence=1, metrics={rule.metric: value for rule in rules})
        for source in sorted({rule.source or "s" for rule in rules})
        if value is not None
    )
    verdict, _ = evaluate_policy(
        policy,
        uid=uid,
        generation=GENERATION,
        samples=scrapes,
        labels={},
        default_stale_after=60.0,
        before=before,
        now=NOW,
    )
    return verdict


def encoded(policy: Policy, verdict: PolicyVerdict) -> int:
    """The bytes of a policy in a verdict before it is compressed, with its comma."""
    node = NodeVerdict(node_uid="", nodes_revision=0, policies_revision=0, time=NOW, policies={policy.key: verdict})
    return len(verdict_json(encode_verdict(node))) - NOTHING + 1


values = st.sampled_from([None, *(Quantity(value) for value in (0, MAX_QUANTITY - 1, 1 - MAX_QUANTITY))])


@given(policy=policies(readable=False), uid=st.text(characters, max_size=40), before=values, value=values)
def test_no_verdict_is_larger_than_the_size_of_its_policy(
    policy: Policy, uid: str, before: Quantity | None, value: Quantity | None
) -> None:
    size = policy_size(policy, uid=uid, created=None)
    first = evaluated(policy, uid, before)
    assert encoded(policy, first) <= size.bytes
    assert encoded(policy, evaluated(policy, uid, value, first)) <= size.bytes


def spread(name: str = "p") -> Policy:
    """Every strategy, with labels and values such as in the largest verdicts."""
    rule: dict[str, Any] = {"metricname": "m" * 253, "operator": "GreaterThan", "target": 1, "source": "s" * 63}
    labels = [f"{number:03}{'k' * 60}={'v' * 63}" for number in range(128)]
    strategies = {
        "dontschedule": {"rules": [rule], "onStale": "fail"},
        "deschedule": {"rules": [rule], "for": "1h"},
        "labeling": {"rules": [rule | {"labels": labels[start : start + 32]} for start in range(0, 128, 32)]},
    }
    policy, problems = parse_policy(PolicyKey("n" * 63, name), {"strategies": strategies})
    assert not problems
    return policy


def test_the_size_of_a_large_policy_is_near_that_of_its_largest_verdict() -> None:
    policy = spread("p" * 63)
    largest = encoded(policy, evaluated(policy, "u" * 36, Quantity(MAX_QUANTITY - 1)))
    assert len(policy.strategies[StrategyType.LABELING].rules) == 4
    assert largest <= policy_size(policy, uid="u" * 36, created=None).bytes <= 1.2 * largest


def test_a_verdict_without_policies_fits_into_its_part() -> None:
    names = NodeVerdict(
        node_uid="\x00" * 36, nodes_revision=GENERATION, policies_revision=GENERATION, time=NOW, policies={}
    )
    assert len(encode_verdict(names)) <= NODE_BYTES


def left_out(every: Iterable[PolicySize], limit: int) -> frozenset[PolicyKey]:
    room = VerdictRoom()
    for each in every:
        room.put(each)
    return room.left_out(limit)


def sizes(*each: tuple[str, float | None, int]) -> list[PolicySize]:
    return [PolicySize(PolicyKey("default", name), created, size) for name, created, size in each]


@pytest.mark.parametrize(
    ("each", "left"),
    [
        ([("a", 1.0, 50), ("b", 2.0, 50)], []),
        ([("a", 1.0, 50), ("b", 2.0, 51)], ["b"]),
        ([("a", 2.0, 50), ("b", 1.0, 51)], ["a"]),
        ([("a", 1.0, 101)], ["a"]),
        ([("a", 1.0, 60), ("b", 2.0, 60), ("c", 3.0, 40)], ["b"]),
        ([("b", None, 60), ("a", 1.0, 60)], ["a"]),
        ([("b", 1.0, 60), ("a", 1.0, 60)], ["b"]),
    ],
    ids=["all fit", "the younger", "by age, not by name", "alone", "a smaller one fits", "without a time", "same time"],
)
def test_the_youngest_policies_that_do_not_fit_are_left_out(
    each: list[tuple[str, float | None, int]], left: list[str]
) -> None:
    found = left_out(sizes(*each), NODE_BYTES + 100)
    assert found == {PolicyKey("default", name) for name in left}
    assert left_out(reversed(sizes(*each)), NODE_BYTES + 100) == found


keys = st.builds(PolicyKey, st.sampled_from(["a", "b", "c"]), st.text("xyz", min_size=1, max_size=2))
history = st.lists(
    st.builds(PolicySize, keys, st.sampled_from([None, 1.0, 2.0, 3.0]), st.sampled_from([0, 1, 10, 50])), max_size=30
)


@given(history)
def test_after_any_history_the_oldest_that_fit_have_room(history: list[PolicySize]) -> None:
    """As if all had been put in order. A size of 0 is a deletion."""
    room, known = VerdictRoom(), dict[PolicyKey, PolicySize]()
    for each in history:
        known.pop(each.key, None)
        if each.bytes:
            known[each.key] = each
            room.put(each)
        else:
            room.remove(each.key)
        expected, rest = set[PolicyKey](), 100
        for size in sorted(known.values(), key=lambda each: (each.created or 0.0, each.key)):
            if size.bytes <= rest:
                rest -= size.bytes
            else:
                expected.add(size.key)
        assert room.left_out(NODE_BYTES + 100) == expected
    room.clear()
    assert not room.left_out(NODE_BYTES)


def test_a_change_orders_one_policy_however_many_there_are() -> None:
    comparisons = 0

    class Age(float):
        def __lt__(self, other: float) -> bool:
            nonlocal comparisons
            comparisons += 1
            return float(self) < float(other)

        def __eq__(self, other: object) -> bool:
            nonlocal comparisons
            comparisons += 1
            return float(self) == other

        __hash__ = float.__hash__

    room = VerdictRoom()
    for number in range(10_000):
        room.put(PolicySize(PolicyKey("bad", f"p-{number:05}"), Age(number + 1), 100))
    limit = NODE_BYTES + 100 * 1000
    assert len(room.left_out(limit)) == 9_000
    comparisons = 0
    room.put(PolicySize(PolicyKey("bad", "p-00007"), Age(8), 50))
    room.put(PolicySize(PolicyKey("good", "p"), Age(20_000), 50))
    left = room.left_out(limit)
    assert (len(left), PolicyKey("good", "p") in left) == (9_000, False)
    assert 0 < comparisons < 200
    assert room.left_out(limit) is left
