"""The resource by which a scheduler knows that a pod is for telemetry-aware scheduling: `telemetry/scheduling`.

A pod asks for one of it, and the scheduler's `managedResources` names it. Where a scheduler or an autoscaler is not
told to ignore it, nodes must offer it, too.
"""

from collections.abc import Mapping

from tas.quantity import NANO, QuantityError, parse_quantity

RESOURCE = "telemetry/scheduling"


def is_offered(count: int, *offers: Mapping[str, str]) -> bool:
    """Whether each of `offers` (a node's capacity, its allocatable) has `count` of it: `1000`, `1k` and `1e3` alike."""
    return all(_offers(count, offer.get(RESOURCE)) for offer in offers)


def _offers(count: int, quantity: str | None) -> bool:
    if quantity is None:
        return False
    try:
        return parse_quantity(quantity) == count * NANO
    except QuantityError:
        return False
