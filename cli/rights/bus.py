"""`tas bus`: the address of the bus, and who may do what on it."""

import click

from bus.errors import AccessError
from cli.groups import LazyCommand, LazyGroup
from cli.options import settings_command
from cli.output import echo
from tas.errors import without_password
from workers.discovery import bus_access, bus_url
from workers.process.errors import StartError
from workers.settings import Settings

COMMANDS = {
    "check": LazyCommand(
        "cli.rights.check", "Compare a running bus with the users in DIR, and with the streams that this version needs."
    ),
    "init": LazyCommand("cli.rights.init", "Create the keys of a closed bus, and credentials for each process."),
    "mend": LazyCommand(
        "cli.rights.mend", "Give existing streams the settings of new ones, and remove consumers that nobody uses."
    ),
    "revoke": LazyCommand("cli.rights.revoke", "Revoke all credentials that a user has had so far."),
    "secrets": LazyCommand(
        "cli.rights.init", "Print Kubernetes Secrets with the credentials of users, for kubectl apply -f -."
    ),
    "url": LazyCommand("cli.rights.bus", "Print the address of the bus with its token, for other programs."),
    "user": LazyCommand("cli.rights.init", "Create credentials for one more user, or new ones for a user."),
}
"""Imported when they are called: the address needs neither keys nor a connection."""


@click.group("bus", cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def bus() -> None:
    """The address of the bus, and who may do what on it."""


@settings_command("url", settings_as="bus url")
def url(settings: Settings) -> int:
    """Print the address of the bus with its token, for other programs.

    `export TAS_BUS=$(tas bus url)` is what they need for the embedded server of this user, whose token is in a file.
    """
    try:
        address = bus_url(settings)
        token = bus_access(settings, address).read().token.decode().strip()
    except (AccessError, StartError) as error:
        raise click.ClickException(str(error)) from error
    scheme, separator, rest = address.partition("://")
    is_given = without_password(address) != address
    echo(f"{scheme}{separator}{token}@{rest}" if token and not is_given else address)
    return 0
