"""Which claims the device plugin of a node would misread.

The plugin gives the n-th container with cards the n-th non-empty segment of `gas-container-tiles` (facts.md g7). So a
container without tiles must not come before one with tiles: it would get the tiles of the latter.
"""

from tas.devices.claim import Claim
from tas.devices.names import TILES
from tas.devices.refusal import Cause, Refusal
from tas.errors import line_of


def misread(claim: Claim) -> Refusal | None:
    """The permanent refusal of a claim whose containers would get each other's tiles, or None."""
    without_tiles = ""
    for slot in claim.slots:
        if not slot.cards:
            continue
        if not slot.amounts.get(TILES):
            without_tiles = without_tiles or slot.container
        elif without_tiles:
            reason = (
                f"container {without_tiles} requests a card and no {TILES}, and comes before container "
                f"{slot.container}, whose tiles the device plugin would give it: put containers with tiles first"
            )
            return Refusal(cause=Cause.RESOURCES_CONFLICT, reason=line_of(reason), permanent=True)
    return None
