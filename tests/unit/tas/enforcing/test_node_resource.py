"""Whether a node offers the resource of telemetry-aware scheduling."""

import pytest

from tas.enforcing.node_resource import RESOURCE, is_offered


@pytest.mark.parametrize("quantity", ["1000", "1k", "1e3", "1000000m", "1.0k"])
def test_quantities_are_compared_by_value(quantity: str) -> None:
    assert is_offered(1000, {RESOURCE: quantity}, {RESOURCE: "1k"})


@pytest.mark.parametrize("quantity", ["999", "1Ki", "0", "many", ""])
def test_another_value_is_no_offer(quantity: str) -> None:
    assert not is_offered(1000, {RESOURCE: quantity})


def test_capacity_and_allocatable_must_both_have_it() -> None:
    assert not is_offered(1000, {RESOURCE: "1k"}, {"cpu": "1k"})
