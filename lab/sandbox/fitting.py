"""Whether a node fits a pod: the filters of kube-scheduler for labels, taints and cordons."""

from collections.abc import Iterable, Mapping
from typing import Any

from lab.sandbox.resources import Object

UNSCHEDULABLE = "node(s) were unschedulable"
UNTOLERATED = "node(s) had untolerated taint(s)"
NO_AFFINITY = "node(s) didn't match Pod's node affinity/selector"

CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""The taint that a pod must tolerate to be placed on a node with `spec.unschedulable`."""


def misfit(pod: Object, node: Object) -> str | None:
    """The reason of the first filter that rejects the node, in the order of kube-scheduler; None if the node fits.

    The taints `NoSchedule` and `NoExecute` reject. The sandbox does not evict pods, and ignores `PreferNoSchedule`.
    """
    spec, tolerations = node.get("spec") or {}, pod["spec"].get("tolerations") or ()
    if spec.get("unschedulable") and not _tolerated(CORDONED, tolerations):
        return UNSCHEDULABLE
    for taint in spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not _tolerated(taint, tolerations):
            return UNTOLERATED
    return None if meets_affinity(pod, node) else NO_AFFINITY


def meets_affinity(pod: Object, node: Object) -> bool:
    """Whether a node has the labels that the pod requires."""
    labels, spec = node["metadata"].get("labels", {}), pod["spec"]
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    terms = [term.get("matchExpressions") or [] for term in required["nodeSelectorTerms"]]
    return any(term and all(_meets(labels, each) for each in term) for term in terms)  # an empty term matches nothing


def _tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    return any(_tolerates(each, taint) for each in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a toleration matches a taint: an absent effect matches every effect, `Exists` without key every key."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def _meets(labels: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case other:
            raise ValueError(f"the sandbox does not support the operator {other!r} of node affinity")
