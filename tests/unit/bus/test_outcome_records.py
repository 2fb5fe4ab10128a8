"""What is refused of an outcome on the bus."""

import json
from typing import Any

import pytest

from bus.records.outcomes import MAX_UID, decode_outcome
from tas.errors import InvalidInputError
from tas.outcomes.outcome import Outcome

LONGEST: dict[str, Any] = {
    "type": "run",
    "uid": "u" * MAX_UID,
    "node": "n" * 253,
    "container": "c" * 63,
    "restart": 0,
    "result": "failed",
    "at": "2026-11-26T00:00:00Z",
    "labels": {"podtype": "p" * 63},
}


def test_an_outcome_may_have_the_longest_names_of_kubernetes() -> None:
    found = decode_outcome(json.dumps(LONGEST).encode())
    assert isinstance(found, Outcome)
    assert (found.uid, found.node, found.labels) == (LONGEST["uid"], LONGEST["node"], LONGEST["labels"])


@pytest.mark.parametrize("field", ["uid", "node", "container", "labels"])
def test_longer_names_are_refused_since_agents_would_keep_thousands_of_them(field: str) -> None:
    value = {"podtype": "p" * 64} if field == "labels" else LONGEST[field] + "x"
    with pytest.raises(InvalidInputError, match=field):
        decode_outcome(json.dumps(LONGEST | {field: value}).encode())
