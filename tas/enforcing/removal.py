"""The law of removal: missing data never removes a label.

1. TAS removes only labels in its own form: any label under its prefix, and a label without a prefix if its value is
   `violating`.
2. A verdict requests the removal of a label if the policy that owns the label desires it absent. Of the policies of
   one name, the oldest that is in force owns the labels of a strategy; what the others desire does not count
   (`tas.verdict.ownership`). A policy desires a label absent if fresh samples meet its rules, if its `nodeSelector`
   does not match the node any more, or if it has `onStale: clear` (`tas.verdict.evaluation`).
3. A verdict can be old, so it is not sufficient. The owner must confirm the removal: the records of all policies of
   the name and the node's samples are read again. If by these records another policy owns the label, or nobody, if the
   owner has been edited since its verdict, or if a record cannot be read, then the label stays. So after a change of
   owner a label stays until the new owner has a reason of its own, and after an edit until the edited policy has one.
4. A label that no verdict mentions is an orphan. TAS removes an orphan only if no policy can have set it, according to
   a new and complete list of the policies in all namespaces from the API server. An orphan without a prefix must also
   have been set by TAS.
5. Everything that these rules require to be read is read at most `READ_AGE_SECONDS` before the patch is sent.

Workers patch no node before complete lists of a cluster's nodes and policies are stored in the current epoch.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tas.enforcing.labels import DesiredLabels, is_in_our_form, policy_name
from tas.enforcing.managers import OWN_MANAGERS
from tas.policy.manifest import parse_policy
from tas.policy.policy import LABEL_PREFIX, Policy, PolicyKey, StrategyType
from tas.policy.rules import State
from tas.samples.sample import NodeSamples
from tas.verdict.evaluation import label_state
from tas.verdict.ownership import claim_of, owner_of, strategy_of
from tas.verdict.verdict import DesiredKind, PolicyVerdict, labeling_prefix

READ_AGE_SECONDS = 2.0
"""The maximum age of the oldest read behind a patch when the patch is sent."""


# Rules 1 and 2: which removals verdicts request


def requested_removals(desired: DesiredLabels, current: Mapping[str, str]) -> dict[str, PolicyKey]:
    """The labels of a node, now `current`, whose removal verdicts request, each with its owner."""
    return {
        label: owned.owner
        for label, owned in desired.labels.items()
        if owned.desired.kind is DesiredKind.ABSENT
        and owned.owner is not None
        and label in current
        and is_in_our_form(label, current[label])
    }


# Rule 3: which requested removals are confirmed


class StoredPolicy(NamedTuple):
    """A stored policy, with its uid and generation, and when it was created (seconds since 1970, or None)."""

    uid: str
    generation: int
    policy: Policy
    created: float | None = None


class Evidence(NamedTuple):
    """Data that was read after the verdict, to confirm removals.

    Attributes:
        policies: All stored policies with the names of the labels; None for a record that cannot be read.
        samples: The node's samples; empty if they cannot be read.
        labels: The node's labels of the API server.
        default_stale_after: Seconds after which a sample is stale for a policy without `staleAfter`.
        now: Seconds since 1970.
    """

    policies: Mapping[PolicyKey, StoredPolicy | None]
    samples: NodeSamples
    labels: Mapping[str, str] | None
    default_stale_after: float
    now: float


def confirmed_removals(
    requested: Mapping[str, PolicyKey],
    verdicts: Mapping[PolicyKey, PolicyVerdict],
    evidence: Evidence,
) -> frozenset[str]:
    """The labels of `requested` that may be removed: the requesting policy owns the label and confirms.

    `verdicts` are the verdicts of the requesting policies: a stored policy with another uid or generation confirms
    nothing.
    """
    claims = {
        key: None if stored is None else claim_of(stored.policy, uid=stored.uid, created=stored.created)
        for key, stored in evidence.policies.items()
    }
    return frozenset(
        label
        for label, key in requested.items()
        if owner_of(
            strategy_of(label), {each: claim for each, claim in claims.items() if each.name == policy_name(label)}
        )
        == key
        and _confirms(key, verdicts[key], label, evidence)
    )


def _confirms(key: PolicyKey, verdict: PolicyVerdict, label: str, evidence: Evidence) -> bool:
    """Whether the policy and the samples of `evidence` desire the label absent.

    The verdict has waited for `clearFor` by the rules of the same generation. It has not if the policy did not select
    the node; then only `nodeSelector` may confirm, by the labels of `evidence`: those behind the verdict may be older.
    """
    stored = evidence.policies.get(key)
    if stored is None or (stored.uid, stored.generation) != (verdict.uid, verdict.generation):
        return False
    strategy = stored.policy.strategies.get(strategy_of(label))
    found = None if strategy is None else verdict.strategies.get(strategy.type)
    waited = found is not None and label in found.labels and found.labels[label].met_since is not None
    if (
        strategy is not None
        and strategy.clear_for
        and not waited
        and stored.policy.selects(evidence.labels) is not False
    ):
        return False
    state = label_state(
        stored.policy,
        label,
        samples=evidence.samples,
        labels=evidence.labels,
        default_stale_after=evidence.default_stale_after,
        now=evidence.now,
    )
    return state is State.MET


# Rule 4: labels that no verdict mentions


class Unmentioned(NamedTuple):
    """Labels in our form that no verdict mentions or holds: those set by TAS, and those set by somebody else."""

    orphans: frozenset[str]
    foreign: frozenset[str]


def unmentioned_labels(
    desired: DesiredLabels, current: Mapping[str, str], *, managers: Mapping[str, Collection[str]]
) -> Unmentioned:
    """The orphans and the foreign labels among the labels `current` of a node.

    `managers` are the field managers of each label without a prefix. If none of them is in `OWN_MANAGERS`, or they are
    unknown, the label is foreign and stays.
    """
    found = {
        label
        for label, value in current.items()
        if is_in_our_form(label, value) and label not in desired.labels and not desired.is_held(label)
    }
    foreign = frozenset(
        label
        for label in found
        if not label.startswith(LABEL_PREFIX) and OWN_MANAGERS.isdisjoint(managers.get(label, ()))
    )
    return Unmentioned(frozenset(found - foreign), foreign)


def may_remove_orphan(label: str, policies: Iterable[tuple[PolicyKey, object]]) -> bool:
    """Whether the orphan may be removed: none of `policies` can have set it. `policies` must be complete.

    Each policy is its key and its `spec`, decoded from JSON. A suspended or dry-run policy keeps every label of its
    name, and so does a policy with an invalid strategy. A policy whose own name begins as labels of `labeling` do may
    have set the label of this name by the original TAS, or by an earlier version (`deschedule_label`).
    """
    names = policy_name(label), label
    return not any(_can_have(key, spec, label) for key, spec in policies if key.name in names)


def _can_have(key: PolicyKey, spec: object, label: str) -> bool:
    policy, _ = parse_policy(key, spec)
    if policy.suspend or policy.dry_run:
        return True
    prefix = labeling_prefix(key)
    kind = StrategyType.LABELING if label.startswith(prefix) else StrategyType.DESCHEDULE
    strategy = policy.strategies.get(kind)
    if strategy is None or not strategy.rules:
        return False
    if kind is StrategyType.DESCHEDULE or not strategy.readable:
        return True
    return label.removeprefix(prefix) in _written_keys(spec)


def _written_keys(spec: object) -> set[str]:
    """The label keys in the text of a `labeling` strategy, also of rules that are invalid for another reason."""
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
