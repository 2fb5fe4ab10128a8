"""Preempt: requests in both forms and any case, and offers that are passed on unchanged (facts.md c31)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import InvalidInputError
from tas.extender.decision import FilterDecision, Outcome, Pod, Victims
from tas.extender.fields import MAX_ANY_CASE_BYTES
from tas.extender.preemption import MAX_UIDS_BYTES, decode_preemption_args, preempt_decision, preemption_result
from tas.extender.verbs import Answer, answer_preempt
from tas.extender.wire import MAX_NODES, MAX_POD_BYTES
from tests.deciders import FixedDecider
from tests.unit.tas.extender.generators import JSON_VALUES, NAMES, POD, SPLINTERS, body

INT64 = st.integers(-(2**63), 2**63 - 1)


def by_uid(*uids: str, **more: Any) -> dict[str, Any]:
    return {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} | more


def whole(*uids: str, **more: Any) -> dict[str, Any]:
    pods = [{"metadata": {"name": f"p-{uid}", "namespace": "n", "uid": uid}, "spec": {"x": 1}} for uid in uids]
    return {"Pods": pods, "NumPDBViolations": 0} | more


def names_body(**nodes: Any) -> bytes:
    return body(Pod=POD, NodeNameToVictims=None, NodeNameToMetaVictims=nodes)


def nodes_body(**nodes: Any) -> bytes:
    return body(Pod=POD, NodeNameToVictims=nodes, NodeNameToMetaVictims=None)


def offered(request: bytes, **rejects: str) -> dict[str, Any]:
    answer, _ = answer_preempt(FixedDecider(rejects=rejects), request, 7.0)
    decoded = json.loads(answer)
    assert list(decoded) == ["NodeNameToMetaVictims"]
    nodes: dict[str, Any] = decoded["NodeNameToMetaVictims"]
    return nodes


def test_facts_c31_by_uid_as_the_scheduler_sends_it() -> None:
    request = names_body(n1=by_uid("u1", "u2", NumPDBViolations=3), n2=by_uid("u3"))

    assert offered(request, n2="x") == {"n1": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 3}}


def test_facts_c31_whole_pods_are_answered_by_uid() -> None:
    request = nodes_body(n1=whole("u1", "u2", NumPDBViolations=3), n2=whole("u3"))

    assert offered(request, n1="x") == {"n2": {"Pods": [{"UID": "u3"}], "NumPDBViolations": 0}}
    assert offered(request)["n1"] == {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 3}


def test_facts_c31_the_exact_bytes_of_an_answer() -> None:
    answer, _ = answer_preempt(FixedDecider(), names_body(n1=by_uid("u1", NumPDBViolations=1)), 7.0)

    assert answer == b'{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"u1"}],"NumPDBViolations":1}}}'


@pytest.mark.parametrize("none", [{"Pods": [], "NumPDBViolations": 0}, {"Pods": None, "NumPDBViolations": 0}, {}, None])
@pytest.mark.parametrize("make_body", [names_body, nodes_body], ids=["names", "nodes"])
def test_facts_c31_a_node_without_victims_is_offered_or_left_out_as_any_other(make_body: Any, none: Any) -> None:
    request = make_body(n1=none, n2=none)

    assert offered(request, n2="x") == {"n1": {"Pods": [], "NumPDBViolations": 0}}


@pytest.mark.parametrize("make_body", [names_body, nodes_body], ids=["names", "nodes"])
def test_an_answer_may_have_no_victims(make_body: Any) -> None:
    assert offered(make_body()) == {}


@pytest.mark.parametrize("spelling", [str.lower, str.upper])
@pytest.mark.parametrize("form", ["NodeNameToVictims", "NodeNameToMetaVictims"])
def test_facts_c5_preempt_accepts_keys_in_any_case_and_answers_in_the_exact_one(form: str, spelling: Any) -> None:
    pod = {spelling("UID"): "u1"} if form == "NodeNameToMetaVictims" else {"metadata": {"uid": "u1"}}
    victims = {spelling("Pods"): [pod], spelling("NumPDBViolations"): 2}
    request = body(**{spelling("Pod"): POD, spelling(form): {"Node-1": victims}})

    assert offered(request) == {"Node-1": {"Pods": [{"UID": "u1"}], "NumPDBViolations": 2}}


def test_of_a_large_request_only_the_exact_keys_count() -> None:
    request = body(Pod=POD, nodenametovictims={"n1": whole("a")}, Extra="x" * MAX_ANY_CASE_BYTES, **{META: {}})

    assert offered(request) == {}


def test_a_decider_gets_the_nodes_and_the_record_has_the_offered_ones() -> None:
    decider = FixedDecider(rejects={"n1": "x"}, unknown=1)

    _, record = answer_preempt(decider, names_body(n2=by_uid("u2"), n1=by_uid("u1")), 7.0)
    answer = record()

    pod = Pod(namespace="default", name="p", uid="u-1", labels={"telemetry-policy": "demo"})
    assert decider.calls == [("filter", pod, ("n2", "n1"), 7.0)]
    assert answer == Answer(
        time=7.0,
        verb="preempt",
        namespace="default",
        pod="p",
        policy="default/p",
        outcome=Outcome.DECIDED,
        candidates=2,
        passed=1,
        unknown=1,
        rejected=("n1",),
    )


def test_after_an_error_no_node_is_offered() -> None:
    request = names_body(n1=by_uid("u1"))

    result, record = answer_preempt(FixedDecider(error="no such policy"), request, 7.0)
    answer = record()

    assert (result, answer.error, answer.passed) == (b'{"NodeNameToMetaVictims":{}}', "no such policy", 0)


def test_victims_have_the_fields_of_the_request() -> None:
    args = decode_preemption_args(nodes_body(n1=whole("u1", NumPDBViolations=2)))

    assert args.victims == {
        "n1": Victims(pods=(Pod(namespace="n", name="p-u1", uid="u1", labels={}),), pdb_violations=2)
    }


def test_for_a_node_in_both_forms_the_uids_count() -> None:
    request = body(Pod=POD, NodeNameToVictims={"n1": whole("a")}, NodeNameToMetaVictims={"n1": by_uid("b")})

    assert offered(request) == {"n1": by_uid("b")}


SUBJECT = "ExtenderPreemptionArgs"
META = "NodeNameToMetaVictims"
FULL = "NodeNameToVictims"
ERRORS: list[tuple[str, bytes, str]] = [
    ("truncated", b"{", "body = '{': Input data was truncated"),
    ("empty", b"", "body = '': Input data was truncated"),
    ("no_object", b"[1]", "body = [1]: Expected `object`, got `array`"),
    ("facts_H7", names_body(n1=by_uid("u")) + b" {}", "JSON is malformed: trailing characters"),
    ("no_pod", body(**{META: {}}), "Pod = None: a pod must be given"),
    ("no_metadata", body(Pod={}, **{META: {}}), "Pod.metadata = None: a pod has metadata"),
    ("no_victims", body(Pod=POD), f"{FULL}, {META} = None: one of them must be given"),
    ("victims_null", body(Pod=POD, **{META: None, FULL: None}), f"{FULL}, {META} = None: one of them must be given"),
    ("victims_type", body(Pod=POD, **{META: [1]}), f"{META} = [1]: Expected `object | null`, got `array`"),
    ("no_node_name", names_body(**{"": by_uid("u")}), f"{META} = '': a node has a name"),
    ("node_type", names_body(n1=[1]), f"{META}.n1 = [1]: Expected `object`, got `array`"),
    ("pods_type", names_body(n1={"Pods": 7}), f"{META}.n1.Pods = 7: Expected `array | null`, got `int`"),
    ("pod_type", names_body(n1={"Pods": ["u"]}), f"{META}.n1.Pods[0] = 'u': Expected `object`, got `str`"),
    ("no_uid", names_body(n1={"Pods": [{}]}), f"{META}.n1.Pods[0].UID = None: Expected `str`, got `null`"),
    ("empty_uid", names_body(n1=by_uid("u", "")), f"{META}.n1.Pods[1] = '': a victim has a uid"),
    ("uid_type", names_body(n1={"Pods": [{"UID": 7}]}), f"{META}.n1.Pods[0].UID = 7: Expected `str`, got `int`"),
    (
        "count_fraction",
        names_body(n1=by_uid("u", NumPDBViolations=7.5)),
        f"{META}.n1.NumPDBViolations = 7.5: Expected `int | null`, got `float`",
    ),
    (
        "count_beyond_int64",
        names_body(n1=by_uid("u", NumPDBViolations=2**63)),
        f"{META}.n1.NumPDBViolations = 9223372036854775808: Expected `int` <= 9223372036854775807",
    ),
    ("full_no_uid", nodes_body(n1={"Pods": [{"metadata": {}}]}), f"{FULL}.n1.Pods[0] = '': a victim has a uid"),
    ("full_no_metadata", nodes_body(n1={"Pods": [{}]}), f"{FULL}.n1.Pods[0] = '': a victim has a uid"),
    ("full_pod_type", nodes_body(n1={"Pods": [7]}), f"{FULL}.n1.Pods[0] = 7: Expected `object`, got `int`"),
    (
        "no_utf8",
        names_body(n1=by_uid("?")).replace(b"?", b"\x80"),
        f"{META}.n1.Pods[0].UID = '\"\ufffd\"': 'utf-8' codec",
    ),
    ("full_no_utf8", nodes_body(n1=whole("?")).replace(b"?", b"\x80"), f"{FULL}.n1.Pods = "),
    ("deep", b'{"Pod":' + b"[" * 100_000, "nested too deeply"),
    (
        "many_nodes",
        names_body(**{f"n{number}": None for number in range(MAX_NODES + 1)}),
        f"{META} = '{MAX_NODES + 1} nodes': the limit is {MAX_NODES}",
    ),
    ("many_uids", names_body(n1=by_uid("u" * MAX_UIDS_BYTES)), f" bytes: the limit is {MAX_UIDS_BYTES}"),
    ("large_pod", body(Pod=POD | {"spec": "x" * MAX_POD_BYTES}), f" bytes: the limit is {MAX_POD_BYTES}"),
]


@pytest.mark.parametrize(("request_body", "message"), [case[1:] for case in ERRORS], ids=[case[0] for case in ERRORS])
def test_an_error_names_the_object_the_field_and_the_value(request_body: bytes, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        decode_preemption_args(request_body)

    assert message in str(caught.value)
    assert caught.value.subject == SUBJECT


def test_an_error_has_only_the_beginning_of_a_long_name() -> None:
    with pytest.raises(InvalidInputError) as caught:
        decode_preemption_args(names_body(**{"n" * 1_000_000: [1]}))

    assert len(str(caught.value)) < 400


VICTIMS = st.dictionaries(NAMES, st.tuples(st.lists(NAMES, max_size=4), INT64), max_size=6)


@given(
    victims=VICTIMS, rejects=st.sets(st.integers(0, 5)), spelling=st.sampled_from([str, str.lower]), full=st.booleans()
)
def test_facts_c31_nodes_that_are_not_rejected_are_offered_unchanged(
    *, victims: dict[str, tuple[list[str], int]], rejects: set[int], spelling: Any, full: bool
) -> None:
    def written(uids: list[str], count: int) -> dict[str, Any]:
        pods: list[Any] = [{"metadata": {"uid": uid}} if full else {spelling("UID"): uid} for uid in uids]
        return {spelling("Pods"): pods, spelling("NumPDBViolations"): count}

    nodes = {node: written(*each) for node, each in victims.items()}
    request = body(**{spelling("Pod"): POD, spelling(FULL if full else META): nodes})
    rejected = {node: "x" for place, node in enumerate(victims) if place in rejects}

    asked = decode_preemption_args(request)
    decision = preempt_decision(asked, FilterDecision(outcome=Outcome.DECIDED, rejected=rejected))
    answer = json.loads(preemption_result(decision))

    assert answer == {
        META: {
            node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": count}
            for node, (uids, count) in victims.items()
            if node not in rejected
        }
    }


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Anything that could arrive: right requests with pieces replaced, and objects of the right keys."""
    if draw(st.booleans()):
        fields = draw(st.dictionaries(st.sampled_from(["Pod", META, FULL, "pod", META.lower()]), JSON_VALUES))
        return body(**fields)
    request = bytearray(draw(st.sampled_from([names_body(n1=by_uid("u1")), nodes_body(n1=whole("u1"))])))
    for _ in range(draw(st.integers(1, 4))):
        place, length = draw(st.integers(0, len(request))), draw(st.integers(0, 5))
        request[place : place + length] = draw(st.binary(max_size=4) | st.sampled_from(SPLINTERS))
    return bytes(request)


@given(bodies())
def test_any_body_is_answered_or_refused(request_body: bytes) -> None:
    try:
        answer, _ = answer_preempt(FixedDecider(), request_body, 7.0)
    except InvalidInputError as caught:
        error = caught
    else:
        for victims in json.loads(answer)[META].values():
            assert list(victims) == ["Pods", "NumPDBViolations"]
            assert all(list(pod) == ["UID"] and pod["UID"] for pod in victims["Pods"])
        return
    assert error.subject == SUBJECT
    assert len(str(error)) < 400
