"""Verdicts: every table of wishes, and histories against the same history looked at every second."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import inf, nextafter
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.manifest import parse_policy
from tas.policy import LABEL_PREFIX, LogicalOperator, OnStale, Policy, PolicyKey, StrategyType
from tas.quantity import parse_quantity
from tas.rules import State, rule_state
from tas.sample import NodeSamples, Scrape, merge, newest
from tas.verdict import (
    ABSENT,
    HOLD,
    VIOLATING,
    PolicyVerdict,
    StrategyVerdict,
    Wish,
    WishKind,
    confirms_removal,
    deschedule_label,
    evaluate_policy,
    has_word,
    labeling_prefix,
    same_meaning,
)

VIOLATED, MET, UNKNOWN = State.VIOLATED, State.MET, State.UNKNOWN
SET = Wish(WishKind.SET, VIOLATING)
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
        stale_after=STALE_AFTER,
        before=before,
        now=now,
        **watching,
    )


def judged(of: Policy, known: NodeSamples = (), before: PolicyVerdict | None = None, **how: Any) -> PolicyVerdict:
    return step(of, known, before, **how)[0]


def only(verdict: PolicyVerdict) -> StrategyVerdict:
    (strategy,) = verdict.strategies.values()
    return strategy


def wishes(verdict: PolicyVerdict) -> dict[str, Wish]:
    return {label: found.wish for strategy in verdict.strategies.values() for label, found in strategy.labels.items()}


def wish(verdict: PolicyVerdict) -> Wish:
    (found,) = wishes(verdict).values()
    return found


def value(text: str) -> Wish:
    return Wish(WishKind.SET, text)


def unless_any(text: str) -> Wish:
    return Wish(WishKind.SET_UNLESS_ANY, text)


# The vectors of the specification


@pytest.mark.parametrize(
    ("known", "state", "wished"),
    [
        pytest.param({}, UNKNOWN, HOLD, id="S1-no-samples"),
        pytest.param({"memory": 100}, VIOLATED, SET, id="S2"),
        pytest.param({"cpu": 11}, UNKNOWN, HOLD, id="S3-one-metric-unknown"),
        pytest.param({"cpu": 11, "memory": 1}, MET, ABSENT, id="S3-met"),
        pytest.param({"cpu": 9, "memory": 1}, VIOLATED, SET, id="either"),
    ],
)
def test_tas_S_deschedule(known: dict[str, int], state: State, wished: Wish) -> None:
    verdict = judged(deschedule("memory > 1", "cpu < 10"), samples(**known))
    assert only(verdict).state is state
    assert wishes(verdict) == {"p": wished}


def test_tas_S7_what_is_wished_of_one_node_knows_no_other() -> None:
    of = deschedule("memory > 1")
    first = judged(of, samples(memory=2))
    assert wish(judged(of, samples(memory=1))) == ABSENT
    assert wish(judged(of, samples(memory=2), first)) == SET


def test_tas_S9_D41_an_edit_that_changes_nothing_changes_nothing() -> None:
    of = deschedule("memory > 1", **{"for": "10s", "clearFor": "10s"})
    before = judged(of, samples(memory=2))
    after = judged(of, samples(memory=2), before, now=NOW + 10, generation=2)
    assert after == msgspec.structs.replace(judged(of, samples(memory=2), before, now=NOW + 10), generation=2)
    assert wish(after) == SET
    assert only(after).changed == NOW
    assert only(after).labels["p"].violated_since == NOW


@pytest.mark.parametrize(
    ("of", "known", "wished"),
    [
        pytest.param(("memory > 99 -> gpu=false",), {"memory": 2000}, {"gpu": value("false")}, id="G1"),
        pytest.param(("memory > 3000 -> gpu=false",), {"memory": 2000}, {"gpu": ABSENT}, id="G2-G8"),
        pytest.param(
            ("memory > 100 -> d=card0", "cpu > 100 -> d=card1"),
            {"memory": 2000, "cpu": 200},
            {"d": value("card0")},
            id="G3-largest",
        ),
        pytest.param(
            ("memory < 10000 -> d=card0", "cpu < 10000 -> d=card1"),
            {"memory": 2000, "cpu": 200},
            {"d": value("card1")},
            id="G4-smallest",
        ),
        pytest.param(
            ("memory = 2000 -> d=card1", "cpu = 200 -> d=card0"),
            {"memory": 2000, "cpu": 200},
            {"d": value("card1")},
            id="G5-first-listed",
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
            id="G9-D50",
        ),
        pytest.param(
            ("memory > 9 -> a=1", "cpu > 90 -> b=1"),
            {"memory": 10, "cpu": 200},
            {"a": value("1"), "b": value("1")},
            id="L5-both",
        ),
        pytest.param(
            ("memory > 9 -> a=1", "absent > 90 -> b=1"), {"memory": 10}, {"a": value("1"), "b": HOLD}, id="L6-per-key"
        ),
        pytest.param(
            ("memory > 9 -> a=1", "cpu > 900 -> b=1"),
            {"memory": 10, "cpu": 200},
            {"a": value("1"), "b": ABSENT},
            id="L4-per-key",
        ),
    ],
)
def test_tas_G_labeling(of: tuple[str, ...], known: dict[str, int], wished: dict[str, Wish]) -> None:
    assert wishes(judged(labeling(*of), samples(**known))) == {K + key: each for key, each in wished.items()}


def test_tas_G6_D52_of_different_operators_nothing_is_wished() -> None:
    parsed, problems = parse_policy(
        KEY, {"strategies": {"labeling": {"rules": rules("memory < 2000 -> d=card0", "cpu = 200 -> d=card1 e=1")}}}
    )
    assert [problem.field for problem in problems] == ["spec.strategies.labeling.rules"]
    assert wishes(judged(parsed, samples(memory=200, cpu=200))) == {K + "e": value("1")}


def test_tas_G10_D51_a_bad_label_spoils_no_other() -> None:
    parsed, problems = parse_policy(
        KEY, {"strategies": {"labeling": {"rules": rules("m > 1 -> a=1 foo b=-1 a=2 x~y=1 x/y=1")}}}
    )
    assert len(problems) == 5
    assert wishes(judged(parsed, samples(m=2))) == {K + "a": value("1")}


def test_what_no_label_can_be_is_not_wished() -> None:
    of = labeling("m > 1 -> ok=1")
    strategy = of.strategies[StrategyType.LABELING]
    rule = msgspec.structs.replace(strategy.rules[0], labels=(("a/b", "1"), ("ok", "1"), ("v", "-"), ("w" * 64, "1")))
    of = msgspec.structs.replace(
        of, strategies={StrategyType.LABELING: msgspec.structs.replace(strategy, rules=(rule,))}
    )
    assert wishes(judged(of, samples(m=2))) == {K + "ok": value("1")}


def test_tas_D45_names_that_are_too_long() -> None:
    long, longer = PolicyKey("default", "p" * 64), PolicyKey("default", "p." * 120 + "p")
    assert deschedule_label(long) is None
    verdict = judged(deschedule("m > 1", key=long), samples(m=2))
    assert only(verdict).state is VIOLATED
    assert wishes(verdict) == {}
    assert wishes(judged(labeling("m > 1 -> a=1", key=long), samples(m=2))) == {labeling_prefix(long) + "a": value("1")}
    assert wishes(judged(labeling("m > 1 -> a=1", key=longer), samples(m=2))) == {}


def test_tas_C5_what_an_edit_leaves_out_is_gone_from_the_verdict() -> None:
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
            assert wish(judged(of, samples(**known))) == value(winner)


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
    any_of: Wish
    all_of: Wish


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
        assert wish(judged(of, known)) == wished, operator


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
    assert wish(judged(of, seen_as(a=first, b=second))) == LABELING_ANY_OF[first, second][HOLDING.index(on_stale)]


@pytest.mark.parametrize("on_stale", HOLDING)
@pytest.mark.parametrize(("first", "second"), EVERY)
def test_two_rules_of_labeling_for_two_keys(first: State | None, second: State | None, on_stale: OnStale) -> None:
    known = seen_as(a=first, b=second)
    apart = judged(labeling("a > 1 -> x=1", "b > 1 -> y=1", onStale=on_stale.value), known)
    for metric, key in (("a", "x"), ("b", "y")):
        alone = judged(labeling(f"{metric} > 1 -> {key}=1", onStale=on_stale.value), known)
        assert wishes(apart)[K + key] == wish(alone)
    together = labeling("a > 1 -> x=1", "b > 1 -> y=1", onStale=on_stale.value, logicalOperator="allOf")
    label = wish(judged(deschedule("a > 1", "b > 1", onStale=on_stale.value, logicalOperator="allOf"), known))
    expected = value("1") if label == SET else label
    assert wishes(judged(together, known)) == {K + "x": expected, K + "y": expected}


def test_one_value_for_all_is_no_question_where_unknown_counts() -> None:
    texts = ("a > 1 -> x=1", "b > 1 -> x=1")
    assert wish(judged(labeling(*texts, onStale="violate"), seen_as(a=None, b=None))) == value("1")
    assert wish(judged(labeling(*texts), seen_as(a=VIOLATED, b=None))) == unless_any("1")


@pytest.mark.parametrize("on_stale", HOLDING)
@pytest.mark.parametrize("state", [*State, None])
def test_where_the_selector_matters(state: State | None, on_stale: OnStale) -> None:
    of = deschedule("a > 1", onStale=on_stale.value, clearFor="1h", nodeSelector={"matchLabels": {"zone": "a"}})
    plain = deschedule("a > 1", onStale=on_stale.value, clearFor="1h")
    known = seen_as(a=state)
    unknown, outside, inside = (judged(of, known, labels=labels) for labels in (None, {"zone": "b"}, {"zone": "a"}))
    assert (only(unknown).state, wish(unknown)) == (UNKNOWN, HOLD)
    assert (only(outside).state, wish(outside)) == (MET, ABSENT)
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
    assert set(wishes(silent).values()) == {HOLD}
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
    assert wish(judged(wet, samples(NOW + 20, a=2), before, now=NOW + 20)) == SET


@pytest.mark.parametrize("state", [*State, None])
def test_what_cannot_be_read_holds(state: State | None) -> None:
    good, bad = rules("a > 1 -> x=1"), [{"metricname": "b", "operator": "Worse", "target": 1, "labels": ["y=1"]}]
    of = policy({"labeling": {"rules": good + bad}, "deschedule": {"rules": rules("a > 1")}}, refused=True)
    verdict = judged(of, seen_as(a=state, b=VIOLATED))
    assert verdict.holds_prefix
    labels = verdict.strategies[StrategyType.LABELING].labels
    assert {label: each.wish for label, each in labels.items()} == {K + "x": HOLD, K + "y": HOLD}
    alone = wish(judged(deschedule("a > 1"), seen_as(a=state)))
    assert verdict.strategies[StrategyType.DESCHEDULE].labels["p"].wish == alone


def test_a_deschedule_that_cannot_be_read_holds_its_own_label_only() -> None:
    of = policy({"deschedule": 1, "labeling": {"rules": rules("a > 1 -> x=1")}}, refused=True)
    verdict = judged(of, samples(a=2))
    assert wishes(verdict) == {"p": HOLD, K + "x": value("1")}
    assert not verdict.holds_prefix


# Time


def test_for_waits_and_is_not_broken_by_unknown() -> None:
    of = deschedule("a > 1", **{"for": "60s"})
    first, due = step(of, samples(a=2))
    assert (wish(first), due) == (HOLD, NOW + STALE_AFTER)
    silent, due = step(of, samples(a=2), first, now=NOW + 40)
    assert (only(silent).state, wish(silent), due) == (UNKNOWN, HOLD, None)
    later, due = step(of, samples(a=2), silent, now=NOW + 70)
    assert (wish(later), due) == (HOLD, None)  # it completes only while violated
    again = judged(of, samples(NOW + 80, a=2), later, now=NOW + 80)
    assert (wish(again), only(again).labels["p"].violated_since) == (SET, NOW)


def test_for_is_broken_by_met() -> None:
    of = deschedule("a > 1", **{"for": "20s"})
    met = judged(of, samples(NOW + 10, a=1), judged(of, samples(a=2)), now=NOW + 10)
    assert wish(met) == ABSENT
    again, due = step(of, samples(NOW + 20, a=2), met, now=NOW + 20)
    assert (wish(again), due) == (HOLD, NOW + 40)


@pytest.mark.parametrize("between", [VIOLATED, UNKNOWN])
def test_clear_for_needs_unbroken_met(between: State) -> None:
    of = deschedule("a > 1", clearFor="20s")
    first, due = step(of, samples(a=1))
    assert (wish(first), due) == (HOLD, NOW + 20)
    known = samples(NOW + 10, a=2) if between is VIOLATED else ()
    broken = judged(of, known, first, now=NOW + 10)
    assert only(broken).state is between
    again, due = step(of, samples(NOW + 12, a=1), broken, now=NOW + 12)
    assert (wish(again), due) == (HOLD, NOW + 32)
    assert wish(judged(of, samples(NOW + 12, a=1), again, now=NOW + 32)) == ABSENT


@pytest.mark.parametrize(
    "watching", [{"watched_since": NOW + 15}, {"unmet": {KEY.name: NOW + 15}}], ids=["not watched", "seen unmet"]
)
def test_clear_for_counts_only_what_was_seen_met(watching: Mapping[str, Any]) -> None:
    of = deschedule("a > 1", clearFor="20s")
    first = judged(of, samples(a=1))
    again, due = step(of, samples(NOW + 20, a=1), first, now=NOW + 20, **watching)
    assert (wish(again), due) == (HOLD, NOW + 35)
    assert only(again) == only(first)  # who has watched longer goes on from there
    cleared = judged(of, samples(NOW + 35, a=1), again, now=NOW + 35, **watching)
    assert wish(cleared) == ABSENT
    restarted = judged(of, samples(NOW + 36, a=1), cleared, now=NOW + 36, watched_since=NOW + 36)
    assert wish(restarted) == ABSENT


def test_clear_waits_for_clear_for_as_well() -> None:
    of = deschedule("a > 1", onStale="clear", clearFor="20s")
    violated, due = step(of, samples(a=2))
    assert (wish(violated), due) == (SET, NOW + STALE_AFTER)
    stale, due = step(of, samples(a=2), violated, now=NOW + 30)
    assert (only(stale).state, wish(stale), due) == (UNKNOWN, HOLD, NOW + 50)
    assert wish(judged(of, samples(a=2), stale, now=NOW + 50)) == ABSENT


def test_clear_remembers_that_there_was_a_sample() -> None:
    of = deschedule("a > 1", onStale="clear")
    before = judged(of, samples(a=2))
    assert only(before).sampled == ("a",)
    assert wish(judged(of, (), before, now=NOW + 4000)) == ABSENT
    assert wish(judged(of, (), None, now=NOW + 4000)) == HOLD


def test_clear_says_nothing_of_a_metric_that_an_edit_brought() -> None:
    before = judged(deschedule("a > 1", onStale="clear"), samples(a=2))
    edited = deschedule("b > 1", onStale="clear")
    assert wish(judged(edited, samples(a=2), before, generation=2)) == HOLD
    policy_of_source = policy({"deschedule": {"rules": [{**rules("a > 1")[0], "source": "t"}], "onStale": "clear"}})
    assert wish(judged(policy_of_source, samples(a=2), before, generation=2)) == HOLD


def test_an_edit_keeps_how_long_it_has_been_so() -> None:
    before = judged(deschedule("a > 1", **{"for": "20s"}), samples(a=3))
    edited = judged(deschedule("a > 2", **{"for": "20s"}), samples(a=3), before, now=NOW + 20, generation=2)
    assert wish(edited) == SET
    assert (only(edited).changed, only(edited).labels["p"].violated_since) == (NOW, NOW)


def test_another_policy_of_the_name_begins_anew() -> None:
    of = deschedule("a > 1", onStale="clear", **{"for": "20s"})
    before = judged(of, samples(a=2))
    other, due = step(of, samples(a=2), before, now=NOW + 25, uid="other")
    assert (wish(other), due, only(other).changed) == (HOLD, NOW + STALE_AFTER, NOW + 25)
    assert wish(judged(of, (), before, uid="other")) == HOLD
    assert not same_meaning(before, judged(of, samples(a=2), uid="other"))


def test_a_time_that_is_yet_to_come_was_a_wrong_clock() -> None:
    of = deschedule("a > 1", **{"for": "20s"})
    ahead = judged(of, samples(NOW + 10**6, a=2), now=NOW + 10**6)
    back, due = step(of, samples(a=2), ahead)
    assert (wish(back), due) == (HOLD, NOW + 20)
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


# Confirming a removal


def confirmed(of: Policy, label: str, known: NodeSamples, labels: Mapping[str, str] | None = None) -> bool:
    return confirms_removal(of, label, samples=known, labels=labels, stale_after=STALE_AFTER, now=NOW)


@pytest.mark.parametrize("on_stale", HOLDING)
@pytest.mark.parametrize(("first", "second"), EVERY)
def test_a_removal_is_confirmed_where_it_is_wished(
    first: State | None, second: State | None, on_stale: OnStale
) -> None:
    known = seen_as(a=first, b=second)
    for operator in ("anyOf", "allOf"):
        extra = {"logicalOperator": operator, "onStale": on_stale.value}
        for of in (
            deschedule("a > 1", "b > 1", **extra),
            labeling("a > 1 -> x=1 y=1", "b > 1 -> y=1 z=1", **extra),
        ):
            for label, each in wishes(judged(of, known)).items():
                assert confirmed(of, label, known) is (each == ABSENT), label


def test_a_removal_that_is_not_the_policys_is_not_confirmed() -> None:
    met = samples(a=1)
    of = policy({"deschedule": {"rules": rules("a > 1")}, "labeling": {"rules": rules("a > 1 -> x=1")}})
    assert confirmed(of, "p", met)
    assert confirmed(of, K + "x", met)
    for label in (K + "y", "q", K, "", LABEL_PREFIX + "q/x"):
        assert not confirmed(of, label, met)
    for word in ("suspend", "dryRun"):
        assert not confirmed(deschedule("a > 1", **{word: True}), "p", met)
    bad = policy({"deschedule": {"rules": [*rules("a > 1"), 1], "logicalOperator": "allOf"}}, refused=True)
    assert not confirmed(bad, "p", met)
    assert not confirmed(policy({"deschedule": {"rules": []}}), "p", met)
    assert not confirmed(policy({"dontschedule": {"rules": rules("a > 1")}}), "p", met)


def test_a_selector_confirms_by_labels_that_were_given() -> None:
    of = deschedule("a > 1", nodeSelector={"matchLabels": {"zone": "a"}})
    assert confirmed(of, "p", samples(a=2), {"zone": "b"})
    assert not confirmed(of, "p", samples(a=2), {"zone": "a"})
    assert not confirmed(of, "p", samples(a=1), None)
    assert confirmed(of, "p", samples(a=1), {"zone": "a"})


def test_a_policy_has_a_word_in_the_labels_that_its_verdict_speaks_of_or_holds() -> None:
    named = "telemetry.aware.scheduling.p/a"
    of = labeling("m > 1 -> a=1")
    assert has_word(of, named)
    assert not has_word(of, "telemetry.aware.scheduling.p/b")
    assert not has_word(of, "p")
    silent = labeling("m > 1 -> a=1", suspend=True)
    assert has_word(silent, "telemetry.aware.scheduling.p/b")
    assert not has_word(silent, "p")
    assert has_word(deschedule("m > 1"), "p")


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


events = st.lists(
    st.one_of(
        st.builds(
            Event,
            after=st.integers(0, 6),
            sample=st.dictionaries(st.sampled_from(METRICS), st.integers(0, 3), min_size=1),
            source=st.sampled_from(["s", "t"]),
        ),
        st.builds(Event, after=st.integers(0, 6), labels=st.sampled_from([{"zone": "a"}, {"zone": "b"}])),
        st.builds(Event, after=st.integers(0, 3), spec=specs),
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
    moments = [Moment(now, of, generation, known, labels)]
    for sequence, event in enumerate(happening, 2):
        now += event.after
        if event.sample is not None:
            known = merge(known, [scrape(now, event.sample, event.source, sequence)])
        if event.labels is not None:
            labels = event.labels
        if event.spec is not None:
            of, generation = parse_policy(KEY, event.spec)[0], generation + 1
        moments.append(Moment(now, of, generation, known, labels))
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


class Rules(NamedTuple):
    """What there is to say of the rules of one label, from the samples alone."""

    states: Sequence[State]
    sampled: Sequence[bool]
    combine: Callable[[Iterable[bool]], bool]

    @classmethod
    def of(cls, moment: Moment, kind: StrategyType, label: str) -> "Rules":
        strategy = moment.policy.strategies[kind]
        assert moment.policy.stale_after is not None
        any_of = strategy.logical_operator is LogicalOperator.ANY_OF
        states, sampled = [], []
        for rule in strategy.rules:
            if any_of and kind is StrategyType.LABELING and label.removeprefix(K) not in dict(rule.labels):
                continue
            found = newest(moment.known, rule.metric, rule.source)
            fresh = found is not None and moment.now - found.time < moment.policy.stale_after
            states.append(rule_state(rule, found.metrics[rule.metric] if found is not None and fresh else None))
            sampled.append(found is not None)
        return cls(states, sampled, all if any_of else any)

    @property
    def are_met(self) -> bool:
        return self.combine(state is MET for state in self.states)

    @property
    def are_met_or_stale(self) -> bool:
        return self.combine(
            state is MET or (state is UNKNOWN and sampled)
            for state, sampled in zip(self.states, self.sampled, strict=True)
        )


@given(specs, events)
def test_the_law_of_removal(spec: Any, happening: list[Event]) -> None:
    """A removal follows from fresh samples that meet the rules, or from a word of the policy; unknown holds."""
    verdict: PolicyVerdict | None = None
    for moment in history(spec, happening):
        verdict = moment.judge(verdict)[0]
        of, selector = moment.policy, moment.policy.node_selector
        selected = selector is None or (moment.labels is not None and selector.matches(moment.labels))
        left = not selected and moment.labels is not None
        for kind, strategy in verdict.strategies.items():
            on_stale, for_, clear_for = (
                getattr(of.strategies[kind], name) for name in ("on_stale", "for_", "clear_for")
            )
            for label, found in strategy.labels.items():
                its = Rules.of(moment, kind, label)
                if of.suspend or of.dry_run or (found.state is UNKNOWN and on_stale is OnStale.HOLD):
                    assert found.wish == HOLD
                if found.wish == ABSENT and not left:
                    assert selected
                    assert its.are_met or (on_stale is OnStale.CLEAR and its.are_met_or_stale)
                    assert found.met_since is not None
                    assert moment.now >= found.met_since + clear_for
                if found.wish.kind in (WishKind.SET, WishKind.SET_UNLESS_ANY):
                    assert selected
                    assert VIOLATED in its.states or on_stale is OnStale.VIOLATE
                    assert found.violated_since is not None
                    assert moment.now >= found.violated_since + for_


@given(specs, events)
def test_what_is_wished_away_is_confirmed(spec: Any, happening: list[Event]) -> None:
    verdict: PolicyVerdict | None = None
    for moment in history(spec, happening):
        verdict = moment.judge(verdict)[0]
        for label, found in wishes(verdict).items():
            if found == ABSENT:
                assert confirms_removal(
                    moment.policy,
                    label,
                    samples=moment.known,
                    labels=moment.labels,
                    stale_after=STALE_AFTER,
                    now=moment.now,
                )


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
    assert {label: each.kind for label, each in wishes(verdict).items()} == {
        label: each.kind for label, each in wishes(expected).items()
    }
    assert {kind: each.state for kind, each in verdict.strategies.items()} == {
        kind: each.state for kind, each in expected.strategies.items()
    }
