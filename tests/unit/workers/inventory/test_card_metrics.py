"""The metrics of GPU cards."""

from prometheus_client import CollectorRegistry

from bus.records.devices import NodeHold, NodeInventory
from tas.gpu.policy_facts import read_policy_facts
from tests.unit.tas.gpu.notation import Node
from workers.inventory.card_metrics import CardMetrics

DISABLES_CARD1 = {"telemetry.aware.scheduling.p/gas-disable-card1": "true"}


def records(text: str, facts: dict[str, str] | None = None) -> tuple[NodeInventory, NodeHold]:
    node = Node(text)
    inventory = NodeInventory(uid="u", inventory=node.inventory, facts=read_policy_facts(facts or {}, {}))
    return inventory, NodeHold(uid="u", pods=node.hold.pods)


def metrics(most_nodes: int = 10) -> tuple[CardMetrics, CollectorRegistry]:
    registry = CollectorRegistry()
    return CardMetrics(registry, most_nodes=most_nodes), registry


def of_card(registry: CollectorRegistry, node: str, card: str, resource: str = "millicores") -> float | None:
    return registry.get_sample_value("tas_card_free", {"node": node, "card": card, "resource": resource})


def total(registry: CollectorRegistry, name: str, resource: str = "millicores") -> float | None:
    return registry.get_sample_value(name, {"resource": resource})


def test_what_new_pods_can_get_of_each_card_and_of_all() -> None:
    cards, registry = metrics()
    cards.set_node("a", *records("N(0,1) i2 mc2000; card0: i1 mc600"))
    cards.set_node("b", *records("N(0,1) i2 mc2000", DISABLES_CARD1))
    assert [of_card(registry, "a", card) for card in ("card0", "card1")] == [400, 1000]
    assert [of_card(registry, "b", card) for card in ("card0", "card1")] == [1000, 0]
    assert total(registry, "tas_cards_free") == 2400
    assert total(registry, "tas_cards_capacity") == 4000
    labels = {"node": "b", "card": "card1", "resource": "millicores"}
    assert registry.get_sample_value("tas_card_capacity", labels) == 1000


def test_a_change_replaces_what_was_known_of_a_node() -> None:
    cards, registry = metrics()
    cards.set_node("a", *records("N(0,1) i2 mc2000; card0: i1 mc600"))
    cards.set_node("a", *records("N(0) i1 mc1000"))
    assert of_card(registry, "a", "card1") is None
    assert total(registry, "tas_cards_free") == total(registry, "tas_cards_capacity") == 1000


def test_nothing_is_free_on_a_node_whose_hold_nobody_knows() -> None:
    cards, registry = metrics()
    inventory, hold = records("N(0) i1 mc1000")
    for unknown in ((inventory, None), (None, hold)):
        cards.set_node("a", inventory, hold)
        assert total(registry, "tas_cards_free") == 1000
        cards.set_node("a", *unknown)
        assert total(registry, "tas_cards_free") == 0
        assert of_card(registry, "a", "card0") is None
    cards.set_node("a", inventory, hold)
    cards.drop_nodes()
    assert total(registry, "tas_cards_free") is None


def test_of_more_nodes_there_are_only_totals() -> None:
    cards, registry = metrics(most_nodes=1)
    cards.set_node("a", *records("N(0) i1 mc1000"))
    assert of_card(registry, "a", "card0") == 1000
    cards.set_node("b", *records("N(0) i1 mc1000"))
    assert of_card(registry, "a", "card0") is None
    assert total(registry, "tas_cards_free") == 2000
