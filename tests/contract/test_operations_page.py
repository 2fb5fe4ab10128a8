"""docs/reference/metrics.md has every metric, and docs/reference/log-events.md every log event."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text()
LOG_EVENTS = (ROOT / "docs" / "reference" / "log-events.md").read_text()
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "_warn"}
METRIC_TYPES = {"Counter", "Gauge", "Histogram", "Info", "counter", "gauge"}  # `counter`: of one registry
SUFFIX = {"Counter": "_total", "counter": "_total", "Info": "_info"}


@cache
def calls() -> frozenset[tuple[str, str]]:
    """Each call with a text as its first argument: the name of the function, and the text."""
    return frozenset(_calls())


def _calls() -> Iterator[tuple[str, str]]:
    for folder in ("bus", "cli", "lab", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield getattr(node.func, "attr", getattr(node.func, "id", "")), first.value


@cache
def log_events() -> frozenset[str]:
    return frozenset(text for name, text in calls() if name in LOG_METHODS)


def test_every_log_event_is_explained() -> None:
    assert "sample_refused" in log_events()
    assert {event for event in log_events() if f"`{event}`" not in LOG_EVENTS} == set()


def test_every_metric_is_explained() -> None:
    metrics = {text.removesuffix("_total") + SUFFIX.get(name, "") for name, text in calls() if name in METRIC_TYPES}
    assert "tas_samples_refused_total" in metrics
    assert {metric for metric in metrics if f"`{metric}`" not in METRICS} == set()
