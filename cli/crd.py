"""`tas crd`: prints the CustomResourceDefinition of TASPolicy."""

import click

from cli.output import echo
from workers.kubernetes.crd import crd_manifest


@click.command("crd")
def crd() -> None:
    """Print the CRD of TASPolicy: tas crd | kubectl apply -f -."""
    echo(crd_manifest(), nl=False)
