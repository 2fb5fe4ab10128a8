"""What is kept of policies before a worker has them."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from bus.kinds import POLICY_RECORDS
from tas.policy.room import WithoutRoom
from workers.kubernetes import admission as admission_module
from workers.kubernetes.admission import Admitted, PolicyAdmission, admitted, policy_record
from workers.kubernetes.client import Change, ChangeType, Collected
from workers.kubernetes.resources import PolicyObject


def policy_of(name: str, strategies: dict[str, Any], generation: int = 1, uid: str = "") -> PolicyObject:
    metadata = {
        "name": name,
        "namespace": "tenant",
        "uid": uid or name,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "generation": generation,
    }
    return msgspec.convert({"metadata": metadata, "spec": {"strategies": strategies}}, PolicyObject)


def policy(name: str, size: int) -> PolicyObject:
    rule = {"metricname": "m" + "x" * size, "operator": "Equals", "target": 1}
    return policy_of(name, {"deschedule": {"rules": [rule]}}, generation=1 + size)


def bytes_of(found: PolicyObject) -> int:
    return POLICY_RECORDS.size(policy_record(found)[1])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tas.policy.room.NAMESPACE_BYTES", 2 * bytes_of(policy("a", 0)) + 22)


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
            assert refused(admission.kept(policy("large", 2000)))
    assert not [*times]
    assert [(each["event"], each["suppressed"]) for each in logs] == [
        ("policy_without_room", 0),
        ("policy_without_room", 2),
    ]


def test_policies_with_many_problems_take_the_room_of_their_records_and_are_parsed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A spec of 2 KB has 100 problems of 100 bytes, so specs of a sixth of the bucket filled it."""
    policies = [policy_of(f"p{number:02}", {f"a{each}": {"rules": []} for each in range(100)}) for number in range(20)]
    record, spec = bytes_of(policies[0]), len(msgspec.json.encode(policies[0].spec))
    assert record > 5 * spec, "the hard case"
    monkeypatch.setattr("tas.policy.room.NAMESPACE_BYTES", 3 * record + record // 2)
    parsed: list[str] = []

    def counted(found: PolicyObject) -> object:
        parsed.append(found.metadata.name)
        return policy_record(found)

    monkeypatch.setattr(admission_module, "policy_record", counted)
    admission = PolicyAdmission()
    for _ in range(2):
        kept = [admission.kept(each) for each in policies]
        assert [refused(each) for each in kept] == [False] * 3 + [True] * 17
    assert parsed == [each.metadata.name for each in policies]
    assert max(map(bytes_of, kept[3:])) < 1024


def test_a_policy_of_the_same_name_has_the_size_of_its_own_record() -> None:
    admission = PolicyAdmission()
    assert not refused(admission.kept(policy("a", 0)))
    admission.gone(policy("a", 0))
    rule = {"metricname": "m" * 2000, "operator": "Equals", "target": 1}
    assert refused(admission.kept(policy_of("a", {"deschedule": {"rules": [rule]}}, uid="another")))


def test_a_policy_that_was_deleted_takes_no_room_again_by_an_older_list_or_a_late_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.kubernetes.admission.MAX_GONE", 2)
    admission, gone = PolicyAdmission(), policy("a", 200)
    reader = Admitted(Collected[PolicyObject](), admission)
    admission.kept(gone)
    reader.begin()
    admitted(Change(type=ChangeType.DELETED, object=gone), admission)  # by the watch, while the list is on its way
    reader.read([gone])
    admission.end()
    admission.kept(gone)
    assert not refused(admission.kept(policy("b", 200)))
    assert refused(admission.kept(policy("c", 200)))
    for name in "xyz":
        admission.gone(policy(name, 0))
    assert [*admission._gone] == ["y", "z"]
