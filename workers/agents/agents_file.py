"""The agents that run: built-in ones and those of other packages, as the file of `--agents` says.

The file is checked as a whole, and read again when it changes. While it is invalid, the agents stay as they are.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

import structlog
from prometheus_client import CollectorRegistry, Gauge

from tas.agents.agent import Agent
from tas.agents.file import AgentConfig, Kinds, default_agents, kinds_of, parse_agents
from tas.errors import InvalidInputError, shortened
from tas.values.document import DocumentError
from workers.process.errors import StartError
from workers.process.followed_file import FollowedFile

log = structlog.get_logger("agents")

GROUP = "tas.agents"
"""The group of entry points of agents in other packages; see docs/how-to/write-an-agent.md."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedAgent:
    """An agent that runs, with its settings.

    Attributes:
        target: The class.
        package: The package of the entry point with its version; empty for an agent of the product.
    """

    config: AgentConfig
    agent: Agent
    target: str
    package: str


Agents = Mapping[str, LoadedAgent]


class AgentsSource(Protocol):
    """Where the agents come from."""

    async def load(self) -> Agents:
        """All agents, at the start. Raises StartError."""
        ...

    async def changed(self) -> Agents:
        """Waits for other settings, and returns all agents; one with the same settings is the same object."""
        ...


def installed_agents() -> Iterable[EntryPoint]:
    """The entry points of this environment."""
    return entry_points(group=GROUP)


class AgentsFile:
    """The agents of a file; without a file, the built-in agents with their defaults.

    `fallbacks` has options by kind that count where the file does not give them.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        builtin: Kinds,
        installed: Iterable[EntryPoint] = (),
        fallbacks: Mapping[str, Mapping[str, Any]] | None = None,
        registry: CollectorRegistry,
    ) -> None:
        self._builtin = builtin
        self._points: dict[str, list[EntryPoint]] = {}
        for point in sorted(installed, key=lambda point: (point.name, point.value)):
            known = self._points.setdefault(point.name, [])
            if point not in known:  # a package may be found twice, by two paths
                known.append(point)
        for name in builtin:  # the names of the product stay its own
            self._points.pop(name, None)
        self._fallbacks = fallbacks or {}
        self._loaded: dict[str, LoadedAgent] = {}
        readable = Gauge("tas_agents_readable", "1 while the file of --agents can be read, else 0.", registry=registry)
        readable.set(1.0)
        self._path = path
        self._file = None if path is None else FollowedFile(
            path,
            self._of_document,
            kind="agents",
            readable=readable.set,
            refused=lambda problem: log.error("agents_unreadable", error=problem),
            recovered=self._log,
        )  # fmt: skip

    async def load(self) -> Agents:
        """All agents, at the start. Raises StartError with every mistake of the file."""
        if self._file is not None:
            return await self._file.load()
        return self._built(default_agents(self._builtin, self._builtin, self._fallbacks), self._builtin)

    async def changed(self) -> Agents:
        """Waits for other settings, and returns all agents; one with the same settings is the same object."""
        if self._file is None:
            await asyncio.get_running_loop().create_future()
            raise AssertionError
        agents = await self._file.changed()
        self._log()
        return agents

    def _log(self) -> None:
        log.info("agents_read", file=str(self._path), agents=sorted(self._loaded))

    async def _of_document(self, document: object) -> Agents:
        assert self._file is not None
        origin = self._file.origin
        kinds = await asyncio.to_thread(self._kinds, origin, kinds_of(document))
        try:
            return self._built(parse_agents(origin, document, kinds, self._fallbacks, installed=self._points), kinds)
        except DocumentError as error:
            raise StartError(str(error)) from error

    def _kinds(self, origin: str, names: Iterable[str]) -> Kinds:
        """The built-in agents, and the named ones of other packages, which are imported. Raises StartError."""
        kinds = dict(self._builtin)
        for name in names:
            points = self._points.get(name, [])
            if len(points) > 1:
                text = f"several packages have an agent of this name: {' and '.join(each.value for each in points)}"
                raise StartError(str(InvalidInputError(origin, "agent", name, text)))
            if points:
                kinds[name] = _imported(origin, points[0])
        return kinds

    def _built(self, configs: Mapping[str, AgentConfig], kinds: Kinds) -> Agents:
        """The agents of the settings. Raises StartError; then nothing has changed."""
        found = {}
        for name, config in configs.items():
            known = self._loaded.get(name)
            if known is None or known.config != config or type(known.agent) is not kinds[config.kind]:
                known = self._made(config, kinds[config.kind])
            found[name] = known
        self._loaded = found
        return found

    def _made(self, config: AgentConfig, kind: type[Agent]) -> LoadedAgent:
        try:
            agent = kind() if kind.Options is None else kind(config.options)  # type: ignore[call-arg] # see `Agent`
        except Exception as error:
            text = f"{config.kind} cannot be made: {type(error).__name__}: {error}"
            raise StartError(f"agents: {InvalidInputError('agents', config.name, config.kind, text)}") from error
        point = next(iter(self._points.get(config.kind, ())), None)
        package = "" if point is None or point.dist is None else f"{point.dist.name} {point.dist.version}"
        return LoadedAgent(
            config=config, agent=agent, target=f"{kind.__module__}:{kind.__qualname__}", package=package
        )  # fmt: skip


def _imported(origin: str, point: EntryPoint) -> type[Agent]:
    """The class of an entry point. Raises StartError."""
    try:
        kind = point.load()
    except (Exception, SystemExit) as error:
        text = f"{point.value} cannot be loaded: {type(error).__name__}: {shortened(str(error))}"
        raise StartError(str(InvalidInputError(origin, "agent", point.name, text))) from error
    if not (isinstance(kind, type) and issubclass(kind, Agent)):
        text = f"{point.value} must be a subclass of tas.agent.Agent"
        raise StartError(str(InvalidInputError(origin, "agent", point.name, text)))
    return kind
