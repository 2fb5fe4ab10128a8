"""docs/doctor.md has a row for each check of `tas doctor`."""

import re
from pathlib import Path

from tas.diagnosis.checks import CHECKS
from tas.diagnosis.finding import Severity

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()


def test_each_check_has_a_row_in_the_order_of_the_groups() -> None:
    rows = re.findall(r"^\| `(\w+\.\w+)` \| [^|]", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(CHECKS)
    groups = [row.partition(".")[0] for row in rows]
    assert groups == sorted(groups, key=groups.index)


def test_each_severity_has_a_row() -> None:
    assert set(re.findall(r"^\| (\w+) \| ", PAGE, re.MULTILINE)) >= {each.value for each in Severity}


def test_what_matters_is_said_for_each_check() -> None:
    assert all(check.why for check in CHECKS.values())
