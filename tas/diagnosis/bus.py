"""The bus: does it answer, is it new enough, and does it keep what it acknowledges?"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tas.diagnosis.finding import Finding, Missing, Severity, command, finding, none_checked, ok, some, unknown

SYNC_MEND = (
    "set `sync_interval: always` in the block `jetstream` of each nats-server's configuration, and restart the server"
)
MONITOR_MEND = (
    "set `http: HOST:8222` in the configuration of each nats-server, and give --bus-monitor http://HOST:8222 for each"
)


class WrongStream(NamedTuple):
    """A stream that no worker uses, since its settings are not those of this version.

    Attributes:
        differences: Such as `max_msgs_per_subject is 1, must be 64`.
        lost: What is gone for ever if the stream is deleted; empty: workers build all of it again.
    """

    name: str
    differences: str
    lost: str = ""


class BusFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A bus that answers.

    Attributes:
        address: Without passwords.
        server: The id of the server that is connected.
        version: Of this server, or of an older one of its cluster.
        needed: The oldest version that is supported.
        cluster: The name of the server's cluster; empty for a single server.
        embedded: Whether it is the embedded server of `tas run all`.
        copies: The number of copies of each stream of ours that a server told us about.
        absent: The streams that do not exist.
        silent: The streams about which no server answers: the servers with their copies do not run.
        stuck: The streams without a leader, or with most copies late: most servers with their copies do not run.
        late: By server, the streams whose copy on this server is offline or not up to date.
        sync: Whether each server syncs each write before it acknowledges the write.
        closed: Whether we are a user with credentials: then others may have fewer rights.
        consumers: By stream, how many consumers it has, and how many it may have.
        room: By bucket with a limit that nobody but its keys can fill, its bytes, and how many it may have.
        weak: By stream, the settings of an earlier version with which one user can harm others.
        earlier: Whether the server takes credentials that an earlier version has made. Only people are told.
    """

    address: str
    server: str = ""
    version: str
    needed: tuple[int, int, int]
    cluster: str = ""
    embedded: bool = False
    copies: Mapping[str, int] = {}
    wrong: Sequence[WrongStream] = ()
    absent: Sequence[str] = ()
    silent: Sequence[str] = ()
    stuck: Sequence[str] = ()
    late: Mapping[str, Sequence[str]] = {}
    sync: bool | Missing = Missing("the server does not say")
    closed: bool = False
    consumers: Mapping[str, tuple[int, int]] = {}
    room: Mapping[str, tuple[int, int]] = {}
    weak: Mapping[str, Sequence[str]] = {}
    earlier: bool | Missing = False


WITHOUT: Mapping[str, str] = {
    "TABLES": "sources publish their samples by node, which costs more",
    "KV_WORKERS": "nobody sees which processes run, and which do not",
}
"""What is lost without a stream without which all works, as before there was one."""


def check_bus(facts: BusFacts | Missing) -> Iterator[Finding]:
    """The findings about the bus."""
    if isinstance(facts, Missing):
        yield finding("bus.reached", Severity.ERROR, facts.reason, facts.mend, run=facts.run)
        yield from none_checked("bus", Missing("the bus does not answer"), but=("bus.reached",))
        return
    yield ok("bus.reached", f"{facts.address} answers")
    yield _version(facts)
    yield _sync(facts)
    yield from _streams(facts)
    yield _replicas(facts)
    yield _copies(facts)
    yield _consumers(facts)
    yield _room(facts)
    yield _limits(facts)
    yield _credentials(facts)


def version_of(text: str) -> tuple[int, ...] | None:
    """The numbers of a version; None if the text is none."""
    parts = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return None if parts is None else tuple(map(int, parts.groups()))


def oldest(versions: Iterable[str]) -> str:
    """The oldest of the versions; a text that is none is older than all; empty without any."""
    return min(versions, key=lambda version: version_of(version) or (), default="")


def _version(facts: BusFacts) -> Finding:
    needed = ".".join(map(str, facts.needed))
    version = version_of(facts.version)
    if version is None:
        return unknown("bus.version", Missing(f"the server calls its version {facts.version!r}"))
    if version < facts.needed:
        what = f"nats-server is {facts.version}, must be at least {needed}"
        mend = f"install nats-server {needed} or newer on each server, one after the other"
        return finding("bus.version", Severity.ERROR, what, mend)
    return ok("bus.version", f"nats-server is {facts.version}")


def _sync(facts: BusFacts) -> Finding:
    if facts.embedded:
        what = "the embedded server syncs every 2 minutes: for one machine and for trials"
        mend = "for a cluster: a nats-server of your own, and --bus nats://HOST:4222 for each worker"
        return finding("bus.sync", Severity.HINT, what, mend)
    if isinstance(facts.sync, Missing):
        return unknown("bus.sync", facts.sync)
    if not facts.sync:
        return finding("bus.sync", Severity.WARNING, "nats-server does not sync each write", SYNC_MEND)
    return ok("bus.sync", "nats-server syncs each write")


def _streams(facts: BusFacts) -> Iterator[Finding]:
    version = version_of(facts.version)
    # An older server ignores settings that it does not know, also of a stream that is created again.
    first = "first install a newer nats-server; then " if version is not None and version < facts.needed else ""
    for each in facts.wrong:
        # No command of ours changes or deletes a stream.
        mend = f"{first}delete the stream: a worker creates it again within seconds, "
        mend += f"but {each.lost} are lost" if each.lost else "and its content is built again"
        run = command("nats", "--server", facts.address, "stream", "rm", each.name)
        yield finding("bus.streams", Severity.ERROR, f"{each.name}: {each.differences}", mend, run=run)
    if facts.absent and set(facts.absent) <= WITHOUT.keys():
        what = "; ".join(f"without {name}: {WITHOUT[name]}" for name in sorted(facts.absent))
        mend = "make room for it in the store of nats-server; on a closed bus: tas bus init, the new auth.conf for the "
        mend += "servers, and tas run keeper"
        yield finding("bus.streams", Severity.WARNING, what, mend)
    elif facts.absent:
        what = f"without {some(facts.absent)}: no worker has used this bus yet, or it was wiped"
        run = command("tas", "run", "all", "--bus", facts.address, "--kubeconfig", "FILE")
        mend = "start a worker; on a closed bus the keeper, with its credentials: tas run keeper. If workers run, the "
        mend += "field bus of their /readyz says why they cannot create it, such as a store without room"
        yield finding("bus.streams", Severity.ERROR, what, mend, run=run)
    if facts.silent:
        yield unknown("bus.streams", Missing(f"no server answers for {some(facts.silent)}"))
    if not (facts.wrong or facts.absent or facts.silent):
        yield ok("bus.streams", "all streams have the settings that this version needs")


def _replicas(facts: BusFacts) -> Finding:
    if not facts.cluster:
        return ok("bus.replicas", "a single server: one copy")
    if not facts.copies:
        return unknown("bus.replicas", Missing("no server tells of a stream"))
    single = [name for name, copies in facts.copies.items() if copies < 3]
    if single:
        what = f"the servers are the cluster {facts.cluster}, and {some(single)} have fewer than 3 copies"
        run = command("nats", "--server", facts.address, "stream", "edit", min(single), "--replicas", "3", "--force")
        mend = (
            "do this for each of these streams, and start workers with --replicas 3; for a bucket (KV_...) nats warns "
            "of other changes than this one, and asks: answer y"
        )
        return finding("bus.replicas", Severity.WARNING, what, mend, run=run)
    if facts.silent:
        return unknown("bus.replicas", Missing(f"no server answers for {some(facts.silent)}"))
    return ok("bus.replicas", "each stream has at least 3 copies")


def _copies(facts: BusFacts) -> Finding:
    if not facts.cluster:
        return ok("bus.copies", "a single server: no other copy can be behind")
    nats = ("nats", "--server", facts.address, "stream")
    if lost := {*facts.silent, *facts.stuck}:
        what = f"without a majority: {some(lost)}: most servers of {facts.cluster} with their copies do not run"
        mend = "start these servers, and let them reach each other; this shows the copies of a stream"
        run = command(*nats, "info", min(facts.stuck or lost))
        return finding("bus.copies", Severity.ERROR, what, mend, run=run)
    if facts.late:
        late = {stream for streams in facts.late.values() for stream in streams}
        what = f"the copies of {some(late)} on {some(facts.late)} are offline or not up to date"
        mend = "start the server again, and wait until it has caught up; this shows the copies of each stream"
        return finding("bus.copies", Severity.WARNING, what, mend, run=command(*nats, "report"))
    return ok("bus.copies", "each copy of each stream is up to date")


def _consumers(facts: BusFacts) -> Finding:
    crowded = {name: each for name, each in facts.consumers.items() if 2 * each[0] >= each[1]}
    if not crowded:
        return ok("bus.consumers", "each stream has places for more consumers")
    full = {name: each for name, each in crowded.items() if each[0] == each[1]}
    shown = some(f"{name} has {count} of at most {most} consumers" for name, (count, most) in (full or crowded).items())
    if facts.closed:
        mend, run = "stop and revoke the user who makes them; this removes those that nobody uses", "tas bus mend DIR"
    else:
        mend = "delete those that no program uses: nats consumer rm; this shows them"
        run = command("nats", "--server", facts.address, "consumer", "report", min(full or crowded))
    if full:
        return finding("bus.consumers", Severity.ERROR, f"{shown}: nobody can begin to read there", mend, run=run)
    return finding("bus.consumers", Severity.WARNING, shown, mend, run=run)


def _room(facts: BusFacts) -> Finding:
    filling = {name: each for name, each in facts.room.items() if 10 * each[0] >= 9 * each[1]}
    if not filling:
        return ok("bus.room", "each bucket has room")
    full = {name: each for name, each in filling.items() if 100 * each[0] >= 99 * each[1]}
    shown = some(f"{name} has {count} of at most {most} bytes" for name, (count, most) in (full or filling).items())
    mend = "if these keys belong there, raise the limit, for example to the double; else see who writes them"
    name = min(full or filling)
    room = f"{name.removeprefix('KV_')}={2 * filling[name][1] >> 20}Mi"
    run = command("tas", "bus", "mend", *(["DIR"] if facts.closed else []), "--room", room)
    if full:
        return finding("bus.room", Severity.ERROR, f"{shown}: new keys and longer values are refused", mend, run=run)
    return finding("bus.room", Severity.WARNING, shown, mend, run=run)


def _limits(facts: BusFacts) -> Finding:
    if not facts.weak:
        return ok("bus.limits", "no setting of a stream lets one user harm others")
    fields = {field for each in facts.weak.values() for field in each}
    what = f"streams of an earlier version: {some(facts.weak)} have other settings than new ones: {some(fields, 5)}"
    mend, run = "with --dry-run it prints what would change", "tas bus mend DIR" if facts.closed else "tas bus mend"
    # On an open bus everybody may do everything, whatever the settings are.
    return finding("bus.limits", Severity.WARNING if facts.closed else Severity.HINT, what, mend, run=run)


def _credentials(facts: BusFacts) -> Finding:
    if isinstance(facts.earlier, Missing):
        return unknown("bus.credentials", facts.earlier)
    if not facts.closed:
        return ok("bus.credentials", "nobody shows credentials")
    if not facts.earlier:
        return ok("bus.credentials", "the server refuses credentials of an earlier version")
    what = "servers take credentials of an earlier version: with those of one node one can fill each bucket"
    mend = "it names the users who have such; docs/how-to/close-the-bus.md has the order"
    return finding("bus.credentials", Severity.WARNING, what, mend, run="tas bus check DIR")
