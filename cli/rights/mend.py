"""`tas bus mend`: the settings of new streams for those of before, and no consumer that nobody uses."""

import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from bus.buckets import ALL, LEASES, Bucket
from bus.connection import Bus
from bus.errors import BusError, RefusedError
from bus.mending import Consumer, change, changes_of, consumers_of, remove, remove_leases, resize
from bus.rights.access import Access
from cli.configure.files import FilesError
from cli.loop import run_to_end
from cli.options import settings_command
from cli.output import echo
from cli.rights.connecting import asked
from cli.rights.folder import OperatorFolder, existing
from tas.diagnosis.finding import some
from tas.errors import printable
from tas.values.nouns import counted
from workers.discovery import bus_access, bus_url
from workers.process.errors import StartError
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import configure_logging
from workers.settings import Settings

MENDER = "tas-mend"
"""The user that mends. Its credentials are deleted at once."""

MEND_SECONDS = 300.0
"""How long these credentials count."""

MANY = 300
"""From so many consumers of one stream on, those that stay are named."""


class _Room(click.ParamType[tuple[Bucket, int]]):
    """A bucket with a number of bytes."""

    name = "room"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Bucket, int]:
        found = re.fullmatch(r"([A-Z]+)=([1-9][0-9]{0,5})(Mi|Gi)", value)
        bucket = next((of for of in ALL if isinstance(of, Bucket) and found and of.name == found[1]), None)
        if found is None or bucket is None:
            names = ", ".join(of.name for of in ALL if isinstance(of, Bucket))
            self.fail(f"{value!r}: must be BUCKET=SIZE, as NODES=608Mi; the buckets are {names}", param, ctx)
        return bucket, int(found[2]) << (20 if found[3] == "Mi" else 30)


@settings_command(
    "mend",
    settings_as="bus mend",
    params=[
        click.Argument(
            ["directory"], metavar="[DIR]", type=click.Path(path_type=Path, file_okay=False), required=False
        ),
        click.Option(
            ["--room"], type=_Room(), multiple=True, metavar="BUCKET=SIZE",
            help="How much a bucket may have, as NODES=608Mi; may be given several times.",
        ),
        click.Option(["--dry-run"], is_flag=True, help="Print what would change, and change nothing."),
    ],
)  # fmt: skip
def mend(settings: Settings, *, directory: Path | None, room: tuple[tuple[Bucket, int], ...], dry_run: bool) -> int:
    """Give existing streams the settings of new ones, and remove consumers that nobody uses.

    Also removes leases that never expire, by which a process could fill their bucket. Settings: those that keep one
    user from harming others. No message is deleted, except dead letters beyond the last 100 of a subscription.
    Consumers: only with DIR, the folder of the operator of a closed bus. Those of revoked users are removed, and
    those that last, are of no user in DIR, and that nobody waits for now. A subscription that does not run, of a
    program without a user in DIR, is such a one, and so is a sink while notify does not run: look at --dry-run
    first. With DIR a user does this whose credentials nothing keeps; otherwise, on an open bus, who calls.
    """
    configure_logging(LogFormat.CONSOLE, LogLevel.ERROR)
    try:
        folder = None if directory is None else existing(directory)
        return run_to_end(_mended(settings, folder, room, dry_run=dry_run))
    except (BusError, FilesError, StartError) as error:
        raise click.ClickException(str(error)) from error


async def _mended(
    settings: Settings, folder: OperatorFolder | None, room: Sequence[tuple[Bucket, int]], *, dry_run: bool
) -> int:
    address = bus_url(settings)
    access = bus_access(settings, address)
    question = partial(_mend, folder=folder, room=room, dry_run=dry_run)
    return await (asked(address, access, question) if folder is None else as_mender(address, access, folder, question))


async def as_mender(
    address: str, access: Access, folder: OperatorFolder, question: Callable[[Bus], Awaitable[int]]
) -> int:
    """The answer to `question` on a connection that may change streams and remove consumers. Raises BusError."""
    with tempfile.TemporaryDirectory() as private:
        file = Path(private) / f"{MENDER}.creds"
        file.touch(0o600)
        now = time.time()
        file.write_text(folder.keys.mender(MENDER, now=now, expires=now + MEND_SECONDS))
        return await asked(address, replace(access, find_token=None, token=None, credentials=file), question)


async def _mend(bus: Bus, *, folder: OperatorFolder | None, room: Sequence[tuple[Bucket, int]], dry_run: bool) -> int:
    would = "would be " if dry_run else ""
    if folder is not None:
        await remove_left(bus, folder, dry_run=dry_run)
    refused = 0
    for of, fields in (await changes_of(bus)).items():
        try:
            if not dry_run:
                await change(bus, of)
        except RefusedError as error:
            echo(f"{of.stream}: {error}", err=True)
            refused = 1
            continue
        text = ", ".join(f"{field} {before!r} to {after!r}" for field, (before, after) in fields.items())
        echo(printable(f"{of.stream}: {would}changed: {text}"))
    if count := await remove_leases(bus, dry_run=dry_run):
        number = "" if dry_run else f"{count} "
        echo(f"{LEASES.stream}: {would}removed: {number}leases that never expire, and that nobody writes")
    for bucket, size in room:
        try:
            await resize(bus, bucket, size, dry_run=dry_run)
        except RefusedError as error:
            echo(f"{bucket.stream}: {error}", err=True)
            refused = 1
        else:
            echo(f"{bucket.stream}: {would}changed: max_bytes to {size}")
    return refused


async def remove_left(bus: Bus, folder: OperatorFolder, *, dry_run: bool = False, with_positions: bool = True) -> int:
    """Removes what is left of revoked users and of nobody, and prints which. Returns 0. Raises BusError.

    Without `with_positions` those of nobody that may be positions of sinks and subscriptions stay.
    """
    gone = {name for name, keys in folder.issued.items() if set(keys) <= folder.revoked.keys()}
    users = {*folder.issued, *(each.claims.name for each in folder.users())} - gone
    found = await consumers_of(bus)
    left = [each for each in found if each.is_left(users, gone, with_positions=with_positions)]
    if not dry_run:
        await remove(bus, left)
    would = "would be " if dry_run else ""
    for stream, those in _by_stream(left).items():
        echo(printable(f"{stream}: {counted(len(those), 'consumer')} {would}removed: {_named(those)}"))
    for stream, those in _by_stream(set(found) - set(left)).items():
        if (count := len(those)) >= MANY:
            echo(printable(f"{stream}: {count} consumers stay: {_named(those)}"))
    return 0


def _by_stream(consumers: Iterable[Consumer]) -> dict[str, list[Consumer]]:
    found: dict[str, list[Consumer]] = {}
    for each in sorted(consumers):
        found.setdefault(each.stream, []).append(each)
    return found


def _named(consumers: Iterable[Consumer]) -> str:
    """The first ones, and each one of a sink: whose position is lost decides whether somebody agrees."""
    sinks = [each.title for each in consumers if each.holder]
    others = some(each.name for each in consumers if not each.holder)
    return "; ".join(filter(None, (others, ", ".join(sinks))))
