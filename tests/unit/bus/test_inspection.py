"""What answers of nats-server 2.15.1 say about the copies of a stream in a cluster of three servers."""

from typing import Any, cast

import pytest

from bus.buckets import ALL, SAMPLES, configuration
from bus.connection import Bus
from bus.inspection import TRIES, inspect
from bus.link import ServerInfo
from bus.rights.access import Loaded
from bus.streams import has_majority, late_copies
from tas.values.backoff import Backoff

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


class Trio:
    """A server of a cluster, whose answers about SAMPLES are given one after the other; the last one stays."""

    address = "nats://127.0.0.1:4222"
    server = ServerInfo("S", "2.15.1", "trio")
    loaded = Loaded()

    def __init__(self, *replicas: list[Any]) -> None:
        self.link = self
        self.asked = 0
        self._left = list(replicas)

    async def api(self, verb: str) -> dict[str, Any]:
        name = verb.removeprefix("STREAM.INFO.")
        replicas: list[Any] = [N1, N2]
        if name == SAMPLES.stream:
            self.asked += 1
            replicas = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        (of,) = (each for each in ALL if each.stream == name)
        config = configuration(of, first_sequence=1, replicas=3)
        return {"config": config, "state": {}, "ts": "2026-11-27T00:00:00Z"} | {
            "cluster": {"leader": "n0", "replicas": replicas}
        }


@pytest.mark.parametrize(
    ("replicas", "late", "asked"),
    [
        ([[N1, N2]], {}, 1),
        ([[N1 | GONE, N2], [N1, N2]], {}, 2),
        ([[N1 | GONE, N2], [N1, N2 | GONE], [N1, N2]], {}, 3),
        ([[N1 | GONE, N2]], {"n1": [SAMPLES.stream]}, TRIES.times),
    ],
    ids=["up to date", "a moment behind", "one after the other", "behind"],
)
async def test_a_copy_that_is_behind_for_a_moment_is_up_to_date(
    monkeypatch: pytest.MonkeyPatch, replicas: list[list[Any]], late: dict[str, list[str]], asked: int
) -> None:
    """Of a working cluster at 150 messages a second, 3 % of the answers say that a copy is behind."""
    monkeypatch.setattr("bus.inspection.TRIES", TRIES._replace(wait=Backoff(first=0.0, longest=0.0)))
    bus = Trio(*replicas)
    facts, _ = await inspect(cast("Bus", bus))
    assert facts.late == late
    assert bus.asked == asked
