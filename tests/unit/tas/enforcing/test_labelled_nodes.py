"""What is kept of labelled nodes is what would be computed anew, after any order of changes; no answer searches."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tas.enforcing.breaker import LabelledNodes, names_on
from tas.policy.policy import LABEL_PREFIX, Policy, PolicyKey
from tas.policy.selector import parse_selector
from tas.verdict.freeze import ALL, Breaker

NAMES = ("p", "q", "gone")
KEYS = (*NAMES, "", ALL)
NODES = ("a", "b", "c", "d")

LABELS = st.dictionaries(
    st.sampled_from(
        [*NAMES, f"{LABEL_PREFIX}p/card", f"{LABEL_PREFIX}p/bus", f"{LABEL_PREFIX}gone/x", f"{LABEL_PREFIX}q", "zone"]
    ),
    st.sampled_from(["violating", "ssd"]),
    max_size=4,
)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("node"), st.sampled_from(NODES), LABELS),
        st.tuples(st.just("late"), st.sampled_from(NODES), LABELS),
        st.tuples(st.just("delete"), st.sampled_from(NODES)),
        st.tuples(st.just("list"), st.dictionaries(st.sampled_from(NODES), LABELS)),
        st.tuples(st.just("policy"), st.sampled_from(NAMES), st.booleans()),
        st.tuples(st.just("forget")),
        st.tuples(st.just("record"), st.sampled_from(KEYS), st.sets(st.sampled_from([*NODES, "unknown"]))),
    ),
    max_size=30,
)


SELECTORS: tuple[Any, ...] = (
    {"matchLabels": {"zone": "ssd"}},
    {"matchLabels": {"zone": "ssd", "p": "violating"}},
    {"matchExpressions": [{"key": "q", "operator": "DoesNotExist"}]},
    {},
)
SELECTING = [Policy(key=PolicyKey("n", "p"), strategies={}, node_selector=parse_selector(each)) for each in SELECTORS]


class World:
    """What is known of nodes and policies, of which each answer is computed anew."""

    def __init__(self) -> None:
        self.seen = LabelledNodes()
        self.version = 10
        self.nodes: dict[str, dict[str, str]] = {}
        self.policies: set[str] = set()
        self.breakers = {key: Breaker() for key in KEYS}

    def apply(self, kind: str, *arguments: Any) -> None:
        self.version += 1
        getattr(self, kind)(*arguments)

    def node(self, node: str, labels: dict[str, str]) -> None:
        before = self.nodes.get(node, labels)
        self.nodes[node] = labels
        changed = {
            name
            for name in names_on(before) | names_on(labels)
            if {label: value for label, value in before.items() if name in names_on({label: value})}
            != {label: value for label, value in labels.items() if name in names_on({label: value})}
        }
        assert self.seen.take_in(node, self.version, labels) == changed

    def late(self, node: str, labels: dict[str, str]) -> None:
        """An earlier state of a node than is known."""
        if node in self.nodes:
            assert self.seen.take_in(node, 1, labels) == frozenset()

    def delete(self, node: str) -> None:
        self.nodes.pop(node, None)
        self.seen.drop(node, self.version)

    def list(self, nodes: dict[str, dict[str, str]]) -> None:
        self.nodes.clear()
        self.seen.begin_list(self.version)
        for node, labels in nodes.items():
            self.node(node, labels)

    def policy(self, name: str, exists: bool) -> None:
        (self.policies.add if exists else self.policies.discard)(name)
        self.seen.set_policy(name, exists=exists)

    def forget(self) -> None:
        self.policies.clear()
        self.seen.forget_policies()

    def record(self, key: str, nodes: set[str]) -> None:
        self.breakers[key] = Breaker(nodes=dict.fromkeys(nodes, 1))

    def labelled(self, key: str) -> set[str]:
        if key != ALL:
            return {node for node, labels in self.nodes.items() if key in names_on(labels)}
        return {
            node
            for node, labels in self.nodes.items()
            if any(label.startswith(LABEL_PREFIX) for label in labels)
            or any(labels.get(name) == "violating" for name in self.policies)
        }

    def check(self) -> None:
        for key, breaker in self.breakers.items():
            expected = self.labelled(key)
            assert self.seen.labelled(key) == expected, key
            assert self.seen.unrecorded(key, breaker) == len(expected - breaker.nodes.keys()), key
        for policy in SELECTING:
            selected = sum(policy.selects(labels) is True for labels in self.nodes.values())
            assert self.seen.selected(policy) == selected, policy.node_selector


@given(CHANGES)
def test_what_is_kept_is_what_is_computed_anew(changes: list[tuple[Any, ...]]) -> None:
    world = World()
    for change in changes:
        world.apply(*change)
        world.check()


@given(CHANGES, st.booleans())
def test_nothing_stays_of_nodes_and_policies_that_no_longer_exist(
    changes: list[tuple[Any, ...]], policies_first: bool
) -> None:
    world = World()
    for change in changes:
        world.apply(*change)
        world.check()
    ends = [("forget",), *(("delete", node) for node in NODES)]
    for end in ends if policies_first else reversed(ends):
        world.apply(*end)
    kept = {name: value for name, value in vars(world.seen).items() if name != "version"}
    assert all(len(value) == 0 for value in kept.values()), kept


class Counted(Mapping[str, Any]):
    """A mapping that counts how often it is asked."""

    def __init__(self, content: Mapping[str, Any], asked: Counter[str]) -> None:
        self.content, self.asked = content, asked

    def __getitem__(self, key: str) -> Any:
        self.asked["item"] += 1
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        for key in self.content:
            self.asked["each"] += 1
            yield key

    def __len__(self) -> int:
        return len(self.content)


def test_an_answer_reads_no_labels_and_a_breaker_only_once() -> None:
    asked: Counter[str] = Counter()
    names = [f"p{number}" for number in range(20)]
    seen = LabelledNodes()
    for number in range(50):
        seen.take_in(f"n{number}", 1, Counted(dict.fromkeys(names, "violating"), asked))
    seen.take_in("orphans", 1, Counted({f"{LABEL_PREFIX}{name}/x": "1" for name in names}, asked))
    for name in names:
        seen.set_policy(name, exists=True)
    breakers = {key: Breaker(nodes=Counted({"n1": 1, "other": 1}, asked)) for key in (ALL, "p0")}
    for key, breaker in breakers.items():
        assert seen.unrecorded(key, breaker) == len(seen.labelled(key)) - 1
    asked.clear()
    for exists, count in ((True, 51), (False, 1)):
        for name in names:  # also while the labels of policies that were just deleted are removed
            seen.set_policy(name, exists=exists)
        for _ in range(100):
            assert (len(seen.labelled(ALL)), len(seen.labelled("p0"))) == (count, 51)
            assert seen.unrecorded("p0", breakers["p0"]) == 50
            assert seen.unrecorded(ALL, breakers[ALL]) == (50 if exists else 1)
    assert asked["each"] == 0
    assert asked["item"] <= 50, "each node that left, once in the breaker"


def test_the_selected_nodes_are_searched_once_and_our_labels_are_read_by_no_selector() -> None:
    asked: Counter[str] = Counter()
    labels = Counted({"zone": "ssd", "p": "violating"}, asked)
    seen = LabelledNodes()
    for number in range(50):
        seen.take_in(f"n{number}", 1, labels)
    asked.clear()
    for _ in range(100):
        assert [seen.selected(policy) for policy in SELECTING] == [50, 50, 50, 50]
    assert 50 <= asked["item"] <= 50 * 4
    asked.clear()
    seen.take_in("n0", 2, {"zone": "ssd", "p": "violating", f"{LABEL_PREFIX}p/x": "1"})
    for _ in range(50):
        seen.drop("n1", 3)
        seen.take_in("n1", 4, {"zone": "hdd"})
    assert [seen.selected(policy) for policy in SELECTING] == [49, 49, 50, 50]
    assert asked["item"] <= 4 * 4, "those of n1 when it went, and of nobody else"


def test_a_state_of_a_node_costs_in_proportion_to_its_labels() -> None:
    def cost(policies: int) -> int:
        asked: Counter[str] = Counter()
        labels = {f"{LABEL_PREFIX}p{number}/x": "1" for number in range(policies)}
        seen = LabelledNodes()
        seen.take_in("a", 1, Counted(labels, asked))
        assert seen.take_in("a", 2, Counted(labels | {"zone": "x", "p": "violating"}, asked)) == {"p"}
        return asked.total()

    assert cost(100) < 20 * cost(10), "it was a hundred times as much"


def test_the_nodes_with_labels_are_counted_also_when_a_wipe_has_forgotten_their_policies() -> None:
    nodes = LabelledNodes()
    nodes.begin_list(1)
    nodes.set_policy("p", exists=True)
    states: tuple[dict[str, str], ...] = (
        {"p": "violating"},
        {f"{LABEL_PREFIX}q/card": "1", "p": "violating"},
        {"zone": "ssd"},
        {},
    )
    for node, labels in zip(NODES, states, strict=True):
        nodes.take_in(node, 1, labels)
    assert nodes.with_labels == 2
    nodes.forget_policies()
    assert nodes.with_labels == 2
    nodes.take_in("c", 2, {"zone": "ssd", "p": "violating"})
    nodes.drop("a", 3)
    assert nodes.with_labels == 2
