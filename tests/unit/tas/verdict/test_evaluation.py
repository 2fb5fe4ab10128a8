"""Verdicts: tables of desired labels, and histories of samples, edits and times."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import inf, nextafter
from operator import eq, gt, lt
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.policy.manifest import parse_policy
from tas.policy.policy import LABEL_PREFIX, OnStale, Policy, PolicyKey, StrategyType
from tas.policy.rules import State
from tas.samples.sample import FUTURE_TOLERANCE, NodeSamples, Scrape, merge
from tas.values.quantity import parse_quantity
from tas.verdict.evaluation import evaluate_policy, label_state, met_labels
from tas.verdict.knowledge import evaluation_time, same_meaning
from tas.verdict.verdict import (
    ABSENT,
    HOLD,
    VIOLATING,
    DesiredKind,
    DesiredLabel,
    NodeVerdict,
    PolicyVerdict,
    StrategyVerdict,
    deschedule_label,
    labeling_prefix,
)
from tas.verdict.watched import Watched

VIOLATED, MET, UNKNOWN = State.VIOLATED, State.MET, State.UNKNOWN
SET = DesiredLabel(DesiredKind.SET, VIOLATING)
STALE_AFTER = 30.0
NOW = 1_000_000.0
KEY = PolicyKey("default", "p")
K = labeling_prefix(KEY)


def scrape(time: float, metrics: Mapping[str, object], source: str = "s", sequence: int = 1) -> Scrape:
    values = {name: parse_quantity(str(value)) for name, value in metrics.items()}
    return Scrape(source=source, measured=time, arrived=time, sequence=sequence, metrics=values)


def samples(time: float = NOW, **metrics: object) -> NodeSamples:
    return (scrape(time, metrics),) if metrics else ()


def rules(*texts: str) -> list[dict[str, Any]]:
    """`memory > 1 -> gpu=a card=b` for each rule."""
    words = {">": "GreaterThan", "<": "LessThan", "=": "Equals"}
    found = []
    for text in texts:
        condition, _, labels = text.partition("->")
        metric, operator, target = condition.split()
        rule: dict[str, Any] = {"metricname": metric, "operator": words[operator], "target": int(target)}
        if labels:
            rule["labels"] = labels.split()
        found.append(rule)
    return found


def policy(strategies: Mapping[str, Any], *, key: PolicyKey = KEY, refused: bool = False, **spec: Any) -> Policy:
    parsed, problems = parse_policy(key, {"strategies": strategies, **spec})
    assert any(problem.refused for problem in problems) is refused, problems
    return parsed


def deschedule(*texts: str, **extra: Any) -> Policy:
    outside = {name: extra.pop(name) for name in ("key", "suspend", "dryRun", "nodeSelector") if name in extra}
    return policy({"deschedule": {"rules": rules(*texts), **extra}}, **outside)


def labeling(*texts: str, **extra: Any) -> Policy:
    outside = {name: extra.pop(name) for name in ("key", "suspend", "dryRun", "nodeSelector") if name in extra}
    return policy({"labeling": {"rules": rules(*texts), **extra}}, **outside)


def step(
    of: Policy,
    known: NodeSamples = (),
    before: PolicyVerdict | None = None,
    *,
    now: float = NOW,
    uid: str = "u",
    generation: int = 1,
    labels: Mapping[str, str] | None = None,
    **watching: Any,
) -> tuple[PolicyVerdict, float | None]:
    return evaluate_policy(
        of,
        uid=uid,
        generation=generation,
        samples=known,
        labels=labels,
        default_stale_after=STALE_AFTER,
        before=before,
        now=now,
        **watching,
    )


def evaluated(of: Policy, known: NodeSamples = (), before: PolicyVerdict | None = None, **how: Any) -> PolicyVerdict:
    return step(of, known, before, **how)[0]


def only(verdict: PolicyVerdict) -> StrategyVerdict:
    (strategy,) = verdict.strategies.values()
    return strategy


def desired_labels(verdict: PolicyVerdict) -> dict[str, DesiredLabel]:
    return {
        label: found.desired for strategy in verdict.strategies.values() for label, found in strategy.labels.items()
    }


def desired(verdict: PolicyVerdict) -> DesiredLabel:
    (found,) = desired_labels(verdict).values()
    return found


def value(text: str) -> DesiredLabel:
    return DesiredLabel(DesiredKind.SET, text)


def unless_any(text: str) -> DesiredLabel:
    return DesiredLabel(DesiredKind.SET_IF_ABSENT, text)


# The cases S, G and L of docs/background/facts.md


@pytest.mark.parametrize(
    ("known", "state", "expected"),
    [
        pytest.param({}, UNKNOWN, HOLD, id="facts_S1-no-samples"),
        pytest.param({"memory": 100}, VIOLATED, SET, id="facts_S2"),
        pytest.param({"cpu": 11}, UNKNOWN, HOLD, id="facts_S3-one-metric-unknown"),
        pytest.param({"cpu": 11, "memory": 1}, MET, ABSENT, id="facts_S3-met"),
        pytest.param({"cpu": 9, "memory": 1}, VIOLATED, SET, id="either"),
    ],
)
def test_deschedule(known: dict[str, int], state: State, expected: DesiredLabel) -> None:
    verdict = evaluated(deschedule("memory > 1", "cpu < 10"), samples(**known))
    assert only(verdict).state is state
    assert desired_labels(verdict) == {"p": expected}


def test_facts_S7_nodes_are_evaluated_independently() -> None:
    of = deschedule("memory > 1")
    first = evaluated(of, samples(memory=2))
    assert desired(evaluated(of, samples(memory=1))) == ABSENT
    assert desired(evaluated(of, samples(memory=2), first)) == SET


def test_facts_S9_D41_an_edit_without_effect_changes_only_the_generation() -> None:
    of = deschedule("memory > 1", **{"for": "10s", "clearFor": "10s"})
    before = evaluated(of, samples(memory=2))
    after = evaluated(of, samples(memory=2), before, now=NOW + 10, generation=2)
    assert after == msgspec.structs.replace(evaluated(of, samples(memory=2), before, now=NOW + 10), generation=2)
    assert desired(after) == SET
    assert only(after).changed == NOW
    assert only(after).labels["p"].violated_since == NOW


@pytest.mark.parametrize(
    ("of", "known", "expected"),
    [
        pytest.param(("memory > 99 -> gpu=false",), {"memory": 2000}, {"gpu": value("false")}, id="facts_G1"),
        pytest.param(("memory > 3000 -> gpu=false",), {"memory": 2000}, {"gpu": ABSENT}, id="facts_G2_G8"),
        pytest.param(
            ("memory > 100 -> d=card0", "cpu > 100 -> d=card1"),
            {"memory": 2000, "cpu": 200},
            {"d": value("card0")},
            id="facts_G3-largest",
        ),
        pytest.param(
            ("memory < 10000 -> d=card0", "cpu < 10000 -> d=card1"),
            {"memory": 2000, "cpu": 200},
            {"d": value("card1")},
            id="facts_G4-smallest",
        ),
        pytest.param(
            ("memory = 2000 -> d=card1", "cpu = 200 -> d=card0"),
            {"memory": 2000, "cpu": 200},
            {"d": value("card1")},
            id="facts_G5-first-listed",
        ),
        pytest.param(
            ("memory > 1 -> d=a", "cpu > 1 -> d=b"), {"memory": 7, "cpu": 7}, {"d": value("a")}, id="tie-first-listed"
        ),
        pytest.param(
            ("memory < 9 -> d=a", "cpu < 9 -> d=b"), {"memory": 7, "cpu": 7}, {"d": value("a")}, id="tie-of-smallest"
        ),
        pytest.param(
            ("m1 > 10 -> foo=1 bar=1", "m2 > 10 -> bar=2"),
            {"m1": 50, "m2": 100},
            {"foo": value("1"), "bar": value("2")},
            id="facts_G9_D50",
        ),
        pytest.param(
            ("memory > 9 -> a=1", "cpu > 90 -> b=1"),
            {"memory": 10, "cpu": 200},
            {"a": value("1"), "b": value("1")},
            id="facts_L5-both",
        ),
        pytest.param(
            ("memory > 9 -> a=1", "absent > 90 -> b=1"),
            {"memory": 10},
            {"a": value("1"), "b": HOLD},
            id="facts_L6-per-key",
        ),
        pytest.param(
            ("memory > 9 -> a=1", "cpu > 900 -> b=1"),
            {"memory": 10, "cpu": 200},
            {"a": value("1"), "b": ABSENT},
            id="facts_L4-per-key",
        ),
    ],
)
def test_labeling(of: tuple[str, ...], known: dict[str, int], expected: dict[str, DesiredLabel]) -> None:
    assert desired_labels(evaluated(labeling(*of), samples(**known))) == {
        K + key: each for key, each in expected.items()
    }


def test_facts_G6_D52_a_key_with_different_operators_gets_no_label() -> None:
    parsed, problems = parse_policy(
        KEY, {"strategies": {"labeling": {"rules": rules("memory < 2000 -> d=card0", "cpu = 200 -> d=card1 e=1")}}}
    )
    assert [problem.field for problem in problems] == ["spec.strategies.labeling.rules"]
    assert desired_labels(evaluated(parsed, samples(memory=200, cpu=200))) == {K + "e": value("1")}


def test_facts_G10_D51_an_invalid_label_is_left_out_alone() -> None:
    parsed, problems = parse_policy(
        KEY, {"strategies": {"labeling": {"rules": rules("m > 1 -> a=1 foo b=-1 a=2 x~y=1 x/y=1")}}}
    )
    assert len(problems) == 5
    assert desired_labels(evaluated(parsed, samples(m=2))) == {K + "a": value("1")}


def test_an_invalid_label_of_a_stored_rule_has_no_verdict() -> None:
    of = labeling("m > 1 -> ok=1")
    strategy = of.strategies[StrategyType.LABELING]
    rule = msgspec.structs.replace(strategy.rules[0], labels=(("a/b", "1"), ("ok", "1"), ("v", "-"), ("w" * 64, "1")))
    of = msgspec.structs.replace(
        of, strategies={StrategyType.LABELING: msgspec.structs.replace(strategy, rules=(rule,))}
    )
    assert desired_labels(evaluated(of, samples(m=2))) == {K + "ok": value("1")}


def test_a_name_that_begins_as_labels_of_labeling_do_is_no_label() -> None:
    odd = PolicyKey("default", f"{LABEL_PREFIX}p")
    verdict = evaluated(deschedule("m > 1", key=odd), samples(m=2))
    assert only(verdict).state is VIOLATED
    assert desired_labels(verdict) == {}


def test_facts_D45_names_that_are_too_long() -> None:
    long, longer = PolicyKey("default", "p" * 64), PolicyKey("default", "p." * 120 + "p")
    assert deschedule_label(long) is None
    verdict = evaluated(deschedule("m > 1", key=long), samples(m=2))
    assert only(verdict).state is VIOLATED
    assert desired_labels(verdict) == {}
    assert desired_labels(evaluated(labeling("m > 1 -> a=1", key=long), samples(m=2))) == {
        labeling_prefix(long) + "a": value("1")
    }
    assert desired_labels(evaluated(labeling("m > 1 -> a=1", key=longer), samples(m=2))) == {}


def test_facts_C5_a_strategy_removed_by_an_edit_has_no_verdict() -> None:
    before = evaluated(deschedule("m > 1"), samples(m=2))
    after = evaluated(labeling("m > 1 -> a=1"), samples(m=2), before, generation=2)
    assert after.strategies.keys() == {StrategyType.LABELING}
    assert not same_meaning(before, after)


def test_of_rules_with_different_operators_the_first_wins() -> None:
    greater, less = labeling("a > 1 -> d=1"), labeling("b < 9 -> d=2")
    both = tuple(of.strategies[StrategyType.LABELING].rules[0] for of in (greater, less))
    for order, winner in ((both, "1"), (both[::-1], "2")):
        strategy = msgspec.structs.replace(greater.strategies[StrategyType.LABELING], rules=order)
        of = msgspec.structs.replace(greater, strategies={StrategyType.LABELING: strategy})
        for known in ({"a": 2, "b": 3}, {"a": 3, "b": 2}):
            assert desired(evaluated(of, samples(**known))) == value(winner)


@pytest.mark.parametrize("kind", ["dontschedule", "deschedule", "labeling"])
def test_a_strategy_without_rules_has_no_verdict(kind: str) -> None:
    assert evaluated(policy({kind: {"rules": []}}), samples(m=1)).strategies == {}


def test_scheduleonmetric_has_no_verdict_and_dontschedule_no_label() -> None:
    of = policy({"scheduleonmetric": {"rules": rules("m > 0")}, "dontschedule": {"rules": rules("m > 1")}})
    verdict, due = step(of, samples(m=2))
    assert verdict.strategies == {
        StrategyType.DONTSCHEDULE: StrategyVerdict(state=VIOLATED, changed=NOW, value="2", labels={}, rejects=True)
    }
    assert due == NOW + STALE_AFTER


# Two rules, and `onStale`

STATES = {VIOLATED: {"time": NOW, "value": 2}, MET: {"time": NOW, "value": 0}, UNKNOWN: {"time": NOW - 60, "value": 2}}


def samples_for(**states: State | None) -> NodeSamples:
    """Samples for which each rule `metric > 1` has this state; None: the metric never had a sample."""
    return tuple(
        scrape(STATES[state]["time"], {metric: STATES[state]["value"]}, source=metric)
        for metric, state in sorted(states.items())
        if state is not None
    )


class Combination(NamedTuple):
    any_of: DesiredLabel
    all_of: DesiredLabel


DESCHEDULE = {
    # the states of two rules (None: never sampled): the desired label with hold, violate and clear
    (VIOLATED, VIOLATED): [Combination(SET, SET)] * 3,
    (VIOLATED, MET): [Combination(SET, ABSENT)] * 3,
    (MET, MET): [Combination(ABSENT, ABSENT)] * 3,
    (VIOLATED, UNKNOWN): [Combination(SET, HOLD), Combination(SET, SET), Combination(SET, ABSENT)],
    (VIOLATED, None): [Combination(SET, HOLD), Combination(SET, SET), Combination(SET, HOLD)],
    (MET, UNKNOWN): [Combination(HOLD, ABSENT), Combination(SET, ABSENT), Combination(ABSENT, ABSENT)],
    (MET, None): [Combination(HOLD, ABSENT), Combination(SET, ABSENT), Combination(HOLD, ABSENT)],
    (UNKNOWN, UNKNOWN): [Combination(HOLD, HOLD), Combination(SET, SET), Combination(ABSENT, ABSENT)],
    (UNKNOWN, None): [Combination(HOLD, HOLD), Combination(SET, SET), Combination(HOLD, ABSENT)],
    (None, None): [Combination(HOLD, HOLD), Combination(SET, SET), Combination(HOLD, HOLD)],
}
STATE_PAIRS = [*product([*State, None], repeat=2)]
ON_STALE = [OnStale.HOLD, OnStale.VIOLATE, OnStale.CLEAR]


@pytest.mark.parametrize("on_stale", ON_STALE)
@pytest.mark.parametrize(("first", "second"), STATE_PAIRS)
def test_two_rules_of_deschedule(first: State | None, second: State | None, on_stale: OnStale) -> None:
    expected = (DESCHEDULE.get((first, second)) or DESCHEDULE[second, first])[ON_STALE.index(on_stale)]
    known = samples_for(a=first, b=second)
    for operator, label in (("anyOf", expected.any_of), ("allOf", expected.all_of)):
        of = deschedule("a > 1", "b > 1", logicalOperator=operator, onStale=on_stale.value)
        assert desired(evaluated(of, known)) == label, operator


LABELING_ANY_OF = {
    # of a rule with the label x=a and a rule with x=b
    (VIOLATED, VIOLATED): [value("a")] * 3,
    (VIOLATED, MET): [value("a")] * 3,
    (MET, VIOLATED): [value("b")] * 3,
    (MET, MET): [ABSENT] * 3,
    (VIOLATED, UNKNOWN): [unless_any("a"), unless_any("a"), value("a")],
    (VIOLATED, None): [unless_any("a"), unless_any("a"), unless_any("a")],
    (UNKNOWN, VIOLATED): [unless_any("b"), unless_any("b"), value("b")],
    (None, VIOLATED): [unless_any("b"), unless_any("b"), unless_any("b")],
    (MET, UNKNOWN): [HOLD, value("b"), ABSENT],
    (MET, None): [HOLD, value("b"), HOLD],
    (UNKNOWN, MET): [HOLD, value("a"), ABSENT],
    (None, MET): [HOLD, value("a"), HOLD],
    (UNKNOWN, UNKNOWN): [HOLD, unless_any("a"), ABSENT],
    (UNKNOWN, None): [HOLD, unless_any("a"), HOLD],
    (None, UNKNOWN): [HOLD, unless_any("a"), HOLD],
    (None, None): [HOLD, unless_any("a"), HOLD],
}


@pytest.mark.parametrize("on_stale", ON_STALE)
@pytest.mark.parametrize(("first", "second"), STATE_PAIRS)
def test_two_rules_of_labeling_for_one_key(first: State | None, second: State | None, on_stale: OnStale) -> None:
    of = labeling("a > 1 -> x=a", "b > 1 -> x=b", onStale=on_stale.value)
    assert (
        desired(evaluated(of, samples_for(a=first, b=second)))
        == LABELING_ANY_OF[first, second][ON_STALE.index(on_stale)]
    )


@pytest.mark.parametrize("on_stale", ON_STALE)
@pytest.mark.parametrize(("first", "second"), STATE_PAIRS)
def test_two_rules_of_labeling_for_two_keys(first: State | None, second: State | None, on_stale: OnStale) -> None:
    known = samples_for(a=first, b=second)
    apart = evaluated(labeling("a > 1 -> x=1", "b > 1 -> y=1", onStale=on_stale.value), known)
    for metric, key in (("a", "x"), ("b", "y")):
        alone = evaluated(labeling(f"{metric} > 1 -> {key}=1", onStale=on_stale.value), known)
        assert desired_labels(apart)[K + key] == desired(alone)
    together = labeling("a > 1 -> x=1", "b > 1 -> y=1", onStale=on_stale.value, logicalOperator="allOf")
    label = desired(evaluated(deschedule("a > 1", "b > 1", onStale=on_stale.value, logicalOperator="allOf"), known))
    expected = value("1") if label == SET else label
    assert desired_labels(evaluated(together, known)) == {K + "x": expected, K + "y": expected}


def test_with_on_stale_violate_a_common_value_is_set_despite_unknown() -> None:
    texts = ("a > 1 -> x=1", "b > 1 -> x=1")
    assert desired(evaluated(labeling(*texts, onStale="violate"), samples_for(a=None, b=None))) == value("1")
    assert desired(evaluated(labeling(*texts), samples_for(a=VIOLATED, b=None))) == unless_any("1")


@pytest.mark.parametrize("on_stale", ON_STALE)
@pytest.mark.parametrize("state", [*State, None])
def test_an_unselected_node_meets_the_policy_at_once_and_unknown_labels_hold(
    state: State | None, on_stale: OnStale
) -> None:
    of = deschedule("a > 1", onStale=on_stale.value, clearFor="1h", nodeSelector={"matchLabels": {"zone": "a"}})
    plain = deschedule("a > 1", onStale=on_stale.value, clearFor="1h")
    known = samples_for(a=state)
    unknown, outside, inside = (evaluated(of, known, labels=labels) for labels in (None, {"zone": "b"}, {"zone": "a"}))
    assert (only(unknown).state, desired(unknown)) == (UNKNOWN, HOLD)
    assert (only(outside).state, desired(outside)) == (MET, ABSENT)
    assert step(of, known, labels={"zone": "b"})[1] is None  # no sample can change that
    assert inside == evaluated(plain, known)


def test_clear_for_begins_when_the_node_is_selected() -> None:
    """The labels of the node may have been old for longer than `clearFor`, and the rules violated meanwhile."""
    of = deschedule("a > 1", clearFor="20s", nodeSelector={"matchLabels": {"zone": "a"}})
    outside = evaluated(of, samples(a=1), labels={"zone": "b"})
    assert (desired(outside), only(outside).labels[KEY.name].met_since) == (ABSENT, None)
    inside, due = step(of, samples(NOW + 60, a=1), outside, labels={"zone": "a"}, now=NOW + 60)
    assert (desired(inside), only(inside).labels[KEY.name].met_since, due) == (HOLD, NOW + 60, NOW + 80)
    assert desired(evaluated(of, samples(NOW + 80, a=1), inside, labels={"zone": "a"}, now=NOW + 80)) == ABSENT


@pytest.mark.parametrize("field", ["suspend", "dryRun"])
@pytest.mark.parametrize("state", [*State, None])
def test_a_suspended_or_dry_run_policy_has_states_and_holds_its_labels(state: State | None, field: str) -> None:
    parts: dict[str, Any] = {
        "deschedule": {"rules": rules("a > 1")},
        "labeling": {"rules": rules("a > 1 -> x=1"), "onStale": "clear"},
    }
    inactive: dict[str, Any] = {field: True}
    known = samples_for(a=state)
    inactive_verdict, active_verdict = evaluated(policy(parts, **inactive), known), evaluated(policy(parts), known)
    assert set(desired_labels(inactive_verdict).values()) == {HOLD}
    assert {kind: each.state for kind, each in inactive_verdict.strategies.items()} == {
        kind: each.state for kind, each in active_verdict.strategies.items()
    }
    assert (inactive_verdict.holds_prefix, active_verdict.holds_prefix) == (True, False)


@pytest.mark.parametrize("field", ["suspend", "dryRun"])
def test_a_suspended_or_dry_run_policy_holds_its_prefix(field: str) -> None:
    assert evaluated(policy({}, **{field: True}, key=KEY)).holds_prefix
    assert not evaluated(policy({})).holds_prefix


def test_for_continues_during_dry_run() -> None:
    dry_run, in_force = (deschedule("a > 1", dryRun=dry, **{"for": "20s"}) for dry in (True, False))
    before = evaluated(dry_run, samples(a=2))
    assert desired(evaluated(in_force, samples(NOW + 20, a=2), before, now=NOW + 20)) == SET


@pytest.mark.parametrize("state", [*State, None])
def test_an_unreadable_labeling_holds_its_labels_and_its_prefix(state: State | None) -> None:
    good, bad = rules("a > 1 -> x=1"), [{"metricname": "b", "operator": "Worse", "target": 1, "labels": ["y=1"]}]
    of = policy({"labeling": {"rules": good + bad}, "deschedule": {"rules": rules("a > 1")}}, refused=True)
    verdict = evaluated(of, samples_for(a=state, b=VIOLATED))
    assert verdict.holds_prefix
    labels = verdict.strategies[StrategyType.LABELING].labels
    assert {label: each.desired for label, each in labels.items()} == {K + "x": HOLD, K + "y": HOLD}
    alone = desired(evaluated(deschedule("a > 1"), samples_for(a=state)))
    assert verdict.strategies[StrategyType.DESCHEDULE].labels["p"].desired == alone


def test_an_unreadable_deschedule_holds_only_its_own_label() -> None:
    of = policy({"deschedule": 1, "labeling": {"rules": rules("a > 1 -> x=1")}}, refused=True)
    verdict = evaluated(of, samples(a=2))
    assert desired_labels(verdict) == {"p": HOLD, K + "x": value("1")}
    assert not verdict.holds_prefix


# Time


def test_for_continues_during_unknown_and_ends_only_while_violated() -> None:
    of = deschedule("a > 1", **{"for": "60s"})
    first, due = step(of, samples(a=2))
    assert (desired(first), due) == (HOLD, NOW + STALE_AFTER)
    stale, due = step(of, samples(a=2), first, now=NOW + 40)
    assert (only(stale).state, desired(stale), due) == (UNKNOWN, HOLD, None)
    later, due = step(of, samples(a=2), stale, now=NOW + 70)
    assert (desired(later), due) == (HOLD, None)  # `for` ends only while violated
    again = evaluated(of, samples(NOW + 80, a=2), later, now=NOW + 80)
    assert (desired(again), only(again).labels["p"].violated_since) == (SET, NOW)


def test_for_starts_again_after_met() -> None:
    of = deschedule("a > 1", **{"for": "20s"})
    met = evaluated(of, samples(NOW + 10, a=1), evaluated(of, samples(a=2)), now=NOW + 10)
    assert desired(met) == ABSENT
    again, due = step(of, samples(NOW + 20, a=2), met, now=NOW + 20)
    assert (desired(again), due) == (HOLD, NOW + 40)


@pytest.mark.parametrize("between", [VIOLATED, UNKNOWN])
def test_clear_for_starts_again_after_any_other_state(between: State) -> None:
    of = deschedule("a > 1", clearFor="20s")
    first, due = step(of, samples(a=1))
    assert (desired(first), due) == (HOLD, NOW + 20)
    known = samples(NOW + 10, a=2) if between is VIOLATED else ()
    broken = evaluated(of, known, first, now=NOW + 10)
    assert only(broken).state is between
    again, due = step(of, samples(NOW + 12, a=1), broken, now=NOW + 12)
    assert (desired(again), due) == (HOLD, NOW + 32)
    assert desired(evaluated(of, samples(NOW + 12, a=1), again, now=NOW + 32)) == ABSENT


@pytest.mark.parametrize(
    "watched",
    [
        pytest.param(Watched(since=NOW + 15), id="not watched"),
        pytest.param(Watched(counted_since={KEY.name: NOW + 15}), id="edited"),
        pytest.param(Watched(unmet_until={KEY.name: NOW + 15}), id="seen unmet"),
        pytest.param(Watched(since=NOW + 15, stored_until=NOW + 16), id="a stored hold proves nothing"),
    ],
)
def test_clear_for_counts_only_observed_time(watched: Watched) -> None:
    of = deschedule("a > 1", clearFor="20s")
    first = evaluated(of, samples(a=1))
    again, due = step(of, samples(NOW + 20, a=1), first, now=NOW + 20, watched=watched)
    assert (desired(again), due) == (HOLD, NOW + 35)
    assert only(again) == only(first)  # so a replica that has watched longer can continue
    cleared = evaluated(of, samples(NOW + 35, a=1), again, now=NOW + 35, watched=watched)
    assert desired(cleared) == ABSENT


def test_a_longer_clear_for_waits_for_the_rest() -> None:
    cleared = evaluated(deschedule("a > 1"), samples(a=1))
    assert desired(cleared) == ABSENT
    longer = deschedule("a > 1", clearFor="20s")
    again, due = step(longer, samples(NOW + 5, a=1), cleared, now=NOW + 5)
    assert (desired(again), due) == (HOLD, NOW + 20)


def test_clear_for_has_no_end_while_the_rules_are_observed_unmet() -> None:
    of = deschedule("a > 1", clearFor="20s")
    first = evaluated(of, samples(a=1))
    again = step(of, samples(NOW + 90, a=1), first, now=NOW + 90, watched=Watched(unmet_until={KEY.name: inf}))
    assert (desired(again[0]), again[1]) == (HOLD, NOW + 90 + STALE_AFTER)  # no time ends the wait


@pytest.mark.parametrize(
    ("since", "unmet_until", "stays"),
    [
        (NOW + 39, None, True),
        (NOW + 40, None, True),
        (nextafter(NOW + 40, inf), None, False),
        (NOW, NOW + 40, True),
        (NOW, NOW + 41, False),
        (NOW, inf, False),
    ],
)
def test_a_stored_absent_stays_only_if_the_rules_were_observed_met_since(
    since: float, unmet_until: float | None, stays: bool
) -> None:
    of = deschedule("a > 1", clearFor="20s")
    stored = evaluated(of, samples(NOW + 40, a=1), evaluated(of, samples(a=1)), now=NOW + 40)
    assert desired(stored) == ABSENT
    unmet = {} if unmet_until is None else {KEY.name: unmet_until}
    watched = Watched(since, unmet, stored_until=NOW + 40)
    again, due = step(of, samples(NOW + 50, a=1), stored, now=NOW + 50, watched=watched)
    assert desired(again) == (ABSENT if stays else HOLD)
    assert due == min(NOW + 50 + STALE_AFTER, inf if stays else max(since, unmet_until or 0.0) + 20)


def test_a_clock_that_is_ahead_does_not_shorten_clear_for() -> None:
    """Another replica's clock is 5 s ahead, and we evaluate at its time; but we have watched for only 16 s."""
    of = deschedule("a > 1", clearFor="20s")
    first = evaluated(of, samples(a=1))
    watched = Watched(since=NOW + 100, ahead=5.0)
    assert step(of, samples(NOW + 121, a=1), first, now=NOW + 121, watched=watched)[1] == NOW + 125
    assert desired(evaluated(of, samples(NOW + 125, a=1), first, now=NOW + 125, watched=watched)) == ABSENT


def test_without_clear_for_no_observation_is_needed() -> None:
    of = deschedule("a > 1")
    watched = Watched(NOW, {KEY.name: inf})
    assert desired(evaluated(of, samples(a=1), watched=watched)) == ABSENT


def test_a_replica_that_observed_the_whole_clear_for_needs_no_stored_absent() -> None:
    of = deschedule("a > 1", clearFor="20s")
    stored = evaluated(of, samples(NOW + 40, a=1), evaluated(of, samples(a=1)), now=NOW + 40)
    watched = Watched(since=NOW + 45, stored_until=NOW + 40)
    assert desired(evaluated(of, samples(NOW + 64, a=1), stored, now=NOW + 64, watched=watched)) == HOLD
    assert desired(evaluated(of, samples(NOW + 65, a=1), stored, now=NOW + 65, watched=watched)) == ABSENT


@pytest.mark.parametrize(
    ("node_labels", "same"), [({}, True), ({"other": "x"}, True), ({KEY.name: "x"}, False), (None, False)]
)
def test_a_hold_that_replaces_absent_is_written_only_if_the_node_has_the_label(
    node_labels: Mapping[str, str] | None, same: bool
) -> None:
    of = deschedule("a > 1", clearFor="20s")
    stored = evaluated(of, samples(NOW + 40, a=1), evaluated(of, samples(a=1)), now=NOW + 40)
    waits = evaluated(of, samples(NOW + 50, a=1), stored, now=NOW + 50, watched=Watched(NOW + 45))
    assert same_meaning(stored, waits, node_labels) is same
    assert not same_meaning(waits, stored, node_labels)
    for changed in (samples(NOW + 50, a=2), ()):
        differs = evaluated(of, changed, stored, now=NOW + 50, watched=Watched(NOW + 45))
        assert not same_meaning(stored, differs, node_labels)


@pytest.mark.parametrize(
    ("strategies", "known", "met"),
    [
        ({"deschedule": {"rules": rules("a > 1"), "clearFor": "1s"}}, {"a": 1}, {"p": True}),
        ({"deschedule": {"rules": rules("a > 1"), "clearFor": "1s"}}, {"a": 2}, {"p": False}),
        ({"deschedule": {"rules": rules("a > 1"), "clearFor": "1s"}}, {}, {"p": False}),
        ({"deschedule": {"rules": rules("a > 1")}}, {"a": 2}, {}),
        ({"dontschedule": {"rules": rules("a > 1")}}, {"a": 2}, {}),
        (
            {
                "deschedule": {"rules": rules("a > 1")},
                "labeling": {"rules": rules("a > 1 -> x=1", "b > 1 -> y=1"), "clearFor": "1s"},
            },
            {"a": 1, "b": 2},
            {K + "x": True, K + "y": False},
        ),
    ],
)
def test_met_labels_are_those_of_strategies_with_clear_for(
    strategies: Mapping[str, Any], known: Mapping[str, int], met: Mapping[str, bool]
) -> None:
    assert labels_met(policy(strategies), samples(**known)) == met


def test_with_on_stale_clear_unknown_counts_as_met_only_after_a_sample() -> None:
    of = deschedule("a > 1", clearFor="1s", onStale="clear")
    assert labels_met(of, samples(a=1), now=NOW + STALE_AFTER) == {"p": True}
    assert labels_met(of, ()) == {"p": False}
    before = evaluated(of, samples(a=1))
    assert labels_met(of, (), before) == {"p": True}
    assert labels_met(of, (), before, uid="of another policy") == {"p": False}


def test_an_unselected_node_counts_as_met() -> None:
    of = deschedule("a > 1", clearFor="1s", nodeSelector={"matchLabels": {"zone": "a"}})
    assert labels_met(of, samples(a=2), labels={"zone": "b"}) == {"p": True}
    assert labels_met(of, samples(a=2), labels={"zone": "a"}) == {"p": False}
    assert labels_met(of, samples(a=1), labels=None) == {"p": False}


def labels_met(
    of: Policy,
    known: NodeSamples,
    before: PolicyVerdict | None = None,
    *,
    uid: str = "u",
    labels: Mapping[str, str] | None = None,
    now: float = NOW,
) -> dict[str, bool]:
    return met_labels(
        of, uid=uid, samples=known, labels=labels, default_stale_after=STALE_AFTER, before=before, now=now
    )


def test_on_stale_clear_waits_for_clear_for() -> None:
    of = deschedule("a > 1", onStale="clear", clearFor="20s")
    violated, due = step(of, samples(a=2))
    assert (desired(violated), due) == (SET, NOW + STALE_AFTER)
    stale, due = step(of, samples(a=2), violated, now=NOW + 30)
    assert (only(stale).state, desired(stale), due) == (UNKNOWN, HOLD, NOW + 50)
    assert desired(evaluated(of, samples(a=2), stale, now=NOW + 50)) == ABSENT


def test_on_stale_clear_remembers_an_earlier_sample() -> None:
    of = deschedule("a > 1", onStale="clear")
    before = evaluated(of, samples(a=2))
    assert only(before).sampled == ("a",)
    assert desired(evaluated(of, (), before, now=NOW + 4000)) == ABSENT
    assert desired(evaluated(of, (), None, now=NOW + 4000)) == HOLD


def test_on_stale_clear_does_not_apply_to_a_series_that_an_edit_added() -> None:
    before = evaluated(deschedule("a > 1", onStale="clear"), samples(a=2))
    edited = deschedule("b > 1", onStale="clear")
    assert desired(evaluated(edited, samples(a=2), before, generation=2)) == HOLD
    policy_of_source = policy({"deschedule": {"rules": [{**rules("a > 1")[0], "source": "t"}], "onStale": "clear"}})
    assert desired(evaluated(policy_of_source, samples(a=2), before, generation=2)) == HOLD


def test_an_edit_keeps_the_times_of_the_state() -> None:
    before = evaluated(deschedule("a > 1", **{"for": "20s"}), samples(a=3))
    edited = evaluated(deschedule("a > 2", **{"for": "20s"}), samples(a=3), before, now=NOW + 20, generation=2)
    assert desired(edited) == SET
    assert (only(edited).changed, only(edited).labels["p"].violated_since) == (NOW, NOW)


def test_a_policy_with_another_uid_has_no_history() -> None:
    of = deschedule("a > 1", onStale="clear", **{"for": "20s"})
    before = evaluated(of, samples(a=2))
    other, due = step(of, samples(a=2), before, now=NOW + 25, uid="other")
    assert (desired(other), due, only(other).changed) == (HOLD, NOW + STALE_AFTER, NOW + 25)
    assert desired(evaluated(of, (), before, uid="other")) == HOLD
    assert not same_meaning(before, evaluated(of, samples(a=2), uid="other"))


def test_a_future_time_in_a_verdict_becomes_now() -> None:
    of = deschedule("a > 1", **{"for": "20s"})
    ahead = evaluated(of, samples(NOW + 10**6, a=2), now=NOW + 10**6)
    back, due = step(of, samples(a=2), ahead)
    assert (desired(back), due) == (HOLD, NOW + 20)
    assert only(back).changed == NOW
    assert not same_meaning(ahead, back)


def test_the_value_is_that_of_the_last_change_of_the_state() -> None:
    of = deschedule("a > 1", "b > 1")
    first = evaluated(of, samples(a="1500m", b=1))
    assert (only(first).value, only(first).changed) == ("1.5", NOW)
    more = evaluated(of, samples(a=7, b=1), first, now=NOW + 1)
    assert (only(more).value, only(more).changed) == ("1.5", NOW)
    less = evaluated(of, samples(a=1, b=1), more, now=NOW + 2)
    assert (only(less).value, only(less).changed) == ("1", NOW + 2)
    assert only(evaluated(of, (), less, now=NOW + 3)).value == ""


def test_only_a_change_with_an_effect_changes_the_meaning() -> None:
    of = labeling("a > 1 -> x=1")
    first = evaluated(of, samples(a=2))
    assert same_meaning(first, evaluated(of, samples(NOW + 5, a=3), first, now=NOW + 5))
    assert not same_meaning(first, evaluated(of, samples(NOW + 5, a=1), first, now=NOW + 5))
    assert not same_meaning(first, evaluated(of, samples(a=2), first, generation=2))
    assert not same_meaning(first, msgspec.structs.replace(first, holds_prefix=True))
    rejecting = policy({"dontschedule": {"rules": rules("a > 1")}})
    assert not same_meaning(evaluated(rejecting, samples(a=2)), evaluated(rejecting, samples(a=1)))
    suspended = policy({"dontschedule": {"rules": rules("a > 1")}}, suspend=True)
    rejected, passed = evaluated(rejecting, samples(a=2)), evaluated(suspended, samples(a=2))
    assert not same_meaning(rejected, msgspec.structs.replace(passed, holds_prefix=False))
    once = deschedule("a > 1", "b > 1")
    assert not same_meaning(evaluated(once, samples(a=2)), evaluated(once, samples(a=2, b=1)))  # `sampled`, for `clear`


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param(None, NOW, id="no verdict"),
        pytest.param(NOW - 5, NOW, id="written before"),
        pytest.param(NOW + 5, NOW + 5, id="by a clock that is ahead"),
        pytest.param(NOW + FUTURE_TOLERANCE, NOW + FUTURE_TOLERANCE, id="by a clock as far ahead as is tolerated"),
        pytest.param(NOW + 1e9, NOW + FUTURE_TOLERANCE, id="by a clock of the far future"),
    ],
)
def test_the_evaluation_time_is_not_before_the_stored_verdict_within_limits(
    written: float | None, expected: float
) -> None:
    before = None
    if written is not None:
        before = NodeVerdict(node_uid="", nodes_revision=1, policies_revision=1, time=written, policies={})
    assert evaluation_time(before, NOW) == expected


def test_the_evaluation_time_has_the_precision_of_json() -> None:
    assert evaluation_time(None, NOW + 0.12345678) == NOW + 0.123457


# Histories

METRICS = ("a", "b")
SPANS = ["0s", "3s", "7s"]


def some_rules(labels: bool) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rules with one operator, so that none of their labels is left out."""
    pairs = st.lists(st.sampled_from(["x=1", "y=1", "y=2", "z="]), unique_by=lambda pair: pair[0], max_size=2)
    return st.sampled_from(["GreaterThan", "LessThan", "Equals"]).flatmap(
        lambda operator: st.lists(
            st.fixed_dictionaries(
                {
                    "metricname": st.sampled_from(METRICS),
                    "operator": st.just(operator),
                    "target": st.integers(0, 2),
                    **({"labels": pairs} if labels else {}),
                },
                optional={"source": st.sampled_from(["s", "t"])},
            ),
            min_size=1,
            max_size=3,
        )
    )


def some_strategy(labels: bool) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"rules": some_rules(labels)},
        optional={
            "logicalOperator": st.sampled_from(["anyOf", "allOf"]),
            "onStale": st.sampled_from(["hold", "violate", "clear"]),
            "for": st.sampled_from(SPANS),
            "clearFor": st.sampled_from(SPANS),
        },
    )


specs = st.fixed_dictionaries(
    {
        "strategies": st.fixed_dictionaries(
            {},
            optional={
                "dontschedule": st.fixed_dictionaries({"rules": some_rules(labels=False)}),
                "deschedule": some_strategy(labels=False),
                "labeling": some_strategy(labels=True),
            },
        ),
        "staleAfter": st.sampled_from(["4s", "9s"]),
    },
    optional={
        "suspend": st.just(True),
        "dryRun": st.just(True),
        "nodeSelector": st.just({"matchLabels": {"zone": "a"}}),
    },
)


class Event(NamedTuple):
    """A change, `after` seconds after the previous one."""

    after: int
    sample: Mapping[str, int] | None = None
    source: str = "s"
    labels: Mapping[str, str] | None = None
    spec: Mapping[str, object] | None = None


# All fields are given: Hypothesis generates omitted fields of a NamedTuple.
SAME: dict[str, st.SearchStrategy[Any]] = {
    "sample": st.none(),
    "source": st.just("s"),
    "labels": st.none(),
    "spec": st.none(),
}
events = st.lists(
    st.one_of(
        st.builds(
            Event,
            **SAME
            | {
                "after": st.integers(0, 6),
                "sample": st.dictionaries(st.sampled_from(METRICS), st.integers(0, 3), min_size=1),
                "source": st.sampled_from(["s", "t"]),
            },
        ),
        st.builds(
            Event, **SAME | {"after": st.integers(0, 6), "labels": st.sampled_from([{"zone": "a"}, {"zone": "b"}])}
        ),
        st.builds(Event, **SAME | {"after": st.integers(0, 3), "spec": specs}),
    ),
    max_size=12,
)


class Moment(NamedTuple):
    """The input of an evaluation at one time."""

    now: float
    policy: Policy
    generation: int
    known: NodeSamples
    labels: Mapping[str, str] | None
    spec: Any  # of the policy, as written
    reported: Mapping[tuple[str, str], tuple[float, int]]  # the last time and value of each source and metric

    def evaluate(self, before: PolicyVerdict | None, *, now: float | None = None) -> tuple[PolicyVerdict, float | None]:
        return step(
            self.policy,
            self.known,
            before,
            now=self.now if now is None else now,
            generation=self.generation,
            labels=self.labels,
        )


def history(spec: Any, changes: Sequence[Event]) -> list[Moment]:
    """The moments of changes, each after its change."""
    of, _ = parse_policy(KEY, spec)
    known: NodeSamples = ()
    labels: Mapping[str, str] | None = None
    now, generation = NOW, 1
    reported: dict[tuple[str, str], tuple[float, int]] = {}
    moments = [Moment(now, of, generation, known, labels, spec, {})]
    for sequence, event in enumerate(changes, 2):
        now += event.after
        if event.sample is not None:
            known = merge(known, [scrape(now, event.sample, event.source, sequence)])
            reported |= {(event.source, metric): (now, value) for metric, value in event.sample.items()}
        if event.labels is not None:
            labels = event.labels
        if event.spec is not None:
            of, generation, spec = parse_policy(KEY, event.spec)[0], generation + 1, event.spec
        moments.append(Moment(now, of, generation, known, labels, spec, dict(reported)))
    return moments


def by_deadlines(moments: Sequence[Moment], end: float) -> dict[float, PolicyVerdict]:
    """The verdicts of a replica that evaluates only after changes and at deadlines."""
    verdicts: dict[float, PolicyVerdict] = {}
    verdict: PolicyVerdict | None = None
    for moment, until in zip(moments, [each.now for each in moments[1:]] + [end], strict=True):
        verdict, due = moment.evaluate(verdict)
        verdicts[moment.now] = verdict
        while due is not None and due < until:
            now = due
            verdict, due = moment.evaluate(verdict, now=now)
            assert due is None or due > now
            verdicts[now] = verdict
    return verdicts


@given(specs, events)
def test_evaluations_at_deadlines_equal_evaluations_every_quarter_second(spec: Any, changes: list[Event]) -> None:
    moments = history(spec, changes)
    end = moments[-1].now + 20
    lazy = by_deadlines(moments, end)
    eager: PolicyVerdict | None = None
    latest_lazy: PolicyVerdict | None = None
    for quarter in range(int((end - NOW) * 4)):
        now = NOW + quarter / 4
        for moment in [each for each in moments if each.now == now]:
            eager = moment.evaluate(eager)[0]
        latest = [each for each in moments if each.now <= now][-1]
        eager = latest.evaluate(eager, now=now)[0]
        latest_lazy = lazy.get(now, latest_lazy)
        assert latest_lazy is not None
        assert eager == latest_lazy


@given(specs, events)
def test_a_second_evaluation_changes_nothing(spec: Any, changes: list[Event]) -> None:
    moments = history(spec, changes)
    verdict: PolicyVerdict | None = None
    for moment in moments:
        verdict, due = moment.evaluate(verdict)
        assert moment.evaluate(verdict) == (verdict, due)
        if due is not None:
            assert due > moment.now
            assert moment.evaluate(verdict, now=nextafter(due, -inf))[0] == verdict


class Read(NamedTuple):
    """A written rule and its state at one moment; `counts` is the state with `onStale` applied."""

    rule: Mapping[str, Any]
    value: int | None
    state: State
    counts: State


COMPARE = {"GreaterThan": gt, "LessThan": lt, "Equals": eq}
SECONDS = {"0s": 0, "3s": 3, "4s": 4, "7s": 7, "9s": 9}


def read(moment: Moment, rule: Mapping[str, Any], on_stale: str) -> Read:
    """For equal times the first source counts."""
    sources = [rule["source"]] if "source" in rule else ["s", "t"]
    found = [
        moment.reported[source, rule["metricname"]]
        for source in sources
        if (source, rule["metricname"]) in moment.reported
    ]
    value = None
    if found:
        time, newest_value = max(found, key=lambda each: each[0])
        value = newest_value if moment.now - time < SECONDS[moment.spec["staleAfter"]] else None
    if value is not None:
        state = VIOLATED if COMPARE[rule["operator"]](value, rule["target"]) else MET
        return Read(rule, value, state, state)
    counts = {"hold": UNKNOWN, "violate": VIOLATED, "clear": MET if found else UNKNOWN}[on_stale]
    return Read(rule, None, UNKNOWN, counts)


def combined(states: Iterable[State], how: str) -> State:
    """Unknown exactly if the result depends on unknown states."""
    decide = any if how == "anyOf" else all
    known = list(states)
    outcomes = {decide(VIOLATED is (guess if each is UNKNOWN else each) for each in known) for guess in (VIOLATED, MET)}
    return UNKNOWN if len(outcomes) == 2 else VIOLATED if outcomes.pop() else MET


def selected(moment: Moment) -> bool | None:
    if "nodeSelector" not in moment.spec:
        return True
    return None if moment.labels is None else moment.labels.get("zone") == "a"


def carried(moment: Moment, kind: str) -> dict[str, list[Read]]:
    """The labels of a strategy, each with the rules that carry it."""
    strategy = moment.spec["strategies"][kind]
    every = [read(moment, rule, strategy.get("onStale", "hold")) for rule in strategy["rules"]]
    if kind == "deschedule":
        return {KEY.name: every}
    names = {text.partition("=")[0] for each in every for text in each.rule.get("labels", ())}
    return {K + name: [each for each in every if label_value(each, name) is not None] for name in names}


def label_value(found: Read, name: str) -> str | None:
    return dict(text.split("=") for text in found.rule.get("labels", ())).get(name)


def to_set(kind: str, label: str, carrying: Sequence[Read], on_stale: str) -> DesiredLabel:
    """The value of the worst rule; unless any value is set, if an unknown rule may be worse."""
    if kind == "deschedule":
        return SET
    name = label.removeprefix(K)
    violated = [each for each in carrying if each.counts is VIOLATED]
    measured = [(each.value, each) for each in violated if each.value is not None]
    most, worst = measured[0] if measured else (0, violated[0])
    for found, each in measured:
        if worst.rule["operator"] != "Equals" and COMPARE[worst.rule["operator"]](found, most):
            most, worst = found, each
    text = label_value(worst, name)
    assert text is not None
    sure = on_stale == "violate" and {label_value(each, name) for each in violated} == {text}
    unsure = any(each.state is UNKNOWN and each.counts is not MET for each in carrying)
    return unless_any(text) if unsure and not sure else value(text)


def counted(moment: Moment, kind: str, carrying: Sequence[Read]) -> State:
    """The state of a label's rules, with `onStale` applied."""
    strategy = moment.spec["strategies"][kind]
    concerned = selected(moment)
    if not concerned:
        return UNKNOWN if concerned is None else MET
    how = strategy.get("logicalOperator", "anyOf")
    every = [read(moment, rule, strategy.get("onStale", "hold")) for rule in strategy["rules"]]
    return combined((each.counts for each in (carrying if how == "anyOf" else every)), how)


class Expected:
    """The desired labels of each moment, and since when the rules of each label are violated or met."""

    def __init__(self) -> None:
        self.since: dict[tuple[str, str], tuple[State, float]] = {}

    def desired_labels(self, moment: Moment) -> dict[str, DesiredLabel]:
        before, self.since = self.since, {}
        found: dict[str, DesiredLabel] = {}
        for kind in ("deschedule", "labeling"):
            if kind in moment.spec["strategies"]:
                for label, carrying in carried(moment, kind).items():
                    earlier = before.get((kind, label), (UNKNOWN, moment.now))
                    found[label] = self.desired(moment, kind, label, carrying, earlier)
        inactive = moment.spec.get("suspend") or moment.spec.get("dryRun")
        return dict.fromkeys(found, HOLD) if inactive else found

    def desired(
        self, moment: Moment, kind: str, label: str, carrying: Sequence[Read], earlier: tuple[State, float]
    ) -> DesiredLabel:
        strategy = moment.spec["strategies"][kind]
        state = counted(moment, kind, carrying)
        if state is UNKNOWN:
            if earlier[0] is VIOLATED:  # unknown does not end violated
                self.since[kind, label] = earlier
            return HOLD
        clear_for = SECONDS[strategy.get("clearFor", "0s")]
        if selected(moment) is False and clear_for:
            return ABSENT  # and the time begins once the node is selected
        since = earlier[1] if state is earlier[0] else moment.now
        self.since[kind, label] = (state, since)
        if state is VIOLATED:
            done = moment.now - since >= SECONDS[strategy.get("for", "0s")]
            return to_set(kind, label, carrying, strategy.get("onStale", "hold")) if done else HOLD
        return ABSENT if moment.now - since >= clear_for else HOLD


@given(specs, events)
def test_desired_labels_follow_from_the_samples_and_the_written_policy(spec: Any, changes: list[Event]) -> None:
    """Also the law of removal: absent only if fresh samples meet the rules, or because of a field of the policy."""
    verdict: PolicyVerdict | None = None
    expected = Expected()
    for moment in history(spec, changes):
        verdict = moment.evaluate(verdict)[0]
        assert desired_labels(verdict) == expected.desired_labels(moment)


@given(specs, events)
def test_label_states_follow_from_the_samples_and_the_written_policy(spec: Any, changes: list[Event]) -> None:
    """`tas.enforcing.removal` confirms removals by this state."""
    for moment in history(spec, changes):
        expected = {
            label: counted(moment, kind, carrying)
            for kind in ("deschedule", "labeling")
            if kind in moment.spec["strategies"]
            for label, carrying in carried(moment, kind).items()
        }
        for label in (KEY.name, K + "x", K + "y", K + "z", K + "other"):
            found = label_state(
                moment.policy,
                label,
                samples=moment.known,
                labels=moment.labels,
                default_stale_after=STALE_AFTER,
                now=moment.now,
            )
            assert found is expected.get(label)


@given(specs, events, st.randoms(use_true_random=False))
def test_the_order_of_scrapes_and_strategies_makes_no_difference(spec: Any, changes: list[Event], random: Any) -> None:
    moment = history(spec, changes)[-1]
    scrapes = [*moment.known]
    random.shuffle(scrapes)
    strategies = [*moment.policy.strategies.items()]
    random.shuffle(strategies)
    turned = moment._replace(
        known=merge((), scrapes), policy=msgspec.structs.replace(moment.policy, strategies=dict(strategies))
    )
    assert turned.evaluate(None) == moment.evaluate(None)


@given(specs, events)
def test_the_order_of_rules_changes_only_the_value_of_ties(spec: Any, changes: list[Event]) -> None:
    moment = history(spec, changes)[-1]
    turned = {
        kind: msgspec.structs.replace(strategy, rules=strategy.rules[::-1])
        for kind, strategy in moment.policy.strategies.items()
    }
    verdict = moment._replace(policy=msgspec.structs.replace(moment.policy, strategies=turned)).evaluate(None)[0]
    expected = moment.evaluate(None)[0]
    assert {label: each.kind for label, each in desired_labels(verdict).items()} == {
        label: each.kind for label, each in desired_labels(expected).items()
    }
    assert {kind: each.state for kind, each in verdict.strategies.items()} == {
        kind: each.state for kind, each in expected.strategies.items()
    }


def test_a_verdict_says_which_state_was_before_the_current_one() -> None:
    of = deschedule("a > 1")
    first = evaluated(of, samples(a=2))
    assert only(first).before is None
    again = evaluated(of, samples(a=3), first, now=NOW + 1)
    assert (only(again).state, only(again).before) == (State.VIOLATED, None)
    unknown = evaluated(of, (), again, now=NOW + 2)
    met = evaluated(of, samples(NOW + 3, a=0), unknown, now=NOW + 3)
    assert (only(unknown).before, only(met).before) == (State.VIOLATED, State.UNKNOWN)
    assert only(evaluated(of, samples(NOW + 4, a=0), met, now=NOW + 4)).before is State.UNKNOWN
    assert only(evaluated(of, samples(NOW + 4, a=0), met, now=NOW + 4, uid="other")).before is None
