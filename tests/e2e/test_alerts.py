"""Prometheus' own tool reads the alerts and the dashboard, and runs the tests of the alerts."""

import json
import subprocess
from pathlib import Path

from tests.contract.test_alerts import RULES, TESTS, panels


def promtool(prometheus_binary: Path, *arguments: str | Path) -> str:
    command = [prometheus_binary.with_name("promtool"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_each_alert_fires_when_it_should(prometheus_binary: Path) -> None:
    promtool(prometheus_binary, "check", "rules", "--lint-fatal", *RULES)
    promtool(prometheus_binary, "test", "rules", TESTS)


def test_the_dashboard_has_expressions_that_prometheus_reads(prometheus_binary: Path, tmp_path: Path) -> None:
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(expressions) > 20
    recorded = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(expressions)
    ]
    file = tmp_path / "dashboard.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}))
    assert f"{len(expressions)} rules found" in promtool(prometheus_binary, "check", "rules", file)
