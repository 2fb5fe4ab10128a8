"""`tas crd`: prints the CustomResourceDefinition of TASPolicy."""

import click

from workers.kubernetes.crd import crd_manifest


@click.command("crd")
def crd() -> None:
    """Print the CRD of TASPolicy: tas crd | kubectl apply -f -."""
    click.echo(crd_manifest(), nl=False)
