"""The default filter and scores of kube-scheduler for cpu and memory, of all nodes at once (facts.md c51, c52).

Arrays have a row for each of `RESOURCES` and a column for each node, as integers: cpu in millicores, memory in bytes.
Other default plugins are left out: they give all nodes the same score unless a pod has affinities, tolerations,
topology constraints or images that some nodes already have.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

RESOURCES = ("cpu", "memory")

MAX_NODE_SCORE = 100

UNREQUESTED = np.array([100, 200 << 20], dtype=np.int64)
"""What a container without a request counts in `least_allocated`, so that such pods do not all go to one node."""


def fits(request: IntArray, requested: IntArray, allocatable: IntArray) -> BoolArray:
    """Whether each node has room for a pod; a resource that the pod does not request does not matter."""
    room: BoolArray = ((request[:, None] == 0) | (request[:, None] <= allocatable - requested)).all(axis=0)
    return room


def least_allocated(requested: IntArray, allocatable: IntArray) -> IntArray:
    """From 0 to 100: the free part after the pod, as the mean over the resources that the node has.

    `requested` includes the pod, with `UNREQUESTED` for what is not requested.
    """
    has = allocatable > 0
    size = np.where(has, allocatable, 1)
    free = np.where(has & (requested <= allocatable), (allocatable - requested) * MAX_NODE_SCORE // size, 0)
    scores: IntArray = free.sum(axis=0) // np.maximum(has.sum(axis=0), 1)
    return scores


def balanced_allocation(request: IntArray, requested: IntArray, allocatable: IntArray) -> IntArray:
    """From 50 to 100: how much the pod brings the used parts of the resources together; 75 if it changes nothing.

    `requested` is without the pod. A pod without requests is not scored: 0 everywhere.
    """
    if not request.any():
        return np.zeros(allocatable.shape[1], dtype=np.int64)
    after = _evenness(requested + request[:, None], allocatable)
    before = _evenness(requested, allocatable)
    scores: IntArray = 50 + (50 + after - before) // 2
    return scores


def _evenness(requested: IntArray, allocatable: IntArray) -> IntArray:
    """100 · (1 - standard deviation of the used parts), of the resources that the node has."""
    has = allocatable > 0
    parts = np.where(has, np.minimum(requested / np.where(has, allocatable, 1), 1.0), 0.0)
    deviation = np.where(has.all(axis=0), np.abs((parts[0] - parts[1]) / 2), 0.0)
    return ((1 - deviation) * MAX_NODE_SCORE).astype(np.int64)
