"""The alerts and the dashboard of `deploy/` use metrics that exist, with their labels, and each alert has its row."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tas.notifying.alerts import PREFIX
from tas.notifying.notices import notice_of
from tests.unit.tas.events.examples import EXAMPLES
from tests.unit.tas.notifying.making import event
from workers.process.manifests import read_yaml

from .test_pages import anchors

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "operations.md"
METRIC_ROW = re.compile(r"^\| ((?:`tas_\w+`(?:, )?)+) \|([\w, ]*)\|", re.MULTILINE)

LABELS: dict[str, set[str]] = {
    name: set(re.findall(r"\w+", labels))
    for names, labels in METRIC_ROW.findall((ROOT / "docs" / "reference" / "metrics.md").read_text())
    for name in re.findall(r"\w+", names)
}
"""The labels of each metric, by docs/reference/metrics.md: `test_operations_page.py` compares names with the code."""

SERVER_LABELS = {"instance", "le", "result"}
"""Those that Prometheus adds, those of histograms, and those of the scheduler's metrics."""


RULES = (DEPLOY / "alerts" / "tas.yaml", DEPLOY / "alerts" / "scheduler.yaml")
TESTS = DEPLOY / "alerts" / "tas.test.yaml"

RUNBOOK = "https://tas-on-nats.example/docs/operations.md"
"""Whoever installs the rules replaces it: the product has no public pages of its own. `tas runbook` needs none."""

ALWAYS = "TasWatchdog"
"""The only alert without a silent case."""

QUIET = (
    "idle cluster",
    "one replica",
    "gone for good",
    "rolling update",
    "one scrape",
    "wiped",
    "to several",
    "to one",
)
"""Of what only looks like a fault: each has a case in which no alert fires, or none that is critical."""


def rules(*files: Path) -> list[dict[str, Any]]:
    """The rules of these files; of all without one."""
    found = []
    for file in files or RULES:
        (document,) = read_yaml(file.read_bytes())
        assert isinstance(document, dict)
        found += [rule for group in document["groups"] for rule in group["rules"]]
    return found


def sent_by_notify() -> set[str]:
    """The alerts that Alertmanager gets from `notify`: whoever has one of them looks for it in the same place."""
    notices = [found for data in EXAMPLES if (found := notice_of(event(data))) is not None]
    return {f"{PREFIX}{found.condition}" for found in notices if found.begins}


def cases() -> list[dict[str, Any]]:
    """The cases of promtool."""
    found: list[dict[str, Any]] = yaml.safe_load(TESTS.read_text())["tests"]
    return found


def panels() -> list[dict[str, Any]]:
    board = json.loads((DEPLOY / "dashboards" / "tas.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [rule["expr"] for rule in rules()] + [each["expr"] for panel in panels() for each in panel["targets"]]


def _documented(metric: str) -> str:
    """The metric whose row of the page has the labels of a metric, as that of a histogram."""
    return metric if metric in LABELS else re.sub(r"_(bucket|sum|count)$", "", metric)


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_uses_metrics_and_labels_that_exist(expression: str) -> None:
    metrics = re.findall(r"\btas_\w+", expression)
    assert metrics or re.search(r"\b(up|ALERTS)\{", expression) or expression == "vector(1)"
    known = {_documented(metric) for metric in metrics}
    assert known <= LABELS.keys()
    grouped = {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(",")}
    for metric, matchers in re.findall(r"\b(tas_\w+)\{([^}]*)\}", expression):
        of_bucket = {"le"} if metric.endswith("_bucket") else set[str]()
        assert set(re.findall(r"(\w+)[=!]", matchers)) <= LABELS[_documented(metric)] | of_bucket
    if metrics:
        assert grouped - SERVER_LABELS <= set().union(*(LABELS[metric] for metric in known))


def test_a_label_of_a_metric_is_not_replaced_by_one_of_its_pod() -> None:
    """The operator of Prometheus gives each target of a PodMonitor these labels: they would displace ours."""
    labels = set[str]().union(*LABELS.values())
    assert labels & {"namespace", "pod", "container", "endpoint", "job", "instance"} == {"namespace"}
    template = (DEPLOY / "chart" / "templates" / "prometheus.yaml").read_text()
    (monitor,) = [each for each in template.split("\n---\n") if "kind: PodMonitor\n" in each]
    (endpoints,) = re.findall(r"^  podMetricsEndpoints:\n((?:    .*\n)+)", monitor, re.MULTILINE)
    assert [each["honorLabels"] for each in yaml.safe_load(endpoints)] == [True]


def test_each_alert_links_to_its_row() -> None:
    text = PAGE.read_text()
    alerts = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules()}
    said = {rule["alert"]: rule["annotations"]["description"] for rule in rules()}
    assert len(alerts) == len(rules())
    for alert, link in alerts.items():
        base, _, anchor = link.partition("#")
        assert base == RUNBOOK
        assert anchor in anchors(PAGE)
        assert said[alert] == f"What to do: tas runbook {alert}"
        assert re.search(rf'^\| <a id="{anchor}"></a>`{alert}` \| \S.* \| \S.* \|$', text, re.MULTILINE), alert
    assert set(re.findall(r'<a id="(Tas\w+)">', text)) == alerts.keys() | sent_by_notify()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[0] == "Alerts"
    assert RUNBOOK in (ROOT / "docs" / "how-to" / "alerting.md").read_text(), "how to set it"


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    asked = [each for case in cases() for each in case.get("alert_rule_test", [])]
    names = {rule["alert"] for rule in rules()}
    assert {each["alertname"] for each in asked if each.get("exp_alerts")} == names
    assert {each["alertname"] for each in asked if not each.get("exp_alerts")} == names - {ALWAYS}


@pytest.mark.parametrize("quiet", QUIET)
def test_what_only_looks_like_a_fault_has_a_case_without_any_critical_alert(quiet: str) -> None:
    (case,) = (each for each in cases() if each["name"].startswith("quiet") and quiet in each["name"])
    (asked,) = case["promql_expr_test"]
    assert asked["expr"].count("alertname!=") == 1
    assert f'alertname!="{ALWAYS}"' in asked["expr"]
    assert all('severity="warning"' in each["labels"] for each in asked["exp_samples"])


def test_each_group_is_evaluated_often_enough_for_an_alert_within_a_minute() -> None:
    for file in RULES:
        (document,) = read_yaml(file.read_bytes())
        assert isinstance(document, dict)
        assert {group["interval"] for group in document["groups"]} == {"10s"}


def test_no_two_panels_of_the_dashboard_share_an_id_or_a_place() -> None:
    ids = [panel["id"] for panel in panels()]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(ids) > 10
    assert len(set(ids)) == len(set(places)) == len(ids)
    for panel in panels():
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
