"""At debug level, one log line for each request to an extender and its decision.

Who comes from an extender that logs each request runs `kubectl logs`. `GET /answers` has the same, and more of it.
"""

import logging
import time
from collections.abc import Callable

import structlog

from tas.errors import line_of
from tas.extender.verbs import Answer

MAX_LINES = 20
"""The most lines of one process in a second."""

MAX_EXAMPLES = 3
"""The most nodes, and the most reasons, of a line."""

MAX_TEXT = 300
"""The most characters of a text of a line."""

OnAnswer = Callable[[Answer], None]


def with_request_lines(logger: str, on_answer: OnAnswer, *, clock: Callable[[], float] = time.monotonic) -> OnAnswer:
    """`on_answer` with a line of the logger for each answer. Above level debug it is `on_answer` itself.

    `clock` is in seconds of a monotonic clock. The level is the one that holds now.
    """
    if not logging.getLogger(logger).isEnabledFor(logging.DEBUG):
        return on_answer
    lines = _RequestLines(structlog.get_logger(logger), clock)

    def both(answer: Answer) -> None:
        on_answer(answer)
        lines.write(answer)

    return both


class _RequestLines:
    """At most `MAX_LINES` in each second; the first line after others were suppressed has their number."""

    def __init__(self, log: structlog.stdlib.BoundLogger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._second = -1
        self._written = 0
        self._suppressed = 0

    def write(self, answer: Answer) -> None:
        if (second := int(self._clock())) != self._second:
            self._second, self._written = second, 0
        if self._written >= MAX_LINES:
            self._suppressed += 1
            return
        self._written += 1
        self._log.debug("request_answered", **fields_of(answer), suppressed=self._suppressed)
        self._suppressed = 0


def fields_of(answer: Answer) -> dict[str, object]:
    """The fields of the line about an answer: what every request has, then what this decision has."""
    texts = {
        "path": answer.path,
        "verb": answer.verb,
        "pod": f"{answer.namespace}/{answer.pod}" if answer.pod else "",
        "policy": answer.policy,
        "node": answer.node,
        "outcome": "" if answer.outcome is None else str(answer.outcome),
        "error": answer.error,
    }
    lists = {
        "best": [f"{host}={score}" for host, score in answer.best[:MAX_EXAMPLES]],
        "rejected": answer.rejected[:MAX_EXAMPLES],
        "reasons": [f"{count} × {reason}" for reason, count in list(answer.reasons.items())[:MAX_EXAMPLES]],
    }
    return {
        **{name: line_of(text, MAX_TEXT) for name, text in texts.items() if text},
        "status": answer.status,
        "milliseconds": round(answer.seconds * 1000, 1),
        "candidates": answer.candidates,
        "passed": answer.passed,
        "unknown": answer.unknown + answer.unknown_rejected,
        **{name: [line_of(text, MAX_TEXT) for text in texts] for name, texts in lists.items() if texts},
    }
