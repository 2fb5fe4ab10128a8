"""Pods whose cards are known only by their annotations."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.gpu.adoption import adopt, read_assignment, uses_cards
from tas.gpu.assigning import assign
from tas.gpu.assignment import Assignment, Share, SlotAssignment
from tas.gpu.claim import Claim, DevicePod, Options, read_claim
from tas.gpu.hold import EMPTY, CardUse, Held, Hold, Phase, add, remove
from tas.gpu.inventory import read_inventory
from tas.gpu.names import MAX_RESOURCES
from tas.gpu.pod_annotations import annotations
from tas.gpu.policy_facts import read_policy_facts
from tests.unit.tas.gpu import generators
from tests.unit.tas.gpu.notation import GPU, bound, pod

I915, MEMORY, MILLICORES, TILES = (f"{GPU}{name}" for name in ("i915", "memory.max", "millicores", "tiles"))


class TestLife:
    """When the cards of a pod are in use."""

    def test_LIF_01_a_pod_that_is_being_deleted_uses_its_cards_until_it_has_ended(self) -> None:
        assert uses_cards(bound("A{i1}", "card0"))
        assert not uses_cards(bound("A{i1}", "card0", phase="Succeeded"))
        assert not uses_cards(bound("A{i1}", "card0", phase="Failed"))
        assert uses_cards(bound("A{i1}", "card0", phase="Pending"))
        assert uses_cards(bound("A{i1}", "card0", phase="Unknown"))

    def test_LIF_02_a_pod_is_released_by_its_uid(self) -> None:
        hold, _ = adopt(EMPTY, [bound("A{i1} B{i1}", "card0|card1")], verified=True)
        assert set(hold.cards) == {0, 1}
        assert remove(hold, "u") == EMPTY

    def test_LIF_03_only_pods_that_run_are_counted_again(self) -> None:
        pods = [bound("A{i1}", "card0", uid="a"), bound("A{i1}", "card0", uid="b", phase="Succeeded")]
        hold, problems = adopt(EMPTY, pods, verified=False)
        assert set(hold.pods) == {"a"}
        assert hold.cards == {0: CardUse(amounts={I915: 1})}
        assert problems == {}

    def test_LIF_05_a_pod_without_a_node_uses_nothing(self) -> None:
        waiting = msgspec.structs.replace(bound("A{i1}", "card0"), node=None)
        assert not uses_cards(waiting)
        assert adopt(EMPTY, [waiting], verified=False) == (EMPTY, {})

    @pytest.mark.parametrize(
        ("text", "nanoseconds"),
        [
            ("1700000000000000000", 1_700_000_000_000_000_000),
            ("", 0),
            ("17", 0),
            ("-1700000000000000000", 0),
            ("9223372036854775807", 0),
            ("17000000000000000000", 0),
            ("1700000000000000000\n", 0),
            ("\uff11\uff1700000000000000000", 0),
        ],
    )
    def test_an_adopted_pod_keeps_its_time(self, text: str, nanoseconds: int) -> None:
        """A later pod of the node then gets a later one."""
        found = bound("A{i1}", "card0")
        found = msgspec.structs.replace(found, annotations={**found.annotations, "gas-ts": text})
        hold, _ = adopt(EMPTY, [found], verified=False)
        assert hold.pods["u"].nanoseconds == nanoseconds

    def test_a_pod_without_the_annotation_has_no_known_cards(self) -> None:
        assert not uses_cards(msgspec.structs.replace(bound("A{i1}", "card0"), annotations={}))


class TestReading:
    def test_amounts_are_those_of_the_requests_rounded_up(self) -> None:
        found, problems = read_assignment(
            bound("A{i2 mc101 t3} B{} C{i1 mon1}", "card0,card3||card1", "card0:gt1,card3:gt0||")
        )
        share = {I915: 1, MILLICORES: 51, TILES: 2}
        assert found == Assignment(
            slots=(
                SlotAssignment(
                    container="A",
                    shares=(Share(card=0, amounts=share, tiles=(1,)), Share(card=3, amounts=share, tiles=(0,))),
                ),
                SlotAssignment(container="B"),
                SlotAssignment(container="C", shares=(Share(card=1, amounts={I915: 1}),)),
            ),
            node_amounts={f"{GPU}i915_monitoring": 1},
        )
        assert problems == ()

    def test_of_very_many_resources_some_are_read_and_never_those_that_nobody_has_instead_of_cards(self) -> None:
        found = bound("A{i1 mc500 mem4}", "card0,card1")
        (container,) = found.containers
        invented = {f"{GPU}a{number}": "2" for number in range(2 * MAX_RESOURCES)}
        container = msgspec.structs.replace(container, requests={**invented, **container.requests})
        assignment, problems = read_assignment(msgspec.structs.replace(found, containers=(container,)))
        first, second = assignment.shares()
        assert len(first.amounts) == MAX_RESOURCES
        assert first.amounts is second.amounts  # else each of many cards had a copy
        assert [first.amounts[each] for each in (I915, MILLICORES, MEMORY)] == [1, 250, 2 * 10**9]
        assert [f"{2 * MAX_RESOURCES + 3} GPU resources" in str(each) for each in problems] == [True]

    def test_a_tile_of_a_card_that_the_container_does_not_have_counts(self) -> None:
        found, _ = read_assignment(bound("A{i1}", "card0", "card7:gt1"))
        assert list(found.shares()) == [Share(card=0, amounts={I915: 1}), Share(card=7, tiles=(1,))]

    def test_more_cards_than_requested_each_count_as_one(self) -> None:
        found, _ = read_assignment(bound("A{i1 mc10}", "card0,card1"))
        assert [share.amounts for share in found.shares()] == [{I915: 1, MILLICORES: 5}] * 2

    @pytest.mark.parametrize(
        ("text", "cards", "tiles", "problems", "numbers"),
        [
            ("A{i1}", "x", "a:b", ["cards", "tiles", "A"], []),
            ("A{i2}", "card0,gpu", "", ["cards"], [0]),
            ("A{i1}", "card0|card1|", "card0:gt0|card1:gt0", ["cards", "tiles"], [0]),
            ("A{i1} B{i1}", "card0", "", ["B"], [0]),
            ("A{i1 mc-5}", "card0", "", ["A: gpu.intel.com/millicores"], [0]),
            ("A{i1}", "", "", ["A"], []),
        ],
    )
    def test_what_cannot_be_read_is_reported_and_the_rest_counts(
        self, text: str, cards: str, tiles: str, problems: list[str], numbers: list[int]
    ) -> None:
        found, reported = read_assignment(bound(text, cards, tiles))
        names = {"cards": "annotation gas-container-cards", "tiles": "annotation gas-container-tiles"}
        assert [each.field for each in reported] == [names.get(name, f"container {name}") for name in problems]
        assert [share.card for share in found.shares()] == numbers


class TestAdopt:
    def test_forged_annotations_never_displace_a_verified_pod(self) -> None:
        own, _ = adopt(EMPTY, [bound("A{i1 t1}", "card0", "card0:gt0", uid="z")], verified=True)
        hold, problems = adopt(own, [bound("A{i1 t1}", "card0", "card0:gt0", uid="a")], verified=False)
        assert hold.cards[0].owners == {0: ("z", "a")}
        assert [hold.pods[uid].verified for uid in "za"] == [True, False]
        assert problems == {}

    def test_two_pods_with_one_tile_both_count_and_the_second_is_told(self) -> None:
        pods = [bound("A{i1 t1}", "card0", "card0:gt0", uid=uid) for uid in "ba"]
        hold, problems = adopt(EMPTY, pods, verified=True)
        assert hold.cards[0].amounts == {I915: 2, TILES: 2}
        assert hold.cards[0].owners == {0: ("a", "b")}
        assert set(problems) == {"b"}
        assert problems["b"][0].reason.startswith("card0:gt0 belongs to pod default/a")

    def test_a_sum_beyond_all_bounds_is_told_and_the_others_count(self) -> None:
        pods = [bound(f"A{{i1 mc{2**63 - 1}}}", "card0", uid=uid) for uid in "ab"]
        hold, problems = adopt(EMPTY, pods, verified=False)
        assert set(hold.pods) == {"a"}
        assert "must be at most" in problems["b"][0].reason

    def test_what_is_known_of_a_pod_stays(self) -> None:
        known = Assignment(slots=(SlotAssignment(container="A", shares=(Share(card=5, amounts={I915: 1}),)),))
        reserved = Held(pod=pod("A{}").key, assignment=known, phase=Phase.RESERVED, until=1.0)
        hold = add(EMPTY, "u", reserved)
        assert adopt(hold, [bound("A{i1}", "card0")], verified=False) == (hold, {})

    @given(generators.nodes(), st.lists(generators.pods(), max_size=6, unique_by=lambda each: each.uid))
    def test_holds_are_built_again_from_annotations(
        self, described: tuple[dict[str, str], dict[str, str]], several: list[DevicePod]
    ) -> None:
        inventory = read_inventory(*described)
        facts = read_policy_facts(described[0], inventory.pci_groups)
        hold: Hold = EMPTY
        live = []
        for number, each in enumerate(several):
            asked = read_claim(each, Options())
            assert isinstance(asked, Claim)
            found = assign(hold, inventory, facts, asked, Options())
            if isinstance(found, Assignment) and (written := annotations(found, number)):
                hold = add(hold, each.uid, Held(pod=each.key, assignment=found, phase=Phase.BOUND))
                live.append(msgspec.structs.replace(each, annotations=written, node="n", phase="Running"))
        assert adopt(EMPTY, reversed(live), verified=True) == (hold, {})
