"""TASPolicy as a value, checked once.

The contract is the CRD `taspolicies.telemetry.intel.com` v1alpha1: every policy that the original accepted has the same
meaning. The further optional fields are those of our CRD. `tas.policy.manifest` reads and writes manifests.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from tas.policy.selector import LabelSelector
from tas.values.quantity import Quantity, exact_text

API_VERSION = "telemetry.intel.com/v1alpha1"
KIND = "TASPolicy"
POD_LABEL = "telemetry-policy"
"""The label by which a pod names its policy, in the pod's own namespace."""
LABEL_PREFIX = "telemetry.aware.scheduling."
"""A `labeling` strategy sets `<LABEL_PREFIX><policy>/<key>=<value>` on nodes."""
MARK_PREFIX = "telemetry.aware.scheduling/"
"""The key of a policy's taint and the type of its node condition are `<MARK_PREFIX><policy>`."""


class StrategyType(StrEnum):
    """The supported strategies; any other key is reported and ignored."""

    DONTSCHEDULE = "dontschedule"
    SCHEDULEONMETRIC = "scheduleonmetric"
    DESCHEDULE = "deschedule"
    LABELING = "labeling"


class Operator(StrEnum):
    """How a rule compares the value with its target."""

    EQUALS = "Equals"
    LESS_THAN = "LessThan"
    GREATER_THAN = "GreaterThan"


class LogicalOperator(StrEnum):
    """How the rules of a strategy combine; the default is `anyOf`."""

    ANY_OF = "anyOf"
    ALL_OF = "allOf"


class OnStale(StrEnum):
    """The effect of the state unknown; `ON_STALE` has the values for each strategy."""

    KEEP = "keep"
    PASS = "pass"  # noqa: S105 - a value of the CRD, no secret
    FAIL = "fail"
    LOWEST = "lowest"
    NEUTRAL = "neutral"
    HOLD = "hold"
    VIOLATE = "violate"
    CLEAR = "clear"


ON_STALE: Mapping[StrategyType, tuple[OnStale, ...]] = {
    StrategyType.DONTSCHEDULE: (OnStale.KEEP, OnStale.PASS, OnStale.FAIL),
    StrategyType.SCHEDULEONMETRIC: (OnStale.LOWEST, OnStale.NEUTRAL),
    StrategyType.DESCHEDULE: (OnStale.HOLD, OnStale.VIOLATE, OnStale.CLEAR),
    StrategyType.LABELING: (OnStale.HOLD, OnStale.VIOLATE, OnStale.CLEAR),
}
"""The allowed values of `onStale` for each strategy; the first one is the default."""


class ScoreMode(StrEnum):
    """How values become scores."""

    RANK = "rank"
    PROPORTIONAL = "proportional"


class TaintEffect(StrEnum):
    """The allowed effects of a policy's taint. `NoExecute` is not: it evicts without regard to disruption budgets."""

    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_SCHEDULE = "NoSchedule"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: it describes the *bad* condition, and is violated when `value operator target` holds.

    An invalid `operator` or `target` is None, an invalid `metric` empty: such a rule is unknown for every node.
    `labels` are the pairs that a labeling rule sets, with distinct keys. With `weight` (1 to `MAX_WEIGHT`) the scores
    of several rules are combined. `pod_cost` is how much one pod worsens the metric: more than 0, in the metric's unit.
    """

    metric: str
    operator: Operator | None
    target: Quantity | None
    labels: tuple[tuple[str, str], ...] = ()
    source: str | None = None
    weight: int | None = None
    pod_cost: Quantity | None = None

    @property
    def readable(self) -> bool:
        """Whether the metric, the operator and the target are valid."""
        return self.operator is not None and self.target is not None and self.metric != ""

    def __str__(self) -> str:
        """The text in reasons and explanations: `health_metric GreaterThan 1`."""
        metric = self.metric or "?"
        source = "" if self.source is None else f" of {self.source}"
        operator = "?" if self.operator is None else self.operator
        target = "?" if self.target is None else exact_text(self.target)
        return f"{metric}{source} {operator} {target}"


MAX_RULES = 64
"""The most rules of a strategy."""

MAX_RULE_LABELS = 32
"""The most labels of a rule of `labeling`."""

MAX_STRATEGY_LABELS = 128
"""The most labels of all rules of a `labeling` strategy: each costs bytes in the verdict of each node."""

MAX_WEIGHT = 100
"""The largest weight of a rule: the same as for plugins of kube-scheduler, and enough for percentages."""


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy of a policy. `for_` and `clear_for` are in seconds.

    With `onStale: keep`, a value that is not fresh counts for `keep_for` seconds after it was measured; else 0.
    `taint` and `node_condition` are the marks of `deschedule` (`tas.enforcing.marks`); None and False: no mark.
    If a rule is unreadable, `on_stale` is the default: another value would apply to every node, by that rule.
    """

    type: StrategyType
    rules: tuple[Rule, ...]
    logical_operator: LogicalOperator = LogicalOperator.ANY_OF
    on_stale: OnStale
    keep_for: float = 0.0
    score_mode: ScoreMode = ScoreMode.RANK
    for_: float = 0.0
    clear_for: float = 0.0
    taint: TaintEffect | None = None
    node_condition: bool = False

    @property
    def readable(self) -> bool:
        """Whether all rules are readable. If not, the unreadable rule may name any label, so all are held."""
        return all(rule.readable for rule in self.rules)

    @property
    def keeps(self) -> bool:
        """Whether values that are not fresh may count (`onStale: keep`)."""
        return self.on_stale is OnStale.KEEP

    @property
    def rule_counts(self) -> tuple[bool, ...]:
        """Whether each rule counts: of `scheduleonmetric` the first, or all with a weight if any has (facts.md D5)."""
        if self.type is not StrategyType.SCHEDULEONMETRIC:
            return (True,) * len(self.rules)
        if any(rule.weight is not None for rule in self.rules):
            return tuple(rule.weight is not None for rule in self.rules)
        return tuple(number == 0 for number in range(len(self.rules)))

    @property
    def pod_costs(self) -> tuple[Quantity | None, ...]:
        """The cost of one pod by each rule; None without a cost, and for a rule that does not count."""
        return tuple(
            rule.pod_cost if counts else None for rule, counts in zip(self.rules, self.rule_counts, strict=True)
        )

    @property
    def rule_texts(self) -> tuple[str, ...]:
        """The text of each rule: a preference in `scheduleonmetric`, which has no violations, else the condition."""
        if self.type is not StrategyType.SCHEDULEONMETRIC:
            return tuple(map(str, self.rules))
        return tuple(
            preference(rule) + ("" if counts else " (ignored)")
            for rule, counts in zip(self.rules, self.rule_counts, strict=True)
        )

    def __str__(self) -> str:
        """All rules in one line."""
        if self.type is StrategyType.SCHEDULEONMETRIC:
            return ", ".join(self.rule_texts)
        return (" and " if self.logical_operator is LogicalOperator.ALL_OF else " or ").join(self.rule_texts)


def preference(rule: Rule) -> str:
    """The text of a rule of `scheduleonmetric`: `low load1 first`."""
    metric = (rule.metric or "?") + ("" if rule.source is None else f" of {rule.source}")
    options = [
        *([] if rule.weight is None else [f"weight {rule.weight}"]),
        *([] if rule.pod_cost is None else [f"each pod costs {exact_text(rule.pod_cost)}"]),
    ]
    suffix = f" ({', '.join(options)})" if options else ""
    if rule.operator is Operator.EQUALS:
        target = "?" if rule.target is None else exact_text(rule.target)
        return f"{metric} at {target} first{suffix}"
    preferred = {Operator.GREATER_THAN: "high", Operator.LESS_THAN: "low", None: "?"}[rule.operator]
    return f"{preferred} {metric} first{suffix}"


MAX_BREAKER_NODES = 5000
"""The largest `maxNodes` of a breaker: as many nodes as a cluster of Kubernetes may have."""


class BreakerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits `maxNodes` and `maxPercent` of a policy's `breaker`, of which at least one is given.

    `max_nodes` is from 1 to `MAX_BREAKER_NODES`, `max_percent` from 1 to 100. Of two limits the lower one counts.
    """

    max_nodes: int | None = None
    max_percent: int | None = None


class PolicyKey(msgspec.Struct, frozen=True, order=True):
    """A policy's name in the cluster. A pod sees only policies of its own namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The readable parts of a policy. `stale_after` is in seconds; None means the default of the setting.

    Without a `breaker` the default of the setting counts, too.
    """

    key: PolicyKey
    strategies: Mapping[StrategyType, Strategy]
    suspend: bool = False
    dry_run: bool = False
    node_selector: LabelSelector | None = None
    stale_after: float | None = None
    breaker: BreakerLimits | None = None

    def stale_after_or(self, default: float) -> float:
        """Seconds after which a sample is stale for this policy: its own `staleAfter`, else the default setting."""
        return default if self.stale_after is None else self.stale_after

    def selects(self, labels: Mapping[str, str] | None) -> bool | None:
        """Whether the policy concerns a node with these labels; None if that depends on labels that are not known."""
        if self.node_selector is None:
            return True
        return None if labels is None else self.node_selector.matches(labels)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a policy: the field, its value, and the consequence.

    `refused`: the CRD's schema would reject the value. All other values are accepted, and ignored or read as in the
    original.
    """

    field: str
    value: str
    reason: str
    refused: bool

    def __str__(self) -> str:
        return f"{self.field} = {self.value}: {self.reason}"
