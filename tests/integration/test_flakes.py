"""What `.ci/run` does with a test that fails: real runs of pytest, with tests that fail as often as a file says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import REPOSITORY
from tests.flakes import TABLE, Failure, Row, function_of, rows, verdict

pytestmark = pytest.mark.ci

HEAD = """
import pathlib
import pytest

def fails(name, times):
    path = pathlib.Path(__file__).with_name(name)
    before = int(path.read_text()) if path.exists() else 0
    path.write_text(str(before + 1))
    assert before >= times, f"{name} fails"
"""
ONCE = "def test_once(): fails('once', 1)\n"
ALWAYS = "def test_always(): fails('always', 99)\n"
OTHER = "def test_other(): fails('other', 1)\n"
GOOD = "def test_good(): pass\n"
IN_A_FIXTURE = "@pytest.fixture\ndef broken(): fails('broken', 1)\ndef test_of_it(broken): pass\n"
SEEDED = "@pytest.mark.seeded\ndef test_seeded(): fails('seeded', 1)\n"
PROPERTY = (
    "from hypothesis import given, strategies as st\n@given(st.just(1))\ndef test_property(_): fails('property', 1)\n"
)
CRASHES = """
import os
@pytest.mark.seeded
def test_crashes():
    path = pathlib.Path(__file__).with_name("crashes")
    if not path.exists():
        path.touch()
        os._exit(1)
"""
STATUS_OF_A_PLUGIN = "import pytest\ndef pytest_sessionfinish(session): session.exitstatus = 6\n"
NOT_COLLECTED = "fails('import', 1)\n"
LATER = "def test_later(): fails('later', 1)\n"


class Run:
    """A run with one file of failures, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Each pytest loads only the plugins that it is given: to load all takes 0.4 s of processor time.
        self._environment = os.environ | {"TAS_FAILED": str(folder / "failed"), "PYTHONPATH": str(REPOSITORY)}
        self._environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        self._environment.pop("PYTEST_ADDOPTS", None)
        (folder / "failed").touch()
        (folder / "pytest.ini").write_text("[pytest]\naddopts = -p tests.flakes\nmarkers = seeded\n")

    def pytest(self, name: str, *tests: str, workers: int = 0, option: str = "-q") -> int:
        (self._folder / name).write_text(HEAD + "".join(tests))
        spread = ("-p", "xdist.plugin", "-n", str(workers)) if workers else ()
        properties = ("-p", "_hypothesis_pytestplugin") if PROPERTY in tests else ()
        return self._call("pytest", option, *spread, *properties, name)[0]

    def again(self) -> tuple[int, str]:
        return self._call("tests.flakes", "again")

    def report(self) -> str:
        code, text = self._call("tests.flakes", "report")
        assert code == 0, text
        return text

    def _call(self, module: str, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.returncode, done.stdout


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("flaky", "test"), [(ONCE, "test_once"), (IN_A_FIXTURE, "test_of_it")])
def test_one_failure_that_passes_alone_is_green_and_reported_with_both_outputs(
    run: Run, workers: int, flaky: str, test: str
) -> None:
    assert run.pytest("test_a.py", GOOD, flaky, workers=workers) == 1
    code, text = run.again()
    assert code == 0, text
    assert "1 passed" in text
    assert run.pytest("test_b.py", GOOD) == 0
    report = run.report()
    assert report.startswith(f"flaked: test_a.py::{test}\n")
    assert report.endswith(f"flaked: test_a.py::{test}\n")
    assert " fails" in report.partition("once more, alone:")[0]
    assert "1 passed" in report.partition("once more, alone:")[2]
    (row,) = rows("\n".join(line for line in report.splitlines() if line.startswith("|")))
    assert row.test == f"test_a.py::{test}"


def test_a_run_without_a_failure_reports_nothing(run: Run) -> None:
    assert run.pytest("test_a.py", GOOD) == 0
    assert run.report() == ""


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        pytest.param((ALWAYS,), "test_a.py::test_always failed again", id="always"),
        pytest.param((ONCE, OTHER), "more than one test failed: test_a.py::test_once, test_a.py::test_other", id="two"),
        pytest.param((SEEDED,), "test_a.py::test_seeded tries new inputs in each run, or crashed", id="seeded"),
        pytest.param((PROPERTY,), "test_a.py::test_property tries new inputs in each run", id="property"),
        pytest.param((NOT_COLLECTED,), "pytest ended with 2", id="not-collected"),
    ],
)
def test_what_is_red(run: Run, tests: tuple[str, ...], why: str) -> None:
    assert run.pytest("test_a.py", *tests) != 0
    code, text = run.again()
    assert code == 1, text
    assert f"red: {why}" in text
    assert ("once more, alone" in text) is (tests == (ALWAYS,))


def test_a_second_flake_in_a_later_call_is_red(run: Run) -> None:
    assert run.pytest("test_a.py", ONCE) == 1
    assert run.again()[0] == 0
    assert run.pytest("test_b.py", LATER) == 1
    code, text = run.again()
    assert code == 1
    assert "red: more than one test failed: test_a.py::test_once, test_b.py::test_later" in text


@pytest.mark.parametrize("option", ["--no-such-option", None], ids=["usage", "no-pytest"])
def test_a_later_command_that_failed_without_a_failed_test_is_red_after_a_flake(run: Run, option: str | None) -> None:
    assert run.pytest("test_a.py", ONCE) == 1
    assert run.again()[0] == 0
    if option:
        assert run.pytest("test_b.py", GOOD, option=option) == 4
    assert run.again() == (1, "red: no test failed, so what failed cannot run again\n")


def test_a_worker_of_xdist_that_crashed_in_a_seeded_test_is_red(run: Run, tmp_path: Path) -> None:
    assert run.pytest("test_a.py", CRASHES, workers=2) == 1
    assert (tmp_path / "crashes").exists()
    code, text = run.again()
    assert code == 1, text
    assert "red: test_a.py::test_crashes tries new inputs in each run, or crashed" in text


def test_the_status_of_a_plugin_is_red_beside_a_flake(run: Run, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(STATUS_OF_A_PLUGIN)
    assert run.pytest("test_a.py", ONCE) == 6
    assert run.again() == (1, "red: pytest ended with 6\n")


def test_a_command_that_failed_without_a_failed_test_is_red(run: Run) -> None:
    assert run.again() == (1, "red: no test failed, so what failed cannot run again\n")


def test_a_test_that_stands_in_the_table_is_red_with_any_parameters() -> None:
    failure = Failure(test="tests/test_a.py::test_b[1]", seeded=False, output="")
    row = Row(date="2026-01-02", test="tests/test_a.py::test_b[2]", cause="c", mended="m")
    assert verdict([failure], []) is None
    red = verdict([failure], [row])
    assert red is not None
    assert "has flaked before (2026-01-02, tests/flakes.md)" in red


@pytest.mark.parametrize("line", ["| today | `a` | b | c |", "| 2026-01-01 | a | b | c |", "| 2026-01-01 | `a` | b |"])
def test_a_row_that_cannot_be_read_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"tests/flakes\.md: '\| .* must be"):
        rows(f"| Date | Test |\n|---|---|\n{line}\n")


def test_the_tests_of_the_table_exist() -> None:
    found = rows(TABLE.read_text())
    assert found
    for row in found:
        file, *_, name = function_of(row.test).split("::")
        # A class of tests may inherit the test from a suite that several files run.
        sources = [
            REPOSITORY / file,
            *REPOSITORY.glob("tests/contract/**/suite.py"),
            *REPOSITORY.glob("tests/kubernetes/*_scenarios.py"),
        ]
        assert any(f"def {name}(" in path.read_text() for path in sources), f"{row.test}: remove its row"


def test_without_the_variable_nothing_is_noted(run: Run, tmp_path: Path) -> None:
    run._environment.pop("TAS_FAILED")
    assert run.pytest("test_a.py", ALWAYS) == 1
    assert (tmp_path / "failed").read_text() == ""
