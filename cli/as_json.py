"""The flag `--json` and its output."""

from typing import Any

import click
import orjson

from cli.output import json_lines_of

JSON_OPTION = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")


def print_json(value: Any) -> None:
    """Prints `value` as indented JSON."""
    click.echo(json_lines_of(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()))
