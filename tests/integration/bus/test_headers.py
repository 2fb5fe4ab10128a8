"""Headers of messages that act on a server, sent by each role to each subject to which it may publish."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec
import pytest

from bus.buckets import AGENTS, ALL, BREAKERS, REFUSALS, SOURCES, WINDOWS, WORKERS, Bucket, Stream
from bus.rights.roles import overlap, permissions_of, tags_of
from tests.integration.bus.closed import Closed, closed
from workers.roles import ROLES

pytestmark = pytest.mark.usefixtures("long_limits")
__all__ = ["closed"]

SECONDS = 60.0
VICTIM, TARGET = BREAKERS.subject("victim"), BREAKERS.subject("target")
SOON = "@at 2026-01-01T00:00:00Z"
HEADERS: dict[str, dict[str, str]] = {
    "rollup of all": {"Nats-Rollup": "all"},
    "rollup of a subject": {"Nats-Rollup": "sub"},
    "expires": {"Nats-TTL": "1"},
    "never expires": {"Nats-TTL": "never"},
    "expected sequence": {"Nats-Expected-Last-Sequence": "1"},
    "expected sequence of a subject": {
        "Nats-Expected-Last-Subject-Sequence": "1",
        "Nats-Expected-Last-Subject-Sequence-Subject": VICTIM,
    },
    "expected id": {"Nats-Expected-Last-Msg-Id": "x"},
    "expected stream": {"Nats-Expected-Stream": "OTHER"},
    "id": {"Nats-Msg-Id": "x" * 10_000},
    "trace": {"Nats-Trace-Dest": TARGET, "Nats-Trace-Only": "true"},
    "trace of a message": {"Nats-Trace-Dest": TARGET},
    "schedule": {"Nats-Schedule": SOON, "Nats-Schedule-Target": TARGET},
    "batch": {"Nats-Batch-Id": "x", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    "counter": {"Nats-Incr": "+1"},
    "marker": {"Nats-Marker-Reason": "Purge", "KV-Operation": "PURGE"},
}
STRONG = {
    SOURCES: {"collect", "windows", "inventory", "all"},
    REFUSALS: {"labels", "marks", "all"},
    AGENTS: {"agents", "all"},
    WINDOWS: {"windows", "all"},
    WORKERS: {"operator", *(role for role, each in ROLES.items() if each.workers)},
}
"""The roles that can delete keys of others by a header: docs/reference/bus.md#acting-headers."""


def victim_of(of: Stream | Bucket) -> str:
    """A subject of a stream to which no test writes."""
    if isinstance(of, Bucket):
        return of.subject("victim")
    return of.subjects[0].replace("*", "victim").replace(">", "victim")


def subjects_of(role: str) -> Iterator[tuple[Stream | Bucket, str]]:
    """A subject of each right to write, with the stream that stores it."""
    name = "a" if role == "node" else f"tas-{role}"
    for pattern in permissions_of(ROLES[role], name, tags_of(ROLES[role], name, sources=["probe"])).publish:
        for of in ALL:
            if any(overlap(pattern, subject) for subject in of.subjects):
                yield of, pattern.replace("*", "own").replace(">", "own")


async def test_no_header_gives_a_role_more_than_its_rights_except_the_rollups_that_are_documented(
    closed: Closed,
) -> None:
    await closed.with_streams()
    emptied: dict[Stream | Bucket, set[str]] = defaultdict(set)
    reached: set[str] = set()
    sent = 0
    async with closed.connected_as(closed.owner()) as owner:

        async def message_of(of: Stream | Bucket) -> bytes:
            """The sequence and the body of the victim; empty if it is gone."""
            body = msgspec.json.encode({"last_by_subj": victim_of(of)})
            data = await owner.link.request(f"$JS.API.STREAM.MSG.GET.{of.stream}", body, seconds=SECONDS)
            return msgspec.json.encode(msgspec.json.decode(data).get("message"))

        async def put(of: Stream | Bucket) -> bytes:
            if of.subjects:
                await owner.link.publish(victim_of(of), b"{}", seconds=SECONDS)
            return await message_of(of) if of.subjects else b""

        before = {of: await put(of) for of in ALL if of.subjects}
        for role in ROLES:
            async with closed.connected(role, "a" if role == "node" else "", "probe") as bus:
                for of, subject in dict.fromkeys(subjects_of(role)):
                    for headers in HEADERS.values():
                        # Without a wait: a message that is only traced has no answer.
                        await bus.link._client.publish(subject, b"1", headers=headers)
                        sent += 1
                    await bus.link.request(subject, b"1", seconds=SECONDS)  # the stream takes one after the other
                    if await message_of(of) != before[of]:
                        emptied[of].add(role)
                        before[of] = await put(of)
            purge = msgspec.json.encode({"filter": TARGET})
            answer = await owner.link.request(f"$JS.API.STREAM.PURGE.{BREAKERS.stream}", purge, seconds=SECONDS)
            if msgspec.json.decode(answer)["purged"]:
                reached.add(role)
        # What a server does later, such as a schedule, would have been due.
        assert {of.stream: await message_of(of) for of in before} == {of.stream: each for of, each in before.items()}
    assert sent > 500, "each role that writes anything has sent each header"
    assert emptied == STRONG
    # The server sends no trace where the sender may not publish.
    assert reached == {
        role for role in ROLES if any(overlap(each, TARGET) for each in ROLES[role].rights.permissions.publish)
    }
