"""The nodes of the cluster with their addresses, followed on the bus, so that sources know which node is meant."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

import structlog

from bus.connection import Bus
from bus.kinds import NODE_FACTS
from bus.record_kind import Entry
from bus.records.nodes import NodeFacts
from bus.records.synced import Synced
from tas.sources.nodes import ANY_NODE, NodeNames
from tas.view.epoch_keys import EpochKeys
from workers.following.synced import SyncedWatch

log = structlog.get_logger("collect")

READ_SECONDS = 10.0
"""How long sources wait for the nodes at the start. Without them, as with an account without the right, they go on."""


class _Node(NamedTuple):
    uid: str
    addresses: tuple[str, ...] | None


class KnownNodes:
    """The nodes in NODES. After a wipe of the bus they stay the same until the new list is complete."""

    def __init__(self, bus: Bus) -> None:
        self._nodes: dict[str, _Node] = {}
        self._keys: EpochKeys[str] = EpochKeys()
        self._cluster = False
        self._names: NodeNames | None = ANY_NODE
        self._read = asyncio.Event()
        self._watch = SyncedWatch(
            bus,
            NODE_FACTS.to(self._apply),
            on_epoch=lambda epoch: self._keys.start_epoch(epoch.created),
            on_complete=self._complete,
            on_batch=self._note_read,
        )

    def current(self) -> NodeNames:
        """The nodes now: the same object until one of them changes."""
        if self._names is None:
            addresses = {node: each.addresses or () for node, each in self._nodes.items()}
            self._names = NodeNames(addresses, is_complete=self._cluster)
        return self._names

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._watch.run()

    async def wait_until_read(self) -> None:
        """Waits until the nodes on the bus are read, at most `READ_SECONDS`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_SECONDS):
                await self._read.wait()
                return
        log.warning("source_nodes_unknown", reason=self._watch.unready(), effect="every valid name is a node")

    def _note_read(self) -> None:
        if self._watch.status.caught_up:
            self._read.set()

    def _apply(self, entry: Entry[str, NodeFacts]) -> None:
        node = entry.key
        if not entry.present:
            self._keys.discard(node)
            self._set(node, None)
            return
        self._keys.add(node)
        facts = entry.readable()
        if facts is None:
            return
        known, addresses = self._nodes.get(node), facts.addresses
        if addresses is None and known is not None and known.uid == facts.uid:
            addresses = known.addresses  # written by a version of this program that does not know addresses
        self._set(node, _Node(facts.uid, addresses))

    def _complete(self, synced: Synced) -> None:
        for node in self._keys.complete_epoch(synced.epoch, self._nodes.keys()):
            self._set(node, None)
        if self._cluster != synced.cluster:
            self._cluster = synced.cluster
            self._names = None

    def _set(self, node: str, found: _Node | None) -> None:
        if self._nodes.get(node) == found:
            return
        if found is None:
            del self._nodes[node]
        else:
            self._nodes[node] = found
        self._names = None
