"""The desired labels of a node by all its policies, and the labels that must be set.

The labels are those of the original TAS: `<policy>=violating`, and `telemetry.aware.scheduling.<policy>/<key>=<value>`.
Policies with the same name in different namespaces share their labels. Removals are in `tas.enforcing.removal`.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tas.policy.policy import LABEL_PREFIX, PolicyKey
from tas.values.names import is_subdomain
from tas.verdict.verdict import VIOLATING, DesiredKind, DesiredLabel, PolicyVerdict, labeling_prefix


class Winner(NamedTuple):
    """The desired label that counts for one key, the policies that agree, and those that desire another value."""

    desired: DesiredLabel
    policies: tuple[PolicyKey, ...]
    overruled: tuple[PolicyKey, ...]


class DesiredLabels(NamedTuple):
    """The result of all verdicts of a node: the winner of each label, and the prefixes whose labels all stay."""

    winners: Mapping[str, Winner]
    held_prefixes: frozenset[str]

    def is_held(self, label: str) -> bool:
        """Whether a policy holds every label under the prefix of `label`."""
        return label[: label.find("/") + 1] in self.held_prefixes


def desired_labels(policies: Mapping[PolicyKey, PolicyVerdict]) -> DesiredLabels:
    """The desired labels of one node, sorted by key."""
    found: dict[str, list[tuple[PolicyKey, DesiredLabel]]] = {}
    for key, policy in policies.items():
        for strategy in policy.strategies.values():
            for label, verdict in strategy.labels.items():
                found.setdefault(label, []).append((key, verdict.desired))
    return DesiredLabels(
        winners={label: winner(each) for label, each in sorted(found.items())},
        held_prefixes=frozenset(labeling_prefix(key) for key, policy in policies.items() if policy.holds_prefix),
    )


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


def labels_to_set(desired: DesiredLabels, current: Mapping[str, str]) -> dict[str, str]:
    """The labels that must be set on a node with the labels `current`."""
    return {
        label: winner.desired.value
        for label, winner in desired.winners.items()
        if (winner.desired.kind is DesiredKind.SET and current.get(label) != winner.desired.value)
        or (winner.desired.kind is DesiredKind.SET_IF_ABSENT and label not in current)
    }


def is_in_our_form(label: str, value: str) -> bool:
    """Whether the label has the form of TAS's labels: it has the prefix, or it has no prefix and the value `violating`.

    Any other value of a key without a prefix is a user's: a policy of that name overwrites it, TAS never removes it.
    """
    return label.startswith(LABEL_PREFIX) or (value == VIOLATING and "/" not in label)


def policy_name(label: str) -> str:
    """The name of the policies, in any namespace, to which a label in our form belongs; "" if there is no such name."""
    if not label.startswith(LABEL_PREFIX):
        return label
    name, slash, _ = label.removeprefix(LABEL_PREFIX).partition("/")
    return name if slash and is_subdomain(name) else ""
