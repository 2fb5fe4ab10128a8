"""By what nodes are scored for a pod that needs GPU cards; how is in `tas.gpu.node_score`."""

from enum import StrEnum


class CardScore(StrEnum):
    """By what nodes are scored; preferred cards count always."""

    PACK = "pack"
    """Fuller nodes first, so that whole nodes stay free."""
    SPREAD = "spread"
    """Emptier nodes first."""
    PREFER = "prefer"
    """Only preferred cards."""
