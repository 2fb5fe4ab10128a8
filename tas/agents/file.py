"""The file of agents: which agents run, under which names and with which options. It belongs to the operator."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any

import msgspec

from tas.agents.agent import Agent, Missing
from tas.values.document import DocumentReader
from tas.values.duration import DurationError, parse_duration
from tas.values.names import is_dns_label

MAX_AGENTS = 100
"""The most agents of a file: each is a path, and has its own metrics."""

MAX_WEIGHT = 1_000_000
"""The largest weight: with it one step of a score is 10,000,000 points."""

RESERVED = frozenset({"scheduler", "version"})
"""Names that no agent may have: the process uses the paths."""

MIN_TIMEOUT, MAX_TIMEOUT = 0.01, 60.0
"""The limits of `timeout` in seconds."""

Kinds = Mapping[str, type[Agent]]
"""The agents that can run, by the name that a file uses for them."""


class AgentVerb(StrEnum):
    """What the scheduler may ask an agent."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"


class AgentEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent in the file. Every field may be absent."""

    agent: str | None = None
    options: dict[str, Any] = {}
    missing: Missing | None = None
    compat: bool = False
    verbs: Annotated[tuple[AgentVerb, ...], msgspec.Meta(min_length=1)] | None = None
    weight: Annotated[int, msgspec.Meta(ge=1, le=MAX_WEIGHT)] = 1
    ignorable: bool = True
    timeout: str = "1s"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The settings of one agent.

    Attributes:
        name: Its name, which is part of its paths.
        kind: The agent that runs under this name.
        options: Its options as an instance of the agent's `Options`; None if it has no options.
        missing: What happens to a node of which it has no opinion; None: what the agent itself prefers.
        compat: Whether scores are rounded as the original agent did.
        verbs: What the scheduler may ask, a subset of what the agent can answer.
        weight: Of its scores, for the configuration of the scheduler.
        ignorable: Whether pods are placed when it does not answer, for the configuration of the scheduler.
        timeout: After how many seconds a call is given up.
    """

    name: str
    kind: str
    options: Any = None
    missing: Missing | None = None
    compat: bool = False
    verbs: frozenset[AgentVerb] = frozenset(AgentVerb)
    weight: int = 1
    ignorable: bool = True
    timeout: float = 1.0


def kinds_of(document: object) -> frozenset[str]:
    """The names of the agents that a document may use, valid or not: others need not be imported."""
    entries = document.get("agents") if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        return frozenset()
    named = (entry.get("agent") if isinstance(entry, dict) else None for entry in entries.values())
    return frozenset(str(name) for name in (*entries, *named) if name is not None)


def parse_agents(
    origin: str,
    document: object,
    kinds: Kinds,
    fallbacks: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    installed: Iterable[str] = (),
) -> dict[str, AgentConfig]:
    """The agents of a document, as decoded from YAML, by name. `origin` is the name of the document in errors.

    `fallbacks` has options by kind that count where the document does not give them. `installed` are the names of more
    kinds that the document could use. Raises DocumentError with the first mistake of each agent. A document without
    an agent is a mistake.
    """
    reader = DocumentReader(origin)
    value: Any = reader.known(document, ("agents",)).get("agents")
    if isinstance(value, dict):
        value = {name: {} if entry is None else entry for name, entry in value.items()}  # `safe-balance:` is enough
        if len(value) > MAX_AGENTS:
            reader.add_mistake("agents", len(value), f"must be at most {MAX_AGENTS} agents")
            value = {}
    otherwise = f"must be of a-z, 0-9 and -, at most 63, and not {', '.join(sorted(RESERVED))}"
    found = {}
    for name, entry in reader.entries("agents", value, AgentEntry, _is_agent_name, otherwise):
        if (kind := entry.agent or name) not in kinds:
            others = ", ".join(sorted({*kinds, *installed}))
            reader.add_mistake(f"agents.{name}.agent", kind, f"is not installed: must be one of {others}")
        elif (config := _config(reader, name, entry, kinds, fallbacks or {})) is not None:
            found[name] = config
    if not found and not reader.mistakes:
        reader.add_mistake("agents", value, "must have at least one agent")
    reader.finish()
    return found


def default_agents(
    kinds: Kinds, names: Iterable[str], fallbacks: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, AgentConfig]:
    """The agents without a file: each of `names`, with its default options and `fallbacks`."""
    return parse_agents("agents", {"agents": dict.fromkeys(names)}, kinds, fallbacks)


def verbs_of(kind: type[Agent]) -> frozenset[AgentVerb]:
    """What an agent can answer: the methods that it overrides."""
    verbs = set()
    if kind.filter is not Agent.filter:
        verbs.add(AgentVerb.FILTER)
    if kind.score is not Agent.score:
        verbs.add(AgentVerb.PRIORITIZE)
    return frozenset(verbs)


def _is_agent_name(name: str) -> bool:
    return is_dns_label(name) and name not in RESERVED


def _config(
    reader: DocumentReader, name: str, entry: AgentEntry, kinds: Kinds, fallbacks: Mapping[str, Mapping[str, Any]]
) -> AgentConfig | None:
    field, kind = f"agents.{name}", entry.agent or name
    agent = kinds[kind]
    able = verbs_of(agent)
    for verb in entry.verbs or ():
        if verb not in able:
            reader.add_mistake(f"{field}.verbs", str(verb), f"{kind} answers only {', '.join(sorted(able))}")
            return None
    mistakes = len(reader.mistakes)
    options = _options(reader, f"{field}.options", agent, fallbacks.get(kind, {}), entry.options)
    timeout = _timeout(reader, f"{field}.timeout", entry.timeout)
    if len(reader.mistakes) > mistakes:
        return None
    return AgentConfig(
        name=name,
        kind=kind,
        options=options,
        missing=entry.missing,
        compat=entry.compat,
        verbs=able if entry.verbs is None else frozenset(entry.verbs),
        weight=entry.weight,
        ignorable=entry.ignorable,
        timeout=timeout,
    )


def _timeout(reader: DocumentReader, field: str, text: str) -> float:
    """The seconds; 0, and a mistake, if they are none, or out of range."""
    try:
        seconds = parse_duration(text)
    except DurationError as error:
        reader.add_mistake(field, text, str(error))
        return 0.0
    if not MIN_TIMEOUT <= seconds <= MAX_TIMEOUT:
        reader.add_mistake(field, text, f"must be from {MIN_TIMEOUT:g}s to {MAX_TIMEOUT:g}s")
    return seconds


def _options(
    reader: DocumentReader, field: str, agent: type[Agent], fallbacks: Mapping[str, Any], given: Mapping[str, Any]
) -> Any:
    """The options of an agent; None, and maybe a mistake, if there are none."""
    names = () if agent.Options is None else tuple(each.encode_name for each in msgspec.structs.fields(agent.Options))
    for name, value in given.items():
        if name not in names:
            known = f"must be one of {', '.join(sorted(names))}" if names else "the agent has none"
            reader.add_mistake(f"{field}.{name}", value, f"is not a known option: {known}")
            return None
        for where, number in _numbers(f"{field}.{name}", value):
            if not isfinite(number):
                reader.add_mistake(where, number, "must be finite")
                return None
    if agent.Options is None:
        return None
    options = dict(given)
    for name in names:  # one after the other: a fallback has no effect beside what contradicts it
        with_it = {name: fallbacks[name], **options} if name in fallbacks else options
        if _are_options(with_it, agent.Options):
            options = with_it
    return reader.converted(field, options, agent.Options)


def _are_options(options: Mapping[str, Any], kind: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert(options, kind)
    except msgspec.ValidationError:
        return False
    return True


def _numbers(where: str, value: object) -> Iterator[tuple[str, float]]:
    """The fractions in a value, with their places."""
    if isinstance(value, float):
        yield where, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _numbers(f"{where}.{name}", each)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _numbers(f"{where}[{number}]", each)
