"""From wishes to a patch: whose a label is, and what is to change."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.labels import LabelConflict, LabelPatch, Orphan, is_foreign, label_patch, orphans, strongest
from tas.policy import LABEL_PREFIX, PolicyKey, StrategyType
from tas.rules import State
from tas.verdict import (
    ABSENT,
    HOLD,
    VIOLATING,
    LabelVerdict,
    PolicyVerdict,
    StrategyVerdict,
    Wish,
    WishKind,
    labeling_prefix,
)

P = PolicyKey("default", "deschedule-test")
L = PolicyKey("default", "labeling-test")
K = "telemetry.aware.scheduling.labeling-test/"
SET = Wish(WishKind.SET, VIOLATING)
OURS = ("tas", "extender")


def value(text: str) -> Wish:
    return Wish(WishKind.SET, text)


def unless_any(text: str) -> Wish:
    return Wish(WishKind.SET_UNLESS_ANY, text)


def verdict(wishes: Mapping[str, Wish], *, holds_prefix: bool = False) -> PolicyVerdict:
    """A verdict with these wishes; which strategy has them makes no difference to a label."""
    labels = {label: LabelVerdict(state=State.UNKNOWN, wish=wish) for label, wish in wishes.items()}
    strategy = StrategyVerdict(state=State.UNKNOWN, changed=0, labels=labels)
    return PolicyVerdict(uid="u", generation=1, strategies={StrategyType.LABELING: strategy}, holds_prefix=holds_prefix)


def changes(wishes: Mapping[PolicyKey, Mapping[str, Wish]], labels: Mapping[str, str]) -> Mapping[str, str | None]:
    return label_patch({key: verdict(each) for key, each in wishes.items()}, labels).changes


def swept(
    wishes: Mapping[PolicyKey, Mapping[str, Wish]],
    labels: Mapping[str, str],
    managers: Mapping[str, tuple[str, ...]] | None = None,
) -> list[str]:
    found = orphans(
        {key: verdict(each) for key, each in wishes.items()}, labels, managers=managers or {}, own_managers=OURS
    )
    return [orphan.label for orphan in found]


# What a wish does to one label


@pytest.mark.parametrize(
    ("wish", "standing", "change"),
    [
        pytest.param(SET, {}, {P.name: VIOLATING}, id="S2-set"),
        pytest.param(SET, {P.name: VIOLATING}, {}, id="set-stands"),
        pytest.param(SET, {P.name: "other"}, {P.name: VIOLATING}, id="S4-set-over-foreign"),
        pytest.param(SET, {P.name: ""}, {P.name: VIOLATING}, id="set-over-empty"),
        pytest.param(ABSENT, {P.name: VIOLATING}, {P.name: None}, id="S3-absent"),
        pytest.param(ABSENT, {}, {}, id="absent-already"),
        pytest.param(ABSENT, {P.name: ""}, {}, id="D44-absent-keeps-empty"),
        pytest.param(ABSENT, {P.name: "null"}, {}, id="D44-absent-keeps-historic-null"),
        pytest.param(ABSENT, {P.name: "production"}, {}, id="D44-absent-keeps-foreign"),
        pytest.param(HOLD, {P.name: VIOLATING}, {}, id="S3-hold"),
        pytest.param(HOLD, {P.name: ""}, {}, id="S1-hold"),
        pytest.param(HOLD, {}, {}, id="hold-nothing"),
    ],
)
def test_tas_S_wish_for_a_bare_label(wish: Wish, standing: dict[str, str], change: Mapping[str, str | None]) -> None:
    assert changes({P: {P.name: wish}}, standing | {"kubernetes.io/hostname": "n1"}) == change


@pytest.mark.parametrize(
    ("wish", "standing", "change"),
    [
        pytest.param(value("false"), {}, {K + "gpu": "false"}, id="G1-set"),
        pytest.param(value("2"), {K + "gpu": "1"}, {K + "gpu": "2"}, id="G7-replace"),
        pytest.param(value("2"), {K + "gpu": "2"}, {}, id="set-stands"),
        pytest.param(value(""), {K + "gpu": "2"}, {K + "gpu": ""}, id="set-empty"),
        pytest.param(ABSENT, {K + "gpu": "2"}, {K + "gpu": None}, id="G8-absent-any-value"),
        pytest.param(ABSENT, {K + "gpu": ""}, {K + "gpu": None}, id="G8-absent-empty-value"),
        pytest.param(unless_any("2"), {}, {K + "gpu": "2"}, id="unless-any-sets"),
        pytest.param(unless_any("2"), {K + "gpu": "1"}, {}, id="unless-any-keeps"),
        pytest.param(unless_any("2"), {K + "gpu": ""}, {}, id="unless-any-keeps-empty"),
        pytest.param(HOLD, {K + "gpu": "1"}, {}, id="hold"),
    ],
)
def test_tas_G_wish_for_a_label_under_the_prefix(
    wish: Wish, standing: dict[str, str], change: Mapping[str, str | None]
) -> None:
    assert changes({L: {K + "gpu": wish}}, standing | {"zone": "a"}) == change


def test_tas_S4_a_foreign_value_that_is_overwritten_is_told() -> None:
    assert label_patch({P: verdict({P.name: SET})}, {P.name: "other"}).overwritten == {P.name: "other"}
    assert label_patch({P: verdict({P.name: SET})}, {}).overwritten == {}
    assert label_patch({L: verdict({K + "gpu": value("2")})}, {K + "gpu": "1"}).overwritten == {}


def test_tas_S5_one_patch_sets_and_removes() -> None:
    p1, p2 = PolicyKey("default", "p1"), PolicyKey("default", "p2")
    patch = label_patch({p1: verdict({"p1": SET}), p2: verdict({"p2": ABSENT})}, {"p2": VIOLATING})
    assert patch == LabelPatch(
        changes={"p1": VIOLATING, "p2": None}, removed_by={"p2": (p2,)}, overwritten={}, conflicts=()
    )


def test_tas_D50_only_won_keys_are_written() -> None:
    wishes = {L: {K + "foo": value("1"), K + "bar": value("2")}}
    assert changes(wishes, {}) == {K + "foo": "1", K + "bar": "2"}
    assert changes(wishes, {K + "foo": "1", K + "bar": "2"}) == {}


# Several policies for one label

A, B, C = (PolicyKey(namespace, "same") for namespace in "abc")


@pytest.mark.parametrize(
    ("wishes", "standing", "whose"),
    [
        pytest.param({A: ABSENT, B: HOLD}, HOLD, (B,), id="hold-beats-absent"),
        pytest.param({A: HOLD, B: SET}, SET, (B,), id="set-beats-hold"),
        pytest.param({A: ABSENT, B: SET}, SET, (B,), id="S8-D39-set-beats-absent"),
        pytest.param({A: ABSENT, B: HOLD, C: unless_any("1")}, unless_any("1"), (C,), id="unless-any-beats-hold"),
        pytest.param({A: ABSENT, B: ABSENT}, ABSENT, (A, B), id="all-absent"),
        pytest.param({B: SET, A: SET}, SET, (A, B), id="agreed"),
        pytest.param({B: value("2"), A: value("1")}, value("1"), (A,), id="first-namespace"),
        pytest.param({B: value("2"), A: unless_any("1")}, unless_any("1"), (A,), id="first-namespace-though-unsure"),
        pytest.param({B: unless_any("1"), A: value("1")}, value("1"), (A, B), id="agreed-though-unsure"),
    ],
)
def test_tas_D39_the_strongest_wish_stands(
    wishes: dict[PolicyKey, Wish], standing: Wish, whose: tuple[PolicyKey, ...]
) -> None:
    found, agreeing, _ = strongest("x", wishes.items())
    assert (found, agreeing) == (standing, whose)
    assert strongest("x", reversed(wishes.items()))[:2] == (standing, whose)


def test_tas_D39_values_that_differ_are_told() -> None:
    wishes = {A: {"x": value("1")}, B: {"x": value("2")}, C: {"x": HOLD}}
    patch = label_patch({key: verdict(each) for key, each in wishes.items()}, {"x": "2"})
    assert patch.changes == {"x": "1"}
    assert patch.conflicts == (LabelConflict(label="x", standing=A, overruled=B),)


def test_tas_S8_a_deleted_twin_removes_nothing() -> None:
    assert changes({B: {"same": SET}}, {"same": VIOLATING}) == {}
    assert swept({B: {"same": SET}}, {"same": VIOLATING}, {"same": OURS}) == []


@pytest.mark.parametrize("holding", [A, B])
def test_a_policy_that_cannot_be_read_holds_what_its_namesake_lets_go(holding: PolicyKey) -> None:
    other = B if holding is A else A
    label = labeling_prefix(A) + "gpu"
    policies = {holding: verdict({}, holds_prefix=True), other: verdict({label: ABSENT, "same": ABSENT})}
    assert label_patch(policies, {label: "1", "same": VIOLATING}).changes == {"same": None}


# Orphans


def test_tas_S6_of_a_deleted_policy_only_violating_is_an_orphan() -> None:
    managers = {P.name: ("extender",)}
    for standing, found in ((VIOLATING, [P.name]), ("null", []), ("", []), ("other", [])):
        assert swept({}, {P.name: standing}, managers) == found


@pytest.mark.parametrize(
    ("managers", "found"),
    [
        pytest.param({}, [], id="nobody-known"),
        pytest.param({P.name: ("kubectl-label",)}, [], id="a-user"),
        pytest.param({P.name: ("kubectl-label", "tas")}, [P.name], id="both"),
        pytest.param({P.name: ("extender",)}, [P.name], id="D47-the-original"),
        pytest.param({"other": ("tas",)}, [], id="of-another-label"),
    ],
)
def test_tas_D47_a_bare_label_is_an_orphan_if_we_set_it(managers: dict[str, tuple[str, ...]], found: list[str]) -> None:
    assert swept({}, {P.name: VIOLATING, "zone": VIOLATING}, managers) == found


@pytest.mark.parametrize("wish", [SET, HOLD, ABSENT])
def test_what_a_verdict_speaks_of_is_no_orphan(wish: Wish) -> None:
    labels = {P.name: VIOLATING, K + "gpu": "1"}
    assert swept({P: {P.name: wish}, L: {K + "gpu": wish}}, labels, {P.name: OURS}) == []


def test_tas_D48_the_prefix_is_swept_without_any_labeling_policy() -> None:
    assert swept({}, {K + "gpu": "1", "zone": "a", "telemetry.aware.schedule": "x"}) == [K + "gpu"]


def test_tas_G11_D49_labels_of_another_policy_stay() -> None:
    other = PolicyKey("default", "other")
    theirs = labeling_prefix(other) + "gpu"
    assert swept({other: {theirs: SET}}, {K + "gpu": "1", theirs: "1"}) == [K + "gpu"]


def test_orphans_say_whose_they_are() -> None:
    dotted = labeling_prefix(PolicyKey("default", "a.b")) + "x.y"
    labels = {
        P.name: VIOLATING,
        K + "gpu": "1",
        dotted: "",
        "telemetry.aware.scheduling.labeling-test": "",
        "telemetry.aware.scheduling./x": "",
        "telemetry.aware.scheduling.": "",
    }
    assert orphans({}, labels, managers={P.name: ["tas"]}, own_managers=OURS) == (
        Orphan(label=P.name, policy_name=P.name, rest=None),
        Orphan(label="telemetry.aware.scheduling.", policy_name="", rest=""),
        Orphan(label="telemetry.aware.scheduling./x", policy_name="", rest=""),
        Orphan(label=dotted, policy_name="a.b", rest="x.y"),
        Orphan(label="telemetry.aware.scheduling.labeling-test", policy_name="", rest=""),
        Orphan(label=K + "gpu", policy_name="labeling-test", rest="gpu"),
    )


def test_a_policy_that_cannot_be_read_holds_all_under_its_prefix_only() -> None:
    policies = {L: verdict({K + "gpu": HOLD}, holds_prefix=True)}
    longer = LABEL_PREFIX + "labeling-test-2/gpu"
    found = orphans(policies, {K + "old": "1", longer: "1"}, managers={}, own_managers=OURS)
    assert [orphan.label for orphan in found] == [longer]


# For every wish and every node

KEYS = [PolicyKey(namespace, name) for namespace in ("a", "b") for name in ("p", "q.r")]
LABELS = [key.name for key in KEYS[:2]] + [labeling_prefix(key) + name for key in KEYS[:2] for name in ("x", "y")]
VALUES = [VIOLATING, "", "null", "1", "2"]
wishes = st.one_of(
    st.sampled_from([HOLD, ABSENT]),
    st.builds(Wish, st.sampled_from([WishKind.SET, WishKind.SET_UNLESS_ANY]), st.sampled_from(VALUES)),
)
verdicts = st.builds(verdict, st.dictionaries(st.sampled_from(LABELS), wishes), holds_prefix=st.booleans())
several = st.dictionaries(st.sampled_from(KEYS), verdicts)
nodes = st.dictionaries(
    st.sampled_from([*LABELS, "zone", "kubernetes.io/hostname", LABEL_PREFIX + "old", LABEL_PREFIX + "gone/x"]),
    st.sampled_from(VALUES),
)


def patched(labels: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    after = {label: patch.get(label, standing) for label, standing in labels.items()} | dict(patch)
    return {label: standing for label, standing in after.items() if standing is not None}


def speaking(policies: Mapping[PolicyKey, PolicyVerdict], label: str) -> list[Wish]:
    return [
        strategy.labels[label].wish
        for policy in policies.values()
        for strategy in policy.strategies.values()
        if label in strategy.labels
    ]


@given(several, nodes)
def test_a_patch_that_is_applied_leaves_nothing_to_do(
    policies: dict[PolicyKey, PolicyVerdict], labels: dict[str, str]
) -> None:
    patch = label_patch(policies, labels)
    assert label_patch(policies, patched(labels, patch.changes)).changes == {}


@given(several, nodes)
def test_only_what_is_ours_and_wished_is_touched(
    policies: dict[PolicyKey, PolicyVerdict], labels: dict[str, str]
) -> None:
    for label, change in label_patch(policies, labels).changes.items():
        kinds = {wish.kind for wish in speaking(policies, label)}
        assert kinds
        assert change != labels.get(label)
        if change is None:
            assert kinds == {WishKind.ABSENT}
            assert label.startswith(LABEL_PREFIX) or labels[label] == VIOLATING
        else:
            assert kinds & {WishKind.SET, WishKind.SET_UNLESS_ANY}


@given(several, nodes)
def test_who_wishes_a_removal_is_named(policies: dict[PolicyKey, PolicyVerdict], labels: dict[str, str]) -> None:
    patch = label_patch(policies, labels)
    removed = {label for label, change in patch.changes.items() if change is None}
    assert patch.removed_by.keys() == removed
    for label, keys in patch.removed_by.items():
        speak = [key for key, policy in sorted(policies.items()) if speaking({key: policy}, label)]
        assert list(keys) == speak


@given(several, nodes, st.dictionaries(st.sampled_from(LABELS), st.sampled_from([("tas",), ("kubectl",)])))
def test_orphans_are_ours_and_nobody_speaks_of_them(
    policies: dict[PolicyKey, PolicyVerdict], labels: dict[str, str], managers: dict[str, tuple[str, ...]]
) -> None:
    touched = label_patch(policies, labels).changes
    for orphan in orphans(policies, labels, managers=managers, own_managers=OURS):
        assert orphan.label in labels
        assert not speaking(policies, orphan.label)
        assert orphan.label not in touched
        if orphan.rest is None:
            assert labels[orphan.label] == VIOLATING
            assert "tas" in managers[orphan.label]
        else:
            assert orphan.label.startswith(LABEL_PREFIX)


@given(several, nodes)
def test_the_order_of_policies_makes_no_difference(
    policies: dict[PolicyKey, PolicyVerdict], labels: dict[str, str]
) -> None:
    turned = dict(reversed(policies.items()))
    assert label_patch(turned, labels) == label_patch(policies, labels)
    found = orphans(policies, labels, managers={}, own_managers=OURS)
    assert orphans(turned, labels, managers={}, own_managers=OURS) == found


@pytest.mark.parametrize(
    ("label", "standing", "foreign"),
    [
        ("p", "violating", False),
        ("p", "", True),
        ("p", "null", True),
        (K + "gpu", "anything", False),
        (LABEL_PREFIX + "p", "anything", False),
    ],
)
def test_what_is_foreign(label: str, standing: str, foreign: bool) -> None:
    assert is_foreign(label, standing) is foreign
