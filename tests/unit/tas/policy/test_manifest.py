"""Manifests: the meaning of each field, the problems, and the `spec` written back."""

import json
from datetime import date
from difflib import get_close_matches
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import InvalidInputError
from tas.policy import manifest
from tas.policy.manifest import MAX_PROBLEMS, UNREADABLE, parse_manifest, parse_policy, policy_spec
from tas.policy.policy import (
    API_VERSION,
    KIND,
    LABEL_PREFIX,
    MAX_RULE_LABELS,
    MAX_RULES,
    MAX_STRATEGY_LABELS,
    ON_STALE,
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
from tas.policy.rules import State, rule_state
from tas.policy.selector import LabelSelector, Requirement, SelectorOperator
from tas.values.quantity import Quantity, parse_quantity
from tas.verdict.evaluation import holds_prefix
from tests.unit.tas.generators import anything, policies

KEY = PolicyKey("default", "demo")
RULE = {"metricname": "m", "operator": "GreaterThan", "target": 1}
DONTSCHEDULE, SCHEDULEONMETRIC = StrategyType.DONTSCHEDULE, StrategyType.SCHEDULEONMETRIC
DESCHEDULE, LABELING = StrategyType.DESCHEDULE, StrategyType.LABELING


def spec_of(kind: str = "dontschedule", *rules: Any, **fields: Any) -> dict[str, Any]:
    return {"strategies": {kind: {"rules": list(rules) or [RULE], **fields}}}


def manifest_of(spec: Any, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "demo", **metadata}, "spec": spec}


def parsed(spec: Any, key: PolicyKey = KEY) -> tuple[Policy, list[Problem], list[Problem]]:
    """The policy, the refused problems, and the accepted ones."""
    policy, problems = parse_policy(key, spec)
    return policy, [each for each in problems if each.refused], [each for each in problems if not each.refused]


def fields(problems: list[Problem]) -> list[str]:
    return [each.field for each in problems]


class TestMeaning:
    def test_the_policy_of_the_health_demo(self) -> None:
        """The demo of the original: every field that it uses, without a problem."""
        spec = {
            "strategies": {
                "deschedule": {"rules": [{"metricname": "health_metric", "operator": "Equals", "target": 2}]},
                "dontschedule": {
                    "policyName": "ignored",
                    "logicalOperator": "allOf",
                    "rules": [
                        {"metricname": "health_metric", "operator": "Equals", "target": 1},
                        {"metricname": "health_metric", "operator": "Equals", "target": 2},
                    ],
                },
                "scheduleonmetric": {"rules": [{"metricname": "health_metric", "operator": "LessThan"}]},
            }
        }

        def rule(operator: Operator, target: str) -> Rule:
            return Rule(metric="health_metric", operator=operator, target=parse_quantity(target))

        policy, problems = parse_policy(KEY, spec)
        assert problems == ()
        assert policy == Policy(
            key=KEY,
            strategies={
                DESCHEDULE: Strategy(type=DESCHEDULE, rules=(rule(Operator.EQUALS, "2"),), on_stale=OnStale.HOLD),
                DONTSCHEDULE: Strategy(
                    type=DONTSCHEDULE,
                    rules=(rule(Operator.EQUALS, "1"), rule(Operator.EQUALS, "2")),
                    logical_operator=LogicalOperator.ALL_OF,
                    on_stale=OnStale.KEEP,
                    keep_for=3600.0,
                ),
                SCHEDULEONMETRIC: Strategy(
                    type=SCHEDULEONMETRIC, rules=(rule(Operator.LESS_THAN, "0"),), on_stale=OnStale.LOWEST
                ),
            },
        )

    def test_every_extension(self) -> None:
        spec = {
            "suspend": True,
            "dryRun": True,
            "nodeSelector": {"matchLabels": {"pool": "a"}},
            "staleAfter": "1m30s",
            "breaker": {"maxNodes": 5, "maxPercent": 30},
            "strategies": {
                "labeling": {
                    "onStale": "clear",
                    "for": "2m",
                    "clearFor": "500ms",
                    "rules": [{**RULE, "source": "machine", "target": "1500m", "labels": ["a=b", "c="]}],
                },
                "scheduleonmetric": {
                    "onStale": "neutral",
                    "scoreMode": "proportional",
                    "rules": [{**RULE, "weight": 7, "podCost": "1500m"}],
                },
                "deschedule": {
                    "taint": {"effect": "PreferNoSchedule"},
                    "nodeCondition": True,
                    "rules": [RULE],
                },
            },
        }
        policy, problems = parse_policy(KEY, spec)
        assert problems == ()
        assert (policy.suspend, policy.dry_run, policy.stale_after) == (True, True, 90.0)
        assert policy.breaker == BreakerLimits(max_nodes=5, max_percent=30)
        requirement = Requirement(key="pool", operator=SelectorOperator.IN, values=frozenset({"a"}))
        assert policy.node_selector == LabelSelector(requirements=(requirement,))
        labeling, scoring = policy.strategies[LABELING], policy.strategies[SCHEDULEONMETRIC]
        assert (labeling.on_stale, labeling.for_, labeling.clear_for) == (OnStale.CLEAR, 120.0, 0.5)
        assert labeling.rules[0] == Rule(
            metric="m",
            operator=Operator.GREATER_THAN,
            target=parse_quantity("1.5"),
            labels=(("a", "b"), ("c", "")),
            source="machine",
        )
        assert (scoring.on_stale, scoring.score_mode, scoring.rules[0].weight) == (
            OnStale.NEUTRAL,
            ScoreMode.PROPORTIONAL,
            7,
        )
        assert scoring.rules[0].pod_cost == parse_quantity("1.5")
        marks = policy.strategies[DESCHEDULE]
        assert (marks.taint, marks.node_condition) == (TaintEffect.PREFER_NO_SCHEDULE, True)

    @pytest.mark.parametrize("found", ["", "anyOf"])
    def test_an_empty_logical_operator_is_any_of(self, found: str) -> None:
        policy, refused, accepted = parsed(spec_of(logicalOperator=found))
        assert policy.strategies[DONTSCHEDULE].logical_operator is LogicalOperator.ANY_OF
        assert refused == accepted == []

    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            (5, "5"),
            (-1, "-1"),
            ("1500m", "1.5"),
            ("2Gi", "2147483648"),
            (2**63, "9223372036854775808"),
            (10**40, "1e40"),
        ],
    )
    def test_targets(self, target: Any, expected: str) -> None:
        policy, refused, _ = parsed(spec_of("dontschedule", {**RULE, "target": target}))
        assert refused == []
        assert policy.strategies[DONTSCHEDULE].rules[0].target == parse_quantity(expected)

    def test_facts_Q9_target_omitted_is_zero(self) -> None:
        policy, refused, _ = parsed(spec_of("dontschedule", {"metricname": "m", "operator": "Equals"}))
        assert refused == []
        assert rule_state(policy.strategies[DONTSCHEDULE].rules[0], Quantity(0)) is State.VIOLATED

    def test_facts_D34_names_of_recording_rules(self) -> None:
        policy, problems = parse_policy(KEY, spec_of("dontschedule", {**RULE, "metricname": "node:load:avg1m"}))
        assert problems == ()
        assert policy.strategies[DONTSCHEDULE].rules[0].metric == "node:load:avg1m"

    def test_facts_D40_rules_that_differ_in_any_field_are_not_equal(self) -> None:
        """The original compared metric, target and operator alone."""
        variants = [
            spec_of(),
            spec_of(logicalOperator="allOf"),
            spec_of("dontschedule", RULE, RULE),
            spec_of("dontschedule", {**RULE, "source": "machine"}),
            spec_of("deschedule"),
            {"strategies": {}},
        ]
        read = [parse_policy(KEY, spec)[0] for spec in variants]
        assert all(read[i] != read[j] for i in range(len(read)) for j in range(i))

    def test_the_same_target_in_another_notation_is_equal(self) -> None:
        assert parse_policy(KEY, spec_of("dontschedule", {**RULE, "target": "1000m"})) == parse_policy(KEY, spec_of())


class TestAccepted:
    """Values that the original's schema accepted: reported, never refused, and the rest works."""

    @pytest.mark.parametrize("spec", [None, {"strategies": {}}])
    def test_a_policy_without_strategies_does_nothing(self, spec: Any) -> None:
        policy, refused, accepted = parsed(spec)
        assert policy == Policy(key=KEY, strategies={})
        assert (len(refused), len(accepted)) == (0, 1)
        assert "does nothing" in str(accepted[0])

    def test_facts_D37_C4_siblings_of_an_unknown_strategy_work(self) -> None:
        spec = spec_of()
        spec["strategies"] |= {"strategy_unavailable": {"rules": []}, 7: None, "Deschedule": 5}
        policy, refused, accepted = parsed(spec)
        assert list(policy.strategies) == [DONTSCHEDULE]
        assert refused == []
        assert fields(accepted) == [
            "spec.strategies.strategy_unavailable",
            "spec.strategies[7]",
            "spec.strategies.Deschedule",
        ]
        assert "did you mean deschedule?" in accepted[2].reason

    def test_empty_rules(self) -> None:
        policy, refused, accepted = parsed({"strategies": {"deschedule": {"rules": []}}})
        assert policy.strategies[DESCHEDULE].rules == ()
        assert (refused, fields(accepted)) == ([], ["spec.strategies.deschedule.rules"])

    def test_facts_D5_P10_extra_rules_without_weight(self) -> None:
        opposite = {**RULE, "operator": "LessThan"}
        policy, refused, accepted = parsed(spec_of("scheduleonmetric", RULE, opposite))
        assert len(policy.strategies[SCHEDULEONMETRIC].rules) == 2
        assert (refused, fields(accepted)) == ([], ["spec.strategies.scheduleonmetric.rules"])
        assert "only the first rule counts" in accepted[0].reason

    def test_facts_D5_rules_that_all_carry_a_weight_combine(self) -> None:
        _, problems = parse_policy(KEY, spec_of("scheduleonmetric", {**RULE, "weight": 1}, {**RULE, "weight": 100}))
        assert problems == ()

    def test_weights_on_only_some_rules(self) -> None:
        _, refused, accepted = parsed(spec_of("scheduleonmetric", RULE, {**RULE, "weight": 1}, RULE))
        assert refused == []
        assert [str(each) for each in accepted] == [
            "spec.strategies.scheduleonmetric.rules = '1 of 3 with a weight': rules without a weight do not count"
        ]

    def test_ranks_do_not_combine(self) -> None:
        _, refused, accepted = parsed(spec_of("scheduleonmetric", {**RULE, "weight": 1}, scoreMode="rank"))
        assert (refused, fields(accepted)) == ([], ["spec.strategies.scheduleonmetric.scoreMode"])

    def test_labels_in_a_strategy_that_does_not_use_them(self) -> None:
        policy, refused, accepted = parsed(spec_of("deschedule", {**RULE, "labels": ["a=b"]}))
        assert policy.strategies[DESCHEDULE].rules[0].labels == ()
        assert (refused, fields(accepted)) == ([], ["spec.strategies.deschedule.rules[0].labels"])

    @pytest.mark.parametrize("labels", [{}, {"labels": []}])
    def test_labeling_without_labels(self, labels: dict[str, Any]) -> None:
        _, refused, accepted = parsed(spec_of("labeling", {**RULE, **labels}))
        assert (refused, fields(accepted)) == ([], ["spec.strategies.labeling.rules[0].labels"])

    @pytest.mark.parametrize(
        "label",
        [
            pytest.param("foo", id="facts_G10-no-equals-sign"),
            pytest.param("", id="facts_D51-empty"),
            pytest.param("=b", id="facts_D51-no-key"),
            pytest.param("a/b=c", id="facts_D54-slash"),
            pytest.param("a~b=c", id="facts_D54-tilde"),
            pytest.param("-a=c", id="facts_D54-key-begins-with-dash"),
            pytest.param("a=-1", id="facts_D54-value-begins-with-dash"),
            pytest.param("a=b c", id="facts_D54-space"),
            pytest.param("a=b=c", id="facts_D54-two-equals-signs"),
            pytest.param("a=b\n", id="facts_D54-newline"),
            pytest.param("ä=b", id="facts_D54-no-ascii"),
            pytest.param("a" * 64 + "=b", id="facts_D54-long-key"),
            pytest.param("a=" + "b" * 64, id="facts_D54-long-value"),
        ],
    )
    def test_facts_D51_D54_an_invalid_label_is_left_out_alone(self, label: str) -> None:
        spec = spec_of(
            "labeling", {**RULE, "labels": ["first=1", label, "last=" + "x" * 63]}, {**RULE, "labels": ["b=c"]}
        )
        policy, refused, accepted = parsed(spec)
        assert [rule.labels for rule in policy.strategies[LABELING].rules] == [
            (("first", "1"), ("last", "x" * 63)),
            (("b", "c"),),
        ]
        assert (refused, fields(accepted)) == ([], ["spec.strategies.labeling.rules[0].labels[1]"])

    def test_labels_that_gpu_aware_scheduling_reads(self) -> None:
        labels = ["gas-disable-card0=true", "gas-prefer-gpu=card0", "gas-tile-preferred-card1_gt0=PCI_GROUP"]
        policy, problems = parse_policy(KEY, spec_of("labeling", {**RULE, "labels": labels}))
        assert problems == ()
        assert [f"{key}={value}" for key, value in policy.strategies[LABELING].rules[0].labels] == labels

    def test_facts_D54_a_duplicate_key_in_a_rule(self) -> None:
        policy, refused, accepted = parsed(spec_of("labeling", {**RULE, "labels": ["a=b", "a=c", "a=b"]}))
        assert policy.strategies[LABELING].rules[0].labels == (("a", "b"),)
        assert refused == []
        assert ["the first counts: a=b" in each.reason for each in accepted] == [True, True]

    def test_facts_D52_G6_mixed_operators_on_one_label(self) -> None:
        rules = [
            {"metricname": "memory", "operator": "LessThan", "target": 2000, "labels": ["d=card0", "x=1"]},
            {"metricname": "cpu", "operator": "Equals", "target": 200, "labels": ["d=card1", "y=1"]},
            {"metricname": "cpu", "operator": "Equals", "target": 300, "labels": ["d=card2", "y=2"]},
        ]
        policy, refused, accepted = parsed(spec_of("labeling", *rules))
        assert [rule.labels for rule in policy.strategies[LABELING].rules] == [
            (("x", "1"),),
            (("y", "1"),),
            (("y", "2"),),
        ]
        assert (refused, fields(accepted)) == ([], ["spec.strategies.labeling.rules"])
        assert accepted[0].value == "'d: Equals, LessThan'"

    def test_facts_G3_one_operator_on_one_label_is_fine(self) -> None:
        rules = [{**RULE, "labels": ["d=card0"]}, {**RULE, "metricname": "k", "labels": ["d=card1"]}]
        policy, problems = parse_policy(KEY, spec_of("labeling", *rules))
        assert problems == ()
        assert [rule.labels for rule in policy.strategies[LABELING].rules] == [(("d", "card0"),), (("d", "card1"),)]

    @pytest.mark.parametrize("length", [63, 64])
    def test_facts_D45_names_that_no_label_can_hold(self, length: int) -> None:
        spec = {"strategies": {kind: {"rules": [RULE]} for kind in ("deschedule", "dontschedule")}}
        policy, refused, accepted = parsed(spec, PolicyKey("default", "p" * length))
        assert refused == []
        assert set(policy.strategies) == {DESCHEDULE, DONTSCHEDULE}
        assert fields(accepted) == ([] if length == 63 else ["metadata.name", "metadata.name"])
        assert all("63 characters" in each.reason for each in accepted)

    @pytest.mark.parametrize("name", [f"{LABEL_PREFIX}p", LABEL_PREFIX.rstrip(".")])
    def test_a_name_that_begins_as_labels_of_labeling_do(self, name: str) -> None:
        spec = {"strategies": {kind: {"rules": [RULE]} for kind in ("deschedule", "dontschedule")}}
        policy, refused, accepted = parsed(spec, PolicyKey("default", name))
        assert refused == []
        assert set(policy.strategies) == {DESCHEDULE, DONTSCHEDULE}
        assert fields(accepted) == (["metadata.name"] if name.startswith(LABEL_PREFIX) else [])

    @pytest.mark.parametrize("length", [226, 227])
    def test_prefix_and_name_within_253(self, length: int) -> None:
        spec = spec_of("labeling", {**RULE, "labels": ["a=b"]})
        policy, refused, accepted = parsed(spec, PolicyKey("default", "p" * length))
        assert refused == []
        assert policy.strategies[LABELING].rules[0].labels == ((("a", "b"),) if length == 226 else ())
        assert fields(accepted) == ([] if length == 226 else ["metadata.name"])

    def test_unknown_fields_are_named(self) -> None:
        spec: dict[Any, Any] = {
            **spec_of("dontschedule", {**RULE, "Target": 5}, logicaloperator="allOf"),
            "dryrun": True,
            date(2024, 1, 1): 1,
            "a\ud800b": 2,
        }
        policy, refused, accepted = parsed(spec)
        assert refused == []
        assert policy.strategies[DONTSCHEDULE].logical_operator is LogicalOperator.ANY_OF
        assert {each.field: each.reason for each in accepted} == {
            "spec.dryrun": "unknown field, ignored; did you mean dryRun?",
            "spec[datetime.date(2024, 1, 1)]": "unknown field, ignored",
            "spec['a\\ud800b']": "unknown field, ignored",
            "spec.strategies.dontschedule.logicaloperator": "unknown field, ignored; did you mean logicalOperator?",
            "spec.strategies.dontschedule.rules[0].Target": "unknown field, ignored; did you mean target?",
        }


RULE_FIELD = "spec.strategies.{kind}.rules[0].{field}"


class TestRefused:
    """Values that the CRD's schema would reject: reported as refused, and without effect on any node."""

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            pytest.param("operator", "ABCDE", id="facts_Q4"),
            ("operator", ""),
            ("operator", "greaterthan"),
            ("operator", None),
            ("operator", ["Equals"]),
            pytest.param("metricname", "", id="facts_C3"),
            ("metricname", "a.b"),
            ("metricname", "a b"),
            ("metricname", "m\n"),
            ("metricname", "m" * 254),
            ("metricname", 5),
            ("metricname", None),
            ("target", "many"),
            ("target", "NaN"),
            ("target", ""),
            ("target", " 1"),
            ("target", 1.5),
            ("target", float("nan")),
            ("target", True),
            ("target", None),
            ("target", [1]),
            ("target", 10**40 + 1),
            ("target", -(10**5000)),
            ("source", "Machine"),
            ("source", ""),
            ("source", None),
            ("source", 5),
            ("labels", "a=b"),
            ("labels", ["a=b", 5]),
            ("labels", None),
        ],
        ids=lambda value: str(value)[:12] if isinstance(value, str) else type(value).__name__,
    )
    @pytest.mark.parametrize("kind", [DONTSCHEDULE, DESCHEDULE, LABELING])
    def test_an_unreadable_rule_is_unknown(self, kind: StrategyType, field: str, value: Any) -> None:
        sibling = {**RULE, "metricname": "k", "labels": ["x=1"]} if kind is LABELING else {**RULE, "metricname": "k"}
        labels = {"labels": ["x=1"]} if kind is LABELING else {}
        policy, refused, accepted = parsed(spec_of(kind.value, {**RULE, **labels, field: value}, sibling))
        assert (fields(refused), accepted) == ([RULE_FIELD.format(kind=kind.value, field=field)], [])
        first, second = policy.strategies[kind].rules
        assert not first.readable
        # A rule without a metric's name never gets a value.
        assert rule_state(first, Quantity(10**20) if first.metric else None) is State.UNKNOWN
        assert second.readable
        assert not policy.suspend

    @pytest.mark.parametrize("field", ["metricname", "operator"])
    def test_a_required_field_is_missing(self, field: str) -> None:
        policy, refused, _ = parsed(spec_of("dontschedule", {name: RULE[name] for name in RULE if name != field}))
        assert [(each.field, each.value) for each in refused] == [
            (RULE_FIELD.format(kind="dontschedule", field=field), "absent")
        ]
        assert not policy.strategies[DONTSCHEDULE].rules[0].readable

    def test_the_readable_fields_of_a_rule_are_kept(self) -> None:
        """A user recognizes the rule in the explanations."""
        broken = [{**RULE, "metricname": "a b"}, {**RULE, "operator": "ABCDE"}, {**RULE, "target": "many"}]
        policy, _, _ = parsed(spec_of("dontschedule", *broken))
        assert [str(rule) for rule in policy.strategies[DONTSCHEDULE].rules] == [
            "? GreaterThan 1",
            "m ? 1",
            "m GreaterThan ?",
        ]

    @pytest.mark.parametrize("weight", [0, -1, 101, 1.0, "1", True, None])
    def test_weights(self, weight: Any) -> None:
        policy, refused, _ = parsed(spec_of("scheduleonmetric", {**RULE, "weight": weight}))
        assert fields(refused) == [RULE_FIELD.format(kind="scheduleonmetric", field="weight")]
        assert not policy.strategies[SCHEDULEONMETRIC].rules[0].readable

    @pytest.mark.parametrize("kind", [DONTSCHEDULE, DESCHEDULE, LABELING])
    def test_a_weight_in_a_strategy_without_scores(self, kind: StrategyType) -> None:
        policy, refused, _ = parsed(spec_of(kind.value, {**RULE, "weight": 5}))
        assert fields(refused) == [RULE_FIELD.format(kind=kind.value, field="weight")]
        assert not policy.strategies[kind].rules[0].readable

    @pytest.mark.parametrize("cost", [0, -1, "0", "0.0", "-1Gi", 0.5, "x", "1 Gi", True, None, [1], 10**50])
    def test_pod_costs(self, cost: Any) -> None:
        policy, refused, _ = parsed(spec_of("scheduleonmetric", {**RULE, "podCost": cost}))
        assert fields(refused) == [RULE_FIELD.format(kind="scheduleonmetric", field="podCost")]
        assert not policy.strategies[SCHEDULEONMETRIC].rules[0].readable

    @pytest.mark.parametrize("kind", [DONTSCHEDULE, DESCHEDULE, LABELING])
    def test_a_pod_cost_in_a_strategy_without_scores(self, kind: StrategyType) -> None:
        policy, refused, _ = parsed(spec_of(kind.value, {**RULE, "podCost": 5}))
        assert fields(refused) == [RULE_FIELD.format(kind=kind.value, field="podCost")]
        assert not policy.strategies[kind].rules[0].readable

    def test_a_metric_that_is_almost_a_statistic(self) -> None:
        policy, refused, noted = parsed(spec_of("dontschedule", {**RULE, "metricname": "cpu:mean:30s"}))
        assert not refused
        assert [str(problem) for problem in noted] == [
            "spec.strategies.dontschedule.rules[0].metricname = 'cpu:mean:30s': is the name of an ordinary metric, not "
            "of a statistic: 30s is no duration from 1m to 24h (units: s, m, h, d)"
        ]
        assert policy.strategies[StrategyType.DONTSCHEDULE].rules[0].metric == "cpu:mean:30s"

    def test_a_pod_cost_where_no_direction_is_worse(self) -> None:
        rule = {**RULE, "operator": "Equals", "podCost": "1Gi"}
        policy, problems = parse_policy(KEY, spec_of("scheduleonmetric", rule))
        assert [str(problem) for problem in problems] == [
            "spec.strategies.scheduleonmetric.rules[0].podCost = '1Gi': is for LessThan and GreaterThan only: with "
            "Equals no direction is worse; the rule is unknown for every node"
        ]
        assert not policy.strategies[SCHEDULEONMETRIC].rules[0].readable

    @pytest.mark.parametrize(
        ("kind", "field", "value"),
        [
            *((kind, "logicalOperator", value) for kind in StrategyType for value in ("oneOf", None, 5, ["anyOf"])),
            *((kind, "onStale", value) for kind in StrategyType for value in ("", "never", None, True)),
            *(
                (kind, "onStale", value.value)
                for kind in StrategyType
                for value in OnStale
                if value not in ON_STALE[kind]
            ),
            *((kind, field, value)
              for kind in (DESCHEDULE, LABELING)
              for field in ("for", "clearFor")
              for value in ("", "90", 90, 90.0, "-1s", "1 m", "1d", "169h", "1e3s", None)),
            *((kind, field, "90s") for kind in (DONTSCHEDULE, SCHEDULEONMETRIC) for field in ("for", "clearFor")),
            (SCHEDULEONMETRIC, "scoreMode", "Rank"),
            (SCHEDULEONMETRIC, "scoreMode", None),
            *((kind, "scoreMode", "proportional") for kind in (DONTSCHEDULE, DESCHEDULE, LABELING)),
            (DESCHEDULE, "taint", None),
            (DESCHEDULE, "taint", "NoSchedule"),
            (DESCHEDULE, "nodeCondition", None),
            (DESCHEDULE, "nodeCondition", "true"),
            *((kind, "taint", {"effect": "NoSchedule"}) for kind in StrategyType if kind is not DESCHEDULE),
            *((kind, "nodeCondition", True) for kind in StrategyType if kind is not DESCHEDULE),
        ],
    )  # fmt: skip
    def test_an_unreadable_strategy_is_unknown(self, kind: StrategyType, field: str, value: Any) -> None:
        labels = {"labels": ["x=1"]} if kind is LABELING else {}
        spec = spec_of(kind.value, {**RULE, **labels}, **{field: value})
        spec["strategies"]["deschedule" if kind is not DESCHEDULE else "dontschedule"] = {"rules": [RULE]}
        policy, refused, _ = parsed(spec)
        assert set(fields(refused)) == {f"spec.strategies.{kind.value}.{field}"}
        strategy = policy.strategies.pop(kind)  # type: ignore[attr-defined]
        assert not strategy.rules[0].readable
        assert strategy.on_stale is ON_STALE[kind][0]
        assert all(other.readable for other in policy.strategies.values())
        assert not policy.suspend

    @pytest.mark.parametrize(
        ("taint", "reason"),
        [
            ({"effect": "NoExecute"}, "'NoExecute': evicts pods without regard to disruption budgets: must be one of "),
            ({"effect": "noschedule"}, "'noschedule': must be one of PreferNoSchedule, NoSchedule; "),
            ({}, "absent: must be one of "),
        ],
    )
    def test_a_taint_with_an_effect_that_is_not_allowed(self, taint: Any, reason: str) -> None:
        policy, problems = parse_policy(KEY, spec_of("deschedule", RULE, taint=taint))
        ((text),) = map(str, problems)
        assert text.startswith(f"spec.strategies.deschedule.taint.effect = {reason}")
        assert not policy.strategies[DESCHEDULE].readable

    @pytest.mark.parametrize("rules", [{}, {"rules": None}, {"rules": {}}, {"rules": "m"}, {"rules": 0}])
    def test_a_strategy_without_a_list_of_rules_is_unknown_and_not_healthy(self, rules: Any) -> None:
        policy, refused, _ = parsed({"strategies": {"deschedule": rules}})
        assert fields(refused) == ["spec.strategies.deschedule.rules"]
        assert [rule.readable for rule in policy.strategies[DESCHEDULE].rules] == [False]

    def test_an_unreadable_strategy_is_unknown_even_without_rules(self) -> None:
        policy, refused, _ = parsed({"strategies": {"deschedule": {"rules": [], "onStale": "never"}}})
        assert fields(refused) == ["spec.strategies.deschedule.onStale"]
        assert [rule.readable for rule in policy.strategies[DESCHEDULE].rules] == [False]

    @pytest.mark.parametrize("value", [None, [], "rules", 5, date(2024, 1, 1)])
    def test_a_strategy_or_rule_that_is_no_object_is_unknown(self, value: Any) -> None:
        policy, refused, _ = parsed({"strategies": {"deschedule": value, "dontschedule": {"rules": [RULE, value]}}})
        assert fields(refused) == ["spec.strategies.deschedule", "spec.strategies.dontschedule.rules[1]"]
        assert [rule.readable for rule in policy.strategies[DESCHEDULE].rules] == [False]
        assert [rule.readable for rule in policy.strategies[DONTSCHEDULE].rules] == [True, False]

    @pytest.mark.parametrize(
        ("fields_of", "on_stale", "keep_for", "noted"),
        [
            ({}, OnStale.KEEP, 3600.0, []),
            ({"onStale": "keep"}, OnStale.KEEP, 3600.0, []),
            ({"keepFor": "10m"}, OnStale.KEEP, 600.0, []),
            ({"keepFor": "0s"}, OnStale.PASS, 0.0, []),
            ({"onStale": "keep", "keepFor": "0"}, OnStale.PASS, 0.0, []),
            ({"onStale": "pass"}, OnStale.PASS, 0.0, []),
            ({"onStale": "pass", "keepFor": "10m"}, OnStale.PASS, 0.0, ["has no effect with onStale: pass"]),
            ({"onStale": "fail", "keepFor": "10m"}, OnStale.FAIL, 0.0, ["has no effect with onStale: fail"]),
            (
                {"keepFor": "2m"},
                OnStale.KEEP,
                120.0,
                ["not longer than the default of --stale-after, 120s: no value is kept"],
            ),
        ],
    )
    def test_keep_for(self, fields_of: dict[str, str], on_stale: OnStale, keep_for: float, noted: list[str]) -> None:
        policy, refused, accepted = parsed(spec_of("dontschedule", RULE, **fields_of))
        strategy = policy.strategies[DONTSCHEDULE]
        assert (strategy.on_stale, strategy.keep_for, refused) == (on_stale, keep_for, [])
        assert [(each.field, each.reason) for each in accepted] == [
            ("spec.strategies.dontschedule.keepFor", reason) for reason in noted
        ]

    def test_keep_for_that_ends_before_a_value_is_stale(self) -> None:
        spec = spec_of("dontschedule", RULE, keepFor="5m")
        assert [each.reason for each in parsed(spec | {"staleAfter": "10m"})[2]] == [
            "not longer than staleAfter, 600s: no value is kept"
        ]
        assert parsed(spec | {"staleAfter": "4m"})[2] == []

    @pytest.mark.parametrize("value", ["2h", "-1m", "3601s", "1d", "", 60, None, True])
    def test_keep_for_out_of_bounds(self, value: Any) -> None:
        policy, refused, _ = parsed(spec_of("dontschedule", RULE, keepFor=value))
        assert fields(refused) == ["spec.strategies.dontschedule.keepFor"]
        assert [rule.readable for rule in policy.strategies[DONTSCHEDULE].rules] == [False]

    @pytest.mark.parametrize("kind", [kind for kind in StrategyType if kind is not DONTSCHEDULE])
    def test_only_dontschedule_keeps_values(self, kind: StrategyType) -> None:
        _, refused, _ = parsed(spec_of(kind.value, RULE, keepFor="10m"))
        assert fields(refused) == [f"spec.strategies.{kind.value}.keepFor"]

    def test_on_stale_has_no_effect_by_an_unreadable_rule(self) -> None:
        """`onStale: fail` for a mistyped operator would reject every node."""
        spec = spec_of("dontschedule", {**RULE, "operator": "MoreThan"}, onStale="fail")
        policy, refused, accepted = parsed(spec)
        assert policy.strategies[DONTSCHEDULE].on_stale is OnStale.KEEP
        assert fields(refused) == [RULE_FIELD.format(kind="dontschedule", field="operator")]
        assert fields(accepted) == ["spec.strategies.dontschedule.onStale"]

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("suspend", "yes"),
            ("suspend", None),
            ("suspend", 0),
            ("dryRun", "false"),
            ("dryRun", 1),
            ("staleAfter", 90),
            ("staleAfter", "0s"),
            ("staleAfter", "-1m"),
            ("staleAfter", "3601s"),
            ("staleAfter", "soon"),
            ("staleAfter", None),
            ("breaker", None),
            ("breaker", {}),
            ("breaker", {"maxnodes": 5}),
            ("nodeSelector", None),
            ("nodeSelector", "pool=a"),
            ("nodeSelector", {"matchlabels": {"pool": "a"}}),
            ("nodeSelector", {"matchLabels": {"pool": 5}}),
            ("nodeSelector", {"matchExpressions": [{"key": "pool", "operator": "In"}]}),
        ],
    )
    def test_an_unreadable_policy_is_suspended(self, field: str, value: Any) -> None:
        policy, refused, accepted = parsed({**spec_of(), field: value})
        assert (fields(refused), accepted) == ([f"spec.{field}"], [])
        assert policy.suspend
        assert policy.strategies[DONTSCHEDULE].readable

    @pytest.mark.parametrize(
        ("field", "value"),
        [("maxNodes", 0), ("maxNodes", 5001), ("maxNodes", "5"), ("maxPercent", 101), ("maxPercent", True)],
    )
    def test_a_policy_with_an_unreadable_limit_of_its_breaker_is_suspended(self, field: str, value: Any) -> None:
        policy, refused, accepted = parsed({**spec_of(), "breaker": {"maxNodes": 1, "maxPercent": 1, field: value}})
        assert (fields(refused), accepted) == ([f"spec.breaker.{field}"], [])
        assert policy.suspend

    def test_one_limit_of_a_breaker_is_enough(self) -> None:
        policy, problems = parse_policy(KEY, {**spec_of(), "breaker": {"maxPercent": 100}})
        assert (policy.breaker, problems) == (BreakerLimits(max_percent=100), ())
        assert policy_spec(policy)["breaker"] == {"maxPercent": 100}

    @pytest.mark.parametrize("value", ["1ns", "3600s", "1h"])
    def test_stale_after_up_to_an_hour(self, value: str) -> None:
        _, problems = parse_policy(KEY, {**spec_of(), "staleAfter": value})
        assert problems == ()

    @pytest.mark.parametrize(
        ("spec", "field"),
        [
            ([], "spec"),
            ("strategies", "spec"),
            (False, "spec"),
            ({}, "spec.strategies"),
            ({"strategies": None}, "spec.strategies"),
            ({"strategies": [RULE]}, "spec.strategies"),
        ],
    )
    def test_without_readable_strategies_labels_are_held(self, spec: Any, field: str) -> None:
        """A policy without strategies would remove its labels."""
        policy, refused, _ = parsed(spec)
        assert fields(refused) == [field]
        assert policy == Policy(key=KEY, strategies={}, suspend=True)


class TestBounds:
    @staticmethod
    def labeled(rules: int, labels: int, stray: int = 0) -> list[dict[str, Any]]:
        """Rules with `labels` labels each; the first has `stray` more that are not `key=value`."""
        texts = [[f"key-{each}-{rule}=v" for each in range(labels)] for rule in range(rules)]
        texts[0] += ["stray"] * stray
        return [RULE | {"labels": each} for each in texts]

    @pytest.mark.parametrize("kind", StrategyType)
    def test_a_strategy_with_too_many_rules_is_unknown(self, kind: StrategyType) -> None:
        rules = [RULE] * MAX_RULES
        policy, refused, _ = parsed(spec_of(kind, *rules))
        assert (len(policy.strategies[kind].rules), refused) == (MAX_RULES, [])
        policy, refused, _ = parsed(spec_of(kind, *rules, RULE))
        assert fields(refused) == [f"spec.strategies.{kind}.rules"]
        assert "65 rules" in refused[0].value
        assert len(policy.strategies[kind].rules) == 1
        assert not policy.strategies[kind].readable

    def test_a_rule_with_too_many_labels_is_unknown_and_the_next_rule_works(self) -> None:
        within, beyond = self.labeled(1, MAX_RULE_LABELS), self.labeled(1, MAX_RULE_LABELS, stray=1)
        assert parsed(spec_of("labeling", *within))[1] == []
        policy, refused, _ = parsed(spec_of("labeling", *beyond, RULE | {"labels": ["a=b"]}))
        assert fields(refused) == ["spec.strategies.labeling.rules[0].labels"]
        too_many, other = policy.strategies[LABELING].rules
        assert (too_many.readable, too_many.labels) == (False, ())
        assert (other.readable, other.labels) == (True, (("a", "b"),))

    def test_a_strategy_with_too_many_labels_in_all_is_unknown(self) -> None:
        rules = MAX_STRATEGY_LABELS // MAX_RULE_LABELS
        policy, refused, _ = parsed(spec_of("labeling", *self.labeled(rules, MAX_RULE_LABELS), RULE))
        assert refused == []
        assert sum(len(rule.labels) for rule in policy.strategies[LABELING].rules) == MAX_STRATEGY_LABELS
        beyond = [*self.labeled(rules, MAX_RULE_LABELS), RULE | {"labels": ["stray"]}]
        policy, refused, _ = parsed(spec_of("labeling", *beyond))
        assert fields(refused) == ["spec.strategies.labeling.rules"]
        assert not policy.strategies[LABELING].readable
        assert holds_prefix(policy)


class TestManifest:
    def test_a_whole_object(self) -> None:
        policy, problems = parse_manifest(manifest_of(spec_of(), namespace="team", labels={"x": "y"}) | {"status": {}})
        assert problems == ()
        assert policy == parse_policy(PolicyKey("team", "demo"), spec_of())[0]

    @pytest.mark.parametrize("metadata", [{}, {"namespace": None}])
    def test_namespace_by_default(self, metadata: dict[str, Any]) -> None:
        assert parse_manifest(manifest_of(spec_of(), **metadata))[0].key == PolicyKey("default", "demo")
        assert parse_manifest(manifest_of(spec_of()), default_namespace="team")[0].key.namespace == "team"

    def test_unknown_fields_of_the_object(self) -> None:
        _, problems = parse_manifest(manifest_of(None) | {"Spec": spec_of(), "strategies": {}})
        assert [(each.field, each.refused) for each in problems] == [
            ("Spec", False),
            ("strategies", False),
            ("spec", False),
        ]

    @pytest.mark.parametrize(
        ("changes", "subject", "field", "value"),
        [
            ({"apiVersion": "telemetry.intel.com/v1"}, "manifest demo", "apiVersion", "'telemetry.intel.com/v1'"),
            ({"apiVersion": None}, "manifest demo", "apiVersion", "None"),
            ({"kind": "TASPolicyList"}, "manifest demo", "kind", "'TASPolicyList'"),
            ({"kind": ["TASPolicy"]}, "manifest demo", "kind", "<list>"),
            ({"metadata": None}, "manifest", "metadata", "None"),
            ({"metadata": {}}, "manifest", "metadata.name", "absent"),
            ({"metadata": {"name": 5}}, "manifest", "metadata.name", "5"),
            ({"metadata": {"name": "Demo"}}, "manifest", "metadata.name", "'Demo'"),
            ({"metadata": {"name": "a_b"}}, "manifest", "metadata.name", "'a_b'"),
            ({"metadata": {"name": "a" * 254}}, "manifest", "metadata.name", None),
            ({"metadata": {"name": "a.b", "namespace": "a.b"}}, "manifest a.b", "metadata.namespace", "'a.b'"),
            ({"metadata": {"name": "a", "namespace": ""}}, "manifest a", "metadata.namespace", "''"),
            ({"metadata": {"name": "a", "namespace": 1}}, "manifest a", "metadata.namespace", "1"),
        ],
    )
    def test_an_object_that_is_no_policy(self, changes: Any, subject: str, field: str, value: str | None) -> None:
        with pytest.raises(InvalidInputError) as caught:
            parse_manifest(manifest_of(spec_of()) | changes)
        assert (caught.value.subject, caught.value.field) == (subject, field)
        assert value is None or caught.value.value == value

    def test_missing_type(self) -> None:
        with pytest.raises(InvalidInputError) as caught:
            parse_manifest({"metadata": {"name": "demo"}})
        assert str(caught.value) == f"manifest demo: apiVersion = absent: must be {API_VERSION}"

    @pytest.mark.parametrize("document", [None, 5, "kind: TASPolicy", [], [manifest_of(None)]])
    def test_a_document_that_is_no_object(self, document: Any) -> None:
        with pytest.raises(InvalidInputError):
            parse_manifest(document)


WORDS = (
    "apiVersion", "kind", "metadata", "name", "namespace", "spec", "strategies", "suspend", "dryRun", "nodeSelector",
    "matchLabels", "matchExpressions", "key", "values", "staleAfter", "dontschedule", "scheduleonmetric", "deschedule",
    "labeling", "policyName", "logicalOperator", "rules", "onStale", "for", "clearFor", "scoreMode", "metricname",
    "operator", "target", "labels", "source", "weight", "podCost", API_VERSION, KIND, "m", "GreaterThan", "In", "90s",
    "a=b", "hold",
)  # fmt: skip


class TestAnything:
    @given(anything(WORDS) | st.builds(manifest_of, anything(WORDS)))
    def test_a_manifest_is_a_policy_or_invalid_input(self, document: Any) -> None:
        try:
            policy, problems = parse_manifest(document)
        except InvalidInputError as error:
            str(error).encode()
        else:
            json.dumps(policy_spec(policy), allow_nan=False).encode()
            "".join(map(str, problems)).encode()

    @given(
        st.one_of(
            anything(WORDS),
            st.builds(
                lambda kind, value: {"strategies": {kind: value}}, st.sampled_from(StrategyType), anything(WORDS)
            ),
            st.builds(lambda kind, value: spec_of(kind.value, value), st.sampled_from(StrategyType), anything(WORDS)),
            st.builds(
                lambda field, value: {**spec_of(), field: value},
                st.sampled_from(["suspend", "dryRun", "nodeSelector", "staleAfter"]),
                anything(WORDS),
            ),
            st.builds(
                lambda kind, field, value: spec_of(kind.value, {**RULE, field: value}),
                st.sampled_from(StrategyType),
                st.sampled_from(["metricname", "operator", "target", "labels", "source", "weight", "podCost"]),
                anything(WORDS),
            ),
        )
    )
    def test_a_spec_written_back_is_read_as_the_same_policy(self, spec: Any) -> None:
        """Reading it again changes nothing, and refuses only rules that were unreadable before."""
        policy, problems = parse_policy(KEY, spec)
        again, refused, _ = parsed(json.loads(json.dumps(policy_spec(policy))))
        assert again == policy
        if not any(each.refused for each in problems):
            assert refused == []
        assert all(".rules[" in each.field for each in refused)

    def test_very_deep(self) -> None:
        deep: Any = []
        for _ in range(100_000):
            deep = [deep]
        for value in (deep, {"strategies": deep}, {"strategies": {"deschedule": deep}}, spec_of("labeling", deep)):
            _, refused, _ = parsed(value)
            assert refused
        _, refused, _ = parsed({**spec_of(), "nodeSelector": deep})
        assert refused
        with pytest.raises(InvalidInputError):
            parse_manifest(deep)

    def test_a_list_that_holds_itself(self) -> None:
        """YAML can write it."""
        loop: list[Any] = []
        loop.append(loop)
        _, refused, _ = parsed(spec_of("labeling", {**RULE, "labels": loop}))
        assert refused

    def test_a_manifest_with_many_problems_gives_a_small_message(self) -> None:
        spec = spec_of("dontschedule", *(5 for _ in range(10_000)))
        spec |= {f"unknown{number}": "x" * 10_000 for number in range(10_000)}
        policy, problems = parse_policy(KEY, spec)
        assert len(problems) == MAX_PROBLEMS + 1
        assert problems[-1].refused
        assert "9901" in problems[-1].reason
        assert len("".join(map(str, problems))) < 50_000
        assert policy.strategies[DONTSCHEDULE].rules == (UNREADABLE,)

    @pytest.mark.parametrize("where", ["strategies", "spec"])
    def test_names_are_compared_with_known_ones_for_listed_problems_only(
        self, where: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A comparison takes 40 µs, and a policy may have 60,000 names."""
        compared = 0

        def counted(*arguments: Any, **options: Any) -> list[str]:
            nonlocal compared
            compared += 1
            return get_close_matches(*arguments, **options)

        monkeypatch.setattr(manifest, "get_close_matches", counted)
        many: dict[str, Any] = {f"dontschedulee{number}": {} for number in range(60_000)}
        policy, problems = parse_policy(KEY, {"strategies": many} if where == "strategies" else many)
        if where == "strategies":
            assert [(each.field, each.value) for each in problems] == [("spec.strategies", "'60000 strategies'")]
            assert problems[0].reason.startswith("must be at most 100")
            assert compared == 0
            assert policy.suspend
        else:
            assert compared == MAX_PROBLEMS
            assert problems[-1].reason.startswith("59901 more problems")

    def test_the_further_problems_are_refused_if_one_of_them_is(self) -> None:
        spec: dict[str, Any] = {f"unknown{number}": 1 for number in range(MAX_PROBLEMS)}
        _, problems = parse_policy(KEY, spec | {"strategies": {"dontschedule": 7, "unknown": 7}})
        assert len(problems) == MAX_PROBLEMS + 1
        assert problems[-1].reason.startswith("2 more")
        assert problems[-1].refused
        _, problems = parse_policy(KEY, spec | {"strategies": {"unknown": 7}})
        assert not problems[-1].refused


class TestRoundTrip:
    @given(policies())
    def test_a_policy_written_as_a_spec_reads_back(self, policy: Policy) -> None:
        again, refused, _ = parsed(json.loads(json.dumps(policy_spec(policy))), policy.key)
        assert again == policy
        assert refused == []

    @given(policies(readable=False))
    def test_a_policy_with_unreadable_rules_reads_back(self, policy: Policy) -> None:
        again, refused, _ = parsed(json.loads(json.dumps(policy_spec(policy))), policy.key)
        assert again == policy
        unreadable = {
            f"spec.strategies.{kind.value}.rules[{index}]"
            for kind, strategy in policy.strategies.items()
            for index, rule in enumerate(strategy.rules)
            if not rule.readable
        }
        assert {each.field.rpartition(".")[0] for each in refused} == unreadable

    def test_defaults_are_not_written(self) -> None:
        spec = spec_of("dontschedule", RULE)
        assert policy_spec(parse_policy(KEY, spec)[0]) == spec

    def test_targets_are_integers_where_the_original_accepts_them(self) -> None:
        rules = [{**RULE, "target": target} for target in ("2", "1500m", "-9223372036854775807", "9223372036854775808")]
        spec = policy_spec(parse_policy(KEY, spec_of("dontschedule", *rules))[0])
        targets = [rule["target"] for rule in spec["strategies"]["dontschedule"]["rules"]]
        assert targets == [2, "1.5", -(2**63 - 1), "9223372036854775808"]
