"""Builds the agents of the settings."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from prometheus_client import CollectorRegistry

from tas.agents.builtin import BUILTIN
from tas.agents.hooks import AgentHooks
from tas.agents.pigeon import RESOURCES, Objective, PigeonOptions
from tas.agents.pigeon_cfg import read_pigeon_cfg
from tas.errors import shortened
from tas.extension import Hooks, NodeView
from workers.agents.agents_file import AgentsFile, LoadedAgent, installed_agents
from workers.settings import Mistake, Settings

PIGEON = "pigeon-holing"

PIGEON_CFG = "pigeon.cfg"
"""The file with options of `pigeon-holing`, in the working directory."""


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


def _objective(text: str) -> str:
    if text not in set(Objective):
        raise ValueError(f"must be {', '.join(Objective)}")
    return text


def _resources(text: str) -> tuple[str, ...]:
    if text not in ("1", "2", "3", "4", "5"):
        raise ValueError(f"must be a whole number from 1 to {len(RESOURCES)}")
    return RESOURCES[: int(text)]


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) > 0):
        raise ValueError("must be a whole number, at least 1")
    return int(text)


VARIABLES = (
    Variable("SAFEUTILIZATION", ("safe-overload",), "utilization", _part),
    Variable("SAFEPERCENTILE", ("safe-overload",), "risk", _part),
    Variable("SAFEFORECASTWEIGHT", ("safe-overload", "safe-balance"), "forecast_weight", _part),
    Variable("CONGESTION_FACTOR_MAX", ("congestion",), "limit", _positive),
    Variable("POLICY_OBJECTIVE", (PIGEON,), "objective", _objective),
    Variable("NUM_RESOURCES", (PIGEON,), "resources", _resources),
)


class Fallbacks(NamedTuple):
    """Options by agent, and what is ignored of variables and file, each with the reason."""

    options: Mapping[str, Mapping[str, Any]]
    ignored: list[Mistake]


def fallbacks_of_environment(environment: Mapping[str, str], pigeon_cfg: str = "") -> Fallbacks:
    """The options that the variables of the framework give to agents. As there, an invalid value does not count.

    A variable counts before the text of `pigeon.cfg`.
    """
    given, problems = read_pigeon_cfg(pigeon_cfg)
    options: dict[str, dict[str, Any]] = {PIGEON: given} if given else {}
    ignored = [Mistake(PIGEON_CFG, "", f"{problem}: the default counts") for problem in problems]
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
    pigeon = options.get(PIGEON, {})
    if pigeon.get("prime", 0) >= (count := len(pigeon.get("resources", PigeonOptions().resources))):
        reason = f"must be less than {count}, the number of resources: the default counts"
        ignored.append(Mistake(f"{PIGEON_CFG}, policyResourceIndex", str(pigeon.pop("prime")), reason))
    return Fallbacks(options, ignored)


log = structlog.get_logger("agents")

MAX_CFG = 1 << 16
"""How many characters of `pigeon.cfg` are read: it has two lines."""


def agents_file(settings: Settings, registry: CollectorRegistry) -> AgentsFile:
    """The agents of the settings, with the options that the environment of the original framework gives."""
    fallbacks = fallbacks_of_environment(os.environ, _pigeon_cfg(Path(PIGEON_CFG)))
    for mistake in fallbacks.ignored:
        log.warning("variable_ignored", variable=mistake.setting, value=mistake.value, reason=mistake.reason)
    return AgentsFile(
        settings.agents,
        builtin=BUILTIN,
        installed=installed_agents(),
        fallbacks=fallbacks.options,
        registry=registry,
    )


def _pigeon_cfg(path: Path) -> str:
    """The text of `pigeon.cfg`; empty if the file does not exist or cannot be read, as in the framework."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_CFG)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            log.warning("variable_ignored", variable=str(path), value="", reason=error.strerror)
        return ""


def hooks_of(loaded: LoadedAgent, nodes: NodeView) -> Hooks:
    """The hooks of an agent with its settings."""
    config = loaded.config
    return AgentHooks(config.name, loaded.agent, nodes, missing=config.missing, compat=config.compat).hooks()
