"""The schedulers of all control plane nodes."""

import pytest

from tas.configuring.control_planes import SchedulerState, differences

GOOD = SchedulerState(node="a", digest="1", ready=True)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (SchedulerState(node="b", digest="1", ready=True), []),
        (SchedulerState(node="b", digest=None, ready=True), ["b: not configured"]),
        (SchedulerState(node="b", digest="1", ready=False), ["b: configured, not ready"]),
        (SchedulerState(node="b", digest=None, ready=None), ["b: no scheduler"]),
        (SchedulerState(node="b", digest="2", ready=True), ["2 different configurations"]),
    ],
)
def test_a_node_that_differs_is_named(state: SchedulerState, words: list[str]) -> None:
    found = differences([GOOD, state])
    assert len(found) == len(words)
    assert all(each.startswith(word) for each, word in zip(found, words, strict=True))


def test_no_node_is_a_difference() -> None:
    assert differences([]) == ["no control plane nodes"]
