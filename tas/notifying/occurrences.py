"""What Kubernetes Events say about the nodes and the policies of our events."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tas.notifying.digest import Group
from tas.notifying.event_series import ObjectReference, Occurrence
from tas.notifying.notice import Notice
from tas.policy.policy import API_VERSION, PolicyKey
from tas.verdict.freeze import ALL

_ACTIONS = {
    "violation": "Evaluate",
    "metric": "Evaluate",
    "policy": "Read",
    "breaker": "Label",
    "pause": "Label",
    "label": "Label",
}
"""`action` of an Event: what the product does with the object."""


def occurrence_on_node(notice: Notice, *, identity: str) -> Occurrence | None:
    """What happened to a node; None for a notice about something else, or if the node is no object of a cluster."""
    if not notice.node or not notice.node_uid:
        return None
    policy = None if notice.policy is None else _policy(notice.policy, notice.policy_uid)
    node = ObjectReference(api_version="v1", kind="Node", name=notice.node, uid=notice.node_uid)
    return _occurrence(notice, node, policy, note=notice.text, identity=identity)


class EventPolicy(NamedTuple):
    """What an Event needs of a policy: its uid, and whether it has a strategy that labels nodes."""

    uid: str
    has_labels: bool


def needs_policies(group: Group) -> bool:
    """Whether `occurrences_on_policies` needs the stored policies."""
    newest = group.notices[-1]
    return bool(newest.freeze) or (newest.policy is not None and not newest.policy_uid)


def occurrences_on_policies(
    group: Group, *, policies: Mapping[PolicyKey, EventPolicy], identity: str
) -> list[Occurrence]:
    """What happened to the nodes of a policy, to policies themselves, or to the labels of policies.

    `policies` has the stored policies. A breaker or a pause is about each policy whose labels it freezes: no object of
    the cluster stands for all policies, and who looks at one of them must see why its labels do not change.
    """
    newest = group.notices[-1]
    if newest.node and newest.policy is not None:
        return [_on_policy(newest, newest.policy, policies, group.text, identity)]
    return [
        _on_policy(notice, key, policies, notice.text, identity)
        for notice in group.notices
        for key in _policies_of(notice, policies)
    ]


def _policies_of(notice: Notice, policies: Mapping[PolicyKey, EventPolicy]) -> Sequence[PolicyKey]:
    if notice.freeze:
        return [key for key, policy in policies.items() if policy.has_labels and notice.freeze in (ALL, key.name)]
    return [] if notice.policy is None else [notice.policy]


def _on_policy(
    notice: Notice, key: PolicyKey, policies: Mapping[PolicyKey, EventPolicy], note: str, identity: str
) -> Occurrence:
    stored = policies.get(key)
    uid = notice.policy_uid or ("" if stored is None else stored.uid)
    return _occurrence(notice, _policy(key, uid), None, note=note, identity=identity)


def _policy(key: PolicyKey, uid: str) -> ObjectReference:
    return ObjectReference(api_version=API_VERSION, kind="TASPolicy", name=key.name, namespace=key.namespace, uid=uid)


def _occurrence(
    notice: Notice, regarding: ObjectReference, related: ObjectReference | None, *, note: str, identity: str
) -> Occurrence:
    return Occurrence(
        regarding=regarding,
        related=related,
        reason=notice.reason,
        action=_ACTIONS.get(notice.kind, "Report"),
        scope=notice.freeze or notice.scope,
        note=note,
        warning=notice.warning,
        identity=identity,
    )
