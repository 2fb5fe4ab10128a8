"""Marks: when a taint or a condition is set, and when it goes."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.enforcing.labels import DesiredLabels, OwnedLabel
from tas.enforcing.marks import (
    RULES_MET,
    RULES_VIOLATED,
    Basis,
    MarkChange,
    MarkKind,
    NodeMarks,
    Taint,
    WantedMarks,
    changed_conditions,
    changed_taints,
    is_settled,
    mark_changes,
    may_remove_mark,
    node_marks,
    wanted_marks,
)
from tas.policy.manifest import parse_policy
from tas.policy.policy import MARK_PREFIX, Policy, PolicyKey
from tas.verdict.verdict import ABSENT, HOLD, DesiredKind, DesiredLabel
from tests.unit.tas.generators import characters

KEY, OTHER = PolicyKey("a", "p"), PolicyKey("b", "p")
RULE = {"metricname": "m", "operator": "GreaterThan", "target": 1}
SET = DesiredLabel(DesiredKind.SET, "violating")
LABELLED = {"p": "violating"}
OURS = {"key": "telemetry.aware.scheduling/p", "value": "violating", "effect": "NoSchedule"}
FOREIGN_TAINT = {"key": "gpu", "value": "yes", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
FOREIGN_CONDITION = {"type": "Ready", "status": "True", "lastHeartbeatTime": None, "later": {"x": [1.50]}}
BEFORE, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def condition(status: str, reason: str, message: str, **more: str) -> dict[str, Any]:
    return {"type": MARK_PREFIX + "p", "status": status, "reason": reason, "message": message, **more}


TRUE, FALSE = condition(*RULES_VIOLATED), condition(*RULES_MET)


def policy(key: PolicyKey = KEY, *, spec: Mapping[str, Any] | None = None, **options: Any) -> Policy:
    return parse_policy(key, {"strategies": {"deschedule": {"rules": [RULE], **options}}, **(spec or {})})[0]


TAINT_ONLY: Mapping[str, Any] = {"taint": {"effect": "NoSchedule"}}
CONDITION_ONLY: Mapping[str, Any] = {"nodeCondition": True}
BOTH: Mapping[str, Any] = {**TAINT_ONLY, **CONDITION_ONLY}


def wanted(**options: Any) -> dict[str, WantedMarks]:
    found = wanted_marks(policy(**options))
    return {} if found is None else {"p": found}


def desired(kind: DesiredLabel | None, owner: PolicyKey | None = KEY) -> DesiredLabels:
    labels = {} if kind is None else {"p": OwnedLabel(kind, owner)}
    return DesiredLabels(labels, frozenset(), frozenset(), contested=False)


def changes(
    labels: Mapping[str, str],
    verdict: DesiredLabels,
    *marks: Mapping[str, Any],
    options: Mapping[str, Any] = BOTH,
    strays: Collection[str] = (),
    frozen: Collection[str] = (),
) -> dict[str, tuple[str | None, Basis]]:
    """The changes of a node with these marks: the new effect or status of each kind, None for a removal, and why."""
    taints, conditions = [each for each in marks if "key" in each], [each for each in marks if "type" in each]
    found = mark_changes(
        node_marks("u", labels, taints, conditions),
        wanted(**options),
        verdict,
        labels,
        is_stray=lambda name: name in strays,
        is_frozen=lambda name: name in frozen,
    )
    for each in found:
        assert each.policy == "p"
        assert (each.owner is not None) == (each.basis is Basis.VERDICT)
    return {each.kind.value: (each.text, each.basis) for each in found}


SHOWN = {"taint": ("NoSchedule", Basis.LABEL), "condition": ("True", Basis.LABEL)}
ENDED = {"taint": (None, Basis.VERDICT), "condition": ("False", Basis.VERDICT)}


@pytest.mark.parametrize("kind", [SET, HOLD], ids=["set", "hold"])
def test_a_node_with_the_label_gets_the_marks_also_while_its_state_is_unknown(kind: DesiredLabel) -> None:
    assert changes(LABELLED, desired(kind)) == SHOWN


@pytest.mark.parametrize(
    "verdict",
    [desired(None), desired(ABSENT), desired(SET, None), desired(SET, OTHER)],
    ids=["no-verdict", "absent", "nobody-owns", "another-owns"],
)
def test_a_label_that_its_owner_does_not_stand_by_gives_no_mark(verdict: DesiredLabels) -> None:
    assert changes(LABELLED, verdict) == {}


def test_a_node_without_the_label_gets_no_mark_but_the_condition_that_its_rules_are_met() -> None:
    assert changes({}, desired(SET)) == changes({}, desired(HOLD)) == changes({"p": "mine"}, desired(SET)) == {}
    assert changes({}, desired(ABSENT)) == {"condition": ("False", Basis.VERDICT)}


def test_marks_go_only_if_the_label_is_gone_and_the_owner_desires_it_absent() -> None:
    assert changes({}, desired(ABSENT), OURS, TRUE) == ENDED
    assert changes(LABELLED, desired(ABSENT), OURS, TRUE) == {}
    for verdict in (desired(None), desired(SET), desired(HOLD), desired(ABSENT, None)):
        assert changes({}, verdict, OURS, TRUE) == {}


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([OURS | {"value": "mine"}, TRUE], {"taint"}),
        ([OURS | {"effect": "NoExecute"}, TRUE], {"taint"}),
        ([OURS, OURS | {"effect": "PreferNoSchedule"}, TRUE], {"taint"}),
        ([OURS, TRUE | {"status": "Unknown"}], {"condition"}),
        ([OURS, TRUE | {"reason": "Mine"}], {"condition"}),
        ([OURS, TRUE | {"message": "mine"}], {"condition"}),
        ([OURS], {"condition"}),
        ([TRUE], {"taint"}),
        ([OURS, TRUE], set()),
    ],
    ids=["value", "effect", "two-taints", "status", "reason", "message", "no-condition", "no-taint", "as-wanted"],
)
def test_a_mark_that_somebody_edits_is_restored_while_the_label_is_there(
    marks: list[dict[str, Any]], expected: set[str]
) -> None:
    assert changes(LABELLED, desired(SET), *marks, strays="p") == {kind: SHOWN[kind] for kind in expected}


def test_while_a_node_has_a_mark_without_its_label_no_further_node_gets_one() -> None:
    assert changes(LABELLED, desired(SET), strays="p") == {}
    assert changes({}, desired(ABSENT), OURS, TRUE, strays="p") == ENDED


def test_a_freeze_keeps_everything_as_it_is() -> None:
    assert changes(LABELLED, desired(SET), frozen="p") == changes({}, desired(ABSENT), OURS, TRUE, frozen="p") == {}
    assert changes({}, desired(None), OURS, TRUE, options={}, frozen="p") == {}


@pytest.mark.parametrize("labels", [LABELLED, {}], ids=["label", "no-label"])
def test_marks_that_no_stored_policy_wants_are_orphans(labels: Mapping[str, str]) -> None:
    gone = {"taint": (None, Basis.LIST), "condition": (None, Basis.LIST)}
    for verdict in (desired(None), desired(SET), desired(HOLD)):
        assert changes(labels, verdict, OURS, TRUE, options={}) == gone
        assert changes(labels, verdict, OURS, FALSE, options=TAINT_ONLY) == {"condition": gone["condition"]}


def test_after_its_option_is_gone_a_mark_may_also_go_by_the_verdict() -> None:
    gone = {"taint": (None, Basis.VERDICT), "condition": (None, Basis.VERDICT)}
    assert changes({}, desired(ABSENT), OURS, TRUE, options={}) == gone


def test_a_node_that_the_policy_does_not_select_gets_no_condition_and_its_condition_becomes_false() -> None:
    options = {**BOTH, "spec": {"nodeSelector": {"matchLabels": {"zone": "a"}}}}
    assert changes({"zone": "b"}, desired(ABSENT), options=options) == {}
    assert changes({"zone": "b"}, desired(ABSENT), TRUE, options=options) == {"condition": ("False", Basis.VERDICT)}
    assert changes({"zone": "a"}, desired(ABSENT), options=options) == {"condition": ("False", Basis.VERDICT)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"taint": {"effect": "NoExecute"}},
        {**BOTH, "rules": [RULE | {"operator": "Equal"}]},
        {**BOTH, "key": "n" * 64},
    ],
    ids=["none", "no-execute", "unreadable-rule", "name-is-no-label"],
)
def test_a_policy_without_readable_options_wants_no_mark(options: dict[str, Any]) -> None:
    key = PolicyKey("a", options.pop("key", "p"))
    assert wanted_marks(policy(key, **options)) is None


@pytest.mark.parametrize(
    ("labels", "marks", "settled"),
    [
        (LABELLED, [OURS, TRUE], True),
        (LABELLED, [OURS], False),
        (LABELLED, [OURS, FALSE], False),
        ({}, [FALSE], True),
        ({}, [], False),
        ({}, [OURS, FALSE], False),
        ({}, [FALSE, OURS | {"key": MARK_PREFIX + "q"}], False),
        ({}, [FALSE, FALSE | {"type": MARK_PREFIX + "q"}], False),
    ],
)
def test_a_node_is_settled_if_only_a_label_can_change_its_marks(
    labels: Mapping[str, str], marks: list[dict[str, Any]], settled: bool
) -> None:
    taints, conditions = [each for each in marks if "key" in each], [each for each in marks if "type" in each]
    assert is_settled(node_marks("u", labels, taints, conditions), wanted(**BOTH)) is settled


@pytest.mark.parametrize(
    ("options", "spec", "goes"),
    [
        (None, {}, {"taint", "condition"}),
        ({}, {}, {"taint", "condition"}),
        (TAINT_ONLY, {}, {"condition"}),
        (CONDITION_ONLY, {}, {"taint"}),
        ({**BOTH, "rules": []}, {}, {"taint", "condition"}),
        ({}, {"suspend": True}, set()),
        ({}, {"dryRun": True}, set()),
        ({"taint": {"effect": "NoExecute"}}, {}, set()),
    ],
    ids=["deleted", "no-option", "taint-only", "condition-only", "no-rules", "suspended", "dry-run", "unreadable"],
)
def test_the_policies_of_the_api_server_decide_which_orphans_go(
    options: Mapping[str, Any] | None, spec: Mapping[str, Any], goes: set[str]
) -> None:
    own = [] if options is None else [(OTHER, {"strategies": {"deschedule": {"rules": [RULE], **options}}, **spec})]
    listed = [(PolicyKey("a", "q"), {"strategies": {"deschedule": {"rules": [RULE], **BOTH}}}), *own]
    assert {kind.value for kind in MarkKind if may_remove_mark(kind, "p", listed)} == goes


def test_the_new_lists_keep_all_others_and_a_transition_has_its_time() -> None:
    taints = [FOREIGN_TAINT, OURS | {"effect": "NoExecute"}, {"key": "telemetry.aware.scheduling.p/x"}]
    shown = MarkChange(MarkKind.TAINT, "p", Taint("violating", "NoSchedule"), Basis.LABEL)
    assert changed_taints(taints, [shown]) == [taints[0], taints[2], OURS]
    assert changed_taints(taints, [shown._replace(value=None)]) == [taints[0], taints[2]]
    assert changed_taints(taints, []) == taints

    found = [FOREIGN_CONDITION, FALSE | {"lastTransitionTime": BEFORE}]
    turned = MarkChange(MarkKind.CONDITION, "p", RULES_VIOLATED, Basis.LABEL)
    times = {"lastHeartbeatTime": NOW, "lastTransitionTime": NOW}
    assert changed_conditions(found, [turned], now=NOW) == [FOREIGN_CONDITION, TRUE | times]
    edited = [FALSE | {"reason": "Mine", "lastTransitionTime": BEFORE}]
    same = turned._replace(value=RULES_MET)
    assert changed_conditions(edited, [same], now=NOW) == [FALSE | times | {"lastTransitionTime": BEFORE}]
    assert changed_conditions(found, [turned._replace(value=None)], now=NOW) == [FOREIGN_CONDITION]


keys = st.sampled_from(["p", "q", MARK_PREFIX + "p", MARK_PREFIX + "q", MARK_PREFIX, "telemetry.aware.scheduling.p/x"])
json_values: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | st.text(characters, max_size=3)
taint_lists = st.lists(
    st.builds(
        lambda key, more, effect: {"key": key, "effect": effect, **more},
        keys,
        st.dictionaries(st.sampled_from(["value", "timeAdded", "x"]), json_values),
        st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
    ),
    max_size=4,
)
condition_lists = st.lists(
    st.builds(
        lambda key, status, more: {"type": key, "status": status, **more},
        keys,
        st.sampled_from(["True", "False", "Unknown"]),
        st.dictionaries(st.sampled_from(["reason", "message", "lastTransitionTime"]), json_values),
    ),
    max_size=4,
    unique_by=lambda each: each["type"],
)
names = st.sampled_from(["p", "q", ""])
WANTS = {
    name: [
        want
        for each in (TAINT_ONLY, CONDITION_ONLY, BOTH)
        if (want := wanted_marks(policy(PolicyKey("a", name), **each)))
    ]
    for name in ("p", "q")
}
owned = st.builds(
    OwnedLabel, st.sampled_from([SET, HOLD, ABSENT]), st.sampled_from([None, KEY, PolicyKey("a", "q"), OTHER])
)


@given(
    labels=st.dictionaries(names, st.sampled_from(["violating", "mine"])),
    taints=taint_lists,
    conditions=condition_lists,
    options=st.dictionaries(st.sampled_from(["p", "q"]), st.integers(0, 2)),
    verdict=st.dictionaries(names, owned),
    strays=st.sets(names),
    frozen=st.sets(names),
    confirmed=st.booleans(),
)
def test_whatever_is_known_the_law_holds_and_others_are_untouched(
    *,
    labels: dict[str, str],
    taints: list[dict[str, Any]],
    conditions: list[dict[str, Any]],
    options: dict[str, int],
    verdict: dict[str, OwnedLabel],
    strays: set[str],
    frozen: set[str],
    confirmed: bool,
) -> None:
    """No mark without the label; none goes without a basis to confirm; foreign taints and conditions stay as bytes."""
    wants = {name: WANTS[name][number] for name, number in options.items()}
    before = node_marks("u", labels, taints, conditions)
    found = mark_changes(
        before,
        wants,
        DesiredLabels(verdict, frozenset(), frozenset(), contested=False),
        labels,
        is_stray=strays.__contains__,
        is_frozen=frozen.__contains__,
    )
    allowed = [each for each in found if confirmed or each.basis is Basis.LABEL]
    new_taints, new_conditions = changed_taints(taints, allowed), changed_conditions(conditions, allowed, now=NOW)
    after = node_marks("u", labels, new_taints, new_conditions)

    assert is_ours_alone(taints, new_taints, "key")
    assert is_ours_alone(conditions, new_conditions, "type")
    for name in ("p", "q", ""):
        had, has = before.is_marked(name), after.is_marked(name)
        may_add = labels.get(name) == "violating" and name in wants and name not in strays
        assert not has or had or may_add
        is_owner = name in verdict and verdict[name].owner is not None
        by_verdict = name not in before.labelled and is_owner and verdict[name].desired == ABSENT
        lost = lost_marks(before, after, name)
        assert not lost or confirmed
        assert not lost or by_verdict or all(not is_option(wants, name, kind) for kind in lost)
        if name in frozen:
            assert after.taints.get(name) == before.taints.get(name)
            assert after.conditions.get(name) == before.conditions.get(name)


def is_ours_alone(old: list[dict[str, Any]], new: list[Any], field: str) -> bool:
    """Whether all that is not ours is the same, byte for byte and in order."""
    foreign: Callable[[list[Any]], str] = lambda found: json.dumps(  # noqa: E731
        [each for each in found if not each[field].startswith(MARK_PREFIX)]
    )
    return foreign(old) == foreign(new)


def lost_marks(before: NodeMarks, after: NodeMarks, name: str) -> set[MarkKind]:
    """The kinds of marks that the node had and has not any more."""
    lost = {MarkKind.TAINT} if name in before.taints and name not in after.taints else set()
    was, now = before.conditions.get(name), after.conditions.get(name)
    is_lost = was is not None and was.status == "True" and (now is None or now.status != "True")
    return lost | ({MarkKind.CONDITION} if is_lost else set())


def is_option(wants: Mapping[str, WantedMarks], name: str, kind: MarkKind) -> bool:
    want = wants.get(name)
    return want is not None and (want.condition if kind is MarkKind.CONDITION else want.taint is not None)
