"""Do as many processes run as should, is each ready, and is none of them behind?"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf

import msgspec

from tas.diagnosis.extender import RECENT_SECONDS, RENEW, STATUS, valid
from tas.diagnosis.finding import Finding, Missing, Severity, command, finding, none_checked, ok, or_ok, some, unknown
from tas.policy.policy import Policy, StrategyType
from tas.processes.expected import TOGETHER_SECONDS, Expected, Lack, lacks
from tas.processes.expected import unknown as not_known_yet
from tas.processes.process import LastAnswer, Running, clock_ahead, numbers
from tas.values.nouns import counted
from tas.verdict.ownership import LABEL_STRATEGIES

WITHOUT: Mapping[str, str] = {
    "agents": "kube-scheduler gets no answer of agents",
    "collect": "no source is polled",
    "events": "nothing is announced, and nobody is alerted by events",
    "evaluate": "no verdict follows a value: labels and taints stay as they are",
    "evictions": "no pod is asked to leave a card",
    "extender": "kube-scheduler gets no answer",
    "gpu": "kube-scheduler gets no answer about GPU cards",
    "inventory": "nobody sees which GPU cards there are",
    "keeper": "a closed bus whose store is new or full stays as it is",
    "labels": "no label is set or removed",
    "marks": "no taint and no condition is set or removed",
    "materialize": "no new value reaches a rule",
    "notify": "nobody is notified",
    "policies": "changes of policies have no effect",
    "resources": "no new node offers telemetry/scheduling",
    "watch": "changes of policies, nodes and pods have no effect",
    "windows": "no statistic is computed",
}
"""What is lost while nobody runs a worker."""

CLOCK_SECONDS = 5.0
"""Clocks of two machines differ by less; a value is refused that is measured 10 s ahead."""

CLOCKS_SECONDS = 10.0
"""The API server says when a pod was created, an extender when it was asked: so much later, whatever the clocks."""

PLACED_SECONDS = 900.0
"""A pod that was placed before that proves nothing: the extender that was asked about it may have ended since."""

LAG_MESSAGES = 5000
"""A reader that is so many messages behind cannot follow: in ordinary use it is a few behind."""

OF_OTHERS = frozenset({"bus-cert", "kubeconfig"})
"""The certificates that `tas certs` does not sign: the authorities are those of the bus and of the cluster."""

COUNTED_SECONDS = 60.0
"""From the time for which processes must run together until their number is on the bus."""


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The processes that run, by WORKERS.

    Attributes:
        expected: By worker, how many should run; a worker that is missing is not known yet.
        policies: Those on the bus.
        failing: The sources whose last poll failed, and why.
        cluster: Whether the policies are those of an API server; None: nobody has listed them.
        now: By the clock of the bus, if it is known: that of this machine may be wrong.
    """

    running: Sequence[Running]
    expected: Mapping[str, Expected]
    policies: Collection[Policy] = ()
    failing: Mapping[str, str] = {}
    cluster: bool | None = None
    now: float


def check_processes(facts: ProcessFacts | Missing) -> Iterator[Finding]:
    """The findings about processes: at least one of each check."""
    if isinstance(facts, Missing):
        yield from none_checked("workers", facts)
        return
    count = len(facts.running)
    oks = {
        "workers.running": f"{counted(count, 'process runs', 'processes run')}, and no worker lacks one",
        "workers.expected": "of each worker that runs it is known how many processes should run it",
        "workers.ready": "each worker of each process is ready",
        "workers.behind": "no process is behind",
        "workers.expires": "no certificate of a process expires soon",
        "workers.concerns": "no worker sees that something does not go as it should",
        "workers.clocks": "the clocks of processes and of the nats-server agree",
        "workers.asked": "no pod with a policy is placed or waits without a request to an extender",
    }
    checks = (_running, _expected, _ready, _behind, _expires, _concerns, _clocks, _unasked)
    yield from or_ok((each for check in checks for each in check(facts)), oks)


def without_certificates(facts: ProcessFacts | Missing, worker: str) -> ProcessFacts | Missing:
    """The facts without the server certificates of processes with a worker: they are judged as clients see them."""
    if isinstance(facts, Missing):
        return facts
    running = [
        each._replace(process=msgspec.structs.replace(each.process, expires=_without_server(each.process.expires)))
        if worker in each.process.workers
        else each
        for each in facts.running
    ]
    return msgspec.structs.replace(facts, running=running)


def _without_server(expires: Mapping[str, float]) -> dict[str, float]:
    return {file: at for file, at in expires.items() if file != "cert"}


def needed(facts: ProcessFacts) -> list[str]:
    """The workers without which the policies do nothing."""
    strategies = {kind for policy in facts.policies for kind, each in policy.strategies.items() if each.rules}
    if not strategies:
        return []
    workers = ["evaluate", "materialize"]
    if strategies & {StrategyType.DONTSCHEDULE, StrategyType.SCHEDULEONMETRIC}:
        workers.append("extender")
    if facts.cluster and strategies.intersection(LABEL_STRATEGIES):
        workers.append("labels")
    return sorted(workers)


def _running(facts: ProcessFacts) -> Iterator[Finding]:
    found = numbers(facts.running)
    lacking = {each.worker: each for each in lacks(facts.running, facts.expected)}
    for worker in needed(facts):
        if not found.get(worker) and worker not in lacking:
            lacking[worker] = Lack(worker=worker, running=0, expected=0)
    groups: dict[tuple[int, int], list[str]] = {}
    for each in lacking.values():
        groups.setdefault((each.running, each.expected), []).append(each.worker)
    for (running, expected), workers in sorted(groups.items()):
        first = min(workers, key=lambda worker: (worker not in WITHOUT, worker))
        lost = "; ".join(WITHOUT[worker] for worker in sorted(workers)[:3] if worker in WITHOUT)
        run = command("tas", "run", first, "--bus", "nats://HOST:4222")
        if expected:
            all_of = f"of {counted(expected, 'process')}"
            many = counted(running, f"{all_of} runs", f"{all_of} run") if running else f"none {all_of} runs"
            what = f"{many} {some(workers)}" + (f": {lost}" if lost and not running else "")
            dismiss = " and ".join(command("tas", "dismiss", worker) for worker in sorted(workers)[:3])
            mend = f"start it again, its last log lines say why it ended; if fewer should run: {dismiss}"
        else:
            what = f"no process is known that runs {some(workers)}: {lost}"
            mend = "start one; a process of an earlier version runs without being known"
        if not facts.running:
            mend += "; or they run, and the bus takes no write: does the log of nats-server say that its disk is full?"
        severity = Severity.WARNING if running else Severity.ERROR
        yield finding("workers.running", severity, what, mend, run=run)


def _expected(facts: ProcessFacts) -> Iterator[Finding]:
    unseen = set(not_known_yet(facts.running, facts.expected))
    new = {worker for worker in unseen if _is_new(worker, facts)}
    mend = "wait until they have run together for 10 minutes, since a start, a change or a wipe of the bus"
    if unseen - new:
        what = f"how many processes should run is not known yet of {some(unseen - new)}"
        yield unknown("workers.expected", Missing(what, mend))
    elif new:
        what = f"how many processes should run is not known yet of {some(new)}, which have just started"
        yield finding("workers.expected", Severity.HINT, what, mend)
    elif not facts.running and not facts.expected:
        what = "no process is known, and none that should run"
        yield unknown("workers.expected", Missing(what, "start one"))


def _is_new(worker: str, facts: ProcessFacts) -> bool:
    """Whether each process with the worker is so new that nobody can know yet how many should run it.

    A process that is older should be known: the bus was wiped, or nobody counts. Clocks may differ.
    """
    started = [each.process.started for each in facts.running if worker in each.process.workers]
    return all(abs(facts.now - each) <= TOGETHER_SECONDS + COUNTED_SECONDS for each in started)


def _ready(facts: ProcessFacts) -> Iterator[Finding]:
    ready = {worker for each in facts.running for worker in each.process.ready}
    reasons: dict[tuple[str, bool], list[str]] = {}
    for each in facts.running:
        for worker, why in sorted(each.process.workers.items()):
            if why:
                reasons.setdefault((why, worker in ready), []).append(f"{worker} of {each.process.name}")
        if each.process.bus:
            reasons.setdefault((each.process.bus, True), []).append(f"the bus of {each.process.name}")
    mend = "docs/reference/health.md says what to do: why something is not ready"
    for (why, has_other), whose in sorted(reasons.items()):
        severity = Severity.WARNING if has_other else Severity.ERROR
        yield finding("workers.ready", severity, f"{some(whose)}: {why}", mend)


def _behind(facts: ProcessFacts) -> Iterator[Finding]:
    mend = "docs/background/performance.md, section When there is too much to do, says what helps"
    of_source = "docs/reference/source-states.md says what to do when nothing comes"
    for each in facts.running:
        for worker, sources in sorted(each.process.behind.items()):
            for source, seconds in sorted(sources.items()):
                what = f"{worker} of {each.process.name} is {seconds:.0f} s behind with {source}"
                if why := facts.failing.get(source):
                    what += f", since the source fails: {why}"
                yield finding(
                    "workers.behind", Severity.WARNING, what, of_source if why else mend, run="tas get sources"
                )
        late = {name: lag for name, lag in each.process.lag.items() if lag >= LAG_MESSAGES}
        if late:
            streams = some(f"{name} ({lag} messages)" for name, lag in late.items())
            yield finding("workers.behind", Severity.WARNING, f"{each.process.name} is behind {streams}", mend)


def _expires(facts: ProcessFacts) -> Iterator[Finding]:
    first: dict[str, tuple[float, str]] = {}
    for each in facts.running:
        for file, at in each.process.expires.items():
            first[file] = min((at, each.process.name), first.get(file, (at, each.process.name)))
    for file, (at, name) in sorted(first.items()):
        if file == "bus":
            found = valid(
                "workers.expires",
                f"the bus credentials of {name}",
                at - facts.now,
                "make new credentials by tas bus user, and replace the file, which is read again",
                "",
            )
        else:
            again = "restart the process" if file == "kubeconfig" else "replace the file, which is read again"
            mend = f"renew the certificate, and {again}"
            run = "" if file in OF_OTHERS else RENEW
            found = valid("workers.expires", f"the certificate in --{file} of {name}", at - facts.now, mend, run)
        if found.severity is not Severity.OK:
            yield found


def _concerns(facts: ProcessFacts) -> Iterator[Finding]:
    seen: dict[tuple[str, str], list[str]] = {}
    for each in facts.running:
        for worker, concerns in each.process.concerns.items():
            for concern in concerns:
                seen.setdefault((worker, concern), []).append(each.process.name)
    mend = "docs/how-to/status.md, What a worker sees, says what to do"
    for (worker, concern), names in sorted(seen.items()):
        yield finding("workers.concerns", Severity.WARNING, f"{worker} of {some(names)}: {concern}", mend)


def _clocks(facts: ProcessFacts) -> Iterator[Finding]:
    ahead_of = [(each, clock_ahead(each)) for each in facts.running]
    if silent := [each.process.name for each, ahead in ahead_of if ahead is None]:
        why = Missing(f"{some(silent)} of an earlier version does not say its time", "upgrade all processes")
        yield unknown("workers.clocks", why)
    for each, ahead in ahead_of:
        if ahead is not None and abs(ahead) > CLOCK_SECONDS:
            how = "ahead of" if ahead > 0 else "or more behind"
            what = f"the clock of {each.process.name} ({each.role}) is {abs(ahead):.0f} s {how} that of the nats-server"
            mend = "synchronize the clock of the machine that is wrong: timedatectl there shows its time"
            yield finding("workers.clocks", Severity.ERROR, what, mend, run="timedatectl set-ntp true")


def _unasked(facts: ProcessFacts) -> Iterator[Finding]:
    """As the alert TasSchedulerDoesNotAsk: filter precedes a placement, so nobody was asked about a newer pod."""
    extenders = [each.process for each in facts.running if "extender" in each.process.workers]
    if not extenders:
        return
    last = max(
        *(each.started for each in extenders),
        *(answer.time for each in extenders for answer in each.answers.values()),
        -inf,
    )
    newest = {state: at for each in facts.running for state, at in each.process.newest_pods.items()}
    states = [
        state
        for state, created in sorted(newest.items())
        if created > last + CLOCKS_SECONDS and (state != "placed" or created > facts.now - PLACED_SECONDS)
    ]
    if states:
        what = f"pods with a policy are {' and '.join(states)}, and for {facts.now - last:.0f} s no scheduler has asked"
        what += " any extender"
        mend = (
            "the log of kube-scheduler says why, and so does tas doctor on a control plane node: is urlPrefix right, "
        )
        mend += "does a certificate expire, does a proxy or a NetworkPolicy stop it?"
        yield finding("workers.asked", Severity.ERROR, what, mend, run="tas doctor --kubeconfig FILE")


def newest_answer(facts: ProcessFacts | Missing) -> LastAnswer | None:
    """The answer to the newest request of a scheduler to any process; None if nothing is known of one."""
    if isinstance(facts, Missing):
        return None
    answers = (answer for each in facts.running for answer in each.process.answers.values())
    return max(answers, key=lambda each: each.time, default=None)


def check_answers(facts: ProcessFacts | Missing) -> Iterator[Finding]:
    """Whether kube-scheduler asks, by what extenders say of themselves on the bus: nobody asks them."""
    if isinstance(facts, Missing):
        yield unknown("extender.asked", facts)
        return
    if not any("extender" in each.process.workers for each in facts.running):
        return
    mend = "create a pod with the label telemetry-policy; is the scheduler configured?"
    answers = [(each.process, answer) for each in facts.running for answer in each.process.answers.values()]
    if not answers:
        what = "no scheduler has asked, since the extender started"
        yield finding("extender.asked", Severity.WARNING, what, mend, run=STATUS)
        return
    process, last = max(answers, key=lambda each: each[1].time)
    age = max(0.0, facts.now - last.time)
    if last.status != 200 or last.error:
        what = f"the last request to {process.name} was answered with code {last.status}: {last.error}"
        mend = "docs/how-to/troubleshooting.md has each code"
        yield finding("extender.asked", Severity.ERROR, what, mend)
    elif age > RECENT_SECONDS:
        what = f"the last request came {counted(round(age / 3600), 'hour')} ago"
        yield finding("extender.asked", Severity.HINT, what, mend, run=STATUS)
    else:
        yield ok("extender.asked", f"a scheduler asked {age:.0f} s ago")
