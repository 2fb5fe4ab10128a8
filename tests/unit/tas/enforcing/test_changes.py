"""Which labels of a node change."""

from collections.abc import Mapping
from typing import Any

import pytest

from tas.enforcing.changes import LabelChanges, label_changes
from tas.enforcing.labels import DroppedLabel
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tas.verdict.ownership import LABEL_STRATEGIES, Claim, Claims
from tas.verdict.verdict import DesiredKind, DesiredLabel, LabelVerdict, PolicyVerdict, StrategyVerdict

P, Q = PolicyKey("a", "p"), PolicyKey("b", "p")
CARD = "telemetry.aware.scheduling.p/card"


def desiring(**labels: DesiredLabel) -> PolicyVerdict:
    """A verdict with these desired labels: `p` of `deschedule`, all others of `labeling`; `card` stands for CARD."""
    strategies: dict[StrategyType, dict[str, DesiredLabel]] = {}
    for name, desired in labels.items():
        kind = StrategyType.DESCHEDULE if name == "p" else StrategyType.LABELING
        strategies.setdefault(kind, {})[CARD if name == "card" else name] = desired
    return PolicyVerdict(
        uid="u",
        generation=1,
        strategies={
            kind: StrategyVerdict(
                state=State.MET,
                changed=0.0,
                labels={label: LabelVerdict(state=State.MET, desired=desired) for label, desired in found.items()},
            )
            for kind, found in strategies.items()
        },
    )


SET, ABSENT, HOLD = (
    DesiredLabel(DesiredKind.SET, "violating"),
    DesiredLabel(DesiredKind.ABSENT),
    DesiredLabel(DesiredKind.HOLD),
)


def changes(policies: Mapping[PolicyKey, PolicyVerdict], labels: Mapping[str, str], **known: Any) -> LabelChanges:
    claims = Claims()
    for key in policies:
        claims.set(key, Claim("u", None, frozenset(LABEL_STRATEGIES)))
    return label_changes(
        policies, claims, labels, **{"managers": {}, "overwrite": (), "kept": (), "refused": {}} | known
    )


def test_of_the_changes_only_some_may_be_allowed_and_what_is_desired_stays() -> None:
    found = changes({P: desiring(p=SET, card=ABSENT)}, {CARD: "1", f"{CARD}-2": "x"})
    assert found.only({"p"}).values == {"p": "violating"}
    assert not found.only({"p"}).removals
    assert not found.only({"p"}).orphans
    assert found.only({CARD}).removals == {CARD: P}
    assert found.only({f"{CARD}-2"}).orphans == {f"{CARD}-2"}
    assert found.only(()).desired == found.desired


def test_a_desired_label_is_set_and_one_that_is_desired_absent_is_to_be_removed() -> None:
    found = changes({P: desiring(p=SET, card=ABSENT)}, {CARD: "1", "zone": "x"})
    assert found.values == {"p": "violating", CARD: None}
    assert found.removals == {CARD: P}
    assert not found.orphans


def test_a_held_label_does_not_change() -> None:
    assert changes({P: desiring(p=HOLD)}, {"p": "violating"}).values == {}


def test_a_label_that_no_verdict_mentions_is_an_orphan_unless_somebody_else_has_set_it() -> None:
    labels = {"telemetry.aware.scheduling.q/card": "1", "q": "violating", "r": "violating"}
    found = changes({}, labels, managers={"q": ("tas-on-nats",), "r": ("kubectl",)})
    assert found.values == {"telemetry.aware.scheduling.q/card": None, "q": None}
    assert found.orphans == found.values.keys()
    assert found.foreign == {"r"}


def test_an_orphan_that_was_kept_lately_stays() -> None:
    found = changes({}, {CARD: "1"}, kept={CARD})
    assert (found.values, found.orphans) == ({}, frozenset())


@pytest.mark.parametrize(
    ("refused", "values"),
    [
        ({"p": "violating"}, {CARD: None}),
        ({"p": "another"}, {"p": "violating", CARD: None}),
        ({CARD: None}, {"p": "violating"}),
        ({CARD: "1"}, {"p": "violating", CARD: None}),
    ],
)
def test_what_was_refused_lately_is_not_tried_again_with_the_same_value(
    refused: dict[str, str | None], values: dict[str, str | None]
) -> None:
    orphan = "telemetry.aware.scheduling.q/card"
    found = changes({P: desiring(p=SET, card=ABSENT)}, {CARD: "1", orphan: "1"}, refused=refused | {orphan: None})
    assert found.values == values
    assert found.desired == {"p": "violating", CARD: None}
    assert found.removals.keys() == {label for label, value in values.items() if value is None}


def test_a_label_that_the_policy_may_not_desire_is_reported_and_not_set() -> None:
    found = changes({P: desiring(card=SET, zone=SET)}, {})
    assert found.values == {CARD: "violating"}
    assert found.dropped == {DroppedLabel(P, "zone", "violating")}


def test_a_foreign_value_stays_unless_its_key_may_be_overwritten() -> None:
    verdicts, labels = {P: desiring(p=SET)}, {"p": "blue"}
    found = changes(verdicts, labels)
    assert (found.values, found.foreign_values) == ({}, {"p": "blue"})
    found = changes(verdicts, labels, overwrite={"p"})
    assert (found.values, found.foreign_values) == ({"p": "violating"}, {})


def test_of_two_policies_of_one_name_only_the_owner_changes_the_label() -> None:
    found = changes({P: desiring(card=SET), Q: desiring(card=DesiredLabel(DesiredKind.SET, "other"))}, {})
    assert found.values == {CARD: "violating"}
    assert found.contested
    assert not changes({P: desiring(card=SET), Q: desiring(card=HOLD)}, {}).contested


def test_only_removable_labels_are_removed() -> None:
    found = changes({P: desiring(p=SET, card=ABSENT)}, {CARD: "1", "telemetry.aware.scheduling.q/card": "1"})
    assert found.allowed(()) == {"p": "violating"}
    assert found.allowed({CARD}) == {"p": "violating", CARD: None}
