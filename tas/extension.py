"""The public API for an extender of one's own: its hooks, and the view of nodes that they decide by.

An extension is what gives `Hooks`, or an object with methods of these names, when it is called with a `NodeView`. It is
registered as an entry point of the group `tas.extenders` (docs/extensions.md). Telemetry itself has these hooks.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from tas.extender.decision import Binding, FilterDecision, Pod, ScoreDecision, Victims
from tas.extender.node_view import NodeView
from tas.quantity import NANO, Quantity, parse_quantity

T = TypeVar("T")

Soon: TypeAlias = T | Awaitable[T]
"""A hook is a function, or an async one, which is cut off when it takes too long."""

FilterHook: TypeAlias = Callable[[Pod, Collection[str], float], Soon[Mapping[str, str] | FilterDecision]]
"""The nodes that the pod must not go to, each with a reason; who is not named passes. Reasons are few and alike."""

ScoreHook: TypeAlias = Callable[[Pod, Collection[str], float], Soon[Mapping[str, int] | ScoreDecision]]
"""How well nodes suit the pod: integers from 0 to 10; who is not named has 0."""

PreemptHook: TypeAlias = Callable[[Pod, Mapping[str, Victims], float], Soon[Mapping[str, Victims]]]
"""The nodes that are offered for evictions, with their victims; who is not named is not offered."""

BindHook: TypeAlias = Callable[[Binding, float], Soon[str | None]]
"""Binds the pod; gives nothing once it is bound, else why it cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What an extension answers; a verb without a hook is not served.

    Each hook gets the pod, what it is asked about (the distinct names of the candidates, or each node's victims) and
    the time, in seconds since 1970, at which the view stands. A call may come alone, twice, or for one node. Without
    `preempt`, `filter` says who is not offered.
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
    "FilterDecision",
    "Hooks",
    "NodeView",
    "Pod",
    "Quantity",
    "ScoreDecision",
    "Victims",
    "parse_quantity",
]
