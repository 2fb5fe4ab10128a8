"""When the bus counts as away, and which policy is the next one."""

from tas.policy.policy import PolicyKey
from workers.status.outage import BACK_SECONDS, Outage, fewest_failures_first


def test_an_outage_begins_with_the_first_failure_and_ends_when_the_bus_has_answered_for_a_while() -> None:
    outage = Outage()
    assert outage.seconds(10.0, reachable=True) == 0.0
    assert outage.seconds(11.0, reachable=False) == 0.0
    assert outage.seconds(31.0, reachable=False) == 20.0
    assert outage.seconds(32.0, reachable=True) == 21.0, "it comes and goes"
    assert outage.seconds(33.0, reachable=False) == 22.0
    assert outage.seconds(40.0, reachable=True) == 29.0
    assert outage.seconds(40.0 + BACK_SECONDS - 0.1, reachable=True) > 0.0
    assert outage.seconds(40.0 + BACK_SECONDS, reachable=True) == 0.0
    assert outage.seconds(50.0, reachable=False) == 0.0
    assert outage.seconds(52.0, reachable=False) == 2.0


def test_a_policy_that_is_always_refused_comes_after_the_others() -> None:
    a, b, c = (PolicyKey("default", name) for name in "abc")
    assert fewest_failures_first([c, b, a], {}) == [a, b, c]
    assert fewest_failures_first([a, b, c], {a: 1}) == [b, c, a]
    assert fewest_failures_first([a, b, c], {a: 1, b: 1, c: 1}) == [a, b, c], "none is given up"
    assert fewest_failures_first([a, b], {a: 2, b: 1}) == [b, a]
