"""Which cards and tiles the containers of a pod get."""

from collections.abc import Iterator

import msgspec

from tas.gpu.amounts import Amounts
from tas.gpu.names import Number


class Share(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What one container has of one card: its amounts, and the tiles in the order in which they were chosen."""

    card: Number
    amounts: Amounts = {}
    tiles: tuple[Number, ...] = ()


class SlotAssignment(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What one container has: a share of each of its cards; none if it needs no card."""

    container: str
    shares: tuple[Share, ...] = ()


class Assignment(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, rename="camel"):
    """What a pod has of a node.

    Attributes:
        slots: One for each container, in the order of the spec.
        node_amounts: What it has of the node as a whole.
    """

    slots: tuple[SlotAssignment, ...]
    node_amounts: Amounts = {}

    def shares(self) -> Iterator[Share]:
        """The shares of all containers."""
        for slot in self.slots:
            yield from slot.shares
