"""Why a pod cannot have cards of a node."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class Cause(StrEnum):
    """The kinds of refusals, with the texts of the original."""

    WILL_NOT_FIT = "will not fit"
    BAD_ARGS = "bad args"
    """A request or a combination of wishes that no node can fulfil."""
    MALFORMED_ANNOTATION = "malformed annotation"
    RESOURCES_CONFLICT = "resources conflict"
    """Resources that a container must not request together, or not with its pod's wishes."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a claim has no assignment.

    Attributes:
        cause: The kind.
        reason: One line without amounts of the node, because the scheduler groups nodes with equal reasons.
        cards: Why each card does not serve, by its number; empty if the reason is not about cards.
        permanent: Whether every node refuses the pod, until somebody changes the pod: evictions cannot help.
    """

    cause: Cause
    reason: str
    cards: Mapping[int, str] = {}
    permanent: bool = False

    def __str__(self) -> str:
        return f"{self.cause}: {self.reason}"


PREFIX = "Not enough GPU-resources for deployment: "
"""The first words of every reason, as in the original."""


class Why(StrEnum):
    """Why filter or bind refuses a node: a label of metrics."""

    WILL_NOT_FIT = "will_not_fit"
    NEVER = "never"
    """The claim of the pod can be fulfilled by no node."""
    UNKNOWN_NODE = "unknown_node"
    """The inventory or the hold of the node is not known."""
    GIVEN_UP = "given_up"
    """Other candidates of the request have used up all steps of the search."""


TEXTS = {
    Why.WILL_NOT_FIT: f"{PREFIX}will not fit",
    Why.UNKNOWN_NODE: f"{PREFIX}the cards of the node are not known yet",
    Why.GIVEN_UP: f"{PREFIX}the search took too many steps on other nodes",
}
"""The reasons of refusals that are not for ever. The scheduler groups equal reasons, so they have no details."""
