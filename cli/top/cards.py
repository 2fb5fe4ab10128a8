"""The GPU cards of the live view, followed on the bus."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from bus.connection import Bus
from bus.kinds import NODE_HOLDS, NODE_INVENTORY
from bus.record_kind import Entry
from bus.records.devices import NodeHold, NodeInventory
from bus.watch import Watch
from workers.process.tasks import together


class Cards:
    """The cards of all nodes, those included of which not all is known."""

    name = "cards"

    def __init__(self, bus: Bus) -> None:
        self._inventories: dict[str, NodeInventory] = {}
        self._holds: dict[str, NodeHold] = {}
        # Inventories are kept through a wipe of the bus. Holds are not: nobody knows who has which card.
        self._watches = (
            Watch(bus, NODE_INVENTORY.to(self._apply_inventory), on_epoch=lambda _: None),
            Watch(bus, NODE_HOLDS.to(self._apply_hold), on_epoch=lambda _: self._holds.clear()),
        )

    def unready(self) -> str | None:
        """Always ready: a cluster without cards has none."""
        return None

    async def run(self) -> None:
        """Follows until cancelled."""
        await together(*(watch.run() for watch in self._watches))

    def rows(self, pattern: str = "*") -> Mapping[str, str]:
        """The rows of the section `cards`, of nodes whose names match `pattern`."""
        nodes = sorted(node for node in self._inventories.keys() | self._holds.keys() if fnmatchcase(node, pattern))
        if not nodes:
            return {}
        # Here: few clusters have cards.
        from cli.queries.card_tables import card_rows
        from cli.queries.cards import node_devices
        from tas.gpu.explanation import explain_cards

        found = {node: node_devices(self._inventories.get(node), self._holds.get(node)) for node in nodes}
        return card_rows(explain_cards(node, devices) for node, devices in found.items() if devices is not None)

    def _apply_inventory(self, entry: Entry[str, NodeInventory]) -> None:
        record = entry.readable()
        if record is None:
            self._inventories.pop(entry.key, None)
        else:
            self._inventories[entry.key] = record

    def _apply_hold(self, entry: Entry[str, NodeHold]) -> None:
        record = entry.readable()
        if record is None:
            self._holds.pop(entry.key, None)
        else:
            self._holds[entry.key] = record
