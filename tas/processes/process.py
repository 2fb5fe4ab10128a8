"""What a process says of itself, in WORKERS: proof that it runs, and what people ask first if something is wrong."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tas.samples.pace import LateMetric, newest_late

WRITE_SECONDS = 5.0
"""How often a process writes its record."""

TTL_SECONDS = 15
"""How long a record stays after the last write: two writes may be lost."""

WRITTEN_SECONDS = 5.0
"""A record is stored at most so long after it was made."""

ABANDONED_SECONDS = 2.0 * TTL_SECONDS
"""A record that is older has no TTL, so it is of no process: a stranger has written it."""

MOST_CLOCKS = 100
"""A stranger may write records of any number of processes."""


class LastAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The last answer of an extender to one verb, and how many there were since the start.

    Attributes:
        time: When the request arrived, in seconds since 1970 by the clock of the process.
        status: The HTTP status.
        error: What was wrong with the request, or the answer's `Error`; empty if nothing.
        requests: The number of requests.
        failed: The number of those whose status was not 200, or whose answer had an `Error`.
    """

    time: float
    status: int = 200
    error: str = ""
    requests: int = 1
    failed: int = 0


class RefusedSamples(msgspec.Struct, frozen=True):
    """How often a source was refused for a reason, with the newest example and its time (in seconds since 1970).

    `reason` is one of the fixed set of `tas_samples_refused_total`.
    """

    source: str
    reason: str
    count: int
    example: str
    time: float


class NotReady(msgspec.Struct, frozen=True):
    """How many policies are not ready for one reason, and the first of them, as `namespace/name`."""

    count: int
    policies: tuple[str, ...] = ()


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process.

    Attributes:
        version: Of the product.
        name: Host and process id, as in leases.
        started: In seconds since 1970, by its own clock.
        workers: Why each of its workers is not ready; empty if it is.
        leases: The names of the leases that it holds.
        behind: By worker and what it reads, how many seconds it is behind; only what is.
        lag: By stream or bucket that it follows, how many messages it has not handled yet.
        bus: What is wrong with its connection to the bus; empty if nothing.
        answers: Of extenders by verb.
        waiting_labels: By name of policies, how many nodes wait for their turn to get their first label.
        refused_samples: What it has refused lately of samples of other programs, the newest first.
        expires: When the first certificate of each file expires, and its credentials for the bus (`bus`), in seconds
            since 1970. The certificate that it shows to the bus is `bus-cert`, that which it shows to the API
            server `kubeconfig`.
        late_metrics: Of `evaluate`, the metrics of policies that come late to it, the oldest first.
        concerns: By worker, what does not go as it should although the worker is ready, each as a sentence.
        newest_pods: Of `watch`, by state (`placed`, `waiting`), when the newest pod was created about which the
            scheduler has asked filter, or has to ask, in seconds since 1970.
        not_ready: Of the replica that writes the status of policies, by reason of the condition `Ready`: those for
            which it is False.
        time: When the record was written, in seconds since 1970 by its own clock; None: an earlier version.
    """

    version: str
    name: str
    started: float
    workers: Mapping[str, str]
    leases: tuple[str, ...] = ()
    behind: Mapping[str, Mapping[str, float]] = {}
    lag: Mapping[str, int] = {}
    bus: str = ""
    answers: Mapping[str, LastAnswer] = {}
    expires: Mapping[str, float] = {}
    waiting_labels: Mapping[str, int] = {}
    refused_samples: Sequence[RefusedSamples] = ()
    late_metrics: Sequence[LateMetric] = ()
    concerns: Mapping[str, tuple[str, ...]] = {}
    newest_pods: Mapping[str, float] = {}
    not_ready: Mapping[str, NotReady] = {}
    time: float | None = None

    @property
    def ready(self) -> frozenset[str]:
        """Its workers that are ready."""
        return frozenset(worker for worker, reason in self.workers.items() if not reason)


class Running(NamedTuple):
    """A process with its role and its id, and when the server stored its record, in seconds since 1970."""

    role: str
    id: str
    process: Process
    stored: float


def clock_ahead(running: Running) -> float | None:
    """By how many seconds at least the clock of a process is ahead of that of the server, or behind if negative.

    The write takes at most `WRITTEN_SECONDS`. None: not known, since a process of an earlier version does not say it.
    """
    if running.process.time is None:
        return None
    ahead = running.process.time - running.stored
    return ahead if ahead > 0 else min(0.0, ahead + WRITTEN_SECONDS)


def clocks_ahead(running: Iterable[Running]) -> dict[str, float]:
    """`clock_ahead` of the processes that say their time, by name: of the `MOST_CLOCKS` whose clocks differ most."""
    found: dict[str, float] = {}
    for each in running:
        ahead = clock_ahead(each)
        if ahead is not None and abs(ahead) >= abs(found.get(each.process.name, 0.0)):
            found[each.process.name] = ahead
    worst = sorted(found, key=lambda name: (-abs(found[name]), name))[:MOST_CLOCKS]
    return {name: found[name] for name in sorted(worst)}


def alive(found: Iterable[Running], now: float) -> list[Running]:
    """Those that run at `now`, a time of the server's clock, in the order of their names."""
    running = [each for each in found if now - each.stored < ABANDONED_SECONDS]
    return sorted(running, key=lambda each: (each.role, each.process.name, each.id))


def most_behind(connections: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """`Process.lag`: of each stream or bucket that several connections follow, that of the one furthest behind."""
    found: dict[str, int] = {}
    for lags in connections:
        for name, lag in lags.items():
            found[name] = max(lag, found.get(name, 0))
    return found


def waiting_labels(running: Iterable[Running]) -> dict[str, int]:
    """By name of policies, how many nodes wait for their first label. Each replica of `labels` counts them."""
    found: dict[str, int] = {}
    for each in running:
        if "labels" in each.process.workers:
            for policy, count in each.process.waiting_labels.items():
                found[policy] = max(count, found.get(policy, 0))
    return found


def not_ready(running: Iterable[Running]) -> dict[str, NotReady] | None:
    """By reason of their condition, the policies that are not ready: as the replica says that writes their status.

    None: no replica writes it, as none has the lease of `status`.
    """
    found: dict[str, NotReady] = {}
    writers = [each.process for each in running if "status" in each.process.workers.keys() & each.process.leases]
    for process in writers:
        for reason, policies in process.not_ready.items():
            found[reason] = max(policies, found.get(reason, policies), key=lambda one: one.count)
    return found if writers else None


def refused_samples(running: Iterable[Running]) -> list[RefusedSamples]:
    """What processes with `materialize` refuse, by source and reason. They share the messages, so counts are summed."""
    found: dict[tuple[str, str], RefusedSamples] = {}
    for each in running:
        for refused in each.process.refused_samples if "materialize" in each.process.workers else ():
            known = found.get((refused.source, refused.reason), msgspec.structs.replace(refused, count=0))
            newest = max(known, refused, key=lambda one: one.time)
            found[refused.source, refused.reason] = msgspec.structs.replace(newest, count=known.count + refused.count)
    return [found[key] for key in sorted(found)]


def late_metrics(running: Iterable[Running]) -> list[LateMetric]:
    """The metrics that come late to processes with `evaluate`, the oldest first."""
    return newest_late(
        late for each in running if "evaluate" in each.process.workers for late in each.process.late_metrics
    )


def numbers(running: Iterable[Running]) -> dict[str, int]:
    """How many processes run each worker, ready or not."""
    found: dict[str, int] = {}
    for each in running:
        for worker in each.process.workers:
            found[worker] = found.get(worker, 0) + 1
    return found
