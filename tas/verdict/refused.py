"""The labels and marks of a policy that the API server refuses, as its status and `tas get policies` report them."""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from tas.policy.policy import PolicyKey, Problem
from tas.values.nouns import counted
from tas.verdict.ownership import Claim, owner_of, strategy_of

MAX_LABELS = 10
"""The most labels of one policy that are reported, the first by key and value."""

MAX_NODES = 3
"""The most nodes of one label that are named; the others are counted."""


class RefusedLabel(msgspec.Struct, frozen=True, kw_only=True):
    """A label or a mark of policies of one name that the API server refuses.

    Attributes:
        label: The key of the label; of a mark its kind and key, as `taint telemetry.aware.scheduling/p`.
        value: The refused value, of a mark its effect or status; None if the removal is refused.
        reason: The text of the API server for one of the nodes, with `NODE` in place of its name.
        count: The number of nodes.
        nodes: The first of them by name.
    """

    label: str
    value: str | None = None
    reason: str
    count: int
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {self.count - len(self.nodes)} more" if self.count > len(self.nodes) else ""
        on = f"{counted(self.count, 'node')} ({', '.join(self.nodes)}{more})"
        kind, space, _ = self.label.partition(" ")
        what = f"{'the removal of ' if self.value is None else ''}the {kind if space else 'label'}"
        return f"the API server refuses {what} on {on}: {self.reason}"


def refused_problems(
    policy: PolicyKey, claims: Mapping[PolicyKey, Claim], refused: Collection[RefusedLabel]
) -> Iterator[Problem]:
    """The refused labels that a policy owns, as its problems. `claims` and `refused` are all of its name."""
    for each in refused:
        kind = strategy_of(each.label)
        if owner_of(kind, claims) == policy:
            value = each.label if each.value is None else f"{each.label}={each.value}"
            yield Problem(field=f"spec.strategies.{kind.value}", value=value, reason=str(each), refused=False)
