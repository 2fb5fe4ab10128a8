"""What changes on a control plane node so that its scheduler asks the extenders: texts in, texts out."""

import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tas.configuring.configuration import SUBJECT, entries_of, of_template, with_extenders, with_version
from tas.configuring.editing import EditError, Read, edited, rendered
from tas.configuring.extenders import COMMENTS, Extender, Object, needs_certificates, needs_cluster_dns
from tas.configuring.kubeadm import SUBJECT as CLUSTER
from tas.configuring.kubeadm import cluster_configuration, init_phase, patch
from tas.configuring.policy_configmap import policy_config_map
from tas.configuring.static_pod import CERTIFICATES, PROGRAM, Scheduler, Wanted
from tas.configuring.static_pod import SUBJECT as MANIFEST
from tas.configuring.versions import minor_of_image
from tas.errors import InvalidInputError

KUBECONFIG = "/etc/kubernetes/scheduler.conf"
"""The credentials of kubeadm's scheduler."""

UNFINISHED = "unfinished"
"""The value of the annotation before all files are written."""

TEXT = "text"
"""The field of an error about a file that cannot be edited in place, whatever it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the scheduler is to be configured.

    Attributes:
        extenders: Whom the scheduler asks.
        config: The file of its configuration, or of the ConfigMap; an absolute path.
        certificates: The folder of the certificates on the machine; an absolute path.
        template: The text of a configuration whose extenders are added, too.
        minor: The minor version of the scheduler; None: that of its image.
        policy: Whether the scheduler reads a Policy from a ConfigMap, as up to Kubernetes 1.22.
        allowed: Names of plugins that the scheduler has beside those of a stock one.
    """

    extenders: tuple[Extender, ...]
    config: str
    certificates: str
    template: str | None = None
    minor: int | None = None
    policy: bool = False
    allowed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The texts after the change, and what to report.

    Attributes:
        manifest: The manifest; the same text if nothing changes.
        interim: The manifest while the configuration is replaced, if the scheduler reads this file already: with the
            mounts that the new configuration needs (facts.md c74), and without the digest that says that all is
            done. None: not needed, since the manifest as it was does not read the file, or has all mounts.
        config: The configuration, or the ConfigMap of a Policy.
        changes: What changes in the manifest.
        notices: What people should know.
        urls: Where the extenders are that were added or updated.
        serves_with_files: Whether the scheduler serves with a certificate of a file, the same after a restart.
        user: As whom the scheduler runs, 0 is root.
    """

    minor: int
    manifest: str
    config: str
    changes: tuple[str, ...]
    notices: tuple[str, ...]
    urls: tuple[str, ...]
    serves_with_files: bool
    user: int = 0
    interim: str | None = None


def check_paths(options: Options, manifest: str) -> None:
    """Raises InvalidInputError for paths that a pod cannot mount, or that the kubelet takes as pods (facts.md c42)."""
    folder = posixpath.dirname(posixpath.normpath(manifest))
    for name, path in (("-d", options.config), ("-cert-dir", options.certificates)):
        if not path.startswith("/"):
            raise InvalidInputError("options", name, path, "must be absolute: the pod mounts it")
    written = {"-d": posixpath.dirname(posixpath.normpath(options.config)), "-cert-dir": options.certificates}
    for name, path in written.items():
        if posixpath.normpath(path) == folder:
            raise InvalidInputError("options", name, path, "the kubelet takes each file there as a pod")


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
        reason = "no hostPath volume has this file: give the configuration with -f and --replace"
        raise InvalidInputError(MANIFEST, "--config", inside, reason)
    return outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What the scheduler reads at its start.

    Attributes:
        minor: The minor version of the scheduler.
        text: The configuration, or the ConfigMap of a Policy.
        certificates: Whether an entry uses files of the folder of certificates.
        urls: Where the extenders are that were added or updated.
        cluster_dns: Whether one of these needs the DNS of the cluster.
        notices: What people should know.
    """

    minor: int
    text: str
    certificates: bool
    urls: tuple[str, ...]
    cluster_dns: bool
    notices: tuple[str, ...] = ()


def configuration(manifest: str, config: str | None, options: Options, read: Read) -> Configuration:
    """The configuration for the scheduler of a manifest; `config` is the text to start from, if there is one.

    Raises InvalidInputError if a text is not what it must be, or the scheduler would refuse the result; and as `read`.
    """
    scheduler = Scheduler(read(manifest).value)
    minor = options.minor if options.minor is not None else minor_of_image(scheduler.image)
    if options.policy:
        entries = [extender.entry() for extender in options.extenders]
        return Configuration(
            minor=minor,
            text="---\n".join(rendered(each) for each in policy_config_map(options.extenders, minor)),
            certificates=any(needs_certificates(entry, CERTIFICATES) for entry in entries),
            urls=_urls(entries),
            cluster_dns=any(map(needs_cluster_dns, entries)),
            notices=("the Policy takes effect after: kubectl apply -f " + options.config,),
        )
    return _configuration(config, minor, options, scheduler.flag("kubeconfig") or KUBECONFIG, read)


def plan(manifest: str, made: Configuration, certificates: Mapping[str, bytes], options: Options, read: Read) -> Plan:
    """The plan for a manifest; `made` is the configuration for its scheduler.

    The contents of the files in the folder of `certificates` count in the digest only. Raises InvalidInputError if the
    manifest is not one of a scheduler, or cannot be edited; and as `read`.
    """
    wanted = _wanted(options, made, [certificates[name] for name in sorted(certificates)])
    scheduler = Scheduler(read(manifest).value)
    pod, changes, notices = scheduler.configured(wanted)
    after = _edited(MANIFEST, manifest, pod, read)
    read_now = scheduler.flag("config")
    in_use = read_now is not None and scheduler.host_path(read_now) == wanted.config
    return Plan(
        minor=made.minor,
        manifest=after,
        interim=after.replace(wanted.digest, UNFINISHED) if in_use and len(changes) > 1 else None,
        config=made.text,
        changes=tuple(changes),
        notices=(*made.notices, *notices),
        urls=made.urls,
        serves_with_files=any(scheduler.flag(name) is not None for name in ("tls-cert-file", "cert-dir")),
        user=scheduler.user,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForKubeadm:
    """The texts of the files: the configuration of the scheduler, and those for kubeadm.

    Attributes:
        init_phase: None: kubeadm takes the folder of patches only as a flag.
        certificates: Whether the scheduler needs the folder of certificates.
        notices: What people should know.
    """

    config: str
    cluster_configuration: str
    init_phase: str | None
    patch: str
    certificates: bool
    notices: tuple[str, ...]


def for_kubeadm(cluster: str | None, patches: str, options: Options, read: Read) -> ForKubeadm:
    """The texts for a cluster that kubeadm manages; `options` must have the minor version.

    Without the text of a ClusterConfiguration (`cluster`) only the fields for the scheduler. `patches` is the folder of
    the patch on each control plane node, an absolute path. Raises as `configuration`.
    """
    assert options.minor is not None
    made = _configuration(None, options.minor, options, KUBECONFIG, read)
    wanted = _wanted(options, made, [])
    try:
        after = cluster_configuration(cluster, wanted, read)
    except EditError as error:
        raise InvalidInputError(CLUSTER, "text", "", str(error)) from error
    return ForKubeadm(
        config=made.text,
        cluster_configuration=after,
        init_phase=init_phase(after, patches, read),
        patch=patch(wanted),
        certificates=made.certificates,
        notices=made.notices,
    )


def _wanted(options: Options, made: Configuration, certificates: Sequence[bytes]) -> Wanted:
    return Wanted(
        minor=made.minor,
        config=None if options.policy else options.config,
        certificates=options.certificates if made.certificates else None,
        cluster_dns=made.cluster_dns,
        digest=digest([made.text.encode(), *certificates]),
    )


def _configuration(config: str | None, minor: int, options: Options, kubeconfig: str, read: Read) -> Configuration:
    ours = [extender.entry() for extender in options.extenders]
    of_file: list[Object] = []
    template: object = None
    ignored: list[str] = []
    notices: list[str] = []
    if options.template is not None:
        template, notices = with_version(read(options.template).value, minor)
        of_file, ignored = of_template(template)
    if config is None:
        before, added, config = template, ours, options.template
    else:
        before, added = read(config).value, [*of_file, *ours]
        notices = ignored
    document, more = with_extenders(before, minor, added, kubeconfig, options.allowed)
    return Configuration(
        minor=minor,
        text=rendered(document, COMMENTS) if config is None else _edited(SUBJECT, config, document, read),
        certificates=any(needs_certificates(entry, CERTIFICATES) for entry in entries_of(document)),
        urls=_urls([*of_file, *ours]),
        cluster_dns=any(map(needs_cluster_dns, [*of_file, *ours])),
        notices=(*notices, *more),
    )


def _urls(entries: Sequence[Object]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(entry["urlPrefix"]) for entry in entries if "urlPrefix" in entry))


def _edited(subject: str, text: str, value: object, read: Read) -> str:
    try:
        return edited(text, value, read, COMMENTS)
    except EditError as error:
        raise InvalidInputError(subject, TEXT, "", str(error)) from error


def lines_by_hand(error: InvalidInputError, manifest: str, options: Options, read: Read) -> str | None:
    """What somebody adds to manifest and configuration where these cannot be edited.

    None where it does not help: against another error, for a Policy, and for a scheduler of an unknown version.
    """
    # A configuration that is there, and cannot be found, is lost with ours: the error says what to do.
    cannot_edit = error.subject == MANIFEST and error.field != "--config"
    cannot_edit |= error.subject == SUBJECT and error.field == TEXT
    minor = options.minor if options.minor is not None else _minor_or_none(manifest, read)
    if not cannot_edit or minor is None or options.policy:
        return None
    made = _configuration(None, minor, options, KUBECONFIG, read)
    container: Object = {"name": PROGRAM, "command": [PROGRAM]}
    empty = Scheduler({"kind": "Pod", "spec": {"containers": [container]}})
    pod, _, _ = empty.configured(_wanted(options, made, []))
    spec = pod["spec"]
    assert isinstance(spec, dict)
    new = spec["containers"][0]
    added = {"command": new["command"][1:], "volumeMounts": new["volumeMounts"]}
    lines = {"containers": [added]} | {name: spec[name] for name in ("volumes", "dnsPolicy") if name in spec}
    files = f"\nand copy client.crt, client.key and ca.crt to {options.certificates}" if made.certificates else ""
    return (
        f"By hand, add this to the spec of the manifest:\n\n{rendered(lines)}\n"
        f"and this to the configuration, {options.config}:\n\n{made.text}{files}"
    )


def _minor_or_none(manifest: str, read: Read) -> int | None:
    try:
        return minor_of_image(Scheduler(read(manifest).value).image)
    except InvalidInputError:
        return None


def digest(contents: Sequence[bytes]) -> str:
    """A digest of several contents, as the value of an annotation."""
    lengths = json.dumps([len(each) for each in contents]).encode()
    return f"sha256:{hashlib.sha256(b''.join([lengths, *contents])).hexdigest()[:32]}"
