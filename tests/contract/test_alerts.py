"""The alerts and the dashboard of `deploy/` use metrics that exist, with their labels, and each alert has its row."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from workers.process.manifests import read_yaml

from .test_pages import anchors

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "operations.md"
METRIC_ROW = re.compile(r"^\| ((?:`tas_\w+`(?:, )?)+) \|([\w, ]*)\|", re.MULTILINE)

LABELS: dict[str, set[str]] = {
    name: set(re.findall(r"\w+", labels))
    for names, labels in METRIC_ROW.findall(PAGE.read_text())
    for name in re.findall(r"\w+", names)
}
"""The labels of each metric, by docs/operations.md: `test_operations_page.py` compares its names with the code."""

SERVER_LABELS = {"instance", "le"}


def rules() -> list[dict[str, Any]]:
    (document,) = read_yaml((DEPLOY / "alerts" / "tas.yaml").read_bytes())
    assert isinstance(document, dict)
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    board = json.loads((DEPLOY / "dashboards" / "tas.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [rule["expr"] for rule in rules()] + [each["expr"] for panel in panels() for each in panel["targets"]]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_uses_metrics_and_labels_that_exist(expression: str) -> None:
    metrics = re.findall(r"\btas_\w+", expression)
    assert metrics or re.search(r"\b(up|ALERTS)\{", expression)
    known = {re.sub(r"_(bucket|sum|count)$", "", metric) if metric not in LABELS else metric for metric in metrics}
    assert known <= LABELS.keys()
    grouped = {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(",")}
    for metric, matchers in re.findall(r"\b(tas_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)[=!]", matchers)) <= LABELS[metric]
    if metrics:
        assert grouped - SERVER_LABELS <= set().union(*(LABELS[metric] for metric in known))


def test_each_alert_links_to_its_row() -> None:
    text = PAGE.read_text()
    alerts = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules()}
    assert len(alerts) == len(rules())
    for alert, link in alerts.items():
        path, _, anchor = link.partition("#")
        assert (ROOT / path) == PAGE
        assert anchor in anchors(PAGE)
        assert re.search(rf'^\| <a id="{anchor}"></a>`{alert}` \|', text, re.MULTILINE)
    assert set(re.findall(r'<a id="(Tas\w+)">', text)) == alerts.keys()


def test_no_two_panels_of_the_dashboard_share_an_id_or_a_place() -> None:
    ids = [panel["id"] for panel in panels()]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(ids) > 10
    assert len(set(ids)) == len(set(places)) == len(ids)
    for panel in panels():
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
