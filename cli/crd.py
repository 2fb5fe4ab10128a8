"""`tas crd`: prints the CustomResourceDefinition of TASPolicy."""

from importlib.resources import files

import click

from cli.output import echo
from workers.kubernetes.resources import POLICIES


def crd_manifest() -> str:
    """The manifest, as YAML for `kubectl apply -f -`."""
    return files("workers.kubernetes").joinpath(f"{POLICIES}.yaml").read_text(encoding="utf-8")


@click.command("crd")
def crd() -> None:
    """Print the CRD of TASPolicy: tas crd | kubectl apply -f -."""
    echo(crd_manifest(), nl=False)
