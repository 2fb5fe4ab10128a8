"""The rate of first labels, as pure functions of time."""

import pytest

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


@pytest.mark.parametrize("rates", [(Rate(60, 1), None), (None, Rate(60, 1))], ids=["of the policy", "over all"])
def test_a_node_that_needs_no_label_any_more_gives_its_token_back(rates: tuple[Rate | None, Rate | None]) -> None:
    rate = LabelRate(*rates)
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
