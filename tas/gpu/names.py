"""The names of GPU Aware Scheduling: resources, labels, annotations, cards and tiles.

They are the names of the original, which the device plugin, node feature discovery and the manifests of users have.
"""

import re
from typing import Annotated

import msgspec

RESOURCE_PREFIX = "gpu.intel.com/"
I915 = f"{RESOURCE_PREFIX}i915"
XE = f"{RESOURCE_PREFIX}xe"
TILES = f"{RESOURCE_PREFIX}tiles"
MILLICORES = f"{RESOURCE_PREFIX}millicores"
MEMORY = f"{RESOURCE_PREFIX}memory.max"
MONITORING = frozenset({f"{RESOURCE_PREFIX}i915_monitoring", f"{RESOURCE_PREFIX}xe_monitoring"})
"""Resources of the whole node (facts.md g5). All others are divided by the cards."""

GPU_NUMBERS = f"{RESOURCE_PREFIX}gpu-numbers"
CARDS = f"{RESOURCE_PREFIX}cards"
PCI_GROUPS = f"{RESOURCE_PREFIX}pci-groups"
XE_LINKS = f"{RESOURCE_PREFIX}xe-links"
NUMA_MAP = f"{RESOURCE_PREFIX}numa-gpu-map"

ALLOW = "gas-allow"
DENY = "gas-deny"
SAME_GPU = "gas-same-gpu"
XELINK = "gas-allocate-xelink"
SINGLE_NUMA = "gas-allocate-single-numa"

CONTAINER_CARDS = "gas-container-cards"
CONTAINER_TILES = "gas-container-tiles"
TIMESTAMP = "gas-ts"

EVICTION_LABEL = "gpu.aware.scheduling/deschedule-pod"
EVICTION_VALUE = "gpu"
"""The label of a pod that a descheduler is to evict."""

MAX_CARDS = 512
"""The most cards of a node, and of a container."""

MAX_TILES = 64
"""The most tiles of a card."""

MAX_RESOURCES = 32
"""The most different GPU resources that a pod requests, and that are read of a node."""

READ_FIRST = frozenset({I915, XE, TILES, MILLICORES, MEMORY, *MONITORING})
"""The resources that are read in any case: those that device plugin and node feature discovery give a node."""

Number = Annotated[int, msgspec.Meta(ge=0, le=999_999)]
"""The number of a card or a tile."""

NUMBER = r"(?:0|[1-9][0-9]{0,5})"
"""The number of a card or a tile, as a regular expression: as the driver writes it, without leading zeros."""

_CARD = re.compile(rf"card({NUMBER})")
_TILE = re.compile(rf"gt({NUMBER})")


def card_name(number: int) -> str:
    """The name of a card: `card0`."""
    return f"card{number}"


def tile_name(number: int) -> str:
    """The name of a tile of a card: `gt0`."""
    return f"gt{number}"


def card_number(name: str) -> int | None:
    """The number of a card by its name; None if this is no name of a card."""
    match = _CARD.fullmatch(name)
    return None if match is None else int(match[1])


def tile_number(name: str) -> int | None:
    """The number of a tile by its name; None if this is no name of a tile."""
    match = _TILE.fullmatch(name)
    return None if match is None else int(match[1])
