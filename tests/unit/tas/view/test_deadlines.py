"""Deadlines against a plain dictionary."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tas.view.deadlines import Deadlines

keys = st.sampled_from("abcde")
times = st.integers(0, 10).map(float)


class DeadlinesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.deadlines: Deadlines[str] = Deadlines()
        self.model: dict[str, float] = {}

    @rule(key=keys, when=times)
    def set(self, key: str, when: float) -> None:
        self.deadlines.set(key, when)
        self.model[key] = when

    @rule(key=keys)
    def discard(self, key: str) -> None:
        self.deadlines.discard(key)
        self.model.pop(key, None)

    @rule(now=times)
    def pop_due(self, now: float) -> None:
        popped = self.deadlines.pop_due(now)
        assert sorted(popped) == sorted(key for key, when in self.model.items() if when <= now)
        due = [self.model.pop(key) for key in popped]
        assert due == sorted(due)

    @rule()
    def next(self) -> None:
        assert self.deadlines.next() == min(self.model.values(), default=None)

    @invariant()
    def knows_what_was_set(self) -> None:
        assert len(self.deadlines) == len(self.model)
        assert {key: self.deadlines.when(key) for key in "abcde"} == {key: self.model.get(key) for key in "abcde"}


TestDeadlines = DeadlinesMachine.TestCase
TestDeadlines.settings = settings(stateful_step_count=40)


def test_for_equal_times_the_first_set_key_comes_first() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key in "cab":
        deadlines.set(key, 1.0)
    assert deadlines.pop_due(1.0) == ["c", "a", "b"]


def test_at_most_limit_keys_are_removed_and_the_others_stay_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for when, key in enumerate("abcd"):
        deadlines.set(key, when)
    assert deadlines.pop_due(2.0, limit=2) == ["a", "b"]
    assert len(deadlines) == 2
    assert deadlines.pop_due(2.0, limit=0) == []
    assert deadlines.pop_due(2.0, limit=2) == ["c"]


def test_keys_are_never_compared() -> None:
    deadlines: Deadlines[object] = Deadlines()
    several = [object(), object()]
    for key in several:
        deadlines.set(key, 1.0)
    assert deadlines.pop_due(1.0) == several


def test_postponing_keeps_one_entry_for_each_key() -> None:
    """A fresh sample postpones staleness, thousands of times a second."""
    deadlines: Deadlines[str] = Deadlines()
    for when in range(10_000):
        for key in "ab":
            deadlines.set(key, float(when))
    assert len(deadlines._heap) == 2
    assert deadlines.pop_due(9_998.0) == []
    assert deadlines.next() == 9_999.0
    assert sorted(deadlines.pop_due(9_999.0)) == ["a", "b"]
    assert deadlines.next() is None
