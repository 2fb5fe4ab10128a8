"""Why a node cannot have a pod: the filters of kube-scheduler that labels, taints and cordons decide."""

from collections.abc import Iterable, Mapping
from typing import Any

from sandbox.resources import Object

UNSCHEDULABLE = "node(s) were unschedulable"
UNTOLERATED = "node(s) had untolerated taint(s)"
NO_AFFINITY = "node(s) didn't match Pod's node affinity/selector"

CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""What a pod has to tolerate to be placed on a node with `spec.unschedulable`."""


def misfit(pod: Object, node: Object) -> str | None:
    """The reason of the first filter that rejects the node, in the order of kube-scheduler; None if it fits.

    Of taints `NoSchedule` and `NoExecute` reject; nobody here evicts for the latter, and `PreferNoSchedule` is not
    weighed.
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
    """Fields left out tolerate every effect, and with `Exists` every key."""
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
            raise ValueError(f"operator {other!r} of node affinity is not among those of the sandbox")
