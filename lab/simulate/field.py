"""Who takes part in a simulation: the default scores, policies, agents, and agents beside each other."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click

from cli.agents import loaded_agents
from cli.output import echo
from lab.simulate.model.algorithms import AgentExtender, Agents, Algorithm, DefaultScores, TelemetryPolicy
from lab.simulate.model.load import Load
from lab.simulate.model.series import METRICS, is_simulated
from tas.policy.manifest import parse_policy
from tas.policy.policy import Policy, PolicyKey
from tas.verdict.status import metrics_of
from workers.agents.agents_file import LoadedAgent
from workers.policies.files import parse_file
from workers.process.manifests import SUFFIXES

DEFAULT = "default"
"""The name of the default scores alone."""

TOGETHER = "+"
"""Joins the names of agents that run beside each other."""

IDLE = ("foo",)
"""Agents of the product that take part only by name: they prefer no node."""

OWN_OPTIONS = {"peaks": {"default": {"k1": -91.50493019588365, "k2": -0.07186049052516228}}}
"""Options of agents without a file, where their defaults say nothing: a power model of Trimaran."""

_LEAST_USED = {
    "dontschedule": {
        "rules": [
            {"metricname": "cpu_ratio", "operator": "GreaterThan", "target": "800m"},
            {"metricname": "memory_ratio", "operator": "GreaterThan", "target": "800m"},
        ]
    },
    "scheduleonmetric": {
        "scoreMode": "proportional",
        "rules": [
            {"metricname": "cpu_ratio", "operator": "LessThan", "weight": 2},
            {"metricname": "memory_ratio", "operator": "LessThan", "weight": 1},
        ],
    },
}
_MOVES = {"rules": [{"metricname": "cpu_ratio:mean:5m", "operator": "GreaterThan", "target": "900m"}]}

OWN_POLICIES = {"policy": _LEAST_USED, "policy-moves": {**_LEAST_USED, "deschedule": _MOVES}}
"""The strategies of the policies that take part unless --policies names others."""

Makers = Mapping[str, Callable[[Load], Algorithm]]
"""Makes a new algorithm for a load, by name."""


def algorithms(*, agents: Path | None, policies: Path | None, weight: int, only: Iterable[str]) -> Makers:
    """The algorithms, in the order of the table; `only` selects some, and joins agents. Raises click.ClickException."""
    found = _policies(policies)
    loaded = loaded_agents(agents, OWN_OPTIONS if agents is None else None)
    if agents is not None:
        weights = {name: each.config.weight for name, each in loaded.items()}
    else:
        weights = dict.fromkeys(loaded, weight)
    makers: dict[str, Callable[[Load], Algorithm]] = {DEFAULT: lambda _: DefaultScores()}
    for name, policy in found.items():
        _refuse_taken("policies", name, makers)
        makers[name] = _policy_maker(policy, weight)
    for name in loaded:
        _refuse_taken("agents", name, makers)
        makers[name] = _agents_maker({name: loaded[name]}, weights)
    idle = IDLE if agents is None else ()
    names = tuple(dict.fromkeys(only)) or tuple(name for name in makers if name not in idle)
    for name in names:
        parts = name.split(TOGETHER)
        if name not in makers and all(part in loaded for part in parts):
            makers[name] = _agents_maker({part: loaded[part] for part in parts}, weights)
        if name not in makers:
            own = "" if agents is not None else "; an agent of your own needs --agents FILE"
            known = f"must be of {', '.join(makers)}, or agents joined by {TOGETHER}{own}"
            raise click.UsageError(f"--only = {name}: {known}")
    return {name: makers[name] for name in names}


def _refuse_taken(option: str, name: str, makers: Makers) -> None:
    if name in makers:
        what = "the default scores have" if name == DEFAULT else "a policy has"
        raise click.UsageError(f"--{option}: {name}: {what} this name in the table; choose another one")


def _policy_maker(policy: Policy, weight: int) -> Callable[[Load], Algorithm]:
    return lambda load: TelemetryPolicy(policy, [node.name for node in load.nodes], weight=weight, period=load.period)


def _agents_maker(loaded: Mapping[str, LoadedAgent], weights: Mapping[str, int]) -> Callable[[Load], Algorithm]:
    def made(_: Load) -> Algorithm:
        return Agents([_extender(each, weights[name]) for name, each in loaded.items()])

    return made


def _extender(loaded: LoadedAgent, weight: int) -> AgentExtender:
    """A new agent, since agents learn."""
    kind, config = type(loaded.agent), loaded.config
    agent = kind() if kind.Options is None else kind(config.options)  # type: ignore[call-arg] # see `Agent`
    return AgentExtender(agent=agent, verbs=config.verbs, weight=weight, missing=config.missing, compat=config.compat)


def _policies(folder: Path | None) -> Mapping[str, Policy]:
    """The policies of the files in a folder by name, or our own."""
    if folder is None:
        return {
            name: parse_policy(PolicyKey("default", name), {"strategies": strategies})[0]
            for name, strategies in OWN_POLICIES.items()
        }
    if not folder.is_dir():
        raise click.UsageError(f"--policies = {folder}: must be a folder with manifests of TASPolicy")
    files = sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    found: dict[str, Policy] = {}
    for file in files:
        read = parse_file(str(file), file.suffix, file.read_bytes())
        if read.problems:
            raise click.UsageError(f"--policies = {folder}: {read.problems[0]}")
        for filed in read.policies:
            key = filed.policy.key
            if (other := found.get(key.name)) is not None:
                reason = f"{key} and {other.key} have one name in the table; choose another one"
                raise click.UsageError(f"--policies = {folder}: {file.name}: {reason}")
            found[key.name] = filed.policy
            for use in sorted(metrics_of(filed.policy)):
                if not is_simulated(use.metric):
                    reason = f"policy {key}: no simulated node has {use.metric}, so its rules are unknown"
                    echo(f"Warning: {file.name}: {reason}; metrics are {', '.join(METRICS)}", err=True)
    if not found:
        raise click.UsageError(f"--policies = {folder}: the folder has no policy")
    return found
