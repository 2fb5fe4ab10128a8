"""The status of a TASPolicy: whether it is in force, whether its metrics are seen, and which nodes violate it.

`kubectl get taspolicies` shows this status: the texts are for people, the conditions for programs
(https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md).
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from tas.policy.policy import Policy, PolicyKey, Problem, StrategyType
from tas.policy.rules import State
from tas.values.nouns import counted
from tas.verdict.freeze import PAUSED, TRIPPED, Freeze
from tas.verdict.ownership import LABEL_STRATEGIES, Claim, owner_of, strategy_of
from tas.verdict.verdict import REPLACEABLE, VERDICT_STRATEGIES, DesiredKind, PolicyVerdict, deschedule_label

MAX_NAMES = 10
"""The maximum of nodes, metrics and problems that are named; the rest is counted."""

CONDITIONS = ("Ready", "MetricsSeen", "Violating")

UNSET_SECONDS = 60.0
"""After this time a desired label that a node does not have is reported."""

BUS_UNREACHABLE = "BusUnreachable"
WITHOUT_BUS = (
    "the bus cannot be reached: filter and prioritize go on with what they knew, no label changes, and nobody knows "
    "which nodes violate now; tas status says more"
)

NOT_READY = (
    "PartlyUnreadable",
    PAUSED,
    TRIPPED,
    "NotEvaluated",
    "LabelsNotWritten",
    "MarksNotWritten",
    "NothingToDo",
    "Suspended",
    "DryRun",
)
"""The reasons of the condition `Ready` when it is False."""


class NodeStates(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of one strategy, by what their samples say of it; `kept` are the unknown ones that filter rejects."""

    violated: Collection[str] = ()
    met: Collection[str] = ()
    unknown: Collection[str] = ()
    kept: Collection[str] = ()

    @property
    def count(self) -> int:
        """The number of nodes with a verdict."""
        return len(self.violated) + len(self.met) + len(self.unknown)


class MetricUse(msgspec.Struct, frozen=True, order=True):
    """A metric that a policy reads: from one source, or the newest of all ("")."""

    metric: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.metric} of {self.source}" if self.source else self.metric


def metrics_of(policy: Policy) -> frozenset[MetricUse]:
    """The metrics of the policy's effective rules."""
    return frozenset(
        MetricUse(rule.metric, rule.source or "")
        for strategy in policy.strategies.values()
        for rule, counts in zip(strategy.rules, strategy.rule_counts, strict=True)
        if counts and rule.metric
    )


def any_source_limits(policies: Iterable[Policy], default: float) -> dict[str, float]:
    """The metrics that a rule reads without the name of a source, about which sources must not contradict each other.

    Each has the longest time in seconds after which a sample of it is stale for such a rule.
    """
    found: dict[str, float] = {}
    for policy in policies:
        for use in metrics_of(policy):
            if not use.source:
                found[use.metric] = max(found.get(use.metric, 0.0), policy.stale_after_or(default))
    return found


def labels_of_others(policy: Policy, claims: Mapping[PolicyKey, Claim]) -> tuple[Problem, ...]:
    """The strategies of a policy whose labels belong to a policy of the same name in another namespace (facts.md D39).

    `claims` are those of all policies of this name.
    """
    found: list[Problem] = []
    for kind in LABEL_STRATEGIES:
        strategy, owner = policy.strategies.get(kind), owner_of(kind, claims)
        if strategy is not None and strategy.rules and owner is not None and owner != policy.key:
            reason = (
                f"{owner}, the oldest policy of this name with {kind.value}, owns the labels; this one changes none"
            )
            field = f"spec.strategies.{kind.value}"
            found.append(Problem(field=field, value=str(policy.key), reason=reason, refused=False))
    return tuple(found)


def foreign_values(policy: Policy, violated: Mapping[str, Mapping[str, str]]) -> tuple[Problem, ...]:
    """The nodes that do not get the label of `deschedule`, since somebody else uses its key.

    `violated` are the labels of each node that violates the strategy.
    """
    label = deschedule_label(policy.key)
    nodes = {node: labels[label] for node, labels in violated.items() if label is not None and label in labels}
    foreign = [f"{node} ({label}={value})" for node, value in sorted(nodes.items()) if value not in REPLACEABLE]
    if not foreign:
        return ()
    reason = f"somebody else has set the label {label}, and this value stays: {_first(foreign)}"
    return (Problem(field="metadata.name", value=repr(policy.key.name), reason=reason, refused=False),)


PolicyUid = tuple[PolicyKey, str]
"""A policy and its uid: a later policy of the same name is another one."""


class UnsetLabels:
    """The labels that verdicts desire to be set and that nodes do not have, for each policy, and since when.

    `labels` needs an instant to set a label, and reports a label that the API server refuses (`tas.verdict.refused`).
    If another label is missing for `seconds`, `labels` cannot work. As in `StateBook`, there is one object of each
    policy and of each set of labels: every verdict brings its own.
    """

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._of_node: dict[str, dict[PolicyUid, Mapping[str, str]]] = {}
        self._nodes: dict[PolicyUid, set[str]] = {}
        self._policies: dict[PolicyUid, PolicyUid] = {}  # the kept object of each policy in `_nodes`
        self._labels: dict[PolicyUid, dict[tuple[tuple[str, str], ...], Mapping[str, str]]] = {}
        self._since: dict[PolicyUid, dict[tuple[str, str], float]] = {}

    def take(self, node: str, policies: Mapping[PolicyUid, PolicyVerdict]) -> None:
        """Applies the verdict of a node; without policies the node was deleted."""
        node = sys.intern(node)
        before = self._of_node.pop(node, {})
        desired: dict[PolicyUid, Mapping[str, str]] = {}
        for found, verdict in policies.items():
            if labels := labels_to_set(verdict):
                policy = self._policies.setdefault(found, found)
                desired[policy] = self._labels.setdefault(policy, {}).setdefault(tuple(labels.items()), labels)
                self._nodes.setdefault(policy, set()).add(node)
        if desired:
            self._of_node[node] = desired
        for policy in before.keys() - desired.keys():
            self._nodes[policy].discard(node)
            if not self._nodes[policy]:
                for kept in (self._nodes, self._policies, self._labels):
                    del kept[policy]
                self._since.pop(policy, None)

    def clear(self) -> None:
        """Forgets everything, for a new epoch."""
        for kept in (self._of_node, self._nodes, self._policies, self._labels, self._since):
            kept.clear()

    def problems(
        self,
        policy: PolicyUid,
        has_label: Callable[[str, str], bool | None],
        *,
        owned: Collection[StrategyType],
        refused: Collection[tuple[str, str | None]],
        at: float,
    ) -> tuple[Problem, ...]:
        """The labels of the `owned` strategies that nodes lack for too long, with these nodes.

        Without the labels with values that are known to be `refused`. `has_label` is whether a node has a label with
        any value; None if that is not known. `at` is a monotonic time, in seconds: call this often enough to notice a
        label that comes and goes.
        """
        missing = {
            (label, node)
            for node in self._nodes.get(policy, ())
            for label in self._of_node[node][policy]
            if strategy_of(label) in owned and has_label(node, label) is False
        }
        before = self._since.get(policy, {})
        self._since[policy] = since = {each: before.get(each, at) for each in missing}
        nodes: dict[tuple[str, str], list[str]] = {}
        for label, node in sorted(missing):
            if at - since[label, node] >= self._seconds:
                nodes.setdefault((label, self._of_node[node][policy][label]), []).append(node)
        return _unset_problems(nodes, refused, self._seconds)


def unset_labels(
    policy: Policy,
    verdicts: Mapping[str, PolicyVerdict],
    labels: Mapping[str, Mapping[str, str] | None],
    *,
    owned: Collection[StrategyType],
    refused: Collection[tuple[str, str | None]],
    seconds: float,
    now: float,
) -> tuple[Problem, ...]:
    """`UnsetLabels.problems` at one time: the labels that verdicts desire to be set since `seconds`, by their `for`.

    `verdicts` are those of this policy by node. `labels` are those of each node; None, or no entry: not known.
    """
    nodes: dict[tuple[str, str], list[str]] = {}
    for node, verdict in sorted(verdicts.items()):
        known = labels.get(node)
        for kind, strategy in verdict.strategies.items():
            if known is None or kind not in owned or kind not in policy.strategies:
                continue
            latest = now - seconds - policy.strategies[kind].for_
            for label, each in strategy.labels.items():
                is_set = each.desired.kind in (DesiredKind.SET, DesiredKind.SET_IF_ABSENT)
                if is_set and label not in known and each.violated_since is not None and each.violated_since <= latest:
                    nodes.setdefault((label, each.desired.value), []).append(node)
    return _unset_problems(nodes, refused, seconds)


def _unset_problems(
    nodes: Mapping[tuple[str, str], Sequence[str]], refused: Collection[tuple[str, str | None]], seconds: float
) -> tuple[Problem, ...]:
    """The problem of each label and value that nodes lack, with these nodes."""
    return tuple(
        Problem(
            field=f"spec.strategies.{strategy_of(label).value}",
            value=f"{label}={value}",
            reason=f"nodes without the label for at least {seconds:g} s: {len(names)} ({_first(names)}). "
            "The worker `labels` does not run, or cannot reach the API server: see the log of `tas run labels` or "
            "`tas run all`. Or these nodes wait for their turn (--label-rate): tas get policies says how many",
            refused=False,
        )
        for (label, value), names in nodes.items()
        if (label, value) not in refused
    )


def waiting_problem(nodes: int) -> Problem:
    """That so many nodes wait for their first label of a policy, since many want one at once."""
    return Problem(
        field="spec.strategies",
        value=counted(nodes, "node"),
        reason="must wait for a turn to get the first label of this policy (--label-rate, --label-rate-all)",
        refused=False,
    )


def labels_to_set(verdict: PolicyVerdict) -> Mapping[str, str]:
    """The labels that a verdict sets, with their values."""
    return {
        label: each.desired.value
        for strategy in verdict.strategies.values()
        for label, each in strategy.labels.items()
        if each.desired.kind in (DesiredKind.SET, DesiredKind.SET_IF_ABSENT)
    }


def policy_status(
    policy: Policy,
    *,
    generation: int,
    problems: Sequence[Problem],
    unset: Sequence[Problem],
    unmarked: Sequence[Problem],
    freeze: Freeze | None,
    states: Mapping[StrategyType, NodeStates],
    unseen: Collection[MetricUse],
    before: object,
    now: float,
    lost: Collection[str] = (),
) -> dict[str, Any]:
    """The status as JSON types, for a merge patch of the current status.

    Args:
        policy: As far as it can be read.
        generation: Of the spec that it was read from.
        problems: What is wrong with it.
        unset: Which labels nodes do not have as desired.
        unmarked: Which marks nodes do not have as the policy wants them.
        freeze: Why all its labels stay unchanged; None: they do not.
        states: Of each strategy that has a state the nodes, as their verdicts say.
        unseen: Which of its metrics no node has a fresh sample of.
        before: The current status. A condition that does not change keeps its time; conditions of others stay.
        now: Seconds since 1970.
        lost: The workers that nobody runs, although somebody should. Their absence changes no label: only what is said.
    """
    violating = sorted({node for each in states.values() for node in each.violated})
    ready = _ready(policy, problems, unset, unmarked, freeze or _not_done(policy, lost))
    violates = _not_evaluated(policy, lost) or _violating(policy, states, violating)
    current = dict(zip(CONDITIONS, (ready, _metrics_seen(policy, unseen), violates), strict=True))
    return {
        "observedGeneration": generation,
        "conditions": _merged(current, before, generation=generation, now=now),
        "violating": len(violating),
        "violatingNodes": violating[:MAX_NAMES],
        "strategies": [
            {
                "name": kind.value,
                "violated": len(states[kind].violated),
                "met": len(states[kind].met),
                "unknown": len(states[kind].unknown),
            }
            for kind in VERDICT_STRATEGIES
            if kind in states
        ],
        "problems": [
            {"field": each.field, "value": each.value, "reason": each.reason, "refused": each.refused}
            for each in (*unset, *unmarked, *problems)[:MAX_NAMES]
        ],
        "message": violates[2] if ready[1] == "InForce" else ready[2],
    }


def status_without_bus(
    policy: Policy, *, generation: int, problems: Sequence[Problem], before: object, now: float
) -> dict[str, Any]:
    """What changes of a status while nobody can read the bus, for a merge patch: who violates is as it was before.

    What the policy itself says, as that it is suspended, stays. Arguments as of `policy_status`.
    """
    unknown = ("Unknown", BUS_UNREACHABLE, WITHOUT_BUS)
    ready = _ready(policy, problems, (), (), None)
    current = dict.fromkeys(CONDITIONS, unknown) | ({"Ready": ready} if ready[0] == "False" else {})
    return {
        "conditions": _merged(current, before, generation=generation, now=now),
        "message": (ready if ready[0] == "False" else unknown)[2],
    }


def says_bus_unreachable(status: object) -> bool:
    """Whether a status is one of `status_without_bus`."""
    return _conditions(status).get("Violating", {}).get("reason") == BUS_UNREACHABLE


def not_ready_reason(status: Mapping[str, Any]) -> str | None:
    """The reason for which the condition `Ready` of a status is False, one of `NOT_READY`; None if it is True."""
    ready = _conditions(status)["Ready"]
    return str(ready["reason"]) if ready["status"] == "False" else None


def differs(before: object, after: Mapping[str, Any]) -> bool:
    """Whether a patch with `after` would change the current status."""
    if not isinstance(before, dict):
        return True
    return any(before.get(field) != value for field, value in after.items())


def _ready(
    policy: Policy,
    problems: Sequence[Problem],
    unset: Sequence[Problem],
    unmarked: Sequence[Problem],
    freeze: Freeze | None,
) -> tuple[str, str, str]:
    refused = [problem for problem in problems if problem.refused]
    if refused:
        return "False", "PartlyUnreadable", _first([str(problem) for problem in refused])
    if policy.suspend:
        return "False", "Suspended", "suspend is true: all nodes pass, none is scored, labels stay unchanged"
    if policy.dry_run:
        return "False", "DryRun", "dryRun is true: the policy is evaluated and reported here, without any effect"
    if not any(strategy.rules for strategy in policy.strategies.values()):
        return "False", "NothingToDo", "no strategy with rules"
    text = _first([str(problem) for problem in (*unset, *unmarked, *problems)])
    held = freeze
    if held is None and (unset or unmarked):
        held = Freeze("LabelsNotWritten" if unset else "MarksNotWritten", text)
    if held is not None:
        return "False", held.reason, held.text
    in_force = f"in force: {', '.join(sorted(policy.strategies))}"
    return ("True", "PartlyIgnored", text) if problems else ("True", "InForce", in_force)


def _not_done(policy: Policy, lost: Collection[str]) -> Freeze | None:
    """Why nobody does what the policy wants, although it is in force."""
    if (found := _not_evaluated(policy, lost)) is not None:
        return Freeze(*found[1:])
    labelled = any(policy.strategies[kind].rules for kind in LABEL_STRATEGIES if kind in policy.strategies)
    if labelled and "labels" in lost:
        return Freeze("LabelsNotWritten", "no process runs labels: no label is set or removed; tas status says more")
    return None


def _not_evaluated(policy: Policy, lost: Collection[str]) -> tuple[str, str, str] | None:
    """What nobody knows while nobody computes verdicts: those of before stay, and so do the labels."""
    has_verdicts = any(policy.strategies[kind].rules for kind in VERDICT_STRATEGIES if kind in policy.strategies)
    if not has_verdicts or "evaluate" not in lost:
        return None
    text = "no process runs evaluate: verdicts are those of before, and labels stay as they are; tas status says more"
    return "Unknown", "NotEvaluated", text


def _metrics_seen(policy: Policy, unseen: Collection[MetricUse]) -> tuple[str, str, str]:
    used = metrics_of(policy)
    if not used:
        return "Unknown", "NoMetrics", "no rule reads a metric"
    missing = sorted(used.intersection(unseen))
    if missing:
        return "False", "NoFreshSample", f"no node has a fresh sample of {_first([str(each) for each in missing])}"
    return "True", "Fresh", f"fresh samples of {_first([str(each) for each in sorted(used)])}"


def _violating(
    policy: Policy, states: Mapping[StrategyType, NodeStates], violating: Sequence[str]
) -> tuple[str, str, str]:
    if not any(policy.strategies[kind].rules for kind in VERDICT_STRATEGIES if kind in policy.strategies):
        return "False", "NothingToViolate", "no rule forbids anything"
    evaluated = max((each.count for each in states.values()), default=0)
    if not evaluated:
        return "Unknown", "NoVerdict", "no node has been evaluated yet"
    nodes = counted(evaluated, "node")
    if violating:
        verb = counted(len(violating), f"of {nodes} violates", f"of {nodes} violate")
        return "True", "NodesViolate", f"{verb}: {_first(violating)}"
    unknown = {node for each in states.values() for node in each.unknown}
    if unknown:
        text = f"none of {nodes} is known to violate, {counted(len(unknown), 'is', 'are')} unknown"
        if kept := {node for each in states.values() for node in each.kept}:
            text += ", of which " + counted(len(kept), "gets no pods because of its", "get no pods because of their")
            text += " last known values"
        return "False", "SomeUnknown", text
    return "False", "NoneViolates", f"none of {nodes} violates"


def _merged(
    current: Mapping[str, tuple[str, str, str]], before: object, *, generation: int, now: float
) -> list[dict[str, Any]]:
    """The conditions, and before them those of others."""
    previous = _conditions(before)
    return [
        *(dict(each) for kind, each in previous.items() if kind not in current),
        *(
            _condition(kind, each, before=previous.get(kind), generation=generation, now=now)
            for kind, each in current.items()
        ),
    ]


def _condition(
    kind: str, current: tuple[str, str, str], *, before: Mapping[str, Any] | None, generation: int, now: float
) -> dict[str, Any]:
    status, reason, message = current
    since = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if before is not None and before.get("status") == status and isinstance(before.get("lastTransitionTime"), str):
        since = before["lastTransitionTime"]
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": since,
    }


def _conditions(status: object) -> dict[str, dict[str, Any]]:
    """The current conditions, by type."""
    found = status.get("conditions") if isinstance(status, dict) else None
    return {
        each["type"]: each
        for each in (found if isinstance(found, list) else ())
        if isinstance(each, dict) and isinstance(each.get("type"), str)
    }


def _first(names: Sequence[str]) -> str:
    """The first names in one line, and how many more there are."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


class NodeState(NamedTuple):
    """The state of a strategy on a node, and whether filter rejects the node by last known values (`onStale: keep`)."""

    state: State
    kept: bool = False


_States = tuple[tuple[StrategyType, NodeState], ...]
"""The state of each strategy of a policy on a node, in the order of the kinds."""

_KEPT = NodeState(State.UNKNOWN, kept=True)


class StateBook:
    """The states of every policy on every node, updated with each verdict.

    Every verdict brings its own objects of equal policies and states. The book keeps one object of each, which takes a
    tenth of the memory with 50 policies on each node.
    """

    def __init__(self) -> None:
        self._sets: dict[PolicyUid, dict[StrategyType, dict[NodeState, set[str]]]] = {}
        self._of_node: dict[str, dict[PolicyUid, _States]] = {}
        self._policies: dict[PolicyUid, PolicyUid] = {}  # the kept object of each policy in `_sets`
        self._states: dict[_States, _States] = {}  # at most one for each combination of kinds and states

    def take(self, node: str, states: Mapping[PolicyUid, Mapping[StrategyType, NodeState]]) -> frozenset[PolicyKey]:
        """Applies the states of a node's verdict by key and uid of the policies; empty if the node was deleted.

        Returns the policies whose states have changed.
        """
        node = sys.intern(node)
        before = self._of_node.pop(node, {})
        after: dict[PolicyUid, _States] = {}
        for policy, each in states.items():
            if each:
                items = tuple(sorted(each.items()))
                after[self._policies.setdefault(policy, policy)] = self._states.setdefault(items, items)
        if after:
            self._of_node[node] = after
        changed = {policy for policy in before.keys() | after.keys() if before.get(policy) != after.get(policy)}
        for policy in changed:
            for kind, state in after.get(policy, ()):
                self._sets.setdefault(policy, {}).setdefault(kind, {}).setdefault(state, set()).add(node)
            for kind, state in before.get(policy, ()):
                if (kind, state) not in after.get(policy, ()):
                    self._drop(policy, kind, state, node)
        return frozenset(key for key, _ in changed)

    def clear(self) -> None:
        """Forgets everything, for a new epoch."""
        self._sets.clear()
        self._of_node.clear()
        self._policies.clear()

    def states(self, key: PolicyKey, uid: str) -> dict[StrategyType, NodeStates]:
        """The nodes of each strategy of a policy."""
        return {
            kind: NodeStates(
                violated=by_state.get(NodeState(State.VIOLATED), ()),
                met=by_state.get(NodeState(State.MET), ()),
                unknown={*by_state.get(NodeState(State.UNKNOWN), ()), *by_state.get(_KEPT, ())} or (),
                kept=by_state.get(_KEPT) or (),
            )
            for kind, by_state in self._sets.get((key, uid), {}).items()
        }

    def _drop(self, policy: PolicyUid, kind: StrategyType, state: NodeState, node: str) -> None:
        by_kind = self._sets[policy]
        by_kind[kind][state].discard(node)
        if not any(by_kind[kind].values()):
            del by_kind[kind]
        if not by_kind:
            del self._sets[policy], self._policies[policy]
