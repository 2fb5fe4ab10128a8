"""What a pod asks of cards, read in one way for filter, bind and `tas explain pod`."""

from tas.devices.claim import Claim, DevicePod, Options, read_claim
from tas.devices.names import ALLOW, DENY
from tas.devices.plugin import misread
from tas.devices.refusal import Refusal


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
