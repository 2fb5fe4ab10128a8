"""The breaker: limits, the set of admitted nodes, and that no history labels more nodes than the limit."""

import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest

from tas.enforcing.breaker import MAX_SELECTORS, LabelledNodes, admit, is_over, reset, version_of, without_leavers
from tas.policy.policy import LABEL_PREFIX, Policy, PolicyKey
from tas.policy.selector import parse_selector
from tas.verdict.freeze import ALL, Breaker, Trip

P, OURS = "p", {"p": "violating"}


def seen_as(**nodes: tuple[int, dict[str, str]]) -> LabelledNodes:
    seen = LabelledNodes()
    for node, (version, labels) in nodes.items():
        seen.take_in(node, version, labels)
    return seen


def admitted(breaker: Breaker, wanted: dict[str, int], *, limit: int = 2, seen: LabelledNodes | None = None) -> Breaker:
    seen = seen or seen_as()
    labelled = seen.labelled(P)
    return admit(breaker, wanted, limit=limit, selected=9, seen=seen, labelled=labelled, now=5.0)


def test_nodes_are_admitted_up_to_the_limit_with_the_version_of_their_patch() -> None:
    breaker = admitted(Breaker(), {"a": 7, "b": 8})
    assert breaker == Breaker(nodes={"a": 7, "b": 8})


def test_one_node_too_many_trips_the_breaker_and_admits_none_of_them() -> None:
    breaker = admitted(Breaker(nodes={"a": 7}), {"b": 8, "c": 9})
    assert breaker == Breaker(nodes={"a": 7}, trip=Trip(since=5.0, limit=2, wanted=3, selected=9))
    assert admitted(breaker, {"d": 1}, limit=9) is breaker


def test_a_node_of_a_full_set_is_admitted_again_but_never_at_an_earlier_version() -> None:
    full = Breaker(nodes={"a": 7, "b": 8})
    assert admitted(full, {"a": 9}).nodes == {"a": 9, "b": 8}
    assert admitted(full, {"a": 6}) is full


def test_an_earlier_admission_counts_only_while_there_is_room_for_it() -> None:
    """Users have labelled `b` and `c` since, and the limit is 2."""
    seen = seen_as(a=(7, {}), b=(8, OURS), c=(9, OURS))
    before = Breaker(nodes={"a": 7})
    assert is_over(before, seen.unrecorded(P, before), 2)
    assert not is_over(before, seen.unrecorded(P, before), 3)
    recorded = Breaker(nodes={"b": 1, "c": 1})
    assert not is_over(recorded, seen.unrecorded(P, recorded), 2), "each counts once"
    tripped = admitted(before, {"a": 7}, seen=seen)
    assert tripped == Breaker(nodes={"a": 7, "b": 8, "c": 9}, trip=Trip(since=5.0, limit=2, wanted=3, selected=9))
    assert admitted(before, {"a": 7}, seen=seen, limit=3).trip is None
    # A node that has the label already is no further one.
    assert admitted(Breaker(nodes={"a": 7, "b": 8, "c": 9}), {"b": 8}, seen=seen).trip is None


def test_labelled_nodes_that_no_record_has_are_added_also_above_the_limit_and_then_one_more_trips() -> None:
    seen = seen_as(a=(1, OURS), b=(2, OURS), c=(3, OURS))
    assert admitted(Breaker(), {"a": 5}, seen=seen) == Breaker(nodes={"a": 5, "b": 2, "c": 3})
    tripped = admitted(Breaker(), {"d": 5}, seen=seen)
    assert tripped.nodes == {"a": 1, "b": 2, "c": 3}
    assert tripped.trip is not None
    assert tripped.trip.wanted == 4


@pytest.mark.parametrize(
    ("state", "leaves"),
    [
        ((6, {}), False),  # a view from before the admission
        ((7, {}), False),  # the patch may be on its way
        ((8, {}), True),
        ((8, OURS), False),
        ((8, {"q": "violating"}), True),
    ],
)
def test_a_node_leaves_when_it_is_shown_without_labels_at_a_later_version(
    state: tuple[int, dict[str, str]], leaves: bool
) -> None:
    breaker, seen = Breaker(nodes={"a": 7}), seen_as(a=state)
    left = without_leavers(breaker, seen, seen.labelled(P))
    assert left == (Breaker() if leaves else breaker)


def test_a_missing_node_leaves_only_by_a_view_of_later_than_its_admission() -> None:
    breaker = Breaker(nodes={"a": 7}, trip=Trip(since=1.0, limit=1, wanted=2, selected=2))
    assert without_leavers(breaker, LabelledNodes(7), ()) is breaker
    assert without_leavers(breaker, LabelledNodes(8), ()) == Breaker(trip=breaker.trip)
    seen = seen_as(a=(7, {}))
    seen.drop("a", 8)
    assert without_leavers(breaker, seen, ()) == Breaker(trip=breaker.trip)


def test_a_list_of_all_nodes_forgets_the_nodes_before_it() -> None:
    seen = seen_as(a=(7, OURS), b=(8, OURS))
    seen.begin_list(9)
    seen.take_in("b", 8, OURS)
    assert (len(seen), seen.labelled(P)) == (1, {"b"})
    assert without_leavers(Breaker(nodes={"a": 8, "b": 8}), seen, {"b"}) == Breaker(nodes={"b": 8})


def test_a_reset_keeps_the_nodes() -> None:
    nodes = {"a": 7}
    assert reset(Breaker(nodes=nodes, trip=Trip(since=1.0, limit=1, wanted=2, selected=2))) == Breaker(nodes=nodes)


def test_over_all_policies_a_label_without_a_prefix_counts_only_with_a_policy_of_its_name() -> None:
    seen = seen_as(
        a=(1, OURS), b=(1, {"others": "violating"}), c=(1, {f"{LABEL_PREFIX}gone/x": "1"}), d=(1, {"p": "ssd"})
    )
    assert seen.labelled(ALL) == {"c"}
    seen.set_policy(P, exists=True)
    assert seen.labelled(ALL) == {"a", "c"}
    seen.drop("c", 2)
    assert seen.labelled(ALL) == {"a"}
    seen.forget_policies()
    assert seen.labelled(ALL) == set()


def test_selected_nodes_are_those_of_the_node_selector() -> None:
    seen = seen_as(a=(1, {"pool": "a"}), b=(1, {}))
    policy = Policy(key=PolicyKey("n", P), strategies={})
    assert seen.selected(policy) == 2
    selector = parse_selector({"matchLabels": {"pool": "a"}})
    assert seen.selected(Policy(key=policy.key, strategies={}, node_selector=selector)) == 1


def test_the_nodes_of_so_many_selectors_are_counted() -> None:
    seen = seen_as(a=(1, {"pool": "a"}), b=(1, {}))
    for number in range(MAX_SELECTORS + 10):
        selector = parse_selector({"matchLabels": {"pool": f"p{number}"}})
        assert seen.selected(Policy(key=PolicyKey("n", P), strategies={}, node_selector=selector)) == 0
    assert len(seen._selected) == MAX_SELECTORS


def test_the_selectors_that_a_policy_had_before_are_not_kept() -> None:
    seen = seen_as(a=(1, {"pool": "a"}), b=(1, {"pool": "p3"}))
    others = Policy(
        key=PolicyKey("n", "q"), strategies={}, node_selector=parse_selector({"matchLabels": {"pool": "a"}})
    )
    assert seen.selected(others) == 1
    for number in range(20):
        selector = parse_selector({"matchLabels": {"pool": f"p{number}"}})
        seen.set_policy(P, exists=True)
        assert seen.selected(Policy(key=PolicyKey("n", P), strategies={}, node_selector=selector)) == (number == 3)
        assert len(seen._selected) == 2
    seen.set_policy(P, exists=False)
    assert len(seen._selected) == 1
    seen.take_in("b", 2, {"pool": "a"})
    assert seen.selected(others) == 2


def test_a_changed_state_names_the_policies_whose_labels_changed_and_an_earlier_state_changes_nothing() -> None:
    card = f"{LABEL_PREFIX}q/card"
    seen = seen_as(a=(5, OURS))
    assert seen.take_in("a", 6, OURS | {card: "1", "zone": "x"}) == {"q"}
    assert seen.take_in("a", 7, {card: "2"}) == {"p", "q"}
    assert seen.take_in("a", 6, OURS) == frozenset()
    assert seen.labelled(P) == set()


def test_a_version_that_is_no_number_lets_no_node_leave() -> None:
    assert (version_of("12"), version_of(""), version_of("v1")) == (12, 0, 0)


# Histories


@dataclass
class Replica:
    """A replica of `labels`: a view that is behind, and the last record that it has read or written."""

    seen: LabelledNodes
    behind: deque[tuple[str, int, dict[str, str] | None]] = field(default_factory=deque)
    nodes: dict[str, int] = field(default_factory=dict)  # the versions in its view
    labelled: set[str] = field(default_factory=set)
    known: tuple[int, Breaker] = (0, Breaker())


class Model:
    """An API server, the record of one breaker, replicas, and patches that are on their way."""

    def __init__(self, seed: int, *, limit: int) -> None:
        self.random = random.Random(seed)
        self.limit = limit
        self.version = 1
        self.nodes = {f"n{number}": (1, False) for number in range(8)}
        self.stored: tuple[int, Breaker] = (0, Breaker())
        self.patches: list[tuple[str, int, bool]] = []
        self.replicas = [self.listed(), self.listed()]
        self.met: Counter[str] = Counter()
        self.are_claimed = seed % 2 == 0
        self.claimed: set[str] = set()  # nodes whose labels a user has set

    def listed(self) -> Replica:
        replica = Replica(LabelledNodes(self.version))
        for node, (version, labelled) in self.nodes.items():
            self.see(replica, node, version, OURS if labelled else {})
        return replica

    def see(self, replica: Replica, node: str, version: int, labels: dict[str, str] | None) -> None:
        replica.labelled.discard(node)
        if labels is None:
            replica.seen.drop(node, version)
            replica.nodes.pop(node, None)
            return
        replica.seen.take_in(node, version, labels)
        replica.nodes[node] = version
        if labels:
            replica.labelled.add(node)

    def change(self, node: str, *, labelled: bool | None) -> None:
        self.version += 1
        if not labelled:
            self.claimed.discard(node)
        if labelled is None:
            del self.nodes[node]
        else:
            self.nodes[node] = (self.version, labelled)
        for replica in self.replicas:
            replica.behind.append((node, self.version, None if labelled is None else OURS if labelled else {}))

    def step(self) -> None:
        replica = self.random.choice(self.replicas)
        often = ["watch", "admit", "patch", "land"]
        actions = [
            *often,
            *often,
            *["read", "remove", "lose", "touch", "delete", "kill", "tidy", "reset", "wipe"],
            "claim",
        ]
        getattr(self, self.random.choice(actions))(replica)

    def watch(self, replica: Replica) -> None:
        for _ in range(self.random.randint(0, len(replica.behind))):
            self.see(replica, *replica.behind.popleft())

    def read(self, replica: Replica) -> None:
        replica.known = self.stored

    def write(self, replica: Replica, breaker: Breaker) -> None:
        if replica.known[0] != self.stored[0]:
            self.met["conflict"] += 1
        elif breaker is not replica.known[1]:
            self.stored = replica.known = (self.stored[0] + 1, breaker)

    def admit(self, replica: Replica) -> None:
        if self.random.random() < 0.7:  # else by what it knows: then another replica may be first
            self.read(replica)
        open_nodes = sorted(replica.nodes.keys() - replica.labelled)
        few = self.random.sample(open_nodes, min(len(open_nodes), self.random.choice((1, 1, 2, 4))))
        wanted = {node: replica.nodes[node] for node in few}
        breaker = admit(
            replica.known[1],
            wanted,
            limit=self.limit,
            selected=len(replica.nodes),
            seen=replica.seen,
            labelled=replica.labelled,
            now=0.0,
        )
        self.met["tripped"] += breaker.trip is not None
        self.write(replica, breaker)

    def patch(self, replica: Replica) -> None:
        # By a record that was the last one a moment ago. A trip since then changes nothing for admitted nodes.
        # By the model's own count: the product is asked below.
        over = len({*replica.known[1].nodes, *replica.labelled}) > self.limit
        breaker = replica.known[1]
        assert is_over(breaker, replica.seen.unrecorded(P, breaker), self.limit) is over
        for node, version in replica.nodes.items():
            if replica.known[1].nodes.get(node) == version and node not in replica.labelled:
                self.met["over"] += over
                if not over:
                    self.patches.append((node, version, True))

    def claim(self, _: Replica) -> None:
        """A user sets a label by hand, whatever the limit is, or removes the labels that users have set."""
        if not self.are_claimed:
            return
        if self.claimed:
            for node in sorted(self.claimed & self.nodes.keys()):
                self.change(node, labelled=False)
        else:
            node = self.random.choice(sorted(self.nodes))
            self.claimed.add(node)
            self.change(node, labelled=True)

    def remove(self, replica: Replica) -> None:
        if replica.labelled:
            node = self.random.choice(sorted(replica.labelled))
            self.patches.append((node, replica.nodes[node], False))

    def land(self, _: Replica) -> None:
        if self.patches:
            node, version, labelled = self.patches.pop(self.random.randrange(len(self.patches)))
            if node in self.nodes and self.nodes[node][0] == version:
                self.change(node, labelled=labelled)
                self.met["landed"] += 1
            else:
                self.met["late"] += 1

    def lose(self, _: Replica) -> None:
        if self.patches:
            self.patches.pop(self.random.randrange(len(self.patches)))

    def touch(self, _: Replica) -> None:
        node = self.random.choice(sorted(self.nodes))
        self.change(node, labelled=self.nodes[node][1])

    def delete(self, _: Replica) -> None:
        if self.random.random() < 0.3:
            node = self.random.choice(sorted(self.nodes))
            self.change(node, labelled=None)
            self.change(node, labelled=False)  # with a new uid: no earlier patch succeeds

    def kill(self, replica: Replica) -> None:
        self.replicas[self.replicas.index(replica)] = self.listed()

    def tidy(self, replica: Replica) -> None:
        self.write(replica, without_leavers(replica.known[1], replica.seen, replica.labelled))

    def reset(self, replica: Replica) -> None:
        self.read(replica)
        self.write(replica, reset(replica.known[1]))

    def wipe(self, replica: Replica) -> None:
        """Nothing is admitted until patches on their way have landed or failed, and all nodes are listed again."""
        if self.random.random() < 0.6:
            while self.patches:
                self.land(replica)
            self.stored = (self.stored[0] + 1, Breaker())
            self.replicas = [self.listed(), self.listed()]


HISTORIES, STEPS = 300, 250
"""A fault of the breaker shows in at least 4 of 100 histories, so it does not stay unnoticed in so many."""


def test_no_history_labels_more_nodes_than_the_limit() -> None:
    met: Counter[str] = Counter()
    for seed in range(HISTORIES):
        model = Model(seed, limit=1 + seed % 3)
        for _ in range(STEPS):
            model.step()
            labelled = sum(labelled for node, (_, labelled) in model.nodes.items() if node not in model.claimed)
            assert labelled <= model.limit, f"seed {seed}"
            met["full"] += labelled == model.limit
        met += model.met
    assert all(met[case] > HISTORIES for case in ("full", "tripped", "conflict", "landed", "late")), met
    assert met["over"] > HISTORIES / 10, met
