"""What is kept of policies before a worker has them."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from tas.policy.room import WithoutRoom
from workers.kubernetes.admission import Admitted, PolicyAdmission, admitted
from workers.kubernetes.client import Change, ChangeType, Collected
from workers.kubernetes.resources import PolicyObject


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tas.policy.room.NAMESPACE_BYTES", 100)


def policy(name: str, size: int) -> PolicyObject:
    metadata: dict[str, Any] = {"name": name, "namespace": "tenant", "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"strategies": {"deschedule": {}}, "x": "x" * size}
    return msgspec.convert({"metadata": metadata, "spec": spec}, PolicyObject)


def refused(found: PolicyObject) -> bool:
    return isinstance(found.spec, WithoutRoom)


def test_a_policy_that_a_list_does_not_have_makes_room_and_others_are_wanted_again() -> None:
    admission, collected = PolicyAdmission(), Collected[PolicyObject]()
    reader = Admitted(collected, admission)
    reader.begin()
    reader.read([policy("a", 20), policy("b", 20), policy("c", 0)])
    admission.end()
    assert [refused(each) for each in collected.items] == [False, True, True]
    assert not admission.changed.is_set(), "no other policy is affected"
    reader.begin()
    reader.read([policy("b", 20)])
    admission.end()
    assert admission.changed.is_set()
    assert not refused(admission.kept(policy("b", 20)))


def test_a_change_that_displaces_a_younger_policy_has_all_listed_again() -> None:
    admission = PolicyAdmission()
    assert [refused(admission.kept(policy(name, 10))) for name in "bc"] == [False, False]
    change = Change(type=ChangeType.ADDED, object=policy("a", 10))
    assert admitted(change, admission) == change
    assert admission.changed.is_set()
    assert refused(admission.kept(policy("c", 10)))
    gone = Change(type=ChangeType.DELETED, object=policy("b", 10))
    assert admitted(gone, admission) is gone
    assert not refused(admission.kept(policy("c", 10)))
    assert refused(admitted(Change(type=ChangeType.MODIFIED, object=policy("c", 50)), admission).object)


def test_a_namespace_without_room_costs_one_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((1000.0, 1001.0, 1059.0, 1061.0))
    monkeypatch.setattr("workers.process.logs.time", SimpleNamespace(monotonic=partial(next, times)))
    admission = PolicyAdmission()
    with capture_logs() as logs:
        for _ in range(4):
            assert refused(admission.kept(policy("large", 200)))
    assert not [*times]
    assert [(each["event"], each["suppressed"]) for each in logs] == [
        ("policy_without_room", 0),
        ("policy_without_room", 2),
    ]
