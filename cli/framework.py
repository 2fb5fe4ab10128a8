"""The environment of the original agent framework: it counts for `tas run agents` where nothing else is given."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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


class Variable(NamedTuple):
    """A variable that gives an option of agents. `read` makes its text the value, or raises ValueError."""

    name: str
    agents: tuple[str, ...]
    option: str
    read: Callable[[str], Any]


def _part(text: str) -> float:
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= 100):
        raise ValueError("must be a whole number from 0 to 100")
    return int(text) / 100


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) > 0):
        raise ValueError("must be a whole number, at least 1")
    return int(text)


VARIABLES = (
    Variable("SAFEUTILIZATION", ("safe-overload",), "utilization", _part),
    Variable("SAFEPERCENTILE", ("safe-overload",), "risk", _part),
    Variable("SAFEFORECASTWEIGHT", ("safe-overload", "safe-balance"), "forecast_weight", _part),
    Variable("CONGESTION_FACTOR_MAX", ("congestion",), "limit", _positive),
)


class Fallbacks(NamedTuple):
    """Options by agent, and the variables that are ignored, each with the reason."""

    options: Mapping[str, Mapping[str, Any]]
    ignored: list[Mistake]


def fallbacks_of_environment(environment: Mapping[str, str]) -> Fallbacks:
    """The options that the variables of the framework give to agents. As there, an invalid value does not count."""
    options: dict[str, dict[str, Any]] = {}
    ignored = []
    for variable in VARIABLES:
        if not (text := environment.get(variable.name)):
            continue
        try:
            value = variable.read(text)
        except ValueError as error:
            ignored.append(Mistake(variable.name, shortened(text), f"{error}: the default counts"))
            continue
        for agent in variable.agents:
            options.setdefault(agent, {})[variable.option] = value
    level = environment.get(LOG_LEVEL, "")
    if level and level.upper() not in LEVELS:
        ignored.append(Mistake(LOG_LEVEL, shortened(level), f"must be {', '.join(LEVELS)}: the default counts"))
    return Fallbacks(options, ignored)
