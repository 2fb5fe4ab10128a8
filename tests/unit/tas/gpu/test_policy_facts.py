"""Labels of policies about cards and tiles."""

import random

import pytest

from tas.gpu.policy_facts import NO_FACTS, PolicyFacts, read_policy_facts
from tests.unit.tas.gpu.notation import labels_of

GROUPS = ((0, 1), (2, 3, 4), (7, 8))


def facts(text: str) -> PolicyFacts:
    return read_policy_facts(labels_of(text)[0], GROUPS)


def test_a_fact_counts_until_the_last_policy_has_withdrawn_it() -> None:
    assert facts("disable-card0@b disable-card0@a=x").disabled == {0: ("a", "b")}
    assert facts("disable-card0@b").disabled == {0: ("b",)}
    assert facts("") == NO_FACTS


def test_a_card_that_is_emptied_takes_no_pods() -> None:
    found = facts("deschedule-pods-card0@b disable-card0@a disable-card1@a")
    assert found.disabled == {0: ("a", "b"), 1: ("a",)}
    assert found.evicted == {0: ("b",)}


def test_a_tile_that_is_emptied_takes_no_pods() -> None:
    found = facts("tile-deschedule-card0_gt1@b tile-disable-card0_gt1@a tile-disable-card0_gt2@a")
    assert found.disabled_tiles == {0: {1: ("a", "b"), 2: ("a",)}}
    assert found.evicted_tiles == {0: {1: ("b",)}}
    assert found.disabled == {}


def test_a_pci_group_extends_a_fact_to_its_cards() -> None:
    assert facts("disable-card3=PCI_GROUP").disabled == {2: ("p",), 3: ("p",), 4: ("p",)}
    assert facts("deschedule-pods-card0=PCI_GROUP").evicted == {0: ("p",), 1: ("p",)}
    assert facts("disable-card3=PCI").disabled == {3: ("p",)}
    assert facts("disable-card5=PCI_GROUP").disabled == {5: ("p",)}


def test_a_card_in_several_groups_extends_to_all_of_them() -> None:
    labels = labels_of("disable-card1=PCI_GROUP")[0]
    assert set(read_policy_facts(labels, ((0, 1), (1, 2), (3, 4))).disabled) == {0, 1, 2}


def test_preferences_of_several_policies_are_all_kept() -> None:
    found = facts("prefer-gpu@b=card2 prefer-gpu@a=card10 tile-preferred-card0@a=gt3 tile-preferred-card0@b=gt1")
    assert found.preferred == (2, 10)
    assert found.preferred_tiles == {0: (1, 3)}


def test_a_tile_that_no_card_has_is_ignored() -> None:
    found = facts("tile-disable-card0_gt64 tile-deschedule-card0_gt999999 tile-preferred-card0=gt64")
    assert found == NO_FACTS
    assert facts("tile-disable-card0_gt63").disabled_tiles == {0: {63: ("p",)}}


@pytest.mark.parametrize(
    "text",
    [
        "disable-card", "disable-xcard0", "disable-card01", "disable-card0_gt0", "disable-card1000000",
        "deschedule-pods-gpu0", "prefer-gpu=0", "prefer-gpu=card", "tile-disable-card0", "tile-disable-card0_0",
        "tile-deschedule-gt0", "tile-preferred-card0=0", "tile-preferred-gt0=gt0", "tile-card0",
    ],
)  # fmt: skip
def test_a_label_that_cannot_be_read_is_reported_and_concerns_no_card(text: str) -> None:
    found = facts(f"{text} disable-card5")
    assert found.disabled == {5: ("p",)}
    (problem,) = found.problems
    assert problem.field == f"telemetry.aware.scheduling.p/gas-{text.partition('=')[0]}"
    assert facts("disable-card5").disabled == found.disabled
    assert (found.disabled_tiles, found.preferred_tiles) == ({}, {})
    assert found.preferred == ()


def test_other_labels_are_ignored() -> None:
    labels = {
        "gas-disable-card0": "",
        "gpu.intel.com/gas-disable-card0": "",
        "telemetry.aware.scheduling.p/x/gas-disable-card0": "",
        "telemetry.aware.scheduling.p/disable-card0": "",
        "telemetry.aware.scheduling.p": "",
        "x-telemetry.aware.scheduling.p/gas-disable-card0": "",
    }
    assert read_policy_facts(labels, ()) == NO_FACTS


def test_the_order_of_labels_changes_nothing() -> None:
    text = (
        "disable-card9@b=PCI_GROUP disable-card9@a deschedule-pods-card2 tile-disable-card1_gt1 tile-disable-card1_gt0"
    )
    labels = list(labels_of(f"{text} prefer-gpu=card3 prefer-gpu@q=card1 disable-x disable-y")[0].items())
    expected = read_policy_facts(dict(labels), GROUPS)
    assert len(expected.problems) == 2
    for seed in range(10):
        shuffled = random.Random(seed).sample(labels, len(labels))
        found = read_policy_facts(dict(shuffled), GROUPS)
        assert found == expected
        assert list(found.disabled) == sorted(found.disabled)
