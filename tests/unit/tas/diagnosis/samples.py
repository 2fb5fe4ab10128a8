"""Policies for the checks."""

from typing import Any

from tas.policy.manifest import parse_policy
from tas.policy.policy import Policy, PolicyKey

RULE = {"metricname": "health_metric", "operator": "Equals", "target": 2}
LABELLED = {**RULE, "labels": ["card0=true"]}


def policy(name: str, *strategies: str, namespace: str = "default", spec: Any = None) -> Policy:
    """A policy with the same rule in each strategy."""
    rules = {kind: {"rules": [LABELLED if kind == "labeling" else RULE]} for kind in strategies}
    parsed, _ = parse_policy(PolicyKey(namespace, name), spec or {"strategies": rules})
    return parsed


def policy_of(metric: str, *, source: str | None = None) -> Policy:
    """A policy that reads a metric."""
    rule = {"metricname": metric, "operator": "GreaterThan", "target": 1} | ({"source": source} if source else {})
    return policy("demo", spec={"strategies": {"dontschedule": {"rules": [rule]}}})
