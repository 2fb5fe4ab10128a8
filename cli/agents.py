"""The agents of a file, for commands."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click
from prometheus_client import CollectorRegistry

from tas.agents.builtin import BUILTIN
from tas.agents.file import AgentConfig
from workers.agents.agents_file import Agents, AgentsFile, installed_agents
from workers.process.errors import StartError


def agents_of(path: Path) -> Collection[AgentConfig]:
    """The settings of the agents of a file, for a command. Raises click.ClickException."""
    return [loaded.config for loaded in loaded_agents(path).values()]


def loaded_agents(path: Path | None, options: Mapping[str, Mapping[str, Any]] | None = None) -> Agents:
    """The agents of a file, for a command; without a file those of the product. Raises click.ClickException.

    `options` count where the file does not give them, by agent.
    """
    file = AgentsFile(
        path, builtin=BUILTIN, installed=installed_agents(), fallbacks=options or {}, registry=CollectorRegistry()
    )
    try:
        return asyncio.run(file.load())
    except StartError as error:
        raise click.ClickException(str(error)) from error
