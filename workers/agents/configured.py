"""Builds the agents of the settings."""

import os
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from tas.agents.builtin import BUILTIN
from tas.agents.hooks import AgentHooks
from tas.extension import Hooks, NodeView
from workers.agents.agents_file import AgentsFile, LoadedAgent, installed_agents
from workers.agents.framework_options import PIGEON_CFG, fallbacks_of_environment
from workers.settings import Settings

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
