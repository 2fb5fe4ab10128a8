"""The page of all commands."""

import re

import click
import pytest

from cli import COMMANDS, cli
from cli.commands_page import commands_page


@pytest.fixture(scope="module")
def page() -> str:
    return commands_page(cli)


def section(page: str, command: str) -> str:
    """The text of one command."""
    found = re.search(rf"^#+ {command}\n(.*?)(?=^#|\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, command
    return found[1]


def test_every_command_has_a_section_in_the_order_of_the_help(page: str) -> None:
    assert re.findall(r"^## tas (.*)$", page, re.MULTILINE) == list(COMMANDS)
    assert "### tas run labels\n" in page
    assert "### tas policy lint\n" in page


def test_a_section_has_usage_help_options_and_settings(page: str) -> None:
    text = section(page, "tas publish")
    assert "```\ntas publish [OPTIONS] NODE METRIC=VALUE...\n```" in text
    assert "Publish samples of NODE.\n" in text
    assert "| `--window DURATION` | The time span that each value covers. |\n" in text
    assert "Settings: `--bus`, `--bus-credentials`, " in text
    assert "--help" not in text
    assert "Flags of the original: `-port`, " in section(page, "tas run extender")


def test_a_help_text_stays_as_it_is() -> None:
    @click.group()
    def root() -> None:
        pass

    @root.command()
    @click.option("--own", metavar="A|B", help="Any of a|b, such as `x_y*`.\n\nNot <none>.")
    def one(own: str) -> None:
        """Set a_b to *all*, as `c_d` is."""

    text = section(commands_page(root), "tas one")
    assert r"Set a\_b to \*all\*, as `c_d` is." in text
    assert r"| `--own A\|B` | Any of a\|b, such as `x_y*`. Not \<none>. |" in text
