"""Which event a sink gets next, and what becomes of an event that the sink does not accept."""

from hypothesis import given
from hypothesis import strategies as st

from tas.notifying.outbox import MAX_ATTEMPTS, Outbox
from tas.values.backoff import Backoff

BACKOFF = Backoff(first=1.0, longest=8.0)


def outbox(*, lanes: int = 4) -> Outbox[str]:
    return Outbox(lanes=lanes, backoff=BACKOFF)


def due(box: Outbox[str], now: float) -> list[str]:
    """The items to send now, which stay under way."""
    return [delivery.item for delivery in box.due(now)]


def test_lanes_are_sent_at_once_and_each_lane_in_order() -> None:
    box = outbox()
    for item in ("a1", "b1", "a2", "c1"):
        box.add(item, lane=item[0])
    first = box.due(0.0)
    assert [each.item for each in first] == ["a1", "b1", "c1"]
    assert box.due(0.0) == []
    box.accepted(first[0], 0.0)
    assert due(box, 0.0) == ["a2"]


def test_no_more_requests_than_lanes() -> None:
    box = outbox(lanes=2)
    for item in "abc":
        box.add(item, lane=item)
    assert due(box, 0.0) == ["a", "b"]
    assert box.next_due() is None


def test_a_failing_sink_is_tried_with_one_event_at_a_time_and_then_gets_all() -> None:
    box = outbox(lanes=3)
    for item in "abcde":
        box.add(item, lane=item)
    for delivery in box.due(0.0):
        box.failed(delivery, 0.0)
    assert box.failing
    closed_until = box.next_due()
    assert closed_until is not None
    assert 0.5 <= closed_until <= 1.0  # one round of failures counts once, however many requests were under way
    assert box.due(closed_until - 0.01) == []
    probe = box.due(closed_until)
    assert [each.item for each in probe] == ["d"], "an event that has not failed yet"
    assert box.due(100.0) == [], "one at a time"
    box.accepted(probe[0], 100.0)
    assert due(box, 100.0) == ["a", "b", "c"]


def test_the_waits_of_a_failing_sink_double_up_to_the_longest() -> None:
    box = outbox()
    box.add("a", lane="a")
    now, waits = 0.0, []
    for _ in range(8):
        (delivery,) = box.due(now)
        box.failed(delivery, now)
        after = box.next_due()
        assert after is not None
        waits.append(after - now)
        now = after
    assert all(low / 2 <= wait <= low for wait, low in zip(waits, (1, 2, 4, 8, 8, 8, 8, 8), strict=True))


def test_the_sink_says_how_long_to_wait() -> None:
    box = outbox()
    box.add("a", lane="a")
    (delivery,) = box.due(0.0)
    box.failed(delivery, 0.0, retry_after=30.0)
    assert box.next_due() == 30.0


def test_a_wait_that_the_sink_asks_for_counts_for_other_events_and_for_this_one_also_when_the_sink_works() -> None:
    box = outbox()
    for item in ("slow", "other"):
        box.add(item, lane=item)
    slow, other = box.due(0.0)
    box.failed(slow, 0.0, retry_after=30.0)
    assert box.next_due() is None, "the other one is under way"
    box.failed(other, 0.0)
    assert box.next_due() == 30.0
    (again,) = box.due(30.0)
    assert again.item == "slow", "it was first, and has as many attempts"
    box.failed(again, 30.0, retry_after=60.0)
    (again,) = box.due(90.0)
    assert again.item == "other"
    box.accepted(again, 90.0)
    (again,) = box.due(90.0)
    box.failed(again, 90.0, retry_after=600.0)
    box.add("new", lane="new")
    (new,) = box.due(690.0)
    assert new.item == "new"
    box.accepted(new, 690.0)
    assert due(box, 690.0) == ["slow"]


def test_an_event_that_the_sink_refuses_shows_that_the_sink_works() -> None:
    box = outbox(lanes=2)
    for item in "abc":
        box.add(item, lane=item)
    first, second = box.due(0.0)
    box.failed(first, 0.0)
    box.refused(second)
    assert not box.failing
    assert due(box, 0.1) == ["c"]


def test_an_event_is_given_up_at_its_last_attempt_if_the_sink_accepted_another_since_the_first() -> None:
    box = outbox(lanes=1)
    box.add("poison", lane="p")
    now = 0.0
    for attempt in range(1, MAX_ATTEMPTS + 1):
        (delivery,) = box.due(now)
        assert delivery.item == "poison"
        assert box.is_hopeless(delivery) == (attempt == MAX_ATTEMPTS)
        box.failed(delivery, now)
        now += 10
        if attempt == 1:  # and never again
            box.add("good", lane="g")
            (good,) = box.due(now)
            box.accepted(good, now)


def test_an_event_that_always_fails_is_hopeless_only_if_the_sink_accepts_others() -> None:
    box = outbox()
    box.add("poison", lane="p")
    now = 0.0
    for _ in range(3 * MAX_ATTEMPTS):  # the sink is down: nothing is given up
        (delivery,) = box.due(now)
        assert not box.is_hopeless(delivery)
        box.failed(delivery, now)
        now += 10
    box.add("good", lane="g")
    (good,) = box.due(now)
    assert good.item == "good", "the new event is the one that finds out whether the sink works"
    box.accepted(good, now)
    (delivery,) = box.due(now + 10)
    assert box.is_hopeless(delivery)
    box.refused(delivery)
    assert len(box) == 0


def test_an_event_that_fails_does_not_hold_up_other_lanes() -> None:
    box = outbox(lanes=1)
    box.add("poison", lane="p")
    box.add("behind", lane="p")
    now, accepted = 0.0, 0
    while len(box) < 1000 and accepted < 200:
        box.add("good", lane=f"g{accepted}")
        for delivery in box.due(now):
            if delivery.item == "poison":
                box.failed(delivery, now)
            else:
                accepted += 1
                box.accepted(delivery, now)
        now += 1
    assert accepted == 200
    assert now < 400


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.floats(0, 5)), max_size=60))
def test_every_event_is_sent_in_the_order_of_its_lane(steps: list[tuple[int, bool, float]]) -> None:
    """Whatever fails: no event is lost, none is sent twice at once, and none overtakes another of its lane."""
    box: Outbox[tuple[int, int]] = Outbox(lanes=3, backoff=BACKOFF)
    added = [0] * 5
    sent: list[list[int]] = [[] for _ in range(5)]
    now = 0.0
    for lane, works, pause in steps:
        box.add((lane, added[lane]), lane=lane)
        added[lane] += 1
        now += pause
        under_way = box.due(now)
        assert len({each.lane for each in under_way}) == len(under_way) <= 3
        for delivery in under_way:
            if works:
                box.accepted(delivery, now)
                sent[delivery.item[0]].append(delivery.item[1])
            else:
                box.failed(delivery, now)
    while len(box):
        after = box.next_due()
        assert after is not None
        now = max(now, after)
        for delivery in box.due(now):
            box.accepted(delivery, now)
            sent[delivery.item[0]].append(delivery.item[1])
    assert sent == [list(range(count)) for count in added]
