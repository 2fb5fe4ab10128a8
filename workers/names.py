"""The names of all workers, and which of them a process runs: plain data, which imports no worker."""

NAMES = [
    "materialize",
    "windows",
    "watch",
    "status",
    "policies",
    "evaluate",
    "extender",
    "labels",
    "marks",
    "resources",
    "collect",
    "events",
    "notify",
    "inventory",
    "gpu",
    "evictions",
    "agents",
    "machine",
    "keeper",
]
"""In the order in which `tas run all` builds them; no server of the bus sees the order."""

ON_EACH_NODE = frozenset({"machine"})
"""Of these there are as many as nodes: they have the role of other programs there, and say nothing of themselves."""

ALL_WORKERS = "all"
"""The name, and the role, of a process that runs the workers of several commands."""

BESIDE = {"watch": ("status",)}
"""The workers without a command, and without a role, of their own: the command that runs them, too."""


def run_by(command: str) -> tuple[str, ...]:
    """The workers that `tas run COMMAND` runs."""
    return (command, *BESIDE.get(command, ()))


def workers_of(role: str) -> tuple[str, ...]:
    """The workers that a process of this role may run; none for roles of people and of other programs."""
    if role == ALL_WORKERS:
        return tuple(name for name in NAMES if name not in ON_EACH_NODE)
    return run_by(role) if role in with_role() else ()


def with_role() -> tuple[str, ...]:
    """The workers with a role of their name."""
    beside = {name for names in BESIDE.values() for name in names}
    return tuple(name for name in NAMES if name not in beside | ON_EACH_NODE)
