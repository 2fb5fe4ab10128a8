"""The status of a policy."""

import tracemalloc
from typing import Any

import pytest

from tas.policy.manifest import parse_policy
from tas.policy.policy import Policy, PolicyKey, Problem, StrategyType
from tas.policy.rules import State
from tas.verdict.freeze import ALL, UNREADABLE_BREAKER, Breaker, Freeze, Pause, Trip, freeze_of
from tas.verdict.ownership import claim_of
from tas.verdict.status import (
    MAX_NAMES,
    MetricUse,
    NodeState,
    NodeStates,
    StateBook,
    UnsetLabels,
    any_source_limits,
    differs,
    foreign_values,
    labels_of_others,
    metrics_of,
    not_ready_reason,
    policy_status,
    says_bus_unreachable,
    status_without_bus,
    unset_labels,
)
from tas.verdict.verdict import DesiredKind, DesiredLabel, LabelVerdict, PolicyVerdict, StrategyVerdict

KEY = PolicyKey("default", "demo")
RULE = {"metricname": "m", "operator": "Equals", "target": 1}
NOW = 1_000_000_000.0


def read(strategies: dict[str, Any], *, namespace: str = "default", **spec: Any) -> tuple[Policy, tuple[Problem, ...]]:
    return parse_policy(PolicyKey(namespace, "demo"), {"strategies": strategies, **spec})


def rules(*more: dict[str, Any]) -> dict[str, Any]:
    return {"rules": [RULE, *more]}


def status(
    strategies: dict[str, Any],
    states: dict[StrategyType, NodeStates] | None = None,
    *,
    unseen: tuple[MetricUse, ...] = (),
    unset: tuple[Problem, ...] = (),
    unmarked: tuple[Problem, ...] = (),
    freeze: Freeze | None = None,
    before: object = None,
    now: float = NOW,
    lost: tuple[str, ...] = (),
    **spec: Any,
) -> dict[str, Any]:
    policy, problems = read(strategies, **spec)
    return policy_status(
        policy,
        generation=3,
        problems=problems,
        unset=unset,
        unmarked=unmarked,
        freeze=freeze,
        states=states or {},
        unseen=unseen,
        before=before,
        now=now,
        lost=lost,
    )


def condition(found: dict[str, Any], kind: str) -> tuple[str, str]:
    (one,) = (each for each in found["conditions"] if each["type"] == kind)
    return one["status"], one["reason"]


def message(found: dict[str, Any], kind: str) -> str:
    (one,) = (each for each in found["conditions"] if each["type"] == kind)
    text: str = one["message"]
    return text


@pytest.mark.parametrize(
    ("strategies", "spec", "expected"),
    [
        pytest.param({"deschedule": rules()}, {}, ("True", "InForce"), id="in force"),
        pytest.param({"deschedule": rules()}, {"suspend": True}, ("False", "Suspended"), id="suspended"),
        pytest.param({"deschedule": rules()}, {"dryRun": True}, ("False", "DryRun"), id="dry-run"),
        pytest.param({}, {}, ("False", "NothingToDo"), id="no strategies"),
        pytest.param({"deschedule": {"rules": []}}, {}, ("False", "NothingToDo"), id="facts_D34 no rules"),
        pytest.param(
            {"deschedule": rules(), "x": rules()}, {}, ("True", "PartlyIgnored"), id="facts_C4 unknown strategy"
        ),
        pytest.param({"deschedule": {"rules": 7}}, {}, ("False", "PartlyUnreadable"), id="unreadable rules"),
        pytest.param({"deschedule": rules()}, {"suspend": 7}, ("False", "PartlyUnreadable"), id="unreadable field"),
    ],
)
def test_ready_says_whether_the_policy_is_in_force(
    strategies: dict[str, Any], spec: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert condition(status(strategies, **spec), "Ready") == expected


@pytest.mark.parametrize("strategies", [{}, {"x": rules()}], ids=["alone", "beside a part that is ignored"])
def test_a_policy_whose_labels_are_not_written_is_not_ready_and_says_why_first(strategies: dict[str, Any]) -> None:
    unset = (Problem(field="spec.strategies.deschedule", value="demo=violating", reason="why", refused=False),)
    found = status({"deschedule": rules()} | strategies, unset=unset)
    assert condition(found, "Ready") == ("False", "LabelsNotWritten")
    assert message(found, "Ready").startswith(str(unset[0]))
    assert found["message"] == message(found, "Ready")
    assert found["problems"][0]["reason"] == "why"
    suspended = status({"deschedule": rules()}, unset=unset, suspend=True)
    assert condition(suspended, "Ready") == ("False", "Suspended")


def test_a_policy_whose_marks_are_not_written_is_not_ready_and_its_labels_are_named_first() -> None:
    field, value = "spec.strategies.deschedule", "taint telemetry.aware.scheduling/demo=NoSchedule"
    unmarked = (Problem(field=field, value=value, reason="why", refused=False),)
    found = status({"deschedule": rules(), "x": rules()}, unmarked=unmarked)
    assert condition(found, "Ready") == ("False", "MarksNotWritten")
    assert found["message"].startswith(str(unmarked[0]))
    assert found["problems"][0]["value"] == value
    unset = (Problem(field=field, value="demo=violating", reason="no", refused=False),)
    both = status({"deschedule": rules()}, unset=unset, unmarked=unmarked)
    assert condition(both, "Ready") == ("False", "LabelsNotWritten")
    assert [each["reason"] for each in both["problems"]] == ["no", "why"]


TRIP = Breaker(trip=Trip(since=NOW, limit=10, wanted=11, selected=30))
PAUSE = Pause(by="me@host", since=NOW, reason="upgrade")


@pytest.mark.parametrize(
    ("breakers", "pause", "reason", "text"),
    [
        ({}, None, None, ""),
        ({"demo": Breaker(nodes={"a": 1}), "other": TRIP}, None, None, ""),
        ({"demo": TRIP}, None, "BreakerTripped", "11 of 30 nodes were to have labels, at most 10 may"),
        ({ALL: TRIP}, None, "BreakerTripped", "tas reset --all"),
        ({"demo": UNREADABLE_BREAKER}, None, "BreakerTripped", "cannot be read, and may have tripped"),
        ({"demo": TRIP}, PAUSE, "Paused", "paused by me@host: upgrade"),
    ],
)
def test_frozen_labels_make_a_policy_not_ready_with_what_to_do(
    breakers: dict[str, Breaker], pause: Pause | None, reason: str | None, text: str
) -> None:
    freeze = freeze_of(PolicyKey("default", "demo"), breakers, pause)
    found = status({"deschedule": rules()}, freeze=freeze)
    if reason is None:
        assert condition(found, "Ready") == ("True", "InForce")
        return
    assert condition(found, "Ready") == ("False", reason)
    assert text in found["message"]
    assert "until: tas re" in found["message"]
    assert condition(status({"deschedule": rules()}, freeze=freeze, suspend=True), "Ready")[1] == "Suspended"


def test_a_problem_is_reported_with_its_field_and_reason() -> None:
    found = status({"deschedule": rules(), "strategy_unavailable": rules()})
    (problem,) = found["problems"]
    assert problem["field"] == "spec.strategies.strategy_unavailable"
    assert problem["reason"]
    assert problem["refused"] is False
    assert "strategy_unavailable" in message(found, "Ready")


@pytest.mark.parametrize(
    ("unseen", "expected"),
    [
        ((), ("True", "Fresh")),
        ((MetricUse("m"),), ("False", "NoFreshSample")),
        ((MetricUse("another"),), ("True", "Fresh")),
    ],
)
def test_metrics_seen_is_false_if_a_metric_has_no_fresh_sample(
    unseen: tuple[MetricUse, ...], expected: tuple[str, str]
) -> None:
    assert condition(status({"deschedule": rules()}, unseen=unseen), "MetricsSeen") == expected


def test_a_rule_with_a_source_uses_that_series() -> None:
    policy, _ = read({"scheduleonmetric": {"rules": [RULE | {"source": "agent"}]}})
    assert metrics_of(policy) == {MetricUse("m", "agent")}


def test_sources_are_compared_only_about_metrics_of_which_a_rule_names_no_source() -> None:
    """Then the alert ends once each rule names one."""
    one, _ = read({"deschedule": {"rules": [RULE | {"source": "agent"}]}}, staleAfter="10m")
    other, _ = read({"deschedule": {"rules": [RULE | {"source": "prometheus"}]}})
    any_source, _ = read({"dontschedule": {"rules": [RULE]}}, staleAfter="30s")
    assert any_source_limits([one, other], 60.0) == {}
    assert any_source_limits([one, other, any_source], 60.0) == {"m": 30.0}


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({}, ("Unknown", "NoVerdict")),
        ({StrategyType.DESCHEDULE: NodeStates(met=["a"])}, ("False", "NoneViolates")),
        ({StrategyType.DESCHEDULE: NodeStates(met=["a"], unknown=["b"])}, ("False", "SomeUnknown")),
        ({StrategyType.DESCHEDULE: NodeStates(violated=["a"], unknown=["b"])}, ("True", "NodesViolate")),
    ],
)
def test_violating_follows_the_states_of_the_nodes(
    states: dict[StrategyType, NodeStates], expected: tuple[str, str]
) -> None:
    assert condition(status({"deschedule": rules()}, states), "Violating") == expected


def test_as_many_nodes_as_the_limit_are_all_named() -> None:
    nodes = [f"node-{number}" for number in range(MAX_NAMES)]
    found = status({"deschedule": rules()}, {StrategyType.DESCHEDULE: NodeStates(violated=nodes)})
    assert message(found, "Violating") == f"{MAX_NAMES} of {MAX_NAMES} nodes violate: {', '.join(nodes)}"


def test_the_message_is_that_of_ready_if_not_in_force_else_of_violating() -> None:
    states = {StrategyType.DESCHEDULE: NodeStates(violated=["a"])}
    for suspend, kind in ((False, "Violating"), (True, "Ready")):
        found = status({"deschedule": rules()}, states, suspend=suspend)
        assert found["message"] == message(found, kind)
    ignored = status({"deschedule": rules(), "deschedul": rules()}, states)
    assert ignored["message"].startswith("spec.strategies.deschedul = ")
    assert status({"deschedule": rules()}, states)["message"] == "1 of 1 node violates: a"


def test_the_number_of_nodes_is_the_largest_of_all_strategies() -> None:
    states = {
        StrategyType.DONTSCHEDULE: NodeStates(met=["a"]),
        StrategyType.DESCHEDULE: NodeStates(met=["a", "b"]),
    }
    found = status({"dontschedule": rules(), "deschedule": rules()}, states)
    assert message(found, "Violating") == "none of 2 nodes violates"


def test_a_metric_of_a_rule_that_does_not_count_is_not_used() -> None:
    second = RULE | {"metricname": "second"}
    policy, _ = read({"scheduleonmetric": rules(second)})
    assert metrics_of(policy) == {MetricUse("m")}
    policy, _ = read({"scheduleonmetric": rules(second | {"weight": 1})})
    assert metrics_of(policy) == {MetricUse("second")}


def test_a_policy_that_only_orders_nodes_is_never_violated() -> None:
    assert condition(status({"scheduleonmetric": rules()}), "Violating") == ("False", "NothingToViolate")


def test_nodes_are_named_up_to_a_limit_and_counted_beyond() -> None:
    nodes = [f"node-{number:02}" for number in range(MAX_NAMES + 5)]
    found = status(
        {"deschedule": rules(), "dontschedule": rules()},
        {
            StrategyType.DESCHEDULE: NodeStates(violated=set(nodes)),
            StrategyType.DONTSCHEDULE: NodeStates(violated=set(nodes[:3]), met=["z"]),
        },
    )
    assert found["violating"] == MAX_NAMES + 5
    assert found["violatingNodes"] == nodes[:MAX_NAMES]
    assert message(found, "Violating").endswith(f"{nodes[MAX_NAMES - 1]} and 5 more")
    assert found["strategies"] == [
        {"name": "dontschedule", "violated": 3, "met": 1, "unknown": 0},
        {"name": "deschedule", "violated": MAX_NAMES + 5, "met": 0, "unknown": 0},
    ]


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    met = {StrategyType.DESCHEDULE: NodeStates(met=["a"])}
    first = status({"deschedule": rules()}, met)
    second = status({"deschedule": rules()}, met, before=first, now=NOW + 60)
    assert second == first
    assert not differs(first, second)
    third = status(
        {"deschedule": rules()}, {StrategyType.DESCHEDULE: NodeStates(violated=["a"])}, before=second, now=NOW + 60
    )
    assert differs(second, third)
    times = {each["type"]: each["lastTransitionTime"] for each in third["conditions"]}
    assert times["Ready"] == "2001-09-09T01:46:40Z"
    assert times["Violating"] == "2001-09-09T01:47:40Z"


def test_conditions_and_fields_of_others_stay() -> None:
    theirs = {"type": "Theirs", "status": "True"}
    first = status({"deschedule": rules()}, before={"conditions": [theirs], "compliance": "x"})
    assert theirs in first["conditions"]
    assert not differs({"compliance": "x"} | first, first)


@pytest.mark.parametrize("before", [None, 7, [], {"conditions": 7}, {"conditions": [7, {"type": 7}]}])
def test_a_status_that_makes_no_sense_is_replaced(before: object) -> None:
    found = status({"deschedule": rules()}, before=before)
    assert [each["type"] for each in found["conditions"]] == ["Ready", "MetricsSeen", "Violating"]
    assert differs(before, found)


def test_facts_D39_a_policy_reports_who_owns_its_labels() -> None:
    both = {"deschedule": rules(), "labeling": {"rules": [RULE | {"labels": ["card=0"]}]}}
    youngest, _ = read(both, namespace="a")
    oldest, _ = read({"deschedule": rules()}, namespace="c")
    between, _ = read({"labeling": both["labeling"]}, namespace="b")
    claims = {
        each.key: claim_of(each, uid=each.key.namespace, created=created)
        for each, created in ((youngest, 3.0), (between, 2.0), (oldest, 1.0))
    }
    found = labels_of_others(youngest, claims)
    assert [(each.field, each.refused) for each in found] == [
        ("spec.strategies.deschedule", False),
        ("spec.strategies.labeling", False),
    ]
    assert "c/demo" in found[0].reason
    assert "b/demo" in found[1].reason
    assert labels_of_others(between, claims) == labels_of_others(oldest, claims) == ()
    assert labels_of_others(youngest, {youngest.key: claims[youngest.key]}) == ()


@pytest.mark.parametrize("value", [None, "violating", "", "null", "ssd", "hdd"])
def test_facts_S4_a_foreign_value_under_the_label_of_a_policy_is_reported_with_its_node(value: str | None) -> None:
    policy, _ = read({"deschedule": rules()})
    labels = {} if value is None else {"demo": value}
    problems = foreign_values(policy, {"n1": labels | {"zone": "a"}, "n2": {"other": "ssd"}})
    if value in {"ssd", "hdd"}:
        (problem,) = problems
        assert f"n1 (demo={value})" in problem.reason
        assert "n2" not in problem.reason
        assert not problem.refused
    else:
        assert not problems


def test_facts_D45_a_name_that_is_no_label_key_has_no_foreign_value() -> None:
    long = "x" * 64
    policy, _ = parse_policy(PolicyKey("default", long), {"strategies": {"deschedule": rules()}})
    assert foreign_values(policy, {"n1": {long: "ssd"}}) == ()


def desires(*labels: str, kind: DesiredKind = DesiredKind.SET) -> dict[tuple[PolicyKey, str], PolicyVerdict]:
    """A verdict in which the policy desires these labels with the value `violating`."""
    desired = DesiredLabel(kind, "violating")
    verdicts = {label: LabelVerdict(state=State.VIOLATED, desired=desired) for label in labels}
    strategy = StrategyVerdict(state=State.VIOLATED, changed=0.0, labels=verdicts)
    return {(KEY, "u"): PolicyVerdict(uid="u", generation=1, strategies={StrategyType.DESCHEDULE: strategy})}


class TestUnsetLabels:
    OWNED = (StrategyType.DESCHEDULE,)

    def problems(self, unset: UnsetLabels, have: dict[str, bool | None], at: float) -> list[str]:
        found = unset.problems((KEY, "u"), lambda node, _: have.get(node, False), owned=self.OWNED, refused=(), at=at)
        assert not any(each.refused for each in found)
        return [f"{each.field} {each.value} {each.reason}" for each in found]

    def test_a_label_that_nodes_lack_for_long_is_reported_with_the_nodes(self) -> None:
        unset = UnsetLabels(seconds=60)
        for number in range(12):
            unset.take(f"n{number:02}", desires("demo"))
        have: dict[str, bool | None] = {"n00": True, "n01": None}
        assert self.problems(unset, have, 100.0) == self.problems(unset, have, 159.0) == []
        (problem,) = self.problems(unset, have, 160.0)
        assert problem.startswith("spec.strategies.deschedule demo=violating ")
        assert "nodes without the label for at least 60 s: 10 (" in problem
        assert "n02, n03" in problem
        assert "n01" not in problem

    def test_the_time_begins_again_when_the_label_was_there(self) -> None:
        unset = UnsetLabels(seconds=60)
        unset.take("n", desires("demo"))
        assert not self.problems(unset, {}, 0.0)
        assert not self.problems(unset, {"n": True}, 50.0)
        assert not self.problems(unset, {}, 70.0)
        assert self.problems(unset, {}, 130.0)

    def test_another_verdict_of_the_only_node_does_not_begin_the_time_again(self) -> None:
        unset = UnsetLabels(seconds=60)
        for at in (0.0, 30.0, 60.0):
            unset.take("n", desires("demo"))
            assert bool(self.problems(unset, {}, at)) is (at == 60.0)

    def test_every_node_shares_the_names_and_the_labels_of_a_policy(self) -> None:
        """Else each pair of a node and a policy takes 500 bytes."""
        nodes, policies = 100, 50
        unset = UnsetLabels(seconds=60)
        tracemalloc.start()
        try:
            for node in range(nodes):
                for_node: dict[Any, PolicyVerdict] = {}
                for number in range(policies):
                    key = PolicyKey("default", f"policy-{number}")
                    for_node[key, f"uid-{number}"] = desires(f"policy-{number}")[KEY, "u"]
                unset.take(f"n{node}", for_node)
            del for_node
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        missing = sum(
            len(
                unset.problems(
                    (PolicyKey("default", f"policy-{number}"), f"uid-{number}"),
                    lambda *_: False,
                    owned=self.OWNED,
                    refused=(),
                    at=at,
                )
            )
            for at in (0.0, 60.0)
            for number in range(policies)
        )
        assert missing == policies  # all were taken in
        assert kept / (nodes * policies) < 250

    @pytest.mark.parametrize("after", [{}, desires("demo", kind=DesiredKind.HOLD), desires("other/card")])
    def test_a_label_that_is_no_longer_desired_is_not_missing(self, after: Any) -> None:
        unset = UnsetLabels(seconds=60)
        unset.take("n", desires("demo"))
        assert not self.problems(unset, {}, 0.0)
        unset.take("n", after)
        assert not [each for each in self.problems(unset, {}, 100.0) if "demo=" in each]

    def test_labels_of_another_owner_and_of_an_earlier_epoch_are_not_reported(self) -> None:
        unset = UnsetLabels(seconds=0)
        unset.take("n", desires("demo"))
        assert unset.problems((KEY, "u"), lambda *_: False, owned=(), refused=(), at=0.0) == ()
        assert unset.problems((KEY, "later"), lambda *_: False, owned=self.OWNED, refused=(), at=0.0) == ()
        assert self.problems(unset, {}, 0.0)
        unset.clear()
        assert not self.problems(unset, {}, 0.0)

    def test_a_label_that_is_known_to_be_refused_with_this_value_is_not_reported_again(self) -> None:
        unset = UnsetLabels(seconds=0)
        unset.take("n", desires("demo"))
        for value, reported in (("violating", False), (None, True)):
            found = unset.problems((KEY, "u"), lambda *_: False, owned=self.OWNED, refused={("demo", value)}, at=0.0)
            assert bool(found) is reported


def unset_of(
    labels: dict[str, dict[str, str] | None], *, kind: str, since: float | None = NOW - 90, **other: Any
) -> list[str]:
    """The problems at `NOW` of a policy with `for: 30s` whose verdict for the node `n` sets a label."""
    policy, _ = read({"deschedule": rules() | {"for": "30s"}})
    each = LabelVerdict(
        state=State.VIOLATED, desired=DesiredLabel(DesiredKind(kind), "violating"), violated_since=since
    )
    strategy = StrategyVerdict(state=State.VIOLATED, changed=NOW, labels={"demo": each})
    verdict = PolicyVerdict(uid="u", generation=1, strategies={StrategyType.DESCHEDULE: strategy})
    bounds: dict[str, Any] = {"owned": (StrategyType.DESCHEDULE,), "refused": ()} | other
    return [str(problem) for problem in unset_labels(policy, {"n": verdict}, labels, seconds=60, now=NOW, **bounds)]


def test_a_label_that_a_node_should_have_for_a_minute_is_known_at_one_glance() -> None:
    (problem,) = unset_of({"n": {}}, kind="set")
    assert problem.startswith(
        "spec.strategies.deschedule = demo=violating: nodes without the label for at least 60 s: 1 (n)"
    )


@pytest.mark.parametrize(
    ("labels", "changes"),
    [
        pytest.param({"n": {"demo": "violating"}}, {}, id="set"),
        pytest.param({"n": {"demo": "other"}}, {}, id="another value"),
        pytest.param({"n": None}, {}, id="labels not known"),
        pytest.param({}, {}, id="node not known"),
        pytest.param({"n": {}}, {"since": NOW - 89}, id="not yet a minute after its for"),
        pytest.param({"n": {}}, {"since": None}, id="not violated"),
        pytest.param({"n": {}}, {"kind": "hold"}, id="hold"),
        pytest.param({"n": {}}, {"owned": ()}, id="another owner"),
        pytest.param({"n": {}}, {"refused": {("demo", "violating")}}, id="refused"),
    ],
)
def test_a_label_that_is_not_missing_is_not_reported(
    labels: dict[str, dict[str, str] | None], changes: dict[str, Any]
) -> None:
    assert unset_of(labels, **{"kind": "set"} | changes) == []


def test_the_book_counts_each_node_once() -> None:
    book = StateBook()
    violated = {(KEY, "u"): {StrategyType.DESCHEDULE: NodeState(State.VIOLATED)}}
    met = {(KEY, "u"): {StrategyType.DESCHEDULE: NodeState(State.MET)}}
    assert book.take("a", violated) == {KEY}
    assert book.take("a", violated) == frozenset()
    assert book.take("b", met) == {KEY}
    assert book.states(KEY, "u")[StrategyType.DESCHEDULE] == NodeStates(violated={"a"}, met={"b"})
    assert book.take("a", met) == {KEY}
    assert book.states(KEY, "u")[StrategyType.DESCHEDULE].met == {"a", "b"}
    assert book.states(KEY, "another") == {}
    assert book.take("a", {}) == {KEY}
    assert book.take("b", {}) == {KEY}
    assert book.states(KEY, "u") == {}


def test_the_book_knows_which_unknown_nodes_get_no_pods() -> None:
    book = StateBook()
    unknown, kept = ({(KEY, "u"): {StrategyType.DONTSCHEDULE: NodeState(State.UNKNOWN, k)}} for k in (False, True))
    book.take("a", unknown)
    book.take("b", kept)
    assert book.states(KEY, "u")[StrategyType.DONTSCHEDULE] == NodeStates(unknown={"a", "b"}, kept={"b"})
    assert book.take("b", unknown) == {KEY}
    assert book.states(KEY, "u")[StrategyType.DONTSCHEDULE] == NodeStates(unknown={"a", "b"})


def test_last_known_values_are_in_the_message() -> None:
    states = {StrategyType.DONTSCHEDULE: NodeStates(met=["c"], unknown=["a", "b"], kept=["b"])}
    assert status({"dontschedule": rules()}, states)["message"] == (
        "none of 3 nodes is known to violate, 2 are unknown, of which 1 gets no pods because of its last known values"
    )


def test_a_policy_without_states_is_not_in_the_book() -> None:
    book = StateBook()
    assert book.take("a", {(KEY, "u"): {}}) == frozenset()
    assert book.states(KEY, "u") == {}


@pytest.mark.ci
def test_the_book_takes_little_memory_for_each_node_and_policy_and_none_for_deleted_policies() -> None:
    nodes, policies, generations = 100, 50, 5

    def verdict(generation: int) -> dict[tuple[PolicyKey, str], dict[StrategyType, NodeState]]:
        """As a decoder returns it: each object is a new one."""
        return {
            (PolicyKey("default", f"policy-{number}"), f"uid-{generation}-{number}"): {
                StrategyType.DONTSCHEDULE: NodeState(State.MET),
                StrategyType.DESCHEDULE: NodeState(State.MET),
            }
            for number in range(policies)
        }

    book = StateBook()
    tracemalloc.start()
    try:
        for generation in range(generations):
            for number in range(nodes):
                book.take(f"node-{number}", verdict(generation))
        taken, _ = tracemalloc.get_traced_memory()
        for number in range(nodes):
            book.take(f"node-{number}", {})
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Two sets and a dict with an entry for each take 180 bytes; the objects of a verdict would take 500 more.
    assert taken / (nodes * policies) < 300
    assert left < taken / 10


def test_a_policy_whose_verdicts_nobody_computes_is_not_ready() -> None:
    """What was computed before stays shown, and nothing says that it is so still."""
    states = {StrategyType.DESCHEDULE: NodeStates(met=("a", "b"))}
    found = status({"deschedule": rules()}, states, lost=("evaluate", "labels"))
    assert condition(found, "Ready") == ("False", "NotEvaluated")
    assert condition(found, "Violating") == ("Unknown", "NotEvaluated")
    assert "no process runs evaluate" in found["message"]
    assert found["strategies"][0]["met"] == 2
    assert not_ready_reason(found) == "NotEvaluated"


@pytest.mark.parametrize(
    ("strategies", "lost", "ready"),
    [
        ({"deschedule": rules()}, ("labels",), ("False", "LabelsNotWritten")),
        ({"dontschedule": rules()}, ("labels",), ("True", "InForce")),
        ({"dontschedule": rules()}, ("evaluate",), ("False", "NotEvaluated")),
        ({"scheduleonmetric": rules()}, ("evaluate",), ("True", "InForce")),
        ({"deschedule": rules()}, ("events", "extender"), ("True", "InForce")),
    ],
)
def test_only_the_workers_that_a_policy_needs_count(
    strategies: dict[str, Any], lost: tuple[str, ...], ready: tuple[str, str]
) -> None:
    assert condition(status(strategies, lost=lost), "Ready") == ready


@pytest.mark.parametrize(
    ("fields", "ready"),
    [
        ({}, ("Unknown", "BusUnreachable")),
        ({"suspend": True}, ("False", "Suspended")),
        ({"dryRun": True}, ("False", "DryRun")),
    ],
)
def test_without_a_bus_nobody_knows_whether_a_policy_is_in_force(
    fields: dict[str, Any], ready: tuple[str, str]
) -> None:
    """What the policy itself says stays, and so do the numbers of before and the conditions of others."""
    parsed, problems = parse_policy(KEY, {"strategies": {"deschedule": rules()}} | fields)
    other = {"type": "Mine", "status": "True"}
    before = status({"deschedule": rules()}, {StrategyType.DESCHEDULE: NodeStates(violated=("a",))})
    before["conditions"].append(other)
    assert not says_bus_unreachable(before)
    found = status_without_bus(parsed, generation=3, problems=problems, before=before, now=NOW + 60)
    assert found.keys() == {"conditions", "message"}
    assert other in found["conditions"]
    assert condition(found, "Ready") == ready
    assert condition(found, "Violating") == condition(found, "MetricsSeen") == ("Unknown", "BusUnreachable")
    assert says_bus_unreachable(before | found)
    again = status_without_bus(parsed, generation=3, problems=problems, before=before | found, now=NOW + 90)
    assert not differs(before | found, again)


@pytest.mark.parametrize("nothing", [None, {}, {"conditions": "x"}, {"conditions": [{"type": "Violating"}]}])
def test_a_status_that_says_nothing_does_not_say_that_the_bus_is_away(nothing: object) -> None:
    assert not says_bus_unreachable(nothing)
