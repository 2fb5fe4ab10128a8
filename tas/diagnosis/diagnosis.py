"""All checks together."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf

import msgspec

from tas.diagnosis.bus import BusFacts, check_bus
from tas.diagnosis.clocks import ClockFacts, check_clocks
from tas.diagnosis.descheduler import DeschedulerFacts, check_descheduler
from tas.diagnosis.extender import ExtenderFacts, Request, check_extender
from tas.diagnosis.finding import Finding, Missing, Severity, finding, ok, unknown
from tas.diagnosis.metrics import MetricFacts, check_metrics
from tas.diagnosis.policies import PolicyFacts, check_policies
from tas.diagnosis.processes import (
    ProcessFacts,
    check_answers,
    check_processes,
    newest_answer,
    without_certificates,
)
from tas.diagnosis.rights import Reviewed, check_rights
from tas.diagnosis.scheduler import SchedulerFacts, check_scheduler, entry_of, managed_by
from tas.diagnosis.workloads import DaemonSetTemplate, Workload, WorkloadFacts, check_workloads
from tas.policy.policy import Policy, PolicyKey


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What only a cluster has.

    Attributes:
        server: The URL of the API server, or why it does not answer.
        is_asked: Whether there was an API server to ask.
    """

    server: str | Missing
    is_asked: bool = True
    pods: list[Workload] | Missing
    daemon_sets: Sequence[DaemonSetTemplate] | Missing
    scheduler: SchedulerFacts
    descheduler: DeschedulerFacts
    rights: list[Reviewed] | Missing


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts; `cluster` is None where policies come from a directory, so that there is nothing to check."""

    bus: BusFacts | Missing
    policies: PolicyFacts
    metrics: MetricFacts | Missing
    processes: ProcessFacts | Missing
    clocks: ClockFacts
    extender: ExtenderFacts
    cluster: ClusterFacts | None


def diagnose(facts: Facts) -> list[Finding]:
    """The findings of all checks, in the order of the groups."""
    found = [
        *check_bus(facts.bus),
        *check_policies(facts.policies),
        *check_metrics(facts.metrics),
        *check_processes(_processes(facts)),
    ]
    cluster = facts.cluster
    if cluster is not None:
        found += _cluster(cluster, facts.policies)
    found += [*_extender(facts), *check_clocks(facts.clocks)]
    if cluster is None:
        # Without a cluster there is no API server, no kubelet and no scheduler to ask.
        without: Collection[str] = ("clocks.api_server", "clocks.nodes", "proxy.scheduler", "proxy.here")
        found = [each for each in found if each.check not in without]
    return found


ANOTHER_SECONDS = 10.0
"""A process tells of a request on the bus up to some seconds later than on its health port."""


def _extender(facts: Facts) -> Iterator[Finding]:
    """The findings about the extender; of several only one is seen, and the scheduler may ask another one."""
    asked = facts.extender.asked
    newest = inf if isinstance(asked, Missing) else max((each.time for each in asked), default=-inf)
    other = newest_answer(facts.processes)
    for each in check_extender(facts.extender):
        if each.check == "extender.asked" and other is not None and other.time > newest + ANOTHER_SECONDS:
            yield from check_answers(facts.processes)
        else:
            yield each


def _processes(facts: Facts) -> ProcessFacts | Missing:
    request = facts.extender.request
    is_seen = isinstance(request, Request) and request.expires is not None
    return without_certificates(facts.processes, "extender") if is_seen else facts.processes


def _cluster(facts: ClusterFacts, policies: PolicyFacts) -> list[Finding]:
    configuration = facts.scheduler.configuration
    entry = None if isinstance(configuration, Missing) else entry_of(configuration)
    managed: Collection[str] | Missing = (
        configuration
        if isinstance(configuration, Missing)
        else Missing("the scheduler has no entry for the extender")
        if entry is None
        else managed_by(entry)
    )
    stored: Mapping[PolicyKey, Policy] | Missing = (
        policies.stored
        if isinstance(policies.stored, Missing)
        else {each.policy.key: each.policy for each in policies.stored}
    )
    return [
        _reached(facts),
        *check_scheduler(facts.scheduler),
        *check_workloads(
            WorkloadFacts(
                pods=facts.pods,
                daemon_sets=facts.daemon_sets,
                policies=stored,
                managed=managed,
                changing=policies.changing,
            )
        ),
        *check_descheduler(facts.descheduler),
        *check_rights(facts.rights),
    ]


def _reached(facts: ClusterFacts) -> Finding:
    server = facts.server
    if not isinstance(server, Missing):
        return ok("cluster.reached", f"{server} answers")
    if not facts.is_asked:
        return unknown("cluster.reached", server)
    return finding("cluster.reached", Severity.ERROR, server.reason, server.mend, run=server.run)
