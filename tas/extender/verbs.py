"""What the extender can be asked, verb by verb: bytes in, bytes and a record of them out."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, TypeVar

import msgspec

from tas.extender.answers import filter_result, host_priorities
from tas.extender.decision import Decider, FilterDecision, Outcome, PreemptDecision, ScoreDecision
from tas.extender.preemption import PreemptionArgs, decode_preemption_args, preempt_decision, preemption_result
from tas.extender.wire import ExtenderArgs, decode_args
from tas.score import MAX_SCORE, Ranking

A = TypeVar("A")
D = TypeVar("D")

MAX_REJECTED = 10
MAX_BEST = 5


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked and how it was answered, small enough to keep a thousand of.

    Attributes:
        time: When it was asked, in seconds since 1970.
        path: The path it was asked on, without the verb.
        verb: `filter`, `prioritize`, `preempt` or `bind`.
        status: The HTTP status. Below, everything but `error` is empty unless it is 200.
        seconds: From its headers to its answer.
        error: What was wrong with the request, or the answer's `Error`.
        namespace: The pod's.
        pod: The pod's name.
        policy: The policy that decided, or would have.
        outcome: How the decision came about.
        candidates: How many distinct nodes were asked about.
        passed: How many of them passed, were scored, or are offered for evictions.
        unknown: How many of those have no fresh value.
        reasons: Each reason of a rejection, and how many nodes it met.
        rejected: Some of the rejected nodes, or of those not offered.
        best: Some of the best hosts with their scores, best first.
    """

    time: float
    path: str = ""
    verb: str
    status: int = 200
    seconds: float = 0.0
    error: str = ""
    namespace: str = ""
    pod: str = ""
    policy: str = ""
    outcome: Outcome | None = None
    candidates: int = 0
    passed: int = 0
    unknown: int = 0
    reasons: Mapping[str, int] = {}
    rejected: tuple[str, ...] = ()
    best: tuple[tuple[str, int], ...] = ()


Record = Callable[[], Answer]
"""Makes the record of an answer: once that is on its way, so that the scheduler does not wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb(Generic[A, D]):
    """One thing that the extender can be asked: the last part of the path.

    Attributes:
        hook: The method of an extension that is asked.
        decode: The request of a body. Raises InvalidInputError if it can never be answered.
        ask: The word of a decider on a request at a given time.
        tell: What the scheduler is told, and how to make the record of it.
    """

    hook: str
    decode: Callable[[bytes], A]
    ask: Callable[[Decider, A, float], D]
    tell: Callable[[A, D, float], tuple[bytes, Record]]

    def __call__(self, decider: Decider, body: bytes, now: float) -> tuple[bytes, Record]:
        """Answers the body of a request at a given time. Raises InvalidInputError if it can never be answered."""
        asked = self.decode(body)
        return self.tell(asked, self.ask(decider, asked, now), now)


def _ask_filter(decider: Decider, asked: ExtenderArgs, now: float) -> FilterDecision:
    return decider.filter(asked.pod, asked.candidates, now)


def _tell_filter(asked: ExtenderArgs, decision: FilterDecision, now: float) -> tuple[bytes, Record]:
    return filter_result(asked, decision), partial(_record_filter, asked, decision, now)


def _record_filter(asked: ExtenderArgs, decision: FilterDecision, now: float) -> Answer:
    candidates = asked.candidates
    rejected = decision.rejected
    return Answer(
        time=now,
        verb="filter",
        error=decision.error,
        namespace=asked.pod.namespace,
        pod=asked.pod.name,
        policy=decision.policy,
        outcome=decision.outcome,
        candidates=len(candidates),
        passed=0 if decision.error else len(candidates) - len(rejected),
        unknown=decision.unknown,
        reasons=Counter(rejected.values()) if rejected else {},
        rejected=tuple(islice(rejected, MAX_REJECTED)),
    )


def _ask_score(decider: Decider, asked: ExtenderArgs, now: float) -> ScoreDecision:
    return decider.score(asked.pod, asked.candidates, now)


def _tell_score(asked: ExtenderArgs, decision: ScoreDecision, now: float) -> tuple[bytes, Record]:
    return host_priorities(decision), partial(_record_score, asked, decision, now)


def _record_score(asked: ExtenderArgs, decision: ScoreDecision, now: float) -> Answer:
    scores = {} if decision.scores is None else decision.scores
    return Answer(
        time=now,
        verb="prioritize",
        namespace=asked.pod.namespace,
        pod=asked.pod.name,
        policy=decision.policy,
        outcome=decision.outcome,
        candidates=len(asked.candidates),
        passed=len(scores),
        unknown=decision.unknown,
        best=_best(scores),
    )


def _best(scores: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    if isinstance(scores, Ranking):
        return scores.best(MAX_BEST)
    # Where nodes are many, some share the highest score, and they are found after a few steps.
    best = list(islice((host for host in scores.items() if host[1] == MAX_SCORE), MAX_BEST))
    return tuple(best if len(best) == MAX_BEST else nlargest(MAX_BEST, scores.items(), key=itemgetter(1)))


def _ask_preempt(decider: Decider, asked: PreemptionArgs, now: float) -> PreemptDecision:
    return preempt_decision(asked, decider.filter(asked.pod, asked.victims.keys(), now))


def _tell_preempt(asked: PreemptionArgs, decision: PreemptDecision, now: float) -> tuple[bytes, Record]:
    return preemption_result(decision), partial(_record_preempt, asked, decision, now)


def _record_preempt(asked: PreemptionArgs, decision: PreemptDecision, now: float) -> Answer:
    left_out = [node for node in asked.victims if node not in decision.kept]
    return Answer(
        time=now,
        verb="preempt",
        error=decision.error,
        namespace=asked.pod.namespace,
        pod=asked.pod.name,
        policy=decision.policy,
        outcome=decision.outcome,
        candidates=len(asked.victims),
        passed=len(decision.kept),
        unknown=decision.unknown,
        rejected=tuple(left_out[:MAX_REJECTED]),
    )


answer_filter = Verb(hook="filter", decode=decode_args, ask=_ask_filter, tell=_tell_filter)
"""Which nodes the pod may go to: ExtenderArgs in, ExtenderFilterResult out."""

answer_prioritize = Verb(hook="score", decode=decode_args, ask=_ask_score, tell=_tell_score)
"""How well each node suits the pod: ExtenderArgs in, HostPriorityList out."""

answer_preempt = Verb(hook="preempt", decode=decode_preemption_args, ask=_ask_preempt, tell=_tell_preempt)
"""Where evictions would help the pod: ExtenderPreemptionArgs in, ExtenderPreemptionResult out."""

VERBS: Mapping[str, Verb[Any, Any]] = {
    "filter": answer_filter,
    "prioritize": answer_prioritize,
    "preempt": answer_preempt,
}
"""The last part of the path to what it means, for a decider. bind is not answered: 404 (protocol c30)."""
