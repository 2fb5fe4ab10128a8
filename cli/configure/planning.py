"""From the flags of `tas configure` and the files of this node to a plan."""

import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

from cli.configure.certificates import checked
from cli.configure.errors import ConfigureError
from cli.configure.files import FilesError, Step, Stored, stored, why_not_writable
from cli.configure.flags import OriginalOption, extender_options, extenders_of
from tas.configuring.configuration import KIND
from tas.configuring.editing import rendered
from tas.configuring.originals import configuration_of_original
from tas.configuring.plan import Options, Plan, check_paths, configuration, current_config, lines_by_hand, plan
from tas.configuring.static_pod import CERTIFICATES, Scheduler, is_same
from tas.configuring.versions import minor_of_version
from tas.errors import InvalidInputError
from workers.http.tls_files import TlsFiles
from workers.process.manifests import ManifestError, read_yaml, read_yaml_tree

CONFIG_NAME = "scheduler-config.yaml"
POLICY_CONFIG_NAME = "scheduler-extender-policy.yaml"

FOLDER_MODE = 0o755
"""Of a new folder: a scheduler that is not root must get to its files. A key has a mode of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, and the files that it changes in the order of the writes.

    Attributes:
        copies: Other files with a scheduler in the folder of the manifest: the kubelet runs each of them.
    """

    plan: Plan
    steps: Sequence[Step]
    notices: Sequence[str]
    copies: Sequence[Path] = ()

    @property
    def pending(self) -> list[Step]:
        """The steps that change something."""
        return [step for step in self.steps if step.changes]


def template_option() -> click.Option:
    """The flag with a configuration."""
    return OriginalOption(
        "f", "template", metavar="FILE",
        help="A configuration whose extenders are added. If the scheduler has no configuration, all of the file is "
        "taken. Also a Policy of an older scheduler, as it is or in a ConfigMap.",
    )  # fmt: skip


def plugin_option() -> click.Option:
    """The flag for a scheduler that is no stock one."""
    return click.Option(
        ["--allow-plugin", "allowed_plugins"], metavar="NAME", multiple=True,
        help="A plugin that this scheduler has and a stock one has not. Without this, its name is refused as unknown.",
    )  # fmt: skip


def folder_options() -> list[click.Option]:
    """Where the files of the scheduler are."""
    return [
        OriginalOption(
            "d", "config_dir", metavar="DIR", default="/etc/kubernetes", show_default=True,
            help=f"The folder for the configuration. The file is named as that of -f, or else {CONFIG_NAME}.",
        ),
        OriginalOption(
            "cert-dir", "cert_dir", metavar="DIR", default="/etc/certs/", show_default=True,
            help="The folder for client.crt, client.key and ca.crt, which the scheduler mounts.",
        ),
    ]  # fmt: skip


def plan_options() -> list[click.Option]:
    """What the scheduler is to be, and where its files are."""
    return [
        OriginalOption(
            "m", "manifest", metavar="FILE", default="/etc/kubernetes/manifests/kube-scheduler.yaml",
            show_default=True, help="The manifest of the scheduler.",
        ),
        template_option(),
        click.Option(
            ["--replace"], is_flag=True,
            help="Start from -f, or else from an empty configuration, and keep nothing of the scheduler's own.",
        ),
        *folder_options(),
        OriginalOption(
            "cert", "cert", metavar="FILE", default="/etc/kubernetes/pki/ca.crt", show_default=True,
            help="The certificate that the scheduler presents.",
        ),
        OriginalOption(
            "key", "key", metavar="FILE", default="/etc/kubernetes/pki/ca.key", show_default=True,
            help="Its private key.",
        ),
        click.Option(
            ["--cacert"], metavar="FILE", default="/etc/kubernetes/pki/ca.crt", show_default=True,
            help="The authorities that sign the certificates of the extenders.",
        ),
        click.Option(
            ["--allow-ca-key"], is_flag=True, help="Copy the key of an authority, as the original does by default."
        ),
        click.Option(["--kube-version"], metavar="1.N", help="The scheduler's version. [default: that of its image]"),
        click.Option(
            ["--policy-configmap"], is_flag=True,
            help="A Policy in a ConfigMap, for Kubernetes 1.19 to 1.22, in place of a configuration.",
        ),
        plugin_option(),
        *extender_options(),
        OriginalOption("tas-depl", "tas_depl", metavar="FILE", hidden=True),
        OriginalOption("gas-depl", "gas_depl", metavar="FILE", hidden=True),
    ]  # fmt: skip


def planned(
    *,
    looking: bool,
    manifest: str,
    template: str | None,
    replace: bool,
    config_dir: str,
    cert: str,
    key: str,
    cacert: str,
    cert_dir: str,
    allow_ca_key: bool,
    kube_version: str | None,
    policy_configmap: bool,
    extenders: tuple[str, ...],
    allowed_plugins: tuple[str, ...],
    tas_depl: str | None,
    gas_depl: str | None,
    **about_extenders: Any,
) -> Planned:
    """What the flags say, compared with the files. Writes nothing.

    `looking`: nobody will write it, so that it does not matter what must not be written.
    """
    if policy_configmap and (template is not None or replace):
        raise click.UsageError("--policy-configmap contradicts -f and --replace")
    pod = Path(manifest).absolute()
    given = None if template is None or not Path(template).exists() else template_of(Path(template))
    name = Path(template).name if template is not None else POLICY_CONFIG_NAME if policy_configmap else CONFIG_NAME
    name = name if given is None else given.name
    chosen = extenders_of(extenders=extenders or (() if template is not None else ("telemetry",)), **about_extenders)
    options = Options(
        extenders=chosen,
        config=str(Path(config_dir) / name),
        certificates=cert_dir,
        template=None if given is None else given.text,
        minor=None if kube_version is None else minor_of_version(kube_version),
        policy=policy_configmap,
        allowed=frozenset(allowed_plugins),
    )
    check_paths(options, str(pod))
    _check_folders(pod, config_dir, cert_dir)
    needs = [manifest, *([template] if template else [])]
    needs += [cert, key, cacert] if any(each.is_https for each in chosen) else []
    if missing := [path for path in needs if not Path(path).exists()]:
        where = ": run this on a control plane node, or give -m FILE" if manifest in missing else ""
        raise ConfigureError("missing: " + ", ".join(dict.fromkeys(missing)) + where)
    text = text_of(pod)
    with _by_hand_if_refused(text, options):
        source = None if policy_configmap or replace else _source(text, options)
        current = None if source is None else text_of(source)
        made = configuration(text, current, options, read_yaml_tree)
    certificates: dict[str, bytes] = {}
    notices: list[str] = [] if given is None else [*given.notices]
    if made.certificates:
        files = TlsFiles(cert=Path(cert), key=Path(key), cacert=Path(cacert))
        certificates, of_files = checked(files, datetime.now(UTC), allow_ca_key=allow_ca_key, looking=looking)
        notices = [*of_files, *notices]
    with _by_hand_if_refused(text, options):
        result = plan(text, made, certificates, options, read_yaml_tree)
    if tas_depl or gas_depl:
        notices.append("-tas-depl and -gas-depl have no effect: deployments tolerate both taints of the control plane")
    origins = [existing(path) for path in (source, Path(template) if template else None) if path]
    steps = _steps(pod, text, result, certificates, options, mode=mode_of_copy(origins))
    config = steps[-2]
    if source == config.path and (config.before is None or config.before.content != (current or "").encode()):
        raise ConfigureError(f"{source}: has changed meanwhile; every file is as before")
    if source != config.path and not policy_configmap:
        _check_is_configuration(config)
    mounted = Scheduler(read_yaml_tree(text).value).host_path(CERTIFICATES)
    refused = [*_replaced_of_others(steps[:-2], is_in_use=is_same(mounted, cert_dir))]
    refused += _unreadable(steps[:-2] if policy_configmap else steps[:-1], result.user)
    refused += _closed(Path(cert_dir), result.user) if certificates else ()
    notices += refused
    if not looking:
        _check_writable(steps)
        if refused:
            raise ConfigureError("; ".join(refused))
    copies = _copies(pod)
    notices += [f"{each}: has a scheduler, too: the kubelet runs each file of this folder" for each in copies]
    notices += _readable_keys(steps)
    return Planned(
        plan=result,
        steps=steps,
        notices=[*notices, *result.notices],
        copies=copies,
    )


@contextmanager
def _by_hand_if_refused(manifest: str, options: Options) -> Iterator[None]:
    """Adds to the error about a file that cannot be edited what to write by hand."""
    try:
        yield
    except InvalidInputError as error:
        lines = lines_by_hand(error, manifest, options, read_yaml_tree)
        if lines is None:
            raise
        raise ConfigureError(f"{error}\n\n{lines}") from error


def _steps(
    manifest: Path,
    planned_for: str,
    result: Plan,
    certificates: Mapping[str, bytes],
    options: Options,
    *,
    mode: int,
) -> list[Step]:
    """The files in the order of the writes: certificates, configuration, manifest.

    `mode` is that of a new configuration. Raises ConfigureError if the manifest is no longer the one of the plan.
    """
    folder = Path(options.certificates)
    modes = {name: 0o600 if name.endswith(".key") else 0o644 for name in certificates}
    steps = [_step(folder / name, content, modes[name], result.user) for name, content in certificates.items()]
    steps.append(_step(Path(options.config), result.config.encode(), mode, result.user))
    before = existing(manifest)
    if before.content != planned_for.encode():
        raise ConfigureError(f"{manifest}: has changed meanwhile; every file is as before")
    # The manifest is last: its change restarts the scheduler, which then finds the other files.
    interim = None if result.interim is None else result.interim.encode()
    steps.append(Step(path=manifest, before=before, content=result.manifest.encode(), interim=interim))
    return steps


def _step(path: Path, content: bytes, mode: int, user: int) -> Step:
    """A file that a scheduler of this user reads: a new one that is not for everybody belongs to this user."""
    before = stored(path)
    is_of_user = before is None and user and not mode & stat.S_IROTH
    return Step(path=path, before=before, content=content, mode=mode, owner=(user, -1) if is_of_user else None)


def mode_of_copy(origins: Sequence[Stored]) -> int:
    """The mode of a new configuration: not for everybody if one of its origins is not. It may have a private key."""
    return 0o644 if all(each.mode & stat.S_IROTH for each in origins) else 0o600


def _check_is_configuration(config: Step) -> None:
    """Raises ConfigureError for a file of another kind: the name of the file of -f may be that of a kubeconfig."""
    with suppress(ManifestError):
        for each in read_yaml(config.before.content) if config.before is not None else ():
            kind = each.get("kind") if isinstance(each, dict) else None
            if kind not in (None, KIND):
                raise ConfigureError(f"{config.path}: is a {kind}, and no {KIND}: rename the file of -f, or give -d")


def _replaced_of_others(certificates: Sequence[Step], *, is_in_use: bool) -> Iterator[str]:
    """The first file that is replaced in a folder with keys of others: the cluster has a ca.crt, too.

    `is_in_use`: the scheduler mounts this folder already, so that certificate and key of a client are its own.
    """
    replaced = [step.path for step in certificates if step.before is not None and step.changes]
    for path in [path for path in replaced if path.name == "ca.crt" or not is_in_use][:1]:
        if others := sorted(each.name for each in path.parent.glob("*.key") if each.name != "client.key"):
            yield f"{path} may be that of others, as {others[0]} beside it: give a folder of its own with -cert-dir"


def _unreadable(steps: Sequence[Step], user: int) -> Iterator[str]:
    """The files that are there already, and that a scheduler of this user cannot read: it would not start."""
    for before, path in ((step.before, step.path) for step in steps if user):
        if before is not None and before.owner[0] != user and not before.mode & (stat.S_IROTH | stat.S_IRGRP):
            yield f"{path}: the scheduler runs as user {user}, and cannot read it: chown {user} {path}"


def _closed(folder: Path, user: int) -> Iterator[str]:
    """As `_unreadable`, for the folder of the certificates, which the pod mounts as a whole."""
    found = folder.stat() if user and folder.exists() else None
    if found is not None and found.st_uid != user and not found.st_mode & (stat.S_IXOTH | stat.S_IXGRP):
        yield f"{folder}: the scheduler runs as user {user}, and cannot read what is in it: chmod 755 {folder}"


def _readable_keys(steps: Sequence[Step]) -> Iterator[str]:
    """The keys that are there already with a mode that lets everybody read them: a file keeps its mode.

    Whether the modes of its folders do is not looked at: a new key has 600 in each folder.
    """
    for step in steps:
        if step.path.suffix == ".key" and step.before is not None and step.before.mode & stat.S_IROTH:
            yield f"{step.path}: keeps its mode {step.before.mode:o}, for every user to read: chmod 600 {step.path}"


def _copies(manifest: Path) -> list[Path]:
    """The other files of this folder in which the kubelet finds a scheduler (facts.md c42)."""
    found = []
    for path in sorted(manifest.parent.iterdir()):
        if path.name != manifest.name and not path.name.startswith(".") and path.is_file():
            with suppress(InvalidInputError, ConfigureError, FilesError):
                Scheduler(read_yaml_tree(text_of(path.resolve())).value)  # the kubelet follows a symbolic link
                found.append(path)
    return found


def _check_writable(steps: Sequence[Step]) -> None:
    if unwritable := [reason for step in steps if step.changes and (reason := why_not_writable(step.path))]:
        raise ConfigureError("; ".join(dict.fromkeys(unwritable)))


def _check_folders(manifest: Path, *folders: str) -> None:
    """As `check_paths`, for folders that are the same by a symbolic link."""
    for folder in folders:
        if Path(folder).resolve() == manifest.parent.resolve():
            raise click.UsageError(f"{folder}: must not be the folder of the manifests: the kubelet reads it")


def _source(manifest: str, options: Options) -> Path | None:
    """The file with the configuration of the scheduler; None: it has none."""
    if (current := current_config(manifest, read_yaml_tree)) is not None:
        return Path(current)
    # kubeadm writes the manifest anew at each upgrade, without our flag; the configuration is still there.
    return Path(options.config) if Path(options.config).exists() else None


def existing(path: Path) -> Stored:
    """A regular file. Raises ConfigureError if there is none, and FilesError."""
    found = stored(path)
    if found is None:
        raise ConfigureError(f"missing: {path}")
    return found


class Template(NamedTuple):
    """The text of a configuration, the name of its file on the node, and notices for people."""

    text: str
    name: str
    notices: Sequence[str] = ()


def template_of(path: Path) -> Template:
    """The file of `-f`, also a Policy. Raises ConfigureError, FilesError, and InvalidInputError for another object."""
    content = existing(path).content
    try:
        made = configuration_of_original(read_yaml(content), _read_field)
    except ManifestError as error:
        raise ConfigureError(f"{path}: {error}") from error
    if made is None:
        return Template(text_of(path), path.name)
    document, notices = made
    return Template(rendered(document), CONFIG_NAME, notices)


def _read_field(text: str, field: str) -> list[object]:
    """The documents of a text in a field of a file. Raises ManifestError."""
    try:
        return read_yaml(text.encode())
    except ManifestError as error:
        raise ManifestError(f"{field}: {error}") from error


def text_of(path: Path) -> str:
    """The text of a YAML file. Raises ConfigureError if it is none, and FilesError."""
    try:
        text = existing(path).content.decode()
        read_yaml_tree(text)
    except UnicodeDecodeError as error:
        raise ConfigureError(f"{path}: is no text in UTF-8: {error.reason}") from error
    except ManifestError as error:
        raise ConfigureError(f"{path}: {error}") from error
    return text
