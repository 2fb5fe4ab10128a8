"""What a pod asks of cards, read in one way for filter, bind and `tas explain pod`."""

from tas.devices.claim import Claim, DevicePod, Options, read_claim
from tas.devices.names import ALLOW, DENY, TILES
from tas.devices.refusal import Cause, Refusal
from tas.errors import line_of


def asked_of_cards(pod: DevicePod, options: Options) -> Claim | Refusal | None:
    """The claim of a pod, or why no node can ever fulfil it; None without GPU requests.

    Without GPU requests the annotations have no meaning, so a malformed one does not matter.
    """
    if not any(each.amounts() for each in (*pod.containers, *pod.init_containers)):
        return None
    claim = read_claim(pod, options)
    if isinstance(claim, Refusal):
        return claim
    if not claim.units and not claim.node_amounts:
        return None
    return misread(claim) or claim


def ignored_wishes(pod: DevicePod, options: Options) -> list[str]:
    """The annotations of a pod that would choose its cards, and do not count by the settings."""
    counts = {ALLOW: options.allowlist, DENY: options.denylist}
    return [name for name, on in counts.items() if not on and name in pod.annotations]


def misread(claim: Claim) -> Refusal | None:
    """The permanent refusal of a claim whose containers would get each other's tiles, or None.

    The device plugin of a node gives the n-th container with cards the n-th non-empty segment of `gas-container-tiles`
    (facts.md g7). So a container without tiles must not come before one with tiles: it would get the tiles of the
    latter.
    """
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
