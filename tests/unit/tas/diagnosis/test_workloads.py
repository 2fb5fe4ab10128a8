"""The checks of pods."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tas.diagnosis.finding import Finding, Missing, Severity
from tas.diagnosis.owner import Owner
from tas.diagnosis.workloads import DaemonSetTemplate, Expression, Term, Workload, WorkloadFacts, check_workloads
from tas.policy.policy import PolicyKey
from tests.unit.tas.diagnosis.found import bad, one, severities
from tests.unit.tas.diagnosis.samples import policy

RESOURCE = "telemetry/scheduling"
DEMO = policy("demo", "dontschedule", "deschedule")
POLICIES = {DEMO.key: DEMO}


def excluding(key: str = "demo") -> Expression:
    return Expression(key, "NotIn", ("violating",))


ZONE = Expression("zone", "In", ("a",))
WEB = Owner("default", "Deployment", "web")


def pod(
    *required: Term,
    preferred: Term = (),
    policy: str = "demo",
    namespace: str = "default",
    limit: bool = True,
) -> Workload:
    return Workload(
        namespace=namespace,
        name="web-1",
        owner=WEB._replace(namespace=namespace),
        policy=policy,
        resources=frozenset([RESOURCE] if limit else []),
        required=required or ((excluding(),),),
        preferred=preferred,
    )


def checked(
    pods: Any, managed: Any, *, policies: Any = POLICIES, daemon_sets: Any = (), changing: Any = ()
) -> Iterator[Finding]:
    facts = WorkloadFacts(pods=pods, daemon_sets=daemon_sets, policies=policies, managed=managed, changing=changing)
    return check_workloads(facts)


def bare(**fields: Any) -> Workload:
    """A pod that requires nothing of its node."""
    return msgspec.structs.replace(pod(**fields), required=())


def test_a_pod_with_label_resource_and_affinity_has_no_finding() -> None:
    findings = list(checked([pod()], {RESOURCE}))
    assert bad(findings) == {}
    assert len(severities(findings)) == 6


def test_a_policy_that_is_created_or_deleted_meanwhile_may_exist() -> None:
    pods = [pod(), pod((excluding(), excluding("new")), policy="new")]
    assert set(bad(checked(pods, {RESOURCE}))) == {"workloads.policy", "workloads.key"}
    assert bad(checked(pods, {RESOURCE}, changing={PolicyKey("default", "new")})) == {}


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        ([pod(policy="")], {"workloads.label": Severity.WARNING}),
        ([pod(), pod(policy="dem")], {"workloads.policy": Severity.ERROR}),
        ([pod(namespace="other")], {"workloads.label": Severity.WARNING, "workloads.policy": Severity.ERROR}),
        ([pod(limit=False)], {"workloads.resource": Severity.ERROR}),
        ([bare()], {"workloads.affinity": Severity.WARNING}),
        ([bare(preferred=(excluding(),))], {"workloads.affinity": Severity.WARNING}),
        (
            [pod((excluding("scheduling-policy"),))],
            {"workloads.affinity": Severity.WARNING, "workloads.key": Severity.WARNING},
        ),
        ([pod((Expression("demo", "DoesNotExist"),))], {}),
        ([pod((Expression("demo", "Exists"),))], {"workloads.affinity": Severity.WARNING}),
        ([pod((Expression("demo", "In", ("healthy",)),))], {}),
        # Of several terms a node must match only one.
        ([pod((excluding(),), (ZONE,))], {"workloads.affinity": Severity.WARNING}),
        ([pod((excluding(),), (ZONE, excluding()))], {}),
        ([pod((excluding(),), ())], {"workloads.affinity": Severity.WARNING}),
        ([pod(), pod((ZONE,))], {}),
    ],
)
def test_each_fault_is_found(pods: list[Workload], found: dict[str, Severity]) -> None:
    assert bad(checked(pods, {RESOURCE})) == found


@pytest.mark.parametrize(
    ("required", "is_wrong"),
    [
        ((), False),
        (((ZONE,),), False),
        (((excluding(),),), True),
        (((ZONE,), (ZONE, excluding("telemetry.aware.scheduling.x/y"))), True),
        (((Expression("demo", "DoesNotExist"),),), True),
        (((Expression("demo", "Exists"),),), True),
    ],
)
def test_the_template_of_a_daemon_set_shows_its_affinity(required: tuple[Term, ...], is_wrong: bool) -> None:
    agent = DaemonSetTemplate(Owner("default", "DaemonSet", "agent"), required)
    findings = list(checked([pod()], {RESOURCE}, daemon_sets=[agent]))
    assert bad(findings) == ({"workloads.daemonset": Severity.ERROR} if is_wrong else {})
    found = one(findings, "workloads.daemonset")
    assert found.run == ("kubectl --namespace default edit daemonset agent" if is_wrong else "")
    unread = bad(checked([pod()], {RESOURCE}, daemon_sets=Missing("403")))
    assert unread == {"workloads.daemonset": Severity.UNKNOWN}


def test_pods_need_no_resource_if_the_scheduler_asks_for_every_pod() -> None:
    assert bad(checked([pod(limit=False)], ())) == {}


@pytest.mark.parametrize("found", [bare(preferred=(excluding(),)), pod((excluding(),), (ZONE,))])
def test_an_affinity_without_an_effect_is_named_as_the_cause(found: Workload) -> None:
    (affinity,) = (each for each in checked([found], ()) if each.check == "workloads.affinity")
    assert "a preferred affinity has no effect" in affinity.what
    assert affinity.run == "kubectl --namespace default edit deployment web"


def test_where_no_pod_names_the_policy_the_workload_is_to_be_filled_in() -> None:
    found = one(checked([bare(policy="")], ()), "workloads.affinity")
    assert found.run == "kubectl --namespace NAMESPACE edit deployment NAME"


def test_the_namespace_that_has_the_policy_is_named() -> None:
    found = one(checked([pod(), pod(namespace="other")], ()), "workloads.policy")
    assert found.what == "pods of other/web name the policy demo, which does not exist in other, but in default"
    assert found.run == "kubectl --namespace other edit deployment web"


def test_labels_of_labeling_that_nobody_uses_are_a_hint() -> None:
    cards = policy("cards", "labeling")
    key = "telemetry.aware.scheduling.cards/card0"
    policies = {cards.key: cards}
    unused = checked([bare(policy="")], (), policies=policies)
    assert bad(unused) == {"workloads.affinity": Severity.HINT}
    for used in (pod((Expression(key, "In", ("true",)),), policy=""), bare(preferred=(Expression(key, "Exists"),))):
        assert "workloads.affinity" not in bad(checked([used], (), policies=policies))


@pytest.mark.parametrize(("pods", "policies"), [(Missing("403"), POLICIES), ([pod()], Missing("no bus"))])
def test_without_facts_nothing_is_ok(pods: Any, policies: Any) -> None:
    found = severities(checked(pods, (), policies=policies))
    assert {check for check, severity in found.items() if severity is not Severity.UNKNOWN} <= {"workloads.daemonset"}
    assert len(found) == 6


def test_without_the_configuration_of_the_scheduler_only_the_resource_is_unknown() -> None:
    assert bad(checked([pod()], Missing("elsewhere"))) == {"workloads.resource": Severity.UNKNOWN}
