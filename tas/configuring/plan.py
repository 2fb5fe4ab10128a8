"""What changes on a control plane node so that its scheduler asks the extenders: texts in, texts out."""

import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tas.configuring.editing import EditError, Read, edited, rendered
from tas.configuring.extenders import COMMENTS, SUBJECT, Extender, policy_config_map, with_extenders
from tas.configuring.kubeadm import SUBJECT as CLUSTER
from tas.configuring.kubeadm import cluster_configuration, patch
from tas.configuring.static_pod import SUBJECT as MANIFEST
from tas.configuring.static_pod import Scheduler, Wanted
from tas.configuring.versions import minor_of_image
from tas.errors import InvalidInputError

KUBECONFIG = "/etc/kubernetes/scheduler.conf"
"""The credentials of kubeadm's scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the scheduler is to be configured.

    Attributes:
        extenders: Whom the scheduler asks.
        config: The file of its configuration, or of the ConfigMap; an absolute path.
        certificates: The folder of the certificates on the machine; an absolute path.
        minor: The minor version of the scheduler; None: that of its image.
        policy: Whether the scheduler reads a Policy from a ConfigMap, as up to Kubernetes 1.22.
    """

    extenders: tuple[Extender, ...]
    config: str
    certificates: str
    minor: int | None = None
    policy: bool = False

    @property
    def is_https(self) -> bool:
        """Whether certificates are needed."""
        return any(extender.is_https for extender in self.extenders)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The texts after the change, and what to report.

    Attributes:
        manifest: The manifest; the same text if nothing changes.
        config: The configuration, or the ConfigMap of a Policy.
        changes: What changes in the manifest.
        notices: What people should know.
    """

    minor: int
    manifest: str
    config: str
    changes: tuple[str, ...]
    notices: tuple[str, ...]


def check_paths(options: Options, manifest: str) -> None:
    """Raises InvalidInputError for paths that a pod cannot mount, or that the kubelet takes as pods (facts.md c42)."""
    folder = posixpath.dirname(posixpath.normpath(manifest))
    for name, path in (("-d", options.config), ("-cert-dir", options.certificates)):
        if not path.startswith("/"):
            raise InvalidInputError("options", name, path, "must be absolute: the pod mounts it")
    if posixpath.dirname(posixpath.normpath(options.config)) == folder:
        raise InvalidInputError("options", "-d", folder, "the kubelet takes each file there as a pod")


def current_config(manifest: str, read: Read) -> str | None:
    """The path on this machine of the configuration that the scheduler reads now; None if it reads none.

    Raises InvalidInputError, and the errors of `read`.
    """
    scheduler = Scheduler(read(manifest).value)
    inside = scheduler.flag("config")
    if inside is None:
        return None
    outside = scheduler.host_path(inside)
    if outside is None:
        reason = "no hostPath volume has this file: give the configuration with -f"
        raise InvalidInputError(MANIFEST, "--config", inside, reason)
    return outside


def plan(manifest: str, config: str | None, certificates: Mapping[str, bytes], options: Options, read: Read) -> Plan:
    """The plan for a manifest.

    Args:
        manifest: The text of the scheduler's manifest.
        config: The text of the configuration to start from; None: there is none.
        certificates: The contents of the files in the folder of certificates; they count in the digest only.
        options: How the scheduler is to be configured.
        read: The parser; its errors are not caught.

    Raises:
        InvalidInputError: if one of the texts is not what it must be, or the scheduler would refuse the result.
    """
    scheduler = Scheduler(read(manifest).value)
    minor = options.minor if options.minor is not None else minor_of_image(scheduler.image)
    if options.policy:
        new_config = "---\n".join(rendered(each) for each in policy_config_map(options.extenders, minor))
        notices = ["the Policy takes effect after: kubectl apply -f " + options.config]
    else:
        new_config, notices = _configuration(config, minor, options, scheduler.flag("kubeconfig") or KUBECONFIG, read)
    wanted = _wanted(options, minor, [new_config.encode(), *(certificates[name] for name in sorted(certificates))])
    pod, changes, more = scheduler.configured(wanted)
    return Plan(
        minor=minor,
        manifest=_edited(MANIFEST, manifest, pod, read),
        config=new_config,
        changes=tuple(changes),
        notices=(*notices, *more),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForKubeadm:
    """The texts of three files: the configuration of the scheduler, and two for kubeadm."""

    config: str
    cluster_configuration: str
    patch: str


def for_kubeadm(config: str | None, cluster: str | None, options: Options, read: Read) -> ForKubeadm:
    """The texts for a cluster that kubeadm manages.

    Args:
        config: The text of the configuration to start from; None: there is none.
        cluster: The text of the ClusterConfiguration; None: only the fields for the scheduler.
        options: How the scheduler is to be configured; with its minor version.
        read: The parser; its errors are not caught.

    Raises:
        InvalidInputError: as `plan`.
    """
    assert options.minor is not None
    text, _ = _configuration(config, options.minor, options, KUBECONFIG, read)
    wanted = _wanted(options, options.minor, [text.encode()])
    try:
        after = cluster_configuration(cluster, wanted, read)
    except EditError as error:
        raise InvalidInputError(CLUSTER, "text", "", str(error)) from error
    return ForKubeadm(config=text, cluster_configuration=after, patch=patch(wanted))


def _wanted(options: Options, minor: int, contents: Sequence[bytes]) -> Wanted:
    return Wanted(
        minor=minor,
        config=None if options.policy else options.config,
        certificates=options.certificates if options.is_https else None,
        cluster_dns=any(extender.needs_cluster_dns for extender in options.extenders),
        digest=digest(contents),
    )


def _configuration(
    config: str | None, minor: int, options: Options, kubeconfig: str, read: Read
) -> tuple[str, list[str]]:
    before = None if config is None else read(config).value
    document, notices = with_extenders(before, minor, options.extenders, kubeconfig)
    if config is None:
        return rendered(document, COMMENTS), notices
    return _edited(SUBJECT, config, document, read), notices


def _edited(subject: str, text: str, value: object, read: Read) -> str:
    try:
        return edited(text, value, read, COMMENTS)
    except EditError as error:
        raise InvalidInputError(subject, "text", "", str(error)) from error


def digest(contents: Sequence[bytes]) -> str:
    """A digest of several contents, as the value of an annotation."""
    lengths = json.dumps([len(each) for each in contents]).encode()
    return f"sha256:{hashlib.sha256(b''.join([lengths, *contents])).hexdigest()[:32]}"
