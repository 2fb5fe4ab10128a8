"""A sample of an unknown node is refused only with a complete list of the nodes of a cluster."""

import pytest

from tas.samples.unknown_node import is_unknown_node


@pytest.mark.parametrize(
    ("listed", "cluster", "unknown"),
    [
        (True, True, False),
        (False, True, True),
        (True, False, False),
        (False, False, False),
        (True, None, False),
        (False, None, False),
    ],
)
def test_a_node_is_unknown_if_the_complete_list_of_a_cluster_lacks_it(
    listed: bool, cluster: bool | None, unknown: bool
) -> None:
    assert is_unknown_node(listed=listed, cluster=cluster) is unknown
