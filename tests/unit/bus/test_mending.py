import pytest

from bus.buckets import NODES, configuration
from bus.mending import StreamState, changes

MEBIBYTE = 1 << 20


@pytest.mark.parametrize(
    ("size", "most"), [(0, NODES.max_bytes), (100 * MEBIBYTE, NODES.max_bytes), (400 * MEBIBYTE, 800 * MEBIBYTE)]
)
def test_a_bucket_without_a_limit_gets_one_that_does_not_make_it_full(size: int, most: int) -> None:
    config = configuration(NODES, first_sequence=0, replicas=1) | {"max_bytes": -1}
    assert changes(NODES, StreamState(config, size)) == {"max_bytes": (-1, most)}
    # A limit that somebody has set stays.
    assert changes(NODES, StreamState(config | {"max_bytes": MEBIBYTE}, size)) == {}
