"""The desired labels of a node by all its policies, and the labels that must be set.

The labels are those of the original TAS: `<policy>=violating`, and `telemetry.aware.scheduling.<policy>/<key>=<value>`.
Of policies with the same name in different namespaces, one owns the labels. Removals are in `tas.enforcing.removal`.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tas.policy.policy import LABEL_PREFIX, PolicyKey, StrategyType
from tas.values.names import is_label_key, is_label_value, is_subdomain
from tas.verdict.ownership import Claims
from tas.verdict.verdict import (
    HOLD,
    REPLACEABLE,
    VIOLATING,
    DesiredKind,
    DesiredLabel,
    PolicyVerdict,
    deschedule_label,
    labeling_prefix,
)


class OwnedLabel(NamedTuple):
    """The desired label that counts for one key, and the policy that owns the label; None: nobody, then it is held."""

    desired: DesiredLabel
    owner: PolicyKey | None


class DroppedLabel(NamedTuple):
    """A label in a verdict that its policy may not name, or may not give this value."""

    policy: PolicyKey
    label: str
    value: str


class DesiredLabels(NamedTuple):
    """The result of all verdicts of a node.

    Attributes:
        labels: What counts for each label that a verdict names.
        held_prefixes: The prefixes whose labels stay, if no verdict names them.
        dropped: The labels that do not count, since anybody may write a verdict.
        contested: Whether a policy desires a change of a label that it does not own: this may be so only until the
            policies are known.
    """

    labels: Mapping[str, OwnedLabel]
    held_prefixes: frozenset[str]
    dropped: frozenset[DroppedLabel]
    contested: bool

    def is_held(self, label: str) -> bool:
        """Whether a policy holds every label under the prefix of `label`."""
        return label[: label.find("/") + 1] in self.held_prefixes


def desired_labels(policies: Mapping[PolicyKey, PolicyVerdict], claims: Claims) -> DesiredLabels:
    """The desired labels of one node, sorted by key, without those that `may_desire` does not allow.

    Of several policies with one name, only the owner counts (`tas.verdict.ownership`). A label that only others name is
    held, and so is a label whose owner has no verdict yet. `claims` are those of the stored policies.
    """
    found: dict[str, OwnedLabel] = {}
    dropped: set[DroppedLabel] = set()
    contested = False
    for key, policy in policies.items():
        for kind, strategy in policy.strategies.items():
            is_owner = claims.owns(key, policy.uid, kind)
            for label, verdict in strategy.labels.items():
                if not may_desire(key, kind, label, verdict.desired):
                    dropped.add(DroppedLabel(key, label, verdict.desired.value))
                elif is_owner:
                    found[label] = OwnedLabel(verdict.desired, key)
                else:
                    found.setdefault(label, OwnedLabel(HOLD, None))
                    contested |= verdict.desired.kind is not DesiredKind.HOLD
    return DesiredLabels(
        labels=dict(sorted(found.items())),
        held_prefixes=frozenset(labeling_prefix(key) for key, policy in policies.items() if policy.holds_prefix),
        dropped=frozenset(dropped),
        contested=contested,
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


def foreign_values(desired: DesiredLabels, current: Mapping[str, str], *, overwrite: Collection[str]) -> dict[str, str]:
    """The labels without a prefix that must be set, but whose current value is foreign: this value stays.

    `overwrite` are the keys whose foreign values an operator allows to be replaced.
    """
    return {
        label: current[label]
        for label, owned in desired.labels.items()
        if owned.desired.kind is DesiredKind.SET
        and "/" not in label
        and label not in overwrite
        and current.get(label, "") not in REPLACEABLE
    }


def labels_to_set(desired: DesiredLabels, current: Mapping[str, str], *, overwrite: Collection[str]) -> dict[str, str]:
    """The labels that must be set on a node with the labels `current`; `overwrite` as in `foreign_values`."""
    foreign = foreign_values(desired, current, overwrite=overwrite)
    return {
        label: owned.desired.value
        for label, owned in desired.labels.items()
        if label not in foreign
        if (owned.desired.kind is DesiredKind.SET and current.get(label) != owned.desired.value)
        or (owned.desired.kind is DesiredKind.SET_IF_ABSENT and label not in current)
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
