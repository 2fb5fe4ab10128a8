"""The agent `congestion`, by the vectors of its formula."""

from math import floor, nan

import pytest

from tas.agents.congestion import Congestion, CongestionOptions, Link
from tests.unit.tas.agents.nodes import Nodes, pod

VECTORS = [
    ("C2", 100, 0, 10),
    ("C3", 100, 5, 10),
    ("C4", 100, 6, 9),
    ("C5", 100, 15, 9),
    ("C6", 100, 50, 5),
    ("C7", 100, 95, 1),
    ("C8", 100, 96, 0),
    ("C9", 100, 100, 0),
    ("C10", 100, 250, 0),
    ("C11", 100, -7, 10),
    ("C13", 100, 20, 8),
    ("C14", 10, 1, 9),
    ("C15", 10, 5, 5),
    ("C16", 10, 10, 0),
    ("C17", 7, 3, 6),
    ("C18", 7, 4, 4),
]


@pytest.mark.parametrize(
    ("limit", "factor", "score"), [each[1:] for each in VECTORS], ids=[each[0] for each in VECTORS]
)
def test_vector(limit: float, factor: float, score: int) -> None:
    """The score of a factor."""
    agent = Congestion(CongestionOptions(limit=limit))
    scores = agent.score(pod(), Nodes(1, metrics={"congestion-factor": [factor]}))
    assert scores.known.all()
    assert floor(10 * scores.values[0] + 0.5) == score


def test_vectors_c1_c12_without_a_factor_there_is_no_opinion() -> None:
    """Absent, or text that is no number, which no source publishes: the original gives the best score (D-C1)."""
    assert not Congestion(CongestionOptions()).score(pod(), Nodes(2)).known.any()


def test_defect_c1_the_factor_is_derived_from_traffic() -> None:
    """Of the fullest direction; a lost packet counts like a full link. A given factor counts first."""
    links = (Link(traffic="rx", capacity=1000.0), Link(traffic="tx", capacity=1000.0, capacity_metric="tx_capacity"))
    agent = Congestion(CongestionOptions(limit=10.0, links=links, drops="drops"))
    metrics = {
        "rx": [100.0, 100.0, 100.0, 100.0, nan, nan],
        "tx": [200.0, 200.0, 200.0, 200.0, nan, 200.0],
        "tx_capacity": [nan, 400.0, nan, nan, 400.0, 0.0],
        "drops": [nan, nan, 0.9, nan, nan, nan],
        "congestion-factor": [nan, nan, nan, 7.0, nan, nan],
    }
    scores = agent.score(pod(), Nodes(6, metrics=metrics))
    assert scores.terms["factor"][:4].tolist() == [2.0, 5.0, 9.0, 7.0]
    assert scores.known.tolist() == [True, True, True, True, False, False]
    assert set(agent.needs.metrics) == metrics.keys()
