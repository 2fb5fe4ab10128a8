"""What commands print cannot control the terminal."""

import ast
import io
import json
import os
import subprocess
import sys
from contextlib import suppress

import click
import pytest
from rich.table import Table
from rich.text import Text

from cli.as_json import indented, print_json
from cli.console import new_console
from cli.output import echo
from cli.queries.allocation_tables import print_allocation
from cli.queries.explain_tables import print_answers, print_pod
from cli.queries.tables import new_table, print_table
from cli.status.screen import print_overview
from tas.diagnosis.finding import Severity, finding
from tas.diagnosis.overview import Overview, ProcessRow, Verdict
from tas.explain.allocation import AllocationExplanation, NewPod
from tas.explain.pods import PodExplanation
from tas.extender.decision import Outcome, RejectingValue
from tas.extender.verbs import Answer
from tests.fuzz.decoders import ROOT

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb\x7f\rc\U000e0001"
"""Escape sequences of both lengths, a change of direction, and an invisible character."""

SHOWN = "a\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202eb\\x7f\\rc\\U000e0001"


def is_safe(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("err", [False, True])
def test_a_printed_text_is_escaped_and_keeps_its_lines(capsys: pytest.CaptureFixture[str], *, err: bool) -> None:
    echo(f"one {HOSTILE}\ntwo", err=err)
    out = capsys.readouterr()
    assert (out.err if err else out.out) == f"one {SHOWN}\ntwo\n"


@pytest.mark.parametrize(
    ("value", "is_number"),
    [(1 << 63, True), ((1 << 64) - 1, True), (1 << 64, False), (-(1 << 63), True), (-(1 << 63) - 1, False)],
)
def test_an_integer_of_json_is_a_number_up_to_64_bits(
    capsys: pytest.CaptureFixture[str], value: int, *, is_number: bool
) -> None:
    print_json({"value": [value]})
    out = capsys.readouterr().out
    (printed,) = json.loads(out)["value"]
    assert printed == (value if is_number else str(value))
    assert indented({"value": [value]}).decode() == out.rstrip(), "in an archive of tas support, too"


def test_printed_json_is_escaped_and_is_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({HOSTILE: ["\u00a0", HOSTILE, "é"]})
    text = capsys.readouterr().out
    assert is_safe(text)
    assert json.loads(text) == {HOSTILE: ["\u00a0", HOSTILE, "é"]}
    assert '"é"' in text


@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_is_escaped(*, terminal: bool) -> None:
    stream = io.StringIO()
    console = new_console(file=stream, width=200, force_terminal=terminal, color_system=None)
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(f"x\n{HOSTILE}", style="bold red"))
    console.print(table)
    console.print(HOSTILE)
    text = stream.getvalue().replace("\x1b[1m", "").replace("\x1b[1;31m", "").replace("\x1b[0m", "")
    assert is_safe(text)
    assert text.count("owned") == 4


def test_a_table_in_a_pipe_has_nothing_behind_its_texts_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    table = new_table("NAME", "PROBLEMS")
    table.add_row("one", "-")
    table.add_row("two", f"{'long ' * 100}end\nand \x1b[2J")
    print_table(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["NAME  PROBLEMS", "one   -", f"two   {'long ' * 100}end\\nand \\x1b[2J"]


def test_an_explained_pod_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    explanation = PodExplanation(
        namespace="default", pod="p", policy=HOSTILE, outcome=Outcome.DECIDED, error=HOSTILE, candidates=()
    )
    answers = [
        Answer(time=1.0, verb="filter", status=400, error=HOSTILE),
        Answer(time=1.0, verb=HOSTILE, reasons={HOSTILE: 1}),
        Answer(time=1.0, verb="prioritize", best=((HOSTILE, 1),)),
        Answer(time=1.0, verb="x", values=(RejectingValue(node=HOSTILE, rule=HOSTILE, value=HOSTILE, source=HOSTILE),)),
    ]
    print_pod(explanation, 2.0)
    print_answers(answers, 2.0)
    text = capsys.readouterr().out
    assert is_safe(text)
    assert text.count("owned") == 10


def test_no_other_module_writes_to_the_terminal() -> None:
    writers = set()
    for path in (ROOT / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "click.echo",
                "click.secho",
                "print",
                "Console",
                "sys.stdout.write",
                "sys.stderr.write",
            ):
                writers.add(path.relative_to(ROOT / "cli").as_posix())
    assert writers == {"output.py", "as_json.py"}


def test_a_closed_pipe_is_left_to_the_command() -> None:
    """rich would raise SystemExit, also in the middle of a task."""
    reader, writer = os.pipe()
    os.close(reader)
    # It fails again when the file is closed.
    with suppress(BrokenPipeError), open(writer, "w") as file, pytest.raises(BrokenPipeError):  # noqa: PTH123
        new_console(file=file).print("x")


def test_texts_of_others_forge_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_pod(
        PodExplanation(namespace="n", pod="p", policy="x\nFORGED", outcome=Outcome.DECIDED, error="", candidates=()),
        2.0,
    )
    recent = (NewPod(age_seconds=1.0, requests={"x\nFORGED": 1}),)
    allocation = AllocationExplanation(pods=1, age_seconds=1.0, resources={}, recent=recent, unreadable=0)
    print_allocation("node-1", allocation)
    out = capsys.readouterr().out
    assert out.count("x\\nFORGED") == 2
    assert "\nFORGED" not in out


@pytest.mark.parametrize("closed", [False, True])
def test_a_terminal_that_lacks_a_character_or_is_closed_ends_no_command(*, closed: bool) -> None:
    program = "import cli; cli.cli.main = lambda **_: cli.echo('\\u4e16'); cli.main()"
    command = [sys.executable, "-c", program]
    if closed:
        command = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "latin-1"}, capture_output=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"" if closed else b"\\u4e16\n")


def test_json_remains_json_where_the_encoding_lacks_a_character() -> None:
    program = (
        "import cli, cli.as_json; cli.cli.main = lambda **_: cli.as_json.print_json('\\xe9\\U0001f600'); cli.main()"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "koi8-r"}, capture_output=True, check=False)
    assert (done.returncode, done.stderr, json.loads(done.stdout)) == (0, b"", "\xe9\U0001f600")


def test_a_long_name_hides_no_other_row_of_the_status_and_a_cut_is_seen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((100, 40)))
    rows = [
        ProcessRow(
            process=name,
            role="all",
            version=name,
            age=1.0,
            unready={"labels": "waits"},
            leases=(),
            behind={},
            lag={},
            answers={},
            expires={},
        )
        for name in ("x" * 10_000, "\u4e16" * 60, "honest")
    ]
    print_overview(Overview(verdict=Verdict.WELL, bus="", findings=(), processes=rows), everything=False)
    long, wide, honest = (
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("  xx", "  \u4e16", "  honest"))
    )
    assert honest.endswith("labels not ready")
    assert (len(long), long[-1]) == (100, "…")
    assert (len(wide), wide[-1]) == (51, "…")  # two columns for each but the first two and the last


def test_of_a_finding_nothing_is_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow terminal its lines have more columns, as with characters that take two."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((50, 40)))
    what = "\u4e16" * 45 + "x" * 45
    found = finding("scheduler.configured", Severity.ERROR, what, run="tas configure \u4e16")
    print_overview(Overview(verdict=Verdict.WRONG, bus="", findings=(found,)), everything=False)
    _, *lines = click.unstyle(capsys.readouterr().out).splitlines()
    shown = [line[len("error    scheduler.configured ") :] for line in lines if "scheduler" in line or line[:1] == " "]
    assert "".join(shown).startswith(f"{what}run: tas configure \u4e16")
