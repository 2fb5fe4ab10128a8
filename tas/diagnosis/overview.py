"""What `tas status` shows: what is wrong, worst first, and then what runs, from the same facts as the findings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from tas.diagnosis.bus import BusFacts, check_bus
from tas.diagnosis.finding import Finding, Missing, Severity, left
from tas.diagnosis.metrics import MetricFacts, check_metrics, health_with, late_sources, newest_times
from tas.diagnosis.policies import PolicyFacts, StoredPolicy, check_policies
from tas.diagnosis.processes import ProcessFacts, check_answers, check_processes
from tas.processes.process import LastAnswer, NotReady, numbers, waiting_labels
from tas.sources.state import health
from tas.verdict.freeze import freeze_of
from tas.verdict.ownership import LABEL_STRATEGIES
from tas.verdict.status import waiting_problem

BY_CONDITION = ("NotEvaluated", "LabelsNotWritten", "MarksNotWritten", "NothingToDo")
"""The reasons of `Ready` that only the process knows that writes it; the others follow from what the bus stores."""


class Verdict(StrEnum):
    """The installation in a word."""

    WELL = "well"
    """Nothing above a hint was found."""
    WRONG = "wrong"
    """At least one warning or error."""
    UNKNOWN = "not known"
    """Nothing wrong is known, and something could not be judged. This is never well."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker: how many processes run it, in how many it is ready, and how many should run; None: not known yet."""

    worker: str
    running: int
    ready: int
    expected: int | None


class ProcessRow(msgspec.Struct, frozen=True, kw_only=True):
    """A process; `age` is the time since its start in seconds, by the clock of the bus."""

    process: str
    role: str
    version: str
    age: float
    unready: Mapping[str, str]
    leases: Sequence[str]
    behind: Mapping[str, Mapping[str, float]]
    lag: Mapping[str, int]
    answers: Mapping[str, LastAnswer]
    expires: Mapping[str, float]


class SourceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A source: its state, and how many seconds ago its newest value was measured; None: it has none.

    A program that publishes by itself has no state, period and holder.
    """

    source: str
    state: str
    age: float | None
    period: float | None = None
    holder: str = ""


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that is not in force, or not as it is written, and why."""

    policy: str
    why: str


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The screen.

    Attributes:
        findings: Those that are not ok, the worst first.
        leases: By name, who holds it.
        policies: How many there are; None: not known.
        not_in_force: Those of them that are not in force, or not as they are written.
        more_not_in_force: How many more of them are not, whose names are not known here.
        breakers: The tripped breakers, by name of policies.
        pause: Who paused all labels and why; empty without a pause.
        asked: How many seconds ago a scheduler last asked one of the extenders; None: never, or not known.
    """

    verdict: Verdict
    bus: str
    findings: Sequence[Finding]
    workers: Sequence[WorkerRow] = ()
    processes: Sequence[ProcessRow] = ()
    leases: Mapping[str, str] = {}
    sources: Sequence[SourceRow] = ()
    policies: int | None = None
    not_in_force: Sequence[PolicyRow] = ()
    more_not_in_force: int = 0
    breakers: Sequence[str] = ()
    pause: str = ""
    asked: float | None = None

    @property
    def exit_code(self) -> int:
        """For scripts: 0 well, 1 wrong, 3 not known; 2 is a wrong call."""
        return {Verdict.WELL: 0, Verdict.WRONG: 1, Verdict.UNKNOWN: 3}[self.verdict]


def overview(
    *,
    bus: BusFacts | Missing,
    policies: PolicyFacts,
    metrics: MetricFacts | Missing,
    processes: ProcessFacts | Missing,
    leases: Mapping[str, str],
    address: str,
) -> Overview:
    """What there is to show."""
    findings = diagnose_bus(bus, policies, metrics, processes)
    rows = _not_in_force(policies, {} if isinstance(processes, Missing) else waiting_labels(processes.running))
    return Overview(
        verdict=verdict_of(findings),
        bus=address,
        findings=worst_first(findings),
        workers=[] if isinstance(processes, Missing) else _workers(processes),
        processes=[] if isinstance(processes, Missing) else _processes(processes),
        leases=leases,
        sources=[] if isinstance(metrics, Missing) else _sources(metrics),
        policies=None if isinstance(policies.stored, Missing) else len(policies.stored),
        not_in_force=rows,
        more_not_in_force=sum(
            each.count - len(each.policies) for reason, each in _not_ready(policies).items() if reason in BY_CONDITION
        ),
        breakers=sorted(name for name, each in policies.breakers.items() if each.trip is not None),
        pause="" if policies.pause is None else str(policies.pause),
        asked=None if isinstance(processes, Missing) else _asked(processes),
    )


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """The findings in a word. That nobody knows yet how many processes should run is never well, also as a hint."""
    found = {(each.check, each.severity) for each in findings if each.severity is not Severity.OK}
    if {severity for _, severity in found} & {Severity.WARNING, Severity.ERROR}:
        return Verdict.WRONG
    is_known = all(severity is Severity.HINT and check != "workers.expected" for check, severity in found)
    return Verdict.WELL if is_known else Verdict.UNKNOWN


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Those that are not ok."""
    order = list(Severity)
    return sorted(
        (each for each in findings if each.severity is not Severity.OK), key=lambda each: -order.index(each.severity)
    )


def _workers(facts: ProcessFacts) -> list[WorkerRow]:
    running = numbers(facts.running)
    ready: dict[str, int] = {}
    for each in facts.running:
        for worker in each.process.ready:
            ready[worker] = ready.get(worker, 0) + 1
    return [
        WorkerRow(
            worker=worker,
            running=running.get(worker, 0),
            ready=ready.get(worker, 0),
            expected=None if (expected := facts.expected.get(worker)) is None else expected.count,
        )
        for worker in sorted(running.keys() | {worker for worker, each in facts.expected.items() if each.count})
    ]


def _processes(facts: ProcessFacts) -> list[ProcessRow]:
    return [
        ProcessRow(
            process=each.process.name,
            role=each.role,
            version=each.process.version,
            age=facts.now - each.process.started,
            unready={worker: why for worker, why in each.process.workers.items() if why},
            leases=sorted(each.process.leases),
            behind=each.process.behind,
            lag={name: lag for name, lag in each.process.lag.items() if lag},
            answers=each.process.answers,
            expires=each.process.expires,
        )
        for each in facts.running
    ]


def _asked(facts: ProcessFacts) -> float | None:
    times = [answer.time for each in facts.running for answer in each.process.answers.values()]
    return max(0.0, facts.now - max(times)) if times else None


def _sources(facts: MetricFacts) -> list[SourceRow]:
    times = newest_times(facts.samples)
    late = late_sources(facts.sources, facts.held, facts.samples, facts.late, now=facts.now)
    rows = [
        SourceRow(
            source=name,
            state=health_with(late, name, health(state, is_held=name in facts.held, now=facts.now)).value,
            age=None if name not in times else facts.now - times[name].measured,
            period=state.period,
            holder=state.holder,
        )
        for name, state in facts.sources.items()
    ]
    rows += [
        SourceRow(source=name, state="publishes", age=facts.now - each.measured)
        for name, each in times.items()
        if name not in facts.sources
    ]
    # The oldest first: it is the one that somebody looks for.
    return sorted(rows, key=lambda row: (row.age is not None, -(row.age or 0.0), row.source))


def _not_ready(facts: PolicyFacts) -> Mapping[str, NotReady]:
    return {} if isinstance(facts.not_ready, Missing) else facts.not_ready


def _not_in_force(facts: PolicyFacts, waiting: Mapping[str, int]) -> list[PolicyRow]:
    if isinstance(facts.stored, Missing):
        return []
    said: dict[str, list[str]] = {}
    not_ready = _not_ready(facts)
    for reason in BY_CONDITION:
        for key in not_ready[reason].policies if reason in not_ready else ():
            said.setdefault(key, []).append(f"Ready is False, {reason}")
    found: list[PolicyRow] = []
    for each in sorted(facts.stored, key=lambda one: one.policy.key):
        name = str(each.policy.key)
        if why := [*_why_not(each, facts, waiting), *said.get(name, ())]:
            found.append(PolicyRow(policy=name, why="; ".join(why)))
    return found


def _why_not(each: StoredPolicy, facts: PolicyFacts, waiting: Mapping[str, int]) -> Iterator[str]:
    """Why a policy is not in force as it is written, by what the bus stores."""
    policy = each.policy
    if refused := [problem for problem in each.problems if problem.refused]:
        yield f"refused: {refused[0]}"
    if facts.file_problems.leave_last_good(policy.key, each.origin):
        yield f"the file {each.origin} cannot be used: its last good version is in force"
    if policy.suspend:
        yield "suspend is true"
    if policy.dry_run:
        yield "dryRun is true"
    if set(LABEL_STRATEGIES) & policy.strategies.keys():
        if (freeze := freeze_of(policy.key, facts.breakers, facts.pause)) is not None:
            yield freeze.text
        elif policy.key.name in waiting:
            problem = waiting_problem(waiting[policy.key.name])
            yield f"{problem.value} {problem.reason}"


ON_ONE_SCREEN = ("bus.sync", "bus.replicas", "policies.crd", "policies.served", "policies.mirrored")
"""What `tas status` leaves to `tas doctor`: it needs the API server, or the monitoring port of the bus."""


def diagnose_bus(
    bus: BusFacts | Missing, policies: PolicyFacts, metrics: MetricFacts | Missing, processes: ProcessFacts | Missing
) -> list[Finding]:
    """The findings of the checks that need nothing but the bus."""
    found = [
        *check_bus(bus),
        *check_policies(policies),
        *check_metrics(metrics),
        *check_processes(processes),
        *check_answers(processes),
    ]
    return left(found, ON_ONE_SCREEN)
