"""What every agent promises, checked by calls with made nodes, pods and events. For the tests of an agent.

Nothing is measured and nothing is started. The nodes have plausible values, missing ones, zeros, equal ones, and the
largest that a metric can have.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import isfinite
from typing import Any, TypeVar

import msgspec
import numpy as np

from tas.agents.agent import Agent, Needs, Passes, Scores
from tas.agents.file import AgentVerb, verbs_of
from tas.agents.made import COUNTS, Case, MadeCandidates, UndeclaredError, ValueKind, cases, events
from tas.errors import InvalidInputError, shortened
from tas.outcomes.outcome import Outcome, Placed

T = TypeVar("T")

MAX_REASON = 200
"""The most characters of a reason: the scheduler repeats it in the events of a pod."""


def faults(agent: Agent) -> list[str]:
    """What the agent does otherwise than it must, each with the input that shows it first; empty if it conforms.

    Give an agent that serves nobody: a learner learns from made events.
    """
    check = _Check(agent)
    needs = check.result("needs", lambda: agent.needs)
    if isinstance(needs, Needs) and check.needs(needs):
        check.answers(needs)
        check.learning(needs)
    elif needs is not None:
        check.fault("needs", f"must be Needs, not {shortened(needs)}")
    return check.found


class _Check:
    def __init__(self, agent: Agent) -> None:
        self.found: list[str] = []
        self._agent = agent
        self._verbs = sorted(verbs_of(type(agent)))
        self._seen: set[tuple[str, str]] = set()

    def fault(self, where: str, what: str) -> None:
        """Lists a fault, unless the same of another request is listed."""
        key = (where.partition(" of ")[0], what)
        if key not in self._seen:
            self._seen.add(key)
            self.found.append(f"{where}: {what}")

    def result(self, where: str, call: Callable[[], T]) -> T | None:
        """What the call returns; None, and a fault, if it raises an error."""
        try:
            return call()
        except UndeclaredError as error:
            self.fault(where, str(error))
        except Exception as error:  # noqa: BLE001  # whatever an agent of somebody else raises
            self.fault(where, f"raises {type(error).__name__}: {shortened(str(error))}")
        return None

    # What it needs

    def needs(self, needs: Needs) -> bool:
        """Whether requests can be made from the needs."""
        metrics = needs.metrics
        if isinstance(metrics, str) or not all(isinstance(name, str) and name for name in metrics):
            self.fault("needs", f"metrics must be names, not {shortened(metrics)}")
            return False
        if needs.max_age is not None and not (isfinite(needs.max_age) and needs.max_age > 0):
            self.fault("needs", f"max_age must be above 0, not {shortened(needs.max_age)}")
        if self.result("needs", lambda: self._agent.needs) != needs:
            self.fault("needs", "differ from one call to the next")
        options = type(self._agent).Options
        if options is not None and not (issubclass(options, msgspec.Struct) and options.__struct_config__.frozen):
            self.fault("Options", "must be a frozen msgspec.Struct")
        elif options is not None:
            self.result("Options", options)
        return True

    # What it answers

    def answers(self, needs: Needs) -> None:
        if not self._verbs:
            self.fault("the agent", "overrides neither filter nor score")
        for case in cases(needs):
            for verb in self._verbs:
                self._answers(verb, case, needs)

    def _answers(self, verb: AgentVerb, case: Case, needs: Needs) -> None:
        where = _title(verb, case)
        answer = self._asked(verb, case)
        if answer is None:
            return
        again = self._asked(verb, case)
        if again is not None and not _equal(answer, again):
            self.fault(where, "another answer to the same question")
        mirrored = self._asked(verb, case, case.nodes.mirrored())
        if mirrored is not None and not _equal(answer, mirrored, step=-1):
            self.fault(where, "the answer depends on the order of the nodes")
        if case.kind is ValueKind.UNKNOWN:
            self._unknown(where, needs, answer)

    def _unknown(self, where: str, needs: Needs, answer: Scores | Passes) -> None:
        """Absence never acts: a node of which nothing is known is not rejected, and an agent has no opinion of it."""
        if isinstance(answer, Passes):
            if (answer.known & ~answer.passed).any():
                self.fault(where, "rejects a node of which nothing is known: `known` must be False there")
        elif answer.known.any() and (needs.metrics or needs.allocations) and not needs.outcomes:
            self.fault(where, "has an opinion of a node of which nothing is known: `known` must be False there")

    def _asked(self, verb: AgentVerb, case: Case, nodes: MadeCandidates | None = None) -> Scores | Passes | None:
        """The answer; None, and a fault, if it is none that the runtime accepts."""
        where, asked = _title(verb, case), nodes or case.nodes
        call = self._agent.filter if verb is AgentVerb.FILTER else self._agent.score
        answer: object = self.result(where, lambda: (call(case.pod, asked),))
        if not isinstance(answer, tuple):
            return None  # it has raised an error
        (answer,) = answer
        kind = Passes if verb is AgentVerb.FILTER else Scores
        wrong = self.result(where, lambda: tuple(_wrong(answer, kind, len(asked.names))))
        for each in wrong or ():
            self.fault(where, each)
        return answer if wrong == () and isinstance(answer, Scores | Passes) else None

    # What it learns

    def learning(self, needs: Needs) -> None:
        self._observe(events())
        learned = self._snapshot()
        if learned is None:
            return
        self._observe(events())
        if self._snapshot() != learned:
            self.fault("observe", "learns from an event that comes a second time")
        for what, state in _damaged(learned).items():
            self._refuses(what, state)
        if self._snapshot() != learned:
            self.fault("restore", "changes the learned state when it refuses another")
        self._restores(learned, needs)

    def _refuses(self, what: str, state: Mapping[str, Any]) -> None:
        try:
            self._agent.restore(state)
        except InvalidInputError:
            return
        except Exception as error:  # noqa: BLE001  # whatever an agent of somebody else raises
            self.fault("restore", f"raises {type(error).__name__} for a state {what}, not InvalidInputError")
        else:
            self.fault("restore", f"accepts a state {what}")

    def _restores(self, learned: Mapping[str, Any], needs: Needs) -> None:
        """Whether `restore` brings back what the agent has answered before it learned more."""
        case = next(
            each for each in cases(needs) if each.kind is ValueKind.PLAUSIBLE and len(each.nodes.names) == COUNTS[-1]
        )
        before = [self._asked(verb, case) for verb in self._verbs]
        self._observe(events(later=3600.0))
        self.result("restore", lambda: self._agent.restore(learned))
        if self._snapshot() != learned:
            self.fault("restore", "another state than the snapshot")
        for verb, answer in zip(self._verbs, before, strict=True):
            after = self._asked(verb, case)
            if answer is not None and after is not None and not _equal(answer, after):
                self.fault(_title(verb, case), "another answer after `restore` of the same state")

    def _observe(self, what: Iterable[Placed | Outcome]) -> None:
        for event in what:
            self.result("observe", partial(self._agent.observe, event))

    def _snapshot(self) -> Mapping[str, Any] | None:
        """The state as it is read back from the bus; None if the agent learns nothing, or with a fault."""
        state: object = self.result("snapshot", self._agent.snapshot)
        if state is None:
            return None
        if not isinstance(state, Mapping) or "version" not in state:
            self.fault("snapshot", "must be a mapping with a `version`")
            return None
        stored = self.result("snapshot", lambda: msgspec.json.encode(state))
        return None if stored is None else msgspec.json.decode(stored, type=dict[str, Any])


def _title(verb: AgentVerb, case: Case) -> str:
    return f"{'filter' if verb is AgentVerb.FILTER else 'score'} of {case.title}"


def _wrong(answer: object, kind: type[Scores | Passes], count: int) -> Iterator[str]:
    if not isinstance(answer, kind):
        yield f"returns {shortened(answer)}, which is no {kind.__name__}"
        return
    arrays: dict[str, object] = {"known": answer.known}
    arrays |= {"passed": answer.passed} if isinstance(answer, Passes) else {"values": answer.values}
    arrays |= {f"the term {name}": term for name, term in answer.terms.items()}
    right = True
    for name, array in arrays.items():
        dtype = np.bool_ if name in {"known", "passed"} else np.float64
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != (count,):
            right = False
            yield f"{name} must be an array of {dtype.__name__} with a value for each node"
    if right and isinstance(answer, Scores):
        values = answer.values[answer.known]
        if not ((values >= 0) & (values <= 1)).all():  # NaN is neither
            yield "a score is not from 0 to 1"
    if isinstance(answer, Passes):
        if not isinstance(answer.reason, str) or not answer.reason or "\n" in answer.reason:
            yield f"the reason must be a line of text, not {shortened(answer.reason)}"
        elif len(answer.reason) > MAX_REASON:
            yield f"the reason is longer than {MAX_REASON} characters"
    if right and any(np.isinf(term).any() for term in answer.terms.values()):
        yield "a term is infinite"


def _equal(answer: Scores | Passes, other: Scores | Passes, *, step: int = 1) -> bool:
    """Whether two answers say the same; with step -1 the nodes of the other are in the opposite order."""
    known = answer.known
    if not np.array_equal(known, other.known[::step]):
        return False
    if isinstance(answer, Scores) and isinstance(other, Scores):
        # Sums of floats depend on their order in the last digits.
        return bool(np.allclose(answer.values[known], other.values[::step][known], rtol=0.0, atol=1e-9))
    assert isinstance(answer, Passes)
    assert isinstance(other, Passes)
    return np.array_equal(answer.passed[known], other.passed[::step][known]) and answer.reason == other.reason


def _damaged(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {
        "without a version": {name: value for name, value in state.items() if name != "version"},
        "of another version": {**state, "version": "another"},
        "with a version alone": {"version": state["version"]},
        "of other types": {name: value if name == "version" else object() for name, value in state.items()},
    }
