"""Which pods wait for a node."""

from typing import Any

import pytest

from tas.enforcing.pod import PodKey, waiting_since

WAITING: dict[str, Any] = {"created": 100.0, "node": None, "gated": False, "phase": "Pending", "deleting": False}


def test_a_pod_without_a_node_waits_from_its_creation_on() -> None:
    assert waiting_since(**WAITING) == 100.0
    assert waiting_since(**WAITING | {"phase": ""}) == 100.0


@pytest.mark.parametrize(
    "change", [{"node": "node-1"}, {"gated": True}, {"deleting": True}, {"phase": "Failed"}, {"phase": "Succeeded"}]
)
def test_a_pod_that_the_scheduler_would_not_place_does_not_wait(change: dict[str, Any]) -> None:
    assert waiting_since(**WAITING | change) is None


def test_a_pod_is_told_with_its_namespace() -> None:
    assert str(PodKey("web", "a.b")) == "web/a.b"
