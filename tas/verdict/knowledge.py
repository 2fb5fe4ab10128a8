"""Decides whether a replica may overwrite a stored verdict.

Any number of replicas evaluate the same nodes. A verdict has the revisions from which it was computed. A replica does
not overwrite a verdict with later revisions, and overwrites one with earlier revisions. A verdict with the same
revisions is evaluated again, but written only if it differs.
"""

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import NamedTuple

from tas.policy.policy import PolicyKey
from tas.verdict.verdict import NodeVerdict, PolicyVerdict, same_meaning


class StoredVerdict(NamedTuple):
    """A node's stored verdict.

    Attributes:
        revision: The revision of the entry; 0 without an entry.
        verdict: None without a verdict, and for an invalid one, which is overwritten.
        known_since: When the replica received the verdict, in seconds since 1970.
    """

    revision: int = 0
    verdict: NodeVerdict | None = None
    known_since: float = 0.0


NEVER_STORED = StoredVerdict()


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


class Action(Enum):
    """What a replica does with a node's stored verdict."""

    WAIT = auto()
    """Nothing yet: the replica is behind."""
    LEAVE = auto()
    """Nothing: there is no node and no verdict."""
    DELETE = auto()
    EVALUATE = auto()
    """Evaluate the node, and write the verdict if it differs."""


def action(verdict: NodeVerdict | None, known: Known) -> Action:
    """What a replica that knows `known` does after it has read `verdict`."""
    if verdict is not None and (
        verdict.policies_revision > known.policies_revision or verdict.nodes_revision > known.nodes_revision
    ):
        return Action.WAIT
    if known.node_uid is None:
        return Action.LEAVE if verdict is None else Action.DELETE
    return Action.EVALUATE


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
