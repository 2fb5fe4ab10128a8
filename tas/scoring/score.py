"""Scores from values: integers from 0 to 10; equal values have equal scores, in any order of the candidates.

kube-scheduler does not clamp the scores of an extender (facts.md c25), so this module keeps the bounds. All arithmetic
uses exact integers. An answer scores up to 5,000 candidates while the scheduler waits, so the work for each candidate
is left to loops in C: scores are computed for the distinct values, and looked up.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, compress, islice, repeat
from operator import ne
from typing import cast

from tas.policy.policy import OnStale, Operator, Rule, ScoreMode, Strategy
from tas.values.quantity import Quantity

MAX_SCORE = 10
NEUTRAL_SCORE = 5

_Scores = dict[Quantity | None, int]
"""The score of each distinct value, and of a missing one (None)."""


class Ranking(Mapping[str, int]):
    """The scores of nodes that all have a value, as a mapping, grouped by score.

    To write the scores into an answer needs only the groups, a fraction of the work of a dict. The first look-up of a
    node builds the dict.
    """

    __slots__ = ("_by_score", "_scores")

    def __init__(self, by_score: Mapping[int, Sequence[str]]) -> None:
        """The nodes of each score, the best first."""
        self._by_score = by_score
        self._scores: dict[str, int] | None = None

    def by_score(self) -> Iterable[tuple[int, Sequence[str]]]:
        """Each score that a node has, with its nodes, the best first."""
        return self._by_score.items()

    def best(self, count: int) -> tuple[tuple[str, int], ...]:
        """The best nodes with their scores, at most `count`."""
        return tuple((node, score) for score, nodes in self.by_score() for node in nodes[:count])[:count]

    def __getitem__(self, node: str) -> int:
        if self._scores is None:
            self._scores = {name: score for score, nodes in self.by_score() for name in nodes}
        return self._scores[node]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._by_score.values())

    def __len__(self) -> int:
        return sum(map(len, self._by_score.values()))


def strategy_scores(
    strategy: Strategy, values: Iterable[Mapping[str, Quantity]], candidates: Iterable[str]
) -> Mapping[str, int]:
    """The score of every candidate; `values` holds for each rule of the strategy, in order, node to fresh value.

    `rank`: the best distinct value gets 10, the next 9, and so on while 11 ranks suffice, else the ranks are spread
    evenly down to 0. `proportional`: the value's place between the worst and the best, rounded half up; all equal: 10.
    `Equals`: 10 where the value is the target, else 0 (facts.md D3).

    Only the first rule counts, unless rules carry a weight: then the score is the sum of weight times proportional
    score over the sum of weights, rounded half up; rules without a weight do not count. A candidate without a fresh
    value, or with an unreadable rule, gets the score of `onStale` for that rule: 0 (lowest) or 5 (neutral). Without
    rules no candidate has a score.

    Only candidates are compared with each other: values of other nodes do not matter (facts.md P3).
    """
    nodes = list(candidates)
    missing = NEUTRAL_SCORE if strategy.on_stale is OnStale.NEUTRAL else 0
    every = zip(strategy.rules, values, strategy.rule_counts, strict=True)
    rules = [(rule, of) for rule, of, counts in every if counts]
    weighted = [(rule, rule.weight, of) for rule, of in rules if rule.weight is not None]
    if weighted:
        columns = [_column(rule, ScoreMode.PROPORTIONAL, list(map(of.get, nodes)), missing) for rule, _, of in weighted]
        return dict(zip(nodes, _combined([weight for _, weight, _ in weighted], columns), strict=True))
    if not rules:
        return {}
    rule, of = rules[0]
    if rule.readable and strategy.score_mode is ScoreMode.RANK and rule.operator is not Operator.EQUALS:
        with suppress(KeyError):  # a node without a value
            return _ranking(rule, of, nodes)
    return dict(zip(nodes, _column(rule, strategy.score_mode, list(map(of.get, nodes)), missing), strict=True))


def _ranking(rule: Rule, of: Mapping[str, Quantity], nodes: Iterable[str]) -> Ranking:
    """The ranking of `nodes` by their values. Raises KeyError if a node has no value."""
    best_first = sorted(nodes, key=of.__getitem__, reverse=_more_is_better(rule))
    if not best_first:
        return Ranking({})
    values = list(map(of.__getitem__, best_first))
    # The places where another value begins: to compare neighbours is faster than to look for each distinct value.
    begins = [0, *compress(range(1, len(values)), map(ne, islice(values, 1, None), values)), len(values)]
    return Ranking({score: best_first[begins[first] : begins[end]] for score, first, end in _shares(len(begins) - 1)})


def _column(rule: Rule, mode: ScoreMode, found: Sequence[Quantity | None], missing: int) -> list[int]:
    """The scores of `found`, in the same order."""
    distinct = set(found)
    distinct.discard(None)
    if not rule.readable or not distinct:
        return [missing] * len(found)
    scores = _scores_by_value(rule, mode, cast("set[Quantity]", distinct))
    scores[None] = missing
    return list(map(scores.__getitem__, found))


def _scores_by_value(rule: Rule, mode: ScoreMode, distinct: Collection[Quantity]) -> _Scores:
    """The score of each distinct value, by a readable rule."""
    if rule.operator is Operator.EQUALS:
        return {value: MAX_SCORE if value == rule.target else 0 for value in distinct}
    if mode is ScoreMode.RANK:
        return _ranked(sorted(distinct, reverse=_more_is_better(rule)))
    return _proportional(distinct, more_is_better=_more_is_better(rule))


def _more_is_better(rule: Rule) -> bool:
    return rule.operator is Operator.GREATER_THAN


def _ranked(best_first: Sequence[Quantity]) -> _Scores:
    """The score of each value by its rank."""
    scores: _Scores = {}
    for score, begin, end in _shares(len(best_first)):
        scores.update(zip(best_first[begin:end], repeat(score), strict=False))
    return scores


def _shares(count: int) -> Iterator[tuple[int, int, int]]:
    """For `count` ranks: each score with the range of ranks that get it (first, and last + 1).

    Each rank has its own score if there are enough scores, else each score has an equal share of the ranks.
    """
    steps = MAX_SCORE + 1
    if count <= steps:
        return ((MAX_SCORE - rank, rank, rank + 1) for rank in range(count))
    # A score has the ranks for which rank * steps // count == step.
    return ((MAX_SCORE - step, -(-step * count // steps), -(-(step + 1) * count // steps)) for step in range(steps))


def _proportional(distinct: Collection[Quantity], *, more_is_better: bool) -> _Scores:
    """Scores by the distance from the worst value: the number of thresholds that the value reaches."""
    lowest, highest = min(distinct), max(distinct)
    span = highest - lowest
    if span == 0:
        return {lowest: MAX_SCORE}
    # A value at a distance d from the worst earns `score` if 10 * d / span >= score - 1/2, so from this distance on:
    distances = [-(-(2 * score - 1) * span // (2 * MAX_SCORE)) for score in range(1, MAX_SCORE + 1)]
    if more_is_better:
        ascending = [lowest + distance for distance in distances]
        return dict(zip(distinct, map(bisect_right, repeat(ascending), distinct), strict=False))
    ascending = [highest - distance for distance in reversed(distances)]
    missed = map(bisect_left, repeat(ascending), distinct)
    return dict(zip(distinct, map(MAX_SCORE.__sub__, missed), strict=False))


def _combined(weights: Sequence[int], columns: Sequence[Sequence[int]]) -> list[int]:
    """The weighted mean of the scores of several rules, for each node, rounded half up."""
    total = sum(weights)
    weighed = [[weight * score for score in column] for weight, column in zip(weights, columns, strict=True)]
    return [(2 * of_node + total) // (2 * total) for of_node in map(sum, zip(*weighed, strict=True))]
