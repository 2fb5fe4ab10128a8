"""Filter and prioritize for pods that request GPU cards."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.enforcing.pod import PodKey
from tas.errors import InvalidInputError
from tas.extender import gpu
from tas.extender.decision import Pod
from tas.extender.gpu import CardsDecider
from tas.extender.wire import decode_args
from tas.gpu.assigning import fits
from tas.gpu.card_score import CardScore
from tas.gpu.card_view import CardView
from tas.gpu.claim import DevicePod, Options
from tas.gpu.node_score import card_score
from tas.gpu.refusal import PREFIX, TEXTS, Refusal, Why
from tests.unit.tas.extender.generators import body
from tests.unit.tas.gpu import notation
from tests.unit.tas.gpu.notation import Node


def asked(text: str, *, uid: str = "u-1", annotations: Any = None) -> Pod:
    """The pod of a request, in the notation of tests of cards."""
    described: DevicePod = notation.pod(text, uid=uid)

    def listed(containers: Any) -> list[Any]:
        return [{"name": each.name, "resources": {"requests": dict(each.requests)}} for each in containers]

    metadata = {"name": "p", "namespace": "n", "uid": uid, "annotations": annotations or dict(described.annotations)}
    spec = {"containers": listed(described.containers), "initContainers": listed(described.init_containers)}
    return decode_args(body(Pod={"metadata": metadata, "spec": spec}, NodeNames=["x"])).pod


def decider(nodes: Mapping[str, str], options: Options | None = None) -> CardsDecider:
    view = CardView()
    for name, text in nodes.items():
        node = Node(text)
        view.set_inventory(name, "u", node.inventory, node.facts)
        view.set_hold(name, "u", node.hold)
    return CardsDecider(view.nodes, options=options or Options(), by=CardScore.PACK)


def test_nodes_without_room_and_unknown_nodes_are_refused_and_evictions_may_help() -> None:
    found = decider({"a": "N(0) i1", "b": "N(0) i1 ; card0: i1"}).filter(asked("A{i1}"), ["a", "b", "c"])
    assert found.decision.rejected == {"b": TEXTS[Why.WILL_NOT_FIT], "c": TEXTS[Why.UNKNOWN_NODE]}
    assert not found.decision.unresolvable
    assert found.refused == {Why.WILL_NOT_FIT: 1, Why.UNKNOWN_NODE: 1}
    assert found.decision.unknown_rejected == 1


@pytest.mark.parametrize("pod", ["A{}", "A{i0}", "A{i0 mc0} B{}", "A{} init{}", "A{} same=Z xelink"])
def test_FIT_10_a_pod_without_gpu_requests_passes_every_node(pod: str) -> None:
    found = decider({"a": "N(0) i1"}).filter(asked(pod), ["a", "unknown"])
    assert (found.decision.rejected, found.refused) == ({}, {})
    assert decider({"a": "N(0) i1"}).score(asked(pod), ["a"]) == {}


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        ("A{i1} B{i1} same=A", "malformed annotation: pod: annotation gas-same-gpu"),
        ("A{i1 t1} B{i1} same=A,B", "resources conflict: container A: gpu.intel.com/tiles"),
        ("A{i1 xe1}", "resources conflict: container A: gpu.intel.com/i915"),
        ("A{} init{i1}", "resources conflict: container init: gpu.intel.com/i915"),
        ("A{i1} B{i1 t1}", "resources conflict: container A requests a card"),
        ("A{mc100}", "resources conflict: container A: gpu.intel.com/millicores"),
    ],
)
def test_a_refusal_for_ever_is_unresolvable_on_every_node(pod: str, reason: str) -> None:
    found = decider({"a": "N(0) i9 t9"}).filter(asked(pod), ["a", "unknown"])
    assert found.decision.unresolvable
    assert found.refused == {Why.NEVER: 2}
    assert list(found.decision.rejected) == ["a", "unknown"]
    for text in found.decision.rejected.values():
        assert text.startswith(f"{PREFIX}{reason}")
    assert decider({"a": "N(0) i9 t9"}).score(asked(pod), ["a"]) == {}


def test_SEL_10_a_node_with_a_preferred_card_scores_higher_and_hides_no_node() -> None:
    found = decider({"n1": "N(0,1) i2 prefer-gpu=card1", "n2": "N(0,1) i2", "n3": "N(0) i1 ; card0: i1"})
    nodes = ["n1", "n2", "n3"]
    assert found.filter(asked("A{i1}"), nodes).decision.rejected == {"n3": TEXTS[Why.WILL_NOT_FIT]}
    scores = found.score(asked("A{i1}"), ["n1", "n2", "unknown"])
    assert scores.keys() == {"n1", "n2"}
    assert scores["n1"] == scores["n2"] + 3


# Six containers need memory, which only five cards have left; all cards differ.
HOSTILE_NODE = "N(0..9) i100 mc1000 mem100 " + " ".join(
    f"; card{number}: mc{number} mem{0 if number > 4 else 10}" for number in range(10)
)
HOSTILE = " ".join(f"{name}{{i1 mem1 mc{51 + index}}}" for index, name in enumerate("ABCDEF"))


def test_all_candidates_of_a_request_share_the_steps_of_the_search() -> None:
    nodes = {f"n{number}": HOSTILE_NODE for number in range(20)}
    assert decider(nodes).filter(asked(HOSTILE), ["n1"]).refused == {Why.WILL_NOT_FIT: 1}
    found = decider(nodes, Options(steps=200))
    decision, refused = found.filter(asked(HOSTILE), [*nodes])
    assert refused == {Why.GIVEN_UP: 20}
    assert set(decision.rejected.values()) == {TEXTS[Why.GIVEN_UP]}
    assert not decision.unresolvable

    two_nodes = {"a": "N(0..2) i3 mem30 ; card2: mem9", "b": "N(0..2) i3 mem33 ; card2: mem10"}
    two_taken_back = "A{i2 mem2} B{i1 mem2}"
    assert decider(two_nodes, Options(steps=3)).filter(asked(two_taken_back), ["a"]).refused == {}
    three = decider(two_nodes, Options(steps=3))
    assert three.filter(asked(two_taken_back), ["a", "b"]).refused == {Why.GIVEN_UP: 1}
    assert three.filter(asked(two_taken_back), ["a", "b"]).refused == {}, "what is known of a takes no steps"
    assert found.filter(asked("A{i1}"), [*nodes]).refused == {}, "a pod with one container needs no search"


def test_a_pod_with_many_containers_takes_steps_also_without_a_search() -> None:
    """A node takes 1.5 ms: 100 containers with two resources each are compared with 8 cards, 32 steps."""
    nodes = {f"n{number}": f"N(0..7) i800 mc{8000 + 8 * number}" for number in range(5)}
    many = " ".join(f"c{number}{{i1 mc1}}" for number in range(100))
    assert decider(nodes, Options(steps=5 * 32 + 1)).filter(asked(many), [*nodes]).refused == {}
    assert decider(nodes, Options(steps=3 * 32 + 1)).filter(asked(many), [*nodes]).refused == {Why.GIVEN_UP: 2}
    assert decider(nodes, Options(steps=32)).filter(asked(many), ["n1"]).refused == {Why.GIVEN_UP: 1}
    few = "A{i1 mc1} B{i1 mc1} C{i1 mc1}"
    assert decider(nodes, Options(steps=1)).filter(asked(few), [*nodes]).refused == {}


def test_nodes_that_are_alike_take_the_steps_of_one() -> None:
    """Also if other cards of them are the same: which card is which does not matter for these claims."""
    alike = {
        "a": "N(0..2) i3 mem30 ; card2: mem9",
        "b": "N(0..2) i3 mem30 ; card1: mem9",
        "c": "N(3..5) i3 mem30 ; card3: mem9",
    }
    pod = asked("A{i2 mem2} B{i1 mem2}")
    assert decider(alike, Options(steps=3)).filter(pod, [*alike]).refused == {}


def test_a_pod_is_remembered_for_bind_until_many_others_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "MAX_KNOWN_PODS", 2)
    found = decider({"a": "N(0) i9"})
    for uid, text in (("1", "A{i1}"), ("2", "A{}"), ("3", "A{i1 xe1}")):
        found.filter(asked(text, uid=uid), ["a"])
    assert found.known("1") is None
    plain, never = found.known("2"), found.known("3")
    assert plain == (PodKey("n", "p"), None)
    assert never is not None
    assert isinstance(never.claim, Refusal)
    found.filter(asked("A{}", uid=""), ["a"])
    assert found.known("") is None, "a pod without a uid could be any pod"


def test_a_pod_that_is_asked_about_again_is_remembered_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "MAX_KNOWN_PODS", 2)
    found = decider({"a": "N(0) i9"})
    for uid in ("1", "2", "1", "3"):
        found.filter(asked("A{i1}", uid=uid), ["a"])
    assert found.known("1") is not None
    assert found.known("2") is None


def test_FIT_13_a_pod_that_needs_only_an_amount_of_the_node_is_asked_about() -> None:
    found = decider({"free": "N(0) i1 mon1", "without": "N(0) i1"}).filter(asked("A{mon1}"), ["free", "without"])
    assert found.refused == {Why.WILL_NOT_FIT: 1}
    assert list(found.decision.rejected) == ["without"]


def test_a_pod_with_changed_annotations_is_read_anew() -> None:
    found = decider({"a": "N(0,1) i2"}, Options(allowlist=True))
    assert found.filter(asked("A{i1} allow=card7"), ["a"]).refused == {Why.WILL_NOT_FIT: 1}
    assert found.filter(asked("A{i1} allow=card1"), ["a"]).refused == {}


def test_annotations_that_are_no_text_are_an_error() -> None:
    with pytest.raises(InvalidInputError, match="annotations"):
        decider({"a": "N(0) i1"}).filter(asked("A{i1}", annotations={"gas-allow": 7}), ["a"])


SHAPES = (
    "A{i1}",
    "A{i1 mc300}",
    "A{i1 mc600}",
    "A{i1} B{i1 mc600}",
    "A{i1 mc600} B{i1}",
    "A{i2 mc600}",
    "A{i1 t1}",
    "A{mon1}",
    "A{i2 t2} xelink",
    "A{i2 t2}",
    "A{i1} allow=card1",
    "A{i1} deny=card1",
    "A{i1} B{i1} numa=true",
    "A{i1} B{i1} numa=pod",
    "A{i1 mc600} B{i1 mc600} same=A,B",
    "A{i1 mc600} B{i1 mc600}",
)
LABELS = "links=0.0-1.0 numa=0-0_1-1"
CARDS = (
    f"N(0,1) i4 mc2000 t2 mon1 {LABELS}",
    f"N(0,1) i4 mc2000 t2 {LABELS} ; card0: i1 mc500",
    f"N(0,1) i4 mc2000 t2 {LABELS} ; card1: i1 mc500",
    f"N(0,1) i4 mc2000 t2 {LABELS} ; card0: i1 mc500 ; card1: i1 mc500",
    f"N(0,1) i4 mc2000 t2 {LABELS} disable-card0",
    f"N(0,1) i4 mc2000 t2 mon1 {LABELS} disable-card1 ; card1: i2 mc900",
    f"N(0,1) i4 mc2000 t2 mon1 {LABELS} ; card0: i2 mc900",
    f"N(0,1) i4 mc2000 t2 {LABELS} ; card0: gt0 i1 ; card1: i2",
    f"N(0,1) i4 mc2000 t2 {LABELS} disable-card1",
    f"N(0,1) i4 mc2000 t2 {LABELS} prefer-gpu=card1",
    "N(0) i1 mc100",
)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(CARDS), st.sampled_from(SHAPES)), max_size=12))
def test_what_is_remembered_is_what_the_cards_of_each_node_give(history: list[tuple[str, str, str]]) -> None:
    """Pods ask again and again while the cards of nodes change. Several nodes may be alike."""
    view, options = CardView(), Options(allowlist=True, denylist=True)
    old = CardsDecider(view.nodes, options=options, by=CardScore.PACK)
    for number, (node, text, shape) in enumerate(history):
        if number % 3 == 0:
            described = Node(text)
            view.set_inventory(node, "u", described.inventory, described.facts)
            view.set_hold(node, "u", described.hold)
        for each in (shape, history[0][2]):
            for uid in (f"{number}", "used-0"):
                pod, claim = asked(each, uid=uid), notation.claim(each, options, uid=uid)
                of = {
                    name: (known.hold, known.inventory, known.facts, claim, options)
                    for name, known in view.nodes.items()
                }
                refused = {name for name in "abc" if name not in of or not fits(*of[name])}
                scores = {name: card_score(*each_of, by=CardScore.PACK) for name, each_of in of.items()}
                for _ in range(2):
                    assert old.filter(pod, "abc").decision.rejected.keys() == refused
                    assert old.score(pod, "abc") == (scores if claim.units else {})


@pytest.mark.parametrize(
    ("node", "fits", "does_not"),
    [
        ("N(0) i1", "A{i1}", "A{i1} deny=card0"),
        ("N(0) i1", "A{i1}", "A{i1} allow=card7"),
        ("N(0,1) i2 numa=0-0_1-1", "A{i2}", "A{i2} numa=true"),
        ("N(0,1) i2 numa=0-0_1-1", "A{i1} B{i1} numa=true", "A{i1} B{i1} numa=pod"),
        ("N(0,1) i2 t2", "A{i2 t2}", "A{i2 t2} xelink"),
        ("N(0) i1 mc50", "A{i1 mc50}", "A{i1 foo50}"),
        ("N(0) i9", "A{i1}", "A{i2}"),
        ("N(0) i1", "A{i1}", "A{i1 mon1}"),
        ("N(0,1) i2 mc2000", "A{i1 mc600} B{i1 mc600}", "A{i1 mc600} B{i1 mc600} same=A,B"),
    ],
)
def test_claims_that_differ_in_anything_are_told_apart(node: str, fits: str, does_not: str) -> None:
    options = Options(allowlist=True, denylist=True)
    for order in ((fits, does_not), (does_not, fits)):
        found = decider({"a": node}, options)
        for each in order:
            assert found.filter(asked(each), ["a"]).refused == ({Why.WILL_NOT_FIT: 1} if each == does_not else {})


FIVE = "N(0..4) i5 mc10"


@pytest.mark.parametrize(
    ("one", "other", "pod"),
    [
        pytest.param(
            f"{FIVE} ; card0: mc2 ; card1: mc2 ; card2: mc1",
            f"{FIVE} ; card0: mc2 ; card1: mc1 ; card2: mc1 ; card3: mc1",
            "A{i2 mc4}",
            id="two cards with this amount, not one",
        ),
        pytest.param("N(0) i1 mc1000", "N(0,1) i2 mc2000 disable-card1", "A{i1 mc900}", id="more cards that are full"),
        pytest.param("N(0) i1", "N(0) i1 disable-card0", "A{i1}", id="disabled"),
        pytest.param("N(0) i1 mon1", "N(0) i1 mon2", "A{i1 mon2}", id="amounts of the node"),
        pytest.param("N(0) i1", "N(1) i1", "A{i1} deny=card0", id="a card that is not wished for"),
        pytest.param("N(0,1) i2 t2", "N(0,1) i2 t2 links=0.0-1.0", "A{i2} xelink", id="linked"),
        pytest.param("N(0,1) i2 numa=0-0.1", "N(0,1) i2 numa=0-0_1-1", "A{i2} numa=true", id="on one NUMA node"),
        pytest.param("N(0,1) i2", "N(0,1) i2 prefer-gpu=card1", "A{i1}", id="preferred"),
        pytest.param("N(0) i2 ; card0: i1", "N(0) i2", "A{i1}", id="in use"),
    ],
)
def test_nodes_that_differ_in_what_matters_are_told_apart(one: str, other: str, pod: str) -> None:
    options = Options(denylist=True)

    def found(nodes: Mapping[str, str]) -> dict[str, object]:
        decided = decider(nodes, options)
        rejected = decided.filter(asked(pod), [*nodes]).decision.rejected
        return {node: rejected.get(node) or score for node, score in decided.score(asked(pod), [*nodes]).items()}

    alone = found({"a": one}) | found({"b": other})
    assert alone["a"] != alone["b"]
    assert found({"a": one, "b": other}) == found({"b": other, "a": one}) == alone


def test_a_pod_that_has_cards_passes_its_node_whatever_is_remembered() -> None:
    node = "N(0) i1 ; card0: i1"
    found = decider({"a": node})
    assert found.filter(asked("A{i1}", uid="other"), ["a"]).refused == {Why.WILL_NOT_FIT: 1}
    assert found.filter(asked("A{i1}", uid="used-0"), ["a"]).refused == {}
    assert found.filter(asked("A{i1}", uid="another"), ["a"]).refused == {Why.WILL_NOT_FIT: 1}


def test_names_of_nodes_that_are_gone_and_claims_that_nobody_asks_for_are_forgotten() -> None:
    view, node = CardView(), Node("N(0) i9")
    found = CardsDecider(view.nodes, options=Options(), by=CardScore.PACK)
    for number in range(1000):
        view.set_inventory(f"n{number}", "u", node.inventory, node.facts)
        view.set_hold(f"n{number}", "u", node.hold)
        found.filter(asked(f"A{{i1 mc{number % 100}}}"), [f"n{number}"])
        found.filter(asked("A{i1}"), [f"n{number}"])
        found.score(asked("A{i1}"), [f"n{number}"])
        view.drop_hold(f"n{number}")
    assert len(found._asked) == gpu.MAX_ASKED
    assert max(len(of_nodes) for each in found._asked.values() for of_nodes in each) <= 102
