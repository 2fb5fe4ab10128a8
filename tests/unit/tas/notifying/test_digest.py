"""Many events make few messages."""

import orjson

from tas.events.data import BreakerTripped, EventData, Gap, PolicyRefused
from tas.notifying.chat import MAX_TEXT, chat_body
from tas.notifying.digest import MAX_GROUPS, Digest, digest_text
from tests.unit.tas.notifying.making import ended, notice, started


def digest(*, wait: float = 10.0, interval: float = 60.0, capacity: int = 1000) -> Digest[int]:
    return Digest(wait=wait, interval=interval, capacity=capacity)


def test_a_hundred_nodes_that_turn_at_once_are_one_line() -> None:
    collected = digest()
    for number in range(100):
        collected.add(notice(started(f"node-{number}")), number, 0.1 * number)
    groups, items = collected.take(10.0)
    assert items == list(range(100))
    assert digest_text(groups) == (
        "100 nodes violate default/demo (dontschedule): node-0, node-1, node-2, node-3, node-4 and 95 more"
    )


def test_the_number_of_messages_does_not_depend_on_the_number_of_events() -> None:
    collected, messages = digest(), 0
    for tick in range(6000):  # ten events a second, ten minutes
        now = tick / 10
        collected.add(notice(started(f"node-{tick}")), tick, now)
        due_at = collected.due_at()
        assert due_at is not None
        if due_at <= now:
            messages += 1
            collected.take(now)
    assert messages == 10


def test_the_first_message_waits_and_the_next_one_keeps_the_interval() -> None:
    collected = digest()
    assert collected.due_at() is None
    collected.add(notice(started("node-1")), 1, 100.0)
    assert collected.due_at() == 110.0
    collected.take(110.0)
    collected.add(notice(ended("node-1")), 2, 111.0)
    assert collected.due_at() == 170.0
    collected.take(170.0)
    collected.add(notice(started("node-1")), 3, 1000.0)
    assert collected.due_at() == 1010.0


def test_a_full_digest_is_due_at_once() -> None:
    collected = digest(capacity=2)
    collected.take(0.0)
    collected.add(notice(started("node-1")), 1, 1.0)
    collected.add(notice(started("node-2")), 2, 2.0)
    due_at = collected.due_at()
    assert due_at is not None
    assert due_at <= 2.0


def test_a_node_that_changed_several_times_counts_where_it_ended() -> None:
    collected = digest()
    changes: tuple[EventData, ...] = (
        started("node-1"),
        ended("node-1"),
        started("node-2"),
        started("node-1", value="3"),
    )
    for number, data in enumerate(changes):
        collected.add(notice(data), number, 0.0)
    groups, _ = collected.take(10.0)
    assert digest_text(groups) == "2 nodes violate default/demo (dontschedule): node-2, node-1"
    collected.add(notice(started("node-1")), 5, 20.0)
    collected.add(notice(ended("node-1")), 6, 20.0)
    groups, _ = collected.take(80.0)
    assert digest_text(groups) == "node-1 no longer violates default/demo (dontschedule) (2 changes)"


def test_policies_and_strategies_are_groups_of_their_own_and_warnings_come_first() -> None:
    collected = digest()
    changes: tuple[EventData, ...] = (
        ended("node-1"),
        started("node-1", policy="other"),
        started("node-2", policy="other", strategy="deschedule"),
        BreakerTripped(policy="demo", limit=10, wanted=12),
        Gap(stream="VERDICT_LOG", first=5, last=9),
    )
    for number, data in enumerate(changes):
        collected.add(notice(data), number, 0.0)
    groups, _ = collected.take(10.0)
    assert digest_text(groups).splitlines() == [
        "node-1 violates default/other (dontschedule): 2",
        "node-2 violates default/other (deschedule): 2",
        "the breaker of demo has tripped: 12 nodes would have labels, 10 may; no label is set or removed until: "
        "tas reset demo",
        "5 changes of VERDICT_LOG were lost before they were announced",
        "node-1 no longer violates default/demo (dontschedule)",
    ]


def test_a_message_has_an_end_whatever_happened() -> None:
    collected = digest()
    for number in range(MAX_GROUPS):
        collected.add(notice(started("n" * 200, policy=f"long-{number}")), number, 0.0)
    for number in range(1000):
        refused = PolicyRefused(
            namespace="default",
            policy=f"p{number}",
            policy_uid="u",
            generation=1,
            problems=("spec = @channel <!here> " + "x" * 500,),
            total=9,
        )
        collected.add(notice(refused), number, 0.0)
        collected.add(notice(started("node-1", policy=f"p{number}")), number, 0.0)
    groups, _ = collected.take(10.0)
    assert len(digest_text(groups).splitlines()) == MAX_GROUPS + 1
    text = orjson.loads(chat_body(groups, field="content"))["content"]
    assert len(text) == MAX_TEXT
    named = orjson.loads(chat_body(groups, field="content", cluster="prod"))["content"]
    assert named.splitlines()[0] == "cluster prod:"
    assert len(named) == MAX_TEXT


def test_a_text_of_a_policy_calls_nobody() -> None:
    collected = digest()
    refused = PolicyRefused(
        namespace="default", policy="p", policy_uid="u", generation=1, problems=("a = @all <!channel>",), total=1
    )
    collected.add(notice(refused), 1, 0.0)
    groups, _ = collected.take(10.0)
    text = orjson.loads(chat_body(groups, field="text"))["text"]
    assert "@all" not in text
    assert "<!channel" not in text
    assert "all" in text
