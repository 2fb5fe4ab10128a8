"""Watches of a client that take turns to ask a silent API server: how often, and how soon one of them does."""

from contextlib import ExitStack, suppress
from math import isnan
from types import SimpleNamespace

import pytest

from workers.kubernetes.errors import SilentError
from workers.kubernetes.silence import Silence

SECONDS = 90.0


class Played:
    """Watches that are silent unless a test says otherwise, by a clock that steps from one deadline to the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stack: ExitStack, count: int) -> None:
        self.now = 1000.0
        monkeypatch.setattr("workers.kubernetes.silence.time", SimpleNamespace(monotonic=lambda: self.now))
        self.silence = Silence()
        self._stack = stack
        self._open: dict[object, tuple[int, ExitStack]] = {}
        self.asked: list[tuple[int, float]] = []
        self.silence.heard()
        for number in range(count):
            self._open_one(number)

    def _open_one(self, number: int) -> None:
        stack = self._stack.enter_context(ExitStack())
        self._open[stack.enter_context(self.silence.watching())] = (number, stack)

    def until(self, seconds: float, *, answered: bool = True) -> None:
        """Plays until so many seconds after the start. Whoever asks is answered at once, or never."""
        while self._open:
            remaining = {watch: self.silence.remaining(watch, SECONDS) for watch in self._open}
            first = min(remaining, key=remaining.__getitem__)
            if self.now + remaining[first] > 1000.0 + seconds:
                break
            self.now += max(0.0, remaining[first])
            if self.silence.remaining(first, SECONDS) > 1e-9:
                continue
            number, stack = self._open.pop(first)
            with suppress(SilentError), stack:
                raise SilentError("no data")
            self.asked.append((number, round(self.now - 1000.0, 6)))
            if answered:
                self.silence.heard()
                self._open_one(number)

    def leave(self, number: int) -> None:
        """The reader of a watch leaves: it asks nothing."""
        (watch,) = (watch for watch, (found, _) in self._open.items() if found == number)
        self._open.pop(watch)[1].close()

    def event(self, number: int) -> None:
        self.silence.heard(next(watch for watch, (found, _) in self._open.items() if found == number))


def test_of_silent_watches_one_asks_after_a_part_of_the_time_and_all_together_no_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        played = Played(monkeypatch, stack, 3)
        played.until(3 * SECONDS)
    assert played.asked == [(number % 3, (number + 1) * SECONDS / 3) for number in range(9)]


@pytest.mark.parametrize(("count", "requests"), [(1, 30), (2, 30), (3, 30), (4, 40)])
def test_from_three_watches_on_there_are_as_many_requests_as_if_each_asked_for_itself(
    monkeypatch: pytest.MonkeyPatch, count: int, requests: int
) -> None:
    """Fewer watches ask as often as three: a process with one, as `labels`, noticed nothing for the whole time."""
    with ExitStack() as stack:
        played = Played(monkeypatch, stack, count)
        played.until(10 * SECONDS)
    assert len(played.asked) == requests
    assert played.asked[0] == (0, min(SECONDS / 3, SECONDS / count))


def test_one_watch_alone_that_gets_something_now_and_then_asks_never(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        played = Played(monkeypatch, stack, 1)
        for seconds in range(25, 1000, 25):
            played.until(seconds)
            played.now = 1000.0 + seconds
            played.event(0)
    assert played.asked == []


def test_while_one_watch_gets_events_the_others_are_opened_again_after_the_whole_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        played = Played(monkeypatch, stack, 3)
        for seconds in range(10, 200, 10):
            played.until(seconds)
            played.now = 1000.0 + seconds
            played.event(0)
    assert played.asked == [(1, SECONDS), (2, SECONDS), (1, 2 * SECONDS), (2, 2 * SECONDS)]


def test_without_an_answer_the_others_ask_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        played = Played(monkeypatch, stack, 3)
        played.until(SECONDS, answered=False)
    assert played.asked == [(0, SECONDS / 3), (1, 2 * SECONDS / 3), (2, SECONDS)]


def test_a_reader_that_leaves_asks_nothing_so_the_turn_of_the_others_does_not_begin_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        played = Played(monkeypatch, stack, 2)
        played.until(SECONDS / 3 - 1)
        played.now = 1000.0 + SECONDS / 3 - 1
        played.leave(0)
        played.until(SECONDS)
    assert played.asked[0] == (1, SECONDS / 3)


def test_the_age_is_not_known_while_nothing_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("workers.kubernetes.silence.time", SimpleNamespace(monotonic=lambda: now))
    silence = Silence()
    assert isnan(silence.age)
    with silence.followed():
        now += 50
        assert silence.age == 50, "nobody has ever answered"
        silence.heard()
        with silence.followed():
            now += 7
        assert silence.age == 7
    silence.heard()
    now += 1000
    assert isnan(silence.age)
    with silence.followed():
        assert silence.age == 0, "nobody has listened"
