"""The verbs of the extender: request bytes in, response bytes and a record of the answer out."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, TypeVar

import msgspec

from tas.errors import line_of
from tas.extender.answers import filter_result, host_priorities
from tas.extender.decision import (
    MAX_REJECTED,
    Decider,
    FilterDecision,
    Outcome,
    PreemptDecision,
    RejectingValue,
    ScoreDecision,
)
from tas.extender.preemption import PreemptionArgs, decode_preemption_args, preempt_decision, preemption_result
from tas.extender.wire import ExtenderArgs, decode_args
from tas.scoring.score import Ranking

A = TypeVar("A")
D = TypeVar("D")

MAX_REASONS = 20
MAX_BEST = 5
MAX_VALUES = 30

MAX_NAME = 253
"""The most characters of a name in a record: no valid name is longer, and a thousand records are kept."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a request and its answer, small enough to keep a thousand of them.

    Attributes:
        time: When the request arrived, in seconds since 1970.
        path: The path of the request, without the verb.
        verb: `filter`, `prioritize`, `preempt` or `bind`.
        status: The HTTP status. Unless it is 200, all fields below except `seconds` and `error` are empty.
        seconds: From the headers of the request to the answer.
        error: What was wrong with the request, or the answer's `Error`.
        namespace: The pod's.
        pod: The pod's name.
        policy: The policy that decided, or that would have decided.
        node: Of a bind, the node for the pod.
        outcome: How the decision was made.
        candidates: The number of distinct nodes in the request.
        passed: The number of nodes that passed, were scored, or are offered for evictions.
        unknown: The number of those nodes without a fresh value.
        unknown_rejected: The number of nodes that are rejected because they have no fresh value.
        kept_rejected: The number of nodes that are rejected by kept values alone (`onStale: keep`).
        costed: The number of nodes that were scored by a value with costs of pods (`podCost`).
        reasons: The most frequent reasons of a rejection, with the number of nodes.
        rejected: Some of the nodes that are rejected, or not offered.
        values: Some of the values for which filter rejected these nodes, as they were at `time`; of agents also some
            of those that made the best scores.
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
    node: str = ""
    outcome: Outcome | None = None
    candidates: int = 0
    passed: int = 0
    unknown: int = 0
    unknown_rejected: int = 0
    kept_rejected: int = 0
    costed: int = 0
    reasons: Mapping[str, int] = {}
    rejected: tuple[str, ...] = ()
    values: tuple[RejectingValue, ...] = ()
    best: tuple[tuple[str, int], ...] = ()


def within_limits(answer: Answer) -> Answer:
    """`answer` with its texts cut and escaped: a stranger may send names of any size, an extension many reasons."""
    reasons = answer.reasons.items()
    if len(reasons) > MAX_REASONS:
        reasons = dict(nlargest(MAX_REASONS, reasons, key=itemgetter(1))).items()
    return msgspec.structs.replace(
        answer,
        error=line_of(answer.error),
        namespace=line_of(answer.namespace, MAX_NAME),
        pod=line_of(answer.pod, MAX_NAME),
        policy=line_of(answer.policy, 2 * MAX_NAME),
        node=line_of(answer.node, MAX_NAME),
        reasons={line_of(reason): count for reason, count in reasons},
        rejected=tuple(line_of(name, MAX_NAME) for name in answer.rejected),
        values=tuple(
            RejectingValue(
                node=line_of(each.node, MAX_NAME),
                rule=line_of(each.rule),
                value=None if each.value is None else line_of(each.value, MAX_NAME),
                age_seconds=each.age_seconds,
                source=None if each.source is None else line_of(each.source, MAX_NAME),
                kept=each.kept,
            )
            for each in answer.values
        ),
        best=tuple((line_of(name, MAX_NAME), score) for name, score in answer.best),
    )


Record = Callable[[], Answer]
"""Makes the record of an answer, after the answer was sent, so that the scheduler does not wait for the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb(Generic[A, D]):
    """One verb of the extender, the last part of the path.

    Attributes:
        hook: The name of the hook of an extension for this verb.
        decode: Decodes the body of a request. Raises InvalidInputError if the body is invalid.
        decide: The decision of a decider on a request at a given time.
        respond: Encodes the answer, and returns a function that makes its record.
    """

    hook: str
    decode: Callable[[bytes], A]
    decide: Callable[[Decider, A, float], D]
    respond: Callable[[A, D, float], tuple[bytes, Record]]

    def __call__(self, decider: Decider, body: bytes, now: float) -> tuple[bytes, Record]:
        """Answers the body of a request at a given time. Raises InvalidInputError if the body is invalid."""
        args = self.decode(body)
        return self.respond(args, self.decide(decider, args, now), now)


def _decide_filter(decider: Decider, args: ExtenderArgs, now: float) -> FilterDecision:
    return decider.filter(args.pod, args.candidates, now)


def _respond_filter(args: ExtenderArgs, decision: FilterDecision, now: float) -> tuple[bytes, Record]:
    return filter_result(args, decision), partial(_record_filter, args, decision, now)


def _record_filter(args: ExtenderArgs, decision: FilterDecision, now: float) -> Answer:
    candidates = args.candidates
    rejected = decision.rejected
    return Answer(
        time=now,
        verb="filter",
        error=decision.error,
        namespace=args.pod.namespace,
        pod=args.pod.name,
        policy=decision.policy,
        outcome=decision.outcome,
        candidates=len(candidates),
        passed=0 if decision.error else len(candidates) - len(rejected),
        unknown=decision.unknown,
        unknown_rejected=decision.unknown_rejected,
        kept_rejected=decision.kept_rejected,
        reasons=Counter(rejected.values()) if rejected else {},
        rejected=tuple(islice(rejected, MAX_REJECTED)),
        values=tuple(islice(decision.list_values(), MAX_VALUES)),
    )


def _decide_score(decider: Decider, args: ExtenderArgs, now: float) -> ScoreDecision:
    return decider.score(args.pod, args.candidates, now)


def _respond_score(args: ExtenderArgs, decision: ScoreDecision, now: float) -> tuple[bytes, Record]:
    return host_priorities(decision), partial(_record_score, args, decision, now)


def _record_score(args: ExtenderArgs, decision: ScoreDecision, now: float) -> Answer:
    scores = {} if decision.scores is None else decision.scores
    return Answer(
        time=now,
        verb="prioritize",
        namespace=args.pod.namespace,
        pod=args.pod.name,
        policy=decision.policy,
        outcome=decision.outcome,
        candidates=len(args.candidates),
        passed=len(scores),
        unknown=decision.unknown,
        costed=decision.costed,
        best=_best(scores),
        values=tuple(islice(decision.list_values(), MAX_VALUES)),
    )


def _best(scores: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    if isinstance(scores, Ranking):
        return scores.best(MAX_BEST)
    # With many nodes, several share one of the few scores, and these are found after a few steps.
    best: list[tuple[str, int]] = []
    for score in sorted(set(scores.values()), reverse=True):
        best += islice((host for host in scores.items() if host[1] == score), MAX_BEST - len(best))
        if len(best) == MAX_BEST:
            break
    return tuple(best)


def _decide_preempt(decider: Decider, args: PreemptionArgs, now: float) -> PreemptDecision:
    return preempt_decision(args, decider.filter(args.pod, args.victims.keys(), now))


def _respond_preempt(args: PreemptionArgs, decision: PreemptDecision, now: float) -> tuple[bytes, Record]:
    return preemption_result(decision), partial(_record_preempt, args, decision, now)


def _record_preempt(args: PreemptionArgs, decision: PreemptDecision, now: float) -> Answer:
    left_out = [node for node in args.victims if node not in decision.kept]
    return Answer(
        time=now,
        verb="preempt",
        error=decision.error,
        namespace=args.pod.namespace,
        pod=args.pod.name,
        policy=decision.policy,
        outcome=decision.outcome,
        candidates=len(args.victims),
        passed=len(decision.kept),
        unknown=decision.unknown,
        rejected=tuple(left_out[:MAX_REJECTED]),
    )


answer_filter = Verb(hook="filter", decode=decode_args, decide=_decide_filter, respond=_respond_filter)
"""The nodes that pass for a pod: ExtenderArgs in, ExtenderFilterResult out."""

answer_prioritize = Verb(hook="score", decode=decode_args, decide=_decide_score, respond=_respond_score)
"""The score of each node for a pod: ExtenderArgs in, HostPriorityList out."""

answer_preempt = Verb(hook="preempt", decode=decode_preemption_args, decide=_decide_preempt, respond=_respond_preempt)
"""The nodes where evictions would help a pod: ExtenderPreemptionArgs in, ExtenderPreemptionResult out."""

VERBS: Mapping[str, Verb[Any, Any]] = {
    "filter": answer_filter,
    "prioritize": answer_prioritize,
    "preempt": answer_preempt,
}
"""The verbs of a decider by the last part of the path. There is no bind: 404 (facts.md c30)."""
