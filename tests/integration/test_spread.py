"""How a whole run is spread: real runs of pytest with workers, of which some crash."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import REPOSITORY
from tests.spread import NICE, WAITING, WORKERS_PER_CORE

pytestmark = pytest.mark.ci

TESTS = """
import json, os, pathlib, pytest
folder = pathlib.Path(__file__).parent

@pytest.mark.parametrize("number", range(100))
def test_each(number):
    crashed = folder / "crashed"
    if number == 3 and not crashed.exists():
        crashed.touch()
        os._exit(1)
    with (folder / "ran").open("a") as file:
        file.write(json.dumps([number, os.getpid(), os.nice(0)]) + "\\n")
"""
ENDS_AT_ONCE = """
import os

def pytest_configure(config):
    if getattr(config, "workerinput", {}).get("workerid") == "WORKER":
        os._exit(1)
"""
CALCULATING = Path("tests", "unit")
INI = f"""
[pytest]
addopts = -p xdist -p tests.spread
testpaths = {CALCULATING} {WAITING}
markers =
    seeded
    long
"""


def run(folder: Path, *arguments: str) -> str:
    """Runs pytest in a folder with 100 tests of each kind; returns what it prints."""
    (folder / "pytest.ini").write_text(INI)
    for kind in (CALCULATING, WAITING):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / f"test_{kind.name}.py").write_text(TESTS)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False).stdout


def ran(folder: Path, kind: Path) -> list[tuple[int, int, int]]:
    """Of each test of a kind that ran to its end: its number, its process and how nice that was."""
    return [tuple(json.loads(line)) for line in (folder / kind / "ran").read_text().splitlines()]


def test_a_whole_run_has_workers_of_each_kind_and_one_that_crashes_is_replaced(tmp_path: Path) -> None:
    """The only one that calculates crashes, too: without another of its kind its tests do not run."""
    printed = run(tmp_path, "-n", str(WORKERS_PER_CORE), "--dist", "worksteal")
    assert re.search(r"2 failed, 198 passed", printed), printed  # the tests that crashed do not run again
    assert printed.count("replacing crashed worker") == 2
    numbers = [number for number in range(100) if number != 3]
    waiting, calculating = ran(tmp_path, WAITING), ran(tmp_path, CALCULATING)
    assert sorted(number for number, _, _ in waiting) == numbers
    assert sorted(number for number, _, _ in calculating) == numbers
    assert {process for _, process, _ in waiting}.isdisjoint(process for _, process, _ in calculating)
    usual = os.nice(0)
    assert {nice for _, _, nice in waiting} == {usual}
    assert {nice for _, _, nice in calculating} == {min(usual + NICE, 19)}


@pytest.mark.parametrize("worker", ["gw0", "gw1"])
def test_a_worker_that_ends_before_it_has_tests_is_replaced(tmp_path: Path, worker: str) -> None:
    (tmp_path / "conftest.py").write_text(ENDS_AT_ONCE.replace("WORKER", worker))
    for kind in (CALCULATING, WAITING):
        (tmp_path / kind).mkdir(parents=True)
        (tmp_path / kind / "crashed").touch()
    printed = run(tmp_path, "-n", str(WORKERS_PER_CORE), "--dist", "worksteal")
    assert re.search(r"\b200 passed", printed), printed
    assert printed.count("replacing crashed worker") == 1


@pytest.mark.parametrize("arguments", [("-n", "4", str(WAITING)), ("-n", "3"), ()], ids=["a-folder", "few", "alone"])
def test_any_other_run_has_workers_of_one_kind(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    for kind in (CALCULATING, WAITING):
        (tmp_path / kind).mkdir(parents=True)
        (tmp_path / kind / "crashed").touch()
    printed = run(tmp_path, *arguments, "--dist", "worksteal")
    expected = 100 if str(WAITING) in arguments else 200
    assert re.search(rf"{expected} passed", printed), printed
    assert {nice for _, _, nice in ran(tmp_path, WAITING)} == {os.nice(0)}
