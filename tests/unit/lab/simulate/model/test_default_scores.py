"""The default scores equal those of kube-scheduler: cases of its own tests (1.36.3; facts.md c51, c52), and by hand."""

import numpy as np
import pytest

from lab.simulate.model.default_scores import UNREQUESTED, balanced_allocation, fits, least_allocated

LEAST = {
    # requested with the pod: (cpu, memory) of each node, allocatable of each node, scores
    "nothing requested": ([(0, 0), (0, 0)], [(4000, 10000)] * 2, [100, 100]),
    "nodes of different sizes": ([(3000, 5000)] * 2, [(4000, 10000), (6000, 10000)], [37, 50]),
    "pods on the nodes": ([(6000, 0), (6000, 5000)], [(10000, 20000)] * 2, [70, 57]),
    "a pod and pods on the nodes": ([(6000, 5000), (6000, 10000)], [(10000, 20000)] * 2, [57, 45]),
    "of different sizes with pods": ([(6000, 5000), (6000, 10000)], [(10000, 20000), (10000, 50000)], [57, 60]),
    "more than there is": ([(6000, 0), (6000, 5000)], [(4000, 10000)] * 2, [50, 25]),
    "nodes with nothing": ([(3000, 0), (3000, 5000)], [(0, 0)] * 2, [0, 0]),
    "a node without memory": ([(1000, 500)], [(4000, 0)], [75]),
    "each resource is rounded down": ([(1, 1)], [(3, 3)], [66]),
    "and the mean too": ([(0, 1)], [(3, 100)], [99]),
}

BALANCED = {
    # the pod, requested without it, allocatable, scores
    "no request is not scored": ((0, 0), [(0, 0)] * 2, [(4000, 10000)] * 2, [0, 0]),
    "nodes of different sizes": ((3000, 5000), [(0, 0)] * 2, [(4000, 10000), (6000, 10000)], [68, 75]),
    "pods on the nodes": ((3000, 5000), [(3000, 0), (3000, 5000)], [(10000, 20000)] * 2, [73, 74]),
    "sizes and pods": ((3000, 5000), [(3000, 0), (3000, 5000)], [(10000, 20000), (10000, 50000)], [73, 70]),
    "the limits of the score": ((0, 5000), [(3000, 0), (0, 0)], [(3000, 5000)] * 2, [100, 50]),
    "cpu only": ((3000, 0), [(3000, 0), (3000, 5000)], [(6000, 10000)] * 2, [62, 62]),
    "more than there is is all": ((3000, 0), [(3000, 0)], [(4000, 10000)], [69]),
    "one resource is always even": ((1000, 500), [(0, 0)], [(4000, 0)], [75]),
}


def columns(rows: list[tuple[int, int]]) -> np.ndarray:
    return np.array(rows, dtype=np.int64).T


@pytest.mark.parametrize("case", LEAST.values(), ids=LEAST)
def test_least_allocated(case: tuple[list[tuple[int, int]], list[tuple[int, int]], list[int]]) -> None:
    requested, allocatable, scores = case
    assert least_allocated(columns(requested), columns(allocatable)).tolist() == scores


@pytest.mark.parametrize("case", BALANCED.values(), ids=BALANCED)
def test_balanced_allocation(
    case: tuple[tuple[int, int], list[tuple[int, int]], list[tuple[int, int]], list[int]],
) -> None:
    request, requested, allocatable, scores = case
    found = balanced_allocation(np.array(request, dtype=np.int64), columns(requested), columns(allocatable))
    assert found.tolist() == scores


def test_large_nodes_do_not_overflow() -> None:
    assert least_allocated(columns([(0, 1 << 44)]), columns([(10**6, 1 << 46)])).tolist() == [(100 + 75) // 2]


def test_what_is_not_requested_counts_a_little() -> None:
    assert UNREQUESTED.tolist() == [100, 209_715_200]


def test_a_pod_fits_if_there_is_room_for_what_it_requests() -> None:
    requested, allocatable = columns([(3500, 0), (3501, 0), (0, 16), (4200, 16)]), columns([(4000, 16)] * 4)
    assert fits(np.array([500, 0]), requested, allocatable).tolist() == [True, False, True, False]
    assert fits(np.array([0, 0]), requested, allocatable).all()
