"""The rate of first labels, as pure functions of time."""

from heapq import heapify, heappop, heappush

from tas.enforcing.label_rate import UNUSED_SECONDS, LabelRate, Rate


def waits(rate: LabelRate, nodes: range, now: float = 0.0, policy: str = "p") -> list[float]:
    return [rate.wait(f"n{number}", policy, now) for number in nodes]


def test_a_burst_waits_for_nothing_and_all_others_come_one_after_the_other() -> None:
    rate = LabelRate(Rate(60, 3), None)
    assert waits(rate, range(6)) == [0, 0, 0, 1, 2, 3]
    assert rate.waiting(0.0) == {"p": 3}
    assert rate.waiting(2.0) == {"p": 1}
    assert rate.waiting(9.0) == {}
    # Who asks again keeps its turn, whoever asks meanwhile.
    assert waits(rate, range(3, 8), now=0.5) == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert rate.wait("n3", "p", 1.0) == 0


def test_no_window_of_a_minute_has_more_than_the_rate_and_a_burst() -> None:
    rate, came = LabelRate(Rate(30, 10), None), []
    for number in range(200):
        asked = number * 0.1
        came.append(asked + rate.wait(f"n{number}", "p", asked))
    assert came == sorted(came)
    for first in came:
        assert sum(first <= each < first + 60 for each in came) <= 30 + 10


def test_single_labels_never_wait() -> None:
    rate = LabelRate(Rate(60, 30), Rate(120, 60))
    assert {rate.wait(f"n{second}", "p", float(second)) for second in range(1000)} == {0.0}


def test_policies_have_a_rate_each_and_one_over_all() -> None:
    rate = LabelRate(Rate(60, 2), Rate(60, 3))
    assert waits(rate, range(2), policy="p") == [0, 0]
    assert waits(rate, range(2), policy="q") == [0, 1]
    assert LabelRate(None, None).wait("n", "p", 0.0) == 0


def test_a_node_that_needs_no_label_any_more_gives_its_token_back() -> None:
    rate = LabelRate(Rate(60, 1), None)
    assert waits(rate, range(3)) == [0, 1, 2]
    rate.end("n2", "p", 0.0, is_used=False)
    assert rate.wait("n3", "p", 0.0) == 2
    rate.keep("n3", ["q"], 0.0)
    assert rate.wait("n4", "p", 0.0) == 2
    rate.end("n0", "p", 0.0, is_used=True)
    assert rate.wait("n5", "p", 0.0) == 3


def test_who_has_waited_during_a_pause_does_not_come_at_once_with_all_others() -> None:
    rate = LabelRate(Rate(60, 2), None)
    assert waits(rate, range(60))[-1] == 58
    after = 58 + 2 * UNUSED_SECONDS
    assert sum(wait == 0 for wait in waits(rate, range(60), now=after)) == 2


def test_who_waits_is_known_without_another_reservation() -> None:
    rate = LabelRate(Rate(60, 1), None)
    assert rate.pending("a", "p", 0.0) == 0
    assert [rate.wait(node, "p", 0.0) for node in ("a", "b", "c")] == [0, 1, 2]
    assert [rate.pending(node, "p", 0.5) for node in ("a", "b", "c", "d")] == [0, 0.5, 1.5, 0]
    assert rate.wait("d", "p", 0.5) == 2.5, "asking has reserved nothing"


def labelled(rate: LabelRate, wanted: dict[str, int], until: float) -> dict[str, list[float]]:
    """By policy, when so many nodes of it got their label if all ask at 0, and again when they are told to."""
    asks = [(0.0, number, f"n{number}", policy) for policy, count in wanted.items() for number in range(count)]
    heapify(asks)
    got: dict[str, list[float]] = {policy: [] for policy in wanted}
    while asks and asks[0][0] <= until:
        now, number, node, policy = heappop(asks)
        if (wait := rate.wait(node, policy, now)) > 0:
            heappush(asks, (now + wait, number, node, policy))
        else:
            rate.end(node, policy, now, is_used=True)
            got[policy].append(now)
    return got


def author(policy: str) -> str:
    return policy.partition("-")[0]


def test_an_author_with_many_nodes_does_not_hold_up_another_one() -> None:
    """A hundred policies of one namespace want labels on 50 nodes each: alone they take 41 minutes."""
    rate = LabelRate(Rate(60, 30), Rate(120, 60), author_of=author)
    bad = {f"bad-{number}": 50 for number in range(100)}
    got = labelled(rate, bad | {"good-1": 20}, until=120.0)
    assert len(got["good-1"]) == 20
    assert max(got["good-1"]) <= 30.0, "at worst a burst of the other one comes first"
    assert 60 + 120 * 2 - 30 <= sum(map(len, got.values())) <= 60 + 120 * 2 + 1, "no token is lost"
    later = rate.wait("late", "good-2", 120.0)
    assert later <= 30.0


def test_an_author_that_is_alone_gets_all_labels_of_the_rate() -> None:
    for policies in (1, 4):
        rate = LabelRate(None, Rate(120, 60), author_of=author)
        got = labelled(rate, {f"one-{number}": 360 // policies for number in range(policies)}, until=1000.0)
        assert max(each for times in got.values() for each in times) == 150.0


def test_no_minute_has_more_than_the_rate_over_all_whoever_the_authors_are() -> None:
    rate = LabelRate(Rate(60, 30), Rate(120, 60), author_of=author)
    got = labelled(rate, {f"a{number}-p": 100 for number in range(5)}, until=300.0)
    came = sorted(each for times in got.values() for each in times)
    assert len(came) == 500
    for first in came:
        assert sum(first <= each < first + 60 for each in came) <= 120 + 60
    assert min(map(len, got.values())) == 100
