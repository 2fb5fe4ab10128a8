"""Scores, against models that work with fractions and one node at a time."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import floor
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.policy.policy import OnStale, Operator, Rule, ScoreMode, Strategy, StrategyType
from tas.scoring.score import MAX_SCORE, NEUTRAL_SCORE, Ranking, strategy_scores
from tas.values.quantity import NANO, Quantity, parse_quantity

GREATER, LESS, EQUALS = Operator.GREATER_THAN, Operator.LESS_THAN, Operator.EQUALS
RANK, PROPORTIONAL = ScoreMode.RANK, ScoreMode.PROPORTIONAL
UNREADABLE = Rule(metric="", operator=None, target=None)

Values = Mapping[str, Quantity]

node_names = st.integers(0, 39).map("n{}".format)
quantities = st.one_of(
    st.integers(-3, 3).map(lambda number: Quantity(number * NANO)),
    st.integers(-20, 20).map(Quantity),  # apart by so little that every rounding shows
    st.integers(0, 10**12).map(Quantity),
    st.integers(-(10**49), 10**49).map(Quantity),
    st.integers(2**60, 2**60 + 20).map(Quantity),  # too close together to differ as floats
)
node_values = st.dictionaries(node_names, quantities, max_size=40)
directions = st.sampled_from([GREATER, LESS])
modes = st.sampled_from(ScoreMode)


def rule(operator: Operator = GREATER, target: str = "0", weight: int | None = None) -> Rule:
    return Rule(metric="m", operator=operator, target=parse_quantity(target), weight=weight)


def strategy(*rules: Rule, mode: ScoreMode = RANK, on_stale: OnStale = OnStale.LOWEST) -> Strategy:
    return Strategy(type=StrategyType.SCHEDULEONMETRIC, rules=rules, on_stale=on_stale, score_mode=mode)


def of(**values: int | str) -> dict[str, Quantity]:
    return {node: parse_quantity(str(value)) for node, value in values.items()}


def scored(rule: Rule, mode: ScoreMode, values: Values) -> Mapping[str, int]:
    """The scores by one rule, of candidates that all have a value."""
    return strategy_scores(strategy(rule, mode=mode), [values], values)


def half_up(exact: Fraction) -> int:
    return floor(exact + Fraction(1, 2))


def naive(operator: Operator, target: Quantity, mode: ScoreMode, values: Values, node: str) -> int:
    """The score of one node, computed directly from the definition."""
    value = values[node]
    if operator is EQUALS:
        return 10 if value == target else 0
    best_first = sorted(set(values.values()), reverse=operator is GREATER)
    if mode is RANK:
        rank, count = best_first.index(value), len(best_first)
        return 10 - rank if count <= 11 else 10 - floor(Fraction(rank * 11, count))
    best, worst = best_first[0], best_first[-1]
    return 10 if best == worst else half_up(10 * Fraction(value - worst, best - worst))


def defined(operator: Operator, mode: ScoreMode, values: Values) -> dict[str, int]:
    """The score of each node by a rule with the target 1, computed directly from the definition."""
    return {node: naive(operator, Quantity(NANO), mode, values, node) for node in values}


class TestVectors:
    @pytest.mark.parametrize(
        ("operator", "values", "scores"),
        [
            pytest.param(GREATER, of(a=100, b=90), {"a": 10, "b": 9}, id="facts_P1"),
            pytest.param(LESS, of(a=100, b=200, c=10), {"c": 10, "a": 9, "b": 8}, id="facts_P2"),
            pytest.param(GREATER, of(a=5, b=5), {"a": 10, "b": 10}, id="facts_P5_D2-equal-values"),
            pytest.param(
                LESS, of(a="1500m", b="1.5", c=2), {"a": 10, "b": 10, "c": 9}, id="facts_D2-equal-in-another-notation"
            ),
            pytest.param(EQUALS, of(a=40, b=41, c="40000m"), {"a": 10, "b": 0, "c": 10}, id="facts_P6_D3"),
            pytest.param(GREATER, of(a="0.000000001", b=0), {"a": 10, "b": 9}, id="one-nano-is-a-rank"),
            pytest.param(GREATER, of(a=2**63, b=2**63 - 1), {"a": 10, "b": 9}, id="beyond-int64"),
        ],
    )
    def test_rank(self, operator: Operator, values: Values, scores: dict[str, int]) -> None:
        assert strategy_scores(strategy(rule(operator, "40")), [values], list(values)) == scores

    def test_facts_P3_only_candidates_are_compared(self) -> None:
        values = of(a=100, b=90, d=1000)
        assert strategy_scores(strategy(rule()), [values], ["a", "b", "c"]) == {"a": 10, "b": 9, "c": 0}

    def test_facts_D1_an_unknown_node_has_the_score_of_on_stale(self) -> None:
        neutral = strategy(rule(), on_stale=OnStale.NEUTRAL)
        assert strategy_scores(neutral, [of(a=1)], ["a", "b"]) == {"a": 10, "b": 5}
        assert strategy_scores(neutral, [{}], ["a", "b"]) == {"a": 5, "b": 5}
        assert strategy_scores(strategy(rule()), [{}], ["a", "b"]) == {"a": 0, "b": 0}

    def test_facts_P4_D1_twelve_values_share_eleven_scores(self) -> None:
        values = {f"n{value}": Quantity(value) for value in range(12)}
        scores = strategy_scores(strategy(rule(LESS)), [values], values)
        assert [scores[f"n{value}"] for value in range(12)] == [10, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]

    @pytest.mark.parametrize("count", [1, 2, 11])
    def test_up_to_eleven_values_lose_one_a_rank(self, count: int) -> None:
        values = {f"n{value}": Quantity(value) for value in range(count)}
        assert scored(rule(LESS), RANK, values) == {f"n{value}": 10 - value for value in range(count)}

    def test_facts_P10_D5_only_the_first_rule_counts(self) -> None:
        several = strategy(rule(GREATER), rule(LESS))
        assert strategy_scores(several, [of(a=2, b=1), of(a=2, b=1)], ["a", "b"]) == {"a": 10, "b": 9}
        assert strategy_scores(several, [{}, of(a=2, b=1)], ["a", "b"]) == {"a": 0, "b": 0}

    @pytest.mark.parametrize(
        ("operator", "scores"),
        [
            (GREATER, {"a": 0, "b": 0, "c": 1, "d": 5, "e": 9, "f": 10, "g": 10}),
            (LESS, {"a": 10, "b": 10, "c": 10, "d": 5, "e": 1, "f": 1, "g": 0}),
        ],
    )
    def test_facts_D4_proportional_rounds_half_up(self, operator: Operator, scores: dict[str, int]) -> None:
        values = of(a=0, b="4.999999999", c=5, d=50, e="94.999999999", f=95, g=100)
        assert strategy_scores(strategy(rule(operator), mode=PROPORTIONAL), [values], values) == scores

    def test_proportional_of_equal_values(self) -> None:
        assert scored(rule(), PROPORTIONAL, of(a=3, b=3)) == {"a": 10, "b": 10}

    def test_no_rules_no_candidates_no_values(self) -> None:
        assert strategy_scores(strategy(), [], ["a"]) == {}
        assert strategy_scores(strategy(rule()), [of(a=1)], []) == {}
        assert scored(rule(), RANK, {}) == scored(rule(), PROPORTIONAL, {}) == {}

    def test_an_unreadable_rule_counts_as_unknown(self) -> None:
        assert strategy_scores(strategy(UNREADABLE), [of(a=1)], ["a"]) == {"a": 0}
        neutral = strategy(UNREADABLE, on_stale=OnStale.NEUTRAL)
        assert strategy_scores(neutral, [of(a=1)], ["a"]) == {"a": 5}

    def test_values_for_each_rule(self) -> None:
        with pytest.raises(ValueError, match="zip"):
            strategy_scores(strategy(rule(), rule()), [of(a=1)], ["a"])


class TestRanking:
    @given(st.integers(1, 60), directions, st.randoms())
    def test_of_nodes_that_all_differ_the_order_is_kept(self, count: int, operator: Operator, order: Random) -> None:
        values = {f"n{value}": Quantity(value) for value in range(count)}
        candidates = list(values)
        order.shuffle(candidates)
        found = strategy_scores(strategy(rule(operator)), [values], candidates)
        assert isinstance(found, Ranking)
        assert found == defined(operator, RANK, values)
        assert list(found) == sorted(values, key=values.__getitem__, reverse=operator is GREATER)
        assert [(node, score) for score, nodes in found.by_score() for node in nodes] == list(found.items())
        assert found.best(5) == tuple(found.items())[:5]

    @given(st.dictionaries(node_names, st.integers(0, 40).map(Quantity), max_size=30), directions)
    def test_nodes_with_one_value_have_one_score(self, values: Values, operator: Operator) -> None:
        found = strategy_scores(strategy(rule(operator)), [values], values)
        assert isinstance(found, Ranking)
        assert found == defined(operator, RANK, values)
        assert sorted(found) == sorted(values)

    def test_no_ranking_if_one_node_is_unknown(self) -> None:
        assert type(strategy_scores(strategy(rule()), [of(a=1, b=2)], "abc")) is dict


class TestWeights:
    def test_scores_combine_by_weight(self) -> None:
        several = strategy(rule(GREATER, weight=3), rule(LESS, weight=1))
        cpu, memory = of(a=100, b=0), of(a=100, b=0)
        # a: (3 x 10 + 1 x 0) / 4 = 7.5, b: (0 + 10) / 4 = 2.5; half up
        assert strategy_scores(several, [cpu, memory], ["a", "b"]) == {"a": 8, "b": 3}

    def test_rules_without_a_weight_do_not_count(self) -> None:
        several = strategy(rule(GREATER), rule(LESS, weight=1))
        assert strategy_scores(several, [of(a=2, b=1), of(a=2, b=1)], ["a", "b"]) == {"a": 0, "b": 10}

    @pytest.mark.parametrize(("on_stale", "scores"), [(OnStale.LOWEST, [10, 5, 0]), (OnStale.NEUTRAL, [10, 8, 5])])
    def test_a_missing_value_has_the_score_of_on_stale_for_its_rule(self, on_stale: OnStale, scores: list[int]) -> None:
        several = strategy(rule(GREATER, weight=2), rule(LESS, weight=2), on_stale=on_stale)
        found = strategy_scores(several, [of(a=2, b=2), of(a=2)], ["a", "b", "c"])
        assert [found[node] for node in "abc"] == scores

    @given(
        st.lists(
            st.tuples(st.sampled_from(Operator), st.none() | st.integers(1, 100), node_values), min_size=1, max_size=4
        ),
        st.sets(node_names, max_size=20),
        st.sampled_from([OnStale.LOWEST, OnStale.NEUTRAL]),
    )
    def test_combination_agrees_with_fractions(
        self, several: Sequence[tuple[Operator, int | None, Values]], candidates: set[str], on_stale: OnStale
    ) -> None:
        found = strategy_scores(
            strategy(*(rule(operator, "1", weight) for operator, weight, _ in several), on_stale=on_stale, mode=RANK),
            [values for _, _, values in several],
            candidates,
        )
        missing = NEUTRAL_SCORE if on_stale is OnStale.NEUTRAL else 0
        weighted = [(operator, weight, values) for operator, weight, values in several if weight is not None]
        mode = PROPORTIONAL if weighted else RANK
        counting = weighted or [(several[0][0], 1, several[0][2])]
        expected = {}
        for node in candidates:
            exact = Fraction(0)
            for operator, weight, values in counting:
                among = {each: value for each, value in values.items() if each in candidates}
                score = naive(operator, Quantity(NANO), mode, among, node) if node in among else missing
                exact += weight * score
            expected[node] = half_up(exact / sum(weight for _, weight, _ in counting))
        assert found == expected


class TestProperties:
    @given(st.sampled_from(Operator), modes, node_values)
    def test_agrees_with_the_definition(self, operator: Operator, mode: ScoreMode, values: Values) -> None:
        assert scored(rule(operator, "1"), mode, values) == defined(operator, mode, values)

    @given(st.integers(2, 300), directions)
    def test_ranks_are_spread_evenly(self, count: int, operator: Operator) -> None:
        values = {f"n{value}": Quantity(value) for value in range(count)}
        scores = list(scored(rule(operator), RANK, values).values())
        assert max(scores) == MAX_SCORE
        if count > 11:
            shares = [scores.count(score) for score in range(11)]
            assert max(shares) - min(shares) <= 1
        else:
            assert len(set(scores)) == count

    @given(directions, modes, node_values)
    def test_bounds_and_equal_scores_for_equal_values(
        self, operator: Operator, mode: ScoreMode, values: Values
    ) -> None:
        scores = scored(rule(operator), mode, values)
        assert all(type(score) is int and 0 <= score <= MAX_SCORE for score in scores.values())
        for node, value in values.items():
            assert {scores[other] for other in values if values[other] == value} == {scores[node]}
        if values:
            best = max if operator is GREATER else min
            assert scores[best(values, key=values.__getitem__)] == MAX_SCORE

    @given(directions, modes, node_values)
    def test_scores_follow_the_order_of_values(self, operator: Operator, mode: ScoreMode, values: Values) -> None:
        scores = scored(rule(operator), mode, values)
        ascending = sorted(values, key=values.__getitem__, reverse=operator is LESS)
        assert [scores[node] for node in ascending] == sorted(scores.values())

    @given(st.data(), directions, modes, node_values)
    def test_independent_of_the_order_of_candidates(
        self, data: st.DataObject, operator: Operator, mode: ScoreMode, values: Values
    ) -> None:
        candidates = [*values, "unknown"]
        shuffled = data.draw(st.permutations(candidates))
        scoring = strategy(rule(operator), mode=mode)
        found = strategy_scores(scoring, [values], shuffled)
        assert found == strategy_scores(scoring, [values], candidates)
        assert list(found) == shuffled

    @given(modes, node_values)
    def test_less_mirrors_greater(self, mode: ScoreMode, values: Values) -> None:
        mirrored = {node: Quantity(-value) for node, value in values.items()}
        assert scored(rule(LESS), mode, values) == scored(rule(GREATER), mode, mirrored)
