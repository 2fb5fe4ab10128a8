"""The entries of `extenders` for agents."""

from collections.abc import Iterable
from dataclasses import replace

from tas.agents.file import AgentConfig, AgentVerb
from tas.configuring.extenders import Extender

AGENT_VERBS = {
    AgentVerb.FILTER: ("filterVerb", "predicates"),
    AgentVerb.PRIORITIZE: ("prioritizeVerb", "priorities"),
}
"""The fields of an entry for an agent, and the paths before the agent's name."""


def agent_extenders(agents: Iterable[AgentConfig], common: Extender) -> tuple[Extender, ...]:
    """One extender for each agent, since an entry has one filterVerb and one prioritizeVerb.

    The file of agents gives the weight; it gives `ignorable` and the timeout, unless `common` does. The scheduler waits
    a second longer than the agent, so that the reason of an agent that takes too long is in the log of the agents.
    """
    return tuple(
        replace(
            common,
            weight=agent.weight,
            ignorable=agent.ignorable if common.ignorable is None else common.ignorable,
            http_timeout=common.http_timeout or f"{round(1000 * (agent.timeout + 1))}ms",
            verbs={verb: f"{path}/{agent.name}" for name, (verb, path) in AGENT_VERBS.items() if name in agent.verbs},
        )
        for agent in agents
    )
