"""Which policies of a namespace count if there is no room for all."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.policy import room
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.room import PolicyRoom, without_room
from tests.unit.growth import is_within


@pytest.fixture(autouse=True, scope="module")
def small() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "NAMESPACE_BYTES", 10)
        yield


def key(name: str, namespace: str = "tenant") -> PolicyKey:
    return PolicyKey(namespace, name)


_HISTORY = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.integers(0, 12)), max_size=30)
_POLICIES = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 3), st.integers(1, 12)))

Policies = dict[str, tuple[int, int]]
"""By name, when they were created, and their sizes."""


def expected(policies: Policies) -> set[str]:
    """Those that count."""
    left, found = 10, set[str]()
    for name, (_, size) in sorted(policies.items(), key=lambda item: (item[1][0], item[0])):
        left -= size
        if left >= 0:
            found.add(name)
    return found


def listed(policies: Policies) -> PolicyRoom:
    found = PolicyRoom()
    for name, (created, size) in policies.items():
        if not found.is_refused(key(name), created):
            found.put(key(name), created, size)
    return found


def counting(found: PolicyRoom) -> set[str]:
    return {each.name for each in found.counting()}


@given(st.permutations("abcdef"), _POLICIES)
def test_after_a_list_in_any_order_the_oldest_ones_count_as_far_as_they_fit(order: list[str], all_of: Policies) -> None:
    found = listed({name: all_of[name] for name in order if name in all_of})
    assert counting(found) == expected(all_of)
    assert not found.has_room_again("tenant")


@given(_POLICIES, _POLICIES)
def test_sizes_that_were_at_least_so_large_are_made_exact_from_the_oldest_on(least: Policies, more: Policies) -> None:
    exact = {name: (at, size + more.get(name, (0, 0))[1]) for name, (at, size) in least.items()}
    found, asked = listed(least), set[str]()
    for each in found.counting():
        found.put(each, *exact[each.name])
        asked.add(each.name)
    assert counting(found) == expected(exact)
    assert not found.has_room_again("tenant")
    assert len(asked - expected(exact)) <= 1, "no younger one is looked at"


@given(_POLICIES, _HISTORY)
def test_after_any_history_who_counts_fits_and_is_older_than_those_without_room_until_a_list_is_due(
    policies: Policies, history: list[tuple[str, int, int]]
) -> None:
    """A size of 0 is a deletion."""
    found = listed(policies)
    for name, created, size in history:
        before = counting(found)
        if not size:
            policies.pop(name, None)
            found.remove(key(name))
            assert counting(found) == before - {name}
        else:
            at = policies.get(name, (created,))[0]
            policies[name] = (at, size)
            if not found.is_refused(key(name), at):
                displaced = {each.name for each in found.put(key(name), at, size)}
                assert counting(found) == (before | {name}) - displaced
        if found.has_room_again("tenant"):
            assert counting(found) <= expected(policies)
            found = listed(policies)
        assert counting(found) == expected(policies)


def test_a_namespace_takes_no_room_of_another() -> None:
    found = PolicyRoom()
    assert found.put(key("a"), 1, 10) == set()
    assert found.put(key("b"), 2, 10) == {key("b")}
    assert found.put(key("c", "other"), 3, 10) == set()
    assert not found.has_room_again("tenant")
    found.remove(key("a"))
    assert [found.has_room_again(each) for each in ("tenant", "other")] == [True, False]
    found.remove(key("c", "other"))
    assert found._namespaces.keys() == {"tenant"}


def test_if_the_oldest_without_room_is_gone_or_smaller_others_may_count() -> None:
    found = listed({"a": (1, 6), "b": (2, 5), "c": (3, 4)})
    assert not found.has_room_again("tenant")
    found.remove(key("c"))
    assert not found.has_room_again("tenant")
    found.remove(key("b"))
    assert found.has_room_again("tenant")
    found = listed({"a": (1, 6), "b": (2, 5), "c": (3, 1)})
    assert found.put(key("b"), 2, 6) == {key("b")}
    assert not found.has_room_again("tenant")
    assert not found.put(key("b"), 2, 3)
    assert found.has_room_again("tenant")


def test_a_change_costs_the_same_however_many_policies_have_no_room() -> None:
    """Each one without room would cost whoever follows policies, at each edit of one that counts."""

    def edits(without_room: int) -> Callable[[], None]:
        found = PolicyRoom()
        for number in range(10):
            found.put(key(f"a{number}"), number, 1)
        for number in range(without_room):
            if not found.is_refused(key(f"b{number}"), 1000 - number):
                found.put(key(f"b{number}"), 1000 - number, 1)

        def edit() -> None:
            for size in (1, 10, 1) * 50:
                found.put(key("a0"), 0, size)
                for number in range(1, 10):
                    found.put(key(f"a{number}"), number, 1)

        return edit

    assert is_within(4, lambda: edits(8000), lambda: edits(1000))


@pytest.mark.parametrize("spec", [None, [], {}, {"strategies": 7}, {"strategies": ["deschedule"]}])
def test_any_spec_can_be_left_out(spec: object) -> None:
    emptied, (problem,) = parse_policy(key("p"), without_room(key("p"), spec))
    assert not emptied.strategies
    assert problem.refused


def test_without_room_the_labels_of_a_policy_are_held() -> None:
    rules = [{"metricname": "m", "operator": "Equals", "target": 1}]
    spec = {"strategies": {"deschedule": {"rules": rules}, "unknown": {}}, "suspend": True}
    emptied, (problem,) = parse_policy(key("p"), without_room(key("p"), spec))
    assert emptied.strategies.keys() == {StrategyType.DESCHEDULE}
    assert not emptied.strategies[StrategyType.DESCHEDULE].readable
    assert problem.refused
    assert "room for 10 bytes together, and older ones of tenant take it" in str(problem)
