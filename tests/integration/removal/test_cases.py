"""How often the session requires each hard case."""

import pytest

from tests.e2e.processes import REPOSITORY
from tests.integration.removal.cases import LEAST, REAL, SANDBOX, WHOLE, Case, missing
from tests.integration.removal.tally import TOO_FEW

pytest_plugins = "pytester"

LEAST_HERE = {3: {Case.WIPED: 2}, 20: {Case.WIPED: 30, Case.ORPHAN: 5}}
SELDOM = {Case.STOPPED_READ, Case.STOPPED_SEND, Case.HELD_BACK, Case.UNJUDGED, Case.CONTRADICTED, Case.TRIPPED}
SELDOM |= {Case.OVERWRITTEN, Case.HIDDEN}  # their view shares a watch with workers that are not behind
"""What too few, or none, of the histories with all workers in one process have, to require it of them apart."""

SMALL = 8
ENOUGH = {str(case): times for case, times in LEAST[SANDBOX][SMALL].items()}


@pytest.mark.parametrize(
    ("seeds", "wiped", "orphans", "wrongs"),
    [
        (2, 0, 0, 0),
        (3, 2, 0, 0),
        (3, 1, 0, 1),
        (19, 2, 0, 0),
        (20, 30, 5, 0),
        (20, 29, 5, 1),
        (200, 29, 4, 2),
    ],
)
def test_the_required_cases_depend_on_the_number_of_seeds(seeds: int, wiped: int, orphans: int, wrongs: int) -> None:
    assert len(missing({Case.WIPED: wiped, Case.ORPHAN: orphans}, range(seeds), LEAST_HERE)) == wrongs


def test_a_case_that_never_occurred_is_named() -> None:
    (wrong,) = missing({Case.ORPHAN: 5}, range(20), LEAST_HERE)
    assert wrong == f"{Case.WIPED}: 0 times, at least 30 are required of 20 seeds"


def test_every_case_is_required_of_60_seeds_and_of_200() -> None:
    assert LEAST[SANDBOX][60].keys() == LEAST[SANDBOX][200].keys() == set(Case)
    assert set(Case) - LEAST[WHOLE][30].keys() == SELDOM
    assert all(times > 0 for least in LEAST.values() for cases in least.values() for times in cases.values())


def test_the_page_has_the_required_numbers() -> None:
    page = (REPOSITORY / "docs/reference/law-of-removal-record.md").read_text()
    for case in Case:
        on_sandbox = (LEAST[SANDBOX][8], LEAST[SANDBOX][60], LEAST[SANDBOX][200])
        columns = (*on_sandbox, LEAST[WHOLE][4], LEAST[WHOLE][30], LEAST[REAL][3])
        row = "".join(f" {least.get(case, '')} |".replace("  ", " ") for least in columns)
        assert f"| {case} |{row}" in page


def test_each_required_number_is_at_most_half_of_the_lowest_measured_one() -> None:
    page = (REPOSITORY / "docs/reference/law-of-removal-record.md").read_text()
    for case in set(Case) - {Case.SLEPT}:
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {case} |"))
        figures = [[int(figure) for figure in cell.split("-") if figure.strip()] for cell in line.split("|")[2:13]]
        of_8, of_60, of_200, of_4_whole, of_30_whole, of_real, *met = figures
        for least, of in zip((of_8, of_200, of_4_whole, of_30_whole, of_real), met, strict=True):
            assert bool(least) == bool(of), line
            assert not of or 2 * least[0] <= min(of), line
        assert 2 * of_60[0] * 200 <= 60 * min(met[1]), line


TEST = """
import pytest
from tests.integration.removal.cases import Case
from tests.integration.removal.tally import record

@pytest.mark.parametrize("batch", [range(1, 5), range(5, 9)])
def test_on_one_loop(batch, record_property):
    met = {{Case(case): times for case, times in {met!r}.items()}}
    record(record_property, met, on={sandbox!r}, played="loop", seeds=batch, of=OF)
    assert 8 not in batch or {passes}

def test_beside_the_histories():
    assert {beside}

def test_as_processes(record_property):
    record(record_property, {{}}, on={sandbox!r}, played="processes", seeds=[1], of=OF)

OF = {{"loop": range(1, 9), "processes": [1]}}
"""

CONFTEST = f"""
import sys
sys.path.append({str(REPOSITORY)!r})
pytest_plugins = "tests.integration.removal.tally"
"""
OPTIONS = ("-W", "ignore::pytest.PytestDeprecationWarning")


@pytest.mark.parametrize(
    ("met", "passes", "beside", "options", "says", "code"),
    [
        (ENOUGH, True, True, (), "", 0),
        ({}, True, True, (), "FAILED, too seldom: ", TOO_FEW),
        ({}, True, False, (), "FAILED, too seldom: ", TOO_FEW),
        ({}, True, True, ("-k", "batch0"), "not judged: 5 histories were not played, or failed", 0),
        ({}, False, True, (), "not judged: 4 histories were not played, or failed", 1),
    ],
    ids=["enough", "too few", "too few beside another failure", "not all of them", "one failed"],
)
def test_the_session_fails_if_all_histories_ran_and_a_case_occurred_too_seldom(
    pytester: pytest.Pytester,
    *,
    met: dict[str, int],
    passes: bool,
    beside: bool,
    options: tuple[str, ...],
    says: str,
    code: int,
) -> None:
    pytester.makeconftest(CONFTEST)
    path = pytester.makepyfile(TEST.format(sandbox=SANDBOX, met=met, passes=passes, beside=beside))
    result = pytester.runpytest_inprocess(*OPTIONS, *options, path)
    assert result.ret == code
    result.stdout.fnmatch_lines([f"{says}*"])
    assert ("FAILED, too seldom" in str(result.stdout)) == says.startswith("FAILED")


@pytest.mark.ci
def test_cases_of_several_processes_are_added_up(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    least = LEAST[SANDBOX][SMALL][Case.SAMPLE]
    pytester.makeconftest(CONFTEST)
    path = pytester.makepyfile(
        TEST.format(sandbox=SANDBOX, met={str(Case.SAMPLE): (least - 1) // 2}, passes=True, beside=True)
    )
    result = pytester.runpytest_inprocess(*OPTIONS, "-n2", path)
    assert result.ret == TOO_FEW
    found = 2 * ((least - 1) // 2)
    result.stdout.fnmatch_lines([f"FAILED, too seldom: {Case.SAMPLE}: {found} times, at least {least} *"])
