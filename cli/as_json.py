"""The flag `--json` and its output."""

from typing import Any

import click
import orjson

from cli.output import json_lines_of
from tas.errors import shortened

JSON_OPTION = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")


MAX_DEPTH = 100
"""The most levels of a value from elsewhere that are shown, if it has too many for JSON."""


def print_json(value: Any) -> None:
    """Prints `value` as indented JSON."""
    try:
        shown = orjson.dumps(value, option=orjson.OPT_INDENT_2)
    except TypeError:  # a stored record has an integer of more than 64 bits, or too many levels
        shown = orjson.dumps(_within_limits(value, MAX_DEPTH), option=orjson.OPT_INDENT_2)
    click.echo(json_lines_of(shown.decode()))


def _within_limits(value: Any, depth: int) -> Any:
    """`value` with texts in place of what JSON cannot have."""
    if isinstance(value, dict):
        return {key: _within_limits(each, depth - 1) for key, each in value.items()} if depth else shortened(value)
    if isinstance(value, (list, tuple)):
        return [_within_limits(each, depth - 1) for each in value] if depth else shortened(value)
    return shortened(value) if isinstance(value, int) and value.bit_length() > 63 else value
