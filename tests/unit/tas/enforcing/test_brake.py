"""The brake of a replica: permits, rounds of admissions, and what a permit costs."""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf, isnan
from typing import TypeVar

import msgspec
import pytest

from tas.enforcing.brake import PATIENCE_SECONDS, RETRY_SECONDS, Brake, BrakeSettings, Permit
from tas.policy.policy import BreakerLimits, Policy, PolicyKey
from tas.verdict.freeze import ALL, Breaker, Trip

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


@pytest.mark.parametrize("tripped", [P.name, ALL])
def test_labels_of_a_deleted_policy_stay_while_the_breaker_of_all_policies_is_tripped(tripped: str) -> None:
    """Not for its own breaker. So docs/how-to/removing.md names `tas reset --all`."""
    trip = Trip(since=0.0, limit=1, wanted=2, selected=9)
    brake = brake_of({"n": {"p": "violating"}}, {tripped: Breaker(trip=trip)})
    brake.set_policy(P, POLICY)
    assert brake.concerned({"p": None}) == []
    assert brake.drop_policy(P) is (tripped == P.name)
    assert brake.concerned({"p": None}) == (["p"] if tripped == P.name else [])
    may_change = brake.permit("n", "7", {"p": "violating"}, {"p": None}, 0.0).labels
    assert may_change == (set() if tripped == ALL else {"p"})


def test_before_a_list_of_nodes_it_is_not_known_how_many_have_labels() -> None:
    brake = brake_of({}, {})
    assert isnan(brake.labelled)
    for name, labels in {"a": {"p": "violating"}, "b": {}}.items():
        brake.set_node(name, "7", labels, 0.0)
    assert brake.labelled == 1


SETS = {P.name: "violating"}


class Rounds:
    """A brake whose breakers are written at once. At most `limit` nodes may have labels of the policy."""

    def __init__(self, *, limit: int) -> None:
        self.written: dict[str, Breaker] = {}
        self.brake = Brake(BrakeSettings(over_all=None, label_rate=None, label_rate_all=None), Records(self.written))
        self.brake.set_policy(P, msgspec.structs.replace(POLICY, breaker=BreakerLimits(max_nodes=limit)))

    def permit(self, name: str, now: float, values: Mapping[str, str | None] = SETS, version: str = "7") -> Permit:
        return self.brake.permit(name, version, {}, values, now)

    def round(self, now: float, *, is_answered: bool = True) -> tuple[dict[str, Breaker], dict[str, float]]:
        self.brake.begin_round()
        changed = self.brake.admit(now=now, clock=1e9 + now)
        self.written.update(changed if is_answered else {})
        return changed, self.brake.end_round(is_answered=is_answered)[1]


def test_a_node_gets_its_first_label_after_a_round_has_admitted_it() -> None:
    rounds = Rounds(limit=1)
    assert rounds.permit("n", 0.0) == Permit(frozenset(), inf, None, True, {})
    assert rounds.round(1.0) == ({P.name: Breaker(nodes={"n": 7})}, {"n": 0.0})
    assert not rounds.brake.asked
    assert rounds.permit("n", 2.0).labels == {P.name}
    assert rounds.permit("n", 2.0, version="8").is_asked, "the admission is of another version"


def test_a_breaker_trips_when_too_many_nodes_have_been_asked_for_long_enough_and_they_stay_together() -> None:
    rounds = Rounds(limit=1)
    for name in ("a", "b"):
        rounds.permit(name, 0.0)
    for now in (0.0, PATIENCE_SECONDS / 2):
        assert rounds.round(now) == ({}, {})
        assert set(rounds.brake.asked) == {"a", "b"}
        assert rounds.brake.retry_after(now) == RETRY_SECONDS
    changed, answers = rounds.round(PATIENCE_SECONDS)
    trip = changed[P.name].trip
    assert trip is not None
    assert (trip.wanted, trip.limit, trip.since) == (2, 1, 1e9 + PATIENCE_SECONDS)
    assert answers.keys() == {"a", "b"}
    frozen = rounds.permit("a", 2.0)
    assert (frozen.labels, frozen.is_asked) == (frozenset(), False)


def test_a_breaker_does_not_trip_if_attempts_beyond_its_limit_are_far_apart() -> None:
    rounds = Rounds(limit=1)
    for name in ("a", "b"):
        rounds.permit(name, 0.0)
    for attempt in range(5):
        assert rounds.round(attempt * 5 * PATIENCE_SECONDS) == ({}, {})


def test_nodes_whose_records_could_not_be_written_are_asked_for_again_since_they_were_first() -> None:
    rounds = Rounds(limit=1)
    rounds.permit("n", 3.0)
    assert rounds.round(4.0, is_answered=False)[1] == {}
    rounds.permit("n", 5.0)
    assert (set(rounds.brake.asked), rounds.brake.asked_since) == ({"n"}, 3.0)


def test_a_node_that_needs_no_admission_any_more_is_no_part_of_the_round() -> None:
    rounds = Rounds(limit=1)
    for name in ("a", "b", "c"):
        rounds.permit(name, 0.0)
    rounds.permit("a", 0.0, {})
    rounds.brake.begin_round()
    rounds.brake.drop_node("b", "9", 0.0)
    assert rounds.brake.admit(now=0.0, clock=1e9) == {P.name: Breaker(nodes={"c": 7})}


def test_after_a_loss_of_the_records_nobody_is_admitted_before_a_list_that_begins_late_enough() -> None:
    rounds = Rounds(limit=1)
    rounds.brake.lose_records(12.0)
    rounds.permit("n", 0.0)
    rounds.brake.begin_list("5", 11.0)
    assert rounds.round(11.0) == ({}, {})
    assert rounds.brake.retry_after(2.0) == 10.0
    rounds.brake.begin_list("6", 12.0)
    assert rounds.round(12.0)[1] == {"n": 0.0}


@pytest.mark.parametrize("is_holding", [False, True])
def test_while_a_round_waits_for_verdicts_what_needs_no_admission_may_change(is_holding: bool) -> None:
    rounds = Rounds(limit=1)
    if is_holding:
        rounds.brake.hold()
    permit = rounds.permit("n", 0.0, SETS | {"other": None})
    assert permit.is_asked
    assert permit.labels == ({"other"} if is_holding else frozenset())
