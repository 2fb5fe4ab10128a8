"""The public API for agents: scheduling algorithms of your own that run beside those of the product.

An agent is a subclass of `Agent`, registered as an entry point of the group `tas.agents`. `faults` is for its tests.
"""

from tas.agents.agent import (
    Agent,
    BoolArray,
    Candidates,
    Columns,
    ContainerDemand,
    FloatArray,
    Missing,
    Needs,
    Passes,
    PodDemand,
    Rounding,
    Scores,
)
from tas.agents.conformance import faults
from tas.outcomes.outcome import Outcome, Placed, Result

__all__ = [
    "Agent",
    "BoolArray",
    "Candidates",
    "Columns",
    "ContainerDemand",
    "FloatArray",
    "Missing",
    "Needs",
    "Outcome",
    "Passes",
    "Placed",
    "PodDemand",
    "Result",
    "Rounding",
    "Scores",
    "faults",
]
