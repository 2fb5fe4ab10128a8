"""What commands print cannot control the terminal."""

import ast
import io
import json

import pytest
from rich.table import Table
from rich.text import Text

from cli.as_json import print_json
from cli.console import new_console
from cli.output import echo
from cli.queries.explain_tables import print_answers, print_pod
from cli.queries.tables import new_table, print_table
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
    (printed,) = json.loads(capsys.readouterr().out)["value"]
    assert printed == (value if is_number else str(value))


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
