"""The flag `--json` and its output."""

from typing import Any

import click
import msgspec

from cli.output import json_lines_of
from tas.errors import shortened

JSON_OPTION = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")


MAX_DEPTH = 100
"""The most levels of a value from elsewhere that are shown, if it has too many for JSON."""

MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 64) - 1
"""The least and the greatest integer that the encoder of JSON writes."""


def print_json(value: Any) -> None:
    """Prints `value` as indented JSON."""
    click.echo(json_lines_of(indented(value).decode()))


def indented(value: Any) -> bytes:
    """`value` as JSON for people, without a newline at its end.

    A stored record may have integers of more than 64 bits, or too many levels.
    """
    return msgspec.json.format(msgspec.json.encode(_within_limits(value, MAX_DEPTH)), indent=2)


def _within_limits(value: Any, depth: int) -> Any:
    """`value` with texts in place of what JSON cannot have."""
    if isinstance(value, dict):
        return {key: _within_limits(each, depth - 1) for key, each in value.items()} if depth else shortened(value)
    if isinstance(value, (list, tuple)):
        return [_within_limits(each, depth - 1) for each in value] if depth else shortened(value)
    return shortened(value) if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER else value
