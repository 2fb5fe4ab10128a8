"""`deploy/admission/policies.yaml` on a real API server: which TASPolicies it refuses, and who may use which name."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey

from .admission import FOLDER, Attempt, admission, refusal
from .api import Object
from .cluster import Cluster
from .processes import until

DEPLOY = FOLDER.parent
RULE: dict[str, Any] = {"metricname": "health_metric", "operator": "Equals", "target": 1}
EXAMPLES = [*(DEPLOY / "policies").glob("*.yaml"), *(DEPLOY / "examples").rglob("policy.yaml")]
CONFIG_MAP = "/api/v1/namespaces/telemetry-aware-scheduling/configmaps/tas-reserved-names"
QUOTA = "count/taspolicies.telemetry.intel.com"


@pytest.fixture(scope="module", autouse=True)
def policies(cluster: Cluster, crd: None, product_namespace: str) -> Iterator[None]:
    del crd
    old = {"spec": spec("deschdule")}
    cluster.api.create(path("default"), policy("from-before", old["spec"]))
    probes = {
        "tas-policies": Attempt("admin", "POST", path("default"), policy("probe", spec("deschdule"))),
        "tas-reserved-names": Attempt("admin", "POST", path("default"), policy("tas-probe", spec())),
    }
    manifest = next(each for each in documents() if each["kind"] == "ConfigMap")
    cluster.api.create(CONFIG_MAP.rpartition("/")[0], manifest | {"data": {"tas-probe": "nowhere"}})
    with admission(cluster, "policies.yaml", probes):
        yield
    cluster.delete_policies("default")


def documents() -> list[Object]:
    return list(yaml.safe_load_all((FOLDER / "policies.yaml").read_text()))


def path(namespace: str, name: str = "") -> str:
    return f"/apis/telemetry.intel.com/v1alpha1/namespaces/{namespace}/taspolicies/{name}".rstrip("/")


def spec(strategy: str = "deschedule", /, **fields: Any) -> Object:
    return {"strategies": {strategy: {"rules": [RULE]} | fields}}


def policy(name: str, spec: Object) -> Object:
    return {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


def target(value: Any) -> Object:
    return spec("dontschedule", rules=[RULE, RULE | {"target": value}])


def labels(*texts: str) -> Object:
    return spec("labeling", rules=[RULE | {"labels": ["fine=yes"]}, RULE | {"labels": list(texts)}])


LONG = "a" * 63
REFUSED = [
    pytest.param("p", spec("deschdule"), "spec.strategies.deschdule: no strategy of this name", id="strategy"),
    pytest.param(LONG + "a", spec(), "metadata.name: longer than 63 characters", id="name"),
    pytest.param("a" * 227, labels("a=b"), "metadata.name: longer than 226 characters", id="name-of-labeling"),
    pytest.param("p", labels("no pair"), "spec.strategies.labeling.rules.labels: no pair: must be", id="no-pair"),
    pytest.param("p", labels("a/b=c"), "spec.strategies.labeling.rules.labels: a/b=c: must be", id="prefix"),
    pytest.param("p", labels("a=b", f"{LONG}a=b"), "spec.strategies.labeling.rules.labels: aaaa", id="long-key"),
    pytest.param("p", labels(f"a={LONG}a"), "spec.strategies.labeling.rules.labels: a=aaa", id="long-value"),
    pytest.param("p", labels("a=b="), "spec.strategies.labeling.rules.labels: a=b=: must", id="two-signs"),
    pytest.param("p", target("1e41"), "spec.strategies.dontschedule.rules.target: must be below", id="exponent"),
    pytest.param("p", target("2" + "0" * 40), "spec.strategies.dontschedule.rules.target: must be", id="digits"),
    pytest.param("p", target("1" + "0" * 23 + "E"), "spec.strategies.dontschedule.rules.target: must", id="suffix"),
    pytest.param(
        "p",
        spec("scheduleonmetric", rules=[RULE | {"operator": "LessThan", "podCost": "1e99"}]),
        "spec.strategies.scheduleonmetric.rules.podCost: must be below",
        id="cost",
    ),
    pytest.param(
        "p",
        spec() | {"nodeSelector": {"matchLables": {"a": "b"}}},
        "spec.nodeSelector.matchLables: unknown",
        id="nodes",
    ),
]


@pytest.mark.parametrize(("name", "spec", "words"), REFUSED)
def test_a_policy_whose_status_would_report_a_problem_is_refused(
    cluster: Cluster, name: str, spec: Object, words: str
) -> None:
    assert parse_policy(PolicyKey("default", name), spec)[1], "the status would report nothing"
    message = refusal(cluster, Attempt("admin", "POST", path("default"), policy(name, spec)))
    assert ": 422 " in message
    assert words in message


def test_a_text_that_is_only_long_is_refused(cluster: Cluster) -> None:
    for found, words in (
        (spec(policyName="a" * 254), "spec.strategies: policyName is longer than 253 characters"),
        (spec(rules=[RULE | {"labels": ["a" * 128]}]), "spec.strategies.deschedule.rules.labels: aaaa"),
    ):
        assert words in refusal(cluster, Attempt("admin", "POST", path("default"), policy("p", found)))


LARGEST = ("9" * 40, "9" * 21 + "Ei", "9" * 20 + "e20", "-1.5e+9", "1E-99", "1500m", "2Gi", "0.000000001", "+7")
ACCEPTED = [
    *(pytest.param("p", target(text), id=f"target-{text[:6]}") for text in LARGEST),
    pytest.param("p", target(2**63 - 1), id="number"),
    pytest.param("p", target(-5), id="negative"),
    pytest.param(LONG, spec(), id="longest-name"),
    pytest.param("a" * 226, labels(f"{LONG}={LONG}", "a="), id="longest-labels"),
    pytest.param("p", spec() | {"nodeSelector": {"matchLabels": {"a": "b"}}}, id="nodes"),
    pytest.param("p", {"strategies": {}}, id="no-strategies"),
    pytest.param("p", spec(rules=[]), id="no-rules"),
]


@pytest.mark.parametrize(("name", "spec"), ACCEPTED)
def test_a_policy_without_such_a_problem_is_accepted(cluster: Cluster, name: str, spec: Object) -> None:
    assert not any(each.refused for each in parse_policy(PolicyKey("default", name), spec)[1])
    assert refusal(cluster, Attempt("admin", "POST", path("default"), policy(name, spec))) == ""


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_example_policies_are_accepted(cluster: Cluster, file: Path) -> None:
    (found,) = (each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "TASPolicy")
    found["metadata"].pop("namespace", None)
    assert refusal(cluster, Attempt("admin", "POST", path("default"), found)) == ""


def test_a_policy_from_before_may_be_suspended_and_mended_and_not_made_worse(cluster: Cluster) -> None:
    before = path("default", "from-before")
    for patch in (
        {"spec": {"suspend": True}},
        {"metadata": {"labels": {"a": "b"}}},
        {"spec": {"strategies": {"deschdule": None, "deschedule": {"rules": [RULE]}}}},
    ):
        assert refusal(cluster, Attempt("admin", "PATCH", before, patch)) == ""
    worse: Object = {"spec": {"strategies": {"deschdule": {"rules": []}}}}
    assert "spec.strategies.deschdule" in refusal(cluster, Attempt("admin", "PATCH", before, worse))
    selector: Object = {"spec": {"nodeSelector": {"matchLabel": {}}}}
    assert "spec.strategies.deschdule" in refusal(cluster, Attempt("admin", "PATCH", before, selector))
    status = Attempt("admin", "PATCH", f"{before}/status", {"status": {"message": "a"}})
    assert refusal(cluster, status) == ""


def reserve(cluster: Cluster, **names: str | None) -> None:
    """Reserves names, and waits until that is in force."""
    cluster.api.patch(CONFIG_MAP, {"data": names})
    for name, namespaces in names.items():
        attempt = Attempt("admin", "POST", path("default"), policy(f"{name}x" if name[-1] in "-." else name, spec()))
        until(partial(is_refused, cluster, attempt, namespaces is not None), f"the reservation of {name} counts")


def is_refused(cluster: Cluster, attempt: Attempt, wanted: bool) -> bool:
    return bool(refusal(cluster, attempt)) == wanted


def test_a_reserved_name_belongs_to_its_namespaces(cluster: Cluster, namespace: str) -> None:
    other = cluster.create_namespace()

    def refused(namespace: str, name: str) -> str:
        return refusal(cluster, Attempt("author", "POST", path(namespace), policy(name, spec())))

    assert refused(namespace, "gold") == ""
    reserve(cluster, **{"gold": namespace, "team-a-": f"{namespace} , {other}"})
    assert refused(namespace, "gold") == ""
    assert f"metadata.name: gold is reserved for the namespaces {namespace}" in refused(other, "gold")
    for mine in (namespace, other):
        assert refused(mine, "team-a-disk") == ""
    message = refused("default", "team-a-disk")
    assert f"metadata.name: team-a-disk is reserved for the namespaces {namespace} , {other}" in message
    for free in ("gold-2", "old", "team-a", "team-b-disk"):
        assert refused("default", free) == "", free
    # Two reservations: both must name the namespace.
    reserve(cluster, **{"team-a-disk": other})
    until(lambda: "team-a-disk is reserved" in refused(namespace, "team-a-disk"), "both reservations count")
    assert refused(other, "team-a-disk") == ""
    reserve(cluster, **{"gold": None, "team-a-": None, "team-a-disk": None})


def test_without_the_list_of_names_nobody_creates_a_policy(cluster: Cluster) -> None:
    attempt = Attempt("admin", "POST", path("default"), policy("p", spec()))
    assert refusal(cluster, attempt) == ""
    found = cluster.api.get(CONFIG_MAP)
    cluster.api.delete(CONFIG_MAP)
    until(lambda: "tas-reserved-names" in refusal(cluster, attempt), "it fails closed")
    manifest = {key: found[key] for key in ("apiVersion", "kind", "data")} | {
        "metadata": {"name": "tas-reserved-names"}
    }
    cluster.api.create(CONFIG_MAP.rpartition("/")[0], manifest)
    until(lambda: refusal(cluster, attempt) == "", "policies can be created again")


def test_a_quota_limits_the_policies_of_a_namespace(cluster: Cluster, namespace: str) -> None:
    quota = yaml.safe_load((DEPLOY / "examples" / "quota.yaml").read_text())
    del quota["metadata"]["namespace"]
    assert quota["spec"]["hard"] == {QUOTA: "20"}
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    cluster.api.create(quotas, quota | {"spec": {"hard": {QUOTA: "2"}}})
    attempt = Attempt("author", "POST", path(namespace), policy("three", spec()))
    # No controller counts here: it is done by hand. The API server then counts what it creates.
    for used in ("2", "0"):
        status = {"hard": {QUOTA: "2"}, "used": {QUOTA: used}}
        cluster.api.patch(f"{quotas}/taspolicies/status", {"status": status})
        until(partial(is_refused, cluster, attempt, used == "2"), f"the API server knows that {used} exist")
    for name in ("one", "two"):
        cluster.api.create(path(namespace), policy(name, spec()))
    assert "exceeded quota: taspolicies" in refusal(cluster, attempt)
