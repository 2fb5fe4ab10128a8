"""Decides whether a replica may overwrite a stored verdict, and whether it must.

This is separate from the evaluation, since only replicas that share a bucket need it. Any number of replicas evaluate
the same nodes. A verdict has the revisions from which it was computed. A replica does not overwrite a verdict with
later revisions, and overwrites one with earlier revisions. A verdict with the same revisions is evaluated again, but
written only if it differs.
"""

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from tas.policy.policy import PolicyKey
from tas.samples.sample import FUTURE_TOLERANCE
from tas.verdict.verdict import ABSENT, HOLD, LabelVerdict, NodeVerdict, PolicyVerdict, StrategyVerdict


class Known(NamedTuple):
    """What a replica knows of a node and of policies.

    Attributes:
        node_uid: "" without a cluster; None for a node that the API server does not have.
        nodes_revision: The last received revision of the node's entries in NODES.
        policies_revision: The last received revision of POLICIES.
    """

    node_uid: str | None
    nodes_revision: int
    policies_revision: int


class LastRevisions(NamedTuple):
    """The last sequences of NODES and POLICIES of the server, read after a verdict: no true verdict has later ones."""

    nodes: int
    policies: int


class Action(Enum):
    """What a replica does with a node's stored verdict."""

    WAIT = auto()
    """Nothing yet: the replica is behind."""
    LEAVE = auto()
    """Nothing: there is no node and no verdict."""
    DELETE = auto()
    EVALUATE = auto()
    """Evaluate the node, and write the verdict if it differs."""


def action(verdict: NodeVerdict | None, known: Known, last: LastRevisions | None = None) -> Action:
    """What a replica that knows `known` does after it has read `verdict`; `last` if it has read that too."""
    if verdict is not None and is_ahead(verdict, known) and (last is None or not is_void(verdict, last)):
        return Action.WAIT
    if known.node_uid is None:
        return Action.LEAVE if verdict is None else Action.DELETE
    return Action.EVALUATE


def is_ahead(verdict: NodeVerdict, known: Known) -> bool:
    """Whether the verdict has later revisions than the replica."""
    return verdict.policies_revision > known.policies_revision or verdict.nodes_revision > known.nodes_revision


def is_void(verdict: NodeVerdict, last: LastRevisions) -> bool:
    """Whether the verdict has revisions that nothing has yet: then it would be newer than every other for ever.

    What a replica has received is no measure for this: a replica that lags must not overwrite the verdict of another.
    """
    return verdict.policies_revision > last.policies or verdict.nodes_revision > last.nodes


def is_outdated(verdict: NodeVerdict | None, known: Known) -> bool:
    """Whether a verdict of another replica must be evaluated again."""
    return (
        verdict is None
        or verdict.node_uid != known.node_uid
        or verdict.nodes_revision < known.nodes_revision
        or verdict.policies_revision < known.policies_revision
    )


def of_node(verdict: NodeVerdict | None, node_uid: str | None) -> NodeVerdict | None:
    """The verdict if it is of this node; None if it is of another node with the same name."""
    return verdict if verdict is not None and verdict.node_uid == node_uid else None


def evaluation_time(before: NodeVerdict | None, now: float) -> float:
    """The time of an evaluation: not before the time of `before`, else replicas with different clocks alternate.

    Of a `before` in the future at most `FUTURE_TOLERANCE` counts.
    """
    if before is not None:
        now = max(now, min(before.time, now + FUTURE_TOLERANCE))
    return round(now, 6)  # the precision of the JSON, so that a verdict equals its stored copy


def is_confirmed(
    verdict: NodeVerdict,
    evaluated: Mapping[PolicyKey, PolicyVerdict],
    keys: Collection[PolicyKey],
    node_labels: Collection[str] | None,
) -> bool:
    """Whether `verdict` agrees with `evaluated` for the policies `keys`, so that no write is necessary.

    A policy in only one of them is a difference.
    """
    return all(_same(verdict.policies.get(key), evaluated.get(key), node_labels) for key in keys)


def _same(stored: PolicyVerdict | None, evaluated: PolicyVerdict | None, node_labels: Collection[str] | None) -> bool:
    if stored is None or evaluated is None:
        return stored is evaluated
    return same_meaning(stored, evaluated, node_labels)


def same_meaning(stored: PolicyVerdict, evaluated: PolicyVerdict, node_labels: Collection[str] | None = None) -> bool:
    """Whether the verdicts have the same effects: then the new one is not written.

    `node_labels` are the node's current labels; None if unknown. For a label that the node does not have, a stored
    absent equals a hold that only waits for `clearFor` again: before the next write only a user can set that label. So
    a restart of `evaluate` causes few writes.
    """
    return (
        (stored.uid, stored.generation, stored.holds_prefix)
        == (evaluated.uid, evaluated.generation, evaluated.holds_prefix)
        and stored.strategies.keys() == evaluated.strategies.keys()
        and all(
            _same_strategy(each, evaluated.strategies[kind], node_labels) for kind, each in stored.strategies.items()
        )
    )


def _same_strategy(stored: StrategyVerdict, evaluated: StrategyVerdict, node_labels: Collection[str] | None) -> bool:
    return (
        (stored.state, stored.rejects, stored.kept_since, stored.sampled)
        == (evaluated.state, evaluated.rejects, evaluated.kept_since, evaluated.sampled)
        and stored.labels.keys() == evaluated.labels.keys()
        and all(
            verdict == evaluated.labels[label]
            or (
                node_labels is not None
                and label not in node_labels
                and _waits_again(stored=verdict, evaluated=evaluated.labels[label])
            )
            for label, verdict in stored.labels.items()
        )
    )


def _waits_again(*, stored: LabelVerdict, evaluated: LabelVerdict) -> bool:
    """Whether the only difference is that the end of `clearFor` is not proven any more."""
    return evaluated.desired == HOLD and msgspec.structs.replace(evaluated, desired=ABSENT) == stored
