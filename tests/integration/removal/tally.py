"""A plugin of pytest: adds up the hard cases that the histories met, and fails the session if some were too few.

Each test of the law records the cases of its histories (`record`). They are a part of the test's report, so one process
or several may run the tests. The numbers are checked only if every history of the seeds was played.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.integration.removal.cases import LEAST, Case, added, missing

PROPERTY = "removal"
TOO_FEW = 6
"""The exit code for too few hard cases: none of pytest's own, since no second run of a failed test makes up for it."""

RecordProperty = Callable[[str, object], None]


def record(
    record_property: RecordProperty,
    met: Mapping[str, int],
    *,
    on: str,
    played: str,
    seeds: Sequence[int],
    of: Mapping[str, Sequence[int]],
) -> None:
    """Records the cases of the histories of `seeds`, `played` in one way `on` one kind of API server.

    `on` is a key of `LEAST`; `of` has all seeds of each way.
    """
    # Only plain types pass from a worker of pytest-xdist to its controller.
    plain = {str(case): int(times) for case, times in met.items()}
    every = {way: list(each) for way, each in of.items()}
    record_property(PROPERTY, {"met": plain, "on": on, "played": played, "seeds": list(seeds), "of": every})


class Tally:
    """The cases of all histories of a session that passed."""

    def __init__(self) -> None:
        self._records: dict[str, list[dict[str, Any]]] = {on: [] for on in LEAST}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for name, each in report.user_properties:
                if name == PROPERTY and isinstance(each, dict):
                    self._records[each["on"]].append(each)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        judged = session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        if judged and any(self._too_few(on) for on in LEAST):
            session.exitstatus = TOO_FEW

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for on, records in self._records.items():
            if not records:
                continue
            terminalreporter.section(f"law of removal: what the histories on {on} met")
            for line in self._lines(on):
                terminalreporter.write_line(line)
            for line in self._too_few(on):
                terminalreporter.write_line(f"FAILED, too seldom: {line}", red=True)

    def _lines(self, on: str) -> Iterator[str]:
        met = added(each["met"] for each in self._records[on])
        for case in (*Case, *sorted(met.keys() - set(Case))):
            yield f"{met[case]:6}  {case}"
        if left := self._left(on):
            yield f"not judged: {left} histories were not played, or failed"

    def _too_few(self, on: str) -> list[str]:
        """The cases that were met too seldom; none if some history was not played."""
        records = self._records[on]
        if not records or self._left(on):
            return []
        return missing(added(each["met"] for each in records), max(records[0]["of"].values(), key=len), LEAST[on])

    def _left(self, on: str) -> int:
        """How many histories were not played, or failed."""
        records = self._records[on]
        played = {(each["played"], seed) for each in records for seed in each["seeds"]}
        return len({(way, seed) for way, seeds in records[0]["of"].items() for seed in seeds} - played)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not a worker of pytest-xdist, whose reports go to its controller
        config.pluginmanager.register(Tally(), "tas-removal-tally")
