"""The file `pigeon.cfg` of the original of `pigeon-holing`."""

from collections.abc import Sequence
from typing import Any

from tas.agents.pigeon import RESOURCES, Objective
from tas.errors import shortened


def read_pigeon_cfg(text: str) -> tuple[dict[str, Any], Sequence[str]]:
    """The options in a file, and what is wrong with its lines; what is wrong has no effect.

    Lines are `key = value`, and `#` begins a comment.
    """
    options: dict[str, Any] = {}
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        key, equals, value = (part.strip() for part in line.split("#", 1)[0].partition("="))
        if not key and not equals:
            continue
        try:
            if not equals:
                raise ValueError(f"{shortened(key)} must be KEY = VALUE")  # noqa: TRY301 - a mistake as any other
            name, read = _option(key, value)
            options[name] = read
        except ValueError as error:
            problems.append(f"pigeon.cfg, line {number}: {error}")
    return options, problems


def _option(key: str, value: str) -> tuple[str, Any]:
    """The option that a line gives, and its value. Raises ValueError."""
    if key == "policyObjective":
        if value not in set(Objective):
            raise ValueError(f"{shortened(value)} must be one of {', '.join(Objective)}")
        return "objective", value
    if key == "policyResourceIndex":
        if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) < len(RESOURCES)):
            raise ValueError(f"{shortened(value)} must be a number from 0 to {len(RESOURCES) - 1}")
        return "prime", int(value)
    raise ValueError(f"{shortened(key)} is not known")
