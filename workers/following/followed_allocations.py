"""What the pods of each node request, kept up to date from the bus: for agents and extensions that ask for it."""

from bus.buckets import NODES
from bus.connection import Bus
from bus.kinds import NODE_ALLOCATION
from bus.record_kind import Entry
from bus.watch import Watch, WatchStatus
from tas.allocation.node import NodeAllocation
from tas.view.allocations import AllocationView


class FollowedAllocations:
    """Keeps a view of allocations up to date from NODES."""

    name = "allocations"

    def __init__(self, bus: Bus, view: AllocationView) -> None:
        self._view = view
        self._watch = Watch(bus, NODE_ALLOCATION.to(self._apply), on_epoch=lambda _: view.clear())

    @property
    def status(self) -> WatchStatus:
        """The status of the watch."""
        return self._watch.status

    def unready(self) -> str | None:
        """Why what is stored is not known; None if it is known."""
        return None if self.status.caught_up else f"{NODES.name}: not caught up with the bus"

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._watch.run()

    def _apply(self, entry: Entry[str, NodeAllocation]) -> None:
        record = entry.readable()
        if record is None:
            self._view.drop_node(entry.key)
        else:
            self._view.set_node(entry.key, record)
