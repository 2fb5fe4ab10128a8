"""Looking for late metrics is done in pieces, and a table is one look for each of its metrics."""

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import NODES
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.pace import Newest, Series
from tas.samples.parts import divided
from tas.samples.sample import Scrape
from tas.samples.table import Column, Reading, TableKey, table_of
from tas.values.quantity import parse_quantity
from tas.view.view import View
from workers.evaluate import late_metrics
from workers.evaluate.late_metrics import LateMetrics

NOW = 1000.0
VALUE = parse_quantity("1")
WANTED: dict[Series, float] = {("m", None): 60.0, ("m", "old"): 60.0, ("other", None): 60.0}


T = TypeVar("T")


def followed(view: View, *, lag: int | None = 0) -> Any:
    return SimpleNamespace(view=view, unready=lambda: None, watches={NODES.name: SimpleNamespace(lag=lag)})


def late_of(view: View) -> LateMetrics:
    return LateMetrics(followed(view), registry=CollectorRegistry())


def turns_of(view: View) -> tuple[int, dict[Series, Newest]]:
    """In how many pieces all is looked at, and what is found."""
    return in_pieces(late_of(view)._newest(WANTED))


def in_pieces(looking: Coroutine[Any, Any, T]) -> tuple[int, T]:
    steps, pieces = looking.__await__(), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return pieces, end.value
        pieces += 1


@pytest.mark.parametrize(
    ("own", "others", "pause"),
    [(0.001, 0.02, 5.0), (0.02, 0.02, 5.0), (0.1, 0.02, 20.0), (0.1, 9.0, 20.0), (3.0, 0.02, 30.0)],
)
def test_the_pause_goes_by_the_work_of_a_look_whatever_others_do_meanwhile(
    monkeypatch: pytest.MonkeyPatch, own: float, others: float, pause: float
) -> None:
    """Under load the tasks that run between its pieces took most of a look, and the next look came minutes later."""
    monkeypatch.setattr(late_metrics, "AT_ONCE", 10)
    now, view = NOW, View()
    clock = SimpleNamespace(monotonic=lambda: now, time=lambda: now)
    monkeypatch.setattr(late_metrics, "time", clock)
    for number in range(40):
        view.add_samples(f"n{number}", [scrape("new", 1 + number, "m")], NOW)
    late, pieces = LateMetrics(followed(view), registry=CollectorRegistry()), 0
    single_samples = view.single_samples

    def slow(node: str) -> Any:
        nonlocal now
        now += own / 10
        return single_samples(node)

    monkeypatch.setattr(view, "single_samples", slow)
    steps, found = late._look().__await__(), None
    while found is None:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
        else:
            now, pieces = now + others, pieces + 1
    assert (found, pieces) == (pytest.approx(pause), 4)


async def test_a_source_of_which_nothing_comes_is_one_series_with_its_newest_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only metrics of a source that still spoke had a series, so no alert told of a program that had ended."""
    monkeypatch.setattr(late_metrics, "time", SimpleNamespace(monotonic=lambda: NOW, time=lambda: NOW))
    view = View(default_stale_after=60.0)
    rules = [{"metricname": metric, "operator": "GreaterThan", "target": 1} for metric in ("a", "b", "c", "d")]
    policy, _ = parse_policy(PolicyKey("default", "p"), {"strategies": {"dontschedule": {"rules": rules}}})
    view.set_policy(policy, NOW)
    for source, ago, metric in (("ended", 500, "a"), ("ended", 200, "b"), ("speaks", 300, "c"), ("speaks", 1, "d")):
        view.add_samples("n", [scrape(source, ago, metric)], NOW)
    for lag, expected in ((0, {("c", "speaks"): 300.0, ("ended",): 200.0}), (None, {})):
        registry = CollectorRegistry()
        await LateMetrics(followed(view, lag=lag), registry=registry)._look()
        found = {tuple(each.labels.values()): each.value for family in registry.collect() for each in family.samples}
        assert found == expected, "without an answer of the bus nothing new can come of any source"


@pytest.mark.parametrize("lag", [None, 101], ids=["no bus", "behind"])
async def test_what_could_not_come_is_not_late(monkeypatch: pytest.MonkeyPatch, lag: int | None) -> None:
    """After each loss of the bus, all of it counted: an agent that publishes once a minute was called silent."""
    now, view = NOW, View(default_stale_after=60.0)
    monkeypatch.setattr(late_metrics, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    rules = [{"metricname": "a", "operator": "GreaterThan", "target": 1}]
    policy, _ = parse_policy(PolicyKey("default", "p"), {"strategies": {"dontschedule": {"rules": rules}}})
    view.set_policy(policy, NOW)
    view.add_samples("n", [scrape("agent", 1, "a")], NOW)
    of = followed(view)
    late = LateMetrics(of, registry=CollectorRegistry())
    found = []
    for at, has_lag in ((NOW, 0), (NOW + 300, lag), (NOW + 310, 0), (NOW + 361, 0)):
        now, of.watches[NODES.name].lag = at, has_lag
        await late._look()
        found.append([each.metric for each in late.found])
    assert found == [[], [], [], ["a"]]


def scrape(source: str, ago: float, *metrics: str) -> Scrape:
    return Scrape(source=source, measured=NOW - ago, arrived=NOW, sequence=1, metrics=dict.fromkeys(metrics, VALUE))


def test_nodes_with_samples_of_their_own_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_metrics, "AT_ONCE", 10)
    view = View()
    for number in range(40):
        view.add_samples(f"n{number}", [scrape("new", 1 + number, "m"), scrape("old", 30, "m", "unused")], NOW)
    pieces, newest = turns_of(view)
    assert pieces >= 4
    assert newest == {("m", None): Newest(NOW - 1, "new"), ("m", "old"): Newest(NOW - 30, "old")}


def test_the_newest_cell_of_all_tables_counts_whatever_the_number_of_nodes() -> None:
    names = [f"n{number}" for number in range(40)]
    view = View()
    for part, nodes in divided(dict.fromkeys(names), 4).items():
        readings = tuple(Reading(NOW - 5 - names.index(node), NOW, 1) for node in nodes)
        columns = {"m": Column((VALUE,) * len(readings), readings)}
        view.set_table(TableKey("adapter", part), table_of("adapter", tuple(nodes), columns), NOW)
    view.add_samples("single", [scrape("agent", 9, "m")], NOW)
    assert turns_of(view)[1] == {("m", None): Newest(NOW - 5, "adapter")}


def test_policies_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """An author may have thousands of them, with 100,000 rules: in one piece they took a third of a second."""
    monkeypatch.setattr(late_metrics, "POLICIES_AT_ONCE", 5)
    view = View()
    for number in range(40):
        rules = [{"metricname": f"m{number}-{rule}", "operator": "Equals", "target": 1} for rule in range(3)]
        policy, _ = parse_policy(PolicyKey("default", f"p{number}"), {"strategies": {"deschedule": {"rules": rules}}})
        view.set_policy(policy, NOW)
    pieces, limits = in_pieces(late_of(view)._limits())
    assert pieces == 8
    assert len(limits) == 120
