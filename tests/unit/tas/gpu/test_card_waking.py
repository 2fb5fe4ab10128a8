"""When a node is annotated so that the scheduler tries pods again that wait for cards, and which node."""

from collections.abc import Set
from itertools import pairwise

import pytest

from tas.enforcing.waking import SOON, SPACING, Wake
from tas.gpu.card_waking import CardWakes, waits_for_cards
from tas.gpu.policy_facts import PolicyFacts, read_policy_facts
from tas.gpu.refusal import PREFIX, TEXTS, Why
from tests.unit.tas.gpu.notation import Node

CARDS = Node("N(0,1) i2").inventory
MORE_CARDS = Node("N(0,1,2) i2").inventory
NO_FACTS = PolicyFacts()
SOME_FACTS = read_policy_facts({"telemetry.aware.scheduling.p/gas-disable-card1": "true"}, {})
POD, OTHER = "pod", "other"
FULL = frozenset({"x", "y"})


def set_node(wakes: CardWakes, name: str, holders: Set[str], *, at: float, uid: str = "u") -> None:
    wakes.set_node(name, uid, CARDS, NO_FACTS, holders, at=at)


def waits_for_long(*nodes: str) -> CardWakes:
    """A pod has waited for long, while each node was full."""
    wakes = CardWakes()
    for name in nodes:
        set_node(wakes, name, FULL, at=-1000.0)
    wakes.set_pod(POD, at=-1000.0)
    assert taken(wakes, -10.0)
    return wakes


def taken(wakes: CardWakes, until: float) -> list[tuple[float, str]]:
    """When each node is annotated, up to a time."""
    found = []
    while wakes.due is not None and wakes.due <= until:
        at = wakes.due
        if (wake := wakes.take(at)) is not None:
            found.append((at, wake.node))
    return found


def times(wakes: CardWakes, until: float) -> list[float]:
    return [at for at, _ in taken(wakes, until)]


def test_a_pod_that_loses_its_cards_wakes_at_once_then_less_and_less_often() -> None:
    wakes = waits_for_long("n")
    set_node(wakes, "n", {"x"}, at=0.0)
    assert times(wakes, 130.0) == [0.0, 1.5, 3.0, 6.0, 11.0, 21.0, 36.0, 51.0, 66.0, 126.0]


def test_other_cards_and_other_facts_wake_at_once() -> None:
    for inventory, facts in ((MORE_CARDS, NO_FACTS), (CARDS, SOME_FACTS)):
        assert (inventory, facts) != (CARDS, NO_FACTS)
        wakes = waits_for_long("n")
        wakes.set_node("n", "u", inventory, facts, FULL, at=0.0)
        assert wakes.due == 0.0


def test_a_pod_that_gets_cards_and_a_record_as_before_wake_nobody() -> None:
    wakes = waits_for_long("n")
    before = wakes.due
    assert before is not None
    set_node(wakes, "n", FULL | {"z"}, at=0.0)
    set_node(wakes, "n", FULL | {"z"}, at=0.0)
    assert wakes.due == before > 0.0


def test_a_pod_that_begins_to_wait_and_a_node_that_becomes_known_wake_soon() -> None:
    wakes = CardWakes()
    set_node(wakes, "n", FULL, at=0.0)
    assert taken(wakes, 10.0) == []
    wakes.set_pod(POD, at=10.0)
    assert wakes.due == 10.0 + SOON
    wakes.take(10.0 + SOON)
    for name, uid in (("first", "u"), ("n", "another")):
        wakes = waits_for_long("n")
        set_node(wakes, name, set(), at=0.0, uid=uid)
        assert wakes.due == SOON


def test_a_pod_that_begins_to_wait_just_after_cards_were_freed_is_woken_at_once() -> None:
    wakes = CardWakes()
    set_node(wakes, "n", FULL, at=-1000.0)
    set_node(wakes, "n", set(), at=0.0)
    assert wakes.due is None  # nobody waits
    wakes.set_pod(POD, at=5.9)
    assert wakes.take(5.9) == Wake("n", "u")


def test_the_node_with_free_cards_comes_first_and_then_the_others_in_turn() -> None:
    wakes = waits_for_long("a", "b", "c")
    set_node(wakes, "c", {"x"}, at=0.0)
    names = [name for _, name in taken(wakes, 3.0)]
    assert names[0] == "c"
    assert set(names) == {"a", "b", "c"}


def test_nodes_that_are_freed_one_after_the_other_wake_at_most_40_times_a_minute() -> None:
    nodes = [f"node-{number}" for number in range(500)]
    wakes = waits_for_long(*nodes)
    found: list[float] = []
    for number, name in enumerate(nodes):
        set_node(wakes, name, set(), at=number / 10)
        found += times(wakes, number / 10)
    assert 30 <= len(found) <= 35
    assert min(after - before for before, after in pairwise(found)) >= SPACING


def test_it_ends_with_the_waiting() -> None:
    wakes = waits_for_long("n")
    wakes.set_pods({OTHER}, at=0.0)
    assert wakes.waiting == 1
    wakes.drop_pod(OTHER)
    set_node(wakes, "n", set(), at=0.0)
    assert taken(wakes, 1000.0) == []
    assert wakes.due is None


def test_a_list_of_the_pods_that_wait_as_before_is_no_news() -> None:
    wakes = waits_for_long("n")
    before = wakes.due
    wakes.set_pods([POD], at=0.0)
    assert wakes.due == before


def test_after_a_new_epoch_of_the_bus_no_node_counts_as_freed() -> None:
    wakes = waits_for_long("n")
    wakes.drop_nodes()
    assert taken(wakes, 100.0) == []
    set_node(wakes, "n", set(), at=100.0)
    assert wakes.due == 100.0 + SOON


@pytest.mark.parametrize("why", list(TEXTS))
def test_a_pod_waits_that_a_node_refuses_for_its_cards(why: Why) -> None:
    message = f"0/5 nodes are available: 2 {TEXTS[why]}, 3 Insufficient gpu.intel.com/i915. no new claims"
    assert waits_for_cards(reason="Unschedulable", message=message)
    assert not waits_for_cards(reason="SchedulerError", message=message)


@pytest.mark.parametrize(
    "message",
    ["", "0/5 nodes are available: 5 Insufficient cpu.", f"0/5 nodes are available: 5 {PREFIX}bad args: card7."],
)
def test_a_pod_that_lacks_something_else_or_is_refused_for_ever_does_not_wait(message: str) -> None:
    assert not waits_for_cards(reason="Unschedulable", message=message)
