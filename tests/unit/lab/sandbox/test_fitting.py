"""Which nodes do not fit a pod: cordons and taints (labels are tested with the scheduler)."""

from typing import Any

import pytest

from lab.sandbox.fitting import NO_AFFINITY, UNSCHEDULABLE, UNTOLERATED, misfit
from lab.sandbox.resources import Object


def taint(effect: str = "NoSchedule", value: str = "v") -> Object:
    return {"taints": [{"key": "k", "value": value, "effect": effect}]}


def reason(node: Object, *tolerations: Object, **spec: Any) -> str | None:
    return misfit({"spec": {"tolerations": list(tolerations), **spec}}, {"metadata": {}, "spec": node})


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ({}, None),
        ({"unschedulable": False}, None),
        ({"unschedulable": True}, UNSCHEDULABLE),
        (taint(), UNTOLERATED),
        (taint("NoExecute"), UNTOLERATED),
        (taint("PreferNoSchedule"), None),
        (taint() | {"unschedulable": True}, UNSCHEDULABLE),
    ],
)
def test_a_cordoned_or_tainted_node_is_rejected(node: Object, found: str | None) -> None:
    assert reason(node) == found
    assert reason(node, nodeSelector={"disk": "fast"}) == (found or NO_AFFINITY)


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
        ({"key": "k", "value": "other"}, False),
        ({"key": "k"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Equal"}, False),
        ({}, False),
    ],
)
def test_a_taint_is_tolerated_by_key_value_and_effect(toleration: Object, tolerates: bool) -> None:
    assert (reason(taint(), toleration) is None) == tolerates


def test_a_cordon_is_tolerated_as_a_taint() -> None:
    cordoned: Object = {"unschedulable": True}
    key = "node.kubernetes.io/unschedulable"
    assert reason(cordoned, {"key": key, "operator": "Exists", "effect": "NoSchedule"}) is None
    assert reason(cordoned, {"key": key, "operator": "Exists", "effect": "NoExecute"}) == UNSCHEDULABLE
