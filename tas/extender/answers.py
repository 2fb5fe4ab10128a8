"""Answers to kube-scheduler: decisions as JSON of the types in `extender/v1`.

Keys are in the exact case (facts.md c5). Candidates are returned in the form of the request (facts.md c14), without any
other node (facts.md c15).
"""

from collections.abc import Collection
from typing import TypeVar

import msgspec
import orjson
from msgspec import Raw

from tas.extender.decision import FilterDecision, ScoreDecision
from tas.extender.wire import ExtenderArgs, remember_names
from tas.scoring.score import Ranking

T = TypeVar("T")


def filter_result(args: ExtenderArgs, decision: FilterDecision) -> bytes:
    """An ExtenderFilterResult. With an `Error` it has no nodes: the scheduler reads only the error (facts.md c17)."""
    rejected = {} if decision.error else decision.rejected
    rest = orjson.dumps(
        {
            "FailedNodes": {} if decision.unresolvable else rejected,
            "FailedAndUnresolvableNodes": rejected if decision.unresolvable else {},
            "Error": decision.error,
        },
        default=dict,  # a decider may return any Mapping
    )
    names = b"null"
    if args.node_names is not None and not decision.error:
        passed_names = _without(rejected, args.node_names)
        names = orjson.dumps(list(passed_names))
        if rejected:  # else this is the list of the request, which is already remembered
            remember_names(names, passed_names)
    tail = b',"NodeNames":' + names + b"," + rest[1:]
    if args.nodes is None or decision.error:
        return b'{"Nodes":null' + tail
    return _join(b'{"Nodes":{"metadata":{},"items":[', list(_without(rejected, args.nodes).values()), b"]}" + tail)


def _without(rejected: Collection[str], candidates: dict[str, T]) -> dict[str, T]:
    """The candidates that pass. To copy and remove is four times as fast as to look up each candidate."""
    if not rejected:
        return candidates
    passed = candidates.copy()
    for name in rejected:
        passed.pop(name, None)
    return passed


def _join(head: bytes, items: list[Raw], tail: bytes) -> bytes:
    """`items` with commas between `head` and `tail`, in one copy: there may be 35 MB of them."""
    if not items:
        return head + tail
    pieces: list[bytes | Raw] = [*items]
    pieces[0] = head + bytes(pieces[0])
    pieces[-1] = bytes(pieces[-1]) + tail
    return b",".join(pieces)


class HostPriority(msgspec.Struct, gc=False):
    """The score of one node: an integer, else the scheduler rejects the whole list."""

    Host: str
    Score: int


_encoder = msgspec.json.Encoder()


def host_priorities(decision: ScoreDecision) -> bytes:
    """A HostPriorityList; an empty one if nothing was scored."""
    scores = decision.scores
    if scores is None:
        return b"[]"
    if isinstance(scores, Ranking) and (written := _written_by_score(scores)) is not None:
        return written
    return _encoder.encode(list(map(HostPriority, scores, scores.values())))


def _written_by_score(ranking: Ranking) -> bytes | None:
    """A HostPriorityList of a ranking; None if JSON would escape a character of a name.

    The text between two names of one score is always the same, so the names are joined with it. That takes a third of
    the time of one object for each host.
    """
    if b"\\" in orjson.dumps(list(ranking)):
        return None
    pieces = []
    for score, hosts in ranking.by_score():
        start, end = '{"Host":"', f'","Score":{score}}}'
        pieces.append(start + f"{end},{start}".join(hosts) + end)
    return f"[{','.join(pieces)}]".encode()


def error_body(text: str) -> bytes:
    """The body of any status but 200, for a person: the scheduler never reads it (facts.md c3)."""
    return orjson.dumps({"error": text})
