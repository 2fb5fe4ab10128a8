"""The addresses of nodes (facts.md n71), for their facts: series of Prometheus often name a node by its address.

`watch` follows the metadata of nodes only, since every heartbeat changes the status. So the addresses come from whole
nodes: a list at the start and again and again, and one request for each node that is new, or whose status somebody
writes when no heartbeat is due. A write that comes just then is found with the next list: after a minute in a small
cluster, after an hour in one of 5,000 nodes.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

import msgspec
import structlog

from bus.records.nodes import NodeFacts
from tas.values.backoff import Backoff
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ForbiddenError, KubernetesError, NotFoundError
from workers.kubernetes.resources import ADDRESSED_NODES, AddressedNode, Writes, time_in, version_number
from workers.process.logs import ThrottledLog

log = structlog.get_logger("watch")

LIST_SECONDS = 3600.0
"""The longest time between two lists."""

SOONEST_SECONDS = 60.0
NODE_SECONDS = LIST_SECONDS / 5000
"""So long a list waits for each node of the list before, so that lists cost the API server the same in each cluster:
1.4 nodes a second, or about 15 KiB."""

AGAIN_SECONDS = 60.0
"""A node is read again at most once in this time."""

HEARTBEAT_SECONDS = (295.0, 320.0)
"""A program that writes the status so long after its last write may only have a heartbeat (facts.md n80, n95)."""

REGULAR_SECONDS = 15.0
"""And so does one that writes again after the same time as before, up to this: its heartbeats may be others."""

RETRY = Backoff(first=1.0, longest=300.0)
"""The waits after a list or a request that failed."""

MAX_ADDRESSES = 32
MAX_ADDRESS = 253
"""So many addresses of a node are stored, and such of so many characters: a kubelet may write any."""


class _Addresses(NamedTuple):
    addresses: tuple[str, ...]
    version: str


class _Change(NamedTuple):
    version: str
    labels: Mapping[str, str]
    writes: Writes
    intervals: Mapping[str, float]  # by who writes the status, the seconds between two writes if no usual heartbeats
    at: float  # when the status changed


def _is_unseen(last: _Change, facts: NodeFacts, writes: Writes) -> bool:
    """Whether the status has changed although no time says so: a second write within a second has that of the first."""
    newest = max((time for _, time in writes.status), default="")
    return writes.others == last.writes.others <= newest and facts.labels == last.labels


_USUAL: Mapping[str, float] = {}


def _is_usual(interval: float) -> bool:
    shortest, longest = HEARTBEAT_SECONDS
    return shortest <= interval <= longest


def _is_heartbeat(interval: float, before: float | None) -> bool:
    """Whether a write of the status after so many seconds may be a heartbeat; `before` is the interval before it."""
    return _is_usual(interval) or (before is not None and abs(interval - before) <= REGULAR_SECONDS)


def _intervals(last: _Change, writes: Writes) -> dict[str, float]:
    """By who has written the status since, how many seconds after the last time; infinite without one."""
    before = dict(last.writes.status)
    found: dict[str, float] = {}
    for manager, text in writes.status:
        if text != before.get(manager):
            at, since = time_in(text), time_in(before.get(manager))
            found[manager] = inf if at is None or since is None else (at - since).total_seconds()
    return found


class ChangedNodes:
    """The nodes that are to be read again, by uid, one in `NODE_SECONDS`.

    First comes the node that has not been read for the longest time: one that restarts does not wait behind those whose
    status changes for ever. `now` is in seconds of any clock.
    """

    def __init__(self) -> None:
        self._changes: dict[str, _Change] = {}  # the last one
        self._read: dict[str, float] = {}  # when it was read again
        self._due: dict[str, str] = {}
        self._next_at = -inf

    def note(self, node: str, facts: NodeFacts, writes: Writes, now: float) -> bool:
        """Takes in a node as it is reported; returns whether it is to be read again."""
        uid = facts.uid
        last = self._changes.get(uid)
        if last is not None and last.version == facts.resource_version:
            return False
        if last is None:
            self._changes[uid] = _Change(facts.resource_version, facts.labels, writes, _USUAL, -inf)
            return False
        intervals = _intervals(last, writes)
        is_unseen = not intervals and _is_unseen(last, facts, writes)
        is_status = bool(intervals) or is_unseen
        unusual = {who: each for who, each in {**last.intervals, **intervals}.items() if not _is_usual(each)}
        self._changes[uid] = _Change(
            facts.resource_version, facts.labels, writes, unusual or _USUAL, now if is_status else last.at
        )
        if intervals:
            is_due = any(not _is_heartbeat(each, last.intervals.get(who)) for who, each in intervals.items())
        else:  # where no times are known, any change may be one of the status: two within a minute are no heartbeats
            is_due = is_unseen and (bool(writes.status) or now - last.at <= AGAIN_SECONDS)
        if is_due:
            self._due.setdefault(uid, node)
        return is_due

    def forget(self, uid: str) -> None:
        """Forgets a node that has been deleted."""
        for known in (self._changes, self._read, self._due):
            known.pop(uid, None)

    def wait(self, now: float) -> float:
        """After how many seconds `take` has a node; infinite without any."""
        first = min((self._read.get(uid, -inf) + AGAIN_SECONDS for uid in self._due), default=inf)
        return max(0.0, first - now, self._next_at - now)

    def take(self, now: float) -> tuple[str, str] | None:
        """Uid and name of the node that is to be read now, if any."""
        if now < self._next_at:
            return None
        uid = min(self._due, key=lambda each: self._read.get(each, -inf), default=None)
        if uid is None or now - self._read.get(uid, -inf) < AGAIN_SECONDS:
            return None
        self._next_at, self._read[uid] = now + NODE_SECONDS, now
        return uid, self._due.pop(uid)

    def put_back(self, uid: str, node: str) -> None:
        """Notes that a node could not be read."""
        self._due.setdefault(uid, node)

    def keep(self, uids: Collection[str], version: str) -> None:
        """Forgets all others, and that any is to be read: they have been listed at this resource version.

        Except nodes that have changed since.
        """
        listed = version_number(version)
        later = {uid for uid, change in self._changes.items() if version_number(change.version) > listed}
        self._due = {uid: node for uid, node in self._due.items() if uid in later}
        self._changes = {uid: change for uid, change in self._changes.items() if uid in uids or uid in later}
        self._read = {uid: at for uid, at in self._read.items() if uid in uids or uid in later}


class NodeAddresses:
    """The addresses of nodes by uid. `on_read` gets the nodes whose addresses have been read."""

    def __init__(
        self,
        client: KubernetesClient,
        *,
        on_read: Callable[[Collection[str]], None],
        list_seconds: float = LIST_SECONDS,
    ) -> None:
        self._client = client
        self._on_read = on_read
        self._list_seconds = list_seconds
        self._known: dict[str, _Addresses] = {}
        self._wanted: dict[str, str] = {}  # new nodes, by uid
        self._changed = ChangedNodes()
        self._forbidden: set[str] = set()  # uids of new nodes that wait for the next list
        self._wake = asyncio.Event()
        self._throttled = ThrottledLog(log)

    def completed(self, node: str, facts: NodeFacts, stored: NodeFacts | None) -> NodeFacts:
        """`facts` with the addresses that were read last, by this replica or the one that wrote `stored`.

        If nobody has read those of a node with this uid, they are requested.
        """
        found = self._known.get(facts.uid)
        if stored is not None and stored.uid == facts.uid and stored.addresses is not None:
            theirs = _Addresses(stored.addresses, stored.addresses_version)
            if found is None or found.addresses == theirs.addresses or _is_later(theirs, found):
                found = theirs
        if found is None:
            if facts.uid not in self._wanted and facts.uid not in self._forbidden:
                self._wanted[facts.uid] = node
                self._wake.set()
            return facts
        if (facts.addresses, facts.addresses_version) == found:
            return facts
        return msgspec.structs.replace(facts, addresses=found.addresses, addresses_version=found.version)

    def reported(self, node: str, facts: NodeFacts, writes: Writes) -> None:
        """Takes in a node as a list or a watch reports it."""
        if self._changed.note(node, facts, writes, time.monotonic()):
            self._wake.set()

    def deleted(self, uid: str) -> None:
        """Takes in that a node has been deleted."""
        self._changed.forget(uid)
        self._wanted.pop(uid, None)

    async def run(self) -> None:
        """Reads until cancelled."""
        failures, due = 0, -inf
        while True:
            try:
                if time.monotonic() >= due:
                    await self._list()
                    due = time.monotonic() + self.pause
                await self._read_wanted()
                await self._read_changed()
                failures = 0
            except KubernetesError as error:
                failures += 1
                self._throttled.warning("node_addresses_not_read", error=str(error))
                await asyncio.sleep(RETRY.after(failures))
                continue
            try:
                now = time.monotonic()
                async with asyncio.timeout(max(0.0, min(due - now, self._changed.wait(now)))):
                    await self._wake.wait()
            except TimeoutError:
                continue

    @property
    def pause(self) -> float:
        """The seconds from one list to the next."""
        return min(self._list_seconds, max(SOONEST_SECONDS, len(self._known) * NODE_SECONDS))

    async def _list(self) -> None:
        """Raises KubernetesError."""
        read = _Reading()
        version = await self._client.read_list(ADDRESSED_NODES, read)
        listed = {uid: _Addresses(addresses, version) for uid, _, addresses in read.nodes}
        newer = {uid: each for uid, each in self._known.items() if uid in listed and _is_later(each, listed[uid])}
        self._known = listed | newer
        self._wanted = {uid: node for uid, node in self._wanted.items() if uid not in self._known}
        self._forbidden.clear()
        self._changed.keep(listed, version)
        self._on_read([node for _, node, _ in read.nodes])

    async def _read_wanted(self) -> None:
        """Raises KubernetesError."""
        self._wake.clear()
        while self._wanted:
            uid, node = next(iter(self._wanted.items()))
            if uid not in self._known:
                await self._read(uid, node)
            self._wanted.pop(uid, None)

    async def _read_changed(self) -> None:
        """Reads one of those that have changed, if it is time for one. Raises KubernetesError."""
        found = self._changed.take(time.monotonic())
        if found is None or found[0] in self._forbidden:
            return
        try:
            await self._read(*found)
        except KubernetesError:
            self._changed.put_back(*found)
            raise

    async def _read(self, uid: str, node: str) -> None:
        """Raises KubernetesError."""
        try:
            found = await self._client.get(ADDRESSED_NODES, node)
        except NotFoundError:
            pass  # deleted since
        except ForbiddenError as error:
            # Until the next list: the account is of a version of this program that did not need `get`.
            self._forbidden.add(uid)
            self._throttled.warning("node_addresses_not_read", error=str(error))
        else:
            of = found.metadata
            self._known[of.uid] = _Addresses(_addresses_of(found), of.resource_version)
            self._on_read((node,))


class _Reading:
    """Takes the uid, the name and the addresses of each node of a list."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, str, tuple[str, ...]]] = []

    def begin(self) -> None:
        """A list begins."""
        self.nodes.clear()

    def read(self, items: Sequence[AddressedNode]) -> None:
        """Some nodes of it."""
        self.nodes += ((each.metadata.uid, each.metadata.name, _addresses_of(each)) for each in items)


def _addresses_of(node: AddressedNode) -> tuple[str, ...]:
    found = (each.address for each in node.status.addresses or ())
    return tuple(dict.fromkeys(each for each in found if 0 < len(each) <= MAX_ADDRESS))[:MAX_ADDRESSES]


def _is_later(first: _Addresses, second: _Addresses) -> bool:
    return version_number(first.version) > version_number(second.version)
