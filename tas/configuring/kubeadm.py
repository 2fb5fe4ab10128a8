"""The same configuration for kubeadm, which writes the manifest of the scheduler itself, also at each upgrade.

ClusterConfiguration has the flag and the volumes. It has no `dnsPolicy`, so a patch of kubeadm sets it
(platform-aware-scheduling #86, facts.md c45).
"""

from collections.abc import Sequence

from tas.configuring.decoding import list_at, mapping_at
from tas.configuring.editing import Read, edited, rendered
from tas.configuring.extenders import Object
from tas.configuring.static_pod import (
    CERTIFICATES,
    CERTIFICATES_VOLUME,
    CLOSED,
    CONFIG_VOLUME,
    DIGEST,
    DNS_POLICY,
    HIDES,
    Wanted,
    is_closed,
    is_inside,
    is_same,
)
from tas.errors import InvalidInputError

GROUP = "kubeadm.k8s.io"
SUBJECT = "cluster configuration"
PATCH = "kube-scheduler+strategic.yaml"
"""The name by which kubeadm finds the patch of the scheduler's manifest."""


def cluster_configuration(text: str | None, wanted: Wanted, read: Read) -> str:
    """A ClusterConfiguration whose scheduler is as wanted; `wanted` must have a configuration.

    All else of `text` stays. If `text` is None, the result has only what the scheduler needs. Raises InvalidInputError
    if `text` is no ClusterConfiguration, and as `read`.
    """
    head: Object = {"apiVersion": f"{GROUP}/{_version(wanted.minor)}", "kind": "ClusterConfiguration"}
    before = head if text is None else read(text).value
    version = before.get("apiVersion") if isinstance(before, dict) else None
    if not isinstance(before, dict) or before.get("kind") != head["kind"] or not str(version).startswith(f"{GROUP}/"):
        raise InvalidInputError(SUBJECT, "kind", before, f"must be a ClusterConfiguration of {GROUP}")
    scheduler = mapping_at(SUBJECT, before.get("scheduler"), "scheduler", optional=True)
    given = scheduler.get("extraArgs")
    has_list = str(version) not in (f"{GROUP}/v1beta1", f"{GROUP}/v1beta2", f"{GROUP}/v1beta3")
    arguments: object
    if has_list:
        flags = [each for each in list_at(SUBJECT, given, "scheduler.extraArgs") if _name(each) != "config"]
        arguments = [*flags, {"name": "config", "value": wanted.config}]
    else:
        arguments = mapping_at(SUBJECT, given, "scheduler.extraArgs", optional=True) | {"config": wanted.config}
    ours = [_volume(CONFIG_VOLUME, wanted.config, wanted.config, "File")]
    if wanted.certificates is not None:
        ours.append(_volume(CERTIFICATES_VOLUME, wanted.certificates, CERTIFICATES, "Directory"))
    names = (CONFIG_VOLUME, CERTIFICATES_VOLUME)  # no set: a name may be a mapping
    before_ours = list_at(SUBJECT, scheduler.get("extraVolumes"), "scheduler.extraVolumes")
    others = [each for each in before_ours if _name(each) not in names]
    _check_places(others, ours)
    volumes = [*others, *ours]
    after = before | {"scheduler": scheduler | {"extraArgs": arguments, "extraVolumes": volumes}}
    return rendered(after) if text is None else edited(text, after, read)


def _check_places(others: Sequence[object], ours: Sequence[Object]) -> None:
    """Raises InvalidInputError for a volume of another in one of our places: the pod does not run, or it hides ours."""
    for other in (each for each in others if isinstance(each, dict)):
        path, host = other.get("mountPath"), other.get("hostPath")
        for each in ours:
            our = str(each["mountPath"])
            if is_same(path, our):
                reason = f"is where tas configure mounts {our}: remove this volume"
            elif is_inside(path, our):
                reason = HIDES
            elif is_closed(other, host if isinstance(host, str) else None, our, str(each["hostPath"])):
                reason = CLOSED
            else:
                continue
            raise InvalidInputError(SUBJECT, "scheduler.extraVolumes", path, reason)


def init_phase(cluster: str, patches: str, read: Read) -> str | None:
    """A ClusterConfiguration with the folder of the patches, for `kubeadm init phase`, which takes no flag beside it.

    `patches` is the absolute path of the folder. The result is None for `v1beta2` and older, which have no field for
    it. Raises as `read`.
    """
    document = read(cluster).value
    assert isinstance(document, dict)
    version = document["apiVersion"]
    if version in (f"{GROUP}/v1beta1", f"{GROUP}/v1beta2"):
        return None
    init: Object = {"apiVersion": version, "kind": "InitConfiguration", "patches": {"directory": patches}}
    return f"{cluster.rstrip()}\n---\n{rendered(init)}"


def patch(wanted: Wanted) -> str:
    """The patch of the scheduler's manifest, for `kubeadm init`, `join` and `upgrade` with `--patches`."""
    # The digest makes the kubelet restart the scheduler, which reads its files only at its start.
    value: Object = {"metadata": {"annotations": {DIGEST: wanted.digest}}}
    if wanted.cluster_dns:
        value["spec"] = {"dnsPolicy": DNS_POLICY}
    return rendered(value)


def _version(minor: int) -> str:
    """The newest form that kubeadm of this minor version reads."""
    return "v1beta4" if minor >= 31 else "v1beta3" if minor >= 22 else "v1beta2"


def _volume(name: str, outside: str | None, inside: str | None, kind: str) -> Object:
    return {"name": name, "hostPath": outside, "mountPath": inside, "readOnly": True, "pathType": kind}


def _name(value: object) -> object:
    return value.get("name") if isinstance(value, dict) else None
