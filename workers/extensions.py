"""Extensions: what is installed beside telemetry for the scheduler to ask, found by entry points.

One that cannot be mounted is named at the start and answers 503 with the reason; everything else goes on. One that
binds writes to the cluster, and so runs in a process of its own.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import structlog

from tas.errors import shortened
from tas.extension import HOOKS, Hooks, NodeView
from workers.runtime import StartError

log = structlog.get_logger("extensions")

GROUP = "tas.extenders"
"""The group of entry points; see docs/extensions.md."""

TELEMETRY = "telemetry"
"""The name by which telemetry's own answers are chosen."""

RESERVED = frozenset({TELEMETRY, "debug", "healthz", "metrics", "readyz", "scheduler", "version"})
"""Names that no extension may have: what is served there is ours."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """One that is installed.

    Attributes:
        name: Of its entry point.
        package: The distribution that has it, with its version; empty if that is not known.
        target: What the entry point names.
        hooks: What answers; None if it cannot be mounted.
        held: What gave the hooks: where it is an async context manager, it is entered before they are asked.
        problem: Why it cannot be mounted.
    """

    name: str
    package: str
    target: str
    hooks: Hooks | None = None
    held: Any = None
    problem: str | None = None

    @property
    def path(self) -> str:
        """Where its verbs are mounted; empty if it cannot have one."""
        return f"/{self.name}" if _NAME.fullmatch(self.name) and self.name not in RESERVED else ""


def installed() -> Iterable[EntryPoint]:
    """The entry points of this environment."""
    return entry_points(group=GROUP)


def load(points: Iterable[EntryPoint], nodes: NodeView, *, only: str | None = None) -> list[Extension]:
    """Every extension of `points` by name, loaded or with what is wrong with it; `only` that one, which may bind.

    Nothing of the others is imported then.

    Raises:
        StartError: if `only` is not there or cannot be mounted.
    """
    by_name: defaultdict[str, list[EntryPoint]] = defaultdict(list)
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        if point not in by_name[point.name]:  # a package may be found twice, as where two paths lead to it
            by_name[point.name].append(point)
    if only is None:
        return [_loaded(name, found, nodes, alone=False) for name, found in by_name.items()]
    if only == TELEMETRY:
        return []
    if only not in by_name:
        known = ", ".join([TELEMETRY, *by_name])
        raise StartError(f"extension {shortened(only)} is not installed: there are {known}")
    extension = _loaded(only, by_name[only], nodes, alone=True)
    if extension.problem is not None:
        raise StartError(f"extension {only}: {extension.problem}")
    return [extension]


def _loaded(name: str, found: Sequence[EntryPoint], nodes: NodeView, *, alone: bool) -> Extension:
    point = found[0]
    package = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    known = Extension(name=name, package=package, target=point.value)

    def refused(problem: str) -> Extension:
        return Extension(name=name, package=package, target=point.value, problem=problem)

    if not known.path:
        what = "is taken" if name in RESERVED else "must be lower case letters, digits and dashes: it is its path"
        return refused(f"name = {shortened(name)}: {what}")
    if len(found) > 1:
        return refused(f"two have this name: {' and '.join(point.value for point in found)}")
    log.info("extension_loading", extension=name, target=point.value, package=package)
    try:
        held = point.load()(nodes)
        hooks = held if isinstance(held, Hooks) else Hooks(**{hook: getattr(held, hook, None) for hook in HOOKS})
    except (Exception, SystemExit) as error:  # whatever it does: the others go on
        log.error("extension_not_loaded", extension=name, target=point.value, package=package, exc_info=error)  # noqa: TRY400 - with SystemExit
        return refused(f"{point.value} cannot be loaded: {type(error).__name__}: {shortened(str(error))}")
    problem = _problem(name, hooks, alone=alone)
    if problem is not None:
        return refused(problem)
    return Extension(name=name, package=package, target=point.value, hooks=hooks, held=held)


def _problem(name: str, hooks: Hooks, *, alone: bool) -> str | None:
    given = {hook: value for hook in HOOKS if (value := getattr(hooks, hook)) is not None}
    if not given:
        return f"it has none of the hooks {', '.join(HOOKS)}"
    for hook, value in given.items():
        if not callable(value):
            return f"{hook} = {shortened(value)}: must be a function"
    if "bind" in given and not alone:
        return (
            "it has a hook bind, which writes to the cluster, and so it needs a process of its own: "
            f"tas run extender --only {name}"
        )
    return None
