"""The annotations that the device plugin reads."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.enforcing.pod import PodKey
from tas.gpu.assigning import assign
from tas.gpu.assignment import Assignment, Share, SlotAssignment
from tas.gpu.claim import Options
from tas.gpu.hold import EMPTY, Held, Phase, add
from tas.gpu.names import MAX_CARDS
from tas.gpu.pod_annotations import MAX_ANNOTATION, annotations, cards_text, parse_cards, parse_tiles, tiles_text
from tests.unit.growth import grows_linearly
from tests.unit.tas.gpu.device_plugin import Allocation, DevicePlugin, Pending
from tests.unit.tas.gpu.notation import Node, claim

TIME = 1_700_000_000_123_456_789


def assigned(node: str, pod: str) -> Assignment:
    found = Node(node)
    assignment = assign(found.hold, found.inventory, found.facts, claim(pod), Options())
    assert isinstance(assignment, Assignment)
    return assignment


def test_the_format_is_that_of_the_original() -> None:
    found = assigned("N(0..2) i9 t12 disable-card1", "A{i2 t4} B{} C{i1} D{i1 t1}")
    assert annotations(found, TIME) == {
        "gas-ts": "1700000000123456789",
        "gas-container-cards": "card0,card2||card0|card0",
        "gas-container-tiles": "card0:gt0+gt1,card2:gt0+gt1|||card0:gt2",
    }


def test_a_pod_without_tiles_has_no_annotation_of_tiles() -> None:
    """FIT-04: the original wrote bare separators."""
    found = annotations(assigned("N(0,1) i20 mc2000", "A{i1 mc100} B{} C{i1 mc100}"), TIME)
    assert found == {"gas-ts": str(TIME), "gas-container-cards": "card0||card0"}


def test_a_pod_without_cards_has_no_annotation() -> None:
    assert annotations(assigned("N(0) i1 mon1", "A{i0} B{mon1} C{}"), TIME) == {}


def test_TIL_12_garbage_is_skipped() -> None:
    tiles, problems = parse_tiles("card0:gt1+gt4|card1:gt2||card4:gt0,card6:gt99")
    assert tiles == ({0: (1, 4)}, {1: (2,)}, {}, {4: (0,), 6: (99,)})
    assert problems == ()
    tiles, problems = parse_tiles("a:b|card1:gt2+x,:,card0|card2:gt1,gt2:card2")
    assert tiles == ({}, {1: (2,)}, {2: (1,)})
    assert [each.value for each in problems] == ["':'", "'a:b'", "'card0'", "'card1:gt2+x'", "'gt2:card2'"]


def test_cards_are_read_and_garbage_is_skipped() -> None:
    assert parse_cards("card0,card1||card10") == (((0, 1), (), (10,)), ())
    cards, problems = parse_cards("card0,,card0,gpu1|card01|x")
    assert cards == ((0,), (), ())
    assert [each.value for each in problems] == ["''", "'card01'", "'gpu1'", "'x'"]
    assert parse_cards("") == (((),), ())


@pytest.mark.parametrize("parse", [parse_cards, parse_tiles])
def test_longer_annotations_than_a_pod_can_have_are_not_read(parse: object) -> None:
    assert callable(parse)
    found, problems = parse("|" * (MAX_ANNOTATION + 1))
    assert found == ()
    assert [each.reason for each in problems] == ["is longer than 262144 characters"]
    assert len(parse("|" * MAX_ANNOTATION)[0]) == MAX_ANNOTATION + 1


def test_a_container_with_more_cards_than_a_node_can_have_has_none() -> None:
    def text(count: int) -> str:
        return ",".join(f"card{number}" for number in range(count))

    found, problems = parse_cards(f"{text(MAX_CARDS + 1)}|card1")
    assert found == ((), (1,))
    assert len(problems) == 1
    assert len(parse_cards(text(MAX_CARDS))[0][0]) == MAX_CARDS


shares = st.lists(
    st.builds(
        lambda card, tiles: Share(card=card, tiles=tuple(tiles)),
        st.integers(0, 20),
        st.lists(st.integers(0, 70), unique=True, max_size=3),
    ),
    max_size=3,
    unique_by=lambda share: share.card,
)
assignments = st.lists(shares, min_size=1, max_size=4).map(
    lambda slots: Assignment(slots=tuple(SlotAssignment(container="c", shares=tuple(each)) for each in slots))
)


@given(assignments)
def test_what_is_written_is_read_back(assignment: Assignment) -> None:
    cards, no_problems = parse_cards(cards_text(assignment))
    assert cards == tuple(tuple(share.card for share in slot.shares) for slot in assignment.slots)
    assert no_problems == ()
    text = tiles_text(assignment)
    assert all(list(each) == sorted(each) for each in parse_tiles(text)[0])
    expected = tuple({share.card: share.tiles for share in slot.shares if share.tiles} for slot in assignment.slots)
    assert (parse_tiles(text) if text else (tuple({} for _ in expected), ())) == (expected, ())


@pytest.mark.parametrize("item", ["|", ",", "+", ":", "card0,", "card0:gt0|", "card0:gt0+", "a:b,"])
def test_the_time_grows_with_the_length(item: str) -> None:
    def prepare(size: int) -> object:
        text = (item * size)[:size]
        return lambda: (parse_cards(text), parse_tiles(text))

    assert grows_linearly(prepare, 64_000)  # type: ignore[arg-type]


class TestDevicePlugin:
    """Many pods that start at once on one node get what was assigned to them."""

    def test_each_container_gets_its_segment_in_the_order_of_the_pods(self) -> None:
        node = Node("N(0..3) i40 t16 mc4000")
        hold = EMPTY
        pods: dict[str, Pending] = {}
        expected: list[Allocation] = []
        chance = random.Random(3)
        shapes = ["A{} B{i1 mc300}", "A{i2 t2} B{} C{i1 t1}", "A{i1 mc100} B{i1 mc200} same=A,B", "A{i1 t1} B{i1}"]
        for number in range(9):
            asked = claim(chance.choice(shapes))
            found = assign(hold, node.inventory, node.facts, asked, Options())
            assert isinstance(found, Assignment)
            name = f"pod-{number}"
            hold = add(hold, asked.uid, Held(pod=PodKey("d", name), assignment=found, phase=Phase.BOUND))
            with_cards = [slot for slot in found.slots if slot.shares]
            pods[name] = Pending(annotations(found, TIME + number), len(with_cards))
            expected += [Allocation(name, cards_of(slot), tiles_of(slot)) for slot in with_cards]
        plugin = DevicePlugin()
        order = chance.sample(sorted(pods), len(pods))
        got = [plugin.allocate({name: pods[name] for name in order}) for _ in expected]
        assert got == expected
        assert len({each.pod for each in got}) == 9
        assert any(pod.annotations["gas-container-cards"].startswith("|") for pod in pods.values())
        assert any(pod.annotations.get("gas-container-tiles", "").endswith("|") for pod in pods.values())
        with pytest.raises(LookupError):
            plugin.allocate(pods)

    def test_facts_g8_tiles_are_in_the_order_of_cards_whatever_the_order_of_choice(self) -> None:
        found = assigned("N(0,1) i2 t8 prefer-gpu=card1 tile-preferred-card0=gt3", "A{i2 t2}")
        written = annotations(found, TIME)
        assert written["gas-container-cards"] == "card1,card0"
        assert written["gas-container-tiles"] == "card0:gt3,card1:gt0"

    def test_facts_g7_the_plugin_gives_a_container_without_tiles_those_of_a_later_container(self) -> None:
        """A limit of the plugin, which the format cannot cure: nothing can be written for a container without tiles."""
        pods = {"p": Pending(annotations(assigned("N(0) i2 t2", "A{i1} B{i1 t1}"), TIME), 2)}
        plugin = DevicePlugin()
        assert plugin.allocate(pods) == ("p", ["card0"], ["card0:gt0"])
        assert plugin.allocate(pods) == ("p", ["card0"], [])


def cards_of(slot: SlotAssignment) -> list[str]:
    return [f"card{share.card}" for share in slot.shares]


def tiles_of(slot: SlotAssignment) -> list[str]:
    tiles = [(f"card{share.card}", "+".join(f"gt{tile}" for tile in share.tiles)) for share in slot.shares]
    return [f"{card}:{text}" for card, text in tiles if text]
