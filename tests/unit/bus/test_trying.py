"""How a call is tried, in virtual time: nothing sleeps, and a loop that waits is at once at its next timer."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, NamedTuple, TypeVar

import pytest

from bus.errors import BusError, ConflictError, ExpiredError, ForbiddenError, NobodyListensError, UnavailableError
from bus.trying import STALE, Tries, is_late
from tas.values.backoff import Backoff

T = TypeVar("T")

LATE, LATER = UnavailableError("no answer within 2 s"), UnavailableError("the connection was lost")
SECOND = Backoff(first=1.0, longest=1.0)
DOUBLING = Backoff(first=1.0, longest=4.0)
HANGS = object()


class Clock(selectors.DefaultSelector):
    """The time of a test in seconds, moved on by whoever waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing would ever end this wait"
        self.now += max(0.0, timeout)
        return super().select(0)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, body: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self)) as runner:
            return runner.run(body)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


class Server:
    """Gives outcomes one after the other, the last one for ever; an error is raised.

    Attributes:
        asked: When it was asked, in seconds since the first time.
    """

    def __init__(self, clock: Clock, outcomes: Sequence[object]) -> None:
        self._clock = clock
        self._outcomes = list(outcomes)
        self._times: list[float] = []

    @property
    def asked(self) -> list[float]:
        return [at - self._times[0] for at in self._times]

    def answer(self) -> object:
        self._times.append(self._clock.now)
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def ask(self) -> object:
        outcome = self.answer()
        if outcome is HANGS:
            await asyncio.Event().wait()
        return outcome


class Case(NamedTuple):
    """Outcomes of a call, how it is tried, what becomes of it, and how long at least and at most each wait is."""

    outcomes: Sequence[object]
    tries: Tries
    found: object
    waits: Sequence[tuple[float, float]] = ()
    until: Callable[[object], bool] = lambda _: True
    ends: float | None = None


CASES = {
    "an answer": Case(["answer"], Tries(is_late, wait=SECOND), "answer"),
    "no answer is an answer": Case([None], Tries(is_late), None),
    "late twice": Case([LATE, LATER, "answer"], Tries(is_late, wait=SECOND), "answer", [(0.5, 1)] * 2),
    "at once": Case([ConflictError("c"), ExpiredError("e"), 1], Tries(STALE, times=3), 1, [(0, 0)] * 2),
    "the last error": Case([LATE, LATE, LATER, "never"], Tries(is_late, times=3), LATER, [(0, 0)] * 2),
    "another error": Case([LATE, refused := ForbiddenError("f"), "never"], Tries(is_late), refused, [(0, 0)]),
    "one try": Case([LATE, "never"], Tries(is_late, times=1), LATE),
    "no error is worth it": Case([LATE, "never"], Tries(), LATE),
    "until": Case([0, LATE, 7], Tries(is_late, wait=SECOND), 7, [(0.5, 1)] * 2, until=bool),
    "the last result": Case([0, LATE, 0, 7], Tries(is_late, times=3), 0, [(0, 0)] * 2, until=bool),
    "waits double": Case([LATE], Tries(is_late, times=5, wait=DOUBLING), LATE, [(0.5, 1), (1, 2), (2, 4), (2, 4)]),
    "no wait past the limit": Case([LATE], Tries(is_late, within=0.4, wait=SECOND), LATE, ends=0.0),
    "waits within the limit": Case([LATE, LATER], Tries(is_late, within=1.0, wait=SECOND), LATER, [(0.5, 1)]),
    "its own time limit": Case([own := TimeoutError("own")], Tries(is_late, within=9.0), own, ends=0.0),
}

HANGING = {
    "the first try hangs": Case([HANGS], Tries(is_late, within=9.0), TimeoutError("no answer within 9 s"), ends=9.0),
    "after an error": Case([LATE, LATER, HANGS], Tries(is_late, within=9.0), LATER, [(0, 0)] * 2, ends=9.0),
    "after a result": Case([3, HANGS], Tries(within=9.0), 3, [(0, 0)], until=lambda _: False, ends=9.0),
}


def assert_tried(case: Case, server: Server, clock: Clock, found: object) -> None:
    if isinstance(case.found, TimeoutError):
        assert (type(found), str(found)) == (TimeoutError, str(case.found))
    else:
        assert found is case.found
    waits = [after - before for before, after in zip(server.asked, server.asked[1:], strict=False)]
    for waited, (least, most) in zip(waits, case.waits, strict=True):
        assert least <= waited <= most
    if case.ends is not None:
        assert clock.now == pytest.approx(1000.0 + case.ends)
    assert clock.now <= 1000.0 + case.tries.within + 1e-9


def outcome_of(call: Callable[[], object]) -> object:
    try:
        return call()
    except (BusError, TimeoutError) as error:
        return error


@pytest.mark.parametrize("case", (CASES | HANGING).values(), ids=(CASES | HANGING).keys())
def test_a_call_is_tried_until_it_answers(case: Case, clock: Clock) -> None:
    server = Server(clock, case.outcomes)
    found = outcome_of(lambda: clock.run(case.tries.of(lambda: server.ask(), until=case.until)))  # noqa: PLW0108
    assert_tried(case, server, clock, found)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_call_that_blocks_is_tried_in_the_same_way(case: Case, clock: Clock) -> None:
    server = Server(clock, case.outcomes)
    assert_tried(case, server, clock, outcome_of(lambda: case.tries.blocking(server.answer, until=case.until)))


@pytest.mark.parametrize("within", [inf, 9.0])
@pytest.mark.parametrize("again", [(Exception,), lambda _: True], ids=["types", "question"])
@pytest.mark.parametrize(("outcomes", "asked"), [([HANGS], 1), ([LATE], 1), ([LATE, HANGS], 2)])
def test_a_cancellation_ends_the_tries(
    clock: Clock, outcomes: Sequence[object], asked: int, again: Any, within: float
) -> None:
    """In a try, and in the wait after one; `again` never makes another try of it."""
    server = Server(clock, outcomes)
    first = 4.0 if asked == 1 else 0.2

    async def cancelled() -> bool:
        wait = Backoff(first=first, longest=first)
        task = asyncio.create_task(Tries(again, within=within, wait=wait).of(server.ask, until=lambda _: False))
        await asyncio.sleep(1.0)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert clock.run(cancelled())
    assert len(server.asked) == asked
    assert clock.now == pytest.approx(1001.0)


def test_ctrl_c_ends_the_tries(clock: Clock) -> None:
    server = Server(clock, [KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        Tries(lambda _: True).blocking(server.answer)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("error", "late"),
    [
        (LATE, True),
        (UnavailableError("no such stream", code=10059), False),
        (NobodyListensError("nobody listens"), False),
        (ForbiddenError("forbidden"), False),
        (TimeoutError(), False),
    ],
)
def test_only_a_server_that_said_nothing_is_late(error: Exception, late: bool) -> None:
    assert is_late(error) is late
