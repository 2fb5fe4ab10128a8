"""docs/doctor.md has a row for each check of `tas doctor`, and its findings name commands and pages that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from cli import COMMANDS
from tas.diagnosis.checks import CHECKS
from tas.diagnosis.finding import Severity

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "doctor.md").read_text()


def texts() -> Iterator[str]:
    """Each text in the code of the checks and probes, without docstrings."""
    for folder in ("tas/diagnosis", "cli/doctor"):
        for path in sorted((ROOT / folder).glob("*.py")):
            tree = ast.parse(path.read_text())
            said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
                    yield node.value


def test_each_check_has_a_row_and_the_groups_are_together() -> None:
    rows = re.findall(r"^\| `(\w+\.\w+)` \| [^|]", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(CHECKS)
    groups = [row.partition(".")[0] for row in rows]
    assert groups == sorted(groups, key=groups.index)


def test_each_severity_has_a_row() -> None:
    assert set(re.findall(r"^\| (\w+) \| ", PAGE, re.MULTILINE)) >= {each.value for each in Severity}


def test_commands_and_pages_that_mend_exist() -> None:
    commands = {word for text in texts() for word in re.findall(r"\btas ([a-z]+)", text)}
    assert {"configure", "trace", "crd"} <= commands
    assert commands <= set(COMMANDS)
    pages = {page for text in texts() for page in re.findall(r"\b(?:docs|deploy)/[\w/-]+\.(?:md|yaml)", text)}
    assert "docs/moving-pods.md" in pages
    assert [page for page in pages if not (ROOT / page).exists()] == []
