"""Which verdicts follow from one poll, as pure functions of time."""

import pytest

from tas.policy.policy import PolicyKey
from tas.samples.parts import Part
from tas.samples.table import TableKey
from tas.verdict.outstanding import (
    GIVE_UP_SECONDS,
    HOLD_SECONDS,
    MAX_ANNOUNCED,
    TOGETHER_SECONDS,
    Announcement,
    PollParts,
    with_announcement,
)
from tas.verdict.pending import PendingNodes

P = PolicyKey("default", "p")


def part(number: int, of: int = 4, source: str = "s") -> TableKey:
    return TableKey(source, Part(of, number))


def polled(parts: PollParts, *ats: float, of: int = 4) -> None:
    """A poll whose parts come at these times."""
    for number, at in enumerate(ats):
        parts.take_in(part(number, of), at)


def test_nobody_is_held_up_for_more_than_2_s_and_by_no_node_that_has_no_verdict_after_10_s() -> None:
    assert (HOLD_SECONDS, GIVE_UP_SECONDS) == (2.0, 10.0)


def test_the_other_parts_of_a_poll_are_awaited_until_they_have_come() -> None:
    parts = PollParts()
    polled(parts, 0.0, 0.1, 0.2, 0.3)
    assert not parts.are_awaited(0.3)
    for began in (15.0, 30.0):
        for number, at in enumerate((began, began + 0.3, began + 0.6)):
            parts.take_in(part(number), at)
            assert parts.are_awaited(at)
        parts.take_in(part(3), began + 1.0)
        assert not parts.are_awaited(began + 1.0)


def test_parts_may_come_in_another_order_in_each_poll() -> None:
    parts = PollParts()
    polled(parts, 0.0, 0.1, 0.2, 0.3)
    for number, at in ((3, 15.0), (1, 15.4), (0, 15.8)):
        parts.take_in(part(number), at)
        assert parts.are_awaited(at)
    parts.take_in(part(2), 16.0)
    assert not parts.are_awaited(16.0)


def test_a_part_that_does_not_come_holds_nobody_up_for_longer_than_the_bound_and_not_in_the_next_poll() -> None:
    parts = PollParts()
    polled(parts, 0.0, 0.0, of=2)
    parts.take_in(part(0, 2), 15.0)
    assert parts.are_awaited(15.0 + HOLD_SECONDS - 0.01)
    assert not parts.are_awaited(15.0 + HOLD_SECONDS)
    parts.take_in(part(0, 2), 30.0)
    assert not parts.are_awaited(30.0)


def test_a_new_source_awaits_all_its_parts_and_a_source_of_one_part_none() -> None:
    parts = PollParts()
    parts.take_in(part(0, 1), 0.0)
    assert not parts.are_awaited(0.0)
    parts.take_in(part(0, 2, "other"), 1.0)
    assert parts.are_awaited(1.0)
    parts.drop(part(1, 2, "other"))
    assert not parts.are_awaited(1.0)


def test_other_nodes_are_outstanding_while_they_wait_or_are_evaluated_but_not_for_ever() -> None:
    pending = PendingNodes()
    pending.add("a", [P], at=100.0)
    assert not pending.are_others("a", at=100.0, now=0.0)
    assert pending.are_others("b", at=100.0, now=0.0)
    touched = pending.take("a", at=100.0, now=0.0)
    assert pending.are_others("b", at=100.0, now=0.0)
    pending.put_back("a", touched)
    pending.end("a")
    assert pending.are_others("b", at=100.0 + GIVE_UP_SECONDS - 0.1, now=0.0)
    assert not pending.are_others("b", at=100.0 + GIVE_UP_SECONDS, now=0.0)
    pending.take("a", at=100.0, now=0.0)
    pending.end("a")
    assert not pending.are_others("b", at=100.0, now=0.0)


def test_nodes_whose_time_ends_together_are_outstanding_together() -> None:
    pending = PendingNodes()
    pending.set_due("a", 50.0)
    pending.set_due("b", 50.0 + TOGETHER_SECONDS)
    assert pending.are_others("a", at=0.0, now=50.0, is_due=True)
    assert not pending.are_others("a", at=0.0, now=50.0)
    pending.set_due("b", 51.0 + TOGETHER_SECONDS)
    assert not pending.are_others("a", at=0.0, now=50.0, is_due=True)


@pytest.mark.parametrize("since", [0.0, 100.0 + GIVE_UP_SECONDS])
def test_an_announcement_replaces_that_of_its_replica_and_drops_those_of_replicas_that_ended(since: float) -> None:
    mine, other = Announcement(since=100.0), Announcement(since=95.0)
    known = {"mine": Announcement(since=99.0), "other": other, "ended": Announcement(since=since)}
    assert with_announcement(known, "mine", mine) == {"mine": mine, "other": other}
    assert with_announcement(known, "mine", None).keys() == {"other", "ended"}
    many = {str(number): Announcement(since=99.0 + number / 1000) for number in range(2 * MAX_ANNOUNCED)}
    newest = list(many)[1 - MAX_ANNOUNCED :]
    assert with_announcement(many, "mine", mine).keys() == {"mine", *newest}
