"""Whether a label that no verdict speaks of may go: the API server's complete list of policies decides.

A policy may be gone from the bus because the bus was wiped, or because whoever reads policies is behind. So what
counts is the list itself, over all namespaces: two policies of one name share their labels (tas.md D39).
"""

from collections.abc import Iterable

from tas.labels import Orphan
from tas.manifest import parse_policy
from tas.policy import PolicyKey, StrategyType


def may_go(orphan: Orphan, policies: Iterable[tuple[PolicyKey, object]]) -> bool:
    """Whether none of `policies`, which must be all there are, has anything to do with the label.

    Each is its key and its `spec` as decoded from JSON. One that is suspended or dry-run keeps every label of its
    name, as does one whose strategies cannot be read: only what a policy says lets a label go, not what is unclear.
    """
    return not any(_keeps(key, spec, orphan) for key, spec in policies if key.name == orphan.policy_name)


def _keeps(key: PolicyKey, spec: object, orphan: Orphan) -> bool:
    policy, _ = parse_policy(key, spec)
    if policy.suspend or policy.dry_run:
        return True
    kind = StrategyType.DESCHEDULE if orphan.rest is None else StrategyType.LABELING
    strategy = policy.strategies.get(kind)
    if strategy is None or not strategy.rules:
        return False
    return orphan.rest is None or not strategy.readable or orphan.rest in _written_keys(spec)


def _written_keys(spec: object) -> set[str]:
    """The label keys of a `labeling` strategy as they are written: also those that are left out for another reason."""
    strategies = spec.get("strategies") if isinstance(spec, dict) else None
    labeling = strategies.get(StrategyType.LABELING.value) if isinstance(strategies, dict) else None
    rules = labeling.get("rules") if isinstance(labeling, dict) else None
    return {
        text.partition("=")[0]
        for rule in (rules if isinstance(rules, list) else ())
        if isinstance(rule, dict) and isinstance(rule.get("labels"), list)
        for text in rule["labels"]
        if isinstance(text, str)
    }
