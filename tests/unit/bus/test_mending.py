import pytest

from bus.buckets import EVENTS, NODES, configuration
from bus.mending import Consumer, StreamState, changes

MEBIBYTE = 1 << 20


@pytest.mark.parametrize(
    ("size", "most"), [(0, NODES.max_bytes), (100 * MEBIBYTE, NODES.max_bytes), (400 * MEBIBYTE, 800 * MEBIBYTE)]
)
def test_a_bucket_without_a_limit_gets_one_that_does_not_make_it_full(size: int, most: int) -> None:
    config = configuration(NODES, first_sequence=0, replicas=1) | {"max_bytes": -1}
    assert changes(NODES, StreamState(config, size)) == {"max_bytes": (-1, most)}
    # A limit that somebody has set stays.
    assert changes(NODES, StreamState(config | {"max_bytes": MEBIBYTE}, size)) == {}


@pytest.mark.parametrize(
    ("name", "lasts", "used", "is_left"),
    [
        pytest.param("revoked_1", False, True, True, id="of a revoked user, in use"),
        pytest.param("anna_1", True, False, False, id="of a user"),
        pytest.param("random", True, False, True, id="of nobody"),
        pytest.param("random", True, True, False, id="of nobody, in use"),
        pytest.param("random", False, False, False, id="of nobody, and ends by itself"),
    ],
)
def test_consumers_of_revoked_users_and_those_of_nobody_that_nobody_uses_are_removed(
    name: str, lasts: bool, used: bool, is_left: bool
) -> None:
    assert Consumer(NODES.stream, name, lasts, used).is_left(users={"anna"}, gone={"revoked"}) is is_left


@pytest.mark.parametrize(
    ("stream", "name", "is_left"),
    [
        pytest.param(EVENTS.stream, "_sink_7", False, id="a sink"),
        pytest.param(EVENTS.stream, "pager", False, id="a subscription"),
        pytest.param(EVENTS.stream, "revoked", True, id="a subscription of a revoked user"),
        pytest.param(NODES.stream, "random", True, id="no position"),
    ],
)
def test_without_positions_those_stay_that_nobody_waits_for(stream: str, name: str, *, is_left: bool) -> None:
    """Whoever revokes one user does not want the others to lose their events."""
    consumer = Consumer(stream, name, lasts=True, used=False)
    assert consumer.is_left(users={"anna"}, gone={"revoked"}, with_positions=False) is is_left
    assert consumer.is_left(users={"anna"}, gone={"revoked"})
