"""TASPolicy: what a user wrote, checked once and turned into values.

The contract is the CRD `taspolicies.telemetry.intel.com` v1alpha1; every policy that the original accepted means
what it meant. The optional fields beyond it are those of our CRD. How it is written: `tas.manifest`.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from tas.quantity import Quantity, format_quantity
from tas.selector import LabelSelector

API_VERSION = "telemetry.intel.com/v1alpha1"
KIND = "TASPolicy"
POD_LABEL = "telemetry-policy"
"""The label by which a pod names its policy, in the pod's own namespace."""
LABEL_PREFIX = "telemetry.aware.scheduling."
"""A `labeling` strategy sets `<LABEL_PREFIX><policy>/<key>=<value>` on nodes."""


class StrategyType(StrEnum):
    """The strategies that mean something; any other key is reported and ignored."""

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
    """How the rules of a strategy combine; `anyOf` where nothing is said."""

    ANY_OF = "anyOf"
    ALL_OF = "allOf"


class OnStale(StrEnum):
    """What unknown does, by strategy: see `ON_STALE`."""

    PASS = "pass"  # noqa: S105 - the CRD's word, no secret
    FAIL = "fail"
    LOWEST = "lowest"
    NEUTRAL = "neutral"
    HOLD = "hold"
    VIOLATE = "violate"
    CLEAR = "clear"


ON_STALE: Mapping[StrategyType, tuple[OnStale, ...]] = {
    StrategyType.DONTSCHEDULE: (OnStale.PASS, OnStale.FAIL),
    StrategyType.SCHEDULEONMETRIC: (OnStale.LOWEST, OnStale.NEUTRAL),
    StrategyType.DESCHEDULE: (OnStale.HOLD, OnStale.VIOLATE, OnStale.CLEAR),
    StrategyType.LABELING: (OnStale.HOLD, OnStale.VIOLATE, OnStale.CLEAR),
}
"""What a strategy may say of unknown; the first is the default."""


class ScoreMode(StrEnum):
    """How values become scores."""

    RANK = "rank"
    PROPORTIONAL = "proportional"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: it describes the *bad* condition, and is violated when `value operator target` holds.

    `operator` and `target` are None, and `metric` is empty, if what stood there cannot be read: such a rule is unknown
    for every node. `labels` are the pairs that a labeling rule wishes, no key twice. `weight` (1 to `MAX_WEIGHT`) makes
    the scores of several rules combine.
    """

    metric: str
    operator: Operator | None
    target: Quantity | None
    labels: tuple[tuple[str, str], ...] = ()
    source: str | None = None
    weight: int | None = None

    @property
    def readable(self) -> bool:
        """Whether it says something of a node at all."""
        return self.operator is not None and self.target is not None and self.metric != ""

    def __str__(self) -> str:
        """As a person reads it, in reasons and explanations: `health_metric GreaterThan 1`."""
        metric = self.metric or "?"
        source = "" if self.source is None else f" of {self.source}"
        operator = "?" if self.operator is None else self.operator
        target = "?" if self.target is None else format_quantity(self.target)
        return f"{metric}{source} {operator} {target}"


MAX_WEIGHT = 100
"""The largest weight of a rule: as kube-scheduler's weights of plugins, and fine enough for percentages."""


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy of a policy. `for_` and `clear_for` are in seconds.

    While a rule of it cannot be read, `on_stale` is the default, since it would act by that rule on every node.
    """

    type: StrategyType
    rules: tuple[Rule, ...]
    logical_operator: LogicalOperator = LogicalOperator.ANY_OF
    on_stale: OnStale
    score_mode: ScoreMode = ScoreMode.RANK
    for_: float = 0.0
    clear_for: float = 0.0

    @property
    def readable(self) -> bool:
        """Whether all its rules can be read. If not, labels that no rule names any more say nothing: hold them."""
        return all(rule.readable for rule in self.rules)

    @property
    def rule_counts(self) -> tuple[bool, ...]:
        """Whether each rule counts: of `scheduleonmetric` the first, or those with a weight if any has (tas.md D5)."""
        if self.type is not StrategyType.SCHEDULEONMETRIC:
            return (True,) * len(self.rules)
        if any(rule.weight is not None for rule in self.rules):
            return tuple(rule.weight is not None for rule in self.rules)
        return tuple(number == 0 for number in range(len(self.rules)))

    @property
    def rule_texts(self) -> tuple[str, ...]:
        """Each rule as a person reads it here: `scheduleonmetric` orders nodes, and knows no violation."""
        if self.type is not StrategyType.SCHEDULEONMETRIC:
            return tuple(map(str, self.rules))
        return tuple(
            preference(rule) + ("" if counts else " (ignored)")
            for rule, counts in zip(self.rules, self.rule_counts, strict=True)
        )

    def __str__(self) -> str:
        """All its rules in one line."""
        if self.type is StrategyType.SCHEDULEONMETRIC:
            return ", ".join(self.rule_texts)
        return (" and " if self.logical_operator is LogicalOperator.ALL_OF else " or ").join(self.rule_texts)


def preference(rule: Rule) -> str:
    """What a rule of `scheduleonmetric` likes: `low load1 first`."""
    metric = (rule.metric or "?") + ("" if rule.source is None else f" of {rule.source}")
    weight = "" if rule.weight is None else f" (weight {rule.weight})"
    if rule.operator is Operator.EQUALS:
        target = "?" if rule.target is None else format_quantity(rule.target)
        return f"{metric} at {target} first{weight}"
    liked = {Operator.GREATER_THAN: "high", Operator.LESS_THAN: "low", None: "?"}[rule.operator]
    return f"{liked} {metric} first{weight}"


class PolicyKey(msgspec.Struct, frozen=True, order=True):
    """A policy's name in the cluster. A pod sees only policies of its own namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy as far as it can be read. `stale_after` is in seconds; None is the default of the setting."""

    key: PolicyKey
    strategies: Mapping[StrategyType, Strategy]
    suspend: bool = False
    dry_run: bool = False
    node_selector: LabelSelector | None = None
    stale_after: float | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong with a policy: the field, its value, and what was made of it.

    `refused` problems are those that the CRD's schema would not let in; the others are accepted, and the part is
    ignored or read as the original did.
    """

    field: str
    value: str
    reason: str
    refused: bool

    def __str__(self) -> str:
        return f"{self.field} = {self.value}: {self.reason}"
