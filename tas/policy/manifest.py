"""Parses a TASPolicy manifest, and reports every problem. Writes a policy as a `spec` of the CRD.

A value that the CRD's schema would reject affects no node and removes no label. In a rule, it makes the rule unknown
for every node; in a field of a strategy, all rules of the strategy; in a field of the policy, the policy is suspended.
A value that the original's schema accepted is read as in the original, or left out alone, and reported.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import msgspec

from tas.errors import InvalidInputError, Unquoted, shortened
from tas.policy.policy import (
    API_VERSION,
    KIND,
    LABEL_PREFIX,
    MAX_BREAKER_NODES,
    MAX_RULE_LABELS,
    MAX_RULES,
    MAX_STRATEGY_LABELS,
    MAX_WEIGHT,
    ON_STALE,
    POD_LABEL,
    BreakerLimits,
    LogicalOperator,
    OnStale,
    Operator,
    Policy,
    PolicyKey,
    Problem,
    Rule,
    ScoreMode,
    Strategy,
    StrategyType,
    TaintEffect,
)
from tas.policy.room import WithoutRoom
from tas.policy.selector import LabelSelector, SelectorError, parse_selector, selector_spec
from tas.samples.freshness import DEFAULT_STALE_AFTER
from tas.samples.sample import MAX_SAMPLE_AGE
from tas.values.duration import DurationError, format_duration, parse_duration
from tas.values.names import (
    is_dns_label,
    is_label_name,
    is_label_value,
    is_metric_name,
    is_source_name,
    is_subdomain,
)
from tas.values.nouns import counted
from tas.values.quantity import MAX_QUANTITY, NANO, Quantity, QuantityError, format_quantity, parse_quantity
from tas.values.window import near_window

MAX_STRATEGIES = 100
"""The most strategies of a policy, those of unknown names included: each of these is compared with the known ones."""

MAX_PROBLEMS = 100
"""The most problems that are reported one by one; further ones are only counted, to limit the size of the message."""

MAX_KEEP_FOR = MAX_SAMPLE_AGE
"""The longest `keepFor` in seconds, and its default: an older value is not stored."""

MAX_FOR = 7 * 24 * 3600.0
"""The longest `for` and `clearFor` in seconds: more than a week is most likely a wrong unit."""

STRATEGY_FIELDS = (
    *("policyName", "logicalOperator", "rules", "onStale", "keepFor", "for", "clearFor", "scoreMode"),
    *("taint", "nodeCondition"),
)
"""The fields of a strategy by the CRD."""

UNREADABLE = Rule(metric="", operator=None, target=None)
"""Replaces a rule that has no readable field."""

_OBJECT_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
_HEAD = frozenset({"apiversion", "kind", "metadata", "spec"})
_SPEC_FIELDS = ("strategies", "suspend", "dryRun", "nodeSelector", "staleAfter", "breaker")
_BREAKER_FIELDS = ("maxNodes", "maxPercent")
_TAINT_FIELDS = ("effect",)
_RULE_FIELDS = ("metricname", "operator", "target", "labels", "source", "weight", "podCost")

# The strategies that set labels, and so can have `for` and `clearFor`.
_LABELLING = frozenset({StrategyType.DESCHEDULE, StrategyType.LABELING})
_GROUP = API_VERSION.partition("/")[0]
_LABEL_SYNTAX = "at most 63 letters, digits, _, . and -"
_API_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9./-]{0,63}")
_PLAIN_KEY = re.compile(r"[a-zA-Z0-9_./-]{1,63}")

Object = dict[Any, Any]
"""An object as decoded from JSON or YAML: its keys may be anything."""

Choice = TypeVar("Choice", bound=StrEnum)


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
"""The value of a field that is not given, unlike null."""


def parse_manifest(manifest: object, *, default_namespace: str = "default") -> tuple[Policy, tuple[Problem, ...]]:
    """The policy of a whole object, with apiVersion, kind, metadata and spec.

    Raises InvalidInputError if the object is not a TASPolicy, or its name or namespace is invalid.
    """
    if not isinstance(manifest, dict):
        # Not the value: the file may be no manifest at all but a secret, and the message goes to logs and `/problems`.
        raise InvalidInputError("manifest", "document", Unquoted(manifest), "must be an object")
    metadata = manifest.get("metadata", ABSENT)
    name = metadata.get("name", ABSENT) if isinstance(metadata, dict) else ABSENT
    subject = f"manifest {name}" if isinstance(name, str) and is_subdomain(name) else "manifest"
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        found = manifest.get(field, ABSENT)
        if not isinstance(found, str) or found != expected:
            quoted = found in (ABSENT, None) or (isinstance(found, str) and _API_NAME.fullmatch(found))
            shown = found if quoted else Unquoted(found)
            raise InvalidInputError(subject, field, shown, f"must be {expected}")
    if not isinstance(metadata, dict):
        raise InvalidInputError(subject, "metadata", metadata, "must be an object")
    if not isinstance(name, str) or not is_subdomain(name):
        raise InvalidInputError(subject, "metadata.name", name, "must be a lowercase DNS subdomain (RFC 1123)")
    namespace = metadata.get("namespace")
    if namespace is None:
        namespace = default_namespace
    if not isinstance(namespace, str) or not is_dns_label(namespace):
        raise InvalidInputError(subject, "metadata.namespace", namespace, "must be a lowercase DNS label (RFC 1123)")
    problems = _Problems()
    _Scope(problems, "").report_unknown(manifest, _OBJECT_FIELDS)
    policy = _policy(PolicyKey(namespace, name), manifest.get("spec"), problems)
    return policy, problems.found()


def is_another_kind(manifest: object) -> bool:
    """Whether the object is certainly not a policy, not even a misspelled one: then a file may have it, too.

    That is true for an object of another kind, and for an object without any field of `_HEAD`, in upper or lower case:
    the configuration of another program. An empty object may be a policy that is just being written.
    """
    if not isinstance(manifest, dict) or not manifest:
        return False
    if not any(isinstance(key, str) and key.lower() in _HEAD for key in manifest):
        return True
    version, kind = manifest.get("apiVersion"), manifest.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    return version.partition("/")[0] != _GROUP and kind.lower() != KIND.lower()


class ParsedSpec(NamedTuple):
    """A spec that was parsed before."""

    policy: Policy
    problems: tuple[Problem, ...]


def parse_policy(key: PolicyKey, spec: object) -> tuple[Policy, tuple[Problem, ...]]:
    """The policy of a `spec`, as decoded from JSON or YAML, and all its problems.

    Never raises: an invalid value becomes a problem and affects no node (see the top of this module).
    """
    if isinstance(spec, ParsedSpec):
        return spec
    problems = _Problems()
    policy = _policy(key, spec, problems)
    return policy, problems.found()


def policy_spec(policy: Policy) -> dict[str, Any]:
    """The `spec` of a policy as plain JSON types, without default values.

    `parse_policy` gives the same policy back, with the refused problems of unreadable rules only.
    """
    spec: dict[str, Any] = {}
    if policy.suspend:
        spec["suspend"] = True
    if policy.dry_run:
        spec["dryRun"] = True
    if policy.node_selector is not None:
        spec["nodeSelector"] = selector_spec(policy.node_selector)
    if policy.stale_after is not None:
        spec["staleAfter"] = format_duration(policy.stale_after)
    if policy.breaker is not None:
        limits = (policy.breaker.max_nodes, policy.breaker.max_percent)
        spec["breaker"] = {
            name: limit for name, limit in zip(_BREAKER_FIELDS, limits, strict=True) if limit is not None
        }
    spec["strategies"] = {kind.value: _strategy_spec(strategy) for kind, strategy in policy.strategies.items()}
    return spec


def _strategy_spec(strategy: Strategy) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if strategy.logical_operator is not LogicalOperator.ANY_OF:
        spec["logicalOperator"] = strategy.logical_operator.value
    if strategy.on_stale is not ON_STALE[strategy.type][0]:
        spec["onStale"] = strategy.on_stale.value
    if strategy.on_stale is OnStale.KEEP and strategy.keep_for != MAX_KEEP_FOR:
        spec["keepFor"] = format_duration(strategy.keep_for)
    if strategy.score_mode is not ScoreMode.RANK:
        spec["scoreMode"] = strategy.score_mode.value
    if strategy.for_:
        spec["for"] = format_duration(strategy.for_)
    if strategy.clear_for:
        spec["clearFor"] = format_duration(strategy.clear_for)
    if strategy.taint is not None:
        spec["taint"] = {"effect": strategy.taint.value}
    if strategy.node_condition:
        spec["nodeCondition"] = True
    spec["rules"] = [_rule_spec(rule) for rule in strategy.rules]
    return spec


def _rule_spec(rule: Rule) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if rule.metric:
        spec["metricname"] = rule.metric
    if rule.operator is not None:
        spec["operator"] = rule.operator.value
    spec["target"] = None if rule.target is None else _quantity_spec(rule.target)  # an absent target would mean 0
    if rule.labels:
        spec["labels"] = [f"{key}={value}" for key, value in rule.labels]
    if rule.source is not None:
        spec["source"] = rule.source
    if rule.weight is not None:
        spec["weight"] = rule.weight
    if rule.pod_cost is not None:
        spec["podCost"] = _quantity_spec(rule.pod_cost)
    return spec


def _quantity_spec(value: Quantity) -> int | str:
    # An integer where the original's CRD accepts one: int64, without a fraction.
    return value // NANO if value % NANO == 0 and abs(value) < 2**63 * NANO else format_quantity(value)


class _Problems:
    """The problems of one policy, in the order in which they were found."""

    def __init__(self) -> None:
        self._reported: list[Problem] = []
        self._further = 0
        self._further_refused = False

    def add(self, field: str, value: object, reason: str, *, refused: bool) -> None:
        if len(self._reported) < MAX_PROBLEMS:
            text = repr(value) if value is ABSENT else shortened(value)
            self._reported.append(Problem(field=field, value=text, reason=reason, refused=refused))
        else:
            self._further += 1
            self._further_refused = self._further_refused or refused

    def suggestion(self, name: object, known: Iterable[str]) -> str:
        """The name that may be meant, for a reason; empty if the problem will not be listed: to find one takes long."""
        return _suggestion(name, known) if len(self._reported) < MAX_PROBLEMS else ""

    def found(self) -> tuple[Problem, ...]:
        if not self._further:
            return tuple(self._reported)
        reason = f"{counted(self._further, 'more problem is', 'more problems are')} not listed"
        more = Problem(field="spec", value="…", reason=reason, refused=self._further_refused)
        return (*self._reported, more)


class _Scope:
    """The policy, strategy or rule that is being read. It is `broken` once one of its own fields was refused."""

    def __init__(self, problems: _Problems, path: str, effect: str = "") -> None:
        self.problems = problems
        self.path = path
        self.effect = effect
        self.broken = False

    def at(self, field: str) -> str:
        return f"{self.path}.{field}" if field else self.path

    def refuse(self, field: str, value: object, reason: str) -> None:
        """Reports a value that the schema would reject."""
        self.broken = True
        self.problems.add(self.at(field), value, f"{reason}; {self.effect}", refused=True)

    def note(self, field: str, value: object, reason: str) -> None:
        """Reports a value that is ignored, or read in an unexpected way."""
        self.problems.add(self.at(field), value, reason, refused=False)

    def report_unknown(self, found: Object, known: tuple[str, ...]) -> None:
        """Reports unknown fields: mostly typing errors, which the API server drops silently."""
        for key in found:
            if not isinstance(key, str) or key not in known:
                reason = f"unknown field, ignored{self.problems.suggestion(key, known)}"
                self.problems.add(field_path(self.path, key), found[key], reason, refused=False)

    def choice(self, field: str, value: object, choices: Iterable[Choice]) -> Choice | None:
        """The one of `choices` that `value` names; else the value is refused and the result None."""
        allowed = tuple(choices)
        for choice in allowed:
            if isinstance(value, str) and value == choice.value:
                return choice
        self.refuse(field, value, f"must be one of {', '.join(allowed)}")
        return None

    def flag(self, field: str, value: object) -> bool:
        if value is ABSENT:
            return False
        if not isinstance(value, bool):
            self.refuse(field, value, "must be true or false")
            return False
        return value

    def count(self, field: str, value: object, most: int) -> int | None:
        """The integer from 1 to `most`; None if the field is absent or refused."""
        if value is ABSENT:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
            return value
        self.refuse(field, value, f"must be an integer from 1 to {most}")
        return None

    def duration(self, field: str, value: object, most: float) -> float | None:
        """Seconds from 0 to `most`; None if the field is absent or refused."""
        if value is ABSENT:
            return None
        if not isinstance(value, str):
            self.refuse(field, value, "must be a duration with its unit, such as 90s or 2m")
            return None
        try:
            seconds = parse_duration(value)
        except DurationError:
            self.refuse(field, value, "must be a duration such as 90s, 2m or 1h30m")
            return None
        if not 0 <= seconds <= most:
            self.refuse(field, value, f"must be from 0s to {format_duration(most)}")
            return None
        return seconds


def field_path(parent: str, name: object) -> str:
    """The path of the field `name` of `parent` in problems: `spec.strategies`, or `spec["a key with spaces"]`."""
    if isinstance(name, str) and _PLAIN_KEY.fullmatch(name):
        return f"{parent}.{name}" if parent else name
    return f"{parent}[{shortened(name)}]"


def _suggestion(key: object, known: Iterable[str]) -> str:
    if not isinstance(key, str) or len(key) > 63:
        return ""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(key.lower(), by_lower, n=1, cutoff=0.75)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def _policy(key: PolicyKey, spec: object, problems: _Problems) -> Policy:
    scope = _Scope(problems, "spec", _POLICY_EFFECT)
    if isinstance(spec, WithoutRoom):
        scope.refuse("", list(spec.strategies), spec.reason)
        return _policy(key, {"strategies": dict.fromkeys(spec.strategies)}, _Problems())
    if spec is None:
        scope.note("", ABSENT, "a policy without strategies does nothing")
        return Policy(key=key, strategies={})
    if not isinstance(spec, dict):
        scope.refuse("", spec, "must be an object")
        return Policy(key=key, strategies={}, suspend=True)
    scope.report_unknown(spec, _SPEC_FIELDS)
    strategies = _strategies(key, spec.get("strategies", ABSENT), scope)
    suspend = scope.flag("suspend", spec.get("suspend", ABSENT))
    dry_run = scope.flag("dryRun", spec.get("dryRun", ABSENT))
    node_selector = _selector(spec.get("nodeSelector", ABSENT), scope)
    stale_after = scope.duration("staleAfter", spec.get("staleAfter", ABSENT), MAX_SAMPLE_AGE)
    if stale_after == 0:
        scope.refuse("staleAfter", spec["staleAfter"], "must be more than 0s")
        stale_after = None
    breaker = _breaker(spec.get("breaker", ABSENT), scope)
    _report_keep_for(strategies.get(StrategyType.DONTSCHEDULE), spec.get("strategies"), stale_after, scope)
    return Policy(
        key=key,
        strategies=strategies,
        suspend=suspend or scope.broken,
        dry_run=dry_run,
        node_selector=node_selector,
        stale_after=stale_after,
        breaker=breaker,
    )


def _breaker(found: object, scope: _Scope) -> BreakerLimits | None:
    """The limits; None, and the policy is suspended, if one is invalid: without a limit it could label every node."""
    if found is ABSENT:
        return None
    if not isinstance(found, dict) or not any(name in found for name in _BREAKER_FIELDS):
        scope.refuse("breaker", found, f"must be an object with {' or '.join(_BREAKER_FIELDS)}")
        return None
    below = _Scope(scope.problems, scope.at("breaker"), scope.effect)
    below.report_unknown(found, _BREAKER_FIELDS)
    limits = BreakerLimits(
        max_nodes=below.count("maxNodes", found.get("maxNodes", ABSENT), MAX_BREAKER_NODES),
        max_percent=below.count("maxPercent", found.get("maxPercent", ABSENT), 100),
    )
    scope.broken |= below.broken
    return None if below.broken else limits


def _strategies(key: PolicyKey, found: object, scope: _Scope) -> dict[StrategyType, Strategy]:
    if not isinstance(found, dict):
        scope.refuse("strategies", found, "must be an object of strategies by name")
        return {}
    if not found:
        scope.note("strategies", found, "a policy without strategies does nothing")
    if len(found) > MAX_STRATEGIES:
        scope.refuse("strategies", f"{len(found)} strategies", f"must be at most {MAX_STRATEGIES}")
        return {}
    path = scope.at("strategies")
    strategies: dict[StrategyType, Strategy] = {}
    for name, value in found.items():
        kind = next((kind for kind in StrategyType if isinstance(name, str) and name == kind.value), None)
        if kind is None:
            reason = f"no strategy of this name, ignored{scope.problems.suggestion(name, list(StrategyType))}"
            scope.problems.add(field_path(path, name), value, reason, refused=False)
        else:
            below = _Scope(scope.problems, field_path(path, kind.value), _STRATEGY_EFFECT)
            strategies[kind] = _strategy(kind, value, below)
    return _fitting_names(key, strategies, scope.problems)


_POLICY_EFFECT = "the policy is read as suspended"
_STRATEGY_EFFECT = "its rules are unknown for every node"
_RULE_EFFECT = "the rule is unknown for every node"


def reason_alone(problem: Problem) -> str:
    """The reason of a problem without the consequence, for callers that reject what the schema rejects."""
    for effect in (_POLICY_EFFECT, _STRATEGY_EFFECT, _RULE_EFFECT):
        if problem.reason.endswith(f"; {effect}"):
            return problem.reason.removesuffix(f"; {effect}")
    return problem.reason


def _fitting_names(
    key: PolicyKey, strategies: dict[StrategyType, Strategy], problems: _Problems
) -> dict[StrategyType, Strategy]:
    """Reports strategies that the policy's name does not fit; names may be longer than labels (facts.md D45)."""
    if not is_label_value(key.name):
        if StrategyType.DESCHEDULE in strategies:
            reason = "longer than 63 characters, so it can be no label's key: deschedule labels no node"
            problems.add("metadata.name", key.name, reason, refused=False)
        if strategies.keys() & {StrategyType.DONTSCHEDULE, StrategyType.SCHEDULEONMETRIC}:
            reason = f"longer than 63 characters, so no pod can name it in its label {POD_LABEL}"
            problems.add("metadata.name", key.name, reason, refused=False)
    if StrategyType.DESCHEDULE in strategies and key.name.startswith(LABEL_PREFIX):
        reason = f"begins with {LABEL_PREFIX}, as only labels of labeling do: deschedule labels no node"
        problems.add("metadata.name", key.name, reason, refused=False)
    labeling = strategies.get(StrategyType.LABELING)
    if labeling is not None and not is_subdomain(LABEL_PREFIX + key.name):
        reason = f"with {LABEL_PREFIX} before it longer than 253 characters: labeling labels no node"
        problems.add("metadata.name", key.name, reason, refused=False)
        rules = tuple(msgspec.structs.replace(rule, labels=()) for rule in labeling.rules)
        strategies[StrategyType.LABELING] = msgspec.structs.replace(labeling, rules=rules)
    return strategies


def _strategy(kind: StrategyType, found: object, scope: _Scope) -> Strategy:
    default = ON_STALE[kind][0]
    if not isinstance(found, dict):
        scope.refuse("", found, "must be an object")
        return Strategy(type=kind, rules=(UNREADABLE,), on_stale=default, keep_for=_default_keep_for(default))
    scope.report_unknown(found, STRATEGY_FIELDS)
    logical_operator: LogicalOperator | None = LogicalOperator.ANY_OF
    if found.get("logicalOperator", "") != "":
        logical_operator = scope.choice("logicalOperator", found["logicalOperator"], LogicalOperator)
    on_stale, keep_for = _on_stale(kind, found, scope)
    score_mode: ScoreMode | None = ScoreMode.RANK
    if "scoreMode" in found:
        score_mode = scope.choice("scoreMode", found["scoreMode"], ScoreMode)
        if kind is not StrategyType.SCHEDULEONMETRIC:
            scope.refuse("scoreMode", found["scoreMode"], "is for scheduleonmetric only")
            score_mode = None
    spans: dict[str, float] = {}
    for field in ("for", "clearFor"):
        spans[field] = scope.duration(field, found.get(field, ABSENT), MAX_FOR) or 0.0
        if field in found and kind not in _LABELLING:
            scope.refuse(field, found[field], "is for deschedule and labeling only")
            spans[field] = 0.0
    taint, node_condition = _marks(kind, found, scope)
    rules = _rules(kind, found, scope)
    if scope.broken:
        rules = tuple(msgspec.structs.replace(rule, operator=None) for rule in rules) or (UNREADABLE,)
    if on_stale not in (default, OnStale.PASS) and not all(rule.readable for rule in rules):
        reason = f"read as {default} while a rule cannot be read: it would act by that rule on every node"
        scope.note("onStale", on_stale.value, reason)
        on_stale, keep_for = default, _default_keep_for(default)
    return Strategy(
        type=kind,
        rules=rules,
        logical_operator=logical_operator or LogicalOperator.ANY_OF,
        on_stale=on_stale,
        keep_for=keep_for,
        score_mode=score_mode or ScoreMode.RANK,
        for_=spans["for"],
        clear_for=spans["clearFor"],
        taint=taint,
        node_condition=node_condition,
    )


def _default_keep_for(on_stale: OnStale) -> float:
    return MAX_KEEP_FOR if on_stale is OnStale.KEEP else 0.0


def _on_stale(kind: StrategyType, strategy: Object, scope: _Scope) -> tuple[OnStale, float]:
    """The effect of unknown, and for how many seconds values are kept; 0 unless it is `keep`."""
    default = ON_STALE[kind][0]
    on_stale = default
    if "onStale" in strategy:
        on_stale = scope.choice("onStale", strategy["onStale"], ON_STALE[kind]) or default
    found = strategy.get("keepFor", ABSENT)
    if found is ABSENT:
        return on_stale, _default_keep_for(on_stale)
    if kind is not StrategyType.DONTSCHEDULE:
        scope.refuse("keepFor", found, "is for dontschedule only")
        return on_stale, 0.0
    seconds = scope.duration("keepFor", found, MAX_KEEP_FOR)
    if on_stale is not OnStale.KEEP:
        scope.note("keepFor", found, f"has no effect with onStale: {on_stale}")
        return on_stale, 0.0
    if seconds == 0:
        return OnStale.PASS, 0.0
    return on_stale, _default_keep_for(on_stale) if seconds is None else seconds


def _report_keep_for(strategy: Strategy | None, written: object, stale_after: float | None, scope: _Scope) -> None:
    """Reports a `keepFor` that ends before a value is stale."""
    limit = DEFAULT_STALE_AFTER if stale_after is None else stale_after
    if strategy is not None and strategy.keeps and strategy.keep_for <= limit:
        found = written.get(strategy.type.value) if isinstance(written, dict) else None
        if isinstance(found, dict) and "keepFor" in found:
            whose = "the default of --stale-after" if stale_after is None else "staleAfter"
            reason = f"not longer than {whose}, {format_duration(limit)}: no value is kept"
            scope.note(f"strategies.{strategy.type.value}.keepFor", found["keepFor"], reason)


def _marks(kind: StrategyType, strategy: Object, scope: _Scope) -> tuple[TaintEffect | None, bool]:
    """The effect of the taint, if any, and whether the policy sets a node condition."""
    if kind is not StrategyType.DESCHEDULE:
        for field in ("taint", "nodeCondition"):
            if field in strategy:
                scope.refuse(field, strategy[field], "is for deschedule only")
        return None, False
    taint = _taint(strategy.get("taint", ABSENT), scope)
    return taint, scope.flag("nodeCondition", strategy.get("nodeCondition", ABSENT))


def _taint(found: object, scope: _Scope) -> TaintEffect | None:
    if found is ABSENT:
        return None
    if not isinstance(found, dict):
        scope.refuse("taint", found, "must be an object with effect")
        return None
    below = _Scope(scope.problems, scope.at("taint"), scope.effect)
    below.report_unknown(found, _TAINT_FIELDS)
    effect = None
    if found.get("effect") == "NoExecute":
        reason = f"evicts pods without regard to disruption budgets: must be one of {', '.join(TaintEffect)}"
        below.refuse("effect", found["effect"], reason)
    else:
        effect = below.choice("effect", found.get("effect", ABSENT), TaintEffect)
    scope.broken |= below.broken
    return effect


def _rules(kind: StrategyType, strategy: Object, scope: _Scope) -> tuple[Rule, ...]:
    found = strategy.get("rules", ABSENT)
    if not isinstance(found, list):
        scope.refuse("rules", found, "must be a list of rules")
        return (UNREADABLE,)
    if len(found) > MAX_RULES:
        scope.refuse("rules", f"{len(found)} rules", f"must have at most {MAX_RULES}")
        return (UNREADABLE,)
    if kind is StrategyType.LABELING and (labels := _count_labels(found)) > MAX_STRATEGY_LABELS:
        scope.refuse("rules", f"{labels} labels", f"must have at most {MAX_STRATEGY_LABELS} labels in all")
        return (UNREADABLE,)
    if not found:
        scope.note("rules", found, "without rules the strategy does nothing")
    path = scope.at("rules")
    rules = tuple(
        _rule(kind, rule, _Scope(scope.problems, f"{path}[{index}]", _RULE_EFFECT)) for index, rule in enumerate(found)
    )
    if kind is StrategyType.LABELING:
        return _without_contested_labels(rules, scope)
    if kind is StrategyType.SCHEDULEONMETRIC:
        _report_weights(rules, strategy, scope)
    return rules


def _count_labels(rules: list[Any]) -> int:
    """The number of labels in the text of all rules, also of invalid labels."""
    lists = (rule.get("labels") for rule in rules if isinstance(rule, dict))
    return sum(len(labels) for labels in lists if isinstance(labels, list))


def _rule(kind: StrategyType, found: object, scope: _Scope) -> Rule:
    if not isinstance(found, dict):
        scope.refuse("", found, "must be an object")
        return UNREADABLE
    scope.report_unknown(found, _RULE_FIELDS)
    labels = _labels(kind, found.get("labels", ABSENT), scope)
    source = _source(found.get("source", ABSENT), scope)
    weight = _weight(kind, found.get("weight", ABSENT), scope)
    pod_cost = _pod_cost(kind, found, scope)
    # Of labels, source, weight or podCost. An invalid metric, operator or target makes the rule unreadable by itself.
    broken = scope.broken
    operator = scope.choice("operator", found.get("operator", ABSENT), Operator)
    return Rule(
        metric=_metric(found.get("metricname", ABSENT), scope),
        operator=None if broken else operator,
        target=_target(found.get("target", ABSENT), scope),
        labels=labels,
        source=source,
        weight=weight,
        pod_cost=pod_cost,
    )


def _metric(found: object, scope: _Scope) -> str:
    if isinstance(found, str) and is_metric_name(found):
        if (reason := near_window(found)) is not None:
            scope.note("metricname", found, f"is the name of an ordinary metric, not of a statistic: {reason}")
        return found
    scope.refuse("metricname", found, "must be a metric's name of letters, digits, _, - and :")
    return ""


def _target(found: object, scope: _Scope) -> Quantity | None:
    return Quantity(0) if found is ABSENT else _quantity("target", found, scope)


def _pod_cost(kind: StrategyType, rule: Object, scope: _Scope) -> Quantity | None:
    found = rule.get("podCost", ABSENT)
    if found is ABSENT:
        return None
    if kind is not StrategyType.SCHEDULEONMETRIC:
        scope.refuse("podCost", found, "is for rules of scheduleonmetric only")
        return None
    if rule.get("operator") == Operator.EQUALS.value:
        scope.refuse("podCost", found, "is for LessThan and GreaterThan only: with Equals no direction is worse")
        return None
    cost = _quantity("podCost", found, scope)
    if cost is not None and cost <= 0:
        scope.refuse("podCost", found, "must be more than 0: a pod makes the value worse, whichever direction that is")
        return None
    return cost


def _quantity(field: str, found: object, scope: _Scope) -> Quantity | None:
    """The integer or quantity as text; None, and refused, if it is neither."""
    if isinstance(found, int) and not isinstance(found, bool):
        if abs(found) * NANO <= MAX_QUANTITY:
            return Quantity(found * NANO)
        scope.refuse(field, found, "is beyond 10^40")
    elif isinstance(found, str):
        try:
            return parse_quantity(found)
        except QuantityError:
            scope.refuse(field, found, 'must be an integer or a quantity such as "1500m"')
    elif isinstance(found, float):
        # A float is already rounded when it is read, and the CRD's type is integer or string.
        scope.refuse(field, found, 'must be an integer or a quantity: write a fraction as text, such as "1.5"')
    else:
        scope.refuse(field, found, 'must be an integer or a quantity such as "1500m"')
    return None


def _source(found: object, scope: _Scope) -> str | None:
    if found is ABSENT:
        return None
    if isinstance(found, str) and is_source_name(found):
        return found
    scope.refuse("source", found, "must be a source's name of lowercase letters, digits and -")
    return None


def _weight(kind: StrategyType, found: object, scope: _Scope) -> int | None:
    if found is ABSENT:
        return None
    if kind is not StrategyType.SCHEDULEONMETRIC:
        scope.refuse("weight", found, "is for rules of scheduleonmetric only")
        return None
    return scope.count("weight", found, MAX_WEIGHT)


def _report_weights(rules: tuple[Rule, ...], strategy: Object, scope: _Scope) -> None:
    """Reports which rules of `scheduleonmetric` do not count (facts.md D5)."""
    weighted = sum(rule.weight is not None for rule in rules)
    if not weighted and len(rules) > 1:
        reason = "only the first rule counts; give each rule a weight to combine them"
        scope.note("rules", f"{len(rules)} rules", reason)
    elif 0 < weighted < len(rules):
        scope.note("rules", f"{weighted} of {len(rules)} with a weight", "rules without a weight do not count")
    if weighted and strategy.get("scoreMode") == ScoreMode.RANK.value:
        scope.note("scoreMode", ScoreMode.RANK.value, "rules with a weight combine by their proportional scores")


def _labels(kind: StrategyType, found: object, scope: _Scope) -> tuple[tuple[str, str], ...]:
    """The labels that a rule sets; an invalid label is left out alone (facts.md D51, D54)."""
    if found is ABSENT:
        if kind is StrategyType.LABELING:
            scope.note("labels", ABSENT, "without labels the rule labels no node")
        return ()
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        scope.refuse("labels", found, "must be a list of strings key=value")
        return ()
    if len(found) > MAX_RULE_LABELS:
        scope.refuse("labels", f"{len(found)} labels", f"must have at most {MAX_RULE_LABELS}")
        return ()
    if kind is not StrategyType.LABELING:
        scope.note("labels", found, "is for rules of labeling only, ignored")
        return ()
    if not found:
        scope.note("labels", found, "without labels the rule labels no node")
    labels: dict[str, str] = {}
    for index, text in enumerate(found):
        key, _, value = text.partition("=")
        reason = _label_problem(text, labels)
        if reason is None:
            labels[key] = value
        else:
            scope.note(f"labels[{index}]", text, f"{reason}, left out")
    return tuple(labels.items())


def _label_problem(text: str, before: Mapping[str, str]) -> str | None:
    key, equals, value = text.partition("=")
    if not equals:
        return "must be key=value"
    if not is_label_name(key):
        return f"the key must be a valid label name ({_LABEL_SYNTAX})"
    if not is_label_value(value):
        return f"the value must be a valid label value ({_LABEL_SYNTAX})"
    if key in before:
        return f"duplicate key in this rule, the first counts: {key}={before[key]}"
    return None


def _without_contested_labels(rules: tuple[Rule, ...], scope: _Scope) -> tuple[Rule, ...]:
    """Leaves out a label key of rules with different operators: their values cannot be compared (facts.md D52)."""
    operators: dict[str, set[Operator]] = {}
    for rule in rules:
        for key, _ in rule.labels:
            if rule.operator is not None:
                operators.setdefault(key, set()).add(rule.operator)
    contested = {key for key, several in operators.items() if len(several) > 1}
    for key in sorted(contested):
        reason = "rules with different operators set this label, left out of all of them"
        scope.note("rules", f"{key}: {', '.join(sorted(operators[key]))}", reason)
    if not contested:
        return rules
    return tuple(
        msgspec.structs.replace(rule, labels=tuple(pair for pair in rule.labels if pair[0] not in contested))
        for rule in rules
    )


def _selector(found: object, scope: _Scope) -> LabelSelector | None:
    """The selector; None, and the policy is suspended, if it is invalid: a part left out would select more nodes."""
    if found is ABSENT:
        return None
    try:
        return parse_selector(found)
    except SelectorError as error:
        scope.refuse("nodeSelector", found, str(error))
        return None
