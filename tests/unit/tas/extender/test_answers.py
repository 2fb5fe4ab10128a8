"""Answers: the exact bytes, and for any decision the sets on which the scheduler relies."""

import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.extender.answers import error_body, filter_result, host_priorities
from tas.extender.decision import FilterDecision, Outcome, ScoreDecision
from tas.extender.wire import ExtenderArgs, decode_args
from tas.scoring.score import Ranking
from tests.unit.tas.generators import characters

NAMES = st.text(characters, min_size=1, max_size=12)


def item(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "size": 1.5}


def request(*, nodes: list[str] | None = None, names: list[str] | None = None) -> ExtenderArgs:
    items = None if nodes is None else {"items": [item(name) for name in nodes]}
    request: dict[str, Any] = {"Pod": {"metadata": {}}, "Nodes": items, "NodeNames": names}
    return decode_args(json.dumps(request, separators=(",", ":")).encode())


def rejecting(rejected: dict[str, str], **more: Any) -> FilterDecision:
    return FilterDecision(outcome=Outcome.DECIDED, rejected=rejected, **more)


def scoring(scores: dict[str, int] | None) -> ScoreDecision:
    return ScoreDecision(outcome=Outcome.DECIDED, scores=scores)


@pytest.mark.parametrize(
    ("args", "decision", "answer"),
    [
        pytest.param(
            request(names=["a", "b"]),
            rejecting({"a": "Node violates p: m GreaterThan 40"}),
            b'{"Nodes":null,"NodeNames":["b"],"FailedNodes":{},'
            b'"FailedAndUnresolvableNodes":{"a":"Node violates p: m GreaterThan 40"},"Error":""}',
            id="facts_c14_names",
        ),
        pytest.param(
            request(nodes=["a", "b", "c"]),
            rejecting({"a": "x"}),
            b'{"Nodes":{"metadata":{},"items":[{"metadata":{"name":"b"},"size":1.5},{"metadata":{"name":"c"},"size":1.5}]},'
            b'"NodeNames":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{"a":"x"},"Error":""}',
            id="facts_c14_nodes",
        ),
        pytest.param(
            request(nodes=["a"], names=["a", "b"]),
            rejecting({"b": "x"}),
            b'{"Nodes":{"metadata":{},"items":[{"metadata":{"name":"a"},"size":1.5}]},"NodeNames":["a"],'
            b'"FailedNodes":{},"FailedAndUnresolvableNodes":{"b":"x"},"Error":""}',
            id="both_forms",
        ),
        pytest.param(
            request(names=["a"]),
            rejecting({"a": "x"}, unresolvable=False),
            b'{"Nodes":null,"NodeNames":[],"FailedNodes":{"a":"x"},"FailedAndUnresolvableNodes":{},"Error":""}',
            id="facts_c19_evictions_may_help",
        ),
        pytest.param(
            request(names=["a"]),
            rejecting({"a": "x"}),
            b'{"Nodes":null,"NodeNames":[],"FailedNodes":{},"FailedAndUnresolvableNodes":{"a":"x"},"Error":""}',
            id="facts_c16_no_name_left_is_a_list",
        ),
        pytest.param(
            request(nodes=["a"]),
            rejecting({"a": "x"}),
            b'{"Nodes":{"metadata":{},"items":[]},"NodeNames":null,'
            b'"FailedNodes":{},"FailedAndUnresolvableNodes":{"a":"x"},"Error":""}',
            id="facts_c16_no_node_left_is_a_list",
        ),
        pytest.param(
            request(nodes=["a"], names=["b"]),
            rejecting({"a": "x"}, error="policy default/p not found"),
            b'{"Nodes":null,"NodeNames":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{},'
            b'"Error":"policy default/p not found"}',
            id="facts_c17_only_an_error",
        ),
    ],
)
def test_filter_result(args: ExtenderArgs, decision: FilterDecision, answer: bytes) -> None:
    assert filter_result(args, decision) == answer


def test_any_mapping_of_rejections_is_written() -> None:
    decision = FilterDecision(outcome=Outcome.DECIDED, rejected=MappingProxyType({"a": "x"}))

    assert json.loads(filter_result(request(names=["a"]), decision))["FailedAndUnresolvableNodes"] == {"a": "x"}


@pytest.mark.parametrize(
    ("scores", "answer"),
    [
        pytest.param({"b": 10, "a": 0}, b'[{"Host":"b","Score":10},{"Host":"a","Score":0}]', id="scores"),
        pytest.param({"a": 7}, b'[{"Host":"a","Score":7}]', id="facts_c28_one_node"),
        pytest.param({}, b"[]", id="no_candidates"),
        pytest.param(None, b"[]", id="no_opinion"),
    ],
)
def test_host_priorities(scores: dict[str, int] | None, answer: bytes) -> None:
    assert host_priorities(scoring(scores)) == answer


def test_an_error_with_any_text_is_json() -> None:
    assert json.loads(error_body('field = "ü\n": 🙂')) == {"error": 'field = "ü\n": 🙂'}


@given(
    nodes=st.none() | st.lists(NAMES, max_size=8),
    names=st.none() | st.lists(NAMES, max_size=8),
    rejects=st.sets(st.integers(0, 15)),
    unresolvable=st.booleans(),
)
def test_facts_c15_each_candidate_passes_or_fails_and_no_other_node_is_named(
    *, nodes: list[str] | None, names: list[str] | None, rejects: set[int], unresolvable: bool
) -> None:
    if nodes is None and names is None:
        names = []
    args = request(nodes=nodes, names=names)
    rejected = {name: "x" for place, name in enumerate(args.candidates) if place in rejects}

    answer = json.loads(filter_result(args, rejecting(rejected, unresolvable=unresolvable)))

    failed = answer["FailedAndUnresolvableNodes" if unresolvable else "FailedNodes"]
    assert failed == rejected
    if names is None:
        assert answer["NodeNames"] is None
    else:
        assert answer["NodeNames"] == [name for name in dict.fromkeys(names) if name not in rejected]
    if nodes is None:
        assert answer["Nodes"] is None
    else:
        items = answer["Nodes"]["items"]
        assert items == [item(name) for name in dict.fromkeys(nodes) if name not in rejected]


@given(names=st.lists(NAMES, unique=True, max_size=8), data=st.data())
def test_facts_c26_every_candidate_is_scored_once(*, names: list[str], data: st.DataObject) -> None:
    scores = {name: data.draw(st.integers(0, 10)) for name in names}

    answer = json.loads(host_priorities(scoring(scores)))

    assert [(host["Host"], host["Score"]) for host in answer] == list(scores.items())
    assert all(type(host["Score"]) is int and set(host) == {"Host", "Score"} for host in answer)


ODD_NAMES = st.text(st.sampled_from('ab",\\:{}[]\n\u00fc'), min_size=1, max_size=6)


@given(names=st.lists(NAMES | ODD_NAMES, unique=True, max_size=40))
def test_a_ranking_is_written_as_its_scores_are(names: list[str]) -> None:
    ranking = Ranking({10: names[:3], 9: names[3:]} if len(names) > 3 else {7: names} if names else {})

    answer = host_priorities(ScoreDecision(outcome=Outcome.DECIDED, scores=ranking))

    assert answer == host_priorities(scoring(dict(ranking)))
    assert [host["Host"] for host in json.loads(answer)] == names


@given(names=st.lists(NAMES, unique=True, min_size=2, max_size=8), order=st.randoms())
def test_the_passed_names_are_recognised_in_the_prioritize_call(*, names: list[str], order: Any) -> None:
    args = request(names=names)
    passed = json.loads(filter_result(args, rejecting({names[0]: "x"})))["NodeNames"]

    assert list(request(names=passed).candidates) == names[1:]
    order.shuffle(passed)
    assert list(request(names=passed).candidates) == passed
    assert list(request(names=names).candidates) == names
