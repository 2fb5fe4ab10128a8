"""docs/reference/doctor.md has a row for each check of `tas doctor`; findings name commands and pages that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import COMMANDS
from cli.doctor.output import print_findings
from tas.diagnosis.checks import CHECKS
from tas.diagnosis.finding import Severity
from tas.diagnosis.metrics import MetricFacts, check_metrics
from tas.diagnosis.policies import PolicyFacts, StoredPolicy, check_policies
from tas.diagnosis.scheduler import SchedulerFacts, check_scheduler
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tests.unit.tas.diagnosis.samples import policy, policy_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "doctor.md").read_text()


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
    assert {"configure", "crd", "doctor"} <= commands
    assert commands <= set(COMMANDS)
    pages = {page for text in texts() for page in re.findall(r"\b(?:docs|deploy)/[\w/-]+\.(?:md|yaml)", text)}
    assert "docs/how-to/moving-pods.md" in pages
    assert [page for page in pages if not (ROOT / page).exists()] == []


def test_the_output_is_as_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    demo = policy("demo", "deschedule", namespace="batch")
    other = policy("demo", "deschedule", namespace="web")
    renamed = policy_of("node_load1")
    samples = {
        "node-1": (
            Scrape(source="agent", measured=9.0, arrived=9.0, sequence=1, metrics={"load1": parse_quantity("1")}),
        )
    }
    metrics = MetricFacts(policies=[renamed], samples=samples, now=9.0, stale_after=120.0)
    stored = [StoredPolicy(policy=demo, created=1.0), StoredPolicy(policy=other, created=2.0)]
    scheduler = SchedulerFacts(configuration={}, minor=36, control_planes=(), nodes=())
    found = [
        *check_metrics(metrics),
        *check_policies(PolicyFacts(stored=stored, in_api=[demo.key, other.key], strategy_fields=())),
        *check_scheduler(scheduler),
    ]
    shown = {"metrics.present", "policies.label", "scheduler.alike"}
    print_findings([each for each in found if each.check in shown or each.severity is Severity.OK], with_ok=False)
    block, *_ = re.findall(r"^\$ tas doctor .*\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed == block.splitlines()
