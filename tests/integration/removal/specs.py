"""Random policies for the histories."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tests.integration.removal.model import SOURCES, Spec

METRICS = ("m1", "m2")
LOWEST, HIGHEST = 0, 10
"""Of a metric. Many samples have one of these values, which are the targets of rules with `Equals`."""

LEVELS = {"GreaterThan": (7, 4), "Equals": (HIGHEST, LOWEST)}
"""The targets of rules that give one label several values, by their operator."""


def some_value(chance: random.Random) -> int:
    """The value of a sample."""
    return chance.choice((LOWEST, HIGHEST)) if chance.random() < 0.3 else chance.randint(LOWEST, HIGHEST)


def some_spec(chance: random.Random) -> Spec:
    """A policy with `deschedule`, `labeling` or both."""
    strategies: dict[str, Any] = {}
    if chance.random() < 0.75:
        strategies["deschedule"] = _strategy(chance, [_rule(chance) for _ in range(chance.randint(1, 2))])
    if chance.random() < 0.65 or not strategies:
        operator = chance.choice(("GreaterThan", "GreaterThan", "Equals"))
        series = _series(chance)
        levels = list(zip(LEVELS[operator], ("high", "middle"), strict=True))
        rules: list[dict[str, Any]] = [
            {**series, "operator": operator, "target": target, "labels": [f"level={value}"]}
            for target, value in levels[: chance.randint(1, 2)]
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
    operator = chance.choice(("GreaterThan", "GreaterThan", "LessThan", "Equals"))
    target = chance.choice((LOWEST, HIGHEST)) if operator == "Equals" else chance.randint(2, 8)
    return {**_series(chance), "operator": operator, "target": target}


def _series(chance: random.Random) -> dict[str, str]:
    source = {"source": chance.choice(SOURCES)} if chance.random() < 0.3 else {}
    return {"metricname": chance.choice(METRICS), **source}


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
