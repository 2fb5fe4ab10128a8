"""What the commands that read the bus once share: the connection, stored records, and texts of values and ages."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar

import click

from bus.buckets import NODES, Bucket
from bus.connection import Bus
from bus.errors import (
    NO_JETSTREAM,
    NO_LEADER,
    STREAM_NOT_FOUND,
    BusError,
    MisconfiguredError,
    NobodyListensError,
    NoMajorityError,
    UnavailableError,
)
from bus.kinds import BREAKER_RECORDS, LEASE_RECORDS, NODE_FACTS, NODE_SAMPLES, NODE_TABLES, SOURCE_STATES
from bus.record_kind import Entry, RecordKind, read_entries
from bus.records.nodes import NodeFacts, StoredSamples
from bus.rights.access import Access, is_refused
from cli.loop import run_to_end
from cli.output import echo_line
from tas.errors import InvalidInputError
from tas.samples.sample import NodeSamples
from tas.samples.table import Table, TableKey, samples_of_nodes
from tas.sources.state import SourceState
from tas.values.quantity import parse_quantity, short_text
from tas.verdict.freeze import UNREADABLE_BREAKER, Breaker
from workers.discovery import bus_access, bus_url
from workers.process.errors import WorkerError
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import configure_logging
from workers.settings import Settings, flag, variable

K = TypeVar("K")
V = TypeVar("V")

CONNECT_SECONDS = 3.0
"""How long a command tries to connect to the bus."""

SLOW_SECONDS = 10.0
"""How long it tries if nobody has refused it: a busy server is slow to answer."""

REFUSED_SECONDS = 1.0
"""How long it tries at least if the bus refuses this user."""

POLL_SECONDS = 0.05
"""How often it is checked whether somebody has refused it."""

MAJORITY_SECONDS = 6.0
"""How long a server of a cluster may take to say whether it has a majority: an election takes some seconds."""

MAJORITY_POLL_SECONDS = 0.2
"""How often the server is asked meanwhile."""

_LEASE = "collect."
"""How the name of a source's lease begins."""


def ask(
    settings: Settings,
    question: Callable[[Bus, str], Awaitable[int]],
    *,
    without_bus: Callable[[str], Awaitable[int | None]] | None = None,
) -> int:
    """Connects, runs `question` and returns the exit code. An error is one line.

    `question` gets the connection and its address. If no bus answers, `without_bus` gets the reason, and returns an
    exit code if it knows the answer from elsewhere.
    """
    configure_logging(LogFormat.CONSOLE, LogLevel.ERROR)
    try:
        return run_to_end(_asked(settings, question, without_bus))
    except (BusError, WorkerError) as error:
        raise click.ClickException(str(error)) from error


async def _asked(
    settings: Settings,
    question: Callable[[Bus, str], Awaitable[int]],
    without_bus: Callable[[str], Awaitable[int | None]] | None,
) -> int:
    try:
        address = bus_url(settings)
        async with _connected(address, bus_access(settings, address)) as (bus, url):
            try:
                return await question(bus, url)
            except UnavailableError as error:
                if await _lacks_majority(bus, error):
                    raise click.ClickException(f"{_no_majority(bus)} ({error})") from error
                if isinstance(error, NobodyListensError) or error.code in (STREAM_NOT_FOUND, *NO_JETSTREAM):
                    raise click.ClickException(f"{await _what_is_missing(bus)} ({error})") from error
                if bus.connected and error.code is None:
                    raise click.ClickException(f"{_no_answer(bus)} ({error})") from error
                raise
    except _NoBusError as error:
        code = None if without_bus is None else await without_bus(str(error))
        if code is not None:
            return code
        raise click.ClickException(f"{error}. {error.mend}") from None


class _NoBusError(Exception):
    """No server answers in time, or it refuses this user; `is_slow`: nobody refuses the connection either."""

    def __init__(self, address: str, reason: str, *, is_slow: bool) -> None:
        self._is_refused = is_refused(reason)
        self._is_slow = is_slow
        within = f"within {SLOW_SECONDS if is_slow else CONNECT_SECONDS:g} s"
        fails = f"the bus at {address} refuses" if self._is_refused else f"no bus answers at {address} {within}"
        super().__init__(f"{fails}: {reason}")

    @property
    def mend(self) -> str:
        """What to do."""
        if self._is_refused:
            return (
                f"Give credentials that it accepts with {flag('bus_credentials')} or {flag('bus_token')}, "
                f"or the address of another bus with {flag('bus')} or {variable('bus')}"
            )
        if self._is_slow:
            return f"If it is overloaded, try again; or give the address of your bus with {flag('bus')}"
        return f"Start one (tas run all), or give its address with {flag('bus')} or {variable('bus')}"


async def _lacks_majority(bus: Bus, error: UnavailableError) -> bool:
    """Whether the server is one of a cluster of which most do not run, as far as it says so within some seconds.

    Until it knows, it may give no answer, or say that the cluster has no leader, as during an election.
    """
    if not bus.connected or not bus.link.server.cluster:
        return isinstance(error, NoMajorityError)
    clock = asyncio.get_running_loop().time
    until = clock() + MAJORITY_SECONDS
    has_leader = error.code != NO_LEADER
    while not isinstance(error, NoMajorityError):
        try:
            await bus.epoch(NODES)
            if not has_leader:
                await bus.api("INFO")  # the server may have answered from what it knew before
        except UnavailableError as found:
            error = found
            has_leader = has_leader and error.code != NO_LEADER
        except BusError:  # for example, this user may not ask for INFO
            return not has_leader
        else:
            return False
        if error.code not in (None, NO_LEADER) or clock() >= until:
            return not has_leader
        await asyncio.sleep(MAJORITY_POLL_SECONDS)
    return True


def _no_majority(bus: Bus) -> str:
    return (
        f"the bus at {bus.address} has no majority now: most of its servers do not run, or do not see each other. "
        "Nothing is stored and nothing can be read until they do; extenders answer on from their view, and labels stay "
        "as they are. `tas doctor` and /readyz say more, and docs/how-to/three-servers.md what to do"
    )


def _no_answer(bus: Bus) -> str:
    return (
        f"the nats-server at {bus.address} is connected, and does not answer: is it overloaded, or has its JetStream "
        "ended? Its log says so; after a full disk, free space and start nats-server again"
    )


async def _what_is_missing(bus: Bus) -> str:
    """What to do about a server without our streams: it may belong to another program."""
    elsewhere = f"give the address of your bus with {flag('bus')} or {variable('bus')}"
    try:
        await bus.api("INFO")
    except BusError as error:
        if isinstance(error, NobodyListensError) or error.code in NO_JETSTREAM:
            return f"the nats-server at {bus.address} has no JetStream: start it with --jetstream, or {elsewhere}"
    command = f"tas run all --bus {bus.address} --policies DIR"
    few = "with several servers: do most of them run, and see each other?"
    full = "if workers run: the field `bus` of their /readyz says why it is missing, such as a store without room"
    return f"nothing of TAS is on the bus at {bus.address}: start `{command}`, or {elsewhere}; {full}; {few}"


@asynccontextmanager
async def _connected(url: str, access: Access) -> AsyncIterator[tuple[Bus, str]]:
    """An open connection. It creates no streams or buckets, since these would have this client's settings."""
    try:
        async with Bus.connect(url, name="tas-cli", streams=(), on_invalid=_LeftOut(), access=access) as bus:
            await _wait_connected(bus)
            if not bus.connected:
                access.load()  # raises AccessError if a file is the reason
                raise _NoBusError(bus.address, bus.last_error, is_slow=bus.is_slow)
            yield bus, bus.address
    except MisconfiguredError as error:
        raise click.ClickException(f"{error} ({flag('bus')}, {variable('bus')})") from error


async def _wait_connected(bus: Bus) -> None:
    """Waits until the bus is connected, refuses this user, or its time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_SECONDS):
            await _connected_or_refused(bus)
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, SLOW_SECONDS - CONNECT_SECONDS)):
            while bus.is_slow:  # noqa: ASYNC110 - that an attempt has failed is no event
                await asyncio.sleep(POLL_SECONDS)


async def _connected_or_refused(bus: Bus) -> None:
    """A refusal counts after `REFUSED_SECONDS`: new users may be in force only a moment later."""
    connected = asyncio.create_task(bus.wait_connected())
    try:
        await asyncio.wait((connected,), timeout=REFUSED_SECONDS)
        while not connected.done() and not is_refused(bus.last_error):
            await asyncio.wait((connected,), timeout=POLL_SECONDS)
    finally:
        connected.cancel()
        await asyncio.wait((connected,))


class _LeftOut:
    """Prints each entry that cannot be read once, however often it is read."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def __call__(self, bucket: Bucket, key: str, error: InvalidInputError) -> None:
        line = f"left out: {bucket.name}/{key}: {error}"
        if line not in self._shown:
            self._shown.add(line)
            echo_line(line, err=True)


async def time_of_bus(bus: Bus, bucket: Bucket = NODES) -> float:
    """The time by the clock of the bus, by which ages count: that of this machine may be wrong.

    The server of `bucket` is asked. Raises UnavailableError.
    """
    return (await bus.epoch(bucket)).now


async def readable(bus: Bus, kind: RecordKind[K, V]) -> dict[K, V]:
    """All readable records of a kind; unreadable entries are printed and left out. Raises UnavailableError."""
    return _records(await kind.entries(bus))


def _records(entries: Iterable[Entry[K, V]]) -> dict[K, V]:
    return {entry.key: record for entry in entries if (record := entry.readable()) is not None}


async def stored_breakers(bus: Bus) -> dict[str, Breaker]:
    """All breakers by name; one that cannot be read counts as tripped. Raises UnavailableError."""
    entries = await BREAKER_RECORDS.entries(bus)
    return {entry.key: found for entry in entries if (found := entry.read_or(UNREADABLE_BREAKER)) is not None}


class StoredNodes(NamedTuple):
    """The samples and the facts of all nodes that have any."""

    samples: Mapping[str, NodeSamples]
    facts: Mapping[str, NodeFacts]


async def stored_nodes(bus: Bus) -> StoredNodes:
    """What NODES has of all nodes, with the rows of tables among their samples. It is read once.

    Unreadable entries are printed and left out. Raises UnavailableError.
    """
    single: list[Entry[str, StoredSamples]] = []
    tables: list[Entry[TableKey, Table]] = []
    facts: list[Entry[str, NodeFacts]] = []
    handlers = NODE_SAMPLES.to(single.append), NODE_TABLES.to(tables.append), NODE_FACTS.to(facts.append)
    await read_entries(bus, NODES, *handlers)
    readable_facts = _records(facts)
    created = {node: each.created.timestamp() for node, each in readable_facts.items() if each.created is not None}
    own = {node: stored.samples for node, stored in _records(single).items()}
    return StoredNodes(samples_of_nodes(own, _records(tables).values(), created), readable_facts)


class StoredSources(NamedTuple):
    """The stored states of sources.

    Attributes:
        entries: The state of each source.
        held: The names of the sources that a replica of `collect` holds.
        leases: Who holds each lease, by its name; empty if its record cannot be read.
    """

    entries: list[Entry[str, SourceState]]
    held: frozenset[str]
    leases: Mapping[str, str]

    @property
    def states(self) -> dict[str, SourceState]:
        """All readable states, by name of the source."""
        return {entry.key: state for entry in self.entries if (state := entry.readable()) is not None}


async def stored_sources(bus: Bus) -> StoredSources:
    """The states of sources, and which of them are held. Raises UnavailableError."""
    # A replica gets the lease and then writes the state. So the leases are read after the states: in the other order
    # a source that a replica takes meanwhile would have a state and no holder.
    entries = await SOURCE_STATES.entries(bus)
    leases = {
        entry.key: "" if (lease := entry.readable()) is None else lease.holder
        for entry in await LEASE_RECORDS.entries(bus)
    }
    held = frozenset(key.removeprefix(_LEASE) for key in leases if key.startswith(_LEASE))
    return StoredSources(entries, held, leases)


def value_text(value: str | None) -> str:
    """A stored value as a person reads it: `28.88Gi`; `-` for none."""
    return "-" if not value else short_text(parse_quantity(value))


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
