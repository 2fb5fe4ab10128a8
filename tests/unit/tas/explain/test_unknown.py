"""Why a value of a node is unknown."""

from typing import Any

import pytest
from msgspec.structs import replace

from tas.explain.unknown import why_unknown
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.sample import Scrape
from tas.sources.state import UNATTENDED_SECONDS, SourceMetric, SourceState
from tas.values.quantity import parse_quantity
from tas.view.view import View

KEY = PolicyKey("default", "p")
NOW = 10_000.0
MEAN = "cpu:mean:5m"
WARMING = "the window of 300 s is not covered yet: the values of cpu span 60 s so far, 150 s are needed"


def seen(metric: str, *, age: float | None, selector: dict[str, str] | None = None, **rule: Any) -> View:
    """A policy that reads a metric, of which node `a` has a sample of this age; None: no sample."""
    rules = [{"metricname": metric, "operator": "GreaterThan", "target": 40, **rule}]
    spec: dict[str, Any] = {"strategies": {"dontschedule": {"rules": rules}}}
    policy, _ = parse_policy(KEY, spec if selector is None else spec | {"nodeSelector": {"matchLabels": selector}})
    view = View(default_stale_after=10)
    view.set_policy(policy, NOW)
    view.set_labels("a", {})
    if age is not None:
        time, metrics = NOW - age, {metric: parse_quantity("1")}
        view.add_samples("a", [Scrape(source="windows", measured=time, arrived=time, sequence=1, metrics=metrics)], NOW)
    return view


def source(time: float = NOW, problem: str = "", **metrics: SourceMetric) -> SourceState:
    named = {name.replace("_", ":"): each for name, each in metrics.items()}
    return SourceState(kind="windows", holder="h", since=0.0, time=time, problem=problem, metrics=named, polls=1)


FILLS = source(cpu_mean_5m=SourceMetric(missing=WARMING))
OF_OTHERS = source(cpu_mean_5m=SourceMetric(nodes=3))


@pytest.mark.parametrize("age", [None, 10.0])
def test_a_window_that_is_not_covered_yet_says_how_far_it_is(age: float | None) -> None:
    assert why_unknown(seen(MEAN, age=age), "a", {"windows": FILLS}, (), NOW) == {MEAN: (f"windows: {WARMING}",)}


@pytest.mark.parametrize(
    ("sources", "reason"),
    [
        (
            {"windows": OF_OTHERS},
            "windows has fresh values of 3 nodes; the values of cpu of a node must span half of the window, 150 s",
        ),
        ({"windows": source()}, "no source has this statistic: does windows run?"),
        ({}, "no source has this statistic: does windows run?"),
        # What an ended replica has said is not about now.
        ({"windows": source(NOW - UNATTENDED_SECONDS, cpu_mean_5m=SourceMetric(missing=WARMING))},
         "no source has this statistic: does windows run?"),
    ],
)  # fmt: skip
def test_what_is_known_of_a_statistic_that_the_node_lacks(sources: dict[str, SourceState], reason: str) -> None:
    assert why_unknown(seen(MEAN, age=None), "a", sources, (), NOW) == {MEAN: (reason,)}


def test_a_value_may_be_fresh_for_its_source_and_too_old_for_a_policy() -> None:
    (reason,) = why_unknown(seen(MEAN, age=15.0), "a", {"windows": OF_OTHERS}, (), NOW)[MEAN]
    assert reason == (
        "windows has fresh values of 3 nodes, by the longest staleAfter of all policies; "
        "that of this node is too old for a policy"
    )


def test_a_state_without_room_for_the_metric_says_so() -> None:
    shortened = replace(source(load=SourceMetric(nodes=1)), metrics_left_out=500)
    assert why_unknown(seen(MEAN, age=None), "a", {"windows": shortened}, (), NOW) == {
        MEAN: (f"windows: its state has room for 1 of its 501 metrics, and not for {MEAN}",)
    }


def test_the_source_of_the_rule_counts() -> None:
    asked = {"prometheus": source(problem="no answer", cpu_mean_5m=SourceMetric()), "windows": FILLS}
    assert why_unknown(seen(MEAN, age=None), "a", asked, (), NOW) == {
        MEAN: ("prometheus: no answer", f"windows: {WARMING}")
    }
    assert why_unknown(seen(MEAN, age=None, source="windows"), "a", asked, (), NOW) == {
        f"{MEAN} of windows": (f"windows: {WARMING}",)
    }


def test_a_name_that_is_nearly_a_statistic_is_said() -> None:
    (reason,) = why_unknown(seen("cpu:p95:5min", age=None), "a", {}, (), NOW)["cpu:p95:5min"]
    assert reason.startswith("it is the name of an ordinary metric, not of a statistic: 5min is no duration")


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(seen(MEAN, age=0.0), id="fresh"),
        pytest.param(seen(MEAN, age=None, selector={"x": "y"}), id="not selected"),
        pytest.param(View(), id="no policy"),
    ],
)
def test_nothing_is_said_of_values_that_are_known_or_not_read(view: View) -> None:
    assert why_unknown(view, "a", {"windows": FILLS}, (), NOW) == {}


def test_an_ordinary_metric_of_which_no_source_says_anything_has_no_reason() -> None:
    assert why_unknown(seen("load", age=None), "a", {"windows": FILLS}, (), NOW) == {}
