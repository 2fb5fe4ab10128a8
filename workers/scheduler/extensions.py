"""Loading of extensions: installed extenders beside telemetry, found by entry points.

An extension that cannot be mounted is logged at the start and answers 503 with the reason; the others are served. An
extension with the hook `bind` writes to the cluster, and so runs in a separate process.
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
from workers.process.errors import StartError

log = structlog.get_logger("extensions")

GROUP = "tas.extenders"
"""The group of entry points; see docs/how-to/extensions.md."""

TELEMETRY = "telemetry"
"""The name of the telemetry extender."""

RESERVED = frozenset({TELEMETRY, "debug", "healthz", "metrics", "readyz", "scheduler", "version"})
"""Names that no extension may have: the paths are used by the product."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """An installed extension.

    Attributes:
        name: The name of its entry point.
        package: Its distribution with the version; empty if unknown.
        target: The object that the entry point names.
        hooks: Its hooks; None if it cannot be mounted.
        instance: The object with the hooks. An async context manager is entered before its hooks are called.
        problem: Why it cannot be mounted.
        at: The path of its verbs, if that is not its name.
        nodes: The view that it has been given; None if it was not loaded from an entry point.
    """

    name: str
    package: str
    target: str
    hooks: Hooks | None = None
    instance: Any = None
    problem: str | None = None
    at: str = ""
    nodes: NodeView | None = None

    @property
    def path(self) -> str:
        """The path of its verbs; empty if the name cannot be a path."""
        if self.at:
            return self.at
        return f"/{self.name}" if _NAME.fullmatch(self.name) and self.name not in RESERVED else ""


def installed() -> Iterable[EntryPoint]:
    """The entry points of this environment."""
    return entry_points(group=GROUP)


def load(points: Iterable[EntryPoint], nodes: NodeView, *, only: str | None = None) -> list[Extension]:
    """Every extension of `points` by name, loaded or with its problem; with `only` just that one, which may bind.

    With `only` the other extensions are not imported.
    Raises StartError if `only` is not installed or cannot be mounted.
    """
    by_name: defaultdict[str, list[EntryPoint]] = defaultdict(list)
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        if point not in by_name[point.name]:  # a package may be found twice, by two paths
            by_name[point.name].append(point)
    if only is None:
        return [_loaded(name, found, nodes, alone=False) for name, found in by_name.items()]
    if only == TELEMETRY:
        return []
    if only not in by_name:
        known = ", ".join([TELEMETRY, *by_name])
        raise StartError(f"extension {shortened(only)} is not installed. Installed: {known}")
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
        rule = (
            "is reserved" if name in RESERVED else "must be lower case letters, digits and dashes: the name is the path"
        )
        return refused(f"name = {shortened(name)}: {rule}")
    if len(found) > 1:
        return refused(f"several extensions have this name: {' and '.join(point.value for point in found)}")
    log.info("extension_loading", extension=name, target=point.value, package=package)
    own = nodes.another()
    try:
        instance = point.load()(own)
        hooks = (
            instance
            if isinstance(instance, Hooks)
            else Hooks(**{hook: getattr(instance, hook, None) for hook in HOOKS})
        )
    except (Exception, SystemExit) as error:  # any error: the other extensions are served
        log.error("extension_load_failed", extension=name, target=point.value, package=package, exc_info=error)  # noqa: TRY400 - with SystemExit
        return refused(f"{point.value} cannot be loaded: {type(error).__name__}: {shortened(str(error))}")
    problem = _problem(name, hooks, alone=alone)
    if problem is not None:
        return refused(problem)
    return Extension(name=name, package=package, target=point.value, hooks=hooks, instance=instance, nodes=own)


def _problem(name: str, hooks: Hooks, *, alone: bool) -> str | None:
    present = {hook: value for hook in HOOKS if (value := getattr(hooks, hook)) is not None}
    if not present:
        return f"it has none of the hooks {', '.join(HOOKS)}"
    for hook, value in present.items():
        if not callable(value):
            return f"{hook} = {shortened(value)}: must be a function"
    if "bind" in present and not alone:
        return (
            "its hook bind writes to the cluster, and so it must run in a separate process: "
            f"tas run extender --only {name}"
        )
    return None
