"""Amounts of GPU resources: whole numbers up to the largest int64, and sums of them by resource."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from tas.errors import TasError
from tas.values.quantity import NANO, Quantity, QuantityError, exact_text, parse_quantity

MAX_AMOUNT = 2**63 - 1
"""The largest amount: what an integer of Kubernetes holds."""

Amounts = Mapping[str, Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)]]
"""Amounts by resource, in the resource's own unit: bytes, tiles, or whatever it counts."""


class AmountError(TasError, ValueError):
    """An amount or a sum that cannot be; the message gives the reason."""


def parse_amount(text: str) -> int:
    """The amount of a quantity: `2`, `500M`, `8Gi`. Raises AmountError unless it is whole and 0 to `MAX_AMOUNT`."""
    try:
        quantity = parse_quantity(text)
    except QuantityError as error:
        raise AmountError(str(error)) from error
    amount, rest = divmod(quantity, NANO)
    if quantity < 0:
        raise AmountError("must not be negative")
    if rest:
        raise AmountError("must be a whole number")
    if amount > MAX_AMOUNT:
        raise AmountError(f"must be at most {MAX_AMOUNT}")
    return amount


def amount_text(amount: int) -> str:
    """The exact amount for people: `500`, `8Gi`."""
    return exact_text(Quantity(amount * NANO))


def increased(sums: Amounts, amounts: Amounts) -> Amounts:
    """`sums` with `amounts` added. Raises AmountError if an amount is negative, or a sum exceeds `MAX_AMOUNT`."""
    if not amounts:
        return sums
    result = dict(sums)
    for resource, amount in amounts.items():
        if amount:
            total = result.get(resource, 0) + _checked(resource, amount)
            if total > MAX_AMOUNT:
                raise AmountError(f"{resource} = {total}: must be at most {MAX_AMOUNT}")
            result[resource] = total
    return result


def decreased(sums: Amounts, amounts: Amounts) -> Amounts:
    """`sums` without `amounts`, never below 0; a sum of 0 is left out.

    Raises AmountError if an amount is negative, or of a resource that `sums` does not have.
    """
    result = dict(sums)
    for resource, amount in amounts.items():
        if amount:
            if resource not in sums:
                raise AmountError(f"{resource} = {amount}: nothing of it is held")
            result[resource] = max(result[resource] - _checked(resource, amount), 0)
    return {resource: amount for resource, amount in result.items() if amount}


def _checked(resource: str, amount: int) -> int:
    if amount < 0:
        raise AmountError(f"{resource} = {amount}: must not be negative")
    return amount
