"""`tas bus`: the address of the bus, and who may do what on it."""

import click

from bus.errors import AccessError
from cli.discovery import bus_access, bus_url
from cli.options import settings_command
from cli.output import echo
from cli.rights.check import check
from cli.rights.init import init, revoke, secrets, user
from cli.settings import Settings
from tas.errors import without_password
from workers.process.errors import StartError


@click.group("bus", no_args_is_help=True)
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


for _command in (url, init, user, revoke, secrets, check):
    bus.add_command(_command)
