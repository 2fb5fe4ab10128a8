"""The desired labels of a node by all its policies, and the labels that must be set.

The labels are those of the original TAS: `<policy>=violating`, and `telemetry.aware.scheduling.<policy>/<key>=<value>`.
Policies with the same name in different namespaces share their labels. Removals are in `tas.enforcing.removal`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tas.policy.policy import LABEL_PREFIX, PolicyKey, StrategyType
from tas.values.names import is_label_key, is_label_value, is_subdomain
from tas.verdict.verdict import (
    REPLACEABLE,
    VIOLATING,
    DesiredKind,
    DesiredLabel,
    PolicyVerdict,
    deschedule_label,
    labeling_prefix,
)


class Winner(NamedTuple):
    """The desired label that counts for one key, the policies that agree, and those that desire another value."""

    desired: DesiredLabel
    policies: tuple[PolicyKey, ...]
    overruled: tuple[PolicyKey, ...]


class DroppedLabel(NamedTuple):
    """A label in a verdict that its policy may not name, or may not give this value."""

    policy: PolicyKey
    label: str
    value: str


class DesiredLabels(NamedTuple):
    """The result of all verdicts of a node.

    Attributes:
        winners: The winner of each label.
        held_prefixes: The prefixes whose labels all stay.
        dropped: The labels that do not count, since anybody may write a verdict.
    """

    winners: Mapping[str, Winner]
    held_prefixes: frozenset[str]
    dropped: frozenset[DroppedLabel]

    def is_held(self, label: str) -> bool:
        """Whether a policy holds every label under the prefix of `label`."""
        return label[: label.find("/") + 1] in self.held_prefixes


def desired_labels(policies: Mapping[PolicyKey, PolicyVerdict]) -> DesiredLabels:
    """The desired labels of one node, sorted by key, without those that `may_desire` does not allow."""
    found: dict[str, list[tuple[PolicyKey, DesiredLabel]]] = {}
    dropped: set[DroppedLabel] = set()
    for key, policy in policies.items():
        for kind, strategy in policy.strategies.items():
            for label, verdict in strategy.labels.items():
                if may_desire(key, kind, label, verdict.desired):
                    found.setdefault(label, []).append((key, verdict.desired))
                else:
                    dropped.add(DroppedLabel(key, label, verdict.desired.value))
    return DesiredLabels(
        winners={label: winner(each) for label, each in sorted(found.items())},
        held_prefixes=frozenset(labeling_prefix(key) for key, policy in policies.items() if policy.holds_prefix),
        dropped=frozenset(dropped),
    )


def may_desire(policy: PolicyKey, strategy: StrategyType, label: str, desired: DesiredLabel) -> bool:
    """Whether a strategy of this policy may desire this of a label, whatever a verdict says.

    `deschedule` may only set the policy's name to `violating`. `labeling` may only set labels under the policy's prefix
    that Kubernetes accepts. All other labels of nodes belong to others.
    """
    sets = desired.kind in (DesiredKind.SET, DesiredKind.SET_IF_ABSENT)
    if not is_subdomain(policy.name):
        return False
    if strategy is StrategyType.DESCHEDULE:
        return label == deschedule_label(policy) and (not sets or desired.value == VIOLATING)
    if strategy is StrategyType.LABELING:
        is_ours = label.startswith(labeling_prefix(policy)) and is_label_key(label)
        return is_ours and (not sets or is_label_value(desired.value))
    return False


def winner(desired: Iterable[tuple[PolicyKey, DesiredLabel]]) -> Winner:
    """The winner of at least one desired label: set before hold before absent; of two values, the first namespace's.

    Both kinds of set are equally strong: an unknown state must not change which policy's value is set.
    """
    ordered = sorted(desired, key=lambda each: (_STRENGTH[each[1].kind], each[0]))
    strongest = ordered[0][1]
    equal = [(key, each) for key, each in ordered if _STRENGTH[each.kind] == _STRENGTH[strongest.kind]]
    return Winner(
        desired=strongest,
        policies=tuple(key for key, each in equal if each.value == strongest.value),
        overruled=tuple(key for key, each in equal if each.value != strongest.value),
    )


_STRENGTH = {DesiredKind.SET: 0, DesiredKind.SET_IF_ABSENT: 0, DesiredKind.HOLD: 1, DesiredKind.ABSENT: 2}


def foreign_values(desired: DesiredLabels, current: Mapping[str, str], *, overwrite: Collection[str]) -> dict[str, str]:
    """The labels without a prefix that must be set, but whose current value is foreign: this value stays.

    `overwrite` are the keys whose foreign values an operator allows to be replaced.
    """
    return {
        label: current[label]
        for label, winner in desired.winners.items()
        if winner.desired.kind is DesiredKind.SET
        and "/" not in label
        and label not in overwrite
        and current.get(label, "") not in REPLACEABLE
    }


def labels_to_set(desired: DesiredLabels, current: Mapping[str, str], *, overwrite: Collection[str]) -> dict[str, str]:
    """The labels that must be set on a node with the labels `current`; `overwrite` as in `foreign_values`."""
    foreign = foreign_values(desired, current, overwrite=overwrite)
    return {
        label: winner.desired.value
        for label, winner in desired.winners.items()
        if label not in foreign
        if (winner.desired.kind is DesiredKind.SET and current.get(label) != winner.desired.value)
        or (winner.desired.kind is DesiredKind.SET_IF_ABSENT and label not in current)
    }


def is_in_our_form(label: str, value: str) -> bool:
    """Whether the label has the form of TAS's labels: it has the prefix, or it has no prefix and the value `violating`.

    Any other value of a key without a prefix is a user's: TAS does not remove it.
    """
    return label.startswith(LABEL_PREFIX) or (value == VIOLATING and "/" not in label)


def policy_name(label: str) -> str:
    """The name of the policies, in any namespace, to which a label in our form belongs; "" if there is no such name."""
    if not label.startswith(LABEL_PREFIX):
        return label
    name, slash, _ = label.removeprefix(LABEL_PREFIX).partition("/")
    return name if slash and is_subdomain(name) else ""
