"""The explanation of a pod: the answers of the decider itself, with the states of the rules (`tas.explain.explain`)."""

from collections.abc import Sequence

import msgspec

from tas.explain.explain import PolicyExplanation, explain_on_node
from tas.extender.decision import Outcome, Pod
from tas.extender.telemetry import TelemetryDecider
from tas.policy.policy import POD_LABEL, PolicyKey
from tas.view.view import View


class CandidateExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for a pod and one node, with the rules; `score` is None if prioritize gives no scores."""

    node: str
    passes: bool
    reason: str
    score: int | None
    policy: PolicyExplanation | None


class PodExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The current answers for a pod. `error` is the `Error` of filter: with it, the scheduler gets no nodes."""

    namespace: str
    pod: str
    policy: str
    outcome: Outcome
    error: str
    candidates: Sequence[CandidateExplanation]


def explain_pod(
    view: View, decider: TelemetryDecider, pod: Pod, candidates: Sequence[str], now: float
) -> PodExplanation:
    """The answers of `decider` for `pod` and `candidates` (distinct names) at `now`, with the rules."""
    names = dict.fromkeys(candidates).keys()
    filtered = decider.filter(pod, names, now)
    passing = [node for node in names if node not in filtered.rejected]
    scores = decider.score(pod, dict.fromkeys(passing).keys(), now).scores or {}
    index = view.policies.get(PolicyKey(pod.namespace, pod.labels.get(POD_LABEL, "")))
    return PodExplanation(
        namespace=pod.namespace,
        pod=pod.name,
        policy=filtered.policy,
        outcome=filtered.outcome,
        error=filtered.error,
        candidates=[
            CandidateExplanation(
                node=node,
                passes=node not in filtered.rejected,
                reason=filtered.rejected.get(node, ""),
                score=scores.get(node),
                policy=None if index is None else explain_on_node(view, index.policy, node, now),
            )
            for node in names
        ],
    )
