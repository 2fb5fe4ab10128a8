"""How often the addresses of nodes are listed."""

from typing import Any, cast

import pytest

from workers.watching.node_addresses import NodeAddresses


@pytest.mark.parametrize(
    ("nodes", "pause"), [(0, 60.0), (80, 60.0), (300, 216.0), (2500, 1800.0), (5000, 3600.0), (15_000, 3600.0)]
)
def test_a_small_cluster_is_listed_soon_and_none_costs_more_than_5000_nodes_an_hour(nodes: int, pause: float) -> None:
    addresses = NodeAddresses(cast("Any", None), on_read=lambda _: None)
    addresses._known = dict.fromkeys(map(str, range(nodes)), cast("Any", None))
    assert addresses.pause == pytest.approx(pause)
