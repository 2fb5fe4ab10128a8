"""The resource `telemetry/scheduling`, which marks pods for telemetry-aware scheduling.

A pod requests one unit, and the scheduler's `managedResources` names the resource. Nodes must offer the resource if a
scheduler or an autoscaler is not configured to ignore it.
"""

from collections.abc import Mapping

from tas.values.quantity import NANO, QuantityError, parse_quantity

RESOURCE = "telemetry/scheduling"


def is_offered(count: int, *offers: Mapping[str, str]) -> bool:
    """Whether each of `offers` (capacity and allocatable of a node) has `count` units in any notation."""
    return all(_offers(count, offer.get(RESOURCE)) for offer in offers)


def _offers(count: int, quantity: str | None) -> bool:
    if quantity is None:
        return False
    try:
        return parse_quantity(quantity) == count * NANO
    except QuantityError:
        return False
