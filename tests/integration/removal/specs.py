"""Random policies for the histories."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tests.integration.removal.model import Spec

METRICS = ("m1", "m2")


def some_spec(chance: random.Random) -> Spec:
    """A policy with `deschedule`, `labeling` or both."""
    strategies: dict[str, Any] = {}
    if chance.random() < 0.75:
        strategies["deschedule"] = _strategy(chance, [_rule(chance) for _ in range(chance.randint(1, 2))])
    if chance.random() < 0.65 or not strategies:
        metric = chance.choice(METRICS)
        rules: list[dict[str, Any]] = [
            {"metricname": metric, "operator": "GreaterThan", "target": target, "labels": [f"level={value}"]}
            for target, value in ((7, "high"), (4, "middle"))[: chance.randint(1, 2)]
        ]
        if chance.random() < 0.5:
            rules.append(_rule(chance) | {"labels": ["other=yes", "third=no"][: chance.randint(1, 2)]})
        strategies["labeling"] = _strategy(chance, rules)
    spec: dict[str, Any] = {"strategies": strategies}
    if chance.random() < 0.7:
        spec["staleAfter"] = chance.choice(("1s", "1500ms", "2s"))
    if chance.random() < 0.25:
        spec["nodeSelector"] = {"matchLabels": {"zone": "a"}}
    if chance.random() < 0.08:
        spec["suspend"] = True
    if chance.random() < 0.05:
        spec["dryRun"] = True
    return spec


def _rule(chance: random.Random) -> dict[str, Any]:
    operator = chance.choice(("GreaterThan", "GreaterThan", "LessThan"))
    return {"metricname": chance.choice(METRICS), "operator": operator, "target": chance.randint(2, 8)}


def _strategy(chance: random.Random, rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    strategy: dict[str, Any] = {"rules": list(rules)}
    if chance.random() < 0.4:
        strategy["logicalOperator"] = chance.choice(("anyOf", "allOf"))
    if chance.random() < 0.4:
        strategy["onStale"] = chance.choice(("hold", "violate", "clear"))
    if chance.random() < 0.2:
        strategy["for"] = chance.choice(("200ms", "500ms"))
    if chance.random() < 0.4:
        strategy["clearFor"] = chance.choice(("500ms", "1s", "1500ms"))
    return strategy
