"""Costs of pods against a second evaluation of the same facts: what counts, in which direction, and for how long."""

import gc
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from tas.enforcing.pod import PodKey
from tas.extender.decision import ScoreDecision
from tas.extender.telemetry import TelemetryDecider
from tas.policy.policy import Operator, PolicyKey, Rule
from tas.samples.freshness import DEFAULT_STALE_AFTER
from tas.samples.sample import FUTURE_TOLERANCE, MAX_SAMPLE_AGE
from tas.values.quantity import NANO, Quantity
from tas.view.placements import pods_not_shown, with_cost
from tas.view.view import View
from tests.conftest import EXAMPLES
from tests.unit.growth import grows_linearly

from .test_view import NODES, Histories, pod_of, policy_of, scrape

POLICY = PolicyKey("default", "p")
NOW = 1_000_000.0


def cheap(cost: object = 2, operator: str = "LessThan", **extra: Any) -> dict[str, Any]:
    """A spec of one rule for the metric `m` with this cost."""
    rule = {"metricname": "m", "operator": operator, "podCost": cost}
    return {"strategies": {"scheduleonmetric": {"rules": [rule | extra]}}}


def view_of(spec: dict[str, Any], **values: str) -> View:
    """A view of one policy at `NOW`, and a sample of each node that was measured ten seconds before."""
    view = View()
    view.set_policy(policy_of(spec), NOW)
    for node, value in values.items():
        view.add_samples(node, [scrape(NOW - 10, m=value)], NOW)
    return view


def pod(name: str = "web") -> PodKey:
    return PodKey("default", name)


def values_of(view: View) -> dict[str, int]:
    """The values by which nodes are scored, in whole units."""
    (values,) = view.policies[POLICY].score_values(view.nodes)
    return {node: value // NANO for node, value in values.items()}


def scored(view: View, now: float = NOW) -> ScoreDecision:
    return TelemetryDecider(view).score(pod_of(), dict.fromkeys(sorted(view.nodes)), now)


quantities = st.integers(-(10**15), 10**15).map(Quantity)
costs = st.integers(1, 10**15).map(Quantity)


@given(quantities, costs, st.integers(0, 200), st.sampled_from([Operator.LESS_THAN, Operator.GREATER_THAN]))
def test_a_pod_makes_the_value_worse_by_its_cost_and_pods_add_up(
    value: Quantity, cost: Quantity, pods: int, operator: Operator
) -> None:
    costed = Rule(metric="m", operator=operator, target=Quantity(0), pod_cost=cost)
    free = Rule(metric="m", operator=operator, target=Quantity(0))
    worse = 1 if operator is Operator.LESS_THAN else -1
    assert with_cost(costed, value, pods) - value == worse * pods * cost
    assert with_cost(costed, with_cost(costed, value, pods), 1) == with_cost(costed, value, pods + 1)
    assert with_cost(costed, value, 0) == value == with_cost(free, value, pods)


@given(st.lists(st.floats(0, 100), max_size=5), st.floats(0, 100), st.floats(0, 10))
def test_a_later_sample_never_leaves_more_pods_than_an_earlier_one(
    times: list[float], sampled: float, later: float
) -> None:
    assert pods_not_shown(times, sampled + later) <= pods_not_shown(times, sampled) <= len(times)
    assert pods_not_shown(times, 102.0) == 0


@pytest.mark.parametrize(("sampled", "pods"), [(9.0, 1), (10.0, 1), (10.999, 1), (11.0, 0), (12.0, 0)])
def test_facts_c36_a_sample_of_the_second_of_the_binding_may_be_older(sampled: float, pods: int) -> None:
    assert pods_not_shown([10.0], sampled) == pods


class TestScores:
    def test_a_burst_is_spread_and_a_newer_sample_ends_the_costs(self) -> None:
        view = view_of(cheap(), a="1", b="2", c="30")
        for number in range(4):
            best = max((scored(view).scores or {}).items(), key=lambda item: item[1])[0]
            view.place_pod(pod(f"web-{number}"), POLICY, best, NOW, NOW)
        assert values_of(view) == {"a": 5, "b": 6, "c": 30}
        assert scored(view).costed == 2
        view.add_samples("a", [scrape(NOW + 5, m="4")], NOW + 5)
        assert values_of(view) == {"a": 4, "b": 6, "c": 30}
        assert scored(view, NOW + 5).costed == 1

    def test_without_a_cost_no_pod_is_kept(self) -> None:
        view = view_of({"strategies": {"scheduleonmetric": {"rules": [{"metricname": "m", "operator": "LessThan"}]}}})
        view.place_pod(pod(), POLICY, "a", NOW, NOW)
        assert not view.counts_pods
        assert view.placed_pods == 0

    def test_pods_of_another_policy_do_not_count(self) -> None:
        view = view_of(cheap(), a="1")
        view.set_policy(policy_of(cheap(7), "q"), NOW)
        view.place_pod(pod(), PolicyKey("default", "q"), "a", NOW, NOW)
        view.place_pod(pod("other"), PolicyKey("elsewhere", "p"), "a", NOW, NOW)
        assert values_of(view) == {"a": 1}
        (of_q,) = view.policies[PolicyKey("default", "q")].score_values(view.nodes)
        assert of_q["a"] == 8 * NANO

    def test_only_prioritize_uses_the_costs(self) -> None:
        rejecting = {"dontschedule": {"rules": [{"metricname": "m", "operator": "GreaterThan", "target": 3}]}}
        view = view_of({"strategies": cheap()["strategies"] | rejecting}, a="1")
        for number in range(9):
            view.place_pod(pod(f"web-{number}"), POLICY, "a", NOW, NOW)
        assert values_of(view) == {"a": 19}
        assert not TelemetryDecider(view).filter(pod_of(), dict.fromkeys("a"), NOW).rejected

    def test_a_rule_that_does_not_count_has_no_costs(self) -> None:
        second = {"metricname": "m", "operator": "LessThan", "podCost": 1}
        first = {"metricname": "m", "operator": "LessThan"}
        view = view_of({"strategies": {"scheduleonmetric": {"rules": [first, second]}}}, a="1")
        assert not view.counts_pods

    def test_a_node_without_a_fresh_value_has_no_costs(self) -> None:
        view = view_of(cheap(), a="1")
        view.place_pod(pod(), POLICY, "b", NOW, NOW)
        assert values_of(view) == {"a": 1}
        view.place_pod(pod("two"), POLICY, "a", NOW, NOW)
        assert values_of(view) == {"a": 3}
        view.advance(NOW - 10 + DEFAULT_STALE_AFTER)
        assert values_of(view) == {}

    def test_an_edit_of_the_cost_counts_for_pods_that_are_already_placed(self) -> None:
        view = view_of(cheap(2), a="1")
        view.place_pod(pod(), POLICY, "a", NOW, NOW)
        view.set_policy(policy_of(cheap(5)), NOW)
        assert values_of(view) == {"a": 6}
        view.set_policy(policy_of(cheap(5, "GreaterThan")), NOW)
        assert values_of(view) == {"a": -4}


class TestEnds:
    def test_a_deleted_pod_costs_nothing(self) -> None:
        view = view_of(cheap(), a="1")
        view.place_pod(pod(), POLICY, "a", NOW, NOW)
        view.drop_pod(pod())
        view.drop_pod(pod("never-seen"))
        assert values_of(view) == {"a": 1}
        assert view.placed_pods == 0

    def test_a_pod_that_takes_the_name_of_another_replaces_it(self) -> None:
        view = view_of(cheap(), a="1", b="1")
        view.place_pod(pod(), POLICY, "a", NOW - 10.0, NOW)
        view.place_pod(pod(), POLICY, "b", NOW, NOW)
        assert values_of(view) == {"a": 1, "b": 3}
        view.place_pod(pod(), POLICY, "b", NOW + 3, NOW + 3)
        view.add_samples("b", [scrape(NOW + 2, m="1")], NOW + 3)
        assert values_of(view) == {"a": 1, "b": 3}

    def test_a_pod_of_a_clock_that_is_ahead_was_placed_when_it_was_first_seen(self) -> None:
        view = view_of(cheap(), a="1")
        view.place_pod(pod(), POLICY, "a", NOW + 5, NOW)
        view.add_samples("a", [scrape(NOW + 2, m="1")], NOW + 2)
        assert values_of(view) == {"a": 1}
        view.place_pod(pod(), POLICY, "a", NOW + 5, NOW + 3)
        assert values_of(view) == {"a": 1}, "the sample shows the pod"

    @pytest.mark.parametrize("ahead", [0.0, FUTURE_TOLERANCE / 2, FUTURE_TOLERANCE, MAX_SAMPLE_AGE])
    def test_whatever_the_clocks_say_a_cost_ends_soon_after_the_pod_was_seen(self, ahead: float) -> None:
        """The pod is reported again and again, by an API server whose clock is ahead, and the samples are old."""
        view = view_of(cheap(), a="1")
        last = 0.0
        for step in range(600):
            now = NOW + step
            view.advance(now)
            view.add_samples("a", [scrape(now - 100, m="1")], now)
            view.place_pod(pod(), POLICY, "a", NOW + ahead, now)
            if values_of(view) != {"a": 1}:
                last = now
        assert last <= NOW + FUTURE_TOLERANCE + 1 + DEFAULT_STALE_AFTER
        assert (last > NOW) == (ahead <= FUTURE_TOLERANCE), "a time far ahead is not used at all"
        assert view.placed_pods == 0 or ahead > FUTURE_TOLERANCE

    def test_pods_are_forgotten_without_any_sample(self) -> None:
        view = view_of(cheap())
        view.place_pod(pod(), POLICY, "a", NOW, NOW)
        assert view.placed_pods == 1
        view.advance(NOW + 1 + DEFAULT_STALE_AFTER)
        assert view.placed_pods == 0

    def test_pods_of_long_ago_are_not_kept(self) -> None:
        """After a start, PODS has every pod."""
        view = view_of(cheap(), a="1")
        view.place_pod(pod(), POLICY, "a", NOW - 1 - DEFAULT_STALE_AFTER, NOW)
        assert view.placed_pods == 0

    @pytest.mark.parametrize("free", [True, False], ids=["edited", "deleted"])
    def test_pods_of_a_policy_without_a_cost_are_forgotten(self, free: bool) -> None:
        view = view_of(cheap(), a="1")
        view.place_pod(pod(), POLICY, "a", NOW, NOW)
        if free:
            view.set_policy(policy_of({"strategies": {}}), NOW)
        else:
            view.drop_policy(POLICY)
        assert view.placed_pods == 0
        assert not view.counts_pods
        view.drop_pod(pod())
        view.add_samples("a", [scrape(NOW, m="1")], NOW)


class Placed(NamedTuple):
    policy: str
    node: str
    time: float
    until: float


COSTED = st.sampled_from(
    [
        cheap(2),
        cheap("500m", "GreaterThan"),
        cheap(1, source="s1") | {"staleAfter": "5s"},
        {
            "strategies": {
                "scheduleonmetric": {
                    "rules": [
                        {"metricname": "m", "operator": "LessThan", "podCost": 3, "weight": 1},
                        {"metricname": "k", "operator": "GreaterThan", "podCost": 1, "weight": 2},
                        {"metricname": "k", "operator": "GreaterThan", "podCost": 9},
                    ]
                }
            }
        },
    ]
)


class CostsAgainstFacts(Histories):
    """After each step the values with costs must be those of all facts, computed again."""

    costed = 0
    """How many values with costs were compared: at least one in each history."""

    def __init__(self) -> None:
        super().__init__(View(default_stale_after=20.0))
        self.pods: dict[str, Placed] = {}

    @initialize()
    def begins_with_a_cost(self) -> None:
        self.policy_with_a_cost("p", cheap(2))
        for node in NODES:
            self.add(node, "s1", 0.0, {"m": 1})
        self.place("1", "p", NODES[0], 0.0)

    @rule(name=st.sampled_from(["p", "q"]), spec=COSTED)
    def policy_with_a_cost(self, name: str, spec: dict[str, Any]) -> None:
        self.policy(name, spec)

    @rule(
        name=st.sampled_from(["1", "2", "3"]),
        policy=st.sampled_from(["p", "p", "q"]),
        node=st.sampled_from(NODES),
        ago=st.sampled_from([-60.0, -5.0, 0.0, 0.5, 3.0, 30.0]),
    )
    def place(self, name: str, policy: str, node: str, ago: float) -> None:
        self.forget_old()
        time = self.now - ago
        self.view.place_pod(pod(name), PolicyKey("default", policy), node, time, self.now)
        known = self.pods.get(name)
        if known is not None and ago < 0 and (known.policy, known.node) == (policy, node):
            return
        self.pods.pop(name, None)
        spec = self.facts.specs.get(policy)
        if spec is None or not self.rules_with_cost(spec) or ago < -FUTURE_TOLERANCE:
            return
        stale_after = {"5s": 5.0, "30s": 30.0, None: 20.0}[spec.get("staleAfter")]
        placed = Placed(policy, node, min(time, self.now), min(time, self.now) + 1 + stale_after)
        if placed.until > self.now:
            self.pods[name] = placed

    @rule(name=st.sampled_from(["1", "2", "3"]))
    def pod_goes(self, name: str) -> None:
        self.view.drop_pod(pod(name))
        self.pods.pop(name, None)

    def rules_with_cost(self, spec: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
        """The rules that count and have a cost, with their numbers."""
        rules = spec["strategies"].get("scheduleonmetric", {}).get("rules", [])
        if any("weight" in each for each in rules):
            counting = [(number, each) for number, each in enumerate(rules) if "weight" in each]
        else:
            counting = list(enumerate(rules[:1]))
        return [(number, each) for number, each in counting if "podCost" in each]

    def forget_old(self) -> None:
        self.view.advance(self.now)
        self.pods = {
            name: placed
            for name, placed in self.pods.items()
            if placed.until > self.now and self.rules_with_cost(self.facts.specs.get(placed.policy, {"strategies": {}}))
        }

    @invariant()
    def values_agree_with_the_facts(self) -> None:
        self.forget_old()
        assert self.view.placed_pods == len(self.pods)
        for name, spec in self.facts.specs.items():
            index = self.view.policies[PolicyKey("default", name)]
            with_cost = dict(self.rules_with_cost(spec))
            rules = spec["strategies"].get("scheduleonmetric", {}).get("rules", [])
            for number, (each, values) in enumerate(zip(rules, index.score_values(NODES), strict=True)):
                for node in NODES:
                    expected: float | None = self.facts.fresh(node, spec, each, self.now)
                    if expected is not None and number in with_cost:
                        expected += self.cost(name, node, each)
                    found = values.get(node)
                    assert (None if found is None else found / NANO) == expected

    def cost(self, policy: str, node: str, rule: Mapping[str, Any]) -> float:
        sources = [rule["source"]] if "source" in rule else ["s1", "s2"]
        known = [self.facts.newest(node, source, rule["metricname"]) for source in sources]
        sampled = max(each.time for each in known if each is not None)
        pods = [
            placed
            for placed in self.pods.values()
            if (placed.policy, placed.node) == (policy, node) and sampled < placed.time + 1
        ]
        CostsAgainstFacts.costed += bool(pods)
        cost = 0.5 if rule["podCost"] == "500m" else float(rule["podCost"])
        return len(pods) * (cost if rule["operator"] == "LessThan" else -cost)


class TestCostsAgainstFacts:
    @pytest.mark.seeded
    def test_after_any_history_the_values_are_those_of_the_facts(self) -> None:
        CostsAgainstFacts.costed = 0
        for _ in range(4):  # a few of a hundred runs meet fewer pods with a cost
            run_state_machine_as_test(
                CostsAgainstFacts, settings=settings(max_examples=EXAMPLES, stateful_step_count=30)
            )
            if CostsAgainstFacts.costed >= 50:
                break
        assert CostsAgainstFacts.costed >= 50


def test_a_pod_takes_less_than_a_kilobyte() -> None:
    """The scheduler binds at most some 100 pods in a second, so 13,000 pods are kept with the default `staleAfter`."""
    view = view_of(cheap(), a="1")
    pods = 5000
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(pods):
        key = PodKey("".join(["def", "ault"]), f"web-7d9c5b8f6d-{number:05}")
        view.place_pod(key, POLICY, f"node-{number % 50}", float(int(NOW)), NOW)
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert view.placed_pods == pods
    assert size / pods < 1000, size / pods


def test_the_time_of_placements_grows_with_the_pods_and_not_with_their_square() -> None:
    def prepare(pods: int) -> Callable[[], None]:
        nodes = pods // 10
        view = view_of(cheap(), **{f"n{number}": "1" for number in range(nodes)})

        def place_and_drop() -> None:
            for number in range(pods):
                view.place_pod(pod(str(number)), POLICY, f"n{number % nodes}", NOW, NOW)
            for number in range(pods):
                view.drop_pod(pod(str(number)))

        return place_and_drop

    assert grows_linearly(prepare, 2000)
