"""A decider with fixed answers, which records its calls."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tas.extender.decision import FilterDecision, Outcome, Pod, ScoreDecision


@dataclass
class FixedDecider:
    """Rejects and scores the given nodes.

    `calls` has the verb, pod, candidates in order, and time of each call.
    """

    rejects: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, int] | None = None
    unresolvable: bool = True
    error: str = ""
    unknown: int = 0
    unknown_rejected: int = 0
    calls: list[tuple[str, Pod, tuple[str, ...], float]] = field(default_factory=list)

    def filter(self, pod: Pod, candidates: Collection[str], now: float) -> FilterDecision:
        self.calls.append(("filter", pod, tuple(candidates), now))
        return FilterDecision(
            outcome=Outcome.DECIDED,
            policy="default/p",
            rejected={name: self.rejects[name] for name in candidates if name in self.rejects},
            unresolvable=self.unresolvable,
            error=self.error,
            count_unknown=lambda: self.unknown,
            unknown_rejected=self.unknown_rejected,
        )

    def score(self, pod: Pod, candidates: Collection[str], now: float) -> ScoreDecision:
        self.calls.append(("prioritize", pod, tuple(candidates), now))
        scores = None if self.scores is None else {name: self.scores.get(name, 0) for name in candidates}
        return ScoreDecision(outcome=Outcome.DECIDED, policy="default/p", scores=scores, unknown=self.unknown)
