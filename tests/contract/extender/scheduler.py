"""How kube-scheduler reads an answer: the rules of its client (`pkg/scheduler/extender.go`), but strict.

Its decoder accepts keys in any case and ignores unknown keys; our answers have all keys in the exact case.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

FILTER_KEYS = ["Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"]


class ExtenderError(Exception):
    """The scheduler counts the call as failed."""


@dataclass(frozen=True)
class Feasible:
    """The nodes that pass a filter call, and the reasons of the rejected nodes."""

    nodes: list[str]
    failed: dict[str, str]
    unresolvable: dict[str, str]


def read_filter_result(body: bytes, candidates: Collection[str], *, node_cache_capable: bool) -> Feasible:
    """The outcome of a filter call. Raises ExtenderError if the scheduler does, AssertionError for another form."""
    answer = json.loads(body)
    assert list(answer) == FILTER_KEYS
    failed, unresolvable = _reasons(answer["FailedNodes"]), _reasons(answer["FailedAndUnresolvableNodes"])
    if answer["Error"] != "":  # facts.md c17
        assert (answer["Nodes"], answer["NodeNames"], failed, unresolvable) == (None, None, {}, {})
        raise ExtenderError(answer["Error"])
    if node_cache_capable:  # facts.md c14: the form of the request
        assert answer["Nodes"] is None
        nodes = answer["NodeNames"]
    else:
        assert answer["NodeNames"] is None
        assert set(answer["Nodes"]) == {"metadata", "items"}
        nodes = [item["metadata"]["name"] for item in answer["Nodes"]["items"]]
    assert isinstance(nodes, list)  # facts.md c16: null would mean that nothing is feasible
    for name in nodes:
        if name not in candidates:  # facts.md c15
            raise ExtenderError(f"claims a filtered node {name!r} which is not found in the input node list")
    assert len(set(nodes)) == len(nodes)
    assert {*nodes, *failed, *unresolvable} == set(candidates)  # facts.md c19: each missing node has a reason
    assert not set(nodes) & {*failed, *unresolvable}
    return Feasible(nodes, failed, unresolvable)


def read_host_priorities(body: bytes, candidates: Collection[str]) -> dict[str, int]:
    """The score of each node that was given one."""
    answer = json.loads(body)
    assert isinstance(answer, list)
    scores: dict[str, int] = {}
    for host in answer:
        assert list(host) == ["Host", "Score"]
        name, score = host["Host"], host["Score"]
        assert type(score) is int  # decoded as int64: 7.0 would fail the whole answer
        assert 0 <= score <= 10  # facts.md c25: not clamped
        assert name in candidates
        assert name not in scores  # facts.md c26: twice would count twice
        scores[name] = score
    return scores


def _reasons(value: Any) -> dict[str, str]:
    assert isinstance(value, dict)
    assert all(isinstance(reason, str) and reason for reason in value.values())
    return value
