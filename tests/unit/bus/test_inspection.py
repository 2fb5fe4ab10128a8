"""What answers of nats-server 2.15.1 say about the copies of a stream in a cluster of three servers."""

from typing import Any

import pytest

from bus.streams import has_majority, late_copies

N0, N1, N2 = ({"name": name, "current": True, "active": 152682520} for name in ("n0", "n1", "n2"))
GONE: dict[str, Any] = {"current": False, "active": 13912062402}


def answer(copies: int, **cluster: Any) -> dict[str, Any]:
    return {"config": {"num_replicas": copies}, "cluster": {"name": "trio", **cluster}}


@pytest.mark.parametrize(
    ("found", "majority", "late"),
    [
        (answer(1, leader="n2"), True, []),
        (answer(3, leader="n0", replicas=[N1, N2]), True, []),
        (answer(3, leader="n0", replicas=[N1 | GONE, N2]), True, ["n1"]),
        (answer(3, leader="n0", replicas=[N1 | {"offline": True}, N2]), True, ["n1"]),
        # A leader that has lost both others, and does not know yet that it leads nobody.
        (answer(3, leader="n0", replicas=[N1 | GONE, N2 | GONE]), False, ["n1", "n2"]),
        (answer(3, replicas=[N0, N1 | GONE, N2 | GONE]), False, ["n1", "n2"]),
        (answer(1), False, []),
    ],
)
def test_most_copies_follow_a_leader_or_not(found: dict[str, Any], majority: bool, late: list[str]) -> None:
    assert has_majority(found) is majority
    assert late_copies(found) == late
