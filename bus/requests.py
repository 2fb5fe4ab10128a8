"""Requests for the messages of a pull consumer, over one connection: one request at a time.

Each delivery wakes up the server and this process, which costs more than most messages do. So when messages arrive
quickly, a request gets those that were stored during a pause. All other messages are delivered at once.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf

import msgspec
from msgspec.structs import replace

from bus.buckets import NANOSECONDS
from bus.client import Msg
from bus.errors import UnavailableError
from bus.link import NO_RESPONDERS, Link, status
from bus.pulse import HEARTBEAT_SECONDS

EXPIRES_SECONDS = 3.0
"""When a request that waits for the next message expires, and the next one is sent.

Short, because a paused replica with a pending request gets messages, which wait until their acknowledgement is overdue.
"""

GATHERED = 2
"""A pause is only made if at least so many messages are expected."""

RESOLUTION_SECONDS = 1e-6
"""The shortest time in which messages count as arrived, for their rate."""

DELIVERED_AT_ONCE = 4
"""How many messages one request gets without a pause."""

REQUEST_BYTES = 4 << 20
"""About how many bytes one request gets, or twice the largest message of the server.

A server closes a connection at which 64 MiB wait (facts.md n165): without this bound a request for large messages would
end each connection.
"""

SPREAD_BYTES = 4 << 10
"""A request whose bytes are used up exactly ends without a status (facts.md n165): nobody may know them in advance.

If it happens by chance, heartbeats are missing: the attachment ends after some seconds, and the next one goes on."""

_HEARTBEAT = "100"
_ENDS = ("404", "408")
"""The statuses of a request that got all stored messages, and of one that has expired."""

_NO_BYTES_LEFT, _COMPLETED = "Message Size Exceeds MaxBytes", "Batch Completed"
"""How the server describes the end of a request whose bytes do not suffice for the next message, and of one that got
all of its messages before its bytes were used up: the last message has told that."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long messages are gathered: until about `messages` have arrived at their current rate, at most `seconds`.

    `seconds` must be shorter than a heartbeat: during a pause the server sends none. Beyond `fastest` messages a second
    there are no pauses: then messages arrive together anyway, while the ones before them are handled.
    """

    seconds: float
    messages: float
    fastest: float = inf

    def after(self, rate: float) -> float:
        """The pause at so many messages a second; 0 for none."""
        if rate * self.seconds < GATHERED or rate > self.fastest:
            return 0.0
        return min(self.seconds, self.messages / rate)


class Requests:
    """Decides when which request is sent.

    `end` gets the error that ends the consumer. `is_room` says whether another batch may arrive; after it was False,
    the caller calls `resume`. `before` is awaited before each request: what it sends is written together with it.
    """

    def __init__(
        self,
        link: Link,
        subject: str,
        inbox: str,
        *,
        batch: int,
        pace: Pace,
        end: Callable[[Exception], None],
        is_room: Callable[[], bool] = lambda: True,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        assert pace.seconds < HEARTBEAT_SECONDS
        self._link = link
        self._subject = subject
        self._inbox = inbox
        self._stored = _Request(batch, no_wait=True)
        self._next, self._next_many = (
            _Request(
                count,
                expires=int(EXPIRES_SECONDS * NANOSECONDS),
                idle_heartbeat=int(HEARTBEAT_SECONDS * NANOSECONDS),
            )
            for count in (DELIVERED_AT_ONCE, batch)
        )
        self._pace = pace
        self._end = end
        self._is_room = is_room
        self._before = before
        self._requested = 0
        self._received = 0
        self._is_cut = False  # whether the bytes of the request did not suffice for all its messages
        self._asked_at = asyncio.get_running_loop().time()
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Future[None] | None = None
        self._due: _Request | None = None
        self._stopped = False

    def start(self) -> None:
        """Sends the first request."""
        self._request(self._stored)

    def stop(self) -> None:
        """Sends no more requests."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def resume(self) -> None:
        """Sends the request that is due, if there is room now."""
        if self._due is not None and self._is_room():
            self._request(self._due)

    def received(self) -> None:
        """Notes a message: after the last one of a request the next request follows."""
        self._received += 1
        if self._received == self._requested:
            self._continue()

    def received_status(self, message: Msg) -> bool:
        """Handles a message with a status; returns whether the server has no message left. Raises UnavailableError."""
        what = status(message)
        if what == _HEARTBEAT:
            return True
        why = (message.headers or {}).get("Description", "")
        if why == _COMPLETED:
            return False
        if why == _NO_BYTES_LEFT:
            # Of a consumer with replicas the status comes before the messages: they wait for a quorum (facts.md n165).
            self._requested -= int((message.headers or {})["Nats-Pending-Messages"])
            self._is_cut = True
            if self._received == self._requested:
                self._continue()
            return False
        if what not in _ENDS:
            # 409 has a description: the consumer was deleted, has another leader, or has too many requests.
            why = "the consumer is missing" if what == NO_RESPONDERS else why
            raise UnavailableError(f"{self._subject}: {what} {why}")
        is_idle = not self._received
        self._continue()
        return is_idle

    def _continue(self) -> None:
        """Sends the next request now, or after a pause."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        rate = self._received / max(now - self._asked_at, RESOLUTION_SECONDS)
        self._asked_at = now
        if self._is_cut and not self._received:
            self._request(_Request(1, no_wait=True))  # the next message alone has more than REQUEST_BYTES
        elif self._is_cut or self._requested == self._stored.batch == self._received:
            self._request(self._stored)  # a backlog
        elif pause := self._pace.after(rate):
            self._timer = loop.call_at(now + pause, self._request, self._stored)
        else:
            self._request(self._next_many if rate > self._pace.fastest else self._next)

    def _request(self, what: "_Request") -> None:
        self._due = None if self._is_room() else what
        if self._due is None and not self._stopped:
            self._requested, self._received, self._is_cut = what.batch, 0, False
            if what.batch > DELIVERED_AT_ONCE:
                most = max(REQUEST_BYTES, 2 * self._link.max_payload) + secrets.randbelow(SPREAD_BYTES)
                what = replace(what, max_bytes=most)
            self._sending = asyncio.ensure_future(self._send(msgspec.json.encode(what)))

    async def _send(self, body: bytes) -> None:
        try:
            if self._before is not None:
                await self._before()
            await self._link.send(self._subject, body, reply=self._inbox)
        except UnavailableError as error:
            self._end(error)


class _Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a request: for what is stored now, or with `expires` (in nanoseconds) for the next messages."""

    batch: int
    max_bytes: int = 0
    no_wait: bool = False
    expires: int = 0
    idle_heartbeat: int = 0
