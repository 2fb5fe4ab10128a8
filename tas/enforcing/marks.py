"""Marks: a taint and a node condition that repeat the `deschedule` label of a policy on the same node.

The key of the taint and the type of the condition are `telemetry.aware.scheduling/<policy>`. All under this prefix is
ours, whoever set it; no other taint and no other condition is changed. The law of removal (`tas.enforcing.removal`)
holds for marks as for labels:

1. A node gets a mark only while it has the label, and the owner of the label desires *set* or *hold*. So breakers,
   pauses and flap budgets have admitted the node.
2. A mark goes only if the node does not have the label, the owner desires the label *absent*, and confirms this by
   new reads. A taint is then removed, and a condition becomes False.
3. A mark that no policy can want, by a new and complete list of the API server, is an orphan and removed.
4. While a node has a mark of a policy without the label, no further node gets a mark of the policy. So a policy never
   adds a mark beyond the nodes that its breaker allows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from tas.enforcing.labels import DesiredLabels, OwnedLabel
from tas.policy.manifest import parse_policy
from tas.policy.policy import MARK_PREFIX, Policy, PolicyKey, StrategyType, TaintEffect
from tas.verdict.verdict import VIOLATING, DesiredKind, deschedule_label


class MarkKind(StrEnum):
    """The kinds of marks."""

    TAINT = "taint"
    CONDITION = "condition"


class Taint(NamedTuple):
    """A taint of ours; `effect` may be any that somebody else wrote."""

    value: str
    effect: str


class Condition(NamedTuple):
    """A node condition of ours. The texts do not depend on values, so that a patch follows only from a transition."""

    status: str
    reason: str
    message: str


_NOTHING: Mapping[str, Any] = {}

RULES_VIOLATED = Condition("True", "RulesViolated", "The node has the label of the policy")
RULES_MET = Condition("False", "RulesMet", "The node meets the rules of the policy")


class NodeMarks(NamedTuple):
    """What a node has, by the names of policies.

    Attributes:
        uid: Of the node.
        labelled: The keys without a prefix whose label has the value `violating`.
        taints: Our taints: usually one for each policy.
        conditions: Our conditions.
    """

    uid: str
    labelled: frozenset[str]
    taints: Mapping[str, tuple[Taint, ...]]
    conditions: Mapping[str, Condition]

    def is_marked(self, policy: str) -> bool:
        """Whether the node has a taint of the policy, or its condition is True."""
        condition = self.conditions.get(policy)
        return policy in self.taints or (condition is not None and condition.status == RULES_VIOLATED.status)

    @property
    def strays(self) -> frozenset[str]:
        """The policies with a mark on the node, whose label the node does not have."""
        return frozenset(
            name for name in (*self.taints, *self.conditions) if name not in self.labelled and self.is_marked(name)
        )


def node_marks(
    uid: str,
    labels: Mapping[str, str],
    taints: Iterable[Mapping[str, Any]],
    conditions: Iterable[Mapping[str, Any]],
) -> NodeMarks:
    """What a node of the API server has, by its labels and the JSON of its taints and conditions."""
    own: dict[str, tuple[Taint, ...]] = {}
    for taint in taints:
        if (name := _policy_of(taint.get("key"))) is not None:
            own[name] = (*own.get(name, ()), Taint(_text(taint, "value"), _text(taint, "effect")))
    found = {
        name: Condition(_text(each, "status"), _text(each, "reason"), _text(each, "message"))
        for each in conditions
        if (name := _policy_of(each.get("type"))) is not None
    }
    labelled = frozenset(key for key, value in labels.items() if value == VIOLATING and "/" not in key)
    return NodeMarks(uid, labelled, own or _NOTHING, found or _NOTHING)  # few bytes for a node without marks


class WantedMarks(NamedTuple):
    """The marks that the owner of a label has as options."""

    policy: Policy
    taint: TaintEffect | None
    condition: bool


def wanted_marks(policy: Policy) -> WantedMarks | None:
    """The marks of the owner of a `deschedule` label; None if there are none, or if they cannot be read."""
    strategy = policy.strategies.get(StrategyType.DESCHEDULE)
    if strategy is None or not strategy.readable or deschedule_label(policy.key) is None:
        return None
    if strategy.taint is None and not strategy.node_condition:
        return None
    return WantedMarks(policy, strategy.taint, strategy.node_condition)


def is_settled(node: NodeMarks, wanted: Mapping[str, WantedMarks]) -> bool:
    """Whether no verdict can lead to a change of the node's marks while its labels stay."""
    return all(_is_settled(node, name, want) for name, want in wanted.items()) and all(
        name in wanted for name in (*node.taints, *node.conditions)
    )


def _is_settled(node: NodeMarks, name: str, want: WantedMarks) -> bool:
    if name in node.labelled:
        taints, condition = _taints(want), RULES_VIOLATED
    else:
        taints, condition = (), RULES_MET
    return node.taints.get(name, ()) == taints and node.conditions.get(name) == (condition if want.condition else None)


class Basis(StrEnum):
    """What allows a change."""

    LABEL = "label"
    """The node has the label."""
    VERDICT = "verdict"
    """The owner of the label desires it absent; still to be confirmed."""
    LIST = "list"
    """No stored policy wants the mark; still to be confirmed by a list of the API server."""


class MarkChange(NamedTuple):
    """A mark of a policy, by its name, to set to `value` or to remove (None).

    `owner` is the policy that must confirm a change on the basis of a verdict.
    """

    kind: MarkKind
    policy: str
    value: Taint | Condition | None
    basis: Basis
    owner: PolicyKey | None = None

    @property
    def mark(self) -> str:
        """The mark in logs and in memory: `taint telemetry.aware.scheduling/p`."""
        return f"{self.kind} {MARK_PREFIX}{self.policy}"

    @property
    def text(self) -> str | None:
        """The value in logs: the effect of a taint, or the status of a condition."""
        return None if self.value is None else getattr(self.value, "effect", None) or getattr(self.value, "status", "")


def mark_policy(mark: str) -> str:
    """The name of the policies to which a mark belongs, by `MarkChange.mark`."""
    return mark.partition(MARK_PREFIX)[2]


def mark_changes(
    node: NodeMarks,
    wanted: Mapping[str, WantedMarks],
    desired: DesiredLabels,
    labels: Mapping[str, str] | None,
    *,
    is_stray: Callable[[str], bool],
    is_frozen: Callable[[str], bool],
) -> tuple[MarkChange, ...]:
    """The changes of a node's marks, sorted by policy.

    Args:
        node: As the API server has it.
        wanted: By name of the policies, of the owners of labels.
        desired: By the verdict of the node.
        labels: Of the node, for a `nodeSelector`; None if they are not known.
        is_stray: Whether some node has a mark of the policy without the label.
        is_frozen: Whether labels and marks of the policy must stay as they are.
    """
    changes: list[MarkChange] = []
    for name in sorted({*wanted, *node.taints, *node.conditions}):
        if not is_frozen(name):
            want, owned = wanted.get(name), desired.labels.get(name)
            clearing = _clearing(node, name, owned)
            may_show = _shows(node, name, want, owned) and (node.is_marked(name) or not is_stray(name))
            changes += _taint_changes(node.taints.get(name, ()), name, want, may_show=may_show, clearing=clearing)
            is_concerned = want is not None and want.policy.selects(labels) is not False
            changes += _condition_changes(
                node.conditions.get(name),
                name,
                is_wanted=want is not None and want.condition,
                may_show=may_show,
                # A node that the policy never concerned does not get the condition.
                clearing=clearing if is_concerned or name in node.conditions else None,
            )
    return tuple(changes)


def _taint_changes(
    taints: tuple[Taint, ...], name: str, want: WantedMarks | None, *, may_show: bool, clearing: PolicyKey | None
) -> Iterable[MarkChange]:
    target = () if want is None else _taints(want)
    if target and may_show:
        if taints != target:
            yield MarkChange(MarkKind.TAINT, name, target[0], Basis.LABEL)
    elif taints and clearing is not None:
        yield MarkChange(MarkKind.TAINT, name, None, Basis.VERDICT, clearing)
    elif taints and not target:
        yield MarkChange(MarkKind.TAINT, name, None, Basis.LIST)


def _condition_changes(
    condition: Condition | None, name: str, *, is_wanted: bool, may_show: bool, clearing: PolicyKey | None
) -> Iterable[MarkChange]:
    if is_wanted and may_show:
        if condition != RULES_VIOLATED:
            yield MarkChange(MarkKind.CONDITION, name, RULES_VIOLATED, Basis.LABEL)
    elif is_wanted and clearing is not None:
        if condition != RULES_MET:
            yield MarkChange(MarkKind.CONDITION, name, RULES_MET, Basis.VERDICT, clearing)
    elif condition is not None and not is_wanted:
        basis = Basis.LIST if clearing is None else Basis.VERDICT
        yield MarkChange(MarkKind.CONDITION, name, None, basis, clearing)


def _taints(want: WantedMarks) -> tuple[Taint, ...]:
    return () if want.taint is None else (Taint(VIOLATING, want.taint.value),)


def _shows(node: NodeMarks, name: str, want: WantedMarks | None, owned: OwnedLabel | None) -> bool:
    """Whether the node has the label, and the owner does not desire it absent."""
    return (
        name in node.labelled
        and want is not None
        and owned is not None
        and owned.owner == want.policy.key
        and owned.desired.kind in (DesiredKind.SET, DesiredKind.HOLD)
    )


def _clearing(node: NodeMarks, name: str, owned: OwnedLabel | None) -> PolicyKey | None:
    """The owner, if the node does not have the label and the owner desires it absent."""
    if name in node.labelled or owned is None or owned.desired.kind is not DesiredKind.ABSENT:
        return None
    return owned.owner


def may_remove_mark(kind: MarkKind, name: str, policies: Iterable[tuple[PolicyKey, object]]) -> bool:
    """Whether no policy of the name can want this mark. `policies` must be complete, as for `may_remove_orphan`.

    A suspended or dry-run policy keeps every mark of its name, and so does a policy with an unreadable `deschedule`.
    """
    return not any(_can_want(kind, key, spec) for key, spec in policies if key.name == name)


def _can_want(kind: MarkKind, key: PolicyKey, spec: object) -> bool:
    policy, _ = parse_policy(key, spec)
    if policy.suspend or policy.dry_run:
        return True
    strategy = policy.strategies.get(StrategyType.DESCHEDULE)
    if strategy is None or not strategy.rules:
        return False
    if not strategy.readable:
        return True
    return strategy.taint is not None if kind is MarkKind.TAINT else strategy.node_condition


# The new lists of a node


def changed_taints(found: Sequence[Mapping[str, Any]], changes: Collection[MarkChange]) -> list[Mapping[str, Any]]:
    """The taints of a node after `changes`. All others are the same objects, in the same order."""
    new = {each.policy: each.value for each in changes if each.kind is MarkKind.TAINT}
    return [taint for taint in found if _policy_of(taint.get("key")) not in new] + [
        {"key": MARK_PREFIX + name, "value": value.value, "effect": value.effect}
        for name, value in new.items()
        if isinstance(value, Taint)
    ]


def changed_conditions(
    found: Sequence[Mapping[str, Any]], changes: Collection[MarkChange], *, now: str
) -> list[Mapping[str, Any]]:
    """The conditions of a node after `changes`, at `now` (RFC 3339). All others are the same objects, in order.

    The time of the last transition changes only with the status.
    """
    new = {each.policy: each.value for each in changes if each.kind is MarkKind.CONDITION}
    before = {name: each for each in found if (name := _policy_of(each.get("type"))) in new}
    return [each for each in found if _policy_of(each.get("type")) not in new] + [
        {
            "type": MARK_PREFIX + name,
            "status": value.status,
            "reason": value.reason,
            "message": value.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": before[name].get("lastTransitionTime") or now
            if name in before and before[name].get("status") == value.status
            else now,
        }
        for name, value in new.items()
        if isinstance(value, Condition)
    ]


def _policy_of(key: object) -> str | None:
    """The name of the policies to which a taint's key or a condition's type belongs; None if it is not ours."""
    return key.removeprefix(MARK_PREFIX) if isinstance(key, str) and key.startswith(MARK_PREFIX) else None


def _text(found: Mapping[str, Any], field: str) -> str:
    value = found.get(field)
    return value if isinstance(value, str) else ""
