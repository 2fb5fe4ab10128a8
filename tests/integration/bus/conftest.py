"""Fixtures for time limits of calls, the lateness of the test, and the requests that it sends."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from bus.link import Link
from tests.integration.bus.limits import late_pulse, long_limits
from tests.integration.lateness import Lateness
from tests.integration.servers import Server
from tests.integration.watched import meanwhile

__all__ = ["late_pulse", "long_limits"]


@pytest.fixture
async def lateness() -> AsyncIterator[Lateness]:
    """Measures the lateness of this process during the test."""
    lateness = Lateness()
    async with meanwhile(lateness.run()):
        yield lateness


@pytest.fixture
def server(new_server: Server) -> Server:
    """The first connection of a test creates the streams: here that is a subject."""
    return new_server


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The requests for messages that are sent."""
    found: list[dict[str, int]] = []
    send = Link.send

    async def noted(link: Link, subject: str, payload: bytes, *, reply: str = "") -> None:
        if subject.startswith("$JS.API.CONSUMER.MSG.NEXT."):
            found.append(msgspec.json.decode(payload))
        await send(link, subject, payload, reply=reply)

    monkeypatch.setattr(Link, "send", noted)
    return found
