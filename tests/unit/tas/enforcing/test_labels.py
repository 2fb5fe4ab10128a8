"""The desired labels of a node by all its policies, requested removals, and labels that no verdict mentions."""

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.enforcing.labels import (
    DroppedLabel,
    OwnedLabel,
    desired_labels,
    foreign_values,
    is_in_our_form,
    labels_to_set,
    may_desire,
    policy_name,
)
from tas.enforcing.removal import Unmentioned, requested_removals, unmentioned_labels
from tas.policy.policy import LABEL_PREFIX, PolicyKey, StrategyType
from tas.policy.rules import State
from tas.verdict.ownership import LABEL_STRATEGIES, Claim, Claims
from tas.verdict.verdict import (
    ABSENT,
    HOLD,
    REPLACEABLE,
    VIOLATING,
    DesiredKind,
    DesiredLabel,
    LabelVerdict,
    PolicyVerdict,
    StrategyVerdict,
    labeling_prefix,
)

P = PolicyKey("default", "deschedule-test")
L = PolicyKey("default", "labeling-test")
K = "telemetry.aware.scheduling.labeling-test/"
SET = DesiredLabel(DesiredKind.SET, VIOLATING)


def value(text: str) -> DesiredLabel:
    return DesiredLabel(DesiredKind.SET, text)


def unless_any(text: str) -> DesiredLabel:
    return DesiredLabel(DesiredKind.SET_IF_ABSENT, text)


def verdict(desired: Mapping[str, DesiredLabel], *, holds_prefix: bool = False) -> PolicyVerdict:
    """A verdict with these desired labels: `deschedule` has the label without a prefix, `labeling` the others."""
    labels: dict[StrategyType, dict[str, LabelVerdict]] = {}
    for label, each in desired.items():
        strategy = StrategyType.LABELING if "/" in label else StrategyType.DESCHEDULE
        labels.setdefault(strategy, {})[label] = LabelVerdict(state=State.UNKNOWN, desired=each)
    strategies = {
        strategy: StrategyVerdict(state=State.UNKNOWN, changed=0, labels=each) for strategy, each in labels.items()
    }
    return PolicyVerdict(uid="u", generation=1, strategies=strategies, holds_prefix=holds_prefix)


def claims(policies: Collection[PolicyKey], *, unreadable: PolicyKey | None = None) -> Claims:
    """All policies stored and in force, with both strategies: of one name, the first namespace owns the labels."""
    found = Claims()
    for key in policies:
        found.set(key, None if key == unreadable else Claim("u", None, frozenset(LABEL_STRATEGIES)))
    return found


Desired = Mapping[PolicyKey, Mapping[str, DesiredLabel]]
Managers = Mapping[str, tuple[str, ...]]


def changed(policies: Mapping[PolicyKey, PolicyVerdict], labels: Mapping[str, str]) -> dict[str, str | None]:
    """The labels to set, and the requested removals (None)."""
    desired = desired_labels(policies, claims(policies))
    return labels_to_set(desired, labels, overwrite=()) | dict.fromkeys(requested_removals(desired, labels))


def changes(desired: Desired, labels: Mapping[str, str]) -> Mapping[str, str | None]:
    return changed({key: verdict(each) for key, each in desired.items()}, labels)


def unmentioned(
    policies: Mapping[PolicyKey, PolicyVerdict], labels: Mapping[str, str], managers: Managers | None = None
) -> Unmentioned:
    return unmentioned_labels(desired_labels(policies, claims(policies)), labels, managers=managers or {})


def orphans(desired: Desired, labels: Mapping[str, str], managers: Managers | None = None) -> set[str]:
    return set(unmentioned({key: verdict(each) for key, each in desired.items()}, labels, managers).orphans)


# What one desired label does


@pytest.mark.parametrize(
    ("desired", "current", "change"),
    [
        pytest.param(SET, {}, {P.name: VIOLATING}, id="facts_S2-set"),
        pytest.param(SET, {P.name: VIOLATING}, {}, id="set-already"),
        pytest.param(SET, {P.name: "other"}, {}, id="facts_S4-set-keeps-foreign"),
        pytest.param(SET, {P.name: "Violating"}, {}, id="facts_S4-set-keeps-another-spelling"),
        pytest.param(SET, {P.name: ""}, {P.name: VIOLATING}, id="facts_S4-set-over-empty"),
        pytest.param(SET, {P.name: "null"}, {P.name: VIOLATING}, id="facts_S4-set-over-historic-null"),
        pytest.param(ABSENT, {P.name: VIOLATING}, {P.name: None}, id="facts_S3-absent"),
        pytest.param(ABSENT, {}, {}, id="absent-already"),
        pytest.param(ABSENT, {P.name: ""}, {}, id="facts_D44-absent-keeps-empty"),
        pytest.param(ABSENT, {P.name: "null"}, {}, id="facts_D44-absent-keeps-historic-null"),
        pytest.param(ABSENT, {P.name: "production"}, {}, id="facts_D44-absent-keeps-foreign"),
        pytest.param(HOLD, {P.name: VIOLATING}, {}, id="facts_S3-hold"),
        pytest.param(HOLD, {P.name: ""}, {}, id="facts_S1-hold"),
        pytest.param(HOLD, {}, {}, id="hold-nothing"),
    ],
)
def test_desired_bare_label(desired: DesiredLabel, current: dict[str, str], change: Mapping[str, str | None]) -> None:
    assert changes({P: {P.name: desired}}, current | {"kubernetes.io/hostname": "n1"}) == change


@pytest.mark.parametrize(
    ("desired", "current", "change"),
    [
        pytest.param(value("false"), {}, {K + "gpu": "false"}, id="facts_G1-set"),
        pytest.param(value("2"), {K + "gpu": "1"}, {K + "gpu": "2"}, id="facts_G7-replace"),
        pytest.param(value("2"), {K + "gpu": "2"}, {}, id="set-already"),
        pytest.param(value(""), {K + "gpu": "2"}, {K + "gpu": ""}, id="set-empty"),
        pytest.param(ABSENT, {K + "gpu": "2"}, {K + "gpu": None}, id="facts_G8-absent-any-value"),
        pytest.param(ABSENT, {K + "gpu": ""}, {K + "gpu": None}, id="facts_G8-absent-empty-value"),
        pytest.param(unless_any("2"), {}, {K + "gpu": "2"}, id="unless-any-sets"),
        pytest.param(unless_any("2"), {K + "gpu": "1"}, {}, id="unless-any-keeps"),
        pytest.param(unless_any("2"), {K + "gpu": ""}, {}, id="unless-any-keeps-empty"),
        pytest.param(HOLD, {K + "gpu": "1"}, {}, id="hold"),
    ],
)
def test_desired_label_under_the_prefix(
    desired: DesiredLabel, current: dict[str, str], change: Mapping[str, str | None]
) -> None:
    assert changes({L: {K + "gpu": desired}}, current | {"zone": "a"}) == change


@pytest.mark.parametrize(
    ("current", "overwrite", "foreign", "change"),
    [
        pytest.param({P.name: "ssd"}, (), {P.name: "ssd"}, {}, id="foreign"),
        pytest.param({P.name: "ssd"}, ("other",), {P.name: "ssd"}, {}, id="another-key-is-allowed"),
        pytest.param({P.name: "ssd"}, (P.name,), {}, {P.name: VIOLATING}, id="allowed"),
        pytest.param({P.name: "null"}, (), {}, {P.name: VIOLATING}, id="historic-null"),
        pytest.param({}, (), {}, {P.name: VIOLATING}, id="absent"),
        pytest.param({P.name: VIOLATING}, (), {}, {}, id="set"),
    ],
)
def test_a_foreign_value_stays_and_is_reported_unless_an_operator_allows_its_replacement(
    current: dict[str, str], overwrite: tuple[str, ...], foreign: dict[str, str], change: dict[str, str]
) -> None:
    desired = desired_labels({P: verdict({P.name: SET})}, claims([P]))
    assert foreign_values(desired, current, overwrite=overwrite) == foreign
    assert labels_to_set(desired, current, overwrite=overwrite) == change


@pytest.mark.parametrize("desired", [HOLD, ABSENT])
def test_a_foreign_value_is_not_reported_while_the_label_is_not_to_be_set(desired: DesiredLabel) -> None:
    found = desired_labels({P: verdict({P.name: desired})}, claims([P]))
    assert foreign_values(found, {P.name: "ssd"}, overwrite=()) == {}
    assert labels_to_set(found, {P.name: "ssd"}, overwrite=(P.name,)) == {}
    assert requested_removals(found, {P.name: "ssd"}) == {}


def test_any_value_under_the_prefix_is_replaced() -> None:
    found = desired_labels({L: verdict({K + "gpu": value("2")})}, claims([L]))
    assert foreign_values(found, {K + "gpu": "somebody"}, overwrite=()) == {}
    assert labels_to_set(found, {K + "gpu": "somebody"}, overwrite=()) == {K + "gpu": "2"}


def test_facts_S5_one_patch_sets_and_removes() -> None:
    p1, p2 = PolicyKey("default", "p1"), PolicyKey("default", "p2")
    desired = desired_labels({p1: verdict({"p1": SET}), p2: verdict({"p2": ABSENT})}, claims([p1, p2]))
    assert labels_to_set(desired, {"p2": VIOLATING}, overwrite=()) == {"p1": VIOLATING}
    assert requested_removals(desired, {"p2": VIOLATING}) == {"p2": p2}


def test_facts_D50_only_won_keys_are_written() -> None:
    desired = {L: {K + "foo": value("1"), K + "bar": value("2")}}
    assert changes(desired, {}) == {K + "foo": "1", K + "bar": "2"}
    assert changes(desired, {K + "foo": "1", K + "bar": "2"}) == {}


# Which labels a verdict may name

HOSTNAME, CONTROL_PLANE, ZONE = (
    "kubernetes.io/hostname",
    "node-role.kubernetes.io/control-plane",
    "topology.kubernetes.io/zone",
)
DESCHEDULE, LABELING = StrategyType.DESCHEDULE, StrategyType.LABELING


@pytest.mark.parametrize(
    ("strategy", "label", "desired", "counts"),
    [
        pytest.param(DESCHEDULE, "p", SET, True, id="the policy's name"),
        pytest.param(DESCHEDULE, "p", ABSENT, True, id="the policy's name, absent"),
        pytest.param(DESCHEDULE, "p", HOLD, True, id="the policy's name, hold"),
        pytest.param(DESCHEDULE, "p", value("yes"), False, id="another value"),
        pytest.param(DESCHEDULE, "p", value(""), False, id="no value"),
        pytest.param(DESCHEDULE, "p", unless_any("yes"), False, id="another value if absent"),
        pytest.param(DESCHEDULE, "q", SET, False, id="another name"),
        pytest.param(DESCHEDULE, "q", ABSENT, False, id="another name, absent"),
        pytest.param(DESCHEDULE, "q", HOLD, False, id="another name, hold"),
        pytest.param(DESCHEDULE, LABEL_PREFIX + "p/x", SET, False, id="deschedule under the prefix"),
        pytest.param(DESCHEDULE, CONTROL_PLANE, SET, False, id="deschedule of a role"),
        pytest.param(LABELING, LABEL_PREFIX + "p/x", value("1"), True, id="under the policy's prefix"),
        pytest.param(LABELING, LABEL_PREFIX + "p/X.y_z", value(""), True, id="under the prefix, empty value"),
        pytest.param(LABELING, LABEL_PREFIX + "p/x", ABSENT, True, id="under the prefix, absent"),
        pytest.param(LABELING, LABEL_PREFIX + "p/x", value("-1"), False, id="an invalid value"),
        pytest.param(LABELING, LABEL_PREFIX + "p/x", value("a" * 64), False, id="a long value"),
        pytest.param(LABELING, LABEL_PREFIX + "p/", value("1"), False, id="no key"),
        pytest.param(LABELING, LABEL_PREFIX + "p/x/y", value("1"), False, id="two slashes"),
        pytest.param(LABELING, LABEL_PREFIX + "p/-x", ABSENT, False, id="an invalid key"),
        pytest.param(LABELING, LABEL_PREFIX + "q/x", value("1"), False, id="another policy's prefix"),
        pytest.param(LABELING, LABEL_PREFIX + "pq/x", value("1"), False, id="a longer name's prefix"),
        pytest.param(LABELING, LABEL_PREFIX, value("1"), False, id="only the prefix"),
        pytest.param(LABELING, "p", SET, False, id="labeling without the prefix"),
        pytest.param(LABELING, HOSTNAME, value("1"), False, id="labeling of the hostname"),
        pytest.param(LABELING, ZONE, ABSENT, False, id="labeling of the zone, absent"),
        pytest.param(StrategyType.DONTSCHEDULE, "p", SET, False, id="dontschedule"),
    ],
)
def test_a_verdict_may_name_only_labels_of_its_policy(
    strategy: StrategyType, label: str, desired: DesiredLabel, counts: bool
) -> None:
    key, labels = PolicyKey("default", "p"), {label: LabelVerdict(state=State.UNKNOWN, desired=desired)}
    policy = PolicyVerdict(
        uid="u", generation=1, strategies={strategy: StrategyVerdict(state=State.UNKNOWN, changed=0, labels=labels)}
    )
    found = desired_labels({key: policy}, claims([key]))
    assert (label in found.labels) is counts
    assert found.dropped == (frozenset() if counts else {DroppedLabel(key, label, desired.value)})


@pytest.mark.parametrize("name", ["node-role.kubernetes.io/control-plane", "Upper", "a_b", "", "a/b", "x" * 254])
def test_a_verdict_of_an_impossible_name_sets_nothing(name: str) -> None:
    key = PolicyKey("default", name)
    found = desired_labels({key: verdict({name: SET, labeling_prefix(key) + "x": value("1")})}, claims([key]))
    assert not found.labels
    assert len(found.dropped) == 2


def test_the_rest_of_a_verdict_with_a_dropped_label_counts() -> None:
    labels = {HOSTNAME: "n1", ZONE: "a"}
    forged = verdict({ZONE: ABSENT, HOSTNAME: value("n2"), CONTROL_PLANE: value(""), "p": SET})
    desired = {PolicyKey("default", "p"): forged, L: verdict({K + "gpu": value("1")})}
    assert changed(desired, labels) == {"p": VIOLATING, K + "gpu": "1"}
    assert {each.label for each in desired_labels(desired, claims(desired)).dropped} == {ZONE, HOSTNAME, CONTROL_PLANE}


# Several policies of one name

A, B, C = (PolicyKey(namespace, "same") for namespace in "abc")
GPU = labeling_prefix(A) + "gpu"


@pytest.mark.parametrize("owners", [ABSENT, HOLD, SET])
@pytest.mark.parametrize("others", [ABSENT, HOLD, SET])
def test_facts_D39_only_the_owner_of_a_label_decides(owners: DesiredLabel, others: DesiredLabel) -> None:
    policies = {B: verdict({"same": others}), A: verdict({"same": owners}), C: verdict({"same": others})}
    for ordered in (policies, dict(reversed(policies.items()))):
        found = desired_labels(ordered, claims(ordered))
        assert found.labels == {"same": OwnedLabel(owners, A)}
        assert found.contested is (others != HOLD)


def test_facts_D39_a_label_that_only_others_name_is_held() -> None:
    policies = {A: verdict({GPU: value("1")}), B: verdict({GPU + "2": value("2"), GPU + "3": ABSENT})}
    assert changed(policies, {GPU + "3": "3"}) == {GPU: "1"}
    found = unmentioned(policies, {GPU: "1", GPU + "2": "2", GPU + "3": "3"})
    assert not found.orphans


@pytest.mark.parametrize(
    ("stored", "owner"),
    [
        pytest.param({A: Claim("u", 2.0, frozenset(LABEL_STRATEGIES))}, A, id="the only one"),
        pytest.param({A: Claim("v", 2.0, frozenset(LABEL_STRATEGIES))}, None, id="another uid: created anew"),
        pytest.param({A: Claim("u", 2.0, frozenset())}, None, id="suspended"),
        pytest.param({A: Claim("u", 2.0, frozenset({LABELING}))}, None, id="without this strategy"),
        pytest.param({A: None}, None, id="unreadable"),
        pytest.param({}, None, id="not stored"),
        pytest.param({B: Claim("u", 1.0, frozenset(LABEL_STRATEGIES))}, None, id="only another stored"),
    ],
)
def test_a_verdict_of_a_policy_that_does_not_own_the_label_by_the_stored_policies_is_held(
    stored: Mapping[PolicyKey, Claim | None], owner: PolicyKey | None
) -> None:
    known = Claims()
    for key, claim in stored.items():
        known.set(key, claim)
    for desired in (SET, ABSENT):
        found = desired_labels({A: verdict({"same": desired})}, known)
        assert found.labels == {"same": OwnedLabel(desired if owner else HOLD, owner)}
        assert found.contested is (owner is None)
        assert requested_removals(found, {"same": VIOLATING}) == ({"same": A} if owner and desired == ABSENT else {})
        assert not unmentioned_labels(found, {"same": VIOLATING}, managers={"same": ("tas-on-nats",)}).orphans


@pytest.mark.parametrize(
    ("other", "changes_anything"),
    [
        pytest.param(Claim("w", 3.0, frozenset(LABEL_STRATEGIES)), True, id="younger"),
        pytest.param(Claim("w", 1.0, frozenset()), True, id="older, but suspended"),
        pytest.param(Claim("w", 1.0, frozenset({LABELING})), True, id="older, with another strategy"),
        pytest.param(Claim("w", 1.0, frozenset(LABEL_STRATEGIES)), False, id="older"),
        pytest.param(None, False, id="unreadable"),
    ],
)
@pytest.mark.parametrize("desired", [SET, ABSENT])
def test_a_stored_policy_without_a_verdict_that_can_own_the_label_holds_it(
    other: Claim | None, *, changes_anything: bool, desired: DesiredLabel
) -> None:
    known = Claims()
    known.set(A, Claim("u", 2.0, frozenset(LABEL_STRATEGIES)))
    known.set(B, other)
    found = desired_labels({A: verdict({"same": desired})}, known)
    assert found.labels["same"].desired == (desired if changes_anything else HOLD)


def test_facts_S8_a_label_of_a_deleted_policy_stays_if_another_of_its_name_sets_it() -> None:
    assert changes({B: {"same": SET}}, {"same": VIOLATING}) == {}
    assert orphans({B: {"same": SET}}, {"same": VIOLATING}, {"same": ("tas-on-nats",)}) == set()


def test_a_suspended_policy_does_not_hold_labels_of_the_owner() -> None:
    known = claims([A])
    known.set(B, Claim("u", 1.0, frozenset()))
    policies = {B: verdict({GPU: HOLD, "same": HOLD}, holds_prefix=True), A: verdict({GPU: ABSENT, "same": ABSENT})}
    found = desired_labels(policies, known)
    assert requested_removals(found, {GPU: "1", "same": VIOLATING}) == {GPU: A, "same": A}
    old = labeling_prefix(A) + "old"
    assert not unmentioned_labels(found, {old: "1"}, managers={}).orphans  # a policy that may have it keeps an orphan


# Labels that no verdict mentions


def test_facts_S6_of_a_deleted_policy_only_violating_is_an_orphan() -> None:
    managers = {P.name: ("extender",)}
    for current, found in ((VIOLATING, {P.name}), ("null", set()), ("", set()), ("other", set())):
        assert orphans({}, {P.name: current}, managers) == found


@pytest.mark.parametrize(
    ("managers", "is_ours"),
    [
        pytest.param({}, False, id="no-manager-known"),
        pytest.param({P.name: ("kubectl-label",)}, False, id="a-user"),
        pytest.param({P.name: ("kubectl-label", "tas-on-nats")}, True, id="both"),
        pytest.param({P.name: ("extender",)}, True, id="facts_D47-the-original"),
        pytest.param({"other": ("tas-on-nats",)}, False, id="of-another-label"),
    ],
)
def test_facts_D47_a_label_without_a_prefix_is_an_orphan_if_we_set_it_and_foreign_else(
    managers: Managers, is_ours: bool
) -> None:
    found = unmentioned({}, {P.name: VIOLATING, "zone": VIOLATING, "example.com/zone": VIOLATING}, managers)
    assert (set(found.orphans), set(found.foreign)) == (({P.name}, {"zone"}) if is_ours else (set(), {P.name, "zone"}))


@pytest.mark.parametrize("desired", [SET, HOLD, ABSENT])
def test_a_label_in_a_verdict_is_neither_orphan_nor_foreign(desired: DesiredLabel) -> None:
    policies = {P: verdict({P.name: desired}), L: verdict({K + "gpu": desired})}
    for managers in ({P.name: ("tas-on-nats",)}, {P.name: ("kubectl",)}):
        found = unmentioned(policies, {P.name: VIOLATING, K + "gpu": "1"}, managers)
        assert not found.orphans
        assert not found.foreign


def test_facts_D48_any_label_under_the_prefix_is_an_orphan_without_policies() -> None:
    stray = {LABEL_PREFIX, LABEL_PREFIX + "labeling-test", LABEL_PREFIX + "/x", K + "gpu"}
    assert orphans({}, dict.fromkeys(stray, "1") | {"zone": "a", "telemetry.aware.schedule": "x"}) == stray


def test_facts_G11_D49_labels_of_another_policy_stay() -> None:
    other = PolicyKey("default", "other")
    theirs = labeling_prefix(other) + "gpu"
    assert orphans({other: {theirs: SET}}, {K + "gpu": "1", theirs: "1"}) == {K + "gpu"}


def test_an_unreadable_policy_holds_only_labels_under_its_own_prefix() -> None:
    policies = {L: verdict({K + "gpu": HOLD}, holds_prefix=True)}
    longer = LABEL_PREFIX + "labeling-test-2/gpu"
    assert unmentioned(policies, {K + "old": "1", longer: "1"}).orphans == {longer}


@pytest.mark.parametrize(
    ("label", "name"),
    [
        (P.name, P.name),
        (K + "gpu", "labeling-test"),
        (LABEL_PREFIX + "a.b/x.y", "a.b"),
        (LABEL_PREFIX, ""),
        (LABEL_PREFIX + "/x", ""),
        (LABEL_PREFIX + "labeling-test", ""),
        (LABEL_PREFIX + "Upper/x", ""),
    ],
)
def test_a_label_names_its_policy(label: str, name: str) -> None:
    assert policy_name(label) == name


# For all desired labels and every node

KEYS = [PolicyKey(namespace, name) for namespace in ("a", "b") for name in ("p", "q.r")]
LABELS = [key.name for key in KEYS[:2]] + [labeling_prefix(key) + name for key in KEYS[:2] for name in ("x", "y")]
VALUES = [VIOLATING, "", "null", "1", "2"]
any_desired = st.one_of(
    st.sampled_from([HOLD, ABSENT]),
    st.builds(DesiredLabel, st.sampled_from([DesiredKind.SET, DesiredKind.SET_IF_ABSENT]), st.sampled_from(VALUES)),
)
verdicts = st.builds(verdict, st.dictionaries(st.sampled_from(LABELS), any_desired), holds_prefix=st.booleans())
several = st.dictionaries(st.sampled_from(KEYS), verdicts)
nodes = st.dictionaries(
    st.sampled_from([*LABELS, "zone", "kubernetes.io/hostname", LABEL_PREFIX + "old", LABEL_PREFIX + "gone/x"]),
    st.sampled_from(VALUES),
)


def patched(labels: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    after = {label: patch.get(label, current) for label, current in labels.items()} | dict(patch)
    return {label: current for label, current in after.items() if current is not None}


def mentions(policies: Mapping[PolicyKey, PolicyVerdict], label: str) -> list[DesiredLabel]:
    """What the policies desire of a label, without what does not count."""
    return [
        strategy.labels[label].desired
        for key, policy in policies.items()
        for kind, strategy in policy.strategies.items()
        if label in strategy.labels and may_desire(key, kind, label, strategy.labels[label].desired)
    ]


@given(several, nodes)
def test_a_patch_that_is_applied_leaves_nothing_to_do(
    policies: dict[PolicyKey, PolicyVerdict], labels: dict[str, str]
) -> None:
    assert changed(policies, patched(labels, changed(policies, labels))) == {}


@given(several, nodes)
def test_only_labels_of_verdicts_change_and_only_ours_are_removed(
    policies: dict[PolicyKey, PolicyVerdict], labels: dict[str, str]
) -> None:
    for label, change in changed(policies, labels).items():
        kinds = {desired.kind for desired in mentions(policies, label)}
        assert kinds
        assert change != labels.get(label)
        if change is None:
            assert DesiredKind.ABSENT in kinds
            assert label.startswith(LABEL_PREFIX) or labels[label] == VIOLATING
        else:
            assert kinds & {DesiredKind.SET, DesiredKind.SET_IF_ABSENT}
            assert label.startswith(LABEL_PREFIX) or (change, labels.get(label, "") in REPLACEABLE) == (VIOLATING, True)


@given(several, nodes)
def test_a_removal_is_requested_by_the_owner_of_the_label(
    policies: dict[PolicyKey, PolicyVerdict], labels: dict[str, str]
) -> None:
    for label, owner in requested_removals(desired_labels(policies, claims(policies)), labels).items():
        assert owner == min(key for key in policies if key.name == policy_name(label))
        assert mentions({owner: policies[owner]}, label) == [ABSENT]


@given(several, nodes, st.dictionaries(st.sampled_from(LABELS), st.sampled_from([("tas-on-nats",), ("kubectl",)])))
def test_orphans_are_ours_and_in_no_verdict(
    policies: dict[PolicyKey, PolicyVerdict], labels: dict[str, str], managers: dict[str, tuple[str, ...]]
) -> None:
    touched = changed(policies, labels)
    found = unmentioned(policies, labels, managers)
    assert not found.orphans & found.foreign
    for label in found.orphans | found.foreign:
        assert label in labels
        assert not mentions(policies, label)
        assert label not in touched
        assert label.startswith(LABEL_PREFIX) or labels[label] == VIOLATING
        is_ours = label.startswith(LABEL_PREFIX) or "tas-on-nats" in managers.get(label, ())
        assert (label in found.orphans) is is_ours


@given(several, nodes)
def test_the_order_of_policies_makes_no_difference(
    policies: dict[PolicyKey, PolicyVerdict], labels: dict[str, str]
) -> None:
    turned = dict(reversed(policies.items()))
    assert desired_labels(turned, claims(turned)) == desired_labels(policies, claims(policies))


@pytest.mark.parametrize(
    ("label", "current", "ours"),
    [
        ("p", "violating", True),
        ("p", "", False),
        ("p", "null", False),
        ("example.com/p", "violating", False),
        (K + "gpu", "anything", True),
        (LABEL_PREFIX + "p", "anything", True),
    ],
)
def test_a_label_in_our_form(label: str, current: str, ours: bool) -> None:
    assert is_in_our_form(label, current) is ours
