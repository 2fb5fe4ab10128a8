"""What the extender can be asked, verb by verb: bytes in, bytes and a record of them out."""

from collections import Counter
from collections.abc import Callable, Mapping
from heapq import nlargest
from itertools import islice
from operator import itemgetter

import msgspec

from tas.extender.answers import filter_result, host_priorities
from tas.extender.decision import Decider, Outcome
from tas.extender.wire import decode_args
from tas.score import MAX_SCORE

MAX_REJECTED = 10
MAX_BEST = 5


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked and how it was answered, small enough to keep a thousand of.

    Attributes:
        time: When it was asked, in seconds since 1970.
        path: The path it was asked on, without the verb.
        verb: `filter` or `prioritize`.
        status: The HTTP status. Below, everything but `error` is empty unless it is 200.
        seconds: From its headers to its answer.
        error: What was wrong with the request, or the answer's `Error`.
        namespace: The pod's.
        pod: The pod's name.
        policy: The policy that decided, or would have.
        outcome: How the decision came about.
        candidates: How many distinct nodes were asked about.
        passed: How many of them passed, or were scored.
        unknown: How many of those have no fresh value.
        reasons: Each reason of a rejection, and how many nodes it met.
        rejected: Some of the rejected nodes.
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


Verb = Callable[[Decider, bytes, float], tuple[bytes, Answer]]
"""Answers the body of a request at a given time. Raises InvalidInputError if the request can never be answered."""


def answer_filter(decider: Decider, body: bytes, now: float) -> tuple[bytes, Answer]:
    """Which nodes the pod may go to: ExtenderArgs in, ExtenderFilterResult out."""
    args = decode_args(body)
    candidates = args.candidates
    decision = decider.filter(args.pod, candidates, now)
    rejected = decision.rejected
    answer = Answer(
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
        reasons=Counter(rejected.values()) if rejected else {},
        rejected=tuple(islice(rejected, MAX_REJECTED)),
    )
    return filter_result(args, decision), answer


def answer_prioritize(decider: Decider, body: bytes, now: float) -> tuple[bytes, Answer]:
    """How well each node suits the pod: ExtenderArgs in, HostPriorityList out."""
    args = decode_args(body)
    candidates = args.candidates
    decision = decider.prioritize(args.pod, candidates, now)
    scores = {} if decision.scores is None else decision.scores
    answer = Answer(
        time=now,
        verb="prioritize",
        namespace=args.pod.namespace,
        pod=args.pod.name,
        policy=decision.policy,
        outcome=decision.outcome,
        candidates=len(candidates),
        passed=len(scores),
        unknown=decision.unknown,
        best=_best(scores),
    )
    return host_priorities(decision), answer


def _best(scores: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    # Where nodes are many, some share the highest score, and they are found after a few steps.
    best = list(islice((host for host in scores.items() if host[1] == MAX_SCORE), MAX_BEST))
    return tuple(best if len(best) == MAX_BEST else nlargest(MAX_BEST, scores.items(), key=itemgetter(1)))


VERBS: Mapping[str, Verb] = {"filter": answer_filter, "prioritize": answer_prioritize}
"""The last part of the path to what it means. bind and preempt are not answered: 404."""
