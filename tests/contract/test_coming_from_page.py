"""docs/reference/coming-from.md names what replaces what the originals have: each name of ours on it exists."""

import json
import re

import click
import pytest

from cli import cli
from cli.configure.flags import translated
from cli.loading import every_setting
from cli.original import FLAGS, SAME, OriginalFlag
from tas.extender.verbs import Answer
from tas.verdict.status import CONDITIONS
from tests.contract.test_operations_page import ROOT, log_events
from workers.settings import flag

PAGE = (ROOT / "docs" / "reference" / "coming-from.md").read_text()
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
    table = PAGE.partition(heading)[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def cells_of(line: str) -> list[str]:
    """The cells of a line of a table, in which a bar within a cell is escaped."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


TABLES = [
    [cells_of(line) for line in table.partition("\n\n")[0].splitlines()]
    for table in PAGE.split("| Theirs | Ours | Differs |\n|---|---|---|\n")[1:]
]
OURS = sorted({name for table in TABLES for _, ours, _ in table for name in re.findall(r"`([^`]+)`", ours)})
DEPLOYED = "".join(path.read_text() for path in sorted((ROOT / "deploy").rglob("*.yaml")))

LINE_ROWS = rows("| The original's line or text | Here |\n")
FLAG_ROWS = rows("| The original's flag | Is here | Differs |\n")
NAMES = sorted({name for _, here in LINE_ROWS for name in re.findall(r"`([^`]+)`", here)})


def is_command(words: list[str]) -> bool:
    command: click.Command | None = cli
    for word in words:
        command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
    return command is not None


def options_of(words: list[str]) -> set[str]:
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return {option for param in command.get_params(click.Context(command)) for option in param.opts}


def ours_exists(name: str) -> bool:
    """Whether a name of ours is a command with its flags, a file of this tree, a flag, a route or in the code."""
    if name.startswith("tas "):
        words = name.split()[1:]
        flags = [word for word in words if word.startswith("-")]
        before = words[: words.index(flags[0])] if flags else words
        return is_command(before) and set(translated(flags)) <= options_of(before)
    if name.startswith(("--", "GET ")):
        return exists(name)
    if "/" in name and "." in name.rpartition("/")[2]:
        return (ROOT / name).is_file()
    return f'"{name}' in TEXTS or f'{name}"' in TEXTS or f" {name}\n" in DEPLOYED or f'"{name}"' in DEPLOYED


def test_each_original_has_a_table() -> None:
    assert [len(table) >= 5 for table in TABLES] == [True] * 5
    for original in ("TAS", "GAS", "Configurator", "kube-safe-scheduler", "kubeRL"):
        assert re.search(rf"^## .*{original}", PAGE, re.MULTILINE), original


def test_every_name_of_ours_exists() -> None:
    assert len(OURS) > 80
    assert [name for name in OURS if not ours_exists(name)] == []


def test_a_name_that_does_not_exist_is_noticed() -> None:
    wrong = ("tas run nothing", "tas configure --nothing", "--nothing", "GET /nothing", "deploy/x.yaml", "gas-nothing")
    assert [name for name in wrong if ours_exists(name)] == []


def test_the_commands_for_their_deployments_are_accepted() -> None:
    """The page gives the flags of the originals to our command: none is unknown."""
    patches = [json.loads(patch) for patch in re.findall(r"--patch '(\[.*?\])'\n", PAGE, re.DOTALL)]
    commands = [change["value"] for patch in patches for change in patch if change["path"].endswith("/command")]
    assert [words[:3] for words in commands] == [["tas", "run", "all"], ["tas", "run", "gpu"]]
    for words in commands:
        flags = {word.partition("=")[0] for word in words[3:] if word.startswith("-")}
        assert flags <= options_of(words[1:3])


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
