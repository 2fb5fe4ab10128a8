"""The files for kubeadm."""

from posixpath import dirname
from typing import Any

import pytest

from tas.configuring.plan import ForKubeadm, Options, for_kubeadm
from tas.errors import InvalidInputError
from tests.unit.tas.configuring.samples import DEST, options, telemetry
from workers.process.manifests import read_yaml_tree

HEAD = "kind: ClusterConfiguration # mine\napiVersion: kubeadm.k8s.io/"
PAIR = {"name": "config", "value": DEST}


def value_of(text: str) -> Any:
    return read_yaml_tree(text).value


def made(cluster: str | None = None, chosen: Options | None = None) -> ForKubeadm:
    return for_kubeadm(cluster, "/k/patches", chosen or options(minor=30), read_yaml_tree)


@pytest.mark.parametrize(
    ("minor", "version", "arguments"),
    [(19, "v1beta2", {"config": DEST}), (30, "v1beta3", {"config": DEST}), (31, "v1beta4", [PAIR])],
)
def test_the_form_is_the_newest_that_kubeadm_reads(minor: int, version: str, arguments: object) -> None:
    document = value_of(made(chosen=options(minor=minor)).cluster_configuration)
    assert document["apiVersion"] == f"kubeadm.k8s.io/{version}"
    assert document["scheduler"]["extraArgs"] == arguments


def test_flag_volumes_and_patch_make_the_same_pod_as_an_edit_of_the_manifest() -> None:
    found = made()
    scheduler = value_of(found.cluster_configuration)["scheduler"]
    assert [(each["hostPath"], each["mountPath"], each["pathType"]) for each in scheduler["extraVolumes"]] == [
        (DEST, DEST, "File"),
        ("/etc/certs/", "/host/certs", "Directory"),
    ]
    patch = value_of(found.patch)
    assert patch["spec"] == {"dnsPolicy": "ClusterFirstWithHostNet"}
    assert list(patch["metadata"]["annotations"]) == ["telemetry.aware.scheduling/configuration"]
    assert value_of(found.config)["extenders"] == [telemetry().entry()]


@pytest.mark.parametrize(
    ("version", "arguments", "after"),
    [
        ("v1beta3", "{v: '2', config: /old}", {"v": "2", "config": DEST}),
        ("v1beta4", "[{name: config, value: /old}, {name: v, value: '2'}]", [{"name": "v", "value": "2"}, PAIR]),
        ("v1beta4", "null", [PAIR]),
    ],
)
def test_the_configuration_of_the_cluster_is_extended(version: str, arguments: str, after: object) -> None:
    """The hard case: other arguments, other volumes, and a comment."""
    text = (
        f"{HEAD}{version}\nscheduler:\n  extraArgs: {arguments}\n"
        "  extraVolumes: [{name: mine, hostPath: /m, mountPath: /m}]\n"
        "networking: {podSubnet: 10.0.0.0/16}   # as planned\n"
    )
    found = made(text).cluster_configuration
    document = value_of(found)
    assert document["scheduler"]["extraArgs"] == after
    assert [each["name"] for each in document["scheduler"]["extraVolumes"]] == [
        "mine",
        "tas-scheduler-config",
        "tas-certs",
    ]
    assert found.startswith(f"{HEAD}{version}\n")
    assert found.endswith("networking: {podSubnet: 10.0.0.0/16}   # as planned\n")
    assert made(found).cluster_configuration == found


@pytest.mark.parametrize(
    "text",
    [
        "kind: InitConfiguration\napiVersion: kubeadm.k8s.io/v1beta4\n",
        "kind: ClusterConfiguration\napiVersion: other/v1\n",
        "[]",
        f"{HEAD}v1beta4\nscheduler: []\n",
        f"{HEAD}v1beta4\nscheduler: {{extraArgs: {{a: b}}}}\n",
        f"{HEAD}v1beta3\nscheduler: {{extraArgs: [1]}}\n",
    ],
)
def test_what_is_no_configuration_of_a_cluster_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        made(text)
    assert caught.value.subject == "cluster configuration"


@pytest.mark.parametrize(("version", "has_folder"), [("v1beta2", False), ("v1beta3", True), ("v1beta4", True)])
def test_the_folder_of_the_patches_is_in_the_file_of_the_phase(version: str, *, has_folder: bool) -> None:
    """kubeadm refuses `--patches` beside `--config`."""
    found = made(f"{HEAD}{version}\n")
    if not has_folder:
        assert found.init_phase is None
        return
    assert found.init_phase is not None
    cluster, init = found.init_phase.split("---\n")
    assert cluster == found.cluster_configuration
    assert value_of(init) == {
        "apiVersion": f"kubeadm.k8s.io/{version}",
        "kind": "InitConfiguration",
        "patches": {"directory": "/k/patches"},
    }


@pytest.mark.parametrize(
    ("scheduler", "field"),
    [("1", "scheduler"), ("{extraArgs: 1}", "scheduler.extraArgs"), ("{extraVolumes: 1}", "scheduler.extraVolumes")],
)
def test_a_value_of_another_type_is_named_by_its_place(scheduler: str, field: str) -> None:
    with pytest.raises(InvalidInputError, match="must be a") as caught:
        made(f"{HEAD}v1beta3\nscheduler: {scheduler}\n")
    assert caught.value.field == field


def test_an_extender_on_this_machine_needs_no_dns_policy() -> None:
    found = made(chosen=options(telemetry(url="http://127.0.0.1:9001"), minor=30))
    assert "spec" not in value_of(found.patch)
    assert len(value_of(found.cluster_configuration)["scheduler"]["extraVolumes"]) == 1


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/host/certs", "is where tas configure mounts"),
        ("/host/certs/", "is where tas configure mounts"),
        ("/host/certs/client.key", "hides ours"),
        ("/host/./certs/client.key", "hides ours"),
        ("//host//certs/client.key", "hides ours"),
        (DEST, "remove this"),
        ("/host, readOnly: true", "is a read-only mount"),
    ],
)
def test_a_volume_in_one_of_our_places_is_refused(path: str, words: str) -> None:
    """The second one is of the Cluster API guide of the original."""
    volume = f"{{name: cacert, hostPath: /etc/kubernetes/pki/ca.key, mountPath: {path}}}"
    with pytest.raises(InvalidInputError, match=words) as caught:
        made(f"{HEAD}v1beta3\nscheduler: {{extraVolumes: [{volume}]}}\n")
    assert caught.value.field == "scheduler.extraVolumes"


@pytest.mark.parametrize(
    "volume",
    ["hostPath: /x, mountPath: /host", f"hostPath: {dirname(DEST)}, mountPath: {dirname(DEST)}/, readOnly: true"],
)
def test_a_volume_around_one_of_ours_stays_if_ours_can_be_mounted_in_it(volume: str) -> None:
    found = made(f"{HEAD}v1beta3\nscheduler: {{extraVolumes: [{{name: mine, {volume}}}]}}\n")
    assert len(value_of(found.cluster_configuration)["scheduler"]["extraVolumes"]) == 3


def test_a_volume_whose_name_is_no_text_stays() -> None:
    """kubeadm refuses it, and names the field."""
    text = f"{HEAD}v1beta4\nscheduler:\n  extraVolumes: [{{name: {{a: b}}, hostPath: /m, mountPath: /m}}]\n"
    volumes = value_of(made(text).cluster_configuration)["scheduler"]["extraVolumes"]
    assert volumes[0]["name"] == {"a": "b"}
    assert len(volumes) == 3
