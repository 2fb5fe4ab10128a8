"""The CRD on a real API server: accepts all policies of the original TAS and our fields, and refuses invalid ones."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tas.policy.manifest import parse_policy
from tas.policy.policy import ON_STALE, PolicyKey, StrategyType
from tests.kubernetes.admin import Admin, AdminError

from .cluster import Cluster

RULE = {"metricname": "health_metric", "operator": "Equals", "target": 1}

ORIGINAL: dict[str, dict[str, Any]] = {
    "no-spec": {},
    "no-strategies": {"spec": {"strategies": {}}},
    "no-rules": {"spec": {"strategies": {"deschedule": {"rules": []}}}},
    "the-four": {
        "spec": {
            "strategies": {
                "dontschedule": {"rules": [RULE, {"metricname": "other_1-x", "operator": "GreaterThan", "target": -5}]},
                "scheduleonmetric": {"rules": [{"metricname": "load", "operator": "LessThan"}]},
                "deschedule": {"logicalOperator": "allOf", "policyName": "another", "rules": [RULE]},
                "labeling": {"logicalOperator": "anyOf", "rules": [{**RULE, "labels": ["card0=true", "no pair"]}]},
            }
        }
    },
    "any-strategy": {"spec": {"strategies": {"Whatever It Is": {"rules": [RULE]}}}},
    "largest-target": {"spec": {"strategies": {"dontschedule": {"rules": [{**RULE, "target": 2**63 - 1}]}}}},
    "labels-elsewhere": {"spec": {"strategies": {"dontschedule": {"rules": [{**RULE, "labels": []}]}}}},
}

OURS = {
    "suspend": True,
    "dryRun": False,
    "staleAfter": "1m30s",
    "breaker": {"maxNodes": 5, "maxPercent": 30},
    "nodeSelector": {
        "matchLabels": {"zone": "a"},
        "matchExpressions": [
            {"key": "gpu", "operator": "NotIn", "values": ["none"]},
            {"key": "x", "operator": "Exists"},
        ],
    },
    "strategies": {
        "dontschedule": {
            "onStale": "keep",
            "keepFor": "1h",
            "rules": [{"metricname": "a:b", "operator": "LessThan", "target": "1500m", "source": "my-agent"}],
        },
        "scheduleonmetric": {
            "onStale": "neutral",
            "scoreMode": "proportional",
            "rules": [
                {"metricname": "load", "operator": "LessThan", "weight": 100, "target": "2Gi", "podCost": "1500m"}
            ],
        },
        "deschedule": {
            "onStale": "clear",
            "for": "30s",
            "clearFor": "0",
            "taint": {"effect": "PreferNoSchedule"},
            "nodeCondition": True,
            "rules": [RULE],
        },
        "labeling": {"onStale": "violate", "for": "1h30m", "rules": [{**RULE, "labels": ["a=b"]}]},
    },
}


def with_rule(**changes: Any) -> dict[str, Any]:
    return {"strategies": {"dontschedule": {"rules": [RULE | changes]}}}


def with_cost(cost: Any, operator: str = "LessThan") -> dict[str, Any]:
    return {"strategies": {"scheduleonmetric": {"rules": [RULE | {"operator": operator, "podCost": cost}]}}}


def with_strategy(**changes: Any) -> dict[str, Any]:
    return {"strategies": {"deschedule": {"rules": [RULE]} | changes}}


def with_labels(full: int, more: int) -> dict[str, Any]:
    """A labeling strategy with `full` rules of 32 labels each, and one with `more`."""
    return {"strategies": {"labeling": {"rules": [RULE | {"labels": ["a=b"] * each} for each in [32] * full + [more]]}}}


def with_selector(**selector: Any) -> dict[str, Any]:
    return with_strategy() | {"nodeSelector": selector}


EXISTS = {"key": "a", "operator": "Exists"}


def in_values(number: int) -> dict[str, Any]:
    return {"key": "a", "operator": "In", "values": [f"v{each}" for each in range(number)]}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "operator": (with_rule(operator="Equal"), "Unsupported value"),
    "operator-empty": (with_rule(operator=""), "Unsupported value"),
    "target-fraction": (with_rule(target=1.5), "target"),
    "target-words": (with_rule(target="much"), "target"),
    "target-boolean": (with_rule(target=True), "target"),
    "metric-dots": (with_rule(metricname="a.b"), "metricname"),
    "metric-empty": (with_rule(metricname=""), "metricname"),
    "label-number": (with_rule(labels=[1]), "labels"),
    "weight-0": (with_rule(weight=0), "weight"),
    "weight-101": (with_rule(weight=101), "weight"),
    "pod-cost-0": (with_cost(0), "podCost"),
    "pod-cost-negative": (with_cost("-1Gi"), "podCost"),
    "pod-cost-with-equals": (with_cost(1, operator="Equals"), "podCost is for LessThan and GreaterThan only"),
    "pod-cost-elsewhere": (with_rule(operator="LessThan", podCost=1), "podCost is for rules of scheduleonmetric only"),
    "source": (with_rule(source="My Agent"), "source"),
    "rule-without-operator": ({"strategies": {"deschedule": {"rules": [{"metricname": "a"}]}}}, "operator"),
    "rule-without-metric": ({"strategies": {"deschedule": {"rules": [{"operator": "Equals"}]}}}, "metricname"),
    "strategy-without-rules": ({"strategies": {"deschedule": {}}}, "rules"),
    "spec-without-strategies": ({"suspend": True}, "strategies"),
    "logical-operator": (with_strategy(logicalOperator="all"), "logicalOperator"),
    "on-stale": (with_strategy(onStale="ignore"), "onStale"),
    "score-mode": (with_strategy(scoreMode="best"), "scoreMode"),
    "taint-no-execute": (with_strategy(taint={"effect": "NoExecute"}), "effect"),
    "taint-without-effect": (with_strategy(taint={}), "effect"),
    "for": (with_strategy(**{"for": "soon"}), "for"),
    "clear-for": (with_strategy(clearFor="5"), "clearFor"),
    "stale-after": (with_strategy() | {"staleAfter": "60"}, "staleAfter"),
    "breaker": (with_strategy() | {"breaker": {}}, "breaker"),
    "breaker-limit": (with_strategy() | {"breaker": {"maxPercent": 101}}, "maxPercent"),
    "suspend": (with_strategy() | {"suspend": "yes"}, "suspend"),
    "selector-operator": (
        with_strategy() | {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}},
        "nodeSelector",
    ),
    "65-rules": (with_strategy(rules=[RULE] * 65), "rules"),
    "33-labels-of-a-rule": (with_rule(labels=["a=b"] * 33), "labels"),
    "129-labels-in-all": (with_labels(4, 1), "at most 128 labels"),
    "51-match-labels": (with_selector(matchLabels={f"a{each}": "" for each in range(51)}), "matchLabels"),
    "51-requirements": (with_selector(matchLabels={"a": ""}, matchExpressions=[EXISTS] * 50), "at most 50 match"),
    "51-values": (with_selector(matchExpressions=[in_values(51)]), "values"),
}

LARGEST = {
    "rules": with_strategy(rules=[RULE] * 64),
    "labels": with_labels(4, 0),
    "selector": with_selector(
        matchLabels={f"a{each}": "" for each in range(25)}, matchExpressions=[in_values(50)] * 25
    ),
}


RULES_FIELDS: dict[str, list[Any]] = {
    "metricname": ["a", "a:b-c_D", "a.b", "", 5, "m" * 254],
    "operator": ["Equals", "LessThan", "GreaterThan", "equals", ""],
    "target": [0, -7, "1500m", "2Gi", "1e3", ".5", "5.", "x", "1 Gi", "NaN", True, [1]],
    "labels": [[], ["a=b"], ["no pair"], "a=b", [1]],
    "source": ["prometheus", "my-agent-2", "My Agent", "", "s" * 64],
    "weight": [1, 100, 0, 101, "5"],
    "podCost": [1, "250m", "1.5Gi", ".5", "0.05e3", "5.", "+2", 0, -1, "0", "-1", "0.00", "0e5", "Gi", 0.5, True],
}
STRATEGY_FIELDS: dict[str, list[Any]] = {
    "policyName": ["other"],
    "logicalOperator": ["anyOf", "allOf", "all"],
    "onStale": ["pass", "fail", "lowest", "neutral", "hold", "violate", "clear", "drop"],
    "for": ["0", "30s", "1h30m", "168h", "169h", "5", "", "1.5h"],
    "clearFor": ["0s", "100ms", "10000m", "20000m", "soon"],
    "scoreMode": ["rank", "proportional", "best"],
    "taint": [{"effect": "NoSchedule"}, {"effect": "PreferNoSchedule"}, {"effect": "NoExecute"}, {}, "NoSchedule"],
    "nodeCondition": [True, False, "yes"],
}
SPEC_FIELDS: dict[str, list[Any]] = {
    "suspend": [True, False, "yes"],
    "dryRun": [False, True, 1],
    "staleAfter": ["90s", "1h", "61m", "0s", "0h0m", "5", "1ms", "3600.5s"],
    "breaker": [
        {"maxNodes": 5},
        {"maxPercent": 100, "maxNodes": 5000},
        {},
        {"maxNodes": 0},
        {"maxNodes": 5001},
        {"maxPercent": 101},
        {"maxPercent": "5"},
        [],
    ],
    "nodeSelector": [
        {},
        {"matchLabels": {"a": "b", "example.com/zone": ""}},
        {"matchLabels": {"-a": "b"}},
        {"matchLabels": {"a": "b c"}},
        {"matchLabels": {"A.example/zone": "b"}},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", "y"]}]},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]},
        {"matchExpressions": [{"key": "a", "operator": "NotIn"}]},
        {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "a", "operator": "DoesNotExist", "values": ["x"]}]},
        {"matchExpressions": [{"key": "a/b/c", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["x_"]}]},
    ],
}
"""Values of each field, of which some can never be."""

MOSTLY_GOOD = 4
"""A value is drawn so often from the first of its list as from all others together."""


def drawn(chance: random.Random) -> dict[str, Any]:
    """A spec of which perhaps one or two values are bad."""

    def fields(of: dict[str, list[Any]], *, share: float) -> dict[str, Any]:
        return {
            name: values[0] if chance.randrange(MOSTLY_GOOD) else chance.choice(values)
            for name, values in of.items()
            if chance.random() < share
        }

    strategies = {}
    for kind in chance.sample([*StrategyType, "whatever"], chance.randrange(1, 4)):
        needed = {"metricname": "load", "operator": "LessThan"}
        rules = [needed | fields(RULES_FIELDS, share=0.2) for _ in range(chance.randrange(3))]
        fitting = {"onStale": [ON_STALE[kind][-1].value]} if isinstance(kind, StrategyType) else {}
        strategies[str(kind)] = fields(STRATEGY_FIELDS | fitting, share=0.1) | {"rules": rules}
        strategies[str(kind)] |= fields(STRATEGY_FIELDS, share=0.03)
    return fields(SPEC_FIELDS, share=0.3) | {"strategies": strategies}


@pytest.mark.parametrize("seed", range(4))
async def test_the_api_server_refuses_exactly_the_policies_that_parse_policy_refuses(
    admin: Admin, namespace: str, seed: int
) -> None:
    chance = random.Random(seed)
    refusals = 0
    for number in range(100):
        spec = drawn(chance)
        _, problems = parse_policy(PolicyKey(namespace, "drawn"), spec)
        ours = [str(problem) for problem in problems if problem.refused]
        if "whatever" in spec["strategies"]:  # parse_policy ignores an unknown strategy, the schema checks its fields
            spec["strategies"]["whatever"] = {"rules": []}
        body = {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy", "spec": spec}
        try:
            path = f"{admin.policies(namespace)}?dryRun=All"
            await admin.create(path, body | {"metadata": {"name": f"drawn-{number}"}})
            theirs = ""
        except AdminError as error:
            if error.status != 422:
                raise
            theirs = str(error)
        assert bool(ours) == bool(theirs), (spec, ours, theirs)
        refusals += bool(ours)
    assert 20 < refusals < 80, "too few refused or too few accepted policies"


def with_keep(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"strategies": {kind: {"rules": [RULE]} | fields}}


KEEP_FOR = ["1h", "10m", "0", "0s", "0h0m", "59m60s", ".5h", "61m", "3601s", "2h", "-1m", "1d", "", "5", 60, True]
ONE_STRATEGY_ONLY = {
    "podCost": [with_cost(cost) for cost in RULES_FIELDS["podCost"]],
    "keepFor": [
        *(with_keep("dontschedule", {"keepFor": value}) for value in KEEP_FOR),
        *(with_keep("dontschedule", {"onStale": word, "keepFor": "10m"}) for word in ("keep", "pass", "fail", "hold")),
        *(with_keep(kind, {"keepFor": "10m"}) for kind in StrategyType),
        *(with_keep(kind, {"onStale": "keep"}) for kind in StrategyType),
    ],
}
"""Random policies have too few of them, since each of these fields is valid in one strategy only."""


@pytest.mark.parametrize("field", ONE_STRATEGY_ONLY)
async def test_the_api_server_refuses_exactly_the_values_of_a_field_that_parse_policy_refuses(
    admin: Admin, namespace: str, field: str
) -> None:
    specs, refused = ONE_STRATEGY_ONLY[field], []
    for number, spec in enumerate(specs):
        body = {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy", "spec": spec}
        try:
            created = await admin.create(
                f"{admin.policies(namespace)}?dryRun=All", body | {"metadata": {"name": f"only-{number}"}}
            )
            assert created["spec"] == spec, "nothing is pruned"
        except AdminError as error:
            if error.status != 422:
                raise
            refused.append(spec)
    ours = [
        spec
        for spec in specs
        if any(problem.refused for problem in parse_policy(PolicyKey(namespace, "only"), spec)[1])
    ]
    assert refused == ours
    assert 5 < len(refused) < len(specs) - 5


def test_tas_crd_prints_what_kubectl_installs(cluster: Cluster, tmp_path: Path) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "cli", "crd"], capture_output=True, text=True, check=True, cwd=Path.cwd()
    ).stdout
    assert "taspolicies.telemetry.intel.com" in cluster.kubectl("apply", "-f", "-", stdin=printed)
    assert (Path("deploy/crd") / "taspolicies.telemetry.intel.com.yaml").read_text() == printed
    crd = json.loads(cluster.kubectl("get", "crd", "taspolicies.telemetry.intel.com", "-o", "json"))
    conditions = {each["type"]: each["status"] for each in crd["status"]["conditions"]}
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("case", ORIGINAL)
async def test_every_policy_of_the_original_is_stored_unchanged(admin: Admin, namespace: str, case: str) -> None:
    body = {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy", "metadata": {"name": case}}
    created = await admin.create(admin.policies(namespace), body | ORIGINAL[case])
    assert created.get("spec") == ORIGINAL[case].get("spec")


async def test_our_additional_fields_are_stored(admin: Admin, namespace: str) -> None:
    created = await admin.create_policy(namespace, "ours", **OURS)
    assert created["spec"] == OURS


async def test_unknown_fields_are_dropped_and_not_refused(admin: Admin, namespace: str) -> None:
    spec = {"later": 1, "strategies": {"deschedule": {"rules": [RULE | {"more": {}}], "extra": True}}}
    created = await admin.create_policy(namespace, "later", **spec)
    assert created["spec"] == with_strategy()


async def test_a_node_selector_with_an_unknown_field_is_stored_so_that_parse_policy_refuses_it(
    admin: Admin, namespace: str
) -> None:
    """Without the unknown field the selector would select every node."""
    selector = {"matchLabel": {"zone": "a"}}
    created = await admin.create_policy(namespace, "typo", nodeSelector=selector, **with_strategy())
    assert created["spec"]["nodeSelector"] == selector


@pytest.mark.parametrize("case", LARGEST)
async def test_a_policy_at_the_bounds_is_accepted(admin: Admin, namespace: str, case: str) -> None:
    created = await admin.create_policy(namespace, case, **LARGEST[case])
    assert created["spec"] == LARGEST[case]
    assert not [each for each in parse_policy(PolicyKey(namespace, case), LARGEST[case])[1] if each.refused]


@pytest.mark.parametrize("case", REFUSED)
async def test_an_invalid_field_is_refused_by_its_name(admin: Admin, namespace: str, case: str) -> None:
    spec, message = REFUSED[case]
    with pytest.raises(AdminError, match=message) as caught:
        await admin.create_policy(namespace, case, **spec)
    assert caught.value.status == 422
    assert any(each.refused for each in parse_policy(PolicyKey(namespace, case), spec)[1])


async def test_only_the_status_subresource_changes_the_status(admin: Admin, namespace: str) -> None:
    await admin.create_policy(namespace, "one", **with_strategy())
    path = f"{admin.policies(namespace)}/one"
    condition = {
        "type": "Ready",
        "status": "True",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": "Accepted",
        "message": "",
    }
    status = {"compliance": "c", "message": "m", "observedGeneration": 1, "conditions": [condition]}
    patched = await admin.patch(f"{path}/status", {"status": status, "spec": {"suspend": True}})
    assert patched["status"] == status
    assert "suspend" not in patched["spec"]
    assert patched["metadata"]["generation"] == 1


def test_the_policies_in_deploy_are_valid(cluster: Cluster, namespace: str) -> None:
    for file in sorted(Path("deploy/policies").glob("*.yaml")):
        cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(file))
