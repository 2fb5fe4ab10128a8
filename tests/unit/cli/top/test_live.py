"""The live view: every section is visible in a small window, and important rows come first."""

import asyncio
import io
import json
import os
import pty
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from aiohttp import web
from rich.console import Console
from rich.text import Text

from cli.top.live import MOST_OF_COLUMN, LiveView, answer_cells, can_draw, cluster_rows, event_line, fit, shares
from cli.top.running import clock_hints
from tas.explain.explain import NodeExplanation, explain_node
from tas.policy.directory import FileProblem, FileProblems
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.parts import Part
from tas.samples.sample import Scrape
from tas.samples.table import Column, Reading, Table, TableKey
from tas.values.quantity import parse_quantity
from tas.view.view import View
from tests.integration.servers import eventually
from workers.following.followed_view import FollowedView
from workers.following.freezes import Freezes

HINTS = [
    "tas publish node-1 health_metric=2      # unhealthy",
    "kubectl " + "x" * 60 + "   # with the comment more than 80 columns",
    "curl " + "x" * 200,
    "edit a file in policies/",
    *(f"tas explain node node-{number}" for number in range(6)),
    "Ctrl-C ends all of it",
]


def logged(time: str, level: str, event: str, **fields: object) -> str:
    line = {"time": f"2026-01-01T{time}.123456Z", "level": level, "event": event, "logger": "x"}
    return json.dumps(line | fields)


BROKEN = logged(
    "10:00:00",
    "warning",
    "policy_file_invalid",
    field="content",
    file="demo.yaml",
    in_force="nothing",
    reason="no YAML: it = broken",
    value="broken",
)
BOUND = logged("10:00:01", "info", "pod_bound", node="node-1", pod="{}")
PROBLEM = FileProblem(
    origin="bad.yaml", subject="file", field="content", value="9 bytes", reason="no YAML: " + "words " * 9 + "end"
)
METRICS = ("cpu_percent", "disk_used_percent", "health_metric", "load1", "memory_available_bytes", "swap_used_bytes")


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a new value would be a second old when it is shown."""
    now = time.time()
    monkeypatch.setattr("cli.top.live.time.time", lambda: now)


def live(
    width: int,
    height: int,
    *events: str,
    file_problems: FileProblems | None = None,
    frozen: Sequence[str] = (),
    cards: dict[str, str] | None = None,
    pattern: str = "*",
) -> LiveView:
    now = time.time()
    view = View()
    for node in ("node-1", "node-2", "node-3", "node-4"):
        metrics = {name: parse_quantity("1") for name in METRICS}
        view.add_samples(node, [Scrape(source="s", measured=now, arrived=now, sequence=1, metrics=metrics)], now)
    records = {}
    for name in ("calm-1", "calm-2", "calm-3", "calm-4", "calm-5", "calm-6", "strict"):
        target = 1 if name == "strict" else 2
        rules = [{"metricname": "health_metric", "operator": "Equals", "target": target}]
        strategies = {"dontschedule": {"rules": rules}} | ({"deschedul": {}} if name == "strict" else {})
        policy, problems = parse_policy(PolicyKey("default", name), {"strategies": strategies})
        view.set_policy(policy, now)
        records[policy.key] = SimpleNamespace(problems=problems, origin=f"{name}.yaml")
    shown = LiveView(
        cast("FollowedView", SimpleNamespace(view=view, records=records, unready=lambda: None)),
        answers_url="http://nowhere",
        hints=HINTS,
        console=Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None),
        cluster=lambda: {f"node-{n}": "labels: –; pods: –" for n in range(1, 5)},
        file_problems=lambda: file_problems or FileProblems(listed=(PROBLEM,)),
        freezes=cast("Freezes", SimpleNamespace(texts=lambda _: frozen)),
        cards=lambda: cards or {},
        pattern=pattern,
    )
    for line in events:
        shown.add_event(line)
    return shown


def rendered(shown: LiveView) -> list[str]:
    console = shown._console
    asyncio.run(shown.explain())
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


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (160, 50)])
def test_cards_have_a_section_if_there_are_any(width: int, height: int) -> None:
    cards = {f"gpu-{number} card0": "i915 1/10 █░░░░░░░░░" for number in range(1, 9)}
    lines = rendered(live(width, height, BROKEN, cards=cards))
    assert len(lines) <= height
    at = next(index for index, line in enumerate(lines) if line.startswith("cards"))
    assert lines[at + 1].split() == ["gpu-1", "card0", "i915", "1/10", "█░░░░░░░░░"]
    for section in ("nodes", "cluster", "policies", "answers", "events"):
        assert any(line.startswith(section) for line in lines), section
    assert not any(line.startswith("cards") for line in rendered(live(width, height, BROKEN)))


def test_a_text_with_a_line_end_is_one_row_wherever_it_is_shown() -> None:
    """`tas up` and `tas top` show names and reasons of others."""
    forged = "x\nFORGED  all is well"
    problem = FileProblem(origin=forged, subject=forged, field=forged, value=forged, reason=forged)
    shown = live(
        160,
        60,
        logged("10:00:00", "warning", forged, field=forged),
        file_problems=FileProblems(listed=(problem,)),
        frozen=[forged],
        cards={forged: forged},
    )
    shown._answers_error = forged
    lines = rendered(shown)
    assert sum("FORGED" in line for line in lines) >= 5
    assert not [line for line in lines if line.lstrip().startswith("FORGED")]
    shown._console.file.seek(0)
    shown._line(forged)
    assert cast("io.StringIO", shown._console.file).getvalue().splitlines()[-1].startswith("x\\nFORGED")


def test_a_node_that_is_only_in_a_table_is_shown_like_the_others() -> None:
    shown, now = live(160, 50), time.time()
    columns = {"load1": Column((parse_quantity("3"),), Reading(now, now, 1))}
    shown._view.set_table(TableKey("t", Part(1, 0)), Table("t", ("node-5",), columns), now)
    (line,) = (line for line in rendered(shown) if line.startswith("node-5"))
    assert line.split()[-3:] == ["load1", "3", "0s"]


def add_nodes(shown: LiveView, count: int, *, healthy: str = "0", violates: str = "") -> None:
    """Nodes `n-001` and so on, which all violate no policy; the one with the name `violates` violates one."""
    now = time.time()
    for number in range(1, count + 1):
        name = f"n-{number:03}"
        value = parse_quantity("1" if name == violates else healthy)
        metrics = {"health_metric": value}
        shown._view.add_samples(name, [Scrape(source="s", measured=now, arrived=now, sequence=1, metrics=metrics)], now)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_of_300_nodes_the_worst_come_first_with_sums_and_the_number_of_the_others(width: int, height: int) -> None:
    shown = live(width, height)
    add_nodes(shown, 296, violates="n-296")
    lines = rendered(shown)
    at = next(index for index, line in enumerate(lines) if line.startswith("nodes"))
    assert lines[at].split()[:6] == ["nodes", "300", "violate", "5,", "?unknown", "0"]
    end = next(index for index, line in enumerate(lines) if line.startswith("… and"))
    names = [line.split()[0] for line in lines[at + 1 : end]]
    assert names[:5] == ["n-296", "node-1", "node-2", "node-3", "node-4"][: len(names)]
    assert int(lines[end].split()[2]) + len(names) == 300


def test_only_nodes_of_the_pattern_are_shown_and_counted() -> None:
    shown = live(160, 50, pattern="n-00?")
    add_nodes(shown, 20)
    lines = rendered(shown)
    head = next(line for line in lines if line.startswith("nodes"))
    assert head.split()[:4] == ["nodes", "9", "violate", "0,"]
    assert not any(line.startswith(("n-010", "node-1 ")) and "health_metric" in line for line in lines)
    nothing = rendered(live(160, 50, pattern="gpu-*"))
    assert any("no node with samples matches gpu-*" in line for line in nothing)


def test_each_node_is_judged_once_for_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 nodes and 7 policies were judged 2,700 times for each screen, four times a second."""
    shown = live(80, 24)
    add_nodes(shown, 96)
    judged: list[str] = []

    def counted(view: View, node: str, now: float) -> NodeExplanation:
        judged.append(node)
        return explain_node(view, node, now)

    monkeypatch.setattr("cli.top.live.explain_node", counted)
    rendered(shown)
    assert sorted(judged) == sorted({*judged})
    assert len(judged) == 100


def test_metrics_are_not_cut_but_counted() -> None:
    line = next(line for line in rendered(live(80, 24)) if line.startswith("node-1"))
    assert line.rstrip().endswith("health_metric 1 0s  cpu_percent 1 0s  +4 more")


@pytest.mark.parametrize(("width", "height", "shown"), [(80, 24, 4), (100, 30, 6), (160, 50, 10)])
def test_a_command_is_never_broken_and_the_end_is_always_shown(width: int, height: int, shown: int) -> None:
    lines = [line.rstrip() for line in rendered(live(width, height))]
    hints = lines[: next(index for index, line in enumerate(lines) if line.startswith("nodes"))]
    hints = [hint for hint in hints if hint]
    assert len(hints) == shown
    assert all(any(hint in (whole, whole.partition("   #")[0]) for whole in HINTS) for hint in hints)
    assert hints[1].startswith("kubectl")
    assert hints[-1] == "Ctrl-C ends all of it"


@pytest.mark.parametrize(("width", "height"), [(80, 40), (100, 50), (200, 50)])
def test_problems_of_files_and_policies_are_whole_and_come_first(width: int, height: int) -> None:
    lines = rendered(live(width, height))
    first = next(index for index, line in enumerate(lines) if line.startswith("policies"))
    text = " ".join(" ".join(lines[first + 1 : first + 5]).split())
    assert text.startswith(f"bad.yaml: in force: nothing; {PROBLEM.reason} strict: ")
    assert "did you mean deschedule" in text


SIZES = [(60, 15), (80, 24), (100, 30), (120, 39), (120, 40), (200, 60)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_several_problems_are_visible_above_the_rows_of_policies(width: int, height: int) -> None:
    found = tuple(msgspec.structs.replace(PROBLEM, origin=f"bad-{number}.yaml") for number in range(2))
    lines = rendered(live(width, height, file_problems=FileProblems(listed=found)))
    assert len(lines) <= height
    first = next(index for index, line in enumerate(lines) if line.startswith("policies"))
    rest = next(index for index, line in enumerate(lines[first + 1 :], first + 1) if line.startswith(("…", "calm")))
    above = [line for line in lines[first + 1 : rest] if not line.startswith("  ")]
    shown = [line.partition(" ")[0] for line in above]
    # "strict" is the policy with a problem. 15 lines have room for one problem and the number of the others.
    assert shown == ["bad-0.yaml:", "bad-1.yaml:", "strict:"][: 1 if height < 20 else 3]
    assert lines[rest].startswith("… and 2 more problems: tas get policies" if height < 20 else "calm-1")
    assert all("in force: nothing" in line or "spec.strategies.deschedul" in line for line in above)


def test_of_more_problems_than_lines_the_number_of_the_others_is_shown() -> None:
    found = tuple(msgspec.structs.replace(PROBLEM, origin=f"bad-{number}.yaml") for number in range(100))
    lines = rendered(live(100, 30, file_problems=FileProblems(listed=found, others=900)))
    first = next(index for index, line in enumerate(lines) if line.startswith("policies"))
    shown = [line for line in lines[first + 1 :] if line.startswith("bad-")]
    assert len(shown) >= 4
    assert f"… and {1001 - len(shown)} more problems: tas get policies" in [line.rstrip() for line in lines]
    assert lines[first + len(shown) + 3].startswith("… and 6 more")


def test_a_strategy_is_one_line_at_a_fixed_place() -> None:
    lines = [" ".join(line.split()) for line in rendered(live(160, 60))]
    rows = [line for line in lines if "dontschedule" in line and "health_metric Equals" in line]
    assert [row.partition(" ")[0] for row in rows] == [*(f"calm-{number}" for number in range(1, 7)), "strict"]
    assert rows[-1] == "strict dontschedule node-1 node-2 node-3 node-4 health_metric Equals 1"
    low = rendered(live(80, 24))
    below = next(index for index, line in enumerate(low) if line.startswith("answers"))
    assert low[below - 1].startswith("… and ")


def test_a_problem_stays_visible_below_the_newest_event() -> None:
    lines = rendered(live(80, 24, BROKEN, *(BOUND.replace("{}", f"p{n}") for n in range(6))))
    newest, problem = lines[lines.index(next(line for line in lines if line.startswith("events"))) + 1 :][:2]
    assert "pod=p5" in newest
    assert "warning policy_file_invalid file=demo.yaml in_force=nothing reason=no" in problem


def test_the_file_and_the_reason_come_first_in_an_event() -> None:
    assert event_line(BROKEN).plain.partition(" ")[2] == (
        "warning policy_file_invalid file=demo.yaml in_force=nothing reason=no YAML: it = broken field=content "
        "value=broken"
    )
    assert event_line("no event at all").plain == "no event at all"


def test_an_event_has_no_forms_of_python_and_no_empty_fields() -> None:
    line = logged(
        "10:00:00", "info", "node_patched", set={"a": "b"}, removed=["x", "y"], orphans=[], recovered=None, dry=True
    )
    assert event_line(line).plain.partition(" ")[2] == "info node_patched set=a:b removed=x,y dry=true"


def test_of_a_traceback_an_event_has_the_error_and_a_pipe_all_lines() -> None:
    line = logged("10:00:00", "error", "worker_crashed", exception="Traceback:\n  at x\nValueError: y")
    assert event_line(line).plain.partition(" ")[2] == "error worker_crashed error=ValueError: y"
    piped = live(200, 30)
    written = piped._console.file = io.StringIO()
    piped._print_event(line)
    assert written.getvalue().splitlines()[1:] == ["Traceback:", "  at x", "ValueError: y"]


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


def test_the_rows_of_the_cluster_have_labels_pods_and_waiting_pods() -> None:
    nodes = {"node-1": {"p": "violating", "zone": "a"}, "node-2": {}}
    assert cluster_rows(nodes, [("a", "p", "node-1"), ("b", "p", None)]) == {
        "node-1": "labels: p=violating; pods: a (p)",
        "node-2": "labels: –; pods: –",
        "waiting": "b (p)",
    }


def test_pieces_are_not_cut() -> None:
    pieces = [Text("one 1"), Text("two 2"), Text("three 3")]
    assert fit(pieces, 22, "  ").plain == "one 1  two 2  three 3"
    assert fit(pieces, 20, "  ").plain == "one 1  +2 more"
    assert fit(pieces, 20, "  ", more=5).plain == "one 1  +7 more"
    assert fit(pieces, 31, "  ", more=5).plain == "one 1  two 2  three 3  +5 more"
    assert fit(pieces, 3, "  ").plain == "one 1  +2 more"
    assert fit([], 5, " ").plain == "–"


def test_the_pieces_that_fit_are_found_in_a_few_steps_however_many_there_are() -> None:
    """A node with 20,000 metrics, or a policy that 15,000 nodes violate, stopped the view: each number was tried."""
    width, looked = 100, 0

    class Counted(Text):
        @property
        def cell_len(self) -> int:
            nonlocal looked
            looked += 1
            return super().cell_len

    found = fit([Counted(f"node-{number}") for number in range(20_000)], width, " ")
    assert found.plain.startswith("node-0 node-1 ")
    assert found.plain.endswith(" more")
    assert found.cell_len <= width
    assert looked < width


def test_each_section_gets_a_share_of_the_rows() -> None:
    assert shares(7, [1, 5, 9], {}) == [1, 3, 3]
    assert shares(100, [1, 5, 9], {}) == [1, 5, 9]
    assert shares(-1, [1], {0: 1}) == [0]
    assert shares(9, [1, 5, 9], {1: 5}) == [1, 5, 3]
    assert shares(4, [1, 5, 9], {1: 5}) == [0, 4, 0]


def test_a_policy_whose_file_cannot_be_read_any_more_is_marked() -> None:
    problem = FileProblem(
        origin="calm-1.yaml", subject="file", field="content", value="", reason="no YAML", in_force="last good version"
    )
    lines = rendered(live(160, 50, file_problems=FileProblems(listed=(problem,))))
    marked = [line.split("  ")[0] for line in lines if "(last good version)" in line]
    assert marked == ["calm-1 (last good version)"]


def test_an_empty_section_of_events_says_what_is_missing() -> None:
    shown = live(100, 30)
    assert "none yet" in "".join(rendered(shown))
    shown._no_events = "no warning"
    assert "no warning" in "".join(rendered(shown))


def test_frozen_labels_come_before_all_problems() -> None:
    lines = rendered(live(120, 24, frozen=["demo: the breaker tripped"]))
    (shown,) = (number for number, line in enumerate(lines) if "demo: the breaker tripped" in line)
    assert shown < next(number for number, line in enumerate(lines) if "bad.yaml" in line)


def test_of_a_long_text_no_more_is_shown_than_the_window_can_have() -> None:
    """Who may write on the bus can give a row any number of characters without a width, and any number of rows."""
    shown = live(100, 30)
    shown._cluster = lambda: {f"node-{number}": "a" + "\u0301" * 100_000 for number in range(1000)}
    lines = rendered(shown)
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100 * (MOST_OF_COLUMN + 1)
    assert any(line.startswith("… and 9") for line in lines), "how many rows are left out"


@pytest.mark.parametrize(
    ("environment", "draws"),
    [({}, True), ({"TERM": "dumb"}, False), ({"FORCE_COLOR": "1"}, True), ({"TTY_COMPATIBLE": "0"}, False)],
)
def test_only_a_terminal_with_a_screen_is_redrawn(environment: dict[str, str], *, draws: bool) -> None:
    """Else nothing would be shown; and in a pipe, where FORCE_COLOR is set, `tas top` ended: the terminal is closed."""
    leader, follower = pty.openpty()
    try:
        with open(follower, "w", closefd=False) as terminal:
            assert can_draw(Console(file=terminal, _environ={"TERM": "xterm"} | environment)) is draws
        assert not can_draw(Console(file=io.StringIO(), _environ={"TERM": "xterm"} | environment))
    finally:
        os.close(leader)
        os.close(follower)


async def test_without_a_terminal_what_comes_again_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = live(100, 30)
    monkeypatch.setattr("cli.top.live.REDRAW_INTERVAL_SECONDS", 0)
    rows = iter([{"waiting": "a"}, {"waiting": "a"}, {}, {"waiting": "a"}])
    ended = asyncio.Event()

    def cluster() -> dict[str, str]:
        if (found := next(rows, None)) is None:
            ended.set()
        return found or {}

    shown._cluster = cluster
    task = asyncio.create_task(shown._print_changes())
    await asyncio.wait_for(ended.wait(), 60)
    task.cancel()
    printed = cast("io.StringIO", shown._console.file).getvalue()
    assert printed.count("cluster: waiting: a") == 2


async def test_answers_of_another_program_do_not_end_the_view() -> None:
    async def another(_: web.Request) -> web.Response:
        return web.json_response([{"something": "else"}])

    app = web.Application()
    app.add_routes([web.get("/answers", another)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    shown = live(100, 30)
    shown._answers_url = f"http://127.0.0.1:{runner.addresses[0][1]}/answers"
    task = asyncio.create_task(shown._read_answers())
    try:
        await eventually(lambda: "`time`" in str(shown._answers_error))  # on a busy machine there may be no answer yet
        assert shown._answers == []
    finally:
        task.cancel()
        await runner.cleanup()


def test_a_wrong_clock_is_the_first_hint() -> None:
    assert list(clock_hints(2.0)) == list(clock_hints(-2.0)) == []
    (ahead,), (behind,) = clock_hints(7200.0), clock_hints(-3.0)
    assert ahead == "this clock is 7200 s ahead of the bus      # so ages and states are wrong"
    assert behind.startswith("this clock is 3 s behind the bus ")
