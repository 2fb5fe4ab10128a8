"""The public API for extensions: the hooks of an extension, and the view of nodes for their decisions.

An extension is a callable that takes a `NodeView` and returns `Hooks`, or an object with methods of the same names. It
is registered as an entry point of the group `tas.extenders` (docs/how-to/extensions.md). Telemetry itself has these
hooks.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from tas.allocation.node import NodeAllocation
from tas.devices.claim import ContainerRequest
from tas.extender.decision import Binding, FilterDecision, Pod, ScoreDecision, Victims
from tas.extender.node_view import NodeView
from tas.values.quantity import NANO, Quantity, parse_quantity
from tas.view.cards import NodeCards

T = TypeVar("T")

MaybeAsync: TypeAlias = T | Awaitable[T]
"""The result of a hook: a function, or an async function, which is cancelled when it takes too long."""

FilterHook: TypeAlias = Callable[[Pod, Collection[str], float], MaybeAsync[Mapping[str, str] | FilterDecision]]
"""Returns the rejected nodes, each with a reason; all others pass. The scheduler groups equal reasons."""

ScoreHook: TypeAlias = Callable[[Pod, Collection[str], float], MaybeAsync[Mapping[str, int] | ScoreDecision]]
"""Returns the scores of nodes for the pod: integers from 0 to 10; nodes without a score have 0."""

PreemptHook: TypeAlias = Callable[[Pod, Mapping[str, Victims], float], MaybeAsync[Mapping[str, Victims]]]
"""Returns the nodes that are offered for evictions, with their victims; all others are not offered."""

BindHook: TypeAlias = Callable[[Binding, float], MaybeAsync[str | None]]
"""Binds the pod; returns None once the pod is bound, else the reason why it cannot be bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The hooks of an extension; a verb without a hook is not served.

    Each hook gets the pod, the distinct names of the candidates (or each node's victims), and the time of the view in
    seconds since 1970. A call may come without the others, twice, or for one node. Without `preempt`, a node that
    `filter` rejects is not offered for evictions.
    """

    filter: FilterHook | None = None
    score: ScoreHook | None = None
    preempt: PreemptHook | None = None
    bind: BindHook | None = None


HOOKS = tuple(Hooks.__dataclass_fields__)

__all__ = [
    "HOOKS",
    "NANO",
    "Binding",
    "ContainerRequest",
    "FilterDecision",
    "Hooks",
    "NodeAllocation",
    "NodeCards",
    "NodeView",
    "Pod",
    "Quantity",
    "ScoreDecision",
    "Victims",
    "parse_quantity",
]
