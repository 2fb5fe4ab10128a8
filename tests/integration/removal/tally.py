"""A plugin of pytest: adds up the hard cases that the histories met, and fails the session where some were too few.

Each test of the law hands over what its histories met (`record`). That comes with the test's report, so it does not
matter whether one process runs the tests or several do. It is judged only if every history of the seeds was played.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.integration.removal.cases import LEAST, Case, added, missing

PROPERTY = "removal"
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
    """Hands over what the histories of `seeds` met, that were `played` in one way `on` one kind of API server.

    `on` is a key of `LEAST`; `of` names every way with all the seeds that are to be played in it.
    """
    # Plain types: nothing else passes from a worker of pytest-xdist to who started it.
    plain = {str(case): int(times) for case, times in met.items()}
    every = {way: list(each) for way, each in of.items()}
    record_property(PROPERTY, {"met": plain, "on": on, "played": played, "seeds": list(seeds), "of": every})


class Tally:
    """What the reports of one session say of the histories that passed."""

    def __init__(self) -> None:
        self._records: dict[str, list[dict[str, Any]]] = {on: [] for on in LEAST}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for name, each in report.user_properties:
                if name == PROPERTY and isinstance(each, dict):
                    self._records[each["on"]].append(each)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and any(self._wrongs(on) for on in LEAST):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for on, records in self._records.items():
            if not records:
                continue
            terminalreporter.section(f"law of removal: what the histories on {on} met")
            for line in self._lines(on):
                terminalreporter.write_line(line)
            for wrong in self._wrongs(on):
                terminalreporter.write_line(f"FAILED, too seldom: {wrong}", red=True)

    def _lines(self, on: str) -> Iterator[str]:
        met = added(each["met"] for each in self._records[on])
        for case in (*Case, *sorted(met.keys() - set(Case))):
            yield f"{met[case]:6}  {case}"
        if left := self._left(on):
            yield f"not judged: {left} histories were not played, or failed"

    def _wrongs(self, on: str) -> list[str]:
        """What was met too seldom; nothing as long as not every history was played."""
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
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist: its reports go to who started it
        config.pluginmanager.register(Tally(), "tas-removal-tally")
