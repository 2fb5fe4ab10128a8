"""Files of the originals: a Policy is a configuration in another spelling, and all others are named."""

from collections.abc import Mapping

import pytest

from tas.configuring.configuration import entries_of, with_extenders, with_version
from tas.configuring.originals import configuration_of_original
from tas.errors import InvalidInputError
from workers.process.manifests import read_yaml

TELEMETRY = """\
{"kind": "Policy", "apiVersion": "v1", "extenders": [{
  "urlPrefix": "https://tas-service.default.svc.cluster.local:9001", "apiVersion": "v1",
  "prioritizeVerb": "scheduler/prioritize", "filterVerb": "scheduler/filter", "weight": 1, "enableHttps": true,
  "httpTimeout": 1500000000, "ignorable": true,
  "managedResources": [{"name": "telemetry/scheduling", "ignoredByScheduler": true}],
  "tlsConfig": {"insecure": false, "certFile": "/host/certs/client.crt", "keyFile": "/host/certs/client.key"}}]}
"""
FILES = (("certFile", "crt"), ("keyFile", "key"))
AGENTS = """\
{"kind": "Policy", "apiVersion": "v1", "hardPodAffinitySymmetricWeight": 10,
  "predicates": [{"name": "PodFitsResources"}], "priorities": [{"name": "EqualPriority", "weight": 1}],
  "extenders": [{"urlPrefix": "http://localhost/scheduler", "filterVerb": "",
    "prioritizeVerb": "priorities/rl-priority", "preemptVerb": "", "bindVerb": "", "weight": 10,
    "enableHttps": false, "nodeCacheCapable": false}]}
"""


def config_map(policy: str, key: str = "policy.cfg") -> Mapping[str, object]:
    head = {"name": "scheduler-extender-policy"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": {key: policy}}


def read(text: str, field: str = "") -> list[object]:
    return read_yaml(text.encode())


def test_the_policy_of_telemetry_becomes_a_configuration_with_which_a_scheduler_starts() -> None:
    made = configuration_of_original([config_map(TELEMETRY)], read)
    assert made is not None
    document, notices = made
    entry = entries_of(document)[0]
    assert (entry["enableHTTPS"], entry["httpTimeout"], "apiVersion" in entry) == (True, "1500ms", False)
    assert entry["tlsConfig"] == {"insecure": False} | {name: f"/host/certs/client.{end}" for name, end in FILES}
    assert len(notices) == 1
    for minor in (22, 27, 34):
        versioned, _ = with_version(document, minor)
        with_extenders(versioned, minor, [], None)  # raises what a scheduler would refuse


def test_the_policy_of_agents_is_found_among_other_objects_and_what_is_not_taken_is_named() -> None:
    others = [config_map("apiVersion: kubescheduler.config.k8s.io/v1alpha1\n", "config.yaml"), {"kind": "Deployment"}]
    made = configuration_of_original([*others, config_map(AGENTS)], read)
    assert made is not None
    document, notices = made
    assert document["extenders"] == [
        {
            "urlPrefix": "http://localhost/scheduler",
            "prioritizeVerb": "priorities/rl-priority",
            "weight": 10,
            "enableHTTPS": False,
            "nodeCacheCapable": False,
        }
    ]
    assert "hardPodAffinitySymmetricWeight, predicates, priorities" in notices[1]


def test_a_policy_may_be_a_file_of_its_own() -> None:
    assert configuration_of_original(read(AGENTS), read) is not None


@pytest.mark.parametrize("document", [{"kind": "KubeSchedulerConfiguration"}, {"kind": "Pod"}, "text", None, [], [1]])
def test_a_configuration_and_what_is_not_known_are_for_others_to_judge(document: object) -> None:
    assert configuration_of_original([document], read) is None


@pytest.mark.parametrize(
    ("document", "instead"),
    [
        ({"kind": "Deployment", "metadata": {"name": "telemetry-aware-scheduling"}}, "tas run all"),
        ({"kind": "ClusterRole", "metadata": {"name": "policy-handler"}}, "deploy/rbac/"),
        ({"kind": "TASPolicy"}, "tas policy lint"),
        ({"kind": "KubeadmControlPlane"}, "tas configure kubeadm"),
        ([{"op": "add", "path": "/spec/dnsPolicy", "value": "ClusterFirstWithHostNet"}], "tas configure kubeadm"),
        ([{"op": "add", "path": "/status/capacity/telemetry~1scheduling", "value": "10"}], "tas run resources"),
    ],
)
def test_another_file_of_the_originals_is_named_with_what_takes_its_place(document: object, instead: str) -> None:
    with pytest.raises(InvalidInputError, match="is no configuration of a scheduler") as raised:
        configuration_of_original([document], read)
    assert instead in str(raised.value)


def test_two_policies_and_extenders_of_another_form_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="must have one Policy"):
        configuration_of_original([config_map(TELEMETRY), config_map(AGENTS)], read)
    for extenders, place in (("x", "extenders"), ([1], r"extenders\[0\]")):
        with pytest.raises(InvalidInputError, match=f"{place} = "):
            configuration_of_original([{"kind": "Policy", "extenders": extenders}], read)
    huge = {"kind": "Policy", "extenders": [{"httpTimeout": 10**400}]}
    made = configuration_of_original([huge], read)
    assert made is not None
    assert made[0]["extenders"] == huge["extenders"]
