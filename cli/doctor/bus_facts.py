"""Facts from the bus."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from bus.buckets import BREAKERS, LEASES, NODES, PAUSED, POLICIES, REFUSALS, SOURCES, SYNCED, WORKERS
from bus.connection import Bus
from bus.errors import BusError
from bus.inspection import inspect
from bus.kinds import PAUSE_RECORDS, POLICY_RECORDS, REFUSED_LABELS, REFUSED_MARKS, synced_of
from bus.trying import Tries, is_late
from cli.doctor.probes import probed
from cli.queries.query import ask, readable, stored_breakers, stored_nodes, stored_sources
from tas.diagnosis.bus import BusFacts
from tas.diagnosis.clocks import Offset, time_there
from tas.diagnosis.finding import Missing, some
from tas.diagnosis.metrics import MetricFacts
from tas.diagnosis.policies import PolicyFacts, StoredPolicy
from tas.diagnosis.processes import ProcessFacts
from tas.policy.directory import FileProblems
from tas.policy.policy import PolicyKey
from tas.processes.process import NotReady, late_metrics, not_ready, refused_samples
from tas.samples.sample import NodeSamples
from tas.sources.state import SourceState
from tas.values.backoff import Backoff
from tas.verdict.freeze import UNREADABLE_PAUSE, Breaker, Pause
from tas.verdict.refused import RefusedLabel
from workers.discovery import is_simulated, running_bus
from workers.following.processes import StoredProcesses, stored_processes
from workers.settings import Settings, flag

TRIES = Tries(is_late, wait=Backoff(first=0.1, longest=0.1))
"""Within the time of a probe."""

STORED_IN = frozenset(bucket.stream for bucket in (BREAKERS, LEASES, NODES, POLICIES, REFUSALS, SOURCES))
"""The streams of what `Stored` has."""

MIRROR_SECONDS = 5.0
"""How long a change of the policies may take from the API server to the bus."""

MIRROR_POLL_SECONDS = 0.25


class Stored(NamedTuple):
    """What is stored on the bus.

    Attributes:
        samples: By node.
        nodes: The labels of each node of the list of nodes; without a cluster, of each node with samples.
        held: The sources that a replica of `collect` has.
        cluster: Whether the nodes are those of a Kubernetes API; None: nobody has listed nodes.
        at: When the samples were read, by our clock: what is read later, as the lists of a large cluster, takes time.
        breakers: By name of policies, or `ALL`.
        leases: By name, who holds it.
        refused: The labels and marks that the API server refuses, by name of policies.
        file_problems: Those of the files of policies.
    """

    policies: list[StoredPolicy]
    samples: Mapping[str, NodeSamples]
    nodes: Mapping[str, Mapping[str, str] | None]
    sources: Mapping[str, SourceState]
    held: frozenset[str]
    cluster: bool | None
    at: float
    breakers: Mapping[str, Breaker] = {}
    pause: Pause | None = None
    leases: Mapping[str, str] = {}
    refused: Mapping[str, Sequence[RefusedLabel]] = {}
    file_problems: FileProblems = FileProblems()


class BusRead(NamedTuple):
    """All facts from the bus, or the same reason for each."""

    bus: BusFacts | Missing
    clock: Offset | Missing
    stored: Stored | Missing
    processes: StoredProcesses | Missing


def no_bus(reason: str) -> BusRead:
    """What is known of a bus that does not answer."""
    mend = f"start one, or give its address with {flag('bus')} nats://HOST:4222, with a password if it needs one"
    none = Missing("the bus does not answer")
    return BusRead(Missing(reason, mend, "tas run all --bus embedded --kubeconfig FILE"), none, none, none)


class _Then(Protocol):
    async def __call__(self, read: BusRead, bus: Bus | None, /, *, simulated: bool) -> int: ...


def ask_read(settings: Settings, then: _Then) -> int:
    """As `ask`, with what was read of the bus, also if it does not answer. `simulated`: it is that of `tas up`."""

    async def known(bus: Bus, url: str) -> int:
        return await then(await read_bus(bus, embedded=url == running_bus()), bus, simulated=is_simulated(url))

    async def unknown(reason: str) -> int:
        return await then(no_bus(reason), None, simulated=False)

    return ask(settings, known, without_bus=unknown)


async def read_bus(bus: Bus, *, embedded: bool) -> BusRead:
    """Reads the bus. What only a monitoring port knows is added by `cli.doctor.monitors`."""
    read = await inspected(bus)
    if isinstance(read, Missing):
        return BusRead(read, read, read, read)
    facts, clock = read
    lost = STORED_IN & {*facts.silent, *facts.stuck}
    stored = Missing(f"no server answers for {some(lost)}") if lost else await probed(TRIES.of(partial(_stored, bus)))
    facts = msgspec.structs.replace(facts, embedded=embedded)
    return BusRead(facts, clock, stored, await _processes(bus, facts, clock))


async def _processes(bus: Bus, facts: BusFacts, clock: Offset | Missing) -> StoredProcesses | Missing:
    if WORKERS.stream in {*facts.silent, *facts.stuck}:
        return Missing(f"no server answers for {WORKERS.stream}")
    if WORKERS.stream in facts.absent:
        mend = "on a closed bus: tas bus init, the new auth.conf for the servers, and tas run keeper; an open bus has "
        mend += "it as soon as a process of this version runs"
        return Missing("the bus has no WORKERS, or this user may not read it: which processes run is not known", mend)
    # Without the clock of the server, by its newest entry: never by the clock of this machine.
    return await probed(
        TRIES.of(lambda: stored_processes(bus, now=clock.ahead + time.time() if isinstance(clock, Offset) else None))
    )


def policy_facts(
    read: BusRead,
    *,
    in_api: Collection[PolicyKey] | Missing | None,
    has_api: bool,
    changing: Collection[PolicyKey] = frozenset(),
    strategy_fields: Collection[str] | Missing,
) -> PolicyFacts:
    """What is known of policies; the others as in `PolicyFacts`."""
    stored = read.stored
    if isinstance(stored, Missing):
        return PolicyFacts(
            stored=stored, in_api=in_api, has_api=has_api, changing=changing, strategy_fields=strategy_fields
        )
    return PolicyFacts(
        stored=stored.policies,
        in_api=in_api,
        has_api=has_api,
        changing=changing,
        strategy_fields=strategy_fields,
        breakers=stored.breakers,
        pause=stored.pause,
        refused=stored.refused,
        file_problems=stored.file_problems,
        not_ready=_not_ready(read.processes, stored),
    )


def _not_ready(processes: StoredProcesses | Missing, stored: Stored) -> Mapping[str, NotReady] | Missing:
    if isinstance(processes, Missing):
        return processes
    found = not_ready(processes.running)
    if found is None and stored.policies and stored.cluster is not False:  # without a cluster there is no status
        reason = "no process has the lease of status, so nobody says of which policies labels or marks are not written"
        return Missing(reason, "tas run watch has it, as tas run all")
    return found or {}


def metric_facts(
    read: BusRead, *, offered: Collection[str] | Missing, stale_after: float, in_files: bool
) -> MetricFacts | Missing:
    """What is known of metrics; `offered` and `in_files` as in `MetricFacts`."""
    stored = read.stored
    if isinstance(stored, Missing):
        return stored
    return MetricFacts(
        policies=[each.policy for each in stored.policies],
        samples=stored.samples,
        nodes=stored.nodes,
        sources=stored.sources,
        held=stored.held,
        offered=offered,
        now=time_there(stored.at, read.clock),
        stale_after=stale_after,
        in_files=in_files,
        refused=() if isinstance(read.processes, Missing) else refused_samples(read.processes.running),
        late=() if isinstance(read.processes, Missing) else late_metrics(read.processes.running),
    )


def process_facts(read: BusRead, now: float) -> ProcessFacts | Missing:
    """What is known of the processes; `now` is by our clock, which may be wrong."""
    if isinstance(read.processes, Missing):
        return read.processes
    stored = None if isinstance(read.stored, Missing) else read.stored
    return ProcessFacts(
        running=read.processes.running,
        expected=read.processes.expected,
        policies=[] if stored is None else [each.policy for each in stored.policies],
        failing={}
        if stored is None
        else {name: state.problem for name, state in stored.sources.items() if state.problem},
        cluster=None if stored is None else stored.cluster,
        now=time_there(now, read.clock),
    )


async def inspected(bus: Bus) -> tuple[BusFacts, Offset | Missing] | Missing:
    """The bus and its clock, as every user sees them."""
    mend = "start nats-server with --jetstream; give this user the rights of docs/how-to/bus-credentials.md; "
    mend += f"is {bus.address} your bus? "
    mend += "Its log says whether its JetStream has ended: after a full disk, free space and start it again"
    return await probed(TRIES.of(partial(inspect, bus)), mend=mend)


async def _stored(bus: Bus) -> Stored:
    policies = [
        StoredPolicy(policy=each.policy, uid=each.uid, created=each.created, problems=each.problems, origin=each.origin)
        for each in (await readable(bus, POLICY_RECORDS)).values()
    ]
    at = time.time()
    nodes = await stored_nodes(bus)
    synced = (await synced_of(NODES).get(bus, SYNCED)).readable()
    synced_policies = (await synced_of(POLICIES).get(bus, SYNCED)).readable()
    sources = await stored_sources(bus)
    refused: dict[str, list[RefusedLabel]] = {}
    for kind in (REFUSED_LABELS, REFUSED_MARKS):
        for name, each in (await readable(bus, kind)).items():
            refused.setdefault(name, []).extend(each)
    return Stored(
        policies=policies,
        samples=nodes.samples,
        nodes={node: each.complete_labels for node, each in nodes.facts.items()} or dict.fromkeys(nodes.samples),
        sources=sources.states,
        held=sources.held,
        cluster=None if synced is None else synced.cluster,
        at=at,
        breakers=await stored_breakers(bus),
        pause=(await PAUSE_RECORDS.get(bus, PAUSED)).read_or(UNREADABLE_PAUSE),
        leases=sources.leases,
        refused=refused,
        file_problems=FileProblems() if synced_policies is None else synced_policies.file_problems,
    )


async def settled(bus: Bus, stored: Stored, in_api: frozenset[PolicyKey]) -> frozenset[PolicyKey]:
    """The policies that were created or deleted while all was read: in one of `stored` and `in_api`, and soon in both.

    The bus is read again for some seconds while a policy is in one only.
    """
    known = frozenset(each.policy.key for each in stored.policies)
    lacking, left_over = in_api - known, known - in_api
    unreadable: frozenset[PolicyKey] = frozenset()
    clock = asyncio.get_running_loop().time
    until = clock() + MIRROR_SECONDS
    while lacking or left_over:
        with suppress(BusError):  # the next request may succeed
            entries = {entry.key: entry for entry in await POLICY_RECORDS.entries(bus)}
            left_over &= entries.keys()
            found = (lacking & entries.keys()) - unreadable
            unreadable |= {key for key in found if entries[key].readable() is None}
            lacking -= found - unreadable
        if clock() >= until:
            break
        await asyncio.sleep(MIRROR_POLL_SECONDS)
    return (known ^ in_api) - lacking - left_over
