"""An agent as an extension: integers from scores, unknown nodes, and the answers that are refused."""

from collections.abc import Sequence
from heapq import nlargest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.agents.agent import Agent, Candidates, Missing, Needs, Passes, PodDemand, Rounding, Scores
from tas.agents.foo import Foo
from tas.agents.hooks import MAX_MISSING, NO_OPINION, AgentHooks, to_points
from tas.allocation.node import NodeAllocation, Recent
from tas.extender.decision import Pod
from tas.extender.hooks import InvalidHookResultError
from tas.extension import NodeView
from tas.view.view import View
from tests.unit.tas.view.test_view import scrape

POD = Pod(namespace="n", name="p", uid="u", labels={"app": "web"})
NAN = float("nan")


class Free(Agent):
    """Scores the metric `free`, and rejects nodes with less than half. An absent value is unknown."""

    original_rounding = Rounding.DOWN

    @property
    def needs(self) -> Needs:
        return Needs(metrics=["free"], max_age=30.0)

    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        free = nodes.metric("free")
        return Passes(passed=free >= 0.5, known=~np.isnan(free), reason="too little is free", resolvable=True)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        free = nodes.metric("free")
        return Scores(values=free, known=~np.isnan(free), terms={"free": free})


def view_of(now: float = 100.0, **free: str) -> NodeView:
    view = View()
    for node, value in free.items():
        view.add_samples(node, [scrape(100.0, free=value)], 100.0)
    nodes = NodeView(view)
    nodes.advance(now)
    return nodes


def hooks_of(agent: Agent, nodes: NodeView, **settings: Any) -> AgentHooks:
    return AgentHooks("mine", agent, nodes, **settings)


class Returns(Agent):
    """Returns the same for both verbs."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        found: Passes = self._found
        return found

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        found: Scores = self._found
        return found


def test_a_node_passes_or_is_rejected_with_the_reason_and_the_name_of_the_agent() -> None:
    nodes = view_of(a="0.6", b="0.2", c="0.1")
    decision = hooks_of(Free(), nodes).filter(POD, ["a", "b", "c", "d"], 100.0)
    assert decision.rejected == {"b": "mine: too little is free", "c": "mine: too little is free"}
    assert (decision.unknown, decision.unknown_rejected, decision.unresolvable) == (1, 0, False)


@pytest.mark.parametrize(
    ("missing", "scores", "rejected"),
    [
        (None, {"a": 8, "b": 2, "new": 5}, []),
        (Missing.NEUTRAL, {"a": 8, "b": 2, "new": 5}, []),
        (Missing.WORST, {"a": 8, "b": 2, "new": 0}, []),
        (Missing.REJECT, {"a": 8, "b": 2, "new": 0}, ["new"]),
    ],
)
def test_the_file_says_what_happens_to_a_node_of_which_nothing_is_known(
    missing: Missing | None, scores: dict[str, int], rejected: list[str]
) -> None:
    hooks = hooks_of(Free(), view_of(a="0.8", b="0.2"), missing=missing)
    decided = hooks.score(POD, ["a", "b", "new"], 100.0)
    assert (decided.scores, decided.unknown) == (scores, 1)
    decision = hooks.filter(POD, ["a", "new"], 100.0)
    assert list(decision.rejected) == rejected
    assert (decision.unknown, decision.unknown_rejected) == (1 - len(rejected), len(rejected))
    if rejected:
        assert decision.rejected["new"] == "mine: nothing fresh is known of the node"


def test_the_agent_itself_may_prefer_another_way() -> None:
    class Strict(Free):
        missing = Missing.WORST

    nodes = view_of(a="0.8")
    assert hooks_of(Strict(), nodes).score(POD, ["a", "new"], 100.0).scores == {"a": 8, "new": 0}
    neutral = hooks_of(Strict(), nodes, missing=Missing.NEUTRAL)
    assert neutral.score(POD, ["a", "new"], 100.0).scores == {"a": 8, "new": 8}


def test_an_answer_has_the_terms_and_the_metrics_behind_it_with_their_ages() -> None:
    class Told(Free):
        def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
            free = nodes.metric("free")
            terms = {"half": free / 2, "unknown": free * NAN, "broken": np.ones(1)}
            return Scores(values=free, known=~np.isnan(free), terms=terms)

        def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
            free = nodes.metric("free")
            return Passes(passed=free >= 0.5, known=~np.isnan(free), reason="little", terms={"free": free})

    names = {name: f"0.{number}" for number, name in enumerate("abcdef", 2)}
    hooks = hooks_of(Told(), view_of(now=104.0, **names))
    found = list(hooks.score(POD, list(names), 104.0).list_values())
    assert [(each.node, each.rule, each.value, each.age_seconds) for each in found] == [
        (node, *rest)
        for node, half, free in (("f", "0.35", "0.7"), ("e", "0.3", "0.6"), ("d", "0.25", "0.5"))
        for rest in (("half", half, None), ("free", free, 4.0))
    ]
    # Of a rejected node, too.
    rejected = list(hooks.filter(POD, ["f", "b"], 104.0).list_values())
    assert [(each.node, each.rule, each.value, each.age_seconds) for each in rejected] == [
        ("b", "free", "0.3", None),
        ("b", "free", "0.3", 4.0),
    ]


def test_of_a_node_without_an_opinion_the_record_says_what_is_unknown() -> None:
    names = [*"uvwx", "b"]
    hooks = hooks_of(Free(), view_of(b="0.3"))
    for found in (hooks.score(POD, names, 100.0), hooks.filter(POD, names, 100.0)):
        unknown = [(each.node, each.value) for each in found.list_values() if each.rule == NO_OPINION]
        assert unknown == [(node, "unknown: free") for node in "uvw"]
    assert {each.node for each in hooks.score(POD, names, 100.0).list_values()} > {"b"}

    class Needy(Free):
        @property
        def needs(self) -> Needs:
            return Needs(metrics=["free", *map(str, range(MAX_MISSING))], allocations=True)

    (first, *_) = hooks_of(Needy(), view_of(b="0.3")).score(POD, ["u"], 100.0).list_values()
    assert first.value == "unknown: allocation, free, 0, 1, 2, 3, 2 more"
    unneedy = Scores(values=np.zeros(1), known=np.zeros(1, dtype=np.bool_))
    (first, *_) = hooks_of(Returns(unneedy), view_of()).score(POD, ["u"], 100.0).list_values()
    assert (first.rule, first.value) == (NO_OPINION, None)


def test_without_any_opinion_all_nodes_are_equal() -> None:
    hooks = hooks_of(Free(), view_of())
    assert hooks.score(POD, ["x", "y"], 100.0).scores == {"x": 0, "y": 0}
    assert hooks.filter(POD, ["x", "y"], 100.0).rejected == {}


def test_a_value_older_than_the_agent_allows_is_unknown() -> None:
    nodes = view_of(now=129.0, a="0.8", b="0.2")
    hooks = hooks_of(Free(), nodes, missing=Missing.WORST)
    assert hooks.score(POD, ["a", "b"], 129.0).scores == {"a": 8, "b": 2}
    nodes.advance(131.0)
    assert hooks.score(POD, ["a", "b"], 131.0).scores == {"a": 0, "b": 0}


@pytest.mark.parametrize(
    ("value", "compat", "points"),
    [
        *[(0.0, False, 0), (0.04, False, 0), (0.05, False, 1), (0.55, False, 6), (0.96, False, 10), (1.0, False, 10)],
        *[(0.0, True, 0), (0.099, True, 0), (0.1, True, 1), (0.96, True, 9), (1.0, True, 10)],
    ],
)
def test_a_score_becomes_the_nearest_integer_or_with_compat_that_of_the_original(
    value: float, compat: bool, points: int
) -> None:
    hooks = hooks_of(Free(), view_of(a=str(value)), compat=compat)
    assert hooks.score(POD, ["a"], 100.0).scores == {"a": points}


KNOWN = np.array([True, True])


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "None: score must return Scores"),
        ({"a": 1}, "score must return Scores"),
        (Scores(values=np.array([0.5, NAN]), known=KNOWN), "b = nan: a score is a number from 0 to 1"),
        (Scores(values=np.array([0.5, np.inf]), known=KNOWN), "b = inf: a score is a number from 0 to 1"),
        (Scores(values=np.array([11.0, 0.5]), known=KNOWN), "a = 11.0: a score is a number from 0 to 1"),
        (Scores(values=np.array([0.5, -0.1]), known=KNOWN), "b = -0.1: a score is a number from 0 to 1"),
        (Scores(values=np.array([0.5]), known=KNOWN), "must be 2 values of float64"),
        (Scores(values=np.array([1, 0]), known=KNOWN), "must be 2 values of float64"),
        (Scores(values=[0.5, 0.5], known=KNOWN), "must be 2 values of float64"),  # type: ignore[arg-type]
        (Scores(values=np.ones(2), known=np.ones(2)), "known = "),  # type: ignore[arg-type]
        (Scores(values=np.ones(2), known=np.array([True])), "must be 2 values of bool"),
    ],
)
def test_a_score_that_must_not_reach_the_scheduler_is_refused(found: Any, message: str) -> None:
    with pytest.raises(InvalidHookResultError) as raised:
        hooks_of(Returns(found), view_of()).score(POD, ["a", "b"], 100.0)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([True, False], "filter must return Passes"),
        (Passes(passed=np.array([True]), known=KNOWN, reason="x"), "passed = "),
        (Passes(passed=KNOWN, known=np.array([1, 0]), reason="x"), "known = "),
        (Passes(passed=KNOWN, known=KNOWN, reason=""), "reason = '': a rejected node has a reason"),
    ],
)
def test_a_filter_answer_that_must_not_reach_the_scheduler_is_refused(found: Any, message: str) -> None:
    with pytest.raises(InvalidHookResultError) as raised:
        hooks_of(Returns(found), view_of()).filter(POD, ["a", "b"], 100.0)
    assert message in str(raised.value)


def test_a_score_of_an_unknown_node_may_be_anything() -> None:
    found = Scores(values=np.array([0.3, NAN]), known=np.array([True, False]))
    assert hooks_of(Returns(found), view_of()).score(POD, ["a", "b"], 100.0).scores == {"a": 3, "b": 3}


def test_what_the_needs_do_not_name_is_refused() -> None:
    class Curious(Agent):
        def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
            return Scores(values=nodes.metric("free"), known=KNOWN)

        def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
            return Passes(passed=KNOWN, known=KNOWN, reason=str(nodes.cluster.names))

    hooks = hooks_of(Curious(), view_of(a="1"))
    with pytest.raises(ValueError, match="free, which its needs do not name"):
        hooks.score(POD, ["a", "b"], 100.0)
    with pytest.raises(ValueError, match="whole cluster, which its needs do not say"):
        hooks.filter(POD, ["a", "b"], 100.0)


def test_an_agent_sees_the_whole_cluster_if_its_needs_say_so() -> None:
    class Crowd(Free):
        @property
        def needs(self) -> Needs:
            return Needs(metrics=["free"], whole_cluster=True)

        def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
            mean = float(nodes.cluster.metric("free").mean())
            return Scores(values=np.full(len(nodes.names), mean), known=np.ones(len(nodes.names), dtype=np.bool_))

    assert hooks_of(Crowd(), view_of(a="1", b="0.4", c="0.1")).score(POD, ["a"], 100.0).scores == {"a": 5}


def test_an_answer_has_the_amounts_that_the_agent_has_read() -> None:
    class Reads(Agent):
        @property
        def needs(self) -> Needs:
            return Needs(metrics=["free"], allocations=True)

        def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
            values = nodes.requested("cpu") / nodes.capacity("cpu") + nodes.placed("cpu", "free") * 0
            return Scores(values=values, known=np.isfinite(values), terms={"part": values})

    nodes = view_of(a="1", b="1")
    hooks = hooks_of(Reads(), nodes)
    assert nodes.followed_allocations is not None
    for node, recent in (("a", ()), ("b", (Recent(at=90.0, requests=(("cpu", 100),)),))):
        allocation = NodeAllocation(uid="u", capacity={"cpu": 1000}, requested={"cpu": 500}, recent=recent)
        nodes.followed_allocations.set_node(node, allocation)
    found = [(each.node, each.rule, each.value) for each in hooks.score(POD, ["a", "b"], 100.0).list_values()]
    assert found == [
        ("a", "part", "0.5"),
        ("a", "cpu requested", "500"),
        ("a", "cpu capacity", "1000"),
        ("a", "free", "1"),
        ("b", "part", "0.5"),
        ("b", "cpu requested", "500"),
        ("b", "cpu capacity", "1000"),
        ("b", "cpu of new pods", "100"),
        ("b", "free", "1"),
    ]


def test_columns_are_read_only_and_what_is_not_followed_is_unknown() -> None:
    seen: list[Any] = []

    class Looks(Free):
        def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
            seen.append((pod, nodes.now, list(nodes.names), nodes.metric("free")))
            assert nodes.metric("free") is nodes.metric("free")
            for column in (
                nodes.capacity("cpu"),
                nodes.allocatable("cpu"),
                nodes.requested("cpu"),
                nodes.limited("cpu"),
            ):
                assert np.isnan(column).all()
            assert nodes.placed("cpu", "free").tolist() == [0.0, 0.0]
            return super().score(pod, nodes)

    hooks_of(Looks(), view_of(a="1", b="123456789012e-12")).score(POD, ["a", "b"], 101.0)
    ((pod, now, names, column),) = seen
    assert pod == PodDemand(namespace="n", name="p", uid="u", labels={"app": "web"})
    assert (now, names, column.tolist()) == (101.0, ["a", "b"], [1.0, 0.123456790])
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 2


def test_only_the_methods_that_an_agent_overrides_are_hooks() -> None:
    class Only(Agent):
        def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
            raise AssertionError

    hooks = hooks_of(Only(), view_of()).hooks()
    assert (hooks.filter, hooks.preempt, hooks.bind, hooks.score is None) == (None, None, None, False)


def test_foo_accepts_every_node_with_one_point() -> None:
    hooks = hooks_of(Foo(), view_of())
    for compat in (False, True):
        assert hooks_of(Foo(), view_of(), compat=compat).score(POD, ["a", "b"], 0.0).scores == {"a": 1, "b": 1}
    assert hooks.filter(POD, ["a", "b"], 0.0).rejected == {}
    assert hooks.score(POD, [], 0.0).scores == {}


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=20).flatmap(
        lambda pairs: st.tuples(st.just(pairs), st.permutations(range(len(pairs))))
    ),
    st.sampled_from(list(Missing)),
    st.sampled_from(list(Rounding)),
)
def test_points_are_from_0_to_10_and_the_order_of_nodes_does_not_matter(
    drawn: tuple[list[tuple[float, bool]], Sequence[int]], missing: Missing, rounding: Rounding
) -> None:
    pairs, order = drawn

    def points(of: Sequence[tuple[float, bool]]) -> list[int]:
        values = np.array([value if known else NAN for value, known in of], dtype=np.float64)
        scores = Scores(values=values, known=np.array([known for _, known in of], dtype=np.bool_))
        return to_points(scores, missing, rounding)

    found = points(pairs)
    assert all(0 <= each <= 10 for each in found)
    assert points([pairs[at] for at in order]) == [found[at] for at in order]


@given(st.lists(st.tuples(st.integers(0, 10), st.sampled_from([None, "pass", "reject"])), max_size=12))
def test_of_an_answer_the_best_and_the_first_rejected_nodes_are_explained(
    nodes: Sequence[tuple[int, str | None]],
) -> None:
    names = [f"n{number}" for number in range(len(nodes))]
    known = np.array([verdict is not None for _, verdict in nodes], dtype=np.bool_)
    passed = np.array([verdict == "pass" for _, verdict in nodes], dtype=np.bool_)
    values = np.array([points for points, _ in nodes], dtype=np.float64) / 10
    terms = {"term": values}
    scores = hooks_of(Returns(Scores(values=values, known=known, terms=terms)), NodeView(View())).score(POD, names, 1.0)
    best = nlargest(3, (at for at in range(len(nodes)) if known[at]), key=lambda at: nodes[at][0])
    explained = [(each.node, each.value) for each in scores.list_values() if each.rule == "term"]
    assert explained == [(names[at], f"{values[at]:.6g}") for at in best]
    for missing in Missing:
        found = Passes(passed=passed, known=known, reason="no", terms=terms)
        decision = hooks_of(Returns(found), NodeView(View()), missing=missing).filter(POD, names, 1.0)
        first = [at for at in range(len(nodes)) if known[at] and not passed[at]]
        first += [at for at in range(len(nodes)) if not known[at] and missing is Missing.REJECT]
        explained = [(each.node, each.value) for each in decision.list_values() if each.rule == "term"]
        assert explained == [(names[at], f"{values[at]:.6g}") for at in first[:3]]
        unknown = [each.node for each in decision.list_values() if each.rule == NO_OPINION]
        assert unknown == [name for name, is_known in zip(names, known, strict=True) if not is_known][:3]
