"""How much of the comparison of sources the event loop does in one piece."""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from bus.kinds import SOURCE_STATES
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tas.view.view import View
from workers.evaluate import compared_sources
from workers.evaluate.compared_sources import (
    AT_ONCE,
    CHECK_SECONDS,
    LONGEST_PAUSE_SECONDS,
    POLICIES_AT_ONCE,
    SHARE,
    Compared,
    ComparedSources,
)

NOW = 1000.0
METRICS = [f"m{number}" for number in range(8)]


def scrape(source: str, value: str) -> Scrape:
    values = dict.fromkeys(METRICS, parse_quantity(value))
    return Scrape(source=source, measured=NOW, arrived=NOW, sequence=1, metrics=values)


def largest_piece(nodes: int, policies: int = 1) -> int:
    """The most calls of functions between two turns of the loop, of nodes that contradict each other in all metrics."""
    rules = [{"metricname": metric, "operator": "GreaterThan", "target": 1} for metric in METRICS]
    view = View()
    for number in range(policies):
        key = PolicyKey("default", f"p{number}")
        view.set_policy(parse_policy(key, {"strategies": {"dontschedule": {"rules": rules}}})[0], NOW)
    for number in range(nodes):
        view.add_samples(f"n{number}", [scrape("a", "1"), scrape("b", "9")], NOW)
    followed = cast("Any", SimpleNamespace(view=view))
    turns = ComparedSources(cast("Any", None), followed, registry=CollectorRegistry())._compared().__await__()
    largest = calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    found = None
    while found is None:
        calls = 0
        sys.setprofile(count)
        try:
            next(turns)
        except StopIteration as end:
            found = end.value
        finally:
            sys.setprofile(None)
        largest = max(largest, calls)
    assert found == dict.fromkeys(METRICS, Compared(nodes, nodes))
    return largest


def test_four_times_the_nodes_or_policies_are_compared_in_more_pieces_and_not_in_larger_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_states(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(type(SOURCE_STATES), "entries", no_states)
    monkeypatch.setattr(compared_sources, "time", SimpleNamespace(time=lambda: NOW))
    assert largest_piece(8 * AT_ONCE) <= 1.2 * largest_piece(2 * AT_ONCE)
    assert largest_piece(1, 80 * POLICIES_AT_ONCE) <= 1.2 * largest_piece(1, 20 * POLICIES_AT_ONCE)


@pytest.mark.parametrize(
    ("seconds", "pause"), [(0.1, CHECK_SECONDS), (2.0, 2.0 * SHARE), (1000.0, LONGEST_PAUSE_SECONDS)]
)
async def test_a_long_check_makes_the_pause_longer_up_to_a_bound(
    seconds: float, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = 0.0, list[float]()

    async def compared(_: ComparedSources) -> dict[str, Compared]:
        nonlocal now
        now += seconds
        return {}

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(ComparedSources, "_compared", compared)
    monkeypatch.setattr(compared_sources, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(compared_sources, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(asyncio.CancelledError):
        await ComparedSources(cast("Any", None), cast("Any", None), registry=CollectorRegistry()).run()
    assert pauses == [CHECK_SECONDS, pause]
