"""Which policies of a namespace count if there is no room for all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.policy import room
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.room import PolicyRoom, without_room


@pytest.fixture(autouse=True, scope="module")
def small() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "NAMESPACE_BYTES", 10)
        yield


def key(name: str, namespace: str = "tenant") -> PolicyKey:
    return PolicyKey(namespace, name)


_HISTORY = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.integers(0, 12)), max_size=30)


@given(_HISTORY)
def test_after_any_history_the_oldest_ones_count_as_far_as_they_fit(history: list[tuple[str, int, int]]) -> None:
    """A size of 0 is a deletion. What changes for others is what `put` and `remove` return."""
    found, policies = PolicyRoom(), dict[PolicyKey, tuple[tuple[float, str], int]]()
    for name, created, size in history:
        before = {each for each in policies if found.is_refused(each)}
        if size:
            policies[key(name)] = ((created, name), size)
            changed = found.put(key(name), created, size)
        else:
            policies.pop(key(name), None)
            changed = found.remove(key(name))
        left, refused = 10, set[PolicyKey]()
        for each, (_, taken) in sorted(policies.items(), key=lambda item: item[1][0]):
            left -= taken
            if left < 0:
                refused.add(each)
        assert {each for each in policies if found.is_refused(each)} == refused
        assert changed == (before ^ refused) - {key(name)}


def test_a_namespace_takes_no_room_of_another() -> None:
    found = PolicyRoom()
    found.put(key("a"), 1, 10)
    found.put(key("b"), 2, 10)
    found.put(key("c", "other"), 3, 10)
    assert [found.is_refused(each) for each in (key("a"), key("b"), key("c", "other"))] == [False, True, False]
    assert found.remove(key("a")) == {key("b")}
    found.remove(key("b"))
    found.remove(key("c", "other"))
    assert not found._namespaces


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
