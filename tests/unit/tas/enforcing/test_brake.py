"""What a permit costs: the same with many labelled nodes as with few."""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import isnan
from typing import TypeVar

import pytest

from tas.enforcing.brake import Brake, BrakeSettings
from tas.policy.policy import Policy, PolicyKey
from tas.verdict.brake import ALL, Breaker

P = PolicyKey("a", "p")
POLICY = Policy(key=P, strategies={})
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


class Records:
    """Records that are known."""

    is_paused = False

    def __init__(self, breakers: Mapping[str, Breaker]) -> None:
        self._breakers = breakers

    def breaker(self, key: str) -> Breaker:
        return self._breakers.get(key, Breaker())

    def freezes(self, key: str) -> bool:
        return self.breaker(key).trip is not None

    def current_at(self, policy: str) -> float:
        return 0.0


def brake_of(nodes: Mapping[str, Mapping[str, str]], breakers: Mapping[str, Breaker]) -> Brake:
    brake = Brake(BrakeSettings(), Records(breakers))
    for name, labels in nodes.items():
        brake.set_node(name, "7", labels, 0.0)
    return brake


def cost(labelled: int, *, is_deleted: bool) -> int:
    """How many items of labels and breakers a hundred permits of an admitted node read, with so many labelled nodes."""
    count: Counter[str] = Counter()
    labels = {"p": "violating", "q": "violating"}
    nodes = {f"n{number}": Read(labels if number < labelled else {}, count) for number in range(4 * labelled)}
    admitted = Read({f"n{number}": 7 for number in range(labelled)} | {"new": 7}, count)
    brake = brake_of(nodes, {key: Breaker(nodes=admitted) for key in (ALL, P.name)})
    brake.set_policy(P, POLICY)
    if is_deleted:
        brake.drop_policy(P)

    def is_admitted() -> bool:
        return all(brake.is_admitted(key, "new", 7, now=0.0) for key in (ALL, P.name))

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
        return brake.is_admitted(ALL, "new", 7, now=0.0)

    assert is_admitted()
    brake.set_policy(P, POLICY)
    assert not is_admitted(), "20 nodes may have labels"
    brake.drop_policy(P)
    assert is_admitted()
    brake.set_policy(P, POLICY)
    brake.forget_policies()
    assert is_admitted()


def test_before_a_list_of_nodes_it_is_not_known_how_many_have_labels() -> None:
    brake = brake_of({}, {})
    assert isnan(brake.labelled)
    for name, labels in {"a": {"p": "violating"}, "b": {}}.items():
        brake.set_node(name, "7", labels, 0.0)
    assert brake.labelled == 1
