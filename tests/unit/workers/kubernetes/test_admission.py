"""What is kept of policies before a worker has them."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from bus.kinds import POLICY_RECORDS
from tas.policy.policy import StrategyType
from tas.policy.room import WithoutRoom
from workers.kubernetes import admission as admission_module
from workers.kubernetes.admission import PolicyAdmission, policy_record
from workers.kubernetes.client import Change, ChangeType, Listing
from workers.kubernetes.followers import Whole
from workers.kubernetes.resources import PolicyObject
from workers.process.logs import ThrottledLog


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


def at(found: PolicyObject, second: int) -> PolicyObject:
    created = datetime(2026, 1, 1, second=second, tzinfo=UTC)
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, creation_timestamp=created))


def bytes_of(found: PolicyObject) -> int:
    return POLICY_RECORDS.size(policy_record(found)[1])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tas.policy.room.NAMESPACE_BYTES", 2 * bytes_of(policy("a", 0)) + 22)


class Followed:
    """A follower of policies by an admission: what it has of each, and how often a list was requested."""

    def __init__(self) -> None:
        self.found: dict[str, PolicyObject] = {}
        self.requests = 0
        log = ThrottledLog(structlog.get_logger("kubernetes"), seconds=60.0)
        self.admission = PolicyAdmission(log, Whole(self._listed, self._changed), self._request)

    def _listed(self, listing: Listing[PolicyObject]) -> None:
        self.found = {each.metadata.name: each for each in listing.items}

    def _changed(self, change: Change[PolicyObject]) -> None:
        self.found.pop(change.object.metadata.name, None)
        if change.type is not ChangeType.DELETED:
            self.found[change.object.metadata.name] = change.object

    def _request(self) -> None:
        self.requests += 1

    def read(self, policies: Iterable[PolicyObject]) -> None:
        self.admission.begin()
        for each in policies:
            self.admission.read([each])
        asyncio.run(self.admission.settle())
        self.admission.end("1")

    def change(self, found: PolicyObject, kind: ChangeType = ChangeType.MODIFIED) -> None:
        self.admission.change(Change(type=kind, object=found))

    def delete(self, found: PolicyObject) -> None:
        self.change(found, ChangeType.DELETED)

    @property
    def counting(self) -> list[str]:
        return [name for name, each in self.found.items() if not isinstance(each.spec, WithoutRoom)]


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_after_a_list_without_a_policy_others_have_its_room(followed: Followed) -> None:
    followed.read([policy("a", 20), policy("b", 20), policy("c", 0)])
    assert followed.counting == ["a"]
    followed.read([policy("b", 20)])
    assert followed.counting == ["b"]
    assert not followed.requests, "the list had everything"


def test_the_names_of_policies_give_them_no_room(followed: Followed) -> None:
    """A list has them by name. If each one counted until an older one came, all would count at each start."""
    policies = [at(policy(name, 20), 10 - number) for number, name in enumerate("abcdefgh")]
    followed.read(policies)
    assert (followed.counting, len(followed.found), followed.requests) == (["h"], 8, 0)


def test_a_change_that_displaces_a_younger_policy_or_makes_room_has_all_listed_again(followed: Followed) -> None:
    followed.read([policy("b", 10), policy("c", 10)])
    followed.change(policy("a", 10), ChangeType.ADDED)
    assert followed.requests == 1
    followed.change(policy("c", 10))
    assert followed.counting == ["b", "a"]
    followed.delete(policy("b", 10))
    assert followed.requests == 2
    followed.read([policy("a", 10), policy("c", 10)])
    followed.change(policy("c", 50))
    assert (followed.counting, followed.requests) == (["a"], 2)
    followed.change(policy("c", 10))
    assert (followed.counting, followed.requests) == (["a", "c"], 3), "a younger one may count, too"


def test_a_list_says_what_exists_and_the_changes_after_it_what_is_new(followed: Followed) -> None:
    """Also a list that began before a deletion or an edit, and one of an API server that was restored from a backup."""
    before = [policy("a", 0), policy("b", 20), policy("c", 0)]
    followed.read(before)
    assert followed.counting == ["a", "b"]
    followed.delete(before[0])
    followed.read(before)
    assert followed.counting == ["a", "b"], "restored"
    assert followed.requests == 1
    followed.read(before)
    followed.change(policy("a", 20))  # as it was seen while the list was on its way
    assert followed.requests == 2, "b is displaced"
    followed.read([policy("a", 20), *before[1:]])
    assert followed.counting == ["a"]
    followed.delete(policy("a", 20))
    assert followed.requests == 3


def test_a_policy_of_another_namespace_has_nothing_listed_again(followed: Followed) -> None:
    full = [policy(name, 20) for name in "abc"]
    followed.read(full)
    other = policy("other", 20)
    other = msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, namespace="default"))
    followed.change(other, ChangeType.ADDED)
    followed.change(full[0])
    followed.change(policy("d", 20), ChangeType.ADDED)
    followed.delete(full[2])
    followed.delete(other)
    assert (followed.counting, followed.requests) == (["a"], 0)


def test_a_namespace_without_room_costs_one_line_a_minute(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((1000.0, 1001.0, 1059.0, 1061.0))
    monkeypatch.setattr("workers.process.logs.time", SimpleNamespace(monotonic=partial(next, times)))
    with capture_logs() as logs:
        for _ in range(4):
            followed.change(policy("large", 2000))
    assert not [*times]
    assert [(each["event"], each["suppressed"]) for each in logs] == [
        ("policy_without_room", 0),
        ("policy_without_room", 2),
    ]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of policies that are parsed."""
    found: list[str] = []

    def counted(each: PolicyObject) -> object:
        found.append(each.metadata.name)
        return policy_record(each)

    monkeypatch.setattr(admission_module, "policy_record", counted)
    return found


@pytest.mark.parametrize("is_reversed", [False, True])
def test_policies_with_many_problems_take_the_room_of_their_records_and_few_are_parsed(
    followed: Followed, parsed: list[str], monkeypatch: pytest.MonkeyPatch, *, is_reversed: bool
) -> None:
    """A spec of 2 KB has 100 problems of 100 bytes. Those without room may be many: each takes a millisecond."""
    policies = [policy_of(f"p{number:02}", {f"a{each}": {"rules": []} for each in range(100)}) for number in range(20)]
    record, spec = bytes_of(policies[0]), len(msgspec.json.encode(policies[0].spec))
    assert record > 5 * spec, "the hard case"
    monkeypatch.setattr("tas.policy.room.NAMESPACE_BYTES", 3 * record + record // 2)
    followed.read(reversed(policies) if is_reversed else policies)
    assert sorted(followed.counting) == ["p00", "p01", "p02"]
    assert parsed == ["p00", "p01", "p02", "p03"]
    for each in policies[3:]:
        followed.change(each)
    assert parsed[4:] == ["p03"], "younger ones are refused unread"
    assert max(bytes_of(each) for name, each in followed.found.items() if name > "p02") < 1024


def test_a_large_spec_takes_its_bytes_even_if_its_record_is_small(followed: Followed) -> None:
    """A field that is ignored is in the memory of who follows the policies until the list ends."""
    junk = policy_of("a", {"deschedule": {"rules": [], "junk": "x" * 2000}})
    assert bytes_of(junk) < 800
    followed.read([junk])
    assert followed.counting == []


def test_a_policy_is_parsed_once_for_its_follower(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    followed.read([policy("a", 0)])
    followed.change(policy("b", 0))
    expected = [policy_record(policy(name, 0)) for name in "ab"]
    monkeypatch.setattr("tas.policy.manifest._policy", None)
    assert [policy_record(followed.found[name]) for name in "ab"] == expected


def test_a_policy_without_room_keeps_the_names_of_its_strategies(followed: Followed) -> None:
    """By these its labels are held. Here only the record shows that there is no room."""
    found = policy_of("a", {"deschedule": {"rules": []}, **{f"a{each}": {} for each in range(20)}})
    assert len(msgspec.json.encode(found.spec)) < bytes_of(policy("a", 0)) < bytes_of(found) / 3
    followed.read([found])
    emptied, changed = policy_record(followed.found["a"])[1], Followed()
    changed.change(found, ChangeType.ADDED)
    assert policy_record(changed.found["a"])[1] == emptied
    assert emptied.policy.strategies.keys() == {StrategyType.DESCHEDULE}
    assert not emptied.policy.strategies[StrategyType.DESCHEDULE].readable


def test_many_policies_are_parsed_in_pieces(
    followed: Followed, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extender may answer in the same process."""
    monkeypatch.setattr("tas.policy.room.NAMESPACE_BYTES", 1 << 20)
    followed.admission.begin()
    followed.admission.read([policy(f"p{number:02}", 0) for number in range(50)])
    assert not parsed
    pieces: list[int] = []

    async def settled() -> None:
        settling = asyncio.create_task(followed.admission.settle())
        while not settling.done():
            pieces.append(len(parsed))
            await asyncio.sleep(0)

    asyncio.run(settled())
    assert pieces == [0, 10, 20, 30, 40, 50]
