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


def test_once_a_minute_it_is_told_how_many_of_too_many_keys_were_suppressed() -> None:
    throttle = Throttle(seconds=10.0, keys=256)
    for key in range(256):
        assert throttle.admit(key, 0.0) == 0
    assert throttle.left_out(0.0) == 0
    assert throttle.admit("takes the shared entry", 0.0) == 0
    assert throttle.admit("honest", 1.0) is None
    assert throttle.left_out(1.0) == 1
    assert [throttle.admit(key, 2.0) for key in (1, "honest", "forged")] == [None, None, None]
    assert throttle.left_out(60.0) == 0
    assert throttle.left_out(61.0) == 2
    assert throttle.left_out(1000.0) == 0


def test_suppressed_events_of_the_shared_entry_are_counted() -> None:
    throttle = Throttle(seconds=10.0, keys=1)
    throttle.admit("a", 0.0)
    assert [throttle.admit(key, 5.0) for key in ("b", "c", "d")] == [0, None, None]
    throttle.admit("a", 10.0)
    assert throttle.admit("e", 15.0) == 2
