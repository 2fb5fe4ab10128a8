"""docs/operations.md names, for each log line and flag of the original TAS, what replaces it here."""

import re

import click
import pytest

from cli import cli
from cli.loading import every_setting
from cli.original import FLAGS, SAME, OriginalFlag
from cli.settings import flag
from tas.extender.verbs import Answer
from tas.verdict.status import CONDITIONS
from tests.contract.test_operations_page import PAGE, ROOT, log_events

SECTION = PAGE.partition("\n## Coming from the original\n")[2].partition("\n## ")[0]
TEXTS = "".join(
    path.read_text() for folder in ("bus", "cli", "tas", "workers") for path in (ROOT / folder).rglob("*.py")
)

LINES = (
    "Extender Listening on HTTPS",
    "nothing after that",
    "Filter request received",
    "<node> <metric> = <value>",
    "<node> violating <policy>: <metric> <op> <target>",
    "Filtered nodes for <policy>",
    "Received prioritize request",
    "<metric> for nodes:",
    "node priorities returned:",
    "Watching Telemetry Policies",
    "Added <metric>",
    "Adding strategies: <type> <policy>",
    "Added policy, <policy>",
    "Policy: <policy> updated",
    "Policy: <policy> deleted",
    "Removed <policy>: <type> from strategy register",
    "Evaluating <policy>",
    "no metric <m> found",
    "Node <n> violating <p>,",
    "Violated rules: …",
    "1 Node violates.",
    "code 404",
)
"""Log lines in the original's documentation: https://github.com/intel/platform-aware-scheduling, commit c4c90e3."""


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this heading."""
    table = SECTION.partition(heading)[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


LINE_ROWS = rows("| The original's line or text | Here |\n")
FLAG_ROWS = rows("| The original's flag | Is here | Differs |\n")
NAMES = sorted({name for _, here in LINE_ROWS for name in re.findall(r"`([^`]+)`", here)})


def is_command(words: list[str]) -> bool:
    command: click.Command | None = cli
    for word in words:
        command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
    return command is not None


def exists(name: str) -> bool:
    """Whether `name` exists: an event, metric, command, path, flag, field or text."""
    if name.startswith("tas "):
        return is_command(name.split()[1:])
    if name.startswith("GET "):
        return f'"{name.removeprefix("GET ")}"' in TEXTS
    if name.startswith("--"):
        return name.split(maxsplit=1)[0] in {flag(setting) for setting, _ in every_setting()}
    if name.startswith("tas_"):
        return f'"{name.removesuffix("_total")}"' in TEXTS or f'"{name}"' in TEXTS
    is_event = name in log_events() or f'log.debug("{name}"' in TEXTS
    return is_event or name in (*CONDITIONS, *Answer.__struct_fields__)


def test_the_page_has_the_table() -> None:
    assert len(LINE_ROWS) >= 15
    assert len(NAMES) >= 15


@pytest.mark.parametrize("line", LINES)
def test_every_line_of_the_original_has_a_row(line: str) -> None:
    assert any(line in theirs for theirs, _ in LINE_ROWS)


@pytest.mark.parametrize("name", [name for name in NAMES if not re.match(r"1 Node|code ", name)])
def test_every_name_in_the_table_exists(name: str) -> None:
    assert exists(name)


def test_the_event_text_in_the_table_exists() -> None:
    assert any(name.startswith("1 Node violates ") for name in NAMES)
    assert re.search(r'"Node violates ', TEXTS)


def test_every_flag_of_the_original_has_a_row() -> None:
    cells = " ".join(theirs for theirs, *_ in FLAG_ROWS)
    assert set(re.findall(r"-+(\w+)", cells)) == {original.name for original in FLAGS} | set(SAME)


@pytest.mark.parametrize("original", FLAGS, ids=lambda original: original.name)
def test_each_flag_is_mapped_as_on_the_page(original: OriginalFlag) -> None:
    (ours,) = [here for theirs, here, _ in FLAG_ROWS if re.match(rf"`--?{original.name} ", theirs)]
    assert f"`{flag(original.setting)} " in ours if original.setting else ours == "accepted, without an effect"
