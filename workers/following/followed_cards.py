"""The GPU cards of all nodes, kept up to date from the bus: for filter and prioritize, extensions and `evictions`.

Inventories are kept through a wipe of the bus: they change seldom, and bind reads them again. Holds are not: until they
are complete again, nobody knows who has which card.
"""

from collections.abc import Callable

from bus.buckets import NODES
from bus.connection import Bus
from bus.kinds import NODE_HOLDS, NODE_INVENTORY
from bus.record_kind import Entry
from bus.records.devices import NodeHold, NodeInventory
from bus.records.synced import Synced
from bus.watch import Watch, WatchStatus
from tas.gpu.card_view import CardView
from workers.following.synced import SyncedWatch
from workers.process.tasks import together


class FollowedCards:
    """Keeps a view of cards up to date from HOLDS and NODES.

    `on_node` is called with the name of each node of which something has changed, `on_complete` when all holds of an
    epoch are known.
    """

    def __init__(
        self,
        bus: Bus,
        view: CardView,
        *,
        on_node: Callable[[str], None] = lambda _: None,
        on_complete: Callable[[], None] = lambda: None,
    ) -> None:
        self._view = view
        self._on_node = on_node
        self._inventories = Watch(bus, NODE_INVENTORY.to(self._apply_inventory), on_epoch=lambda _: None)
        self._holds = SyncedWatch(
            bus,
            NODE_HOLDS.to(self._apply_hold),
            on_epoch=lambda _: self._view.drop_holds(),
            on_complete=lambda _: on_complete(),
        )

    @property
    def synced(self) -> Synced | None:
        """`_synced` of the current epoch of HOLDS once all holds of the epoch have been read, else None."""
        return self._holds.synced

    @property
    def watches(self) -> dict[str, WatchStatus]:
        """The status of the watch of each bucket."""
        return {NODE_HOLDS.bucket.name: self._holds.status, NODES.name: self._inventories.status}

    def unready(self) -> str | None:
        """Why it is not known who has which card; None if it is known, in the current epoch of HOLDS."""
        if (reason := self._holds.unready()) is not None:
            return reason
        return None if self._inventories.status.caught_up else f"{NODES.name}: not caught up with the bus"

    async def run(self) -> None:
        """Follows until cancelled."""
        await together(self._holds.run(), self._inventories.run())

    def _apply_inventory(self, entry: Entry[str, NodeInventory]) -> None:
        record = entry.readable()
        if record is None:
            self._view.drop_inventory(entry.key)
        else:
            self._view.set_inventory(entry.key, record.uid, record.inventory, record.facts)
        self._on_node(entry.key)

    def _apply_hold(self, entry: Entry[str, NodeHold]) -> None:
        record = entry.readable()
        if record is None:
            self._view.drop_hold(entry.key)
        else:
            self._view.set_hold(entry.key, record.uid, record.hold)
        self._on_node(entry.key)
