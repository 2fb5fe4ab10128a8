"""Verbs that an extension answers by hooks: what a hook is asked, and whether its word can be passed on.

Nothing an extension says goes to the scheduler as it is: a score that is out of bounds enters the sum as it stands
(protocol c25), and a name that was not asked about fails the whole call (c15).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tas.errors import TasError, shortened
from tas.extender.binding import binding_result, decode_binding
from tas.extender.decision import Binding, FilterDecision, Outcome, Pod, PreemptDecision, ScoreDecision, Victims
from tas.extender.preemption import MAX_INT64, PreemptionArgs, preempt_decision
from tas.extender.verbs import Answer, Record, answer_filter, answer_preempt, answer_prioritize
from tas.extender.wire import ExtenderArgs
from tas.extension import Hooks
from tas.score import MAX_SCORE


class WrongAnswerError(TasError):
    """A hook gave what cannot be passed on, told with the place and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookVerb:
    """One verb that a hook answers.

    Attributes:
        hook: The hook, which is called with `arguments`.
        decode: The request of a body. Raises InvalidInputError if it can never be answered.
        arguments: What the hook is asked at a given time.
        tell: What the scheduler is told by what the hook gave, and how to record it. Raises WrongAnswerError.
    """

    hook: Callable[..., Any]
    decode: Callable[[bytes], Any]
    arguments: Callable[[Any, float], tuple[Any, ...]]
    tell: Callable[[Any, Any, float], tuple[bytes, Record]]


def hook_verbs(hooks: Hooks) -> Mapping[str, HookVerb]:
    """What is served by these hooks, by the last part of the path."""
    verbs = {}
    if hooks.filter is not None:
        verbs["filter"] = HookVerb(
            hook=hooks.filter, decode=answer_filter.decode, arguments=_about_candidates, tell=_tell_filter
        )
        verbs["preempt"] = HookVerb(
            hook=hooks.filter, decode=answer_preempt.decode, arguments=_about_nodes, tell=_tell_preempt_by_filter
        )
    if hooks.score is not None:
        verbs["prioritize"] = HookVerb(
            hook=hooks.score, decode=answer_prioritize.decode, arguments=_about_candidates, tell=_tell_score
        )
    if hooks.preempt is not None:
        verbs["preempt"] = HookVerb(
            hook=hooks.preempt, decode=answer_preempt.decode, arguments=_about_victims, tell=_tell_preempt
        )
    if hooks.bind is not None:
        verbs["bind"] = HookVerb(hook=hooks.bind, decode=decode_binding, arguments=_about_binding, tell=_tell_bind)
    return verbs


def _about_candidates(asked: ExtenderArgs, now: float) -> tuple[Pod, Collection[str], float]:
    return asked.pod, asked.candidates, now


def _about_nodes(asked: PreemptionArgs, now: float) -> tuple[Pod, Collection[str], float]:
    return asked.pod, asked.victims.keys(), now


def _about_victims(asked: PreemptionArgs, now: float) -> tuple[Pod, Mapping[str, Victims], float]:
    return asked.pod, MappingProxyType(asked.victims), now


def _about_binding(asked: Binding, now: float) -> tuple[Binding, float]:
    return asked, now


def _tell_filter(asked: ExtenderArgs, given: object, now: float) -> tuple[bytes, Record]:
    return answer_filter.tell(asked, _rejections(asked.candidates, given), now)


def _tell_score(asked: ExtenderArgs, given: object, now: float) -> tuple[bytes, Record]:
    if isinstance(given, ScoreDecision):
        given = {} if given.scores is None else given.scores
    scores = _by_node("scores", asked.candidates, given)
    for node, score in scores.items():
        if type(score) is not int or not 0 <= score <= MAX_SCORE:
            raise WrongAnswerError(f"{node} = {shortened(score)}: a score is an integer from 0 to {MAX_SCORE}")
    return answer_prioritize.tell(asked, ScoreDecision(outcome=Outcome.DECIDED, scores=scores), now)


def _tell_preempt_by_filter(asked: PreemptionArgs, given: object, now: float) -> tuple[bytes, Record]:
    decision = preempt_decision(asked, _rejections(asked.victims, given))
    return answer_preempt.tell(asked, decision, now)


def _tell_preempt(asked: PreemptionArgs, given: object, now: float) -> tuple[bytes, Record]:
    kept = _by_node("victims", asked.victims, given)
    for node, victims in kept.items():
        if not _are_victims(victims):
            raise WrongAnswerError(f"{node} = {shortened(victims)}: must be the Victims of the node, each with a uid")
        if asked.victims[node].pods and not victims.pods:
            raise WrongAnswerError(f"{node} has no victims left: a node that is not offered is left out")
    return answer_preempt.tell(asked, PreemptDecision(outcome=Outcome.DECIDED, kept=kept), now)


def _are_victims(victims: object) -> bool:
    return (
        isinstance(victims, Victims)
        and isinstance(victims.pods, tuple)
        and all(isinstance(pod, Pod) and isinstance(pod.uid, str) and pod.uid != "" for pod in victims.pods)
        and type(victims.pdb_violations) is int
        and -MAX_INT64 <= victims.pdb_violations <= MAX_INT64
    )


def _tell_bind(asked: Binding, given: object, now: float) -> tuple[bytes, Record]:
    if not (given is None or isinstance(given, str)):
        raise WrongAnswerError(f"{shortened(given)}: must be nothing, or why the pod cannot be bound")
    answer = Answer(
        time=now,
        verb="bind",
        error=given or "",
        namespace=asked.namespace,
        pod=asked.name,
        outcome=Outcome.DECIDED,
        candidates=1,
        passed=0 if given else 1,
        rejected=(asked.node,) if given else (),
    )
    return binding_result(given or ""), lambda: answer


def _rejections(candidates: Collection[str], given: object) -> FilterDecision:
    """The decision, of which only what an extension may say is taken over."""
    if not isinstance(given, FilterDecision):
        given = FilterDecision(rejected=given)  # type: ignore[arg-type] # looked at below
    rejected = _by_node("rejected nodes", candidates, given.rejected)
    for node, reason in rejected.items():
        if not isinstance(reason, str) or not reason:
            raise WrongAnswerError(f"{node} = {shortened(reason)}: a rejected node has a reason")
    if not isinstance(given.error, str):
        raise WrongAnswerError(f"error = {shortened(given.error)}: must be text")
    return FilterDecision(rejected=rejected, unresolvable=bool(given.unresolvable), error=given.error)


def _by_node(what: str, asked: Collection[str], given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise WrongAnswerError(f"{shortened(given)}: must be a mapping of nodes to {what}")
    known = dict(given)
    for node in known:
        if node not in asked:
            raise WrongAnswerError(f"{shortened(node)}: it was not asked about this node")
    return known
