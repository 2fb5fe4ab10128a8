"""Looking for late metrics is done in pieces, and a table is one look for each of its metrics."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

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


def turns_of(view: View) -> tuple[int, dict[Series, Newest]]:
    """In how many pieces all is looked at, and what is found."""
    late = LateMetrics(cast("Any", SimpleNamespace(view=view)), registry=CollectorRegistry())
    steps, pieces = late._newest(WANTED).__await__(), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return pieces, end.value
        pieces += 1


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
