"""A second scheduler as a Deployment."""

from typing import Any

import pytest

from tas.configuring.second_scheduler import SecondScheduler, manifests
from tas.errors import InvalidInputError
from tests.unit.tas.configuring.samples import gpu, telemetry
from workers.process.manifests import read_yaml


def second(**changes: object) -> SecondScheduler:
    defaults = {
        "name": "telemetry-scheduler",
        "namespace": "scheduling",
        "image": "r/kube-scheduler:v1.30.4",
        "minor": 30,
        "secret": "certs",
        "extenders": (telemetry(),),
    }
    return SecondScheduler(**{**defaults, **changes})  # type: ignore[arg-type]


def objects(scheduler: SecondScheduler) -> dict[str, Any]:
    """The last object of each kind."""
    return {each["kind"]: each for each in read_yaml(manifests(scheduler).encode()) if isinstance(each, dict)}


def test_pods_use_it_by_its_name_and_its_lease_is_its_own() -> None:
    found = objects(second())
    (config,) = read_yaml(found["ConfigMap"]["data"]["scheduler-config.yaml"].encode())
    assert isinstance(config, dict)
    assert config["profiles"] == [{"schedulerName": "telemetry-scheduler"}]
    assert config["leaderElection"] == {
        "leaderElect": True,
        "resourceName": "telemetry-scheduler",
        "resourceNamespace": "scheduling",
    }
    assert config["extenders"] == [telemetry().entry()]
    assert "clientConnection" not in config
    assert found["Role"]["rules"][1]["resourceNames"] == ["telemetry-scheduler"]
    assert {each["metadata"].get("namespace") for each in found.values() if each["kind"] in ("Role", "Deployment")} == {
        "scheduling"
    }


def test_facts_K27_the_deployment_tolerates_both_taints_of_the_control_plane() -> None:
    spec = objects(second())["Deployment"]["spec"]["template"]["spec"]
    roles = {f"node-role.kubernetes.io/{name}" for name in ("control-plane", "master")}
    assert {each["key"] for each in spec["tolerations"]} == roles
    terms = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert {each["preference"]["matchExpressions"][0]["key"] for each in terms} == roles


def test_the_certificates_are_those_of_a_secret() -> None:
    spec = objects(second())["Deployment"]["spec"]["template"]["spec"]
    assert spec["volumes"][1] == {"name": "certificates", "secret": {"secretName": "certs"}}
    assert spec["containers"][0]["volumeMounts"][1]["mountPath"] == "/host/certs"
    plain = objects(second(extenders=(telemetry(url="http://extender.tas.svc:9001"),)))
    assert len(plain["Deployment"]["spec"]["template"]["spec"]["volumes"]) == 1


def test_a_new_configuration_makes_new_pods() -> None:
    digests = {
        str(objects(second(extenders=each))["Deployment"]["spec"]["template"]["metadata"]["annotations"])
        for each in ((telemetry(),), (telemetry(), gpu()))
    }
    assert len(digests) == 2


@pytest.mark.parametrize("changes", [{"name": "default-scheduler"}, {"name": "A"}, {"namespace": "x.y"}, {"minor": 18}])
def test_what_cannot_be_deployed_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        manifests(second(**changes))
