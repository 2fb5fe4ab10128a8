"""`tas configure kubeadm`: the configuration as files for kubeadm."""

from pathlib import Path
from typing import Any

import click

from cli.configure.errors import errors_shown
from cli.configure.files import Step, stored, write_all
from cli.configure.flags import Command, extender_options, extenders_of
from cli.configure.planning import (
    CONFIG_NAME,
    existing,
    folder_options,
    mode_of_copy,
    plugin_option,
    template_of,
    template_option,
    text_of,
)
from cli.output import echo
from tas.configuring.kubeadm import PATCH
from tas.configuring.plan import Options, check_paths, for_kubeadm
from tas.configuring.versions import minor_of_version
from workers.process.manifests import read_yaml_tree


@click.command("kubeadm", cls=Command, params=[
    click.Option(["--to"], metavar="DIR", required=True, help="The folder for the files."),
    click.Option(["--kube-version"], metavar="1.N", required=True, help="The version of the cluster."),
    click.Option(["--cluster-configuration", "cluster"], metavar="FILE",
                 help="The ClusterConfiguration of the cluster, which is extended."),
    template_option(),
    *folder_options(),
    plugin_option(),
    *extender_options(),
])  # fmt: skip
@errors_shown
def kubeadm(
    *,
    to: str,
    kube_version: str,
    cluster: str | None,
    template: str | None,
    config_dir: str,
    cert_dir: str,
    extenders: tuple[str, ...],
    allowed_plugins: tuple[str, ...],
    **about_extenders: Any,
) -> int:
    """Write the same configuration for kubeadm, so that it survives `kubeadm upgrade`.

    Files below DIR: the configuration of the scheduler, a ClusterConfiguration, the same with the folder `patches` for
    `kubeadm init phase`, and this folder. Nothing else on this machine is read or changed.
    """
    minor = minor_of_version(kube_version)
    chosen = extenders_of(extenders=extenders or (() if template else ("telemetry",)), **about_extenders)
    given = None if template is None else template_of(Path(template))
    name = CONFIG_NAME if given is None else given.name
    options = Options(
        extenders=chosen,
        config=str(Path(config_dir) / name),
        certificates=cert_dir.rstrip("/"),
        template=None if given is None else given.text,
        minor=minor,
        allowed=frozenset(allowed_plugins),
    )
    check_paths(options, "/etc/kubernetes/manifests/kube-scheduler.yaml")
    folder = Path(to).absolute()
    before = None if cluster is None else text_of(Path(cluster))
    texts = for_kubeadm(before, str(folder / "patches"), options, read_yaml_tree)
    paths = {
        folder / name: texts.config,
        folder / "cluster-configuration.yaml": texts.cluster_configuration,
        folder / "patches" / PATCH: texts.patch,
    }
    if texts.init_phase is not None:
        paths[folder / "init-phase.yaml"] = texts.init_phase
    modes = {folder / name: mode_of_copy([existing(Path(template))] if template else [])}
    write_all(
        [
            Step(path=path, before=stored(path), content=text.encode(), mode=modes.get(path, 0o644))
            for path, text in paths.items()
        ]
    )
    for notice in (*(() if given is None else given.notices), *texts.notices):
        echo(f"note: {notice}", err=True)
    for path in paths:
        echo(f"written: {path}")
    echo(f"on each control plane node: {folder} is needed as {folder}", err=True)
    echo(f"on each control plane node: {folder / name} is needed as {options.config}", err=True)
    if texts.certificates:
        echo(f"on each control plane node: {cert_dir} needs client.crt, client.key and ca.crt", err=True)
    return 0
