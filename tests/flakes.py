"""One failure in a run of `.ci/run` may be a flake: the test runs once more, alone, and must pass then.

As a plugin of pytest it notes what fails in the file that TAS_FAILED names; without this variable it does nothing, so
`make ci` is plain pytest. `python -m tests.flakes again` judges what is in the file, and `... report` prints at the
end of the run what has flaked. The file is that of a whole run of `.ci/run`, over all its calls of pytest.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

FAILED = "TAS_FAILED"
"""The variable with the path of the file."""

SEEDED = ("seeded", "hypothesis")
"""The markers of tests that try new inputs in each run: such a failure is a finding."""

TABLE = Path(__file__).with_name("flakes.md")
ROW = re.compile(r"\| (\d{4}-\d\d-\d\d) \| `([^`]+)` \| ([^|]+) \| ([^|]+) \|")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A test that failed; `again` is the output of its second run, once that has passed."""

    test: str
    seeded: bool
    output: str
    again: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: when a test flaked, why, and what was mended."""

    date: str
    test: str
    cause: str
    mended: str


def rows(table: str) -> list[Row]:
    """The rows of the table, without its head. Raises ValueError for a row that cannot be read."""
    found = []
    for line in table.splitlines():
        if not line.startswith("|") or line.startswith(("| Date", "|---")):
            continue
        if (row := ROW.fullmatch(line)) is None:
            raise ValueError(f"tests/flakes.md: {line!r} must be | date | `test` | cause | what was mended |")
        date, test, cause, mended = map(str.strip, row.groups())
        found.append(Row(date=date, test=test, cause=cause, mended=mended))
    return found


def function_of(test: str) -> str:
    """The test without its parameters: each of them may flake for the same cause."""
    return test.partition("[")[0]


class Failures:
    """Notes the failures of one call of pytest, those of all its workers."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: dict[str, Failure] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # of the test, or of a fixture before or after it
            # The report of a worker of pytest-xdist that crashed has no markers: its test may be seeded.
            seeded = not report.keywords or any(marker in report.keywords for marker in SEEDED)
            before = self._failed.get(report.nodeid)
            output = "\n".join([*([before.output] if before else []), report.longreprtext])
            self._failed[report.nodeid] = Failure(test=report.nodeid, seeded=seeded, output=output)

    @pytest.hookimpl(trylast=True)  # other plugins may set another status
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        with self._file.open("a") as file:
            for failure in self._failed.values():
                file.write(json.dumps(asdict(failure)) + "\n")
            if session.exitstatus not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
                file.write(json.dumps({"exit": int(session.exitstatus)}) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if (path := os.environ.get(FAILED)) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(Path(path)), "tas-failures")


def verdict(failures: Sequence[Failure], table: Sequence[Row]) -> str | None:
    """Why the run is red whatever a second run of the last failure would say; None if that run decides."""
    if not failures or failures[-1].again:  # that one has passed since, in an earlier call
        return "no test failed, so what failed cannot run again"
    last = failures[-1]
    if last.seeded:
        return f"{last.test} tries new inputs in each run, or crashed: keep what failed as a test, and find the cause"
    if len(failures) > 1:
        return "more than one test failed: " + ", ".join(failure.test for failure in failures)
    known = [row.date for row in table if function_of(row.test) == function_of(last.test)]
    if known:
        return f"{last.test} has flaked before ({', '.join(known)}, tests/flakes.md): find its cause"
    return None


def again(file: Path) -> int:
    """Runs the only failure again, alone; the exit code is 0 if it passes."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    ends = [line["exit"] for line in lines if "exit" in line]
    failures = [Failure(**line) for line in lines if "exit" not in line]
    red = f"pytest ended with {ends[0]}" if ends else verdict(failures, rows(TABLE.read_text()))
    if red is not None:
        print(f"red: {red}", flush=True)
        return 1
    (failure,) = failures
    print(f"once more, alone: {failure.test}", flush=True)
    environment = {name: value for name, value in os.environ.items() if name != FAILED}
    command = [sys.executable, "-m", "pytest", failure.test]
    done = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    print(done.stdout, flush=True)
    if done.returncode != 0:
        print(f"red: {failure.test} failed again", flush=True)
        return 1
    file.write_text(json.dumps(asdict(failure) | {"again": done.stdout}) + "\n")
    return 0


def report(file: Path) -> None:
    """Prints what has flaked, with both outputs, and the row that the next commit adds to the table."""
    for line in file.read_text().splitlines():
        failure = Failure(**json.loads(line))
        print(f"flaked: {failure.test}\n\nfirst:\n{failure.output}\n\nonce more, alone:\n{failure.again}")
        print("Find the cause. Before anything else is merged, tests/flakes.md gets the row:")
        print(f"| {time.strftime('%Y-%m-%d')} | `{failure.test}` | (cause) | (what was mended) |")
        print(f"flaked: {failure.test}", flush=True)


def main() -> int:
    """`again` or `report`, about the file that TAS_FAILED names."""
    file = Path(os.environ[FAILED])
    if sys.argv[1:] == ["again"]:
        return again(file)
    assert sys.argv[1:] == ["report"], sys.argv
    report(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
