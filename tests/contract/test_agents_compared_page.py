"""The page about agents shows what `tas simulate` prints."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from cli import cli
from lab.simulate.field import IDLE
from lab.simulate.model.synthetic import Shape
from tas.agents.builtin import BUILTIN

PAGE = Path(__file__).parents[2] / "docs" / "background" / "agents-compared.md"
TABLE = re.compile(r"```console\n\$ (tas simulate [^\n]*)\n(.+?)```", re.DOTALL)


def tables() -> list[tuple[str, str]]:
    """Each command of the page with its output."""
    return [(found[1], found[2]) for found in TABLE.finditer(PAGE.read_text())]


def test_the_small_table_is_what_the_command_prints() -> None:
    (command, table), *_ = tables()
    done = CliRunner().invoke(cli, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == table.splitlines()


def test_the_large_table_and_its_picture_have_every_load_and_algorithm() -> None:
    _, (command, table), *_ = tables()
    assert "--runs" in command
    words = set(table.split())
    named = {"default", "policy", "policy-moves", *(set(BUILTIN) - set(IDLE))}
    assert {*(shape.value for shape in Shape), *named} <= words
    picture = PAGE.with_suffix(".svg").read_text()
    assert [name for name in (*named, *Shape) if f">{name}</text>" not in picture] == []
