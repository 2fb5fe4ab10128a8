"""The changes that give a node the labels that its verdict desires."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tas.enforcing.labels import DroppedLabel, desired_labels, foreign_values, labels_to_set
from tas.enforcing.removal import requested_removals, unmentioned_labels
from tas.policy.policy import PolicyKey
from tas.verdict.ownership import Claims
from tas.verdict.verdict import PolicyVerdict


class LabelChanges(NamedTuple):
    """The labels of a node to change, by the law of removal (`tas.enforcing.removal`).

    Attributes:
        desired: The new value of each label whose change the verdicts desire; None: to remove.
        values: The new value of each label to change; None: to remove, which is still to be confirmed.
        removals: The labels to remove because a verdict requests this, with the policies that own them.
        orphans: The labels to remove because no verdict mentions them.
        foreign: The labels in our form that somebody else has set; they stay.
        foreign_values: The labels that are not set because their key has a value of somebody else, which stays.
        dropped: The labels in the verdict that do not count.
        contested: Whether a policy desires a change of a label that it does not own.
    """

    desired: Mapping[str, str | None]
    values: Mapping[str, str | None]
    removals: Mapping[str, PolicyKey]
    orphans: frozenset[str]
    foreign: frozenset[str]
    foreign_values: Mapping[str, str]
    dropped: frozenset[DroppedLabel]
    contested: bool

    def allowed(self, removable: Collection[str]) -> dict[str, str | None]:
        """The new values without the removals that are not `removable`."""
        return {label: value for label, value in self.values.items() if value is not None or label in removable}

    def only(self, labels: Collection[str]) -> "LabelChanges":
        """The changes of these labels; what is desired, and what others have set, stays as it is."""
        return self._replace(
            values={label: value for label, value in self.values.items() if label in labels},
            removals={label: owner for label, owner in self.removals.items() if label in labels},
            orphans=self.orphans.intersection(labels),
        )


def label_changes(
    policies: Mapping[PolicyKey, PolicyVerdict],
    claims: Claims,
    labels: Mapping[str, str],
    *,
    managers: Mapping[str, Collection[str]],
    overwrite: Collection[str],
    kept: Collection[str],
    refused: Mapping[str, str | None],
) -> LabelChanges:
    """The changes of a node with these labels and these verdicts of policies.

    `claims` are those of the stored policies, `managers` are as in `unmentioned_labels`, `overwrite` as in
    `foreign_values`. Without the orphans `kept`, which policies kept lately, and without changes that the API server
    `refused` lately: labels with their new value.
    """
    desired = desired_labels(policies, claims)
    requested = requested_removals(desired, labels)
    unmentioned = unmentioned_labels(desired, labels, managers=managers)
    orphans = unmentioned.orphans.difference(kept)
    wanted: dict[str, str | None] = {**labels_to_set(desired, labels, overwrite=overwrite), **dict.fromkeys(requested)}
    values = wanted | dict.fromkeys(orphans)
    values = {label: value for label, value in values.items() if label not in refused or refused[label] != value}
    return LabelChanges(
        desired=wanted,
        values=values,
        removals={label: owner for label, owner in requested.items() if label in values},
        orphans=orphans.intersection(values),
        foreign=unmentioned.foreign,
        foreign_values=foreign_values(desired, labels, overwrite=overwrite),
        dropped=desired.dropped,
        contested=desired.contested,
    )
