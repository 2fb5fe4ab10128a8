"""When the bus counts as away."""

from workers.watching.outage import BACK_SECONDS, Outage


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
