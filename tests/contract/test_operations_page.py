"""docs/operations.md names every metric and every log event there is: who is paged at night finds it there."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
LOG_METHODS = {"info", "warning", "error", "exception", "_warn"}
METRIC_TYPES = {"Counter", "Gauge", "Histogram", "Info"}
SUFFIX = {"Counter": "_total", "Info": "_info"}


def calls() -> Iterator[tuple[str, str]]:
    """Each call with a text as its first argument: the name of what is called, and the text."""
    for folder in ("bus", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield getattr(node.func, "attr", getattr(node.func, "id", "")), first.value


EVENTS = sorted({text for name, text in calls() if name in LOG_METHODS})
METRICS = sorted({text.removesuffix("_total") + SUFFIX.get(name, "") for name, text in calls() if name in METRIC_TYPES})


def test_there_is_something_to_look_for() -> None:
    assert "sample_refused" in EVENTS
    assert "tas_samples_refused_total" in METRICS


@pytest.mark.parametrize("event", EVENTS)
def test_every_log_event_is_explained(event: str) -> None:
    assert f"`{event}`" in PAGE


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_is_explained(metric: str) -> None:
    assert f"`{metric}`" in PAGE
