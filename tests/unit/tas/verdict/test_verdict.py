"""Verdicts: every table of wishes, and histories against the same history looked at every second."""

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
from tas.policy.policy import OnStale, Policy, PolicyKey, StrategyType
from tas.policy.rules import State
from tas.samples.sample import FUTURE_TOLERANCE, NodeSamples, Scrape, merge
from tas.values.quantity import parse_quantity
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
    evaluate_policy,
    evaluation_time,
    label_state,
    labeling_prefix,
    met_labels,
    same_meaning,
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


def judged(of: Policy, known: NodeSamples = (), before: PolicyVerdict | None = None, **how: Any) -> PolicyVerdict:
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


# The cases S, G and L of docs/facts.md


@pytest.mark.parametrize(
    ("known", "state", "wished"),
    [
        pytest.param({}, UNKNOWN, HOLD, id="facts_S1-no-samples"),
        pytest.param({"memory": 100}, VIOLATED, SET, id="facts_S2"),
        pytest.param({"cpu": 11}, UNKNOWN, HOLD, id="facts_S3-one-metric-unknown"),
        pytest.param({"cpu": 11, "memory": 1}, MET, ABSENT, id="facts_S3-met"),
        pytest.param({"cpu": 9, "memory": 1}, VIOLATED, SET, id="either"),
    ],
)
def test_deschedule(known: dict[str, int], state: State, wished: DesiredLabel) -> None:
    verdict = judged(deschedule("memory > 1", "cpu < 10"), samples(**known))
    assert only(verdict).state is state
    assert desired_labels(verdict) == {"p": wished}


def test_facts_S7_what_is_wished_of_one_node_knows_no_other() -> None:
    of = deschedule("memory > 1")
    first = judged(of, samples(memory=2))
    assert desired(judged(of, samples(memory=1))) == ABSENT
    assert desired(judged(of, samples(memory=2), first)) == SET


def test_facts_S9_D41_an_edit_that_changes_nothing_changes_nothing() -> None:
    of = deschedule("memory > 1", **{"for": "10s", "clearFor": "10s"})
    before = judged(of, samples(memory=2))
    after = judged(of, samples(memory=2), before, now=NOW + 10, generation=2)
    assert after == msgspec.structs.replace(judged(of, samples(memory=2), before, now=NOW + 10), generation=2)
    assert desired(after) == SET
    assert only(after).changed == NOW
    assert only(after).labels["p"].violated_since == NOW


@pytest.mark.parametrize(
    ("of", "known", "wished"),
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
def test_labeling(of: tuple[str, ...], known: dict[str, int], wished: dict[str, DesiredLabel]) -> None:
    assert desired_labels(judged(labeling(*of), samples(**known))) == {K + key: each for key, each in wished.items()}


def test_facts_G6_D52_of_different_operators_nothing_is_wished() -> None:
    parsed, problems = parse_policy(
        KEY, {"strategies": {"labeling": {"rules": rules("memory < 2000 -> d=card0", "cpu = 200 -> d=card1 e=1")}}}
    )
    assert [problem.field for problem in problems] == ["spec.strategies.labeling.rules"]
    assert desired_labels(judged(parsed, samples(memory=200, cpu=200))) == {K + "e": value("1")}


def test_facts_G10_D51_a_bad_label_spoils_no_other() -> None:
    parsed, problems = parse_policy(
        KEY, {"strategies": {"labeling": {"rules": rules("m > 1 -> a=1 foo b=-1 a=2 x~y=1 x/y=1")}}}
    )
    assert len(problems) == 5
    assert desired_labels(judged(parsed, samples(m=2))) == {K + "a": value("1")}


def test_what_no_label_can_be_is_not_wished() -> None:
    of = labeling("m > 1 -> ok=1")
    strategy = of.strategies[StrategyType.LABELING]
    rule = msgspec.structs.replace(strategy.rules[0], labels=(("a/b", "1"), ("ok", "1"), ("v", "-"), ("w" * 64, "1")))
    of = msgspec.structs.replace(
        of, strategies={StrategyType.LABELING: msgspec.structs.replace(strategy, rules=(rule,))}
    )
    assert desired_labels(judged(of, samples(m=2))) == {K + "ok": value("1")}


def test_facts_D45_names_that_are_too_long() -> None:
    long, longer = PolicyKey("default", "p" * 64), PolicyKey("default", "p." * 120 + "p")
    assert deschedule_label(long) is None
    verdict = judged(deschedule("m > 1", key=long), samples(m=2))
    assert only(verdict).state is VIOLATED
    assert desired_labels(verdict) == {}
    assert desired_labels(judged(labeling("m > 1 -> a=1", key=long), samples(m=2))) == {
        labeling_prefix(long) + "a": value("1")
    }
    assert desired_labels(judged(labeling("m > 1 -> a=1", key=longer), samples(m=2))) == {}


def test_facts_C5_what_an_edit_leaves_out_is_gone_from_the_verdict() -> None:
    before = judged(deschedule("m > 1"), samples(m=2))
    after = judged(labeling("m > 1 -> a=1"), samples(m=2), before, generation=2)
    assert after.strategies.keys() == {StrategyType.LABELING}
    assert not same_meaning(before, after)


def test_of_different_operators_the_first_listed_wins_where_a_policy_has_them() -> None:
    greater, less = labeling("a > 1 -> d=1"), labeling("b < 9 -> d=2")
    both = tuple(of.strategies[StrategyType.LABELING].rules[0] for of in (greater, less))
    for order, winner in ((both, "1"), (both[::-1], "2")):
        strategy = msgspec.structs.replace(greater.strategies[StrategyType.LABELING], rules=order)
        of = msgspec.structs.replace(greater, strategies={StrategyType.LABELING: strategy})
        for known in ({"a": 2, "b": 3}, {"a": 3, "b": 2}):
            assert desired(judged(of, samples(**known))) == value(winner)


@pytest.mark.parametrize("kind", ["dontschedule", "deschedule", "labeling"])
def test_a_strategy_without_rules_has_no_verdict(kind: str) -> None:
    assert judged(policy({kind: {"rules": []}}), samples(m=1)).strategies == {}


def test_scheduleonmetric_has_no_verdict_and_dontschedule_no_label() -> None:
    of = policy({"scheduleonmetric": {"rules": rules("m > 0")}, "dontschedule": {"rules": rules("m > 1")}})
    verdict, due = step(of, samples(m=2))
    assert verdict.strategies == {
        StrategyType.DONTSCHEDULE: StrategyVerdict(state=VIOLATED, changed=NOW, value="2", labels={}, rejects=True)
    }
    assert due == NOW + STALE_AFTER


# Combining, and what unknown counts as

STATES = {VIOLATED: {"time": NOW, "value": 2}, MET: {"time": NOW, "value": 0}, UNKNOWN: {"time": NOW - 60, "value": 2}}


def seen_as(**states: State | None) -> NodeSamples:
    """Samples that make the rule `metric > 1` so; None: there never was one."""
    return tuple(
        scrape(STATES[state]["time"], {metric: STATES[state]["value"]}, source=metric)
        for metric, state in sorted(states.items())
        if state is not None
    )


class Combination(NamedTuple):
    any_of: DesiredLabel
    all_of: DesiredLabel


DESCHEDULE = {
    # the states of two rules, None for never sampled: the wish under hold, violate and clear
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
EVERY = [*product([*State, None], repeat=2)]
HOLDING = [OnStale.HOLD, OnStale.VIOLATE, OnStale.CLEAR]


@pytest.mark.parametrize("on_stale", HOLDING)
@pytest.mark.parametrize(("first", "second"), EVERY)
def test_two_rules_of_deschedule(first: State | None, second: State | None, on_stale: OnStale) -> None:
    expected = (DESCHEDULE.get((first, second)) or DESCHEDULE[second, first])[HOLDING.index(on_stale)]
    known = seen_as(a=first, b=second)
    for operator, wished in (("anyOf", expected.any_of), ("allOf", expected.all_of)):
        of = deschedule("a > 1", "b > 1", logicalOperator=operator, onStale=on_stale.value)
        assert desired(judged(of, known)) == wished, operator


LABELING_ANY_OF = {
    # of a rule that wishes x=a and one that wishes x=b
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


@pytest.mark.parametrize("on_stale", HOLDING)
@pytest.mark.parametrize(("first", "second"), EVERY)
def test_two_rules_of_labeling_for_one_key(first: State | None, second: State | None, on_stale: OnStale) -> None:
    of = labeling("a > 1 -> x=a", "b > 1 -> x=b", onStale=on_stale.value)
    assert desired(judged(of, seen_as(a=first, b=second))) == LABELING_ANY_OF[first, second][HOLDING.index(on_stale)]


@pytest.mark.parametrize("on_stale", HOLDING)
@pytest.mark.parametrize(("first", "second"), EVERY)
def test_two_rules_of_labeling_for_two_keys(first: State | None, second: State | None, on_stale: OnStale) -> None:
    known = seen_as(a=first, b=second)
    apart = judged(labeling("a > 1 -> x=1", "b > 1 -> y=1", onStale=on_stale.value), known)
    for metric, key in (("a", "x"), ("b", "y")):
        alone = judged(labeling(f"{metric} > 1 -> {key}=1", onStale=on_stale.value), known)
        assert desired_labels(apart)[K + key] == desired(alone)
    together = labeling("a > 1 -> x=1", "b > 1 -> y=1", onStale=on_stale.value, logicalOperator="allOf")
    label = desired(judged(deschedule("a > 1", "b > 1", onStale=on_stale.value, logicalOperator="allOf"), known))
    expected = value("1") if label == SET else label
    assert desired_labels(judged(together, known)) == {K + "x": expected, K + "y": expected}


def test_one_value_for_all_is_no_question_where_unknown_counts() -> None:
    texts = ("a > 1 -> x=1", "b > 1 -> x=1")
    assert desired(judged(labeling(*texts, onStale="violate"), seen_as(a=None, b=None))) == value("1")
    assert desired(judged(labeling(*texts), seen_as(a=VIOLATED, b=None))) == unless_any("1")


@pytest.mark.parametrize("on_stale", HOLDING)
@pytest.mark.parametrize("state", [*State, None])
def test_where_the_selector_matters(state: State | None, on_stale: OnStale) -> None:
    of = deschedule("a > 1", onStale=on_stale.value, clearFor="1h", nodeSelector={"matchLabels": {"zone": "a"}})
    plain = deschedule("a > 1", onStale=on_stale.value, clearFor="1h")
    known = seen_as(a=state)
    unknown, outside, inside = (judged(of, known, labels=labels) for labels in (None, {"zone": "b"}, {"zone": "a"}))
    assert (only(unknown).state, desired(unknown)) == (UNKNOWN, HOLD)
    assert (only(outside).state, desired(outside)) == (MET, ABSENT)
    assert step(of, known, labels={"zone": "b"})[1] is None  # no sample can change that
    assert inside == judged(plain, known)


@pytest.mark.parametrize("word", ["suspend", "dryRun"])
@pytest.mark.parametrize("state", [*State, None])
def test_a_silent_policy_is_judged_and_wishes_nothing(state: State | None, word: str) -> None:
    parts: dict[str, Any] = {
        "deschedule": {"rules": rules("a > 1")},
        "labeling": {"rules": rules("a > 1 -> x=1"), "onStale": "clear"},
    }
    quiet: dict[str, Any] = {word: True}
    known = seen_as(a=state)
    silent, acting = judged(policy(parts, **quiet), known), judged(policy(parts), known)
    assert set(desired_labels(silent).values()) == {HOLD}
    assert {kind: each.state for kind, each in silent.strategies.items()} == {
        kind: each.state for kind, each in acting.strategies.items()
    }
    assert (silent.holds_prefix, acting.holds_prefix) == (True, False)


@pytest.mark.parametrize("word", ["suspend", "dryRun"])
def test_a_silent_policy_holds_labels_that_an_edit_left_behind(word: str) -> None:
    assert judged(policy({}, **{word: True}, key=KEY)).holds_prefix
    assert not judged(policy({})).holds_prefix


def test_waiting_goes_on_while_a_policy_is_silent() -> None:
    dry, wet = (deschedule("a > 1", dryRun=dry, **{"for": "20s"}) for dry in (True, False))
    before = judged(dry, samples(a=2))
    assert desired(judged(wet, samples(NOW + 20, a=2), before, now=NOW + 20)) == SET


@pytest.mark.parametrize("state", [*State, None])
def test_what_cannot_be_read_holds(state: State | None) -> None:
    good, bad = rules("a > 1 -> x=1"), [{"metricname": "b", "operator": "Worse", "target": 1, "labels": ["y=1"]}]
    of = policy({"labeling": {"rules": good + bad}, "deschedule": {"rules": rules("a > 1")}}, refused=True)
    verdict = judged(of, seen_as(a=state, b=VIOLATED))
    assert verdict.holds_prefix
    labels = verdict.strategies[StrategyType.LABELING].labels
    assert {label: each.desired for label, each in labels.items()} == {K + "x": HOLD, K + "y": HOLD}
    alone = desired(judged(deschedule("a > 1"), seen_as(a=state)))
    assert verdict.strategies[StrategyType.DESCHEDULE].labels["p"].desired == alone


def test_a_deschedule_that_cannot_be_read_holds_its_own_label_only() -> None:
    of = policy({"deschedule": 1, "labeling": {"rules": rules("a > 1 -> x=1")}}, refused=True)
    verdict = judged(of, samples(a=2))
    assert desired_labels(verdict) == {"p": HOLD, K + "x": value("1")}
    assert not verdict.holds_prefix


# Time


def test_for_waits_and_is_not_broken_by_unknown() -> None:
    of = deschedule("a > 1", **{"for": "60s"})
    first, due = step(of, samples(a=2))
    assert (desired(first), due) == (HOLD, NOW + STALE_AFTER)
    silent, due = step(of, samples(a=2), first, now=NOW + 40)
    assert (only(silent).state, desired(silent), due) == (UNKNOWN, HOLD, None)
    later, due = step(of, samples(a=2), silent, now=NOW + 70)
    assert (desired(later), due) == (HOLD, None)  # it completes only while violated
    again = judged(of, samples(NOW + 80, a=2), later, now=NOW + 80)
    assert (desired(again), only(again).labels["p"].violated_since) == (SET, NOW)


def test_for_is_broken_by_met() -> None:
    of = deschedule("a > 1", **{"for": "20s"})
    met = judged(of, samples(NOW + 10, a=1), judged(of, samples(a=2)), now=NOW + 10)
    assert desired(met) == ABSENT
    again, due = step(of, samples(NOW + 20, a=2), met, now=NOW + 20)
    assert (desired(again), due) == (HOLD, NOW + 40)


@pytest.mark.parametrize("between", [VIOLATED, UNKNOWN])
def test_clear_for_needs_unbroken_met(between: State) -> None:
    of = deschedule("a > 1", clearFor="20s")
    first, due = step(of, samples(a=1))
    assert (desired(first), due) == (HOLD, NOW + 20)
    known = samples(NOW + 10, a=2) if between is VIOLATED else ()
    broken = judged(of, known, first, now=NOW + 10)
    assert only(broken).state is between
    again, due = step(of, samples(NOW + 12, a=1), broken, now=NOW + 12)
    assert (desired(again), due) == (HOLD, NOW + 32)
    assert desired(judged(of, samples(NOW + 12, a=1), again, now=NOW + 32)) == ABSENT


@pytest.mark.parametrize(
    "watched", [Watched(since=NOW + 15), Watched(unmet_until={KEY.name: NOW + 15})], ids=["not watched", "seen unmet"]
)
def test_clear_for_counts_only_what_was_seen_met(watched: Watched) -> None:
    of = deschedule("a > 1", clearFor="20s")
    first = judged(of, samples(a=1))
    again, due = step(of, samples(NOW + 20, a=1), first, now=NOW + 20, watched=watched)
    assert (desired(again), due) == (HOLD, NOW + 35)
    assert only(again) == only(first)  # who has watched longer goes on from there
    cleared = judged(of, samples(NOW + 35, a=1), again, now=NOW + 35, watched=watched)
    assert desired(cleared) == ABSENT


def test_an_edit_that_makes_clear_for_longer_waits_for_the_rest() -> None:
    cleared = judged(deschedule("a > 1"), samples(a=1))
    assert desired(cleared) == ABSENT
    longer = deschedule("a > 1", clearFor="20s")
    again, due = step(longer, samples(NOW + 5, a=1), cleared, now=NOW + 5)
    assert (desired(again), due) == (HOLD, NOW + 20)


def test_clear_for_does_not_end_while_the_rules_are_seen_not_met() -> None:
    of = deschedule("a > 1", clearFor="20s")
    first = judged(of, samples(a=1))
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
def test_a_stored_absent_stays_only_if_the_rules_were_seen_met_ever_since(
    since: float, unmet_until: float | None, stays: bool
) -> None:
    of = deschedule("a > 1", clearFor="20s")
    stored = judged(of, samples(NOW + 40, a=1), judged(of, samples(a=1)), now=NOW + 40)
    assert desired(stored) == ABSENT
    unmet = {} if unmet_until is None else {KEY.name: unmet_until}
    watched = Watched(since, unmet, stored_until=NOW + 40)
    again, due = step(of, samples(NOW + 50, a=1), stored, now=NOW + 50, watched=watched)
    assert desired(again) == (ABSENT if stays else HOLD)
    assert due == min(NOW + 50 + STALE_AFTER, inf if stays else max(since, unmet_until or 0.0) + 20)


def test_a_clock_that_is_ahead_shortens_no_clear_for() -> None:
    """Another replica has judged 5 s from now on our clock, so we judge at its time; but we have watched for 16 s."""
    of = deschedule("a > 1", clearFor="20s")
    first = judged(of, samples(a=1))
    watched = Watched(since=NOW + 100, ahead=5.0)
    assert step(of, samples(NOW + 121, a=1), first, now=NOW + 121, watched=watched)[1] == NOW + 125
    assert desired(judged(of, samples(NOW + 125, a=1), first, now=NOW + 125, watched=watched)) == ABSENT


def test_without_a_clear_for_nobody_need_have_watched() -> None:
    of = deschedule("a > 1")
    watched = Watched(NOW, {KEY.name: inf})
    assert desired(judged(of, samples(a=1), watched=watched)) == ABSENT


def test_who_has_watched_for_long_enough_needs_no_stored_verdict() -> None:
    of = deschedule("a > 1", clearFor="20s")
    stored = judged(of, samples(NOW + 40, a=1), judged(of, samples(a=1)), now=NOW + 40)
    watched = Watched(since=NOW + 45, stored_until=NOW + 40)
    assert desired(judged(of, samples(NOW + 64, a=1), stored, now=NOW + 64, watched=watched)) == HOLD
    assert desired(judged(of, samples(NOW + 65, a=1), stored, now=NOW + 65, watched=watched)) == ABSENT


@pytest.mark.parametrize(
    ("node_labels", "same"), [({}, True), ({"other": "x"}, True), ({KEY.name: "x"}, False), (None, False)]
)
def test_a_removal_that_waits_again_is_written_only_where_the_label_is_set(
    node_labels: Mapping[str, str] | None, same: bool
) -> None:
    of = deschedule("a > 1", clearFor="20s")
    stored = judged(of, samples(NOW + 40, a=1), judged(of, samples(a=1)), now=NOW + 40)
    waits = judged(of, samples(NOW + 50, a=1), stored, now=NOW + 50, watched=Watched(NOW + 45))
    assert same_meaning(stored, waits, node_labels) is same
    assert not same_meaning(waits, stored, node_labels)
    for changed in (samples(NOW + 50, a=2), ()):
        differs = judged(of, changed, stored, now=NOW + 50, watched=Watched(NOW + 45))
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
def test_of_which_labels_it_is_watched_whether_their_rules_are_met(
    strategies: Mapping[str, Any], known: Mapping[str, int], met: Mapping[str, bool]
) -> None:
    assert labels_met(policy(strategies), samples(**known)) == met


def test_cleared_by_its_policy_counts_as_met_only_after_there_was_a_sample() -> None:
    of = deschedule("a > 1", clearFor="1s", onStale="clear")
    assert labels_met(of, samples(a=1), now=NOW + STALE_AFTER) == {"p": True}
    assert labels_met(of, ()) == {"p": False}
    before = judged(of, samples(a=1))
    assert labels_met(of, (), before) == {"p": True}
    assert labels_met(of, (), before, uid="of another policy") == {"p": False}


def test_a_node_that_its_selector_leaves_counts_as_met() -> None:
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


def test_clear_waits_for_clear_for_as_well() -> None:
    of = deschedule("a > 1", onStale="clear", clearFor="20s")
    violated, due = step(of, samples(a=2))
    assert (desired(violated), due) == (SET, NOW + STALE_AFTER)
    stale, due = step(of, samples(a=2), violated, now=NOW + 30)
    assert (only(stale).state, desired(stale), due) == (UNKNOWN, HOLD, NOW + 50)
    assert desired(judged(of, samples(a=2), stale, now=NOW + 50)) == ABSENT


def test_clear_remembers_that_there_was_a_sample() -> None:
    of = deschedule("a > 1", onStale="clear")
    before = judged(of, samples(a=2))
    assert only(before).sampled == ("a",)
    assert desired(judged(of, (), before, now=NOW + 4000)) == ABSENT
    assert desired(judged(of, (), None, now=NOW + 4000)) == HOLD


def test_clear_says_nothing_of_a_metric_that_an_edit_brought() -> None:
    before = judged(deschedule("a > 1", onStale="clear"), samples(a=2))
    edited = deschedule("b > 1", onStale="clear")
    assert desired(judged(edited, samples(a=2), before, generation=2)) == HOLD
    policy_of_source = policy({"deschedule": {"rules": [{**rules("a > 1")[0], "source": "t"}], "onStale": "clear"}})
    assert desired(judged(policy_of_source, samples(a=2), before, generation=2)) == HOLD


def test_an_edit_keeps_how_long_it_has_been_so() -> None:
    before = judged(deschedule("a > 1", **{"for": "20s"}), samples(a=3))
    edited = judged(deschedule("a > 2", **{"for": "20s"}), samples(a=3), before, now=NOW + 20, generation=2)
    assert desired(edited) == SET
    assert (only(edited).changed, only(edited).labels["p"].violated_since) == (NOW, NOW)


def test_another_policy_of_the_name_begins_anew() -> None:
    of = deschedule("a > 1", onStale="clear", **{"for": "20s"})
    before = judged(of, samples(a=2))
    other, due = step(of, samples(a=2), before, now=NOW + 25, uid="other")
    assert (desired(other), due, only(other).changed) == (HOLD, NOW + STALE_AFTER, NOW + 25)
    assert desired(judged(of, (), before, uid="other")) == HOLD
    assert not same_meaning(before, judged(of, samples(a=2), uid="other"))


def test_a_time_that_is_yet_to_come_was_a_wrong_clock() -> None:
    of = deschedule("a > 1", **{"for": "20s"})
    ahead = judged(of, samples(NOW + 10**6, a=2), now=NOW + 10**6)
    back, due = step(of, samples(a=2), ahead)
    assert (desired(back), due) == (HOLD, NOW + 20)
    assert only(back).changed == NOW
    assert not same_meaning(ahead, back)


def test_the_value_is_that_at_the_change() -> None:
    of = deschedule("a > 1", "b > 1")
    first = judged(of, samples(a="1500m", b=1))
    assert (only(first).value, only(first).changed) == ("1.5", NOW)
    more = judged(of, samples(a=7, b=1), first, now=NOW + 1)
    assert (only(more).value, only(more).changed) == ("1.5", NOW)
    less = judged(of, samples(a=1, b=1), more, now=NOW + 2)
    assert (only(less).value, only(less).changed) == ("1", NOW + 2)
    assert only(judged(of, (), less, now=NOW + 3)).value == ""


def test_a_verdict_that_is_merely_confirmed_means_the_same() -> None:
    of = labeling("a > 1 -> x=1")
    first = judged(of, samples(a=2))
    assert same_meaning(first, judged(of, samples(NOW + 5, a=3), first, now=NOW + 5))
    assert not same_meaning(first, judged(of, samples(NOW + 5, a=1), first, now=NOW + 5))
    assert not same_meaning(first, judged(of, samples(a=2), first, generation=2))
    assert not same_meaning(first, msgspec.structs.replace(first, holds_prefix=True))
    kept_away = policy({"dontschedule": {"rules": rules("a > 1")}})
    assert not same_meaning(judged(kept_away, samples(a=2)), judged(kept_away, samples(a=1)))
    suspended = policy({"dontschedule": {"rules": rules("a > 1")}}, suspend=True)
    rejected, passed = judged(kept_away, samples(a=2)), judged(suspended, samples(a=2))
    assert not same_meaning(rejected, msgspec.structs.replace(passed, holds_prefix=False))
    once = deschedule("a > 1", "b > 1")
    assert not same_meaning(judged(once, samples(a=2)), judged(once, samples(a=2, b=1)))  # what `clear` will ask


@pytest.mark.parametrize(
    ("written", "judged_at"),
    [
        pytest.param(None, NOW, id="no verdict"),
        pytest.param(NOW - 5, NOW, id="written before"),
        pytest.param(NOW + 5, NOW + 5, id="by a clock that is ahead"),
        pytest.param(NOW + FUTURE_TOLERANCE, NOW + FUTURE_TOLERANCE, id="by a clock as far ahead as is tolerated"),
        pytest.param(NOW + 1e9, NOW + FUTURE_TOLERANCE, id="by a clock of the far future"),
    ],
)
def test_whoever_judges_does_so_no_earlier_than_who_did_before_within_bounds(
    written: float | None, judged_at: float
) -> None:
    before = None
    if written is not None:
        before = NodeVerdict(node_uid="", nodes_revision=1, policies_revision=1, time=written, policies={})
    assert evaluation_time(before, NOW) == judged_at


def test_the_time_of_a_judgement_is_as_exact_as_it_is_written() -> None:
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
    """What is different from `after` seconds later on."""

    after: int
    sample: Mapping[str, int] | None = None
    source: str = "s"
    labels: Mapping[str, str] | None = None
    spec: Mapping[str, object] | None = None


# Said of every field: else Hypothesis makes up those of a NamedTuple that are left out.
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
    """Everything that a verdict comes from, at one time."""

    now: float
    policy: Policy
    generation: int
    known: NodeSamples
    labels: Mapping[str, str] | None
    spec: Any  # of the policy, as it is written
    said: Mapping[tuple[str, str], tuple[float, int]]  # by source and metric when it was said last, and what

    def judge(self, before: PolicyVerdict | None, *, now: float | None = None) -> tuple[PolicyVerdict, float | None]:
        return step(
            self.policy,
            self.known,
            before,
            now=self.now if now is None else now,
            generation=self.generation,
            labels=self.labels,
        )


def history(spec: Any, happening: Sequence[Event]) -> list[Moment]:
    """The moments at which something happens, each as it stands after that."""
    of, _ = parse_policy(KEY, spec)
    known: NodeSamples = ()
    labels: Mapping[str, str] | None = None
    now, generation = NOW, 1
    said: dict[tuple[str, str], tuple[float, int]] = {}
    moments = [Moment(now, of, generation, known, labels, spec, {})]
    for sequence, event in enumerate(happening, 2):
        now += event.after
        if event.sample is not None:
            known = merge(known, [scrape(now, event.sample, event.source, sequence)])
            said |= {(event.source, metric): (now, value) for metric, value in event.sample.items()}
        if event.labels is not None:
            labels = event.labels
        if event.spec is not None:
            of, generation, spec = parse_policy(KEY, event.spec)[0], generation + 1, event.spec
        moments.append(Moment(now, of, generation, known, labels, spec, dict(said)))
    return moments


def by_deadlines(moments: Sequence[Moment], end: float) -> dict[float, PolicyVerdict]:
    """The verdicts of one who looks only when something happens, and when a deadline says so."""
    verdicts: dict[float, PolicyVerdict] = {}
    verdict: PolicyVerdict | None = None
    for moment, until in zip(moments, [each.now for each in moments[1:]] + [end], strict=True):
        verdict, due = moment.judge(verdict)
        verdicts[moment.now] = verdict
        while due is not None and due < until:
            now = due
            verdict, due = moment.judge(verdict, now=now)
            assert due is None or due > now
            verdicts[now] = verdict
    return verdicts


@given(specs, events)
def test_deadlines_miss_nothing(spec: Any, happening: list[Event]) -> None:
    """Who looks every quarter of a second never knows more than who looks at deadlines only."""
    moments = history(spec, happening)
    end = moments[-1].now + 20
    lazy = by_deadlines(moments, end)
    eager: PolicyVerdict | None = None
    standing: PolicyVerdict | None = None
    for quarter in range(int((end - NOW) * 4)):
        now = NOW + quarter / 4
        for moment in [each for each in moments if each.now == now]:
            eager = moment.judge(eager)[0]
        latest = [each for each in moments if each.now <= now][-1]
        eager = latest.judge(eager, now=now)[0]
        standing = lazy.get(now, standing)
        assert standing is not None
        assert eager == standing


@given(specs, events)
def test_looking_again_changes_nothing(spec: Any, happening: list[Event]) -> None:
    moments = history(spec, happening)
    verdict: PolicyVerdict | None = None
    for moment in moments:
        verdict, due = moment.judge(verdict)
        assert moment.judge(verdict) == (verdict, due)
        if due is not None:
            assert due > moment.now
            assert moment.judge(verdict, now=nextafter(due, -inf))[0] == verdict


class Read(NamedTuple):
    """A rule as it is written, and what the samples of one moment say of it; `counts` is that by `onStale`."""

    rule: Mapping[str, Any]
    value: int | None
    state: State
    counts: State


COMPARE = {"GreaterThan": gt, "LessThan": lt, "Equals": eq}
SECONDS = {"0s": 0, "3s": 3, "4s": 4, "7s": 7, "9s": 9}


def read(moment: Moment, rule: Mapping[str, Any], on_stale: str) -> Read:
    """Of equal times the first source counts."""
    sources = [rule["source"]] if "source" in rule else ["s", "t"]
    found = [
        moment.said[source, rule["metricname"]] for source in sources if (source, rule["metricname"]) in moment.said
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


def together(states: Iterable[State], how: str) -> State:
    """Unknown exactly where it depends on what nobody knows."""
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
    """The value of the worst rule, where nothing may be worse than it."""
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
    """What a label's rules come to, as `onStale` counts them."""
    strategy = moment.spec["strategies"][kind]
    concerned = selected(moment)
    if not concerned:
        return UNKNOWN if concerned is None else MET
    how = strategy.get("logicalOperator", "anyOf")
    every = [read(moment, rule, strategy.get("onStale", "hold")) for rule in strategy["rules"]]
    return together((each.counts for each in (carrying if how == "anyOf" else every)), how)


class Expected:
    """The wishes that follow moment by moment, with since when each label's rules are violated, or met."""

    def __init__(self) -> None:
        self.since: dict[tuple[str, str], tuple[State, float]] = {}

    def desired_labels(self, moment: Moment) -> dict[str, DesiredLabel]:
        before, self.since = self.since, {}
        found: dict[str, DesiredLabel] = {}
        for kind in ("deschedule", "labeling"):
            if kind in moment.spec["strategies"]:
                for label, carrying in carried(moment, kind).items():
                    stood = before.get((kind, label), (UNKNOWN, moment.now))
                    found[label] = self.desired(moment, kind, label, carrying, stood)
        silent = moment.spec.get("suspend") or moment.spec.get("dryRun")
        return dict.fromkeys(found, HOLD) if silent else found

    def desired(
        self, moment: Moment, kind: str, label: str, carrying: Sequence[Read], stood: tuple[State, float]
    ) -> DesiredLabel:
        strategy = moment.spec["strategies"][kind]
        state = counted(moment, kind, carrying)
        if state is UNKNOWN:
            if stood[0] is VIOLATED:  # what is unknown does not end it
                self.since[kind, label] = stood
            return HOLD
        since = stood[1] if state is stood[0] else moment.now
        self.since[kind, label] = (state, since)
        if state is VIOLATED:
            done = moment.now - since >= SECONDS[strategy.get("for", "0s")]
            return to_set(kind, label, carrying, strategy.get("onStale", "hold")) if done else HOLD
        done = selected(moment) is False or moment.now - since >= SECONDS[strategy.get("clearFor", "0s")]
        return ABSENT if done else HOLD


@given(specs, events)
def test_wishes_are_those_that_the_samples_and_the_policy_as_written_give(spec: Any, happening: list[Event]) -> None:
    """Also the law of removal: absent only where fresh samples have met the rules, or by a word of the policy."""
    verdict: PolicyVerdict | None = None
    expected = Expected()
    for moment in history(spec, happening):
        verdict = moment.judge(verdict)[0]
        assert desired_labels(verdict) == expected.desired_labels(moment)


@given(specs, events)
def test_the_state_of_a_label_is_what_samples_and_the_policy_as_written_give(spec: Any, happening: list[Event]) -> None:
    """`tas.enforcing.removal` asks for no more before a label goes."""
    for moment in history(spec, happening):
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
def test_the_order_in_which_it_is_told_makes_no_difference(spec: Any, happening: list[Event], random: Any) -> None:
    moment = history(spec, happening)[-1]
    scrapes = [*moment.known]
    random.shuffle(scrapes)
    strategies = [*moment.policy.strategies.items()]
    random.shuffle(strategies)
    turned = moment._replace(
        known=merge((), scrapes), policy=msgspec.structs.replace(moment.policy, strategies=dict(strategies))
    )
    assert turned.judge(None) == moment.judge(None)


@given(specs, events)
def test_the_order_of_rules_decides_values_of_ties_only(spec: Any, happening: list[Event]) -> None:
    moment = history(spec, happening)[-1]
    turned = {
        kind: msgspec.structs.replace(strategy, rules=strategy.rules[::-1])
        for kind, strategy in moment.policy.strategies.items()
    }
    verdict = moment._replace(policy=msgspec.structs.replace(moment.policy, strategies=turned)).judge(None)[0]
    expected = moment.judge(None)[0]
    assert {label: each.kind for label, each in desired_labels(verdict).items()} == {
        label: each.kind for label, each in desired_labels(expected).items()
    }
    assert {kind: each.state for kind, each in verdict.strategies.items()} == {
        kind: each.state for kind, each in expected.strategies.items()
    }
