"""Hooks of an extension: their arguments, and that no invalid result is passed on."""

import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.extender.decision import Binding, FilterDecision, Outcome, Pod, ScoreDecision, Victims
from tas.extender.hooks import InvalidHookResultError, hook_verbs
from tas.extender.verbs import VERBS, Answer
from tas.extension import Hooks
from tests.deciders import FixedDecider
from tests.unit.tas.extender.generators import JSON_VALUES, NAMES, POD, body, node

ASKED_POD = Pod(namespace="default", name="p", uid="u-1", labels={"telemetry-policy": "demo"})
CANDIDATES = body(Pod=POD, Nodes=None, NodeNames=["a", "b"])
VICTIMS = body(
    Pod=POD, NodeNameToVictims=None, NodeNameToMetaVictims={"a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}
)
BINDING = body(PodName="p", PodNamespace="n", PodUID="u", Node="a")
BODIES = {"filter": CANDIDATES, "prioritize": CANDIDATES, "preempt": VICTIMS, "bind": BINDING}
EVICTED = Victims(pods=(Pod(namespace="", name="", uid="u", labels={}),), pdb_violations=1)


def answered(hooks: Hooks, verb: str, request: bytes | None = None) -> tuple[Any, Answer]:
    """The decoded answer of a verb by these hooks, and the record."""
    served = hook_verbs(hooks)[verb]
    args = served.decode(BODIES[verb] if request is None else request)
    answer, record = served.respond(args, served.hook(*served.arguments(args, 7.0)), 7.0)
    return json.loads(answer), record()


def giving(verb: str, hook_result: Any) -> Hooks:
    name = {"prioritize": "score"}.get(verb, verb)
    return Hooks(**{name: lambda *_: hook_result})


@pytest.mark.parametrize(
    ("hooks", "verbs"),
    [
        (Hooks(), set()),
        (Hooks(filter=lambda *_: {}), {"filter", "preempt"}),
        (Hooks(score=lambda *_: {}), {"prioritize"}),
        (Hooks(preempt=lambda *_: {}), {"preempt"}),
        (Hooks(bind=lambda *_: None), {"bind"}),
    ],
)
def test_a_verb_without_a_hook_is_not_served(hooks: Hooks, verbs: set[str]) -> None:
    assert hook_verbs(hooks).keys() == verbs


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("filter", (ASKED_POD, ["a", "b"], 7.0)),
        ("prioritize", (ASKED_POD, ["a", "b"], 7.0)),
        ("preempt", (ASKED_POD, {"a": EVICTED}, 7.0)),
        ("bind", (Binding(namespace="n", name="p", uid="u", node="a"), 7.0)),
    ],
)
def test_the_arguments_of_a_hook(verb: str, arguments: tuple[Any, ...]) -> None:
    args: list[Any] = []

    def hook(*hook_result: Any) -> Any:
        args.extend(hook_result)
        return None if verb == "bind" else {}

    answered(Hooks(**{{"prioritize": "score"}.get(verb, verb): hook}), verb)

    if verb in ("filter", "prioritize"):
        args[1] = list(args[1])
    assert tuple(args) == arguments


def test_a_filter_hook_returns_the_rejected_nodes() -> None:
    answer, record = answered(giving("filter", MappingProxyType({"b": "no room"})), "filter")

    assert answer == {
        "Nodes": None,
        "NodeNames": ["a"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"b": "no room"},
        "Error": "",
    }
    assert (record.outcome, record.candidates, record.passed, record.reasons) == (Outcome.DECIDED, 2, 1, {"no room": 1})


def test_facts_c19_a_filter_hook_may_return_that_evictions_help() -> None:
    answer, _ = answered(giving("filter", FilterDecision(rejected={"b": "full"}, unresolvable=False)), "filter")

    assert (answer["FailedNodes"], answer["FailedAndUnresolvableNodes"]) == ({"b": "full"}, {})


def test_facts_c17_a_filter_hook_may_return_an_error() -> None:
    answer, _ = answered(giving("filter", FilterDecision(error="out of order")), "filter")

    assert (answer["Error"], answer["NodeNames"]) == ("out of order", None)


@pytest.mark.parametrize("hook_result", [{"b": 10, "a": 0}, ScoreDecision(scores={"b": 10, "a": 0})])
def test_a_score_hook_returns_scores(hook_result: object) -> None:
    assert answered(giving("prioritize", hook_result), "prioritize")[0] == [
        {"Host": "b", "Score": 10},
        {"Host": "a", "Score": 0},
    ]


@pytest.mark.parametrize("hook_result", [{}, ScoreDecision()])
def test_facts_c26_a_score_hook_may_leave_nodes_out(hook_result: object) -> None:
    assert answered(giving("prioritize", hook_result), "prioritize")[0] == []
    assert answered(giving("prioritize", {"b": 3}), "prioritize")[0] == [{"Host": "b", "Score": 3}]


def test_facts_c31_without_a_preempt_hook_nodes_rejected_by_filter_are_not_offered() -> None:
    offered = {"a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}

    assert answered(giving("filter", {}), "preempt")[0] == {"NodeNameToMetaVictims": offered}
    assert answered(giving("filter", {"a": "no"}), "preempt")[0] == {"NodeNameToMetaVictims": {}}


def test_facts_c31_a_preempt_hook_may_add_victims() -> None:
    more = Victims(pods=(*EVICTED.pods, Pod(namespace="", name="", uid="v", labels={})), pdb_violations=2)

    answer, record = answered(giving("preempt", {"a": more}), "preempt")

    assert answer == {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}, {"UID": "v"}], "NumPDBViolations": 2}}}
    assert (record.verb, record.candidates, record.passed) == ("preempt", 1, 1)


def test_facts_c31_a_node_without_victims_may_be_offered() -> None:
    request = body(Pod=POD, NodeNameToMetaVictims={"a": {"Pods": []}})
    hooks = Hooks(preempt=lambda _pod, victims, _now: dict(victims))

    assert answered(hooks, "preempt", request)[0] == {
        "NodeNameToMetaVictims": {"a": {"Pods": [], "NumPDBViolations": 0}}
    }


@pytest.mark.parametrize(("hook_result", "passed"), [(None, 1), ("", 1), ("no card is free", 0)])
def test_facts_c30_a_bind_hook_returns_none_or_a_reason(hook_result: str | None, passed: int) -> None:
    answer, record = answered(giving("bind", hook_result), "bind")

    assert answer == {"Error": hook_result or ""}
    assert (record.verb, record.namespace, record.pod, record.passed) == ("bind", "n", "p", passed)
    assert record.error == (hook_result or "")


WRONG = [
    ("filter", None, "None: must be a mapping of nodes to rejected nodes"),
    ("filter", ["a"], "['a']: must be a mapping"),
    ("filter", {"c": "x"}, "'c': the node is not in the request"),
    ("filter", {7: "x"}, "7: the node is not in"),
    ("filter", {"a": ""}, "a = '': a rejected node has a reason"),
    ("filter", {"a": 7}, "a = 7: a rejected node has a reason"),
    ("filter", FilterDecision(rejected={"c": "x"}), "'c': the node is not in"),
    ("filter", FilterDecision(error=7), "error = 7: must be text"),  # type: ignore[arg-type]
    ("prioritize", None, "None: must be a mapping of nodes to scores"),
    ("prioritize", [("a", 1)], "[('a', 1)]: must be a mapping"),
    ("prioritize", {"a": 11}, "a = 11: a score is an integer from 0 to 10"),
    ("prioritize", {"a": -1}, "a = -1: a score"),
    ("prioritize", {"a": 7.0}, "a = 7.0: a score"),
    ("prioritize", {"a": "7"}, "a = '7': a score"),
    ("prioritize", {"a": True}, "a = True: a score"),
    ("prioritize", {"a": None}, "a = None: a score"),
    ("prioritize", {"a": 1, "c": 1}, "'c': the node is not in"),
    ("prioritize", ScoreDecision(scores={"a": 11}), "a = 11: a score"),
    ("preempt", None, "None: must be a mapping of nodes to victims"),
    ("preempt", {"c": EVICTED}, "'c': the node is not in"),
    ("preempt", {"a": ["u"]}, "a = ['u']: must be the Victims"),
    ("preempt", {"a": Victims(pods=())}, "a has no victims left"),
    ("preempt", {"a": Victims(pods=("u",))}, "must be the Victims of the node"),  # type: ignore[arg-type]
    ("preempt", {"a": Victims(pods=EVICTED.pods, pdb_violations=2**63)}, "must be the Victims of the node"),
    ("preempt", {"a": Victims(pods=(Pod(namespace="", name="", uid="", labels={}),))}, "each with a uid"),
    ("bind", False, "False: must be nothing, or why the pod cannot be bound"),
    ("bind", {"Error": ""}, "must be nothing, or why"),
]


@pytest.mark.parametrize(
    ("verb", "hook_result", "message"), WRONG, ids=[f"{verb}-{hook_result!r:.30}" for verb, hook_result, _ in WRONG]
)
def test_facts_c15_c25_an_invalid_result_gives_an_error_with_its_value(
    verb: str, hook_result: Any, message: str
) -> None:
    with pytest.raises(InvalidHookResultError) as caught:
        answered(giving(verb, hook_result), verb)

    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


@given(verb=st.sampled_from(["filter", "prioritize", "preempt", "bind"]), hook_result=JSON_VALUES)
def test_any_result_of_a_hook_is_passed_on_correctly_or_refused(*, verb: str, hook_result: Any) -> None:
    try:
        answer, _ = answered(giving(verb, hook_result), verb)
    except InvalidHookResultError:
        return
    if verb == "prioritize":
        assert all(host["Host"] in ("a", "b") and 0 <= host["Score"] <= 10 for host in answer)
    elif verb == "filter":
        assert sorted([*answer["NodeNames"], *answer["FailedAndUnresolvableNodes"]]) == ["a", "b"]


@given(names=st.lists(NAMES, unique=True, max_size=6), data=st.data(), full=st.booleans())
def test_a_decider_answers_the_same_bytes_as_an_extension(*, names: list[str], data: st.DataObject, full: bool) -> None:
    """Telemetry's own path does not check its results; all else is equal."""
    decider = FixedDecider(
        rejects={name: "x" for name in names if data.draw(st.booleans())},
        scores={name: data.draw(st.integers(0, 10)) for name in names} if data.draw(st.booleans()) else None,
        unresolvable=data.draw(st.booleans()),
    )
    candidates: dict[str, Any] = {"Nodes": {"items": [node(n) for n in names]}} if full else {"NodeNames": names}
    victims = {name: {"Pods": [{"UID": "u"}], "NumPDBViolations": 0} for name in names}
    requests = {
        "filter": body(Pod=POD, **candidates),
        "prioritize": body(Pod=POD, **candidates),
        "preempt": body(Pod=POD, NodeNameToMetaVictims=victims),
    }
    hooks = Hooks(filter=decider.filter, score=decider.score)
    for verb, request in requests.items():
        expected, _ = VERBS[verb](decider, request, 7.0)
        served = hook_verbs(hooks)[verb]
        args = served.decode(request)

        answer, _ = served.respond(args, served.hook(*served.arguments(args, 7.0)), 7.0)

        assert answer == expected


def test_a_hook_for_preempt_answers_it_also_beside_one_for_filter() -> None:
    def keeps_no_node(*_: object) -> dict[str, Victims]:
        return {}

    def rejects_nobody(*_: object) -> dict[str, str]:
        return {}

    verbs = hook_verbs(Hooks(filter=rejects_nobody, preempt=keeps_no_node))
    assert verbs["filter"].hook is rejects_nobody
    assert verbs["preempt"].hook is keeps_no_node
    assert hook_verbs(Hooks(filter=rejects_nobody))["preempt"].hook is rejects_nobody
