"""What a process says of itself."""

from tas.processes.process import most_behind


def test_of_several_connections_the_one_that_is_furthest_behind_counts() -> None:
    lags = [{"NODES": 7, "EVENTS": 0}, {"NODES": 2, "POLICIES": 3}, {"POLICIES": 4}]
    assert most_behind(lags) == {"NODES": 7, "EVENTS": 0, "POLICIES": 4}
