"""The labels and marks that the API server refuses, for each policy: what the status of the policy reports.

Labels of nodes have no namespace, so all is by the name of the policies that share a label (`policy_name`).
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nsmallest
from itertools import chain

from tas.enforcing.labels import policy_name
from tas.enforcing.memory import DeclinedChange
from tas.errors import MAX_TEXT, line_of
from tas.verdict.refused import MAX_LABELS, MAX_NODES, RefusedLabel

MAX_REASON = 300
"""The most characters of a reason."""

_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*")


def reason_of(text: str, node: str) -> str:
    """The text of an error in at most `MAX_REASON` characters, without the node: so it is the same for many nodes."""
    return line_of(_NAME.sub(lambda name: "NODE" if name[0] == node else name[0], text[:MAX_TEXT]), MAX_REASON)


def combined(before: Collection[RefusedLabel], found: Collection[RefusedLabel]) -> tuple[RefusedLabel, ...]:
    """All labels of both, each as on the more nodes: for a replica that does not know the refusals of all nodes yet."""
    largest: dict[tuple[str, str | None], RefusedLabel] = {}
    for each in (*before, *found):
        key = each.label, each.value
        if key not in largest or each.count > largest[key].count:
            largest[key] = each
    return tuple(largest[key] for key in nsmallest(MAX_LABELS, largest, key=_order))


class Refusals:
    """The refused labels of all nodes, updated with each change of a node.

    `name_of` is the name of the policies of a label. Marks (`tas.enforcing.marks.MarkChange.mark`) count as labels.

    Attributes:
        changed: The policy names whose refused labels have changed; the caller removes those that it has handled.
    """

    def __init__(self, name_of: Callable[[str], str] = policy_name) -> None:
        self._name_of = name_of
        self._unchecked: set[str] | None = None
        self.changed: set[str] = set()
        self._of_node: dict[str, Mapping[str, DeclinedChange]] = {}
        self._nodes: dict[str, dict[tuple[str, str | None], dict[str, set[str]]]] = {}

    @property
    def names(self) -> Collection[str]:
        """The policy names with refused labels."""
        return self._nodes.keys()

    @property
    def is_complete(self) -> bool:
        """Whether every node was checked since `begin`: until then an earlier replica may know more."""
        return self._unchecked is not None and not self._unchecked

    def begin(self, nodes: Collection[str]) -> None:
        """All nodes that are to be checked, the first time."""
        if self._unchecked is None:
            self._unchecked = set(nodes)

    def checked(self, node: str) -> None:
        """Applies that a node was checked, or is gone."""
        if self._unchecked:
            self._unchecked.discard(node)

    def set(self, node: str, refused: Mapping[str, DeclinedChange]) -> None:
        """Replaces the refused labels of a node, which was checked."""
        self.checked(node)
        before = self._of_node.pop(node, {})
        if refused:
            self._of_node[node] = refused
        for label in before.keys() | refused.keys():
            old, new = before.get(label), refused.get(label)
            if old == new:
                continue
            self.changed.add(self._name_of(label))
            if old is not None:
                self._drop(label, old, node)
            if new is not None:
                of_name = self._nodes.setdefault(self._name_of(label), {})
                of_name.setdefault((label, new.value), {}).setdefault(new.reason, set()).add(node)

    def of(self, name: str, before: Sequence[RefusedLabel]) -> tuple[RefusedLabel, ...]:
        """The refused labels of a policy name, sorted.

        A reason `before` stays while it is that of a node: a text that differs with each request changes nothing.
        """
        reasons = {(each.label, each.value): each.reason for each in before}
        found = self._nodes.get(name, {})
        return tuple(
            _refused_label(label, value, found[label, value], reasons.get((label, value)))
            for label, value in nsmallest(MAX_LABELS, found, key=_order)
        )

    def _drop(self, label: str, refusal: DeclinedChange, node: str) -> None:
        name, key = self._name_of(label), (label, refusal.value)
        by_reason = self._nodes[name][key]
        by_reason[refusal.reason].discard(node)
        if not by_reason[refusal.reason]:
            del by_reason[refusal.reason]
        if not by_reason:
            del self._nodes[name][key]
        if not self._nodes[name]:
            del self._nodes[name]


def _refused_label(
    label: str, value: str | None, by_reason: Mapping[str, Collection[str]], before: str | None
) -> RefusedLabel:
    reason = before if before in by_reason else min(by_reason, key=lambda each: (-len(by_reason[each]), each))
    return RefusedLabel(
        label=label,
        value=value,
        reason=reason or "",
        count=sum(map(len, by_reason.values())),
        nodes=tuple(nsmallest(MAX_NODES, chain.from_iterable(by_reason.values()))),
    )


def _order(key: tuple[str, str | None]) -> tuple[str, str]:
    return key[0], key[1] or ""
