"""The reply subject of a delivery, and by which prefix a user reaches the JetStream API."""

import asyncio

import pytest

from bus.errors import NO_JETSTREAM, BusError, ForbiddenError
from bus.link import Delivery, Link
from bus.rights.access import Loaded


def test_all_forms_of_a_reply_subject_are_read() -> None:
    expected = Delivery(
        deliveries=2, sequence=1795277068888665, consumer_sequence=7, nanoseconds=1795277068888843681, pending=3
    )
    numbers = "2.1795277068888665.7.1795277068888843681.3"
    assert Delivery.of(f"$JS.ACK.SAMPLES.durable.{numbers}") == expected
    assert Delivery.of(f"$JS.ACK._.account.SAMPLES.durable.{numbers}") == expected
    assert Delivery.of(f"$JS.ACK.domain.account.SAMPLES.durable.{numbers}.token") == expected


class Answering(Link):
    """Answers by what a test has said of a subject, once `go` is set for those of publishers."""

    def __init__(self) -> None:
        super().__init__("", Loaded(name="user"))
        self.asked: list[str] = []
        self.go = asyncio.Event()
        self.without_jetstream = True

    async def request(self, subject: str, payload: bytes, *, seconds: float, headers: object = None) -> bytes:
        self.asked.append(subject)
        if not subject.startswith("$JS."):
            await self.go.wait()
            raise ForbiddenError(subject)
        if self.without_jetstream:
            return b'{"error": {"code": 503, "err_code": %d, "description": "none"}}' % min(NO_JETSTREAM)
        return b"{}"


async def test_who_tries_the_prefix_of_publishers_does_not_change_that_of_other_calls() -> None:
    """A server that has just started JetStream, and a user who is no publisher."""
    link = Answering()
    first = asyncio.create_task(link.api("STREAM.INFO.A", seconds=1))
    while len(link.asked) < 2:  # noqa: ASYNC110 - the call suspends only there
        await asyncio.sleep(0)
    link.without_jetstream = False
    assert await link.api("STREAM.INFO.B", seconds=1) == {}
    link.go.set()
    with pytest.raises(BusError, match="none"):
        await first
    assert await link.api("STREAM.INFO.C", seconds=1) == {}
    assert link.asked == [
        "$JS.API.STREAM.INFO.A",
        "tas.api.STREAM.INFO.A",
        "$JS.API.STREAM.INFO.B",
        "$JS.API.STREAM.INFO.C",
    ]
