"""The environment of the original agent framework: it counts for `tas run agents` where nothing else is given."""

from collections.abc import Mapping
from typing import NamedTuple

from cli.settings import Mistake
from tas.errors import shortened
from workers.process.log_form import LogLevel

COMMANDS = ("run agents",)
"""The commands for which these variables count."""

PORT = "HTTP_PORT"
LOG_LEVEL = "LOG_LEVEL"

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
    """Settings by name, as a user would write them, and the mistakes."""

    given: Mapping[str, str]
    mistakes: list[Mistake]


def settings_of_environment(command: str, environment: Mapping[str, str]) -> Environment:
    """The settings that the variables of the framework give. A port that is none is a mistake, as it was there."""
    given, mistakes = {}, []
    if command in COMMANDS:
        if port := environment.get(PORT):
            if port.isascii() and port.isdigit() and 0 < int(port) < 65536:
                given["listen"] = f":{int(port)}"  # every address of the pod, as in the framework
            else:
                mistakes.append(Mistake(PORT, shortened(port), "must be a port from 1 to 65535"))
        if (level := LEVELS.get(environment.get(LOG_LEVEL, "").upper())) is not None:
            given["log_level"] = level.value
    return Environment(given, mistakes)
