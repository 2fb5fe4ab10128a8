"""What repeats itself is let through once in a while, and counted."""

from tas.values.throttle import Throttle


def test_a_throttle_admits_the_first_event_of_a_key_and_counts_the_suppressed() -> None:
    throttle = Throttle(seconds=10.0)
    assert throttle.admit("a", 0.0) == 0
    assert [throttle.admit("a", float(second)) for second in range(1, 10)] == [None] * 9
    assert throttle.admit("a", 10.0) == 9
    assert throttle.admit("a", 20.0) == 0


def test_a_throttle_counts_each_key_separately() -> None:
    throttle = Throttle()
    assert throttle.admit("a", 0.0) == 0
    assert throttle.admit("b", 0.0) == 0


def test_keys_beyond_the_limit_share_one_entry() -> None:
    throttle = Throttle(seconds=10.0, keys=4)
    admitted = [throttle.admit(key, 0.0) for key in range(1000)]
    assert admitted.count(0) == 5
    assert throttle.admit("another", 9.0) is None
    assert throttle.admit("after the old ones are forgotten", 10.0) == 0


def test_suppressed_events_of_the_shared_entry_are_counted() -> None:
    throttle = Throttle(seconds=10.0, keys=1)
    throttle.admit("a", 0.0)
    assert [throttle.admit(key, 5.0) for key in ("b", "c", "d")] == [0, None, None]
    throttle.admit("a", 10.0)
    assert throttle.admit("e", 15.0) == 2
