"""`tas policy lint`: each error with its line, by the rules of the parser."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cli.policy import policy
from cli.policy_lint import Linted, Severity, lint, same_names
from tas.policy.manifest import parse_manifest
from workers.process.manifests import read_yaml

HEAD = """apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata:
  name: demo
"""

MISTAKES = f"""{HEAD}spec:
  stalAfter: 3m
  strategies:
    dontschedule:
      onStale: hold
      rules:
        - metricname: a.b
          operator: Equal
        - {{metricname: ok, operator: Equals, target: 1.5}}
    labelling:
      rules: []
    labeling:
      rules:
        - metricname: x
          operator: LessThan
          labels:
            - a=b
            - no pair
"""


def findings(linted: Linted) -> list[tuple[int, str, str]]:
    return [(finding.line, finding.severity.value, finding.field) for finding in linted.findings]


def test_each_error_has_its_line() -> None:
    assert sorted(findings(lint("f.yaml", MISTAKES.encode()))) == [
        (6, "warning", "spec.stalAfter"),
        (9, "error", "spec.strategies.dontschedule.onStale"),
        (11, "error", "spec.strategies.dontschedule.rules[0].metricname"),
        (12, "error", "spec.strategies.dontschedule.rules[0].operator"),
        (13, "error", "spec.strategies.dontschedule.rules[1].target"),
        (14, "warning", "spec.strategies.labelling"),
        (22, "warning", "spec.strategies.labeling.rules[0].labels[1]"),
    ]


def test_a_finding_names_file_line_object_field_value_and_reason() -> None:
    assert (
        "f.yaml:12: error: policy default/demo: spec.strategies.dontschedule.rules[0].operator = 'Equal': "
        "must be one of Equals, LessThan, GreaterThan"
    ) in map(str, lint("f.yaml", MISTAKES.encode()).findings)


def test_an_invalid_head_does_not_hide_the_problems_of_the_spec() -> None:
    head = "apiVersion: v2\nkind: TasPolicy\nmetadata: {name: My_Policy, namespace: My_Space}\n"
    linted = lint("f", (head + MISTAKES.removeprefix(HEAD)).encode())
    shift = len(HEAD.splitlines()) - len(head.splitlines())
    below = [(line - shift, severity, field) for line, severity, field in findings(lint("f", MISTAKES.encode()))]
    assert findings(linted) == [
        (1, "error", "apiVersion"),
        (2, "error", "kind"),
        (3, "error", "metadata.name"),
        (3, "error", "metadata.namespace"),
        *below,
    ]
    assert linted.policies == ()
    assert {finding.subject for finding in linted.findings} == {"manifest"}


def test_a_missing_field_has_the_line_of_its_object() -> None:
    text = f"{HEAD}spec:\n  strategies:\n    deschedule:\n      rules:\n        - operator: Equals\n"
    assert findings(lint("f", text.encode())) == [(9, "error", "spec.strategies.deschedule.rules[0].metricname")]


def test_each_document_and_item_of_a_list_has_its_own_lines() -> None:
    item = "  - {apiVersion: telemetry.intel.com/v1alpha1, kind: TASPolicy, metadata: {name: Bad}}\n"
    text = f"{MISTAKES}---\napiVersion: v1\nkind: List\nitems:\n{item}"
    assert findings(lint("f", text.encode()))[-2:] == [
        (len(text.splitlines()), "error", "metadata.name"),
        (len(text.splitlines()), "warning", "spec"),
    ]


def test_an_empty_object_is_one_error() -> None:
    found = lint("f", b"kind: List\nitems:\n- {}\n- {}").findings
    assert [(each.line, each.field) for each in found] == [(3, "apiVersion"), (4, "apiVersion")]


def test_json_has_lines() -> None:
    manifest = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": "demo"},
        "spec": {"strategies": {"deschedule": {"rules": [{"metricname": "a", "operator": "Like"}]}}},
    }
    text = json.dumps(manifest, indent=1)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "Like" in line)
    assert [finding.line for finding in lint("f.json", text.encode()).findings] == [line]


def test_objects_of_other_kinds_are_skipped_but_a_misspelled_kind_is_an_error() -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n---\n" + HEAD.replace("TASPolicy", "TASPolicies")
    linted = lint("f", text.encode())
    assert linted.others == 1
    assert findings(linted) == [(6, "error", "kind"), (5, "warning", "spec")]


def test_the_configuration_of_another_program_is_skipped_but_a_policy_without_apiversion_and_kind_is_an_error() -> None:
    assert lint("f", b"metrics: {load: {query: node_load1}}") == Linted(others=1)
    headless = lint("f", b"metadata: {name: demo}\nspec: {strategies: {}}")
    assert headless.others == 0
    assert [field for _, severity, field in findings(headless) if severity == "error"] == ["apiVersion", "kind"]


@pytest.mark.parametrize("text", ["a: [", "a: 1\na: 2", "\t", "", "- &a [*a]", "x: !!python/object:os.system {}"])
def test_an_unreadable_file_is_one_error(text: str) -> None:
    linted = lint("f", text.encode())
    assert [finding.severity for finding in linted.findings] == [Severity.ERROR]


def test_a_syntax_error_has_its_line() -> None:
    (finding,) = lint("f", (HEAD + "  name: again\n").encode()).findings
    assert finding.line == 5
    assert "given twice" in finding.reason


def test_a_name_in_two_files_is_a_warning_at_the_second() -> None:
    text = (HEAD + "spec: {strategies: {}}\n").encode()
    (finding,) = same_names({"a.yaml": lint("a.yaml", text), "b.yaml": lint("b.yaml", text)})
    assert (finding.file, finding.line, finding.severity) == ("b.yaml", 4, Severity.WARNING)
    assert finding.reason == "the same name is at a.yaml:4"


scalars = st.none() | st.booleans() | st.integers() | st.text("ab./[]\"'", max_size=6)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab./[]", max_size=4), inner),
    max_leaves=12,
)


@given(values)
def test_lint_reports_the_problems_of_the_parser_for_any_spec(spec: object) -> None:
    manifest = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": "demo"},
        "spec": spec,
    }
    text = json.dumps(manifest, indent=1)
    (read,) = read_yaml(text.encode())
    _, problems = parse_manifest(read)
    found = lint("f", text.encode()).findings
    assert [finding.field for finding in found] == [problem.field for problem in problems]
    assert all(1 <= finding.line <= len(text.splitlines()) for finding in found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(HEAD.replace("demo", "good") + "spec: {strategies: {}}\n")
    return tmp_path


def test_a_folder_with_only_warnings_passes_unless_strict(folder: Path) -> None:
    warned = CliRunner().invoke(policy, ["lint", str(folder)], standalone_mode=False)
    assert (warned.exception, warned.return_value) == (None, 0)
    assert "a policy without strategies does nothing" in warned.stdout
    assert warned.stderr == "1 file, 1 policy: 0 errors, 1 warning\n"
    assert CliRunner().invoke(policy, ["lint", "--strict", str(folder)], standalone_mode=False).return_value == 1


def test_a_file_with_errors_fails(folder: Path) -> None:
    (folder / "bad.yaml").write_text(MISTAKES)
    result = CliRunner().invoke(policy, ["lint", "--json", str(folder)], standalone_mode=False)
    assert result.return_value == 1
    assert {each["severity"] for each in json.loads(result.stdout)} == {"error", "warning"}


def test_standard_input_is_a_file() -> None:
    result = CliRunner().invoke(policy, ["lint", "-"], input=MISTAKES, standalone_mode=False)
    assert result.return_value == 1
    assert result.stdout.startswith("-:6: warning: policy default/demo: spec.stalAfter")


@pytest.mark.parametrize("name", ["nowhere.yaml", "."])
def test_a_file_that_cannot_be_opened_is_a_usage_error(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(policy, ["lint", name])
    assert result.exit_code == 2
    assert f"FILE = {name}" in result.stderr


@pytest.mark.parametrize("folder", ["deploy/policies", "deploy/examples"])
def test_a_folder_of_examples_has_no_findings(folder: str) -> None:
    """With all other files of the examples: the configuration of schedulers, deschedulers, Prometheus."""
    result = CliRunner().invoke(policy, ["lint", "--strict", folder], standalone_mode=False)
    assert (result.return_value, result.stdout) == (0, "")
    assert re.match(r"\d+ files, [1-9]\d* policies", result.stderr)
