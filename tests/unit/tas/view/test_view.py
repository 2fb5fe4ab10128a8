"""The view against a second evaluation of the same facts: after any history, its answers are those of the present."""

import operator
import sys
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec import structs

from tas.enforcing.pod import PodKey
from tas.enforcing.waking import Wakes, rejecting
from tas.explain.explain import explain_node
from tas.extender.decision import Outcome, Pod, ScoreDecision
from tas.extender.telemetry import TelemetryDecider
from tas.policy.manifest import parse_policy
from tas.policy.policy import POD_LABEL, PolicyKey, StrategyType
from tas.policy.rules import LAST_KNOWN, State
from tas.samples.parts import Part
from tas.samples.sample import MAX_SAMPLE_AGE, Scrape
from tas.samples.table import Column, Reading, Table, TableKey, merge_tables, table_of, without_earlier
from tas.values.quantity import parse_quantity
from tas.verdict.evaluation import evaluate_policy
from tas.verdict.knowledge import same_meaning
from tas.verdict.verdict import PolicyVerdict
from tas.view.indices import MetricKey
from tas.view.view import View
from tests.conftest import EXAMPLES
from tests.unit.growth import grows_linearly

NODES = ("a", "b", "c.d")
METRICS = ("m", "k")
SOURCES = ("s1", "s2")


def scrape(time: float, sequence: int = 1, source: str = "s1", **metrics: str) -> Scrape:
    return Scrape(
        source=source,
        measured=time,
        arrived=time,
        sequence=sequence,
        metrics={name: parse_quantity(value) for name, value in metrics.items()},
    )


DESCHEDULE = {"deschedule": {"rules": [{"metricname": "m", "operator": "Equals", "target": 1}]}}


def pod_of(policy: str = "p", namespace: str = "default") -> Pod:
    return Pod(namespace=namespace, name="pod", uid="u", labels={POD_LABEL: policy})


def policy_of(spec: Mapping[str, Any], name: str = "p") -> Any:
    policy, problems = parse_policy(PolicyKey("default", name), spec)
    assert not [each for each in problems if each.refused]
    return policy


def dontschedule(*rules: tuple[str, str, int], operator: str = "anyOf", **extra: Any) -> dict[str, Any]:
    return {
        "strategies": {
            "dontschedule": {
                "logicalOperator": operator,
                "rules": [{"metricname": m, "operator": op, "target": target} for m, op, target in rules],
                **extra,
            }
        }
    }


def rules_of(draw_from: tuple[str, ...]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(
        st.fixed_dictionaries(
            {
                "metricname": st.sampled_from(draw_from),
                "operator": st.sampled_from(["GreaterThan", "LessThan", "Equals"]),
                "target": st.integers(0, 3),
            },
            optional={"source": st.sampled_from(SOURCES)},
        ),
        min_size=1,
        max_size=3,
    )


SPECS = st.fixed_dictionaries(
    {
        "strategies": st.fixed_dictionaries(
            {},
            optional={
                "dontschedule": st.fixed_dictionaries(
                    {"rules": rules_of(METRICS)},
                    optional={
                        "logicalOperator": st.sampled_from(["anyOf", "allOf"]),
                        "onStale": st.sampled_from(["keep", "pass", "fail"]),
                        "keepFor": st.sampled_from(["0s", "10s", "45s", "1h"]),
                    },
                ),
                "scheduleonmetric": st.fixed_dictionaries({"rules": rules_of(METRICS)}),
            },
        )
    },
    optional={
        "staleAfter": st.sampled_from(["5s", "30s"]),
        "nodeSelector": st.sampled_from([{"matchLabels": {"pool": "x"}}, {}]),
    },
)


TABLES = [TableKey(source, part) for source in SOURCES for part in (Part(1, 0), Part(2, 0), Part(2, 1))]
"""In two layouts, of which a node can be in both."""


class ReportedValue(NamedTuple):
    """The newest value of one metric of one node from one source."""

    time: float
    sequence: int
    value: int
    ends: float = inf


COMPARE = {"GreaterThan": operator.gt, "LessThan": operator.lt, "Equals": operator.eq}


class Facts:
    """The same facts as in a view, evaluated without the view, from plain values and specs."""

    def __init__(self, default_stale_after: float) -> None:
        self.default_stale_after = default_stale_after
        self.reported: dict[str, dict[tuple[str, str], ReportedValue]] = {}  # by node, then by source and metric
        self.tables: dict[TableKey, dict[tuple[str, str], ReportedValue]] = {}  # by node and metric
        self.created: dict[str, float] = {}
        self.released: dict[str, float] = {}
        self.cluster = False
        self.labels: dict[str, dict[str, str] | None] = {}
        self.specs: dict[str, dict[str, Any]] = {}

    def add(self, node: str, source: str, reported: Mapping[str, ReportedValue]) -> None:
        known = self.reported.setdefault(node, {})
        for metric, incoming in reported.items():
            before = known.get((source, metric))
            if before is None or incoming[:2] > before[:2]:
                known[source, metric] = incoming

    def fresh(self, node: str, spec: Mapping[str, Any], rule: Mapping[str, Any], now: float) -> int | None:
        """The newest value of a rule, None if it is stale; for equal times the first source counts."""
        newest = self.newest_of_rule(node, rule)
        stale_after = {"5s": 5.0, "30s": 30.0, None: self.default_stale_after}[spec.get("staleAfter")]
        is_stale = newest is None or min(newest.time + stale_after, newest.ends) <= now
        return None if newest is None or is_stale else newest.value

    def newest_of_rule(self, node: str, rule: Mapping[str, Any]) -> ReportedValue | None:
        sources = [rule["source"]] if "source" in rule else SOURCES
        of_sources = [self.newest(node, source, rule["metricname"]) for source in sources]
        return max((each for each in of_sources if each is not None), key=lambda found: found.time, default=None)

    def known(self, node: str, spec: Mapping[str, Any], rule: Mapping[str, Any], now: float) -> int | None:
        """The fresh value of a rule of `dontschedule`; with `onStale: keep` also the last known one of this node."""
        strategy, newest = spec["strategies"]["dontschedule"], self.newest_of_rule(node, rule)
        keep_for = {"0s": 0.0, "10s": 10.0, "45s": 45.0, "1h": 3600.0}[strategy.get("keepFor", "1h")]
        if (fresh := self.fresh(node, spec, rule, now)) is not None or newest is None:
            return fresh
        is_kept = strategy.get("onStale", "keep") == "keep" and now < newest.time + keep_for
        return newest.value if is_kept and self.is_of_this_node(node, newest.time) else None

    def is_of_this_node(self, node: str, time: float) -> bool:
        if node in self.labels:
            return node in self.created and time >= max(self.created[node], self.released.get(node, -inf))
        return not self.cluster and time >= self.released.get(node, -inf)

    def newest(self, node: str, source: str, metric: str) -> ReportedValue | None:
        """The newest value of a source; at equal times that of a single scrape, then of the later sequence."""
        single = self.reported.get(node, {}).get((source, metric))
        rows = [
            table[node, metric]
            for key, table in self.tables.items()
            if key.source == source and (node, metric) in table
        ]
        row = max(rows, default=None, key=lambda found: found[:2])
        if row is None or (single is not None and single.time >= row.time):
            return single
        return row

    def selects(self, node: str, spec: Mapping[str, Any]) -> bool | None:
        """Whether a policy concerns a node; None if its labels are not known."""
        if "nodeSelector" not in spec:
            return True
        labels = self.labels.get(node)
        if labels is None:
            return None
        wanted = spec["nodeSelector"].get("matchLabels", {})
        return all(labels.get(name) == value for name, value in wanted.items())

    def state(self, node: str, spec: Mapping[str, Any], kind: str, now: float) -> State:
        """The state of a strategy with rules: unknown exactly where it depends on an unknown value or label."""
        return self.state_by(self.fresh, node, spec, kind, now)

    def rejects_by_kept(self, node: str, spec: Mapping[str, Any], now: float) -> bool:
        """Whether filter rejects the node, and would not by the fresh values alone."""
        if self.state(node, spec, "dontschedule", now) is State.VIOLATED:
            return False
        return self.state_by(self.known, node, spec, "dontschedule", now) is State.VIOLATED

    def state_by(
        self,
        value_of: Callable[[str, Mapping[str, Any], Mapping[str, Any], float], int | None],
        node: str,
        spec: Mapping[str, Any],
        kind: str,
        now: float,
    ) -> State:
        selected, strategy = self.selects(node, spec), spec["strategies"][kind]
        if not selected:
            return State.UNKNOWN if selected is None else State.MET
        violated = [
            None
            if (value := value_of(node, spec, rule, now)) is None
            else COMPARE[rule["operator"]](value, rule["target"])
            for rule in strategy["rules"]
        ]
        decide = all if strategy.get("logicalOperator") == "allOf" else any
        at_best, at_worst = (decide(guess if each is None else each for each in violated) for guess in (False, True))
        if at_best is not at_worst:
            return State.UNKNOWN
        return State.VIOLATED if at_best else State.MET


class Histories(RuleBasedStateMachine):
    """Random histories of all changes of a view."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.sequence = 0
        self.view = view
        self.facts = Facts(view.default_stale_after)
        self.homes: dict[TableKey, Table] = {}

    @rule(
        node=st.sampled_from(NODES),
        source=st.sampled_from(SOURCES),
        age=st.floats(-5, 40),
        values=st.dictionaries(st.sampled_from(METRICS), st.integers(0, 3), min_size=1),
        ends_in=st.sampled_from([inf, 0.0, 7.5, 30.0]),
    )
    def sample(self, node: str, source: str, age: float, values: dict[str, int], ends_in: float) -> None:
        self.add(node, source, age, values, ends_in)

    def add(self, node: str, source: str, age: float, values: Mapping[str, int], ends_in: float = inf) -> None:
        self.sequence += 1
        incoming = Scrape(
            source=source,
            measured=self.now - age,
            arrived=self.now,
            sequence=self.sequence,
            metrics={name: parse_quantity(str(value)) for name, value in values.items()},
            ends=None if ends_in == inf else self.now + ends_in,
        )
        self.view.add_samples(node, [incoming], self.now)
        time = self.now - max(age, 0.0)
        self.facts.add(
            node,
            source,
            {name: ReportedValue(time, self.sequence, value, self.now + ends_in) for name, value in values.items()},
        )
        self.void_earlier()

    @rule(
        node=st.sampled_from(NODES),
        source=st.sampled_from(SOURCES),
        metric=st.sampled_from(METRICS),
        values=st.lists(st.integers(0, 3), min_size=2, max_size=4),
    )
    def samples_in_a_row(self, node: str, source: str, metric: str, values: list[int]) -> None:
        """Makes a fresh value replace a fresh one, which hardly ever happens by chance."""
        for value in values:
            self.add(node, source, 0.0, {metric: value})
            self.was_added(node)

    @rule(
        key=st.sampled_from(TABLES),
        nodes=st.lists(st.sampled_from(NODES), min_size=1, unique=True),
        ages=st.lists(st.floats(-5, 40), min_size=1, max_size=3),
        columns=st.dictionaries(
            st.sampled_from(METRICS), st.lists(st.integers(0, 3) | st.none(), min_size=9, max_size=9), min_size=1
        ),
        ends_in=st.sampled_from([inf, 0.0, 7.5, 30.0]),
    )
    def table(
        self,
        key: TableKey,
        nodes: list[str],
        ages: list[float],
        columns: dict[str, list[int | None]],
        ends_in: float,
    ) -> None:
        """A table whose rows have one time, or several."""
        self.sequence += 1
        readings = tuple(
            Reading(
                measured=self.now - ages[row % len(ages)],
                arrived=self.now,
                sequence=self.sequence,
                ends=None if ends_in == inf else self.now + ends_in,
            )
            for row in range(len(nodes))
        )
        incoming = table_of(
            key.source,
            tuple(nodes),
            {
                metric: Column(
                    tuple(None if value is None else parse_quantity(str(value)) for value in values[: len(nodes)]),
                    readings if len(ages) > 1 else readings[0],
                )
                for metric, values in columns.items()
            },
        )
        if not incoming.nodes:
            return
        home = self.homes.get(key)
        self.homes[key] = incoming if home is None else merge_tables(home, incoming)
        self.view.set_table(key, self.homes[key], self.now)
        known = self.facts.tables.setdefault(key, {})
        for metric, values in columns.items():
            for node, value, reading in zip(nodes, values, readings, strict=False):
                before = known.get((node, metric))
                found = ReportedValue(reading.time, self.sequence, value or 0, self.now + ends_in)
                if value is not None and (before is None or found[:2] > before[:2]):
                    known[node, metric] = found
        self.void_earlier()

    @rule(
        key=st.sampled_from(TABLES),
        metric=st.sampled_from(METRICS),
        values=st.lists(st.integers(0, 3), min_size=2, max_size=4),
    )
    def tables_in_a_row(self, key: TableKey, metric: str, values: list[int]) -> None:
        """Makes fresh values of polls replace fresh ones, which hardly ever happens by chance."""
        for value in values:
            self.table(key, ["a", "b"], [0.0], {metric: [value, 3 - value, *[None] * 7]}, inf)
            self.was_added("a")

    def void_earlier(self) -> None:
        """Forgets what was measured before its node was created."""
        for node, reported in self.facts.reported.items():
            for series in tuple(reported):
                if reported[series].time < self.facts.created.get(node, -inf):
                    del reported[series]
        for table in self.facts.tables.values():
            for node, metric in tuple(table):
                if table[node, metric].time < self.facts.created.get(node, -inf):
                    del table[node, metric]
        self.homes = {key: without_earlier(home, self.facts.created) for key, home in self.homes.items()}

    @rule(key=st.sampled_from(TABLES))
    def table_goes(self, key: TableKey) -> None:
        self.view.drop_table(key)
        self.homes.pop(key, None)
        self.facts.tables.pop(key, None)

    @rule(node=st.sampled_from(NODES), ago=st.sampled_from([0.0, 10.0, 100.0]))
    def created(self, node: str, ago: float) -> None:
        """Another node has the name."""
        self.facts.created[node] = self.now - ago
        self.facts.labels[node] = {}
        self.view.set_labels(node, {}, created=self.now - ago)
        self.void_earlier()

    def was_added(self, node: str) -> None:
        """A hook for checks of the view between two samples."""

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(node=st.sampled_from(NODES), metric=st.sampled_from(METRICS), value=st.integers(0, 3))
    def falls_silent(self, node: str, metric: str, value: int) -> None:
        self.add(node, "s1", 0.0, {metric: value})
        self.was_added(node)
        self.now += 35.0

    @rule()
    def an_hour_passes(self) -> None:
        self.now += MAX_SAMPLE_AGE

    @rule(node=st.sampled_from(NODES))
    def node_goes(self, node: str) -> None:
        self.view.drop_samples(node)
        self.facts.reported.pop(node, None)

    @rule(node=st.sampled_from(NODES), labels=st.sampled_from([{}, {"pool": "x"}, {"pool": "y"}, None]))
    def labelled(self, node: str, labels: dict[str, str] | None) -> None:
        self.view.set_labels(node, labels)
        self.facts.labels[node] = labels
        self.facts.created.pop(node, None)

    @rule(node=st.sampled_from(NODES))
    def unlabelled(self, node: str) -> None:
        self.view.drop_labels(node)
        self.facts.labels.pop(node, None)
        self.facts.created.pop(node, None)

    @rule(cluster=st.booleans())
    def listed(self, cluster: bool) -> None:
        self.view.set_cluster(cluster=cluster)
        self.facts.cluster = cluster

    @rule(node=st.sampled_from(NODES), ago=st.sampled_from([0.0, 10.0, 100.0]))
    def released(self, node: str, ago: float) -> None:
        self.view.release(node, self.now - ago)
        self.facts.released[node] = self.now - ago

    @rule(node=st.sampled_from(NODES))
    def release_ends(self, node: str) -> None:
        self.view.drop_release(node)
        self.facts.released.pop(node, None)

    @rule(name=st.sampled_from(["p", "q"]), spec=SPECS)
    def policy(self, name: str, spec: dict[str, Any]) -> None:
        self.view.set_policy(policy_of(spec, name), self.now)
        self.facts.specs[name] = spec

    @rule(specs=st.dictionaries(st.sampled_from(["p", "q"]), SPECS))
    def policies(self, specs: dict[str, dict[str, Any]]) -> None:
        self.view.set_policies([policy_of(spec, name) for name, spec in specs.items()], self.now)
        self.facts.specs |= specs

    @rule(name=st.sampled_from(["p", "q"]))
    def policy_goes(self, name: str) -> None:
        self.view.drop_policy(PolicyKey("default", name))
        self.facts.specs.pop(name, None)


class ViewAgainstFacts(Histories):
    """After each step the incremental view must agree with the raw facts."""

    reached = 0
    """How often a fresh value moved to the target of a `dontschedule` rule from another fresh value, or away from it.

    The hard case of a view that evaluates a strategy again only when a value passes a target.
    """

    kept = 0
    """How often filter rejected a node by a last known value."""

    def __init__(self) -> None:
        super().__init__(View(default_stale_after=20.0))
        self.decider = TelemetryDecider(self.view)

    @initialize(rules=rules_of(METRICS))
    def begins_with_a_policy(self, rules: list[dict[str, Any]]) -> None:
        self.policy("p", {"strategies": {"dontschedule": {"rules": rules}}})

    def add(self, node: str, source: str, age: float, values: Mapping[str, int], ends_in: float = inf) -> None:
        before = self.values(node)
        super().add(node, source, age, values, ends_in)
        for (target, one), (_, other) in zip(before, self.values(node), strict=True):
            ViewAgainstFacts.reached += None not in (one, other) and one != other and target in (one, other)

    def values(self, node: str) -> list[tuple[int, int | None]]:
        """The target of each `dontschedule` rule, and the fresh value that it reads."""
        return [
            (rule["target"], self.facts.fresh(node, spec, rule, self.now))
            for spec in self.facts.specs.values()
            for rule in spec["strategies"].get("dontschedule", {}).get("rules", ())
        ]

    def was_added(self, node: str) -> None:
        self.filter_agrees_with_the_facts()

    @invariant()
    def filter_agrees_with_the_facts(self) -> None:
        assert {key.name for key in self.view.policies} == self.facts.specs.keys()
        for name, spec in self.facts.specs.items():
            decision = self.decider.filter(pod_of(name), dict.fromkeys(NODES), self.now)
            if "dontschedule" not in spec["strategies"]:
                assert decision.outcome is Outcome.NO_RULES
                continue
            states = {node: self.facts.state(node, spec, "dontschedule", self.now) for node in NODES}
            stale_fails = spec["strategies"]["dontschedule"].get("onStale") == "fail"
            fails = {State.VIOLATED, State.UNKNOWN} if stale_fails else {State.VIOLATED}
            kept = {node for node in NODES if self.facts.rejects_by_kept(node, spec, self.now)}
            ViewAgainstFacts.kept += len(kept)
            assert set(decision.rejected) == kept | {node for node, state in states.items() if state in fails}
            assert {node for node, why in decision.rejected.items() if why.endswith(LAST_KNOWN)} == kept
            assert decision.kept_rejected == len(kept)
            assert {each.node for each in decision.list_values() if each.kept} == kept
            assert {node for node, state in states.items() if state is State.UNKNOWN} >= kept
            passed_unknown = [
                n for n, state in states.items() if state is State.UNKNOWN and state not in fails and n not in kept
            ]
            assert decision.unknown == len(passed_unknown)
            rejected_unknown = [n for n, state in states.items() if state is State.UNKNOWN and state in fails]
            assert decision.unknown_rejected == len(rejected_unknown)

    @invariant()
    def explanations_agree_with_the_facts(self) -> None:
        for node in NODES:
            explained = {each.policy: each for each in explain_node(self.view, node, self.now).policies}
            assert explained.keys() == {f"default/{name}" for name in self.facts.specs}
            for name, spec in self.facts.specs.items():
                for strategy in explained[f"default/{name}"].strategies:
                    rules = spec["strategies"][strategy.type.value]["rules"]
                    fresh = [self.facts.fresh(node, spec, rule, self.now) is not None for rule in rules]
                    assert [rule.fresh for rule in strategy.rules] == fresh
                    if strategy.type is StrategyType.DONTSCHEDULE:
                        assert strategy.state is self.facts.state(node, spec, "dontschedule", self.now)
                        assert strategy.rejects_by_kept == self.facts.rejects_by_kept(node, spec, self.now)

    @invariant()
    def scores_are_bounded_and_known_values_alone_can_have_any(self) -> None:
        for name, spec in self.facts.specs.items():
            decision = self.decider.score(pod_of(name), dict.fromkeys(NODES), self.now)
            for node, score in (decision.scores or {}).items():
                assert 0 <= score <= 10
                first = spec["strategies"]["scheduleonmetric"]["rules"][0]
                known = self.facts.selects(node, spec) and self.facts.fresh(node, spec, first, self.now) is not None
                assert score == 0 or known

    @invariant()
    def no_index_outlives_its_policies(self) -> None:
        used = {
            (rule.metric, rule.source, self.view.stale_after(entry.policy))
            for entry in self.view.policies.values()
            for kind, strategy in entry.policy.strategies.items()
            if kind in {StrategyType.DONTSCHEDULE, StrategyType.SCHEDULEONMETRIC}
            for rule in strategy.rules
        }
        assert set(self.view._indices) == used


class TestViewAgainstFacts:
    @pytest.mark.seeded
    def test_after_any_history_answers_are_those_of_the_facts(self) -> None:
        ViewAgainstFacts.reached = ViewAgainstFacts.kept = 0
        for _ in range(4):  # a few of a hundred runs meet the hard cases less than ten times
            run_state_machine_as_test(
                ViewAgainstFacts, settings=settings(max_examples=3 * EXAMPLES, stateful_step_count=30)
            )
            if min(ViewAgainstFacts.reached, ViewAgainstFacts.kept) >= 10:
                break
        assert ViewAgainstFacts.reached >= 10
        assert ViewAgainstFacts.kept >= 10


def labelled_rules(operator: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rules with one operator, which may share their label keys."""
    return st.lists(
        st.fixed_dictionaries(
            {
                "metricname": st.sampled_from(METRICS),
                "operator": st.just(operator),
                "target": st.integers(0, 3),
                "labels": st.lists(st.sampled_from(["x=1", "y=1"]), unique=True, max_size=2),
            },
            optional={"source": st.sampled_from(SOURCES)},
        ),
        min_size=1,
        max_size=3,
    )


SLOW = {
    "logicalOperator": st.sampled_from(["anyOf", "allOf"]),
    "onStale": st.sampled_from(["hold", "violate", "clear"]),
    "for": st.sampled_from(["1s", "30s"]),
    "clearFor": st.sampled_from(["1s", "30s"]),
}
VERDICT_SPECS = st.fixed_dictionaries(
    {
        "strategies": st.fixed_dictionaries(
            {},
            optional={
                "dontschedule": st.fixed_dictionaries(
                    {"rules": rules_of(METRICS)},
                    optional={
                        "logicalOperator": st.sampled_from(["anyOf", "allOf"]),
                        "onStale": st.sampled_from(["keep", "pass", "fail"]),
                        "keepFor": st.sampled_from(["10s", "45s"]),
                    },
                ),
                "deschedule": st.fixed_dictionaries({"rules": rules_of(METRICS)}, optional=SLOW),
                "labeling": st.sampled_from(["GreaterThan", "LessThan", "Equals"]).flatmap(
                    lambda operator: st.fixed_dictionaries({"rules": labelled_rules(operator)}, optional=SLOW)
                ),
            },
        )
    },
    optional={
        "staleAfter": st.sampled_from(["5s", "30s"]),
        "nodeSelector": st.sampled_from([{"matchLabels": {"pool": "x"}}, {}]),
        "suspend": st.booleans(),
        "dryRun": st.booleans(),
    },
)


WAITED_FOR = (PolicyKey("default", "p"), PolicyKey("default", "q"))


class VerdictsByTouch(Histories):
    """Evaluating only touched policies and due deadlines gives the same verdicts as evaluating everything."""

    def __init__(self) -> None:
        super().__init__(View(default_stale_after=20.0, verdicts=True))
        self.decider = TelemetryDecider(self.view)
        self.refused: dict[str, set[PolicyKey]] = {}  # by the last answer of filter
        self.written: dict[str, dict[PolicyKey, PolicyVerdict]] = {}
        self.verdicts: dict[tuple[str, PolicyKey], PolicyVerdict] = {}
        self.waiting: dict[tuple[str, PolicyKey], float] = {}

    @rule(name=st.sampled_from(["p", "q"]), spec=VERDICT_SPECS)
    def verdict_policy(self, name: str, spec: dict[str, Any]) -> None:
        self.view.set_policy(policy_of(spec, name), self.now)
        self.facts.specs[name] = spec

    def evaluate(self, node: str, key: PolicyKey) -> tuple[PolicyVerdict, float | None]:
        return evaluate_policy(
            self.view.policies[key].policy,
            uid="u",
            generation=1,
            samples=self.view.samples(node),
            labels=self.view.labels(node),
            default_stale_after=self.view.default_stale_after,
            before=self.verdicts.get((node, key)),
            now=self.now,
            kept_from=self.view.kept_from(node),
            stale_deadlines=False,
        )

    def update_verdict(self, node: str, key: PolicyKey) -> None:
        self.waiting.pop((node, key), None)
        if key not in self.view.policies:
            self.verdicts.pop((node, key), None)
            return
        self.verdicts[node, key], due = self.evaluate(node, key)
        if due is not None:
            self.waiting[node, key] = due

    def catch_up(self) -> None:
        """Evaluates the touched policies, and those whose deadline is due."""
        self.view.advance(self.now)
        due = [place for place, when in self.waiting.items() if when <= self.now]
        for node, key in [*due, *((node, key) for node, keys in self.view.touched.items() for key in keys)]:
            self.update_verdict(node, key)
        self.view.touched.clear()
        for node, key in [place for place in self.verdicts if place[0] not in self.view.nodes]:
            self.update_verdict(node, key)  # a node that is not in the view is never touched

    @invariant()
    def only_touched_verdicts_change(self) -> None:
        self.catch_up()
        assert {key for _, key in self.verdicts} <= self.view.policies.keys()
        for node in self.view.nodes:
            for key in self.view.policies:
                assert same_meaning(self.verdicts[node, key], self.evaluate(node, key)[0])

    @invariant()
    def wakes_are_for_nodes_that_filter_rejected_and_now_passes(self) -> None:
        """The verdict is written when its meaning changes, and only then."""
        self.catch_up()
        for node in NODES:
            verdicts = {key: verdict for (of, key), verdict in self.verdicts.items() if of == node}
            if node not in self.view.nodes:
                self.refused.pop(node, None)
                self.written.pop(node, None)
                continue
            refused = {
                key for key in WAITED_FOR if node in self.decider.filter(pod_of(key.name), [node], self.now).rejected
            }
            assert rejecting(verdicts) == refused
            known = self.written.get(node)
            if (
                known is None
                or known.keys() != verdicts.keys()
                or not all(same_meaning(known[key], verdict) for key, verdict in verdicts.items())
            ):
                self.written[node] = verdicts
            gained = self.refused.get(node, set()) - refused
            for key in WAITED_FOR:
                wakes = Wakes()
                if known is not None:
                    wakes.set_node(node, "u", known, at=0.0)
                wakes.set_pod(PodKey("default", "waits"), key, 1.0, at=100.0)
                wakes.set_node(node, "u", self.written[node], at=101.0)
                assert (wakes.due == 101.0) == (key in gained)
            self.refused[node] = refused

    @invariant()
    def no_index_outlives_its_policies(self) -> None:
        used = {
            (rule.metric, rule.source, self.view.stale_after(entry.policy))
            for entry in self.view.policies.values()
            for strategy in entry.policy.strategies.values()
            for rule in strategy.rules
        }
        assert set(self.view._indices) == used
        watched = [
            watch for index in self.view._indices.values() for watches in index.watches.values() for watch in watches
        ]
        assert len(watched) == sum(
            len(strategy.rules)
            for entry in self.view.policies.values()
            for kind, strategy in entry.policy.strategies.items()
            if kind is not StrategyType.SCHEDULEONMETRIC
        )


TestVerdictsByTouch = VerdictsByTouch.TestCase
TestVerdictsByTouch.settings = settings(max_examples=2 * EXAMPLES, stateful_step_count=30)


class TestTouched:
    SPEC: Mapping[str, Any] = {
        "strategies": {"deschedule": {"rules": [{"metricname": "m", "operator": "GreaterThan", "target": 40}]}}
    }

    def test_a_sample_that_changes_no_state_touches_nothing(self) -> None:
        view = View(verdicts=True)
        view.set_policy(policy_of(self.SPEC), 1.0)
        view.add_samples("a", [scrape(1.0, m="50")], 1.0)
        assert view.touched == {"a": {PolicyKey("default", "p")}}
        view.touched.clear()
        view.add_samples("a", [scrape(2.0, m="60")], 2.0)
        assert view.touched == {}
        view.add_samples("a", [scrape(3.0, m="40")], 3.0)
        assert view.touched == {"a": {PolicyKey("default", "p")}}

    def test_a_table_touches_nodes_that_cross_a_target_of_deschedule_alone(self) -> None:
        """Filter has no such target, so no strategy of the view changes with it."""
        rule = {"metricname": "m", "operator": "GreaterThan", "target": 40}
        view, key = View(verdicts=True), TableKey("poll", Part(1, 0))
        view.set_policy(policy_of({"strategies": {"deschedule": {"rules": [rule]}}}), 1.0)

        def poll(time: float, *values: str) -> None:
            column = Column(tuple(map(parse_quantity, values)), Reading(time, time, int(time)))
            view.set_table(key, Table("poll", ("a", "b"), {"m": column}), time)

        poll(1.0, "1", "1")
        view.touched.clear()
        poll(2.0, "1", "50")
        assert view.touched == {"b": {PolicyKey("default", "p")}}
        view.touched.clear()
        poll(3.0, "2", "60")
        assert view.touched == {}
        view.drop_policy(PolicyKey("default", "p"))
        assert view._indices == {}

    def test_another_winning_rule_touches_although_no_state_changes(self) -> None:
        """Of two violated rules that set one label the larger value wins: the desired label changes with the value."""
        rules = [
            {"metricname": metric, "operator": "GreaterThan", "target": 40, "labels": [f"card={metric}"]}
            for metric in ("m", "k")
        ]
        view = View(verdicts=True)
        view.set_policy(policy_of({"strategies": {"labeling": {"rules": rules}}}), 1.0)
        view.add_samples("a", [scrape(1.0, m="60", k="50")], 1.0)
        view.touched.clear()
        view.add_samples("a", [scrape(2.0, m="60", k="70")], 2.0)
        assert view.touched == {"a": {PolicyKey("default", "p")}}
        view.touched.clear()
        view.add_samples("a", [scrape(3.0, m="1", k="1")], 3.0)
        view.touched.clear()
        view.add_samples("a", [scrape(4.0, m="2", k="3")], 4.0)
        assert view.touched == {}

    def test_a_change_touches_its_policy_and_node_only(self) -> None:
        view = View(verdicts=True)
        other = {"strategies": {"deschedule": {"rules": [{"metricname": "k", "operator": "LessThan", "target": 5}]}}}
        view.set_policy(policy_of(self.SPEC), 1.0)
        view.set_policy(policy_of(other, "q"), 1.0)
        for node in ("a", "b"):
            view.add_samples(node, [scrape(1.0, m="50", k="1")], 1.0)
        view.touched.clear()
        view.add_samples("b", [scrape(2.0, m="1", k="2")], 2.0)
        assert view.touched == {"b": {PolicyKey("default", "p")}}

    def test_the_first_sample_of_a_series_touches_also_if_another_series_is_removed_at_once(self) -> None:
        rule = {"metricname": "k", "operator": "GreaterThan", "target": 1, "source": "s1"}
        view = View(default_stale_after=20, verdicts=True)
        view.set_policy(policy_of({"strategies": {"deschedule": {"onStale": "clear", "rules": [rule]}}}), 0.0)
        view.add_samples("a", [scrape(0.0, m="1")], 0.0)
        view.add_samples("a", [scrape(100.0, source="s2", m="1")], 100.0)
        view.touched.clear()
        # The sample is stale when it arrives, but it is the first of its series. The one measured at 0 is removed.
        view.add_samples("a", [scrape(MAX_SAMPLE_AGE + 1, k="2")], MAX_SAMPLE_AGE + 40)
        assert [each.source for each in view.samples("a")] == ["s1", "s2"]
        assert view.touched == {"a": {PolicyKey("default", "p")}}

    def test_without_verdicts_nothing_is_touched(self) -> None:
        view = View()
        view.set_policy(policy_of(self.SPEC), 1.0)
        view.add_samples("a", [scrape(1.0, m="50")], 1.0)
        view.set_labels("a", {})
        view.drop_policy(PolicyKey("default", "p"))
        assert view.touched == {}
        assert view._indices == {}


class TestStaleness:
    def test_facts_D22_a_node_without_new_samples_becomes_unknown_without_any_event(self) -> None:
        view = View(default_stale_after=10)
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40), keepFor="30s")), 0.0)
        view.add_samples("a", [scrape(100.0, m="50")], 100.0)
        decider = TelemetryDecider(view)
        assert decider.filter(pod_of(), {"a": None}, 109.9).rejected == {"a": "Node violates p: m GreaterThan 40"}
        for now in (110.0, 129.9):
            kept = decider.filter(pod_of(), {"a": None}, now)
            assert kept.rejected == {"a": "Node violates p: m GreaterThan 40 (last known)"}
            assert (kept.unknown, kept.unknown_rejected, kept.kept_rejected) == (0, 0, 1)
        after = decider.filter(pod_of(), {"a": None}, 130.0)
        assert (after.rejected, after.unknown, after.kept_rejected) == ({}, 1, 0)

    def test_the_end_of_what_is_kept_is_a_deadline_in_both_forms(self) -> None:
        table = table_of("s1", ("a", "b"), {"m": Column((parse_quantity("50"),) * 2, Reading(100.0, 100.0, 1))})
        for form in ("single", "table"):
            view = View(default_stale_after=10, verdicts=True)
            view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40), keepFor="30s")), 0.0)
            if form == "table":
                view.set_table(TABLES[0], table, 100.0)
            else:
                view.add_samples("a", [scrape(100.0, m="50")], 100.0)
            found = []
            while (due := view.next_deadline()) is not None and due < 1000.0:
                view.touched.clear()
                view.advance(due)
                found.append((due, "a" in view.touched))
            assert found == [(110.0, True), (130.0, True)], form

    def test_a_policy_that_comes_later_keeps_what_it_finds(self) -> None:
        """Its values are already stale, in both forms, and its deadline is right all the same."""
        view = View(default_stale_after=10)
        table = table_of("s1", ("b",), {"m": Column((parse_quantity("50"),), Reading(100.0, 100.0, 1))})
        view.add_samples("a", [scrape(101.0, m="50")], 101.0)
        view.set_table(TABLES[0], table, 101.0)
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40), keepFor="30s")), 120.0)
        decider = TelemetryDecider(view)
        assert set(decider.filter(pod_of(), ["a", "b"], 120.0).rejected) == {"a", "b"}
        assert view.next_deadline() == 130.0
        assert set(decider.filter(pod_of(), ["a", "b"], 130.0).rejected) == {"a"}
        assert set(decider.filter(pod_of(), ["a", "b"], 131.0).rejected) == set()

    def test_an_edit_judges_a_kept_value_by_the_new_rules(self) -> None:
        view = View(default_stale_after=10)
        table = table_of("s1", ("b",), {"m": Column((parse_quantity("50"),), Reading(100.0, 100.0, 1))})
        view.add_samples("a", [scrape(100.0, m="50")], 100.0)
        view.set_table(TABLES[0], table, 100.0)
        found = []
        for target in (60, 40, 60):
            view.set_policy(policy_of(dontschedule(("m", "GreaterThan", target))), 120.0)
            found.append(set(TelemetryDecider(view).filter(pod_of(), ["a", "b"], 120.0).rejected))
        assert found == [set(), {"a", "b"}, set()]

    @pytest.mark.parametrize(("now", "rejected"), [(129.9, {"a"}), (130.0, set())])
    def test_a_value_that_another_policy_still_keeps_counts_for_each_until_its_own_end(
        self, now: float, rejected: set[str]
    ) -> None:
        """No deadline of the policy comes after its end, so what it kept then it would keep for an hour."""
        view = View(default_stale_after=10)
        for name, keep_for in (("p", "30s"), ("other", "1h")):
            view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40), keepFor=keep_for), name=name), 0.0)
        view.add_samples("a", [scrape(100.0, m="50")], 100.0)
        view.advance(now)
        assert set(TelemetryDecider(view).filter(pod_of(), ["a"], now).rejected) == rejected

    def test_of_a_node_that_is_deleted_nothing_is_kept(self) -> None:
        view = View(default_stale_after=10)
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40))), 0.0)
        view.set_labels("a", {}, created=50.0)
        view.set_cluster(cluster=True)
        view.add_samples("a", [scrape(100.0, m="50")], 100.0)
        view.advance(110.0)
        decider = TelemetryDecider(view)
        assert set(decider.filter(pod_of(), ["a"], 110.0).rejected) == {"a"}
        view.drop_labels("a")
        assert set(decider.filter(pod_of(), ["a"], 110.0).rejected) == set()

    def test_while_all_is_fresh_nothing_is_kept(self) -> None:
        view = View(default_stale_after=10)
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40))), 0.0)
        view.add_samples("a", [scrape(100.0, m="50")], 100.0)
        (index,) = view._indices.values()
        assert (set(index.values), set(index.kept)) == ({"a"}, set())
        view.advance(110.0)
        assert (set(index.values), set(index.kept)) == (set(), {"a"})
        view.add_samples("a", [scrape(111.0, m="50")], 111.0)
        assert (set(index.values), set(index.kept)) == ({"a"}, set())

    def test_how_many_nodes_a_policy_rejects_by_last_known_values_and_of_how_many(self) -> None:
        view = View(default_stale_after=10)
        key = PolicyKey("default", "p")
        spec = dontschedule(("m", "GreaterThan", 40)) | {"nodeSelector": {"matchLabels": {"pool": "x"}}}
        view.set_policy(policy_of(spec), 0.0)
        view.set_policy(policy_of(spec | {"dryRun": True}, "dry"), 0.0)
        for node, pool in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "x")):
            view.set_labels(node, {"pool": pool}, created=50.0)
        for node, measured in (("a", 99.0), ("b", 100.0), ("c", 90.0)):
            view.add_samples(node, [scrape(measured, m="50")], 100.0)
        assert view.kept_rejections() == {key: (0, 0, None)}
        view.advance(110.0)
        assert view.kept_rejections() == {key: (2, 3, 99.0)}
        view.release("a", 105.0)
        assert view.kept_rejections() == {key: (1, 3, 100.0)}

    def test_the_oldest_kept_value_is_one_that_this_policy_keeps(self) -> None:
        view = View(default_stale_after=10)
        rules = (("m", "GreaterThan", 40), ("n", "GreaterThan", 40))
        for name, keep_for in (("p", "30s"), ("other", "1h")):
            view.set_policy(policy_of(dontschedule(*rules, keepFor=keep_for), name=name), 0.0)
        view.add_samples("a", [scrape(100.0, m="50"), scrape(80.0, source="s2", n="50")], 100.0)
        view.advance(120.0)
        oldest = {key.name: found.oldest for key, found in view.kept_rejections().items()}
        assert oldest == {"p": 100.0, "other": 80.0}

    def test_the_end_of_a_series_makes_its_node_unknown_and_its_next_sample_known_again(self) -> None:
        view = View(default_stale_after=120)
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40), onStale="pass")), 0.0)
        decider = TelemetryDecider(view)
        first, again = scrape(100.0, m="50"), scrape(100.0, sequence=2, m="50")
        view.add_samples("a", [first], 100.0)
        view.add_samples("a", [structs.replace(again, ends=145.0)], 115.0)  # the marker of a failed scrape
        assert set(decider.filter(pod_of(), {"a": None}, 144.9).rejected) == {"a"}
        after = decider.filter(pod_of(), {"a": None}, 145.0)
        assert (after.rejected, after.unknown) == ({}, 1)
        view.add_samples("a", [scrape(146.0, sequence=3, m="50")], 146.0)
        assert set(decider.filter(pod_of(), {"a": None}, 146.0).rejected) == {"a"}

    @pytest.mark.parametrize("is_created_first", [True, False])
    def test_what_was_measured_before_the_node_was_created_does_not_count(self, is_created_first: bool) -> None:
        view = View(default_stale_after=60)
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40))), 0.0)
        decider = TelemetryDecider(view)
        view.set_labels("a", {}, created=110.0 if is_created_first else 50.0)
        view.add_samples("a", [scrape(109.0, m="50"), scrape(111.0, sequence=2, other="50")], 112.0)
        assert bool(decider.filter(pod_of(), ["a"], 112.0).rejected) is not is_created_first
        view.set_labels("a", {}, created=110.0)  # another node has the name
        assert not decider.filter(pod_of(), ["a"], 112.0).rejected
        assert [scrape.metrics.keys() for scrape in view.samples("a")] == [{"other"}]
        view.add_samples("a", [scrape(110.0, sequence=3, m="50")], 112.0)
        assert set(decider.filter(pod_of(), ["a"], 112.0).rejected) == {"a"}

    def test_an_unknown_node_is_rejected_with_on_stale_fail(self) -> None:
        view = View(default_stale_after=10)
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40), onStale="fail")), 0.0)
        decision = TelemetryDecider(view).filter(pod_of(), {"a": None}, 0.0)
        assert decision.rejected == {"a": "Node violates p: no fresh sample of m"}
        assert (decision.unknown, decision.unknown_rejected) == (0, 1)

    def test_a_new_index_has_no_value_that_has_just_become_stale(self) -> None:
        view = View()
        view.add_samples("a", [scrape(100.0, m="50")], 100.0)
        assert view.metric(MetricKey("m", None, 10.0), 109.9) == {"a": parse_quantity("50")}
        assert view.metric(MetricKey("m", None, 5.0), 105.0) == {}

    def test_with_on_stale_fail_a_violating_node_has_the_reason_of_its_violation(self) -> None:
        view = View()
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40), onStale="fail")), 0.0)
        view.add_samples("a", [scrape(1.0, m="50")], 1.0)
        assert TelemetryDecider(view).filter(pod_of(), ["a", "b"], 1.0).rejected == {
            "a": "Node violates p: m GreaterThan 40",
            "b": "Node violates p: no fresh sample of m",
        }

    def test_the_next_deadline_is_when_the_first_sample_becomes_stale(self) -> None:
        view = View(default_stale_after=10)
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40))), 0.0)
        view.add_samples("a", [scrape(100.0, m="50")], 100.0)
        view.add_samples("b", [scrape(103.0, m="50")], 103.0)
        assert view.next_deadline() == 110.0
        view.advance(110.0)
        assert view.next_deadline() == 113.0

    def test_the_shortest_stale_after_of_several_policies_is_the_next_deadline(self) -> None:
        impatient = dontschedule(("m", "GreaterThan", 40)) | {"staleAfter": "10s"}
        patient = dontschedule(("m", "GreaterThan", 40)) | {"staleAfter": "30s"}
        for specs in ([impatient, patient], [patient, impatient]):
            view = View()
            view.add_samples("a", [scrape(100.0, m="50")], 100.0)
            view.set_policies([policy_of(spec, name) for spec, name in zip(specs, "pq", strict=True)], 101.0)
            assert view.next_deadline() == 110.0

    def test_samples_too_old_for_any_policy_are_removed(self) -> None:
        view = View()
        view.add_samples("a", [scrape(100.0, m="50")], 100.0)
        view.advance(100.0 + MAX_SAMPLE_AGE)
        assert "a" not in view.nodes


@pytest.mark.parametrize("kind", COMPARE)
@pytest.mark.parametrize(("before", "after"), [(5, 10), (10, 5), (15, 10), (10, 15), (5, 15), (15, 5)])
def test_a_value_that_reaches_or_leaves_the_target_is_evaluated_again(kind: str, before: int, after: int) -> None:
    view = View()
    view.set_policy(policy_of(dontschedule(("m", kind, 10))), 0.0)
    for time, value in ((1.0, before), (2.0, after)):
        view.add_samples("a", [scrape(time, m=str(value))], time)
        rejected = {"a"} if COMPARE[kind](value, 10) else set()
        assert set(TelemetryDecider(view).filter(pod_of(), ["a"], time).rejected) == rejected


class TestSources:
    def test_the_newest_of_two_sources_counts_and_a_rule_may_name_its_source(self) -> None:
        view = View()
        view.add_samples("a", [scrape(100.0, source="s1", m="50"), scrape(101.0, source="s2", m="1")], 101.0)
        any_source = policy_of(dontschedule(("m", "GreaterThan", 40)))
        named = {"strategies": {"dontschedule": {"rules": [
            {"metricname": "m", "operator": "GreaterThan", "target": 40, "source": "s1"}]}}}  # fmt: skip
        view.set_policy(any_source, 101.0)
        view.set_policy(policy_of(named, "q"), 101.0)
        decider = TelemetryDecider(view)
        assert decider.filter(pod_of("p"), {"a": None}, 101.0).rejected == {}
        assert set(decider.filter(pod_of("q"), {"a": None}, 101.0).rejected) == {"a"}

    def test_an_older_sample_never_replaces_a_newer_one(self) -> None:
        view = View()
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40))), 0.0)
        view.add_samples("a", [scrape(101.0, m="50")], 101.0)
        view.add_samples("a", [scrape(100.0, sequence=9, m="1")], 102.0)
        assert set(TelemetryDecider(view).filter(pod_of(), {"a": None}, 102.0).rejected) == {"a"}


class TestReasons:
    """facts.md c20: identical reasons are counted together, so they name policy and rule, never a value."""

    @pytest.mark.parametrize(
        ("operator", "expected"),
        [
            ("anyOf", "Node violates p: m GreaterThan 40"),
            ("allOf", "Node violates p: m GreaterThan 40 and k LessThan 5"),
        ],
    )
    def test_facts_c20_the_reason_names_policy_and_rule(self, operator: str, expected: str) -> None:
        view = View()
        spec = dontschedule(("m", "GreaterThan", 40), ("k", "LessThan", 5), operator=operator)
        for order in ("samples first", "policy first"):
            if order == "policy first":
                view.set_policy(policy_of(spec), 1.0)
            view.add_samples("a", [scrape(1.0, m="50", k="1")], 1.0)
            if order == "samples first":
                view.set_policy(policy_of(spec), 1.0)
            assert TelemetryDecider(view).filter(pod_of(), {"a": None}, 1.0).rejected == {"a": expected}
            view.drop_policy(PolicyKey("default", "p"))
            view.drop_samples("a")

    def test_anyOf_names_the_first_violated_rule(self) -> None:
        view = View()
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40), ("k", "LessThan", 5))), 1.0)
        view.add_samples("a", [scrape(1.0, m="1", k="1")], 1.0)
        assert TelemetryDecider(view).filter(pod_of(), {"a": None}, 1.0).rejected == {
            "a": "Node violates p: k LessThan 5"
        }


class TestIdlePolicies:
    @pytest.mark.parametrize(("field", "outcome"), [("suspend", Outcome.SUSPENDED), ("dryRun", Outcome.DRY_RUN)])
    def test_a_policy_that_does_not_act_passes_all_and_scores_none(self, field: str, outcome: Outcome) -> None:
        spec = dontschedule(("m", "GreaterThan", 40)) | {field: True}
        spec["strategies"]["scheduleonmetric"] = {"rules": [{"metricname": "m", "operator": "LessThan"}]}
        view = View()
        view.set_policy(policy_of(spec), 1.0)
        view.add_samples("a", [scrape(1.0, m="50")], 1.0)
        decider = TelemetryDecider(view)
        filtered, scored = decider.filter(pod_of(), {"a": None}, 1.0), decider.score(pod_of(), {"a": None}, 1.0)
        assert (filtered.outcome, filtered.rejected) == (outcome, {})
        assert (scored.outcome, scored.scores) == (outcome, None)


class TestSelector:
    SPEC = dontschedule(("m", "GreaterThan", 40)) | {"nodeSelector": {"matchLabels": {"pool": "x"}}}

    def test_only_selected_nodes_can_violate_and_a_node_without_facts_is_unknown(self) -> None:
        view = View()
        view.set_policy(policy_of(self.SPEC), 1.0)
        for node in ("in", "out", "unknown"):
            view.add_samples(node, [scrape(1.0, m="50")], 1.0)
        view.set_labels("in", {"pool": "x"})
        view.set_labels("out", {"pool": "y"})
        decision = TelemetryDecider(view).filter(pod_of(), dict.fromkeys(("in", "out", "unknown")), 1.0)
        assert set(decision.rejected) == {"in"}
        assert decision.unknown == 1

    def test_a_node_that_is_not_selected_has_score_0(self) -> None:
        spec = {
            "nodeSelector": {"matchLabels": {"pool": "x"}},
            "strategies": {"scheduleonmetric": {"rules": [{"metricname": "m", "operator": "GreaterThan"}]}},
        }
        view = View()
        view.set_policy(policy_of(spec), 1.0)
        view.add_samples("in", [scrape(1.0, m="1")], 1.0)
        view.add_samples("out", [scrape(1.0, m="50")], 1.0)
        view.set_labels("in", {"pool": "x"})
        view.set_labels("out", {"pool": "y"})
        decision = TelemetryDecider(view).score(pod_of(), dict.fromkeys(("in", "out")), 1.0)
        assert decision.scores == {"in": 10, "out": 0}


class TestScoresOfFew:
    """Cases in which `scheduleonmetric` gives no scores."""

    PREFERS_MOST: Mapping[str, Any] = {"metricname": "m", "operator": "GreaterThan"}

    def scored(self, *rules: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], **spec: Any) -> ScoreDecision:
        view = View()
        view.set_policy(policy_of({"strategies": {"scheduleonmetric": {"rules": list(rules)}}, **spec}), 1.0)
        for node, metrics in nodes.items():
            view.set_labels(node, {"node": node})
            if metrics:
                view.add_samples(node, [scrape(1.0, **metrics)], 1.0)
        return TelemetryDecider(view).score(pod_of(), nodes.keys(), 1.0)

    def test_without_rules(self) -> None:
        decision = self.scored(nodes={"a": {"m": "1"}})
        assert (decision.outcome, decision.scores) == (Outcome.NO_RULES, None)

    def test_without_any_fresh_value(self) -> None:
        decision = self.scored(self.PREFERS_MOST, nodes={"a": {}, "b": {}})
        assert (decision.outcome, decision.scores, decision.unknown) == (Outcome.DECIDED, None, 2)

    def test_without_any_selected_candidate(self) -> None:
        elsewhere = {"matchLabels": {"node": "c"}}
        decision = self.scored(self.PREFERS_MOST, nodes={"a": {"m": "1"}, "b": {}}, nodeSelector=elsewhere)
        assert (decision.outcome, decision.scores, decision.unknown) == (Outcome.DECIDED, None, 0)

    def test_a_node_with_a_value_of_any_rule_that_counts_is_not_unknown(self) -> None:
        rules = [{"metricname": metric, "operator": "GreaterThan", "weight": 1} for metric in ("m", "k")]
        nodes = {"a": {"m": "1"}, "b": {"k": "1"}, "c": {"other": "1"}}
        assert self.scored(*rules, nodes=nodes).unknown == 1


class TestUnknownPolicy:
    def test_facts_F8_a_policy_of_another_namespace_does_not_count(self) -> None:
        view = View()
        view.set_policy(policy_of(dontschedule(("m", "GreaterThan", 40))), 1.0)
        view.add_samples("a", [scrape(1.0, m="50")], 1.0)
        decision = TelemetryDecider(view).filter(pod_of(namespace="other"), {"a": None}, 1.0)
        assert decision.outcome is Outcome.POLICY_NOT_FOUND
        assert (decision.rejected, decision.error) == ({}, "")

    def test_facts_F8_a_setting_makes_it_an_error(self) -> None:
        decision = TelemetryDecider(View(), unknown_policy_fails=True).filter(pod_of(), {"a": None}, 1.0)
        assert decision.error == "policy default/p not found"


class TestMetricsInUse:
    """The original counted the users of a metric in its cache; here an index ends with its last user, samples stay."""

    RULES = (("m1", "GreaterThan", 1), ("m1", "GreaterThan", 2), ("m2", "GreaterThan", 1))

    def filled(self) -> View:
        view = View()
        view.set_policy(policy_of(dontschedule(*self.RULES)), 0.0)
        view.add_samples("a", [scrape(0.0, m1="5", m2="0")], 0.0)
        return view

    def test_facts_C1_a_metric_that_no_policy_uses_has_no_index(self) -> None:
        view = self.filled()
        assert {(key.metric, index.users) for key, index in view._indices.items()} == {("m1", 2), ("m2", 1)}

        view.drop_policy(PolicyKey("default", "p"))

        assert not view._indices
        assert not TelemetryDecider(view).filter(pod_of(), {"a": None}, 1.0).rejected

    def test_facts_C2_dropping_an_unknown_policy_changes_nothing(self) -> None:
        view = self.filled()

        view.drop_policy(PolicyKey("default", "never"))

        assert set(TelemetryDecider(view).filter(pod_of(), {"a": None}, 1.0).rejected) == {"a"}

    def test_facts_C6_a_metric_that_is_used_again_has_its_values_at_once(self) -> None:
        view = self.filled()
        view.set_policy(policy_of(dontschedule(("m1", "GreaterThan", 1)), "q"), 1.0)
        assert set(TelemetryDecider(view).filter(pod_of("q"), {"a": None}, 1.0).rejected) == {"a"}

        for name in ("p", "q"):
            view.drop_policy(PolicyKey("default", name))
        view.set_policy(policy_of(dontschedule(*self.RULES)), 2.0)

        assert set(TelemetryDecider(view).filter(pod_of(), {"a": None}, 2.0).rejected) == {"a"}

    def test_facts_C7_the_last_sample_counts_until_it_is_kept_no_more(self) -> None:
        decider = TelemetryDecider(self.filled())

        assert decider.filter(pod_of(), {"a": None}, 119.0).kept_rejected == 0
        assert decider.filter(pod_of(), {"a": None}, 121.0).kept_rejected == 1
        assert not decider.filter(pod_of(), {"a": None}, 3601.0).rejected


@pytest.mark.parametrize("verdicts", [False, True])
def test_the_time_of_edits_grows_with_the_rules_and_not_with_their_square(verdicts: bool) -> None:
    """A user with the rights of one namespace can create thousands of policies that use the same metric."""

    def edited(size: int) -> Callable[[], object]:
        specs = [
            dontschedule(*[("m", "GreaterThan", 4 * number + each) for each in range(4)]) for number in range(size)
        ]
        policies = [policy_of({"strategies": spec["strategies"] | DESCHEDULE}, f"p{n}") for n, spec in enumerate(specs)]
        view = View(verdicts=verdicts)

        def work() -> None:
            view.set_policies(policies, 0.0)
            for policy in policies:
                view.drop_policy(policy.key)

        return work

    assert grows_linearly(edited, 1600)


@pytest.mark.parametrize(("strategy", "most"), [("scheduleonmetric", 10), ("dontschedule", 20)])
def test_a_new_policy_looks_at_each_node_once_or_twice_whatever_the_number_of_its_metrics(
    monkeypatch: pytest.MonkeyPatch, strategy: str, most: int
) -> None:
    """A look puts the samples of a node together, of all tables: 64 metrics cost 64 of them for each node."""
    view, looks = View(verdicts=True), 0
    for number in range(10):
        view.add_samples(f"n{number}", [scrape(1000.0, m0="1", m1="1")], 1000.0)
    samples = View.samples

    def counted(view: View, node: str) -> Any:
        nonlocal looks
        looks += 1
        return samples(view, node)

    monkeypatch.setattr(View, "samples", counted)
    rules = [{"metricname": f"m{number}", "operator": "GreaterThan", "target": 1} for number in range(64)]
    view.set_policy(policy_of({"strategies": {strategy: {"rules": rules}}}), 1000.0)
    assert looks == most


def calls_of_a_sample(metrics: int) -> int:
    """The calls for the next sample of a node, of which a policy uses each metric, and no value crosses a target."""
    names = [f"m{number}" for number in range(metrics)]
    rules = [{"metricname": name, "operator": "GreaterThan", "target": 9} for name in names]
    view = View()
    view.set_policy(policy_of({"strategies": {"dontschedule": {"rules": rules}}}), 1000.0)
    view.add_samples("a", [scrape(1000.0, 1, **dict.fromkeys(names, "1"))], 1000.0)
    following = scrape(1001.0, 2, **dict.fromkeys(names, "2"))
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        view.add_samples("a", [following], 1001.0)
    finally:
        sys.setprofile(None)
    assert set(view.metric(MetricKey(names[-1], None, view.default_stale_after), 1001.0)) == {"a"}
    return calls


def test_a_metric_more_costs_each_sample_few_calls() -> None:
    assert (calls_of_a_sample(30) - calls_of_a_sample(10)) / 20 <= 9
