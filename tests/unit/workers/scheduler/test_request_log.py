"""One line for each request at debug level: its fields, its limits, and that it costs nothing at other levels."""

import logging
from collections.abc import Iterator

import orjson
import pytest
from structlog.testing import capture_logs

from tas.extender.decision import Outcome
from tas.extender.verbs import Answer, within_limits
from workers.scheduler.server import MAX_LINES, with_request_lines


@pytest.fixture(autouse=True)
def _restore_level() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def test_a_line_has_the_decision() -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    answers: list[Answer] = []
    on_answer = with_request_lines("extender", answers.append)
    filtered = Answer(
        time=1.0,
        path="/scheduler",
        verb="filter",
        seconds=0.00123,
        namespace="default",
        pod="p",
        policy="demo-policy",
        outcome=Outcome.DECIDED,
        candidates=3,
        passed=2,
        unknown=1,
        rejected=("a",),
        reasons={"Node violates demo-policy: m GreaterThan 1": 1},
    )
    with capture_logs() as logs:
        on_answer(filtered)
        on_answer(Answer(time=1.0, verb="prioritize", best=(("b", 10), ("c", 0))))
        on_answer(Answer(time=1.0, verb="bind", namespace="default", pod="p", node="b", candidates=1, passed=1))
        on_answer(Answer(time=1.0, verb="filter", status=503, error="not ready"))
    assert len(answers) == 4
    first, scored, bound, refused = logs
    assert first == {
        "event": "request_answered",
        "log_level": "debug",
        "path": "/scheduler",
        "verb": "filter",
        "pod": "default/p",
        "policy": "demo-policy",
        "outcome": "decided",
        "status": 200,
        "milliseconds": 1.2,
        "candidates": 3,
        "passed": 2,
        "unknown": 1,
        "rejected": ["a"],
        "reasons": ["1 × Node violates demo-policy: m GreaterThan 1"],
        "suppressed": 0,
    }
    assert scored["best"] == ["b=10", "c=0"]
    assert (bound["node"], bound["passed"]) == ("b", 1)
    assert (refused["status"], refused["error"]) == (503, "not ready")


def test_lines_are_limited_in_rate_and_size() -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    now = [7.2]
    long = "\x1b" * 100_000
    hostile = within_limits(
        Answer(
            time=1.0,
            path="/x",
            verb="filter",
            error=long,
            namespace=long,
            pod=long,
            policy=long,
            node=long,
            rejected=(long,) * 100,
            reasons={f"{count}{long}": count for count in range(100)},
            best=((long, 10),) * 100,
        )
    )
    on_answer = with_request_lines("extender", lambda _: None, clock=lambda: now[0])
    with capture_logs() as logs:
        for _ in range(1000):
            on_answer(hostile)
        assert len(logs) == MAX_LINES
        now[0] = 8.0
        on_answer(hostile)
    assert len(logs) == MAX_LINES + 1
    assert logs[-1]["suppressed"] == 1000 - MAX_LINES
    assert max(len(orjson.dumps(line)) for line in logs) < 8192


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING, logging.ERROR])
def test_at_other_levels_nothing_is_called(level: int) -> None:
    logging.getLogger().setLevel(level)
    answers: list[Answer] = []
    on_answer = answers.append
    assert with_request_lines("extender", on_answer) is on_answer
