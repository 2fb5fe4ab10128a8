"""`tas configure status`: the schedulers of all control plane nodes."""

from pathlib import Path

import click

from cli.as_json import JSON_OPTION
from cli.configure.errors import errors_shown
from cli.configure.flags import Command


@click.command(
    "status",
    cls=Command,
    params=[click.Option(["--kubeconfig"], metavar="FILE", required=True, help="The cluster."), JSON_OPTION],
)
@errors_shown
def status(*, kubeconfig: str, as_json: bool) -> int:
    """Show whether the scheduler of each control plane node is configured.

    Reads nodes and pods from the API server: the kubelet shows each static pod there with its annotations.

    Exit codes: 0 all are configured, ready and alike; 1 the API server does not answer; 3 differences.
    """
    from cli.configure.schedulers import show_status
    from cli.loop import run_to_end

    return run_to_end(show_status(Path(kubeconfig), as_json=as_json))
