"""The checks of pods."""

from typing import Any

import pytest

from tas.diagnosis.finding import Missing, Severity
from tas.diagnosis.workloads import Expression, Workload, check_workloads, workload_of
from tests.unit.tas.diagnosis.found import bad, one, severities
from tests.unit.tas.diagnosis.samples import policy

RESOURCE = "telemetry/scheduling"
DEMO = policy("demo", "dontschedule", "deschedule")
POLICIES = {DEMO.key: DEMO}
NOT_VIOLATING = {"key": "demo", "operator": "NotIn", "values": ["violating"]}


def required(*expressions: Any) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def preferred(*expressions: Any) -> dict[str, Any]:
    weighted = [{"weight": 1, "preference": {"matchExpressions": list(expressions)}}]
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}}


def pod(
    spec: object = None,
    *,
    policy: str = "demo",
    namespace: str = "default",
    owner: str = "ReplicaSet web",
    limit: bool = True,
) -> Workload:
    containers = {"containers": [{"resources": {"limits": {RESOURCE: "1"}}} if limit else {}]}
    return workload_of(
        namespace=namespace,
        name="web-1",
        owner=owner,
        labels={"telemetry-policy": policy} if policy else {},
        spec=containers | (spec if isinstance(spec, dict) else required(NOT_VIOLATING)),
    )


def test_a_pod_with_label_resource_and_affinity_has_no_finding() -> None:
    findings = list(check_workloads([pod()], POLICIES, {RESOURCE}))
    assert bad(findings) == {}
    assert len(severities(findings)) == 6


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        ([pod(policy="")], {"workloads.label": Severity.WARNING}),
        ([pod(), pod(policy="dem")], {"workloads.policy": Severity.ERROR}),
        ([pod(namespace="other")], {"workloads.label": Severity.WARNING, "workloads.policy": Severity.ERROR}),
        ([pod(limit=False)], {"workloads.resource": Severity.ERROR}),
        ([pod({})], {"workloads.affinity": Severity.WARNING}),
        ([pod(preferred(NOT_VIOLATING))], {"workloads.affinity": Severity.WARNING}),
        (
            [pod(required(NOT_VIOLATING | {"key": "scheduling-policy"}))],
            {"workloads.affinity": Severity.WARNING, "workloads.key": Severity.WARNING},
        ),
        ([pod(required({"key": "demo", "operator": "DoesNotExist"}))], {}),
        ([pod(), pod(required({"key": "zone", "operator": "In", "values": ["a"]}))], {}),
        ([pod(), pod(owner="DaemonSet agent")], {"workloads.daemonset": Severity.ERROR}),
        ([pod(), pod({}, owner="DaemonSet agent")], {}),
    ],
)
def test_each_fault_is_found(pods: list[Workload], found: dict[str, Severity]) -> None:
    assert bad(check_workloads(pods, POLICIES, {RESOURCE})) == found


def test_pods_need_no_resource_if_the_scheduler_asks_for_every_pod() -> None:
    assert bad(check_workloads([pod(limit=False)], POLICIES, ())) == {}


def test_a_preferred_affinity_is_named_as_the_cause() -> None:
    found = one(check_workloads([pod(preferred(NOT_VIOLATING))], POLICIES, ()), "workloads.affinity")
    assert found.what.endswith("a preferred one has no effect")


def test_the_namespace_that_has_the_policy_is_named() -> None:
    found = one(check_workloads([pod(), pod(namespace="other")], POLICIES, ()), "workloads.policy")
    assert found.what == "pods of other name the policy demo, which does not exist there, but in default"


def test_labels_of_labeling_that_nobody_uses_are_a_hint() -> None:
    cards = policy("cards", "labeling")
    key = "telemetry.aware.scheduling.cards/card0"
    policies = {cards.key: cards}
    unused = check_workloads([pod({}, policy="")], policies, ())
    assert bad(unused) == {"workloads.affinity": Severity.HINT}
    used = pod(required({"key": key, "operator": "In", "values": ["true"]}), policy="")
    assert bad(check_workloads([used], policies, ())) == {}
    by_selector = pod({"nodeSelector": {key: "true"}}, policy="")
    assert bad(check_workloads([by_selector], policies, ())) == {}


@pytest.mark.parametrize("spec", [None, [], {"affinity": 3}, {"containers": {"a": 1}, "nodeSelector": [1]}])
def test_a_spec_that_is_not_as_it_should_be_counts_as_absent(spec: object) -> None:
    found = workload_of(namespace="a", name="b", owner="", labels={}, spec=spec)
    assert (found.required, found.preferred, found.resources) == ((), (), frozenset())


def test_an_expression_is_read_with_its_values() -> None:
    assert pod().required == (Expression("demo", "NotIn", ("violating",)),)


@pytest.mark.parametrize(("pods", "policies"), [(Missing("403"), POLICIES), ([pod()], Missing("no bus"))])
def test_without_facts_nothing_is_ok(pods: Any, policies: Any) -> None:
    assert set(severities(check_workloads(pods, policies, ())).values()) == {Severity.UNKNOWN}


def test_without_the_configuration_of_the_scheduler_only_the_resource_is_unknown() -> None:
    assert bad(check_workloads([pod()], POLICIES, Missing("elsewhere"))) == {"workloads.resource": Severity.UNKNOWN}
