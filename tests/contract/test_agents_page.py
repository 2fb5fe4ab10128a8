"""The pages of agents agree with the agents of the product."""

import re
from pathlib import Path
from typing import Any

import pytest

from tas.agent import faults
from tas.agents.agent import Missing
from tas.agents.builtin import BUILTIN
from tas.agents.file import parse_agents, verbs_of
from tas.agents.safe import SafeOptions, SafeOverload
from workers.process.manifests import read_yaml

ROOT = Path(__file__).parents[2]
PAGES = ("how-to/agents.md", "reference/agents.md", "how-to/write-an-agent.md")
PAGE = "\n".join((ROOT / "docs" / page).read_text() for page in PAGES)
ROWS = re.findall(r"^\| `([\w-]+)` \| (.*?) ?\| (.*) \| (.*) \|$", PAGE, re.MULTILINE)


def test_each_agent_has_a_row_with_its_verbs() -> None:
    rows = {name: verbs.split(", ") for name, verbs, _, _ in ROWS if name in BUILTIN}
    assert rows == {name: sorted(verbs_of(agent)) for name, agent in BUILTIN.items()}


def test_the_template_is_the_one_that_runs_and_has_at_most_30_lines() -> None:
    code = (ROOT / "tas" / "agents" / "foo.py").read_text().replace("from tas.agents.agent ", "from tas.agent ")
    assert f"```python\n{code}```" in PAGE
    assert len(code.splitlines()) <= 30


def own_package() -> dict[str, Any]:
    """What the package of the page has: an agent with needs and options."""
    (code,) = re.findall(r'```python\n("""The agent `cool`.*?)```', PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def test_the_agent_with_options_breaks_no_rule() -> None:
    (test,) = re.findall(r"```python\nfrom my_package import .*?\n\n\n(.*?)```", PAGE, re.DOTALL)
    names = own_package() | {"faults": faults}
    exec(test, names)
    names["test_cool_is_an_agent"]()


def test_the_metrics_that_are_read_by_default_are_listed() -> None:
    needed = SafeOverload(SafeOptions()).needs.metrics
    assert {"cpu:mean:5m", "mean-free-memory"} <= set(needed)
    for name in needed:
        assert name.startswith(("cpu:", "memory:", "mean-free-", "std-free-", "forcasted-free-"))
        assert name in PAGE or name.replace("memory", "cpu") in PAGE


@pytest.mark.parametrize("default", ["`utilization` (0.9)", "`risk` (0.3)", "a deviation is at least 0.001"])
def test_the_defaults_in_the_text_are_those_of_the_options(default: str) -> None:
    assert default in PAGE
    options = SafeOptions()
    assert (options.utilization, options.risk, options.sigma_floor) == (0.9, 0.3, 0.001)
    assert (options.margin, options.sensitivity) == (1.0, 2.0)


def test_the_files_of_the_page_are_valid() -> None:
    found = []
    for block in re.findall(r"```yaml\n((?:# agents.yaml\n)?agents:\n.*?)```", PAGE, re.DOTALL):
        (document,) = read_yaml(block.encode())
        found.append(parse_agents("docs/how-to/agents.md", document, {**BUILTIN, "cool": own_package()["Cool"]}))
    assert {name for entries in found for name in entries} >= {"foo", "safe-overload", "congestion"}


def test_each_missing_policy_is_explained() -> None:
    (row,) = re.findall(r"^\| `missing` \|.*$", PAGE, re.MULTILINE)
    assert all(f"`{each}`:" in row for each in Missing)
