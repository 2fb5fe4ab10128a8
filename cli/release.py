"""`tas release`: the last known values of a node count no more."""

import time
from datetime import UTC, datetime
from socket import gethostname

import click

from bus.connection import Bus
from bus.kinds import NODE_RELEASES
from bus.records.nodes import NodeRelease
from bus.trying import STALE, Tries
from cli.options import settings_command
from cli.output import echo
from cli.pause import user_name
from cli.queries.query import ask, time_of_bus
from tas.errors import shortened
from tas.values.names import is_subdomain
from workers.following.node_samples import NodeSamplesReads
from workers.settings import Settings

TRIES = Tries(STALE, times=10)


@settings_command("release", params=[click.Argument(["node"], metavar="NODE")])
def release(settings: Settings, *, node: str) -> int:
    """Stop rejecting a node by its last known values.

    With `onStale: keep`, the default of dontschedule, the last known value of a node counts for up to an hour when
    there is no fresh one. If you have retired the metric on purpose, release the node: values that were measured before
    this moment no longer count, and pods may go to the node. A new value that violates a rule rejects the node again.
    This moment is that of the bus, whatever the clock of this machine says.

    Exit codes: 0 released; 1 the bus has nothing of such a node, or does not answer; 2 usage.
    """
    if not is_subdomain(node):
        raise click.BadParameter(f"{shortened(node)} is not the name of a node")
    return ask(settings, lambda bus, _: TRIES.of(lambda: release_node(bus, node)))


async def release_node(bus: Bus, node: str) -> int:
    """Releases a node of which the bus has something; returns the exit code. Raises BusError."""
    known = await NodeSamplesReads(bus).read(node)
    if known.is_complete and not (known.readable or known.facts.present):
        echo(f"node {node}: the bus has neither samples nor labels of this node (tas get nodes)", err=True)
        return 1
    now = await time_of_bus(bus)
    read_at = time.monotonic()
    entry = await NODE_RELEASES.get(bus, node)
    record = NodeRelease(time=datetime.fromtimestamp(now, UTC), by=f"{user_name()}@{gethostname()}")
    await NODE_RELEASES.put(bus, node, record, revision=entry.revision, read_at=read_at)
    echo(f"{node} is released: no value counts that was measured before now and is not fresh")
    return 0
