"""What is refused of an outcome on the bus."""

import json
import random
from typing import Any

import pytest

from bus.connection import DEFAULT_VALUE_BYTES
from bus.records.agents import LearnedState, encode_learned
from bus.records.outcomes import MAX_UID, decode_outcome
from tas.agents.rewards import MAX_REWARDS, MAX_RUNS, SNAPSHOT_VERSION, RewardOptions, Rewards
from tas.errors import InvalidInputError
from tas.outcomes.outcome import Outcome, Placed, Result

LONGEST: dict[str, Any] = {
    "type": "run",
    "uid": "u" * MAX_UID,
    "node": "n" * 253,
    "container": "c" * 63,
    "restart": 0,
    "result": "failed",
    "at": "2026-11-26T00:00:00Z",
    "namespace": "a" * 63,
    "labels": {"podtype": "p" * 63},
}


PLACED = {"type": "placed"} | {field: LONGEST[field] for field in ("uid", "node", "at", "namespace")}


def test_an_outcome_may_have_the_longest_names_of_kubernetes() -> None:
    found = decode_outcome(json.dumps(LONGEST).encode())
    assert isinstance(found, Outcome)
    assert (found.uid, found.node, found.labels) == (LONGEST["uid"], LONGEST["node"], LONGEST["labels"])
    assert found.namespace == LONGEST["namespace"]
    placed = decode_outcome(json.dumps(PLACED).encode())
    assert isinstance(placed, Placed)
    assert (placed.uid, placed.node, placed.namespace) == (found.uid, found.node, found.namespace)


def test_the_largest_state_of_rl_priority_fits_a_message_of_the_bus() -> None:
    """Of equal chances for each digit, which cannot be compressed further; and each reward in another namespace."""
    rng = random.Random(1)

    def number() -> int:
        return rng.getrandbits(64)

    rewards = [[number(), [[number(), rng.random() * 1e-9, rng.random() * 1e9]]] for _ in range(MAX_REWARDS)]
    agent = Rewards(RewardOptions())
    runs = [[number(), rng.choice(list(Result))] for _ in range(MAX_RUNS)]
    agent.restore({"version": SNAPSHOT_VERSION, "rewards": rewards, "runs": runs})
    record = LearnedState(agent="rl-priority", sequence=2**63, since=1 / 3, state=agent.snapshot())
    assert len(encode_learned(record)) < 1000 << 10 < DEFAULT_VALUE_BYTES


@pytest.mark.parametrize(
    ("longest", "field"),
    [
        *((LONGEST, field) for field in ("uid", "node", "container", "namespace", "labels")),
        *((PLACED, field) for field in ("uid", "node", "namespace")),
    ],
)
def test_longer_names_are_refused_since_agents_would_keep_thousands_of_them(
    longest: dict[str, Any], field: str
) -> None:
    value = {"podtype": "p" * 64} if field == "labels" else longest[field] + "x"
    with pytest.raises(InvalidInputError, match=field):
        decode_outcome(json.dumps(longest | {field: value}).encode())
