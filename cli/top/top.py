"""`tas top`: the live view of an installation that is already running."""

import click

from cli.groups import importing
from cli.options import settings_command
from cli.queries.query import ask
from workers.settings import Settings


@settings_command(
    "top",
    params=[
        click.Option(
            ["--node", "pattern"],
            metavar="PATTERN",
            default="*",
            help="Only nodes whose names match, such as 'gpu-*'. [default: all]",
        )
    ],
)
def top(settings: Settings, *, pattern: str) -> int:
    """Show the live view of a running installation.

    Shows nodes, policies, labels, pods and the last answers of the extender, until Ctrl-C. Nodes that violate most
    policies come first. Nothing is changed.
    """
    with importing():  # here: the help needs neither rich nor the view
        from cli.top.running import show_running

    return ask(settings, lambda bus, url: show_running(bus, url, settings, pattern=pattern))
