"""The log events about policies and their files: few lines, also if a start stores thousands, or finds them invalid."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import count

import structlog

from tas.policy.directory import FileProblem
from tas.policy.policy import PolicyKey, Problem
from workers.process.logs import ThrottledLog

MAX_LINES = 128
"""So many lines of one event are logged in ten seconds; one more line counts all others.

More than `MAX_FILE_PROBLEMS`, so that all listed problems of one file are logged.
"""


class PolicyLog:
    """Logs changes of policies and of their files. Policies with problems do not share their lines with the others."""

    def __init__(self, log: structlog.stdlib.BoundLogger) -> None:
        # Each line has a key of its own, its number: of two changes of one policy, both are logged.
        self._number = count()
        self._files: Mapping[str, tuple[FileProblem, ...]] = {}
        self._throttled: defaultdict[tuple[str, bool], ThrottledLog] = defaultdict(
            lambda: ThrottledLog(log, keys=MAX_LINES)
        )

    def stored(self, key: PolicyKey, problems: tuple[Problem, ...], **fields: object) -> None:
        """Logs that a policy was stored."""
        texts = [str(problem) for problem in problems]
        throttled = self._throttled["stored", bool(problems)]
        throttled.info("policy_stored", next(self._number), policy=str(key), **fields, problems=texts)

    def deleted(self, key: PolicyKey, **fields: object) -> None:
        """Logs that a policy was deleted."""
        self._throttled["deleted", False].info("policy_deleted", next(self._number), policy=str(key), **fields)

    def files(self, problems: Mapping[str, tuple[FileProblem, ...]]) -> bool:
        """Logs which files have other problems than at the last call, and returns whether there are any such files."""
        before, self._files = self._files, problems
        for origin, of_file in problems.items():
            if before.get(origin) != of_file:
                for problem in of_file:
                    self._throttled["invalid", True].warning(
                        "policy_file_invalid",
                        next(self._number),
                        file=origin,
                        object=problem.subject,
                        field=problem.field,
                        value=problem.value,
                        reason=problem.reason,
                        in_force=problem.in_force,
                    )
        for origin in before.keys() - problems.keys():
            self._throttled["valid", False].info("policy_file_valid", next(self._number), file=origin)
        return before != problems
