"""`tas bus revoke`: credentials that do not count any more, and no consumer of their user."""

import time
from functools import partial
from pathlib import Path

import click

from bus.errors import BusError
from cli.configure.files import FilesError, Step, stored
from cli.loop import run_to_end
from cli.options import settings_command
from cli.output import echo
from cli.rights.folder import AUTH, OperatorFolder, existing, write
from cli.rights.mend import as_mender, remove_left
from tas.errors import InvalidInputError
from workers.discovery import bus_access, bus_url
from workers.process.errors import StartError
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import configure_logging
from workers.settings import Settings


@settings_command(
    "revoke",
    settings_as="bus revoke",
    params=[
        click.Argument(["directory"], metavar="DIR", type=click.Path(path_type=Path, file_okay=False)),
        click.Argument(["name"], metavar="NAME"),
    ],
)
def revoke(settings: Settings, *, directory: Path, name: str) -> int:
    """Revoke all credentials that a user has had so far.

    Also those that were replaced. This takes effect when every nats-server has read the new auth.conf: nats-server
    --signal reload. Removes the consumers of the user, if the bus answers, and of those that nobody uses all but the
    positions of sinks and subscriptions; for those that the user makes until the reload: tas bus mend DIR. Then create
    new credentials: tas bus user DIR ROLE NAME.
    """
    configure_logging(LogFormat.CONSOLE, LogLevel.ERROR)
    try:
        _revoke(existing(directory), name)
    except (FilesError, InvalidInputError) as error:
        raise click.ClickException(str(error)) from error
    try:
        run_to_end(_remove(settings, OperatorFolder.open(directory)))
    except (BusError, FilesError, StartError) as error:
        echo(f"the consumers of {name} are still there: {error}", err=True)
    echo(
        f"Until each nats-server has read {directory / AUTH} (nats-server --signal reload), the credentials still "
        f"count. Then tas bus mend {directory} removes the consumers that {name} makes until then"
    )
    return 0


def _revoke(folder: OperatorFolder, name: str) -> None:
    issued = folder.issued.get(name)
    if issued is None:
        raise InvalidInputError("user", "NAME", name, f"is no user of {folder.path}")
    now, file = time.time(), folder.user_file(name)
    revoked = {**folder.revoked, **dict.fromkeys(issued, int(now))}
    write([*folder.steps(now=now, revoked=revoked), Step(path=file, before=stored(file), content=None)])


async def _remove(settings: Settings, folder: OperatorFolder) -> int:
    address = bus_url(settings)
    # A sink that does not run now would lose its events: only `tas bus mend`, which can say so before, removes these.
    question = partial(remove_left, folder=folder, with_positions=False)
    return await as_mender(address, bus_access(settings, address), folder, question)
