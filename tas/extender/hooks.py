"""Calls the hooks of an extension for a verb, and checks the result of each hook.

The check protects the scheduler: it would add a score that is out of bounds unchanged (facts.md c25), and a name that
is not in the request would fail the whole call (facts.md c15).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from tas.errors import TasError, shortened
from tas.extender.binding import binding_result, decode_binding
from tas.extender.decision import (
    Binding,
    FilterDecision,
    Outcome,
    Pod,
    PreemptDecision,
    RejectingValue,
    ScoreDecision,
    Victims,
)
from tas.extender.preemption import MAX_INT64, PreemptionArgs, preempt_decision
from tas.extender.verbs import MAX_VALUES, Answer, Record, answer_filter, answer_preempt, answer_prioritize
from tas.extender.wire import ExtenderArgs
from tas.extension import Hooks
from tas.scoring.score import MAX_SCORE


class InvalidHookResultError(TasError):
    """A hook returned an invalid result; the message names the node or field, and the value."""


_SCORES = frozenset(range(MAX_SCORE + 1))


@dataclass(frozen=True, slots=True)
class HookVerb:
    """One verb that a hook answers.

    Attributes:
        hook: The hook, which is called with `arguments`.
        decode: Decodes the body of a request. Raises InvalidInputError if the body is invalid.
        arguments: The arguments of the hook for a request at a given time.
        respond: Encodes the answer from the hook's result, and returns a function that makes its record. Raises
            InvalidHookResultError.
    """

    hook: Callable[..., Any]
    decode: Callable[[bytes], Any]
    arguments: Callable[[Any, float], tuple[Any, ...]]
    respond: Callable[[Any, Any, float], tuple[bytes, Record]]


def hook_verbs(hooks: Hooks) -> Mapping[str, HookVerb]:
    """The verbs served by these hooks, by the last part of the path."""
    verbs = {}
    if hooks.filter is not None:
        verbs["filter"] = HookVerb(hooks.filter, answer_filter.decode, _arguments_by_candidates, _respond_filter)
        verbs["preempt"] = HookVerb(
            hooks.filter, answer_preempt.decode, _arguments_by_offered, _respond_preempt_by_filter
        )
    if hooks.score is not None:
        verbs["prioritize"] = HookVerb(hooks.score, answer_prioritize.decode, _arguments_by_candidates, _respond_score)
    if hooks.preempt is not None:
        verbs["preempt"] = HookVerb(hooks.preempt, answer_preempt.decode, _arguments_by_victims, _respond_preempt)
    if hooks.bind is not None:
        verbs["bind"] = HookVerb(hooks.bind, decode_binding, lambda args, now: (args, now), _respond_bind)
    return verbs


def _arguments_by_candidates(args: ExtenderArgs, now: float) -> tuple[Any, ...]:
    return args.pod, args.candidates, now


def _arguments_by_offered(args: PreemptionArgs, now: float) -> tuple[Any, ...]:
    return args.pod, args.victims.keys(), now


def _arguments_by_victims(args: PreemptionArgs, now: float) -> tuple[Any, ...]:
    return args.pod, MappingProxyType(args.victims), now


def _respond_filter(args: ExtenderArgs, hook_result: object, now: float) -> tuple[bytes, Record]:
    return answer_filter.respond(args, _rejections(args.candidates, hook_result), now)


def _respond_score(args: ExtenderArgs, hook_result: object, now: float) -> tuple[bytes, Record]:
    unknown, values = 0, _Values(tuple)
    if isinstance(hook_result, ScoreDecision):
        values = _Values(hook_result.list_values)
        unknown = _count("unknown", hook_result.unknown)
        hook_result = {} if hook_result.scores is None else hook_result.scores
    scores = _by_node("scores", args.candidates, hook_result)
    if not _are_scores(scores.values()):
        node, score = next((node, score) for node, score in scores.items() if not _are_scores((score,)))
        raise InvalidHookResultError(f"{node} = {shortened(score)}: a score is an integer from 0 to {MAX_SCORE}")
    decision = ScoreDecision(outcome=Outcome.DECIDED, scores=scores, unknown=unknown, list_values=values)
    return answer_prioritize.respond(args, decision, now)


def _are_scores(values: Collection[object]) -> bool:
    """Whether all are integers in the range. In loops in C: there are as many as nodes."""
    return set(map(type, values)) <= {int} and set(values) <= _SCORES


def _respond_preempt_by_filter(args: PreemptionArgs, hook_result: object, now: float) -> tuple[bytes, Record]:
    decision = preempt_decision(args, _rejections(args.victims, hook_result))
    return answer_preempt.respond(args, decision, now)


def _respond_preempt(args: PreemptionArgs, hook_result: object, now: float) -> tuple[bytes, Record]:
    kept = _by_node("victims", args.victims, hook_result)
    for node, victims in kept.items():
        if not _are_victims(victims):
            raise InvalidHookResultError(
                f"{node} = {shortened(victims)}: must be the Victims of the node, each with a uid"
            )
        if args.victims[node].pods and not victims.pods:
            raise InvalidHookResultError(f"{node} has no victims left: a node that is not offered is left out")
    return answer_preempt.respond(args, PreemptDecision(outcome=Outcome.DECIDED, kept=kept), now)


def _are_victims(victims: object) -> bool:
    return (
        isinstance(victims, Victims)
        and isinstance(victims.pods, tuple)
        and all(isinstance(pod, Pod) and isinstance(pod.uid, str) and pod.uid != "" for pod in victims.pods)
        and type(victims.pdb_violations) is int
        and -MAX_INT64 <= victims.pdb_violations <= MAX_INT64
    )


def _respond_bind(args: Binding, hook_result: object, now: float) -> tuple[bytes, Record]:
    if not (hook_result is None or isinstance(hook_result, str)):
        raise InvalidHookResultError(f"{shortened(hook_result)}: must be nothing, or why the pod cannot be bound")
    answer = Answer(
        time=now,
        verb="bind",
        error=hook_result or "",
        namespace=args.namespace,
        pod=args.name,
        node=args.node,
        outcome=Outcome.DECIDED,
        candidates=1,
        passed=0 if hook_result else 1,
        rejected=(args.node,) if hook_result else (),
    )
    return binding_result(hook_result or ""), lambda: answer


def _rejections(candidates: Collection[str], hook_result: object) -> FilterDecision:
    """The decision in the hook's result, with only the fields that an extension may set."""
    if not isinstance(hook_result, FilterDecision):
        hook_result = FilterDecision(rejected=hook_result)  # type: ignore[arg-type] # checked below
    rejected = _by_node("rejected nodes", candidates, hook_result.rejected)
    for node, reason in rejected.items():
        if not isinstance(reason, str) or not reason:
            raise InvalidHookResultError(f"{node} = {shortened(reason)}: a rejected node has a reason")
    if not isinstance(hook_result.error, str):
        raise InvalidHookResultError(f"error = {shortened(hook_result.error)}: must be text")
    unknown = _count("unknown", hook_result.unknown)
    return FilterDecision(
        rejected=rejected,
        unresolvable=bool(hook_result.unresolvable),
        error=hook_result.error,
        count_unknown=lambda: unknown,
        unknown_rejected=_count("unknown_rejected", hook_result.unknown_rejected),
        list_values=_Values(hook_result.list_values),
    )


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of a record. It is made after the answer was sent, so an error must not reach anybody."""

    list_values: Callable[[], Any]

    def __call__(self) -> tuple[RejectingValue, ...]:
        try:
            return tuple(each for each in islice(self.list_values(), MAX_VALUES) if isinstance(each, RejectingValue))
        except Exception:  # noqa: BLE001 - of a stranger
            return ()


def _count(field: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise InvalidHookResultError(f"{field} = {shortened(value)}: must be a count of nodes")
    return value


def _by_node(content: str, candidates: Collection[str], hook_result: object) -> dict[str, Any]:
    if not isinstance(hook_result, Mapping):
        raise InvalidHookResultError(f"{shortened(hook_result)}: must be a mapping of nodes to {content}")
    known = dict(hook_result)
    if not all(map(candidates.__contains__, known)):
        node = next(node for node in known if node not in candidates)
        raise InvalidHookResultError(f"{shortened(node)}: the node is not in the request")
    return known
