"""What a verb decides, apart from how it is asked and answered.

A `Decider` answers for candidates by name. Telemetry (`tas.view.View`) is the first; others (GPU cards, agents) sit
beside it under their own path, on the same two questions.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Protocol

import msgspec


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision may look at of a pod."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]


class Outcome(StrEnum):
    """How a decision came about: a label of the metrics, and a word in the log and the ring of answers."""

    DECIDED = "decided"
    NO_POLICY = "no_policy"
    POLICY_NOT_FOUND = "policy_not_found"
    NO_RULES = "no_rules"
    SUSPENDED = "suspended"
    DRY_RUN = "dry_run"


class FilterDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Which candidates are rejected, and why.

    `rejected` maps candidate to reason; who is not in it passes. Reasons are few and alike, because the scheduler
    groups them (protocol c20). `unknown` counts the candidates that pass although their state is unknown.
    `unresolvable`: evicting pods cannot help (FailedAndUnresolvableNodes, c19). `error` becomes the answer's `Error`.
    """

    outcome: Outcome
    policy: str = ""
    rejected: Mapping[str, str] = {}
    unknown: int = 0
    unresolvable: bool = True
    error: str = ""


class ScoreDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The score (0 to 10) of every candidate, or of none: None answers `[]`.

    `unknown` counts the candidates scored without a fresh value.
    """

    outcome: Outcome
    policy: str = ""
    scores: Mapping[str, int] | None = None
    unknown: int = 0


class Decider(Protocol):
    """The interface behind a path of the extender. Both questions come alone, twice, for one node, or never (c28)."""

    def filter(self, pod: Pod, candidates: Collection[str], now: float) -> FilterDecision:
        """Which of `candidates` (distinct names) the pod must not go to."""
        ...

    def prioritize(self, pod: Pod, candidates: Collection[str], now: float) -> ScoreDecision:
        """How well each of `candidates` (distinct names) suits the pod."""
        ...
