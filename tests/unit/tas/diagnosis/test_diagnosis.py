"""All checks together."""

from typing import Any

import msgspec
import pytest

from tas.configuring.control_planes import SchedulerState
from tas.diagnosis.bus import BusFacts
from tas.diagnosis.checks import CHECKS
from tas.diagnosis.clocks import ClockFacts, Offset
from tas.diagnosis.descheduler import Descheduler, DeschedulerFacts, NodeState
from tas.diagnosis.diagnosis import ClusterFacts, Facts, diagnose
from tas.diagnosis.extender import Asked, ExtenderFacts, Reach, Request
from tas.diagnosis.finding import Missing, Severity
from tas.diagnosis.metrics import MetricFacts
from tas.diagnosis.policies import PolicyFacts, StoredPolicy
from tas.diagnosis.processes import ProcessFacts, check_processes
from tas.diagnosis.rights import Reviewed, Right
from tas.diagnosis.scheduler import SchedulerFacts
from tas.policy.manifest import STRATEGY_FIELDS
from tas.processes.expected import Expected
from tas.processes.process import LastAnswer, Process, Running
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tests.unit.tas.diagnosis.found import bad, one, severities
from tests.unit.tas.diagnosis.samples import policy
from tests.unit.tas.diagnosis.test_scheduler import ENTRY, configuration
from tests.unit.tas.diagnosis.test_workloads import WEB, pod

NOW = 1_000_000.0
DEMO = policy("demo", "dontschedule", "deschedule")
SCRAPE = Scrape(
    source="agent", measured=NOW - 1, arrived=NOW, sequence=1, metrics={"health_metric": parse_quantity("0")}
)
NODES = [NodeState(name, ready=True, offers=True) for name in ("a", "b")]
SAMPLES = {"a": (SCRAPE,), "b": (SCRAPE,)}
AGREES = Offset(0.0)
PROCESS = Process(
    version="1",
    name="h-1",
    started=NOW - 3600,
    workers=dict.fromkeys(("evaluate", "extender", "labels", "materialize", "watch"), ""),
    answers={"filter": LastAnswer(time=NOW - 1)},
    expires={"cert": NOW + 90 * 86400.0},
    time=NOW,
)
GOOD = Facts(
    bus=BusFacts(address="nats://h", version="2.15.1", needed=(2, 12, 3), sync=True),
    policies=PolicyFacts(stored=[StoredPolicy(policy=DEMO)], in_api=[DEMO.key], strategy_fields=STRATEGY_FIELDS),
    metrics=MetricFacts(policies=[DEMO], samples=SAMPLES, nodes={"a": {}, "b": {}}, now=NOW, stale_after=120.0),
    processes=ProcessFacts(
        running=[Running("all", "h-1-a", PROCESS, NOW)],
        expected=dict.fromkeys(PROCESS.workers, Expected(count=1)),
        policies=[DEMO],
        cluster=True,
        now=NOW,
    ),
    clocks=ClockFacts(api_server=AGREES, bus=AGREES, extender=AGREES, nodes={"a": 0.0}, samples=SAMPLES),
    extender=ExtenderFacts(
        url="https://tas:9001",
        request=Request(
            url="https://tas:9001",
            reach=Reach.ANSWERED,
            ours=True,
            verifies=True,
            presented=True,
            expires=NOW + 90 * 86400.0,
        ),
        health="http://127.0.0.1:9002",
        unready={},
        asked=[Asked(time=NOW, status=200, error="", namespace="default", pod="web-1")],
        pods=frozenset({("default", "web-1")}),
        environment={},
        own_environment={},
        api_server="https://10.0.0.1",
        now=NOW,
    ),
    cluster=ClusterFacts(
        server="https://10.0.0.1",
        pods=[pod()],
        daemon_sets=[],
        scheduler=SchedulerFacts(
            configuration=configuration(ENTRY),
            origin="file",
            minor=30,
            control_planes=[SchedulerState(node="cp", digest="1", ready=True)],
            nodes=NODES,
        ),
        descheduler=DeschedulerFacts(
            found=[Descheduler("descheduler:v0.36.0", WEB)], nodes=NODES, policies=[DEMO], requested=True
        ),
        rights=[Reviewed(account="tas-watch", allowed={Right("list", "nodes"): True})],
    ),
)
OF_A_CLUSTER = {"cluster", "scheduler", "workloads", "descheduler", "rights"}


def test_a_healthy_installation_has_every_check_and_no_finding() -> None:
    findings = diagnose(GOOD)
    assert bad(findings) == {}
    assert set(severities(findings)) == set(CHECKS)


def test_rows_of_processes_have_one_order_with_and_without_the_bus() -> None:
    checks = [each for each in CHECKS if each.startswith("workers.")]
    assert [each.check for each in check_processes(GOOD.processes)] == checks
    assert [each.check for each in check_processes(Missing("no bus"))] == checks


def test_without_a_cluster_nothing_of_a_cluster_is_checked() -> None:
    policies = PolicyFacts(
        stored=[StoredPolicy(policy=DEMO)], in_api=None, strategy_fields=STRATEGY_FIELDS, has_api=False
    )
    facts = msgspec.structs.replace(GOOD, cluster=None, policies=policies)
    findings = diagnose(facts)
    assert bad(findings) == {}
    assert {each.check.partition(".")[0] for each in findings}.isdisjoint(OF_A_CLUSTER)
    assert "clocks.nodes" not in severities(findings)


def test_a_cluster_that_was_not_given_is_unknown_and_no_error() -> None:
    assert GOOD.cluster is not None
    cluster = msgspec.structs.replace(GOOD.cluster, server=Missing("not given"), is_asked=False)
    assert bad(diagnose(msgspec.structs.replace(GOOD, cluster=cluster))) == {"cluster.reached": Severity.UNKNOWN}


def test_an_api_server_that_does_not_answer_is_the_error() -> None:
    assert GOOD.cluster is not None
    cluster = msgspec.structs.replace(GOOD.cluster, server=Missing("refused", "correct --kubeconfig"))
    found = one(diagnose(msgspec.structs.replace(GOOD, cluster=cluster)), "cluster.reached")
    assert (found.severity, found.what) == (Severity.ERROR, "refused")


@pytest.mark.parametrize(
    ("document", "severity"),
    [
        (configuration(ENTRY), Severity.OK),
        (configuration(), Severity.UNKNOWN),
        (Missing("elsewhere"), Severity.UNKNOWN),
    ],
)
def test_the_resource_of_pods_is_that_of_the_entry_of_the_scheduler(document: Any, severity: Severity) -> None:
    assert GOOD.cluster is not None
    scheduler = msgspec.structs.replace(GOOD.cluster.scheduler, configuration=document)
    cluster = msgspec.structs.replace(GOOD.cluster, scheduler=scheduler)
    findings = diagnose(msgspec.structs.replace(GOOD, cluster=cluster))
    assert severities(findings)["workloads.resource"] is severity


def test_the_scheduler_asks_another_extender_than_the_one_that_doctor_asks() -> None:
    """With two replicas doctor said that no scheduler had asked, and status that one had asked 5 s ago."""
    extender = msgspec.structs.replace(GOOD.extender, asked=[])
    assert "extender.asked" not in bad(diagnose(msgspec.structs.replace(GOOD, extender=extender)))
    silent = msgspec.structs.replace(
        GOOD.processes,  # type: ignore[type-var]  # which are not Missing
        running=[Running("all", "h-1-a", msgspec.structs.replace(PROCESS, answers={}), NOW)],
    )
    found = bad(diagnose(msgspec.structs.replace(GOOD, extender=extender, processes=silent)))
    assert found["extender.asked"] is Severity.WARNING
