"""A decider that answers as it was told, and remembers what it was asked."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tas.extender.decision import FilterDecision, Outcome, Pod, ScoreDecision


@dataclass
class ToldDecider:
    """Rejects and scores those of the candidates that it has something to say about.

    `asked` holds verb, pod, candidates in order, and time.
    """

    rejects: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, int] | None = None
    unresolvable: bool = True
    error: str = ""
    unknown: int = 0
    asked: list[tuple[str, Pod, tuple[str, ...], float]] = field(default_factory=list)

    def filter(self, pod: Pod, candidates: Collection[str], now: float) -> FilterDecision:
        self.asked.append(("filter", pod, tuple(candidates), now))
        return FilterDecision(
            outcome=Outcome.DECIDED,
            policy="default/p",
            rejected={name: self.rejects[name] for name in candidates if name in self.rejects},
            unresolvable=self.unresolvable,
            error=self.error,
            count_unknown=lambda: self.unknown,
        )

    def score(self, pod: Pod, candidates: Collection[str], now: float) -> ScoreDecision:
        self.asked.append(("prioritize", pod, tuple(candidates), now))
        scores = None if self.scores is None else {name: self.scores.get(name, 0) for name in candidates}
        return ScoreDecision(outcome=Outcome.DECIDED, policy="default/p", scores=scores, unknown=self.unknown)
