"""The GPU cards of nodes as the bus has them: for `tas get gpus` and `tas explain`."""

import msgspec

from bus.connection import Bus
from bus.kinds import NODE_HOLDS, NODE_INVENTORY
from bus.records.devices import NodeHold, NodeInventory
from cli.as_json import JSON_OPTION, print_json
from cli.options import settings_command
from cli.queries.card_tables import print_cards
from cli.queries.query import ask, readable, time_of_bus
from tas.gpu.explanation import NodeDevices, explain_cards
from tas.gpu.inventory import Inventory
from tas.gpu.policy_facts import NO_FACTS
from workers.settings import Settings

EMPTY = "no GPU cards: no node offers gpu.intel.com resources, or no worker reads them (tas run inventory)"


@settings_command("gpus", settings_as="get", params=[JSON_OPTION])
def gpus(settings: Settings, *, as_json: bool) -> int:
    """Each GPU card with its amounts, its pods, and what policies say about it.

    Free is what a new pod can get. So a card that a policy disables has nothing free.
    """
    return ask(settings, lambda bus, _: _gpus(bus, as_json=as_json))


async def _gpus(bus: Bus, *, as_json: bool) -> int:
    nodes = [explain_cards(name, devices) for name, devices in sorted((await devices_of_nodes(bus)).items())]
    if as_json:
        print_json(msgspec.to_builtins(nodes))
    else:
        print_cards(nodes, await time_of_bus(bus), empty=EMPTY)
    return 0


async def devices_of_nodes(bus: Bus) -> dict[str, NodeDevices]:
    """The cards of each node that has some, or whose pods have some. Unreadable records are printed and left out."""
    inventories = await readable(bus, NODE_INVENTORY)
    holds = await readable(bus, NODE_HOLDS)
    return {
        node: devices
        for node in inventories.keys() | holds.keys()
        if (devices := node_devices(inventories.get(node), holds.get(node))) is not None
    }


async def devices_of_node(bus: Bus, node: str) -> NodeDevices | None:
    """The cards of one node; None if neither it nor its pods have any."""
    inventory, hold = (await NODE_INVENTORY.get(bus, node)).readable(), (await NODE_HOLDS.get(bus, node)).readable()
    return node_devices(inventory, hold)


def node_devices(inventory: NodeInventory | None, hold: NodeHold | None) -> NodeDevices | None:
    """The cards of a node by its records; None if neither it nor its pods have any."""
    if inventory is None:
        return NodeDevices(Inventory(), NO_FACTS, hold.hold) if hold is not None and hold.pods else None
    # The hold of an earlier node of this name says nothing about this one.
    is_of_node = hold is not None and hold.uid == inventory.uid
    return NodeDevices(inventory.inventory, inventory.facts, hold.hold if hold is not None and is_of_node else None)
