"""Part of `inventory`: how much of the GPU cards is free, as metrics."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bus.records.devices import NodeHold, NodeInventory
from tas.gpu.hold import NOT_USED, Hold
from tas.gpu.inventory import Inventory
from tas.gpu.names import RESOURCE_PREFIX, card_name
from tas.gpu.policy_facts import PolicyFacts
from tas.gpu.search import room


class _Amount(NamedTuple):
    """A resource of a card; `free` is what new pods can get."""

    card: str
    resource: str
    capacity: int
    free: int


class CardMetrics(Collector):
    """The amounts of each card, and the totals of each resource.

    It holds a number or two for each resource of each card. A node counts while its inventory and its hold are known.
    Of more than `most_nodes` nodes there are only totals: each card has some series in Prometheus.
    """

    def __init__(self, registry: CollectorRegistry, *, most_nodes: int) -> None:
        self._most_nodes = most_nodes
        self._nodes: dict[str, tuple[_Amount, ...]] = {}
        self._capacity: Counter[str] = Counter()
        self._free: Counter[str] = Counter()
        registry.register(self)

    def set_node(self, name: str, inventory: NodeInventory | None, hold: NodeHold | None) -> None:
        """Applies what the bus has of a node."""
        for amount in self._nodes.pop(name, ()):
            self._capacity[amount.resource] -= amount.capacity
            self._free[amount.resource] -= amount.free
        if inventory is None or hold is None:
            return
        self._nodes[name] = amounts = tuple(_amounts(inventory.inventory, inventory.facts, hold.hold))
        for amount in amounts:
            self._capacity[amount.resource] += amount.capacity
            self._free[amount.resource] += amount.free

    def drop_nodes(self) -> None:
        """Forgets all nodes."""
        self._nodes.clear()
        self._capacity.clear()
        self._free.clear()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The current values."""
        for name, text, totals in (
            ("tas_cards_capacity", "What all GPU cards have, by resource.", self._capacity),
            ("tas_cards_free", "What new pods can get of all GPU cards, by resource.", self._free),
        ):
            family = GaugeMetricFamily(name, text, labels=["resource"])
            for resource, amount in sorted(totals.items()):
                family.add_metric([resource], amount)
            yield family
        capacity = GaugeMetricFamily("tas_card_capacity", "What a GPU card has.", labels=["node", "card", "resource"])
        free = GaugeMetricFamily(
            "tas_card_free", "What new pods can get of a GPU card.", labels=["node", "card", "resource"]
        )
        if len(self._nodes) <= self._most_nodes:
            for node, amounts in sorted(self._nodes.items()):
                for each in amounts:
                    capacity.add_metric([node, each.card, each.resource], each.capacity)
                    free.add_metric([node, each.card, each.resource], each.free)
        yield from (capacity, free)


def _amounts(inventory: Inventory, facts: PolicyFacts, hold: Hold) -> Iterator[_Amount]:
    for card in inventory.cards:
        use = hold.cards.get(card.number, NOT_USED)
        for resource, capacity in sorted(card.capacity.items()):
            name = resource.removeprefix(RESOURCE_PREFIX)
            yield _Amount(card_name(card.number), name, capacity, room(resource, card, use, facts))
