"""The kept columns after any changes of the view, beside the same columns made anew from the view."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, cycle, islice, product
from math import nan
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tas.agents import columns as columns_module
from tas.agents import kept as kept_module
from tas.agents.agent import Agent, Columns, ContainerDemand, FloatArray, PodDemand
from tas.agents.columns import MAX_DERIVED, MAX_NUMBERS, SHOWN_SECONDS, Known, NodeColumns, RequestCandidates
from tas.agents.congestion import Congestion, CongestionOptions
from tas.agents.kept import MAX_COLUMNS, UNKNOWN, KeptColumns
from tas.agents.pigeon import Objective, Pigeon, PigeonOptions
from tas.agents.safe import SafeBalance, SafeOptions, SafeOverload
from tas.agents.trimaran import (
    LowRisk,
    LowRiskOptions,
    Peaks,
    PeaksOptions,
    PowerModel,
    RiskBalance,
    RiskBalanceOptions,
    TargetLoad,
    TargetLoadOptions,
)
from tas.agents.usage import Usage
from tas.allocation.node import NodeAllocation, Recent, in_flight
from tas.extension import NodeView
from tas.values.quantity import NANO
from tas.view.allocations import AllocationView
from tas.view.view import View
from tests.conftest import EXAMPLES
from tests.unit.tas.agents.interrupting import is_interrupted
from tests.unit.tas.view.test_view import scrape
from workers.agents.interrupting import InterruptedCallError

NODES = ("a", "b", "c")
METRICS = ("free", "used")
AGES = (None, 20.0)
RESOURCES = ("cpu", "memory")

Change = Callable[["World"], None]


class World:
    """A view, and two agents that read it: one asks for fresher values."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.view = View(default_stale_after=60.0)
        self.nodes = NodeView(self.view)
        self.nodes.advance(self.now)
        self.kept = self.nodes.shared(KeptColumns)
        self.agents: list[tuple[float | None, Known]] = []
        self.derived: dict[tuple[int, int], dict[Hashable, Any]] = {}
        self.asking = cycle(product(range(len(AGENTS)), PODS))

    def load(self, max_age: float | None) -> None:
        """Loads an agent; of more than three, the oldest one goes."""
        self.kept.follow_allocations(self.nodes)
        metrics = {metric: self.kept.follow_metric(self.nodes, metric, max_age) for metric in METRICS}
        self.agents = [*self.agents[-2:], (max_age, Known(kept=self.kept, metrics=metrics, allocations=True))]

    @property
    def allocations(self) -> AllocationView:
        self.nodes.allocations()
        assert self.nodes.followed_allocations is not None
        return self.nodes.followed_allocations

    def sample(self, node: str, metric: str, value: int, age: float, source: str) -> None:
        scraped = scrape(self.now - age, 1, source, **{metric: str(value)})
        self.view.add_samples(node, [scraped], self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.nodes.advance(self.now)

    def allocate(self, node: str, cpu: int, unreadable: int, ages: Sequence[float]) -> None:
        recent = tuple(Recent(self.now - age, (("cpu", 100), ("memory", 7))) for age in ages)
        amounts = {"cpu": cpu, "pods": 3}
        allocation = NodeAllocation(
            uid="u",
            capacity=amounts,
            allocatable=amounts | {"cpu": cpu - 1},
            requested={"cpu": 5},
            limited={"cpu": 6},
            unreadable=unreadable,
            recent=recent,
        )
        self.allocations.set_node(node, allocation)

    def check(self, names: Sequence[str]) -> None:
        for max_age, known in self.agents:
            candidates = RequestCandidates(names, known, now=self.now, cluster=partial(self.cluster, known))
            self.check_columns(candidates, names, max_age)
            self.check_agents(candidates, known)
            everything = {*self.nodes.names, *self.nodes.allocations()}
            cluster = candidates.cluster
            assert sorted(cluster.names) == sorted(everything)
            self.check_columns(cluster, cluster.names, max_age)
            self.check_agents(cluster, known)
        measured = {name for name in NODES if any(self.nodes.measured_at(name, metric) for metric in METRICS)}
        if self.agents:
            assert len(self.kept) == len(measured | {*self.nodes.allocations()}), "a row for each known node"

    def cluster(self, known: Known) -> NodeColumns:
        names, rows = self.kept.cluster(self.nodes)
        return NodeColumns(names, known, rows)

    def check_columns(self, columns: Columns, names: Sequence[str], max_age: float | None) -> None:
        allocations = self.nodes.allocations()
        for metric in METRICS:
            fresh = self.nodes.metric(metric, stale_after=max_age)
            same(columns.metric(metric), [fresh[name] / NANO if name in fresh else nan for name in names])
            for resource in RESOURCES:
                same(columns.placed(resource, metric), [self.placed(name, resource, metric) for name in names])
        for resource in RESOURCES:
            for of in ("capacity", "allocatable", "requested", "limited"):
                expected: list[float] = []
                for name in names:
                    found = allocations.get(name)
                    is_unknown = found is None or (of in ("requested", "limited") and found.unreadable > 0)
                    expected.append(nan if is_unknown else getattr(found, of).get(resource, 0))
                same(getattr(columns, of)(resource), expected)

        self.check_derived(columns)

    def check_agents(self, columns: Columns, known: Known) -> None:
        """Each agent that keeps derived values answers as one that has kept nothing; some of them in each check."""
        for number, pod in islice(self.asking, 4):
            agent, derived = AGENTS[number], self.derived.setdefault((id(known), number), {})
            kept, new = (
                agent.score(
                    pod, RequestCandidates(columns.names, each, now=self.now, cluster=partial(self.cluster, each))
                )
                for each in (replace(known, derived=derived), replace(known, derived={}))
            )
            np.testing.assert_array_equal(kept.known, new.known)
            np.testing.assert_array_equal(kept.values[kept.known], new.values[new.known])
            assert kept.terms.keys() == new.terms.keys()
            for term, row in kept.terms.items():
                np.testing.assert_array_equal(row, new.terms[term])

    def check_derived(self, columns: Columns) -> None:
        """What was kept from an earlier request is what would be computed now."""
        kept = columns.derived("everything", everything)
        expected = everything(columns)
        known = [self.kept.known_row(name) != UNKNOWN for name in columns.names]
        same(kept[:-1], expected[:-1])
        np.testing.assert_array_equal(kept[-1][known], expected[-1][known])
        assert not kept.flags.writeable

    def placed(self, name: str, resource: str, metric: str) -> float:
        found, measured = self.nodes.allocations().get(name), self.nodes.measured_at(name, metric)
        if found is None or measured is None:
            return 0.0
        return in_flight(found.recent, resource, measured - SHOWN_SECONDS)


USAGES = {resource: (Usage(mean="free"), Usage(mean="used", std="free")) for resource in RESOURCES}
AGENTS: Sequence[Agent] = (
    SafeBalance(SafeOptions(cpu=USAGES["cpu"], memory=USAGES["memory"])),
    SafeOverload(SafeOptions(cpu=USAGES["cpu"], memory=USAGES["memory"])),
    RiskBalance(RiskBalanceOptions(cpu=USAGES["cpu"], memory=USAGES["memory"])),
    Peaks(PeaksOptions(cpu=USAGES["cpu"], default=PowerModel(k1=1.0, k2=0.01))),
    Congestion(CongestionOptions(factor="used")),
    TargetLoad(TargetLoadOptions(cpu=USAGES["cpu"])),
    LowRisk(LowRiskOptions(cpu=USAGES["cpu"], memory=USAGES["memory"])),
    *(Pigeon(PigeonOptions(objective=objective)) for objective in Objective),
)


def asking(requests: Mapping[str, float], limits: Mapping[str, float], *containers: ContainerDemand) -> PodDemand:
    return PodDemand(namespace="n", name="p", uid="u", requests=requests, limits=limits, containers=containers)


PODS = (
    asking({"cpu": 1.0, "memory": 1.0}, {}),
    asking({"cpu": 1.0, "memory": 1.0}, {"cpu": 4.0}),
    asking({"cpu": 1.0, "memory": 2.0}, {"memory": 3.0}),
    asking({"cpu": 1.0}, {"cpu": 4.0}, ContainerDemand(), ContainerDemand(requests={"cpu": 1.0})),
    asking({}, {}),
)
"""Pods of which each asks for something else in one respect."""


def everything(nodes: Columns) -> FloatArray:
    """Each column of some nodes, and last a number from their names."""
    columns = [nodes.metric(metric) for metric in METRICS]
    columns += [nodes.placed(resource, metric) for resource in RESOURCES for metric in METRICS]
    for of in (nodes.capacity, nodes.allocatable, nodes.requested, nodes.limited):
        columns += map(of, RESOURCES)
    return np.array([*columns, [float(crc32(name.encode())) for name in nodes.names]])


def same(found: Any, expected: Sequence[float] | FloatArray) -> None:
    # Called some thousand times: the function of numpy.testing takes ten times as long.
    assert np.array_equal(found, np.array(expected, dtype=np.float64), equal_nan=True), (found, expected)
    assert not found.flags.writeable


A_NODE = st.sampled_from(NODES)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(
        lambda *of: lambda world: world.sample(*of),
        A_NODE,
        st.sampled_from([*METRICS, "other"]),
        st.integers(0, 3),
        st.sampled_from([0.0, 5.0, 30.0, 100.0]),
        st.sampled_from(["one", "two"]),
    ),
    st.builds(lambda seconds: lambda world: world.advance(seconds), st.sampled_from([1.0, 25.0, 70.0, 4000.0])),
    st.builds(lambda node: lambda world: world.view.drop_samples(node), A_NODE),
    st.builds(lambda node: lambda world: world.view.set_labels(node, {}), A_NODE),
    st.builds(lambda node: lambda world: world.view.drop_labels(node), A_NODE),
    st.builds(
        lambda *of: lambda world: world.allocate(*of),
        A_NODE,
        st.integers(1, 3),
        st.integers(0, 1),
        st.lists(st.sampled_from([0.0, 50.0, 200.0]), max_size=3),
    ),
    st.builds(lambda node: lambda world: world.allocations.drop_node(node), A_NODE),
    st.just(lambda world: world.allocations.clear()),
    st.builds(lambda age: lambda world: world.load(age), st.sampled_from(AGES)),
)


@settings(max_examples=EXAMPLES // 4)
@given(
    st.lists(
        st.tuples(CHANGES, st.lists(st.sampled_from([*NODES, "stranger"]), unique=True)), min_size=10, max_size=30
    ),
    st.booleans(),
)
def test_after_any_change_the_columns_are_those_of_the_view(
    changes: Sequence[tuple[Change, Sequence[str]]], few_rows: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if few_rows:
            patch.setattr(kept_module, "FIRST_ROWS", 2)
        world = World()
        asked: Sequence[str] = NODES
        for number, (change, names) in enumerate(changes):
            if number == 3:  # of what is known before, all is followed
                world.load(None)
            change(world)
            world.check(asked)  # the list as before the change
            asked = names or asked
            world.check(asked)
        event(f"{len(world.kept)} nodes known")


def test_what_is_left_of_a_node_is_still_known() -> None:
    world = World()
    world.load(None)
    world.allocate("a", 3, 0, [0.0])
    world.sample("a", "free", 1, 0.0, "one")
    world.sample("b", "free", 1, 0.0, "one")
    world.allocate("b", 2, 0, [0.0])
    world.check(NODES)
    world.view.drop_samples("a")
    world.allocations.drop_node("b")
    world.check(NODES)
    assert len(world.kept) == 2


def test_a_metric_that_a_node_has_no_more_shows_no_pods() -> None:
    world = World()
    world.load(None)
    world.sample("a", "free", 1, 0.0, "one")
    world.advance(3000.0)
    world.sample("a", "used", 1, 0.0, "one")
    world.allocate("a", 3, 0, [0.0])
    world.check(NODES)
    world.advance(3000.0)
    world.sample("a", "used", 1, 0.0, "one")
    assert world.nodes.measured_at("a", "free") is None, "the sample is too old to be kept"
    world.check(NODES)


def test_a_row_is_given_to_another_node_after_its_node_is_gone() -> None:
    world = World()
    world.load(None)
    for number in range(2000):
        name = f"node-{number}"
        world.sample(name, "free", number, 0.0, "one")
        world.allocate(name, 3, 0, [0.0])
        ((_, known),) = world.agents
        columns = NodeColumns((name,), known)
        assert (columns.metric("free")[0], columns.requested("cpu")[0]) == (number, 5)
        world.view.drop_samples(name)
        world.allocations.drop_node(name)
    assert len(world.kept) == 0
    assert len(known.metrics["free"].values) == kept_module.FIRST_ROWS


def test_resources_that_a_stranger_invents_take_no_more_than_a_bound() -> None:
    world = World()
    world.load(None)
    world.allocate("a", 3, 0, [])
    ((_, known),) = world.agents
    kept = world.kept.amounts("capacity", "cpu")
    for number in range(3 * MAX_COLUMNS):
        columns = NodeColumns(("a",), known)
        assert columns.capacity(f"example.com/{number}").tolist() == [0.0]
        assert columns.capacity("cpu").tolist() == [3.0]
    assert world.kept.columns == MAX_COLUMNS
    assert world.kept.amounts("capacity", "cpu") is kept, "it was always asked for"


def test_what_is_derived_is_computed_only_for_nodes_that_have_changed() -> None:
    world = World()
    world.load(None)
    for name in NODES:
        world.sample(name, "free", 1, 0.0, "one")
    ((_, known),) = world.agents
    computed: list[Sequence[str]] = []

    def free(nodes: Columns) -> FloatArray:
        computed.append(nodes.names)
        return nodes.metric("free").reshape(1, -1)

    def asked(*names: str) -> list[float]:
        found: list[float] = NodeColumns(names, known).derived("free", free)[0].tolist()
        return found

    assert asked("a") == asked("a") == [1.0]
    assert computed.pop() == ["a"], "of no other node, which a request has not asked for"
    world.sample("a", "free", 3, 0.0, "one")
    assert asked("b", "a") == [1.0, 3.0]
    assert sorted(computed.pop()) == ["a", "b"]
    world.allocate("b", 3, 0, [])
    world.sample("c", "free", 3, 0.0, "one")
    assert asked("c", "a") == [3.0, 3.0]
    assert computed.pop() == ["c"], "not b, which nobody asks for"
    assert asked("a", "b", "c") == [3.0, 1.0, 3.0]
    assert computed.pop() == ["b"]
    for _ in range(2):
        assert np.isnan(asked("nobody", "nobody else")).all()
    assert computed == [["", ""]], "nodes of which nothing is known are alike"


def test_while_nothing_changes_what_is_derived_for_the_same_nodes_is_the_same_array() -> None:
    world = World()
    world.load(None)
    for name in NODES:
        world.sample(name, "free", 1, 0.0, "one")
    ((_, known),) = world.agents
    assert known.kept is world.kept

    def free(*names: str) -> FloatArray:
        return NodeColumns(names, known).derived("free", lambda nodes: nodes.metric("free").reshape(1, -1))

    first = free("a", "b")
    assert free("a", "b") is first
    world.sample("c", "free", 3, 0.0, "one")
    assert free("a", "b").tolist() == first.tolist()
    world.sample("b", "free", 3, 0.0, "one")
    second = free("a", "b")
    assert (first.tolist(), second.tolist()) == ([[1.0, 1.0]], [[1.0, 3.0]]), "an answer before keeps its values"
    assert free("b", "a").tolist() == [[3.0, 1.0]]


@pytest.mark.parametrize(("nodes", "rows"), [(3, 1), (3, 4000), (300, 100), (5000, 10)])
def test_what_is_kept_for_pods_is_limited_and_what_is_asked_for_stays(nodes: int, rows: int) -> None:
    world = World()
    world.load(None)
    names = tuple(f"node-{number}" for number in range(nodes))
    for name in names:
        world.sample(name, "free", 1, 0.0, "one")
    ((_, known),) = world.agents
    columns, computed = NodeColumns(names[:3], known), list[int]()

    def ask(number: int) -> None:
        def compute(found: Columns) -> FloatArray:
            computed.append(number)
            return np.full((rows, len(found.names)), float(number))

        assert columns.derived(number, compute)[0].tolist() == [float(number)] * 3

    for number in range(1, 2 * MAX_DERIVED):
        ask(0)
        ask(number)
    assert computed == list(range(2 * MAX_DERIVED)), "each once"
    assert 2 <= len(known.derived) <= MAX_DERIVED
    assert sum(each.values.size for each in known.derived.values()) <= MAX_NUMBERS


def test_what_is_kept_does_not_grow_with_the_nodes_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger names as many as 64 MiB have room for, and asks for something else each time."""
    most, remembered = 4096, 1024
    monkeypatch.setattr(columns_module, "MAX_NUMBERS", most)
    monkeypatch.setattr(kept_module, "MAX_REMEMBERED", remembered)
    world = World()
    world.load(None)
    world.sample("a", "free", 1, 0.0, "one")
    ((_, known),) = world.agents
    for number, size in enumerate(list(islice(cycle([10, 500, most, 2 * most]), 3 * MAX_DERIVED))):
        names = ("a", *(f"unknown-{each}" for each in range(size - 1)))
        columns = NodeColumns(names, known)
        for key in (number, "again"):
            found = columns.derived(key, lambda nodes: nodes.metric("free").reshape(1, -1))
            assert found.shape == (1, size)
            assert found[0, 0] == 1.0
        assert sum(each.picked[2].size for each in known.derived.values() if each.picked is not None) <= 2 * most
        assert len(world.kept._last[0]) <= remembered
    assert len(known.derived) > 1


def test_a_call_that_is_interrupted_anywhere_leaves_nothing_that_is_out_of_date() -> None:
    """As the time limit of an agent does it; here before each line."""

    def free(nodes: Columns) -> FloatArray:
        return nodes.metric("free").reshape(1, -1)

    def twice(nodes: Columns) -> FloatArray:
        return 2.0 * nodes.derived("free", free)

    for line in count():
        world = World()
        world.load(None)
        for name in NODES:
            world.sample(name, "free", 1, 0.0, "one")
        ((_, known),) = world.agents
        asked = partial(lambda found: NodeColumns(NODES, found).derived("twice", twice).tolist(), known)
        assert asked() == [[2.0, 2.0, 2.0]]
        world.sample("b", "free", 3, 0.0, "one")
        interrupted = is_interrupted(line, asked, within=NodeColumns)
        assert asked() == [[2.0, 6.0, 2.0]], line
        world.sample("a", "free", 3, 0.0, "one")
        assert asked() == [[6.0, 6.0, 2.0]], line
        if not interrupted:
            break
    assert line > 20, "it has so many lines at least"


def test_an_agent_keeps_so_many_derivations_and_one_that_fails_or_has_another_shape_is_none() -> None:
    world = World()
    world.load(None)
    world.sample("a", "free", 1, 0.0, "one")
    ((_, known),) = world.agents
    columns = NodeColumns(("a",), known)
    for number in range(3 * MAX_DERIVED):
        assert columns.derived(number, lambda nodes: nodes.metric("free").reshape(1, -1)).tolist() == [[1.0]]
    assert len(known.derived) == MAX_DERIVED
    with pytest.raises(ValueError, match=r"have the shape \(\d+,\), must be rows with \d+ numbers"):
        columns.derived("flat", lambda nodes: nodes.metric("free"))
    with pytest.raises(ZeroDivisionError):
        columns.derived("fails", lambda nodes: nodes.metric("free") / (1 // 0))
    assert not {"flat", "fails"} & known.derived.keys()


def test_an_explanation_has_the_amounts_of_the_decision_or_none() -> None:
    """It is made after the answer, when a node may have changed, or may be gone and its row given to another one."""
    world = World()
    world.load(None)
    for name in NODES:
        world.sample(name, "free", 1, 0.0, "one")
        world.allocate(name, 3, 0, [0.0])
    ((_, known),) = world.agents
    columns = NodeColumns(NODES, known)
    columns.derived("all", everything)
    columns.limited("cpu")
    before = [(name, column.tolist()) for name, column in columns.amounts(range(len(NODES)))]
    assert ("cpu capacity", [3.0] * len(NODES)) in before
    assert ("cpu of new pods", [100.0] * len(NODES)) in before
    world.allocate("a", 2, 0, [])
    world.view.drop_samples("b")
    world.allocations.drop_node("b")
    world.sample("other", "free", 1, 0.0, "one")
    world.allocate("other", 1, 0, [0.0])
    assert world.kept.known_row("other") == columns._rows[1], "the row of b"
    for _ in range(2):
        after = [(name, column.tolist()) for name, column in columns.amounts(range(len(NODES)))]
        for (name, found), (same_name, then) in zip(after, before, strict=True):
            assert name == same_name
            if name == "cpu limited":
                assert found == then, "it was read for the decision itself"
            else:
                np.testing.assert_array_equal(found, [nan, nan, then[2]])


def test_a_column_that_was_interrupted_while_it_was_made_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit of an agent may end its call anywhere."""
    world = World()
    world.load(None)
    for name in NODES:
        world.allocate(name, 3, 0, [])
    ((_, known),) = world.agents
    made = kept_module._amount
    calls = iter(range(1, 100))

    def interrupted(*of: Any) -> float:
        if next(calls) == len(NODES):
            raise InterruptedCallError("too slow")
        return made(*of)

    monkeypatch.setattr(kept_module, "_amount", interrupted)

    def cpu(nodes: Columns) -> FloatArray:
        return nodes.capacity("cpu").reshape(1, -1)

    with pytest.raises(InterruptedCallError):
        NodeColumns(NODES, known).derived("cpu", cpu)
    assert NodeColumns(NODES, known).derived("cpu", cpu).tolist() == [[3.0] * len(NODES)]

    def fails(_: Columns) -> FloatArray:
        raise InterruptedCallError("too slow")

    world.allocate("b", 2, 0, [])
    with pytest.raises(InterruptedCallError):
        NodeColumns(NODES, known).derived("cpu", fails)
    assert NodeColumns(NODES, known).derived("cpu", cpu).tolist() == [[3.0, 2.0, 3.0]]


def test_an_explanation_has_what_a_derivation_within_another_one_has_read() -> None:
    world = World()
    world.load(None)
    world.allocate("a", 3, 0, [])
    ((_, known),) = world.agents
    columns = NodeColumns(("a",), known)

    def outer(nodes: Columns) -> FloatArray:
        return nodes.derived("inner", lambda found: found.capacity("cpu").reshape(1, -1)) + nodes.limited("cpu")

    assert columns.derived("outer", outer).tolist() == [[9.0]]
    assert {name: column.tolist() for name, column in columns.amounts([0])} == {
        "cpu capacity": [3.0],
        "cpu limited": [6.0],
    }


def test_two_agents_that_read_the_same_share_a_column() -> None:
    world = World()
    world.load(None)
    world.load(None)
    world.load(20.0)
    (_, first), (_, second), (_, fresher) = world.agents
    assert first.metrics["free"] is second.metrics["free"]
    assert first.metrics["free"] is not fresher.metrics["free"]
    assert world.nodes.another().shared(KeptColumns) is world.kept
