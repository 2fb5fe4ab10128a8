"""The live view: every section is visible in a small window, and important rows come first."""

import io
import time
from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console
from rich.text import Text

from cli.up.live import LiveView, answer_cells, event_line, fit, shares
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tas.view.view import View
from workers.following.followed_view import FollowedView

HINTS = ["tas publish node-1 health_metric=2      # unhealthy", "curl " + "x" * 200, "edit a file in policies/"]
BROKEN = (
    "2026-01-01T10:00:00.123456Z [warning  ] policy_file_invalid            [applied] "
    "field=content file=demo.yaml reason='no YAML: it = broken' value=broken"
)
BOUND = "2026-01-01T10:00:01.123456Z [info     ] pod_bound                      [simulated] node=node-1 pod={}"
METRICS = ("cpu_percent", "disk_used_percent", "health_metric", "load1", "memory_available_bytes", "swap_used_bytes")


def live(width: int, height: int, *events: str) -> LiveView:
    now = time.time()
    view = View()
    for node in ("node-1", "node-2", "node-3", "node-4"):
        metrics = {name: parse_quantity("1") for name in METRICS}
        view.add_samples(node, [Scrape(source="s", measured=now, arrived=now, sequence=1, metrics=metrics)], now)
    records = {}
    for name in ("calm-1", "calm-2", "calm-3", "calm-4", "calm-5", "calm-6", "strict"):
        target = 1 if name == "strict" else 2
        rules = [{"metricname": "health_metric", "operator": "Equals", "target": target}]
        policy, _ = parse_policy(PolicyKey("default", name), {"strategies": {"dontschedule": {"rules": rules}}})
        view.set_policy(policy, now)
        records[policy.key] = SimpleNamespace(problems=())
    shown = LiveView(
        cast("FollowedView", SimpleNamespace(view=view, records=records, unready=lambda: None)),
        answers_url="http://nowhere",
        hints=HINTS,
        console=Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None),
        cluster=lambda: {f"node-{n}": "labels: –; pods: –" for n in range(1, 5)},
    )
    for line in events:
        shown.add_event(line)
    return shown


def rendered(shown: LiveView) -> list[str]:
    console = shown._console
    with console.capture() as captured:
        console.print(shown._render())
    return captured.get().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (160, 50)])
def test_every_section_is_visible_and_no_line_is_too_long(width: int, height: int) -> None:
    lines = rendered(live(width, height, BROKEN))
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    for section in ("tas publish", "nodes", "cluster", "policies", "answers", "events"):
        assert any(line.startswith(section) for line in lines), section
    assert sum(line.startswith("node-") and "health_metric 1 0s" in line for line in lines) == 4


def test_metrics_are_not_cut_but_counted() -> None:
    line = next(line for line in rendered(live(80, 24)) if line.startswith("node-1"))
    assert line.rstrip().endswith("health_metric 1 0s  cpu_percent 1 0s  +4 more")


def test_a_strategy_is_one_line_and_those_that_are_violated_come_first() -> None:
    lines = rendered(live(80, 20))
    first = next(index for index, line in enumerate(lines) if line.startswith("policies"))
    assert " ".join(lines[first + 1].split()) == "strict dontschedule node-1 +3 more health_metric Equals 1"
    below = next(index for index, line in enumerate(lines) if line.startswith("answers"))
    assert lines[below - 1].startswith("… and ")


def test_a_problem_stays_visible_below_the_newest_event() -> None:
    lines = rendered(live(80, 24, BROKEN, *(BOUND.format(f"p{n}") for n in range(6))))
    newest, problem = lines[lines.index(next(line for line in lines if line.startswith("events"))) + 1 :][:2]
    assert "pod=p5" in newest
    assert "warning policy_file_invalid no YAML: it = broken field=content" in problem


def test_the_reason_comes_first_in_an_event() -> None:
    assert event_line(BROKEN).plain.partition(" ")[2] == (
        "warning policy_file_invalid no YAML: it = broken field=content value=broken file=demo.yaml"
    )
    assert event_line("no event at all").plain == "no event at all"


@pytest.fixture
def indian_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock is 5 h 30 min ahead of UTC."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_all_times_are_local_time(indian_time: None) -> None:
    answered = datetime.fromisoformat("2026-01-01T10:00:02Z").timestamp()
    answer = {"time": answered, "verb": "prioritize", "pod": "p", "policy": "", "best": [], "error": "", "seconds": 0}
    answer |= {"outcome": "decided", "passed": 1, "candidates": 1, "reasons": {}}
    assert answer_cells(answer)[0] == "15:30:02"
    assert any("15:30:01 info pod_bound" in line for line in rendered(live(100, 30, BOUND)))
    piped = live(200, 30)
    written = piped._console.file = io.StringIO()
    piped._print_event(BROKEN)
    assert "15:30:00 warning policy_file_invalid" in written.getvalue()
    assert "10:00:0" not in written.getvalue()


def test_pieces_are_not_cut() -> None:
    pieces = [Text("one 1"), Text("two 2"), Text("three 3")]
    assert fit(pieces, 22, "  ").plain == "one 1  two 2  three 3"
    assert fit(pieces, 20, "  ").plain == "one 1  +2 more"
    assert fit([], 5, " ").plain == "–"


def test_each_section_gets_a_share_of_the_rows() -> None:
    assert shares(7, [1, 5, 9]) == [1, 3, 3]
    assert shares(100, [1, 5, 9]) == [1, 5, 9]
    assert shares(-1, [1]) == [0]
