"""Verdicts: what `evaluate` stores of a node, and the labels of a policy.

Only the values live here, for everybody who stores, reads or applies verdicts. `evaluation` computes them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

from tas.policy.policy import LABEL_PREFIX, PolicyKey, StrategyType
from tas.policy.rules import State
from tas.values.names import is_label_name

VIOLATING = "violating"
"""The value of a `deschedule` label; of a key without a prefix, the only value that TAS removes."""

REPLACEABLE = frozenset({VIOLATING, "", "null"})
"""The values of a `deschedule` label that TAS replaces: the original left empty and `null` (facts.md D44).

Any other value is foreign: somebody else uses the key.
"""

VERDICT_STRATEGIES = (StrategyType.DONTSCHEDULE, StrategyType.DESCHEDULE, StrategyType.LABELING)
"""The strategies that have a state."""

Seconds = Annotated[float, msgspec.Meta(ge=0, lt=253_402_300_800)]
"""A time in seconds since 1970, before the year 10000: a later one in a record would have no date."""


class DesiredKind(StrEnum):
    """The kinds of desired labels."""

    SET = "set"
    SET_IF_ABSENT = "setIfAbsent"
    """Set if the node does not have the label: with the unknown data another value might win."""
    HOLD = "hold"
    ABSENT = "absent"


class DesiredLabel(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """What a strategy desires of one label; `value` is the value to set."""

    kind: DesiredKind
    value: str = ""


HOLD = DesiredLabel(DesiredKind.HOLD)
ABSENT = DesiredLabel(DesiredKind.ABSENT)


class LabelVerdict(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The state of one label's rules, and the desired label.

    `state` is the state by samples. The times apply `onStale` to unknown: `violated_since` stays while unknown and ends
    with met; `met_since` ends with any other state, and with `clearFor` while the policy does not select the node.
    """

    state: State
    desired: DesiredLabel
    violated_since: Seconds | None = None
    met_since: Seconds | None = None


class StrategyVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One strategy of one policy for one node.

    `labels` maps each label key to its verdict; `dontschedule` has none. `changed` is when the state last changed,
    `before` the state before that (None: this is the first state of this policy in this epoch), and `value` the first
    rule's value at that time as quantity text, or "". `sampled` are the series of the rules (`metric` or
    `metric@source`) that ever had a sample, sorted, for `onStale: clear`. `rejects` is whether filter rejects the node
    for pods of the policy (`dontschedule`). `kept_since` is when the oldest of the kept values was measured by which
    filter rejects it, in seconds since 1970 (`onStale: keep`); None: it does not, or would without them.
    """

    state: State
    changed: Seconds
    value: str = ""
    labels: Mapping[str, LabelVerdict] = {}
    sampled: tuple[str, ...] = ()
    rejects: bool = False
    kept_since: Seconds | None = None
    before: State | None = None


class PolicyVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One policy for one node.

    `holds_prefix` is true if the `labeling` strategy is invalid, or the policy is suspended or dry-run: then labels
    under its prefix that no policy desires stay.
    """

    uid: str
    generation: int
    strategies: Mapping[StrategyType, StrategyVerdict]
    holds_prefix: bool = False


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Every policy for one node: the record in VERDICTS.

    `node_uid` is the node's uid ("" without a cluster): a verdict of another uid is void. The verdict was computed at
    `time` (since 1970) from these last revisions of the node's entries in NODES and of POLICIES.
    """

    node_uid: str
    nodes_revision: int
    policies_revision: int
    time: Seconds = 0.0
    policies: Mapping[PolicyKey, PolicyVerdict]


def deschedule_label(policy: PolicyKey) -> str | None:
    """The label of a `deschedule` strategy: the policy's name; None if it is not a valid label key (facts.md D45).

    Nor if it begins as labels of `labeling` do: such a label would belong to no policy (`policy_name`).
    """
    return policy.name if is_label_name(policy.name) and not policy.name.startswith(LABEL_PREFIX) else None


def labeling_prefix(policy: PolicyKey) -> str:
    """The prefix of the label keys of a `labeling` strategy."""
    return f"{LABEL_PREFIX}{policy.name}/"
