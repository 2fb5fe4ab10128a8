"""What a verb decides, apart from how it is asked and answered.

A `Decider` answers for candidates by name. Telemetry (`tas.view.View`) is the first; others (GPU cards, agents) sit
beside it under their own path, on the same two questions.
"""

from collections.abc import Callable, Collection, Mapping
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
    groups them (protocol c20). `count_unknown` counts the candidates that pass although their state is unknown; it is
    called once the answer is on its way, since nobody waits for it.
    `unresolvable`: evicting pods cannot help (FailedAndUnresolvableNodes, c19). `error` becomes the answer's `Error`.
    """

    outcome: Outcome = Outcome.DECIDED
    policy: str = ""
    rejected: Mapping[str, str] = {}
    count_unknown: Callable[[], int] = int
    unresolvable: bool = True
    error: str = ""

    @property
    def unknown(self) -> int:
        """How many candidates pass although their state is unknown."""
        return self.count_unknown()


class ScoreDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The score (0 to 10) of every candidate, or of none: None answers `[]`.

    `unknown` counts the candidates scored without a fresh value.
    """

    outcome: Outcome = Outcome.DECIDED
    policy: str = ""
    scores: Mapping[str, int] | None = None
    unknown: int = 0


class Victims(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of one node that would be evicted to make room, and how many PodDisruptionBudgets that would break.

    In the order of the scheduler, which evicts the last of them first. Of a pod only the uid is known when the
    scheduler sends names alone (`nodeCacheCapable`). There may be none: then the pod fits as it is (protocol c31).
    """

    pods: tuple[Pod, ...]
    pdb_violations: int = 0


class PreemptDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes where evictions would help, with their victims. Who is not in `kept` is not offered.

    `unknown` counts the kept nodes whose state is unknown. `error`: why nobody is offered.
    """

    outcome: Outcome
    policy: str = ""
    kept: Mapping[str, Victims] = {}
    unknown: int = 0
    error: str = ""


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """Which pod is to be bound to which node."""

    namespace: str
    name: str
    uid: str
    node: str


class Decider(Protocol):
    """The interface behind a path of the extender. Both questions come alone, twice, for one node, or never (c28)."""

    def filter(self, pod: Pod, candidates: Collection[str], now: float) -> FilterDecision:
        """Which of `candidates` (distinct names) the pod must not go to, also not by evicting others."""
        ...

    def score(self, pod: Pod, candidates: Collection[str], now: float) -> ScoreDecision:
        """How well each of `candidates` (distinct names) suits the pod."""
        ...
