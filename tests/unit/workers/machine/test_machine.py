"""This machine as a node: its name and its telemetry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.values.names import is_metric_name, is_subdomain
from tas.values.quantity import NANO
from tests.unit.tas.generators import characters
from workers.machine.worker import read_metrics
from workers.settings import node_name, own_node_name


@pytest.mark.parametrize(
    ("hostname", "node"),
    [
        ("node-1", "node-1"),
        ("Node-1.Example.COM", "node-1.example.com"),
        ("my_laptop", "my-laptop"),
        ("-odd-..name.", "odd.name"),
        ("", "localhost"),
        ("\u2603", "localhost"),
    ],
)
def test_a_hostname_becomes_a_valid_node_name(hostname: str, node: str) -> None:
    assert node_name(hostname) == node


@given(st.text(characters, max_size=300))
def test_any_hostname_becomes_a_valid_node_name(hostname: str) -> None:
    assert is_subdomain(node_name(hostname))
    assert is_subdomain(own_node_name())


def test_the_telemetry_is_plausible_and_in_base_units() -> None:
    metrics = {name: value / NANO for name, value in read_metrics().items()}
    assert all(is_metric_name(name) for name in metrics)
    assert set(metrics) == {
        "memory_available_bytes",
        "memory_used_percent",
        "load1",
        "cpu_percent",
        "disk_free_bytes",
        "disk_used_percent",
    }
    assert metrics["memory_available_bytes"] > 1 << 20
    assert metrics["disk_free_bytes"] >= 0
    assert metrics["load1"] >= 0
    assert all(0 <= value <= 100 for name, value in metrics.items() if name.endswith("_percent"))
