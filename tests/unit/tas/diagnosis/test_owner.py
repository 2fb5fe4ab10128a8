"""What creates a pod."""

import pytest

from tas.diagnosis.owner import Owner, owner_of


@pytest.mark.parametrize(
    ("controller", "labels", "owner"),
    [
        (None, {}, Owner("default", "Pod", "web-5d-x")),
        (("ReplicaSet", "web-5d"), {"pod-template-hash": "5d"}, Owner("default", "Deployment", "web")),
        (("ReplicaSet", "web-5d"), {"pod-template-hash": "77"}, Owner("default", "ReplicaSet", "web-5d")),
        (("ReplicaSet", "web-5d"), {}, Owner("default", "ReplicaSet", "web-5d")),
        (("ReplicaSet", "web-"), {"pod-template-hash": ""}, Owner("default", "ReplicaSet", "web-")),
        (("StatefulSet", "db"), {}, Owner("default", "StatefulSet", "db")),
    ],
)
def test_a_deployment_owns_the_pods_of_its_replica_set(
    controller: tuple[str, str] | None, labels: dict[str, str], owner: Owner
) -> None:
    assert owner_of("default", "web-5d-x", controller=controller, labels=labels) == owner


def test_a_command_about_an_owner_has_no_other_effect_whatever_its_name_is() -> None:
    assert Owner("default", "Deployment", "web").command("edit") == "kubectl --namespace default edit deployment web"
    hostile = Owner("default", "$(reboot)", "a; reboot")
    assert hostile.command("edit") == "kubectl --namespace default edit '$(reboot)' 'a; reboot'"
