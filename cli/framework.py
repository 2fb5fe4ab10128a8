"""The environment of the original agent framework: it counts where nothing else is given."""

from collections.abc import Mapping
from typing import NamedTuple

from tas.errors import shortened
from workers.process.log_form import LogLevel
from workers.settings import Mistake

PORT = "HTTP_PORT"
"""Counts for `tas run agents`."""

LOG_LEVEL = "LOG_LEVEL"
LOG_LEVEL_OF = ("run agents", "run all", "run extender", "run gpu")
"""The commands for which `LOG_LEVEL` counts: those that answer a scheduler."""

LEVELS = {
    "TRACE": LogLevel.DEBUG,
    "DEBUG": LogLevel.DEBUG,
    "INFO": LogLevel.INFO,
    "WARNING": LogLevel.WARNING,
    "ERROR": LogLevel.ERROR,
    "ALERT": LogLevel.ERROR,
}
"""The levels of `LOG_LEVEL`, in any case."""


class Environment(NamedTuple):
    """Settings by name, as a user would write them, the mistakes, and what is ignored with the reason."""

    given: Mapping[str, str]
    mistakes: list[Mistake]
    ignored: list[Mistake]


def settings_of_environment(command: str, environment: Mapping[str, str]) -> Environment:
    """The settings that the variables of the framework give.

    As there, a port that is none is a mistake, and a level that is none does not count.
    """
    given: dict[str, str] = {}
    mistakes: list[Mistake] = []
    ignored: list[Mistake] = []
    if command == "run agents" and (port := environment.get(PORT)):
        if port.isascii() and port.isdigit() and 0 < int(port) < 65536:
            given["listen"] = f":{int(port)}"  # every address of the pod, as in the framework
        else:
            mistakes.append(Mistake(PORT, shortened(port), "must be a port from 1 to 65535"))
    if command in LOG_LEVEL_OF and (text := environment.get(LOG_LEVEL)):
        if (level := LEVELS.get(text.upper())) is not None:
            given["log_level"] = level.value
        else:
            ignored.append(Mistake(LOG_LEVEL, shortened(text), f"must be {', '.join(LEVELS)}: the default counts"))
    return Environment(given, mistakes, ignored)
