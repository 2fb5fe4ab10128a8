"""What the commands share that ask something once: a connection, values, and how they are shown."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from bus.connection import Bus
from bus.errors import (
    NO_JETSTREAM,
    STREAM_NOT_FOUND,
    BusError,
    MisconfiguredError,
    NobodyListensError,
    UnavailableError,
)
from workers.cli.settings import Settings, flag, variable
from workers.cli.wiring import bus_url, run_to_end
from workers.logs import LogFormat, LogLevel, configure_logging
from workers.runtime import WorkerError

CONNECT_SECONDS = 3.0
"""How long a command looks for the bus."""

JSON_OPTION = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")


def ask(settings: Settings, question: Callable[[Bus, str], Awaitable[int]]) -> int:
    """Connects, asks, and returns the exit code. What goes wrong on the way is one line.

    `question` gets the connection and the address it leads to.
    """
    configure_logging(LogFormat.CONSOLE, LogLevel.ERROR)
    try:
        return run_to_end(_asked(settings, question))
    except (BusError, WorkerError) as error:
        raise click.ClickException(str(error)) from error


async def _asked(settings: Settings, question: Callable[[Bus, str], Awaitable[int]]) -> int:
    async with _connected(bus_url(settings)) as (bus, url):
        try:
            return await question(bus, url)
        except UnavailableError as error:
            if isinstance(error, NobodyListensError) or error.code in (STREAM_NOT_FOUND, *NO_JETSTREAM):
                raise click.ClickException(f"{await _what_is_missing(bus)} ({error})") from error
            raise


async def _what_is_missing(bus: Bus) -> str:
    """What to do about a server on which nothing of ours stands: perhaps it is somebody else's."""
    elsewhere = f"name the bus of yours with {flag('bus')} or {variable('bus')}"
    try:
        await bus.api("INFO")
    except BusError as error:
        if isinstance(error, NobodyListensError) or error.code in NO_JETSTREAM:
            return f"the nats-server at {bus.address} has no JetStream: start it with --jetstream, or {elsewhere}"
    return f"nothing of TAS is on the bus at {bus.address}: start `tas run all --bus {bus.address}`, or {elsewhere}"


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[tuple[Bus, str]]:
    """A connection that is up. It creates nothing: what a client makes here would have this client's settings."""
    try:
        async with Bus.connect(url, name="tas-cli", streams=()) as bus:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await bus.wait_connected()
            except TimeoutError:
                raise click.ClickException(
                    f"no bus answers at {bus.address} within {CONNECT_SECONDS:g} s: {bus.trouble}. Start one "
                    f"(tas run all), or name yours with {flag('bus')} or {variable('bus')}"
                ) from None
            yield bus, bus.address
    except MisconfiguredError as error:
        raise click.ClickException(f"{error} ({flag('bus')}, {variable('bus')})") from error


def print_json(value: Any) -> None:
    """`value` for a program to read."""
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def print_table(table: Table, *, empty: str = "") -> None:
    """`table` for a person; into a pipe as wide as it is, so that nothing is cut.

    `empty` says what it means that there is nothing to show, beside the table and not in it.
    """
    if empty and not table.rows:
        click.echo(empty, err=True)
    terminal = sys.stdout.isatty()
    Console(width=None if terminal else 10_000, markup=False, emoji=False, highlight=False).print(table)


def new_table(*columns: str) -> Table:
    """A table without lines, which is easy to cut by other programs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def age_text(seconds: float) -> str:
    """An age as a person reads it: `0.4s`, `12s`, `3m20s`, `2h05m`."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
