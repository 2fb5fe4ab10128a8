"""What Kubernetes Events say about the nodes and the policies of our events."""

from collections.abc import Callable

from tas.notifying.digest import Group
from tas.notifying.event_series import ObjectReference, Occurrence
from tas.notifying.notice import Notice
from tas.policy.policy import API_VERSION, PolicyKey

_ACTIONS = {"violation": "Evaluate", "metric": "Evaluate", "policy": "Read", "breaker": "Label", "label": "Label"}
"""`action` of an Event: what the product does with the object."""


def occurrence_on_node(notice: Notice, *, identity: str) -> Occurrence | None:
    """What happened to a node; None for a notice about something else, or if the node is no object of a cluster."""
    if not notice.node or not notice.node_uid:
        return None
    policy = None if notice.policy is None else _policy(notice.policy, notice.policy_uid)
    node = ObjectReference(api_version="v1", kind="Node", name=notice.node, uid=notice.node_uid)
    return _occurrence(notice, node, policy, note=notice.text, identity=identity)


def occurrence_on_policy(group: Group, *, uid_of: Callable[[PolicyKey], str], identity: str) -> Occurrence | None:
    """What happened to the nodes of a policy, or to the policy itself; None for a group about something else."""
    newest = group.notices[-1]
    if newest.policy is None:
        return None
    policy = _policy(newest.policy, newest.policy_uid or uid_of(newest.policy))
    return _occurrence(newest, policy, None, note=group.text, identity=identity)


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
        scope=notice.scope,
        note=note,
        warning=notice.warning,
        identity=identity,
    )
