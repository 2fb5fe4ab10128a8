"""How much of a check of all series the event loop does in one piece."""

import sys
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

import workers.windows.worker
from bus.connection import Bus
from tas.samples.sample import Scrape
from tas.values.quantity import NANO, Quantity
from workers.samples.metrics import SourceMetrics
from workers.windows.worker import AT_ONCE, Windows

NOW = 1_764_028_800.0


def largest_piece(nodes: int) -> int:
    """The most calls of functions between two turns of the loop, while the series of every other node ends."""
    registry = CollectorRegistry()
    bus = Bus("nats://127.0.0.1:4222", name="test", streams=(), replicas=1)  # never connects
    windows = Windows(bus, default_stale_after=60, registry=registry, metrics=SourceMetrics(registry))
    table = windows._table
    table.want({"cpu:mean:1m": ()})
    for number in range(nodes):
        at = NOW - 100 * (number % 2)
        metrics = {"cpu": Quantity(NANO)}
        table.add(f"n{number}", Scrape(source="s", measured=at, arrived=at, sequence=1, metrics=metrics))
    turns, largest, calls = windows._drop_ended().__await__(), 0, 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    is_over = False
    while not is_over:
        calls = 0
        sys.setprofile(count)
        try:
            next(turns)
        except StopIteration:
            is_over = True
        finally:
            sys.setprofile(None)
        largest = max(largest, calls)
    assert table.count == nodes // 2
    return largest


def test_series_of_many_nodes_end_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ten seconds all series are looked at: the process did nothing else while it looked at those of all nodes."""
    monkeypatch.setattr(workers.windows.worker, "time", SimpleNamespace(time=lambda: NOW))
    assert largest_piece(20 * AT_ONCE) <= 1.2 * largest_piece(2 * AT_ONCE)
