"""`tas pause`, `tas resume` and `tas reset`: stop all labels, and let them change again."""

import getpass
import os
import socket
import time

import click

from bus.buckets import PAUSED
from bus.connection import Bus
from bus.kinds import BREAKER_RECORDS, PAUSE_RECORDS
from bus.trying import STALE, Tries
from cli.options import settings_command
from cli.output import echo
from cli.queries.query import ask
from tas.enforcing import breaker
from tas.errors import InvalidInputError, shortened
from tas.events.selection import parse_policy_name
from tas.values.names import is_subdomain
from tas.verdict.freeze import ALL, Breaker, Pause
from workers.settings import Settings

TRIES = Tries(STALE, times=10)
"""A record is read and written again if `labels` has changed it meanwhile or the read was too slow."""


@settings_command("pause", params=[click.Option(["--reason"], default="", help="Why, for others who look.")])
def pause(settings: Settings, *, reason: str) -> int:
    """Stop setting and removing labels.

    All labels of nodes stay as they are, for all policies, until `tas resume`. A patch that is on its way may still
    arrive within 2 seconds. Filter, prioritize and preempt continue.
    """
    return ask(settings, lambda bus, _: TRIES.of(lambda: _pause(bus, reason)))


@settings_command("resume")
def resume(settings: Settings) -> int:
    """Go on setting and removing labels, after a pause.

    The labels then follow the present verdicts: a violation that began and ended during the pause has no effect.
    Tripped breakers stay tripped.
    """
    return ask(settings, lambda bus, _: TRIES.of(lambda: _resume(bus)))


@settings_command(
    "reset",
    params=[
        click.Argument(["policy"], metavar="[NAMESPACE/]NAME", required=False),
        click.Option(["--all", "over_all"], is_flag=True, help="The breaker that all policies have in common."),
    ],
)
def reset(settings: Settings, *, policy: str | None, over_all: bool) -> int:
    """Reset a tripped breaker: of one policy, or the common one.

    The labels then follow the present verdicts. If these still require too many labels, the breaker trips again. Then
    correct the metric, or raise the limits of the policy. Policies of one name share a breaker, as they share labels.
    """
    if (policy is None) != over_all:
        raise click.UsageError("give a policy, or --all")
    try:
        key = ALL if policy is None else parse_policy_name(policy)[1]
    except InvalidInputError:
        key = ""
    if policy is not None and not is_subdomain(key):
        raise click.BadParameter(f"{shortened(policy)} is not the name of a policy")
    return ask(settings, lambda bus, _: TRIES.of(lambda: _reset(bus, key)))


async def _pause(bus: Bus, reason: str) -> int:
    read_at = time.monotonic()
    entry = await PAUSE_RECORDS.get(bus, PAUSED)
    if (stored := entry.readable()) is not None:
        echo(f"already {stored}")
        return 0
    pause = Pause(by=f"{user_name()}@{socket.gethostname()}", since=time.time(), reason=reason)
    await PAUSE_RECORDS.put(bus, PAUSED, pause, revision=entry.revision, read_at=read_at)
    echo("paused: no label is set or removed until: tas resume")
    return 0


def user_name() -> str:
    """The user for others who look; a container may run as a user without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


async def _resume(bus: Bus) -> int:
    read_at = time.monotonic()
    entry = await PAUSE_RECORDS.get(bus, PAUSED)
    if not entry.present:
        echo("not paused")
        return 0
    await PAUSE_RECORDS.delete(bus, PAUSED, revision=entry.revision, read_at=read_at)
    echo("resumed")
    return 0


async def _reset(bus: Bus, key: str) -> int:
    read_at = time.monotonic()
    entry = await BREAKER_RECORDS.get(bus, key)
    record = entry.read()
    what = "the breaker of all policies together" if key == ALL else f"the breaker of {key}"
    if record is None or (isinstance(record, Breaker) and record.trip is None):
        echo(f"{what} has not tripped")
        return 1
    # An unreadable record is replaced by an empty one: labels adds the nodes that it finds labelled.
    after = breaker.reset(record) if isinstance(record, Breaker) else Breaker()
    await BREAKER_RECORDS.put(bus, key, after, revision=entry.revision, read_at=read_at)
    echo(f"{what} is reset")
    return 0
