"""The log events `policy_stored` and `policy_deleted`: few lines, also if a start stores thousands of policies."""

from collections import defaultdict
from itertools import count

import structlog

from tas.policy.policy import PolicyKey, Problem
from workers.process.logs import ThrottledLog

MAX_LINES = 32
"""For so many policies each event is logged in ten seconds; one more line counts all others."""


class PolicyLog:
    """Logs changes of policies. Policies with problems do not share their lines with the others."""

    def __init__(self, log: structlog.stdlib.BoundLogger) -> None:
        self._number = count()
        self._throttled: defaultdict[tuple[str, bool], ThrottledLog] = defaultdict(
            lambda: ThrottledLog(log, keys=MAX_LINES)
        )

    def stored(self, key: PolicyKey, problems: tuple[Problem, ...], **fields: object) -> None:
        """Logs that a policy was stored."""
        self._line("policy_stored", key, problems=[str(problem) for problem in problems], **fields)

    def deleted(self, key: PolicyKey, **fields: object) -> None:
        """Logs that a policy was deleted."""
        self._line("policy_deleted", key, **fields)

    def _line(self, event: str, key: PolicyKey, **fields: object) -> None:
        # Each change is a key of its own: of two changes of one policy, both are logged.
        throttled = self._throttled[event, bool(fields.get("problems"))]
        throttled.info(event, next(self._number), policy=str(key), **fields)
