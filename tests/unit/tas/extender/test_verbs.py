"""Verbs: the calls of a decider, and the records of its answers."""

import json
from heapq import nlargest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import MAX_TEXT, InvalidInputError
from tas.extender.decision import MAX_REJECTED, Outcome, Pod, RejectingValue
from tas.extender.verbs import (
    MAX_BEST,
    MAX_NAME,
    MAX_REASONS,
    VERBS,
    Answer,
    _best,
    answer_filter,
    answer_prioritize,
    within_limits,
)
from tests.deciders import FixedDecider
from tests.unit.tas.extender.generators import bodies

POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"k": "v"}}}


def names_body(*names: str) -> bytes:
    return json.dumps({"Pod": POD, "Nodes": None, "NodeNames": names}).encode()


def nodes_body(*names: str) -> bytes:
    items = [{"metadata": {"name": name}} for name in names]
    return json.dumps({"Pod": POD, "Nodes": {"items": items}, "NodeNames": None}).encode()


@pytest.mark.parametrize("make_body", [names_body, nodes_body], ids=["names", "nodes"])
@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_a_decider_gets_each_name_once_and_in_order(verb: str, make_body: Any) -> None:
    decider = FixedDecider()

    VERBS[verb](decider, make_body("b", "a", "b"), 7.0)

    pod = Pod(namespace="ns", name="p", uid="u", labels={"k": "v"})
    assert decider.calls == [(verb, pod, ("b", "a"), 7.0)]


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_a_decider_is_not_called_for_an_invalid_request(verb: str) -> None:
    decider = FixedDecider()

    with pytest.raises(InvalidInputError):
        VERBS[verb](decider, b"{}", 7.0)

    assert decider.calls == []


def test_filter_is_recorded_with_its_reasons_counted() -> None:
    rejects = {f"n{number}": "one" if number % 3 else "two" for number in range(30)}
    decider = FixedDecider(rejects=rejects, unknown=2)

    _, record = answer_filter(decider, names_body(*rejects, "a", "b", "c", "a"), 7.0)
    answer = record()

    assert answer == Answer(
        time=7.0,
        verb="filter",
        namespace="ns",
        pod="p",
        policy="default/p",
        outcome=Outcome.DECIDED,
        candidates=33,
        passed=3,
        unknown=2,
        reasons={"one": 20, "two": 10},
        rejected=tuple(f"n{number}" for number in range(10)),
    )


def test_after_an_error_of_filter_no_node_passes() -> None:
    body, record = answer_filter(FixedDecider(error="no such policy"), names_body("a"), 7.0)
    answer = record()

    assert json.loads(body)["Error"] == "no such policy"
    assert (answer.status, answer.error, answer.passed) == (200, "no such policy", 0)


def test_prioritize_is_recorded_with_the_best() -> None:
    decider = FixedDecider(scores={"a": 3, "b": 9, "c": 0, "d": 10, "e": 7, "f": 5}, unknown=1)

    _, record = answer_prioritize(decider, nodes_body("a", "b", "c", "d", "e", "f", "g"), 7.0)
    answer = record()

    assert answer == Answer(
        time=7.0,
        verb="prioritize",
        namespace="ns",
        pod="p",
        policy="default/p",
        outcome=Outcome.DECIDED,
        candidates=7,
        passed=7,
        unknown=1,
        best=(("d", 10), ("b", 9), ("e", 7), ("f", 5), ("a", 3)),
    )


@given(st.lists(st.integers(0, 10), max_size=30))
def test_the_best_are_the_first_of_the_highest_scores(found: list[int]) -> None:
    scores = {f"n{number}": score for number, score in enumerate(found)}
    assert _best(scores) == tuple(nlargest(MAX_BEST, scores.items(), key=lambda host: host[1]))


def test_among_many_best_some_are_recorded() -> None:
    scores = {f"n{number}": 10 if number % 2 else 0 for number in range(100)}

    _, record = answer_prioritize(FixedDecider(scores=scores), names_body(*scores), 7.0)
    answer = record()

    assert answer.best == (("n1", 10), ("n3", 10), ("n5", 10), ("n7", 10), ("n9", 10))


def test_without_scores_no_node_is_scored() -> None:
    body, record = answer_prioritize(FixedDecider(), names_body("a"), 7.0)
    answer = record()

    assert body == b"[]"
    assert (answer.candidates, answer.passed, answer.best) == (1, 0, ())


@given(request_body=bodies(), verb=st.sampled_from(sorted(VERBS)), unresolvable=st.booleans())
def test_any_body_is_answered_or_refused(*, request_body: bytes, verb: str, unresolvable: bool) -> None:
    decider = FixedDecider(rejects={"a": "x"}, scores={"a": 1}, unresolvable=unresolvable)
    try:
        body, record = VERBS[verb](decider, request_body, 7.0)
        answer = record()
    except InvalidInputError:
        assert decider.calls == []
        return
    ((_, _, candidates, _),) = decider.calls
    decoded = json.loads(body.decode(errors="replace"))
    if verb == "filter":
        named = {*(decoded["NodeNames"] or ()), *decoded["FailedNodes"], *decoded["FailedAndUnresolvableNodes"]}
        named |= {node["metadata"]["name"] for node in (decoded["Nodes"] or {"items": []})["items"]}
        assert named == set(candidates)
    else:
        assert [host["Host"] for host in decoded] == list(candidates)
    assert answer.candidates == len(candidates)


def test_a_record_has_at_most_so_many_reasons_and_no_longer_texts() -> None:
    """An extension may give each node its own reason, and a client may send names of any size."""
    many = {f"{number:05}" + "x" * (1 << 16): number for number in range(100)}
    large = "\n" * (1 << 20)
    answer = within_limits(
        Answer(
            time=0.0,
            verb="filter",
            error=large,
            namespace=large,
            pod=large,
            policy=large,
            reasons=many,
            rejected=(large,) * MAX_REJECTED,
            values=(RejectingValue(node=large, rule=large, value=large, source=large),),
            best=((large, 1),),
        )
    )

    assert len(answer.reasons) == MAX_REASONS
    assert set(answer.reasons.values()) == set(range(100 - MAX_REASONS, 100)), "those of most nodes are kept"
    assert max(map(len, (answer.error, *answer.reasons))) <= MAX_TEXT
    names = (answer.namespace, answer.pod, *answer.rejected, *(name for name, _ in answer.best))
    assert max(map(len, names)) <= MAX_NAME
    assert len(answer.policy) <= 2 * MAX_NAME
    (value,) = answer.values
    assert max(map(len, (value.node, value.value or "", value.source or ""))) <= MAX_NAME
    assert len(value.rule) <= MAX_TEXT
