"""What a permit costs: the same with many labelled nodes as with few; and how old it is."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from math import isnan
from typing import TypeVar

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import PAUSED
from bus.connection import Bus
from bus.entry import RawEntry
from bus.invalid import InvalidEntries
from bus.kinds import POLICY_RECORDS
from bus.record_kind import Entry
from bus.records.policies import PolicyRecord
from bus.watch import WatchStatus
from tas.policy.policy import Policy, PolicyKey
from tas.verdict.brake import ALL, Breaker
from workers.labels.brake import Brake, BrakeSettings
from workers.labels.breaker_records import _Known
from workers.reconcile.node_patches import NodeLabels

P = PolicyKey("a", "p")
V = TypeVar("V")


class Read(Mapping[str, V]):
    """A mapping that counts how many of its items are read."""

    def __init__(self, content: Mapping[str, V], count: Counter[str]) -> None:
        self._content, self._count = content, count

    def __getitem__(self, key: str) -> V:
        self._count["items"] += 1
        return self._content[key]

    def __iter__(self) -> Iterator[str]:
        for key in self._content:
            self._count["items"] += 1
            yield key

    def __len__(self) -> int:
        return len(self._content)


def policy(*, present: bool) -> Entry[PolicyKey, PolicyRecord]:
    record = PolicyRecord(policy=Policy(key=P, strategies={}), uid="u", generation=1)
    raw = RawEntry(POLICY_RECORDS.key(P), POLICY_RECORDS.encode(record) if present else None, 1, 5.0)
    return Entry(POLICY_RECORDS, P, raw, InvalidEntries())


def brake_of(
    nodes: Mapping[str, Mapping[str, str]], breakers: Mapping[str, Breaker], registry: CollectorRegistry | None = None
) -> Brake:
    brake = Brake(
        Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1),  # it never connects
        BrakeSettings(),
        registry=registry or CollectorRegistry(),
        on_answer=lambda node, wait: None,
        on_thaw=lambda: None,
        on_caught_up=lambda: None,
        relist=lambda: None,
        is_ready=lambda: True,
        is_active=lambda: True,
        verdicts=lambda: WatchStatus(epoch=None, applied=0, caught_up=False, lag=None, attached=0.0),
    )
    for name, labels in nodes.items():
        brake.take_in_node(name, NodeLabels(uid="u", labels=labels, managers={}, resource_version="7"))
    for key, breaker in breakers.items():
        brake._records._note(key, _Known(breaker, 1))
    return brake


def cost(labelled: int, *, is_deleted: bool) -> int:
    """How many items of labels and breakers a hundred permits of an admitted node read, with so many labelled nodes."""
    count: Counter[str] = Counter()
    labels = {"p": "violating", "q": "violating"}
    nodes = {f"n{number}": Read(labels if number < labelled else {}, count) for number in range(4 * labelled)}
    admitted = Read({f"n{number}": 7 for number in range(labelled)} | {"new": 7}, count)
    brake = brake_of(nodes, {key: Breaker(nodes=admitted) for key in (ALL, P.name)})
    brake.take_in_policy(policy(present=True))
    if is_deleted:
        brake.take_in_policy(policy(present=False))

    def is_admitted() -> bool:
        return all(brake._is_admitted(key, "new", 7, now=0.0) for key in (ALL, P.name))

    assert is_admitted()
    count.clear()
    assert all(is_admitted() for _ in range(100))
    return count["items"]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_permit_costs_the_same_whatever_the_number_of_labelled_nodes(is_deleted: bool) -> None:
    assert cost(60, is_deleted=is_deleted) == cost(6, is_deleted=is_deleted)


def test_labels_without_a_prefix_count_over_all_policies_while_there_is_a_policy_of_their_name() -> None:
    nodes = {f"n{number}": {"p": "violating"} for number in range(20)}
    brake = brake_of(nodes, {ALL: Breaker(nodes={"new": 7})})

    def is_admitted() -> bool:
        return brake._is_admitted(ALL, "new", 7, now=0.0)

    assert is_admitted()
    brake.take_in_policy(policy(present=True))
    assert not is_admitted(), "20 nodes may have labels"
    brake.take_in_policy(policy(present=False))
    assert is_admitted()
    brake.take_in_policy(policy(present=True))
    brake.forget_policies()
    assert is_admitted()


def test_before_a_list_of_nodes_it_is_not_known_how_many_have_labels() -> None:
    registry = CollectorRegistry()
    brake = brake_of({}, {}, registry)
    found = registry.get_sample_value("tas_labelled_nodes")
    assert found is not None
    assert isnan(found)
    for name, labels in {"a": {"p": "violating"}, "b": {}}.items():
        brake.take_in_node(name, NodeLabels(uid="u", labels=labels, managers={}, resource_version="7"))
    assert registry.get_sample_value("tas_labelled_nodes") == 1


@pytest.mark.parametrize("oldest", [PAUSED, ALL, P.name])
@pytest.mark.parametrize("value", ["violating", None], ids=["set", "removed"])
async def test_a_permit_is_as_old_as_the_oldest_record_that_could_freeze_its_labels(
    oldest: str, value: str | None
) -> None:
    """Else a label may change more than 2 s after a pause, or after a breaker has tripped."""
    brake, now = brake_of({}, {}), time.monotonic()
    for key, record in {PAUSED: None, ALL: Breaker(nodes={"n": 7}), P.name: Breaker(nodes={"n": 7})}.items():
        brake._records._note(key, _Known(record, 1, now - (0.5 if key == oldest else 0.1)))
    node = NodeLabels(uid="u", labels={P.name: "violating"}, managers={}, resource_version="7")
    permit = await brake.permit("n", node, {P.name: value})
    assert (set(permit.labels), permit.read_at) == ({P.name}, now - 0.5)
