"""`tas configure`: the scheduler of this control plane node asks the extenders, as the PAS Configurator does."""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import click

from cli.configure.certificates import checked, shown
from cli.configure.files import (
    FilesError,
    NotRestoredError,
    Step,
    Stored,
    back_up,
    newest_backup,
    steps_of_backup,
    stored,
    why_not_writable,
    write_all,
)
from cli.configure.flags import (
    NO_BACKUP,
    Command,
    Group,
    OriginalOption,
    backup_option,
    extender_options,
    extenders_of,
)
from cli.configure.status import status
from cli.output import counted, echo, print_diff
from tas.configuring.kubeadm import PATCH
from tas.configuring.plan import Options, Plan, check_paths, current_config, for_kubeadm, plan
from tas.configuring.second_scheduler import SecondScheduler, manifests
from tas.configuring.versions import minor_of_image, minor_of_version
from tas.errors import InvalidInputError
from tas.values.duration import DurationError
from workers.process.manifests import ManifestError, read_yaml_tree
from workers.process.tls import TlsError, TlsFiles

EXIT_DIFFERENCES = 3
CONFIG_NAME = "scheduler-config.yaml"
POLICY_CONFIG_NAME = "scheduler-extender-policy.yaml"


class ConfigureError(click.ClickException):
    """Ends the command with one line; every file is as before."""


class SomeNotRestoredError(ConfigureError):
    """Ends the command with one line that names files."""

    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A plan, the files that it changes in the order of the writes, and notices."""

    plan: Plan
    steps: Sequence[Step]
    notices: Sequence[str]

    @property
    def pending(self) -> list[Step]:
        return [step for step in self.steps if step.changes]


def _errors_shown(action: Callable[..., int]) -> Callable[..., int]:
    """Each expected error as one line, with its exit status."""

    @wraps(action)
    def run(*args: Any, **given: Any) -> int:
        try:
            return action(*args, **given)
        except InvalidInputError as error:
            if error.subject == "options":
                raise click.UsageError(f"{error.field} = {error.value}: {error.reason}") from error
            raise ConfigureError(str(error)) from error
        except DurationError as error:
            raise click.UsageError(f"--http-timeout: {error}") from error
        except NotRestoredError as error:
            raise SomeNotRestoredError(str(error)) from error
        except FilesError as error:
            raise ConfigureError(str(error)) from error
        except (ManifestError, TlsError) as error:
            raise ConfigureError(str(error)) from error

    return run


def _template_option() -> click.Option:
    return OriginalOption(
        "f", "template", metavar="FILE",
        help="The configuration to start from. [default: that of the scheduler, or none]",
    )  # fmt: skip


def _folder_options() -> list[click.Option]:
    return [
        OriginalOption(
            "d", "config_dir", metavar="DIR", default="/etc/kubernetes", show_default=True,
            help=f"The folder for the configuration; its name is that of -f, or {CONFIG_NAME}.",
        ),
        OriginalOption(
            "cert-dir", "cert_dir", metavar="DIR", default="/etc/certs/", show_default=True,
            help="The folder for client.crt, client.key and ca.crt, which the scheduler mounts.",
        ),
    ]  # fmt: skip


def _plan_options() -> list[click.Option]:
    """What the scheduler is to be, and where its files are."""
    return [
        OriginalOption(
            "m", "manifest", metavar="FILE", default="/etc/kubernetes/manifests/kube-scheduler.yaml",
            show_default=True, help="The manifest of the scheduler.",
        ),
        _template_option(),
        *_folder_options(),
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
        *extender_options(),
        OriginalOption("tas-depl", "tas_depl", metavar="FILE", hidden=True),
        OriginalOption("gas-depl", "gas_depl", metavar="FILE", hidden=True),
    ]  # fmt: skip


@click.group(
    "configure",
    cls=Group,
    invoke_without_command=True,
    params=[
        *_plan_options(),
        backup_option(),
        OriginalOption("dry-run", "dry_run", is_flag=True, help="Print what would change, and write nothing."),
        click.Option(["--exit-code"], is_flag=True, help="With -dry-run: exit with 3 if something would change."),
    ],
)
@click.pass_context
def configure(ctx: click.Context, /, **given: Any) -> int:
    """Configure the kube-scheduler of this node to ask the extenders.

    Edits the manifest of the static pod, writes the configuration of the scheduler, and copies the certificates. All
    else in these files stays as it is. The kubelet then restarts the scheduler. Run it on each control plane node.

    Exit codes: 0 done, or nothing to do; 1 failed, every file is as before; 2 usage; 3 verify or status found
    differences; 4 failed, and the named files could not be restored.
    """
    if ctx.invoked_subcommand is None:
        return _configure(**given)
    early = [name for name in given if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if early:
        raise click.UsageError(f"give flags after {ctx.invoked_subcommand}, not before")
    return 0


@_errors_shown
def _configure(*, backup_dir: str, dry_run: bool, exit_code: bool, **given: Any) -> int:
    planned = _planned(**given)
    if backup_dir != NO_BACKUP:
        _check_backup_dir(Path(backup_dir), Path(given["manifest"]))
    for notice in planned.notices:
        echo(f"note: {notice}", err=True)
    if dry_run:
        _print_diffs(planned.steps)
        return EXIT_DIFFERENCES if exit_code and planned.pending else 0
    if not planned.pending:
        echo("no changes needed")
        return 0
    if backup_dir != NO_BACKUP:
        echo(f"backup: {back_up(Path(backup_dir), planned.pending, datetime.now(UTC))}")
    write_all(planned.steps)
    for step in planned.pending:
        echo(f"{'created' if step.before is None else 'changed'}: {step.path}")
    for change in planned.plan.changes:
        echo(f"  manifest: {change}")
    return 0


def _print_diffs(steps: Sequence[Step]) -> None:
    for step in steps:
        before = step.before.content if step.before is not None else None
        print_diff(str(step.path), shown(step.path.name, before), shown(step.path.name, step.content))


def _planned(
    *,
    manifest: str,
    template: str | None,
    config_dir: str,
    cert: str,
    key: str,
    cacert: str,
    cert_dir: str,
    allow_ca_key: bool,
    kube_version: str | None,
    policy_configmap: bool,
    extenders: tuple[str, ...],
    tas_depl: str | None,
    gas_depl: str | None,
    **about_extenders: Any,
) -> _Planned:
    """What the flags say, compared with the files. Writes nothing."""
    if policy_configmap and template is not None:
        raise click.UsageError("-f and --policy-configmap contradict each other")
    name = Path(template).name if template is not None else POLICY_CONFIG_NAME if policy_configmap else CONFIG_NAME
    options = Options(
        extenders=extenders_of(
            extenders=extenders or (() if template is not None else ("telemetry",)), **about_extenders
        ),
        config=str(Path(config_dir) / name),
        certificates=cert_dir,
        minor=None if kube_version is None else minor_of_version(kube_version),
        policy=policy_configmap,
    )
    check_paths(options, manifest)
    needs = [manifest, *([template] if template else []), *([cert, key, cacert] if options.is_https else [])]
    if missing := [path for path in needs if not Path(path).exists()]:
        raise ConfigureError("missing: " + ", ".join(dict.fromkeys(missing)))
    manifest_before = _existing(Path(manifest))
    text = _text(manifest, manifest_before)
    notices: list[str] = []
    config: str | None = None
    if not policy_configmap:
        source = _source(text, template, options)
        config = _text(str(source), _existing(source)) if source is not None else None
    certificates: dict[str, bytes] = {}
    if options.is_https:
        files = TlsFiles(cert=Path(cert), key=Path(key), cacert=Path(cacert))
        certificates, more = checked(files, datetime.now(UTC), allow_ca_key=allow_ca_key)
        notices += more
    made = plan(text, config, certificates, options, read_yaml_tree)
    steps = [
        Step(
            path=Path(cert_dir) / each,
            before=stored(Path(cert_dir) / each),
            content=content,
            mode=0o600 if each.endswith(".key") else 0o644,
        )
        for each, content in certificates.items()
    ]
    destination = Path(options.config)
    steps.append(Step(path=destination, before=stored(destination), content=made.config.encode()))
    # The manifest is last: its change restarts the scheduler, which then finds the other files.
    steps.append(Step(path=Path(manifest), before=manifest_before, content=made.manifest.encode()))
    if unwritable := [reason for step in steps if step.changes and (reason := why_not_writable(step.path))]:
        raise ConfigureError("; ".join(dict.fromkeys(unwritable)))
    if tas_depl or gas_depl:
        notices.append("-tas-depl and -gas-depl have no effect: deployments tolerate both taints of the control plane")
    return _Planned(plan=made, steps=steps, notices=[*notices, *made.notices])


def _source(manifest: str, template: str | None, options: Options) -> Path | None:
    """The file with the configuration to start from."""
    if template is not None:
        return Path(template)
    if (current := current_config(manifest, read_yaml_tree)) is not None:
        return Path(current)
    # kubeadm writes the manifest anew at each upgrade, without our flag; the configuration is still there.
    return Path(options.config) if Path(options.config).exists() else None


def _existing(path: Path) -> Stored:
    found = stored(path)
    if found is None:
        raise ConfigureError(f"missing: {path}")
    return found


def _text(name: str, file: Stored) -> str:
    try:
        text = file.content.decode()
        read_yaml_tree(text)
    except UnicodeDecodeError as error:
        raise ConfigureError(f"{name}: is no text in UTF-8: {error.reason}") from error
    except ManifestError as error:
        raise ConfigureError(f"{name}: {error}") from error
    return text


def _check_backup_dir(folder: Path, manifest: Path) -> None:
    if not folder.is_dir():
        raise ConfigureError(f"-b {folder}: is no folder")
    if folder.resolve() == manifest.parent.resolve():
        raise click.UsageError(f"-b {folder}: must not be the folder of the manifests: the kubelet reads it")


@click.command("revert", cls=Command, params=[
    click.Option(["--backup"], metavar="DIR", help="The backup. [default: the newest]"),
    backup_option(),
    OriginalOption("dry-run", "dry_run", is_flag=True, help="Print what would change, and write nothing."),
])  # fmt: skip
@_errors_shown
def revert(*, backup: str | None, backup_dir: str, dry_run: bool) -> int:
    """Restore the files of a backup.

    Files that did not exist before are deleted. The backup stays.
    """
    folder = Path(backup) if backup is not None else newest_backup(Path(backup_dir))
    steps = steps_of_backup(folder)
    echo(f"backup: {folder}")
    if dry_run:
        _print_diffs(steps)
        return 0
    pending = [step for step in steps if step.changes]
    write_all(steps)
    for step in pending:
        echo(f"{'deleted' if step.content is None else 'restored'}: {step.path}")
    echo("no changes needed" if not pending else f"restored {counted(len(pending), 'file')}")
    return 0


@click.command("verify", cls=Command, params=[
    *_plan_options(),
    click.Option(["--livez"], metavar="HOST:PORT", default="127.0.0.1:10259", show_default=True,
                 help="Where the scheduler serves /livez; empty: it is not asked."),
])  # fmt: skip
@_errors_shown
def verify(*, livez: str, **given: Any) -> int:
    """Compare the files of this node with what the same flags of `tas configure` would write, and ask the scheduler.

    Exit codes: 0 as configured; 1 cannot be compared; 3 differences, for example after `kubeadm upgrade`.
    """
    planned = _planned(**given)
    differences = [f"{step.path}: {'missing' if step.before is None else 'differs'}" for step in planned.pending]
    differences += [f"{given['manifest']}: has not: {change}" for change in planned.plan.changes]
    if livez and (reason := _why_not_alive(livez)):
        differences.append(f"the scheduler does not answer at {livez}: {reason}")
    for notice in planned.notices:
        echo(f"note: {notice}", err=True)
    for difference in differences:
        echo(difference)
    if not differences:
        echo("as configured")
    return EXIT_DIFFERENCES if differences else 0


def _why_not_alive(address: str) -> str | None:
    # The scheduler's certificate is its own and changes at each start; only its answer counts.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = HTTPSConnection(address, timeout=5, context=context)
    try:
        for path in ("/livez", "/healthz"):
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 404:
                return None if answer.status == 200 else f"code {answer.status}"
    except (OSError, HTTPException) as error:
        return str(error)
    else:
        return "code 404"
    finally:
        connection.close()


@click.command("kubeadm", cls=Command, params=[
    click.Option(["--to"], metavar="DIR", required=True, help="The folder for the files."),
    click.Option(["--kube-version"], metavar="1.N", required=True, help="The version of the cluster."),
    click.Option(["--cluster-configuration", "cluster"], metavar="FILE",
                 help="The ClusterConfiguration of the cluster, which is extended."),
    _template_option(),
    *_folder_options(),
    *extender_options(),
])  # fmt: skip
@_errors_shown
def kubeadm(
    *,
    to: str,
    kube_version: str,
    cluster: str | None,
    template: str | None,
    config_dir: str,
    cert_dir: str,
    extenders: tuple[str, ...],
    **about_extenders: Any,
) -> int:
    """Write the same configuration for kubeadm, so that it survives `kubeadm upgrade`.

    Files below DIR: the configuration of the scheduler, a ClusterConfiguration, and a folder `patches`. Nothing else
    on this machine is read or changed.
    """
    minor = minor_of_version(kube_version)
    chosen = extenders_of(extenders=extenders or (() if template else ("telemetry",)), **about_extenders)
    name = Path(template).name if template is not None else CONFIG_NAME
    options = Options(
        extenders=chosen, config=str(Path(config_dir) / name), certificates=cert_dir.rstrip("/"), minor=minor
    )
    check_paths(options, "/etc/kubernetes/manifests/kube-scheduler.yaml")
    texts = for_kubeadm(_optional(template), _optional(cluster), options, read_yaml_tree)
    folder = Path(to)
    paths = {
        folder / name: texts.config,
        folder / "cluster-configuration.yaml": texts.cluster_configuration,
        folder / "patches" / PATCH: texts.patch,
    }
    write_all([Step(path=path, before=stored(path), content=text.encode()) for path, text in paths.items()])
    for path in paths:
        echo(f"written: {path}")
    echo(f"on each control plane node: {folder / name} is needed as {options.config}", err=True)
    if options.is_https:
        echo(f"on each control plane node: {cert_dir} needs client.crt, client.key and ca.crt", err=True)
    return 0


def _optional(path: str | None) -> str | None:
    return None if path is None else _text(path, _existing(Path(path)))


@click.command("deployment", cls=Command, params=[
    click.Option(["--image"], required=True, metavar="IMAGE",
                 help="Of kube-scheduler, such as registry.k8s.io/kube-scheduler:v1.30.4."),
    click.Option(["--name"], default="telemetry-scheduler", show_default=True, metavar="NAME",
                 help="Of all objects, and the schedulerName of pods that use it."),
    click.Option(["--namespace"], default="kube-system", show_default=True, metavar="NAMESPACE",
                 help="Of the Deployment."),
    click.Option(["--tls-secret"], default="tas-scheduler-certs", show_default=True, metavar="NAME",
                 help="The Secret with client.crt, client.key and ca.crt."),
    click.Option(["--kube-version"], metavar="1.N", help="The scheduler's version. [default: that of its image]"),
    *extender_options(),
])  # fmt: skip
@_errors_shown
def deployment(
    *,
    image: str,
    name: str,
    namespace: str,
    tls_secret: str,
    kube_version: str | None,
    extenders: tuple[str, ...],
    **about_extenders: Any,
) -> int:
    """Print a second scheduler as a Deployment, for a cluster whose control plane others manage.

    The output is for `kubectl apply -f -`. Pods use this scheduler by their `schedulerName`.
    """
    second = SecondScheduler(
        name=name,
        namespace=namespace,
        image=image,
        minor=minor_of_image(image) if kube_version is None else minor_of_version(kube_version),
        secret=tls_secret,
        extenders=extenders_of(extenders=extenders or ("telemetry",), **about_extenders),
    )
    echo(manifests(second), nl=False)
    return 0


configure.add_command(revert)
configure.add_command(verify)
configure.add_command(status)
configure.add_command(kubeadm)
configure.add_command(deployment)
