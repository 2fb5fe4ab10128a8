"""What only the monitoring ports of nats-server know: whether it syncs each write, and its version."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from bus.servers import Varz
from cli.doctor.bus_facts import BusRead
from cli.doctor.probes import REQUEST_SECONDS
from cli.doctor.requests import requested
from tas.diagnosis.bus import MONITOR_MEND, BusFacts, oldest, version_of
from tas.diagnosis.finding import Missing
from tas.errors import without_password
from tas.values.nouns import counted
from workers.http.body import read_json

MONITOR_PORT = 8222
MAX_MONITOR_BYTES = 1 << 20


class _Monitored(NamedTuple):
    """What monitoring ports say: `sync` of all servers, and the oldest of their versions; empty if none answers."""

    sync: bool | Missing
    version: str = ""


async def monitored(read: BusRead, monitors: Sequence[str]) -> BusRead:
    """`read` with what the monitoring ports of the servers say; an embedded server has none.

    `monitors` are their URLs; empty: such a port of each host.
    """
    facts = read.bus
    if isinstance(facts, Missing) or facts.embedded:
        return read
    found = await _monitors(facts, monitors)
    versions = [version for version in (facts.version, found.version) if version]
    return read._replace(bus=msgspec.structs.replace(facts, sync=found.sync, version=oldest(versions)))


async def _monitors(facts: BusFacts, monitors: Sequence[str]) -> _Monitored:
    """Whether each server syncs each write."""
    hosts = dict.fromkeys(urlsplit(each).hostname for each in facts.address.split(","))
    urls = monitors or [f"http://{host}:{MONITOR_PORT}" for host in hosts]
    answers = await asyncio.gather(*(_monitored(url, facts, is_guess=not monitors) for url in urls))
    read = [each for each in answers if not isinstance(each, Missing)]
    version = oldest(each.version for each in read if version_of(each.version) is not None)
    if not all(each.syncs for each in read):
        return _Monitored(sync=False, version=version)
    if (missing := next((each for each in answers if isinstance(each, Missing)), None)) is not None:
        return _Monitored(sync=missing, version=version)
    servers = len({each.server_id for each in read})
    if servers < (size := max(each.jetstream.meta.cluster_size for each in read)):
        all_of = f"of {size} servers of the cluster {facts.cluster}"
        reason = counted(servers, f"{all_of} was asked", f"{all_of} were asked") + ", and each may be set otherwise"
        return _Monitored(sync=Missing(reason, MONITOR_MEND), version=version)
    return _Monitored(sync=True, version=version)


async def _monitored(url: str, facts: BusFacts, *, is_guess: bool) -> Varz | Missing:
    """What a monitoring port says. A port that was not given may be that of a server of somebody else."""
    shown = without_password(url)
    varz = read_json(f"{url.rstrip('/')}/varz", Varz, seconds=REQUEST_SECONDS, max_bytes=MAX_MONITOR_BYTES)
    answer: Varz | Missing = await requested(varz)
    if isinstance(answer, Missing):
        reason = f"the monitoring port does not answer at {shown}: {without_password(answer.reason)}"
        return Missing(reason, MONITOR_MEND)
    is_ours = answer.server_id == facts.server or (facts.cluster and answer.cluster.name == facts.cluster)
    if is_guess and not is_ours:
        return Missing(f"the monitoring port at {shown} is that of another server", MONITOR_MEND)
    if answer.jetstream.config is None:
        return Missing(f"{shown}/varz has no configuration of JetStream", MONITOR_MEND)
    return answer
