"""A stored inventory or hold that cannot be is refused when it is read, whoever wrote it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bus.records.devices import decode_hold, decode_inventory
from tas.errors import InvalidInputError
from tas.gpu.names import MAX_CARDS, MAX_TILES, TILES

GOLDEN = Path(__file__).parents[2] / "contract" / "golden" / "bus"
INVENTORY = json.loads((GOLDEN / "node-inventory.json").read_bytes())
HOLD = json.loads((GOLDEN / "node-hold.json").read_bytes())
FIRST, SECOND = HOLD["pods"]


def card(number: int, **amounts: int) -> dict[str, Any]:
    return {"number": number, "capacity": {f"gpu.intel.com/{name}": amount for name, amount in amounts.items()}}


def inventory(*cards: dict[str, Any], **facts: Any) -> bytes:
    return json.dumps(INVENTORY | {"inventory": {"cards": cards}, "facts": facts}).encode()


def test_an_inventory_at_its_limits_is_read() -> None:
    found = decode_inventory(inventory(*(card(number, tiles=MAX_TILES) for number in range(MAX_CARDS))))
    assert len(found.inventory.cards) == MAX_CARDS


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(inventory(*map(card, range(MAX_CARDS + 1))), "cards = 513: must be at most 512", id="many-cards"),
        pytest.param(inventory(card(1), card(0)), "must be in ascending order, each once", id="order"),
        pytest.param(inventory(card(1), card(1)), "must be in ascending order, each once", id="twice"),
        pytest.param(inventory(card(-1)), "Expected `int` >= 0", id="number-below-0"),
        pytest.param(inventory(card(1_000_000)), "Expected `int` <= 999999", id="number"),
        pytest.param(inventory(card(0, tiles=MAX_TILES + 1)), f"{TILES} = 65: must be at most 64", id="many-tiles"),
        pytest.param(inventory(card(0, i915=-1)), "Expected `int` >= 0", id="amount-below-0"),
        pytest.param(inventory(card(0, i915=2**63)), "Expected `int` <= 9223372036854775807", id="amount"),
        pytest.param(inventory(disabled={"-1": ["p"]}), "Expected `int` >= 0", id="fact"),
    ],
)
def test_an_inventory_that_cannot_be_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(problem)):
        decode_inventory(data)


def hold(**shares: dict[str, Any]) -> bytes:
    """The hold with other shares of its pods: the verified one is `first`, the adopted one `second`."""
    pods = json.loads(json.dumps(HOLD["pods"]))
    for name, share in shares.items():
        pods[FIRST if name == "first" else SECOND]["assignment"]["slots"][0]["shares"] = [share]
    return json.dumps(HOLD | {"pods": pods}).encode()


def test_an_adopted_pod_may_name_the_tile_of_a_verified_one() -> None:
    found = decode_hold(hold(first={"card": 0, "tiles": [0]}, second={"card": 0, "tiles": [0]}))
    assert found.hold.cards[0].owners == {0: (FIRST, SECOND)}


def test_two_verified_pods_cannot_have_one_tile() -> None:
    document = json.loads(hold(first={"card": 0, "tiles": [0]}, second={"card": 0, "tiles": [0]}))
    del document["pods"][SECOND]["verified"]
    with pytest.raises(InvalidInputError, match="card0:gt0 belongs to pod default/web-1"):
        decode_hold(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("share", "problem"),
    [
        pytest.param({"card": -1}, "Expected `int` >= 0", id="card"),
        pytest.param({"card": 0, "tiles": [-1]}, "Expected `int` >= 0", id="tile"),
        pytest.param({"card": 0, "tiles": [10**9]}, "Expected `int` <= 999999", id="large-tile"),
        pytest.param({"card": 0, "amounts": {"a": -1}}, "Expected `int` >= 0", id="amount"),
        pytest.param({"card": 1, "amounts": {"gpu.intel.com/i915": 2**63 - 1}}, "must be at most", id="sum"),
    ],
)
def test_a_hold_that_cannot_be_is_refused(share: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(problem)):
        decode_hold(hold(first=share))
