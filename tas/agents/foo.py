"""The agent `foo`: accepts every node and prefers none. The smallest agent, to be copied."""

import numpy as np

from tas.agents.agent import Agent, Candidates, Passes, PodDemand, Scores


class Foo(Agent):
    """An agent without needs and options."""

    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        """Every node passes."""
        everywhere = np.ones(len(nodes.names), dtype=np.bool_)
        return Passes(passed=everywhere, known=everywhere, reason="never")

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """All nodes are equal."""
        count = len(nodes.names)
        return Scores(values=np.full(count, 0.1), known=np.ones(count, dtype=np.bool_))
