"""One connection to a server, without reconnects: `bus.connection.Bus` opens the next one.

So no pending write and no subscription of an old connection reaches a server late or twice.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import structlog

from bus.buckets import HEADER_BYTES
from bus.client import Msg, OneLife, Subscription, errors
from bus.errors import (
    BusError,
    ForbiddenError,
    NobodyListensError,
    RefusedError,
    SlowError,
    UnavailableError,
    jetstream_error,
)
from bus.rights.access import Loaded
from bus.subjects import API
from bus.ticks import until_tick
from tas.values.nouns import counted
from tas.values.throttle import Throttle

log = structlog.get_logger(__name__)

CALL_SECONDS = 2.0
"""How long one call may take before it raises UnavailableError."""

CONNECT_SECONDS = 3.0
"""How long connecting may take, from the TCP handshake to the first answer."""

PING_SECONDS = 1
UNANSWERED_PINGS = 2
"""After this many unanswered pings the connection is lost: a server that hangs is detected within 3 s."""

MAX_PENDING_BYTES = 1 << 20
"""With more unsent data than this, writers wait: so a server that hangs does not fill the memory."""

BEAT_SECONDS = 1.0
"""The time between two beats of a connection: then all who expect heartbeats look whether one has come."""

_ACKNOWLEDGED = "$JS.ACK."

REPORT_SECONDS = 60.0
"""How often the log names the same missing permission."""

_VIOLATION = re.compile(r'for (publish|subscription) to "([^"]*)"')
"""The server's text of a missing permission, which nats-py puts into lower case."""

NO_RESPONDERS = "503"
"""The server's status for a request to a subject without subscribers."""


class Delivery(NamedTuple):
    """The metadata of a delivered message, from the subject of its acknowledgement (ADR-15).

    `consumer_sequence` counts the consumer's deliveries without gaps; `pending` counts the messages still to come.
    """

    deliveries: int
    sequence: int
    consumer_sequence: int
    nanoseconds: int
    pending: int

    @classmethod
    def of(cls, reply: str) -> "Delivery":
        """Parses `$JS.ACK.<stream>.<consumer>.<these five>`, also with domain and account before the stream."""
        tokens = reply.split(".")
        first = 4 if len(tokens) == 9 else 6
        return cls(*map(int, tokens[first : first + 5]))


class ServerInfo(NamedTuple):
    """A server's own words about itself. The cluster of a single server is empty."""

    id: str
    version: str
    cluster: str


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _PublishAnswer(msgspec.Struct):
    seq: int = 0
    error: _Error | None = None


_publish_answer = msgspec.json.Decoder(_PublishAnswer)


class Link:
    """An open connection. Every call ends within its time limit, and at once when the link is lost.

    Attributes:
        may_create: Whether this user may create streams; None: not tried yet. One that may not does not try again.
        forbidden: By name, why this user may not even look at a stream that it need not have.
        creating: Held during the first attempt.
        allowed: The subjects to which this user may publish, if somebody has asked the server.
    """

    def __init__(self, inbox: str, loaded: Loaded) -> None:
        self.lost = asyncio.Event()
        self.why_lost = ""
        self.inbox = inbox
        self.loaded = loaded
        self._client = OneLife(self._lose, self._forbid)
        self.may_create: bool | None = None
        self.forbidden: dict[str, str] = {}
        self.creating = asyncio.Lock()
        self.allowed: tuple[str, ...] | None = None
        self._forbidden_inbox = False
        self._reports = Throttle(seconds=REPORT_SECONDS)
        # By token: the subject of the request, and the future of the answer or error.
        self._replies: dict[str, tuple[str, asyncio.Future[Msg | BusError]]] = {}
        self._count = 0
        self._beat: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._beat.set_result(None)

    @classmethod
    async def open(cls, servers: Sequence[str], *, name: str, inbox_prefix: str, loaded: Loaded) -> "Link":
        """Connects to one of `servers`. Raises UnavailableError within `CONNECT_SECONDS`, SlowError if they are over.

        `loaded`: what this process shows to the server. RefusedError if the user may not subscribe to its own inbox.
        """
        link = cls("", loaded)
        client = link._client
        client.needs_tls, client.has_certificate = loaded.needs_tls, loaded.has_certificate
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.connect(
                    list(servers),
                    name=name,
                    error_cb=_quiet,
                    closed_cb=link._on_closed,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    pending_size=0,
                    ping_interval=PING_SECONDS,
                    max_outstanding_pings=UNANSWERED_PINGS,
                    inbox_prefix=inbox_prefix,
                    **loaded.options,
                )
                link.inbox = client.new_inbox()
                await link.subscribe(f"{link.inbox}.reply.*", link._on_reply)
                # Without its inbox every call would time out, and would not say why. nats-py sends a ping ahead of
                # what is pending, so only the second one follows the subscription.
                await client.flush()
                await client.flush()
                link._check_inbox(inbox_prefix)
        except (OSError, TimeoutError, errors.Error) as error:
            await client.drop()
            # A refused certificate ends the connection after the handshake, often without a word.
            was_shown = client.server_info.get("tls_verify") and type(error) is not ssl.SSLCertVerificationError
            after = " after it got a certificate" if was_shown and isinstance(error, OSError) else ""
            reason = str(error) or type(error).__name__
            if isinstance(error, TimeoutError) and not client.server_info:
                reason = f"nobody has answered as a nats-server within {CONNECT_SECONDS:g} s: is the port right?"
            kind = SlowError if isinstance(error, TimeoutError) else UnavailableError
            raise kind(f"no connection: {reason}{after}") from error
        except BaseException:
            await client.drop()
            raise
        return link

    @property
    def max_payload(self) -> int:
        """The most bytes of a message on this server, without headers."""
        return self._client.max_payload - HEADER_BYTES

    @property
    def server(self) -> ServerInfo:
        """The server that is connected."""
        info = self._client.server_info
        return ServerInfo(*(str(info.get(key) or "") for key in ("server_id", "version", "cluster")))

    @property
    def is_open(self) -> bool:
        """Whether the server takes everybody, and so limits nobody, whatever credentials are shown."""
        return not self._client.server_info.get("auth_required")

    async def wait_writable(self, seconds: float) -> None:
        """Waits until little data is unsent. Raises UnavailableError."""
        if self._client.pending_data_size <= MAX_PENDING_BYTES:
            return
        try:
            async with asyncio.timeout(seconds):
                while self._client.pending_data_size > MAX_PENDING_BYTES and not self.lost.is_set():  # noqa: ASYNC110
                    # The client has no event for sent data.
                    await asyncio.sleep(0.001)
        except TimeoutError as error:
            raise UnavailableError("the server accepts no more data") from error

    async def send(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        """Sends without waiting for an answer. Raises UnavailableError if the link is lost."""
        self._refuse_if_lost()
        try:
            await self._client.publish(subject, payload, reply)
        except errors.Error as error:
            raise UnavailableError(f"{subject}: {error}") from error

    async def request(
        self, subject: str, payload: bytes, *, seconds: float, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Sends, and returns the answer's body.

        The client gets the message before this coroutine first suspends: a condition that the caller checks directly
        before the call still holds.
        Raises UnavailableError without an answer in time, or without a subscriber. Raises RefusedError if the message
        is too large, or the permission is missing; nothing was sent.
        """
        self._refuse(subject, payload)
        token, reply = self._expect(subject)
        try:
            async with asyncio.timeout(seconds):
                await self._client.publish(
                    subject,
                    payload,
                    reply=f"{self.inbox}.reply.{token}",
                    headers=None if headers is None else dict(headers),
                )
                answer = await reply
        except TimeoutError as error:
            raise UnavailableError(f"{subject}: no answer within {seconds:g} s") from error
        except errors.Error as error:
            raise UnavailableError(f"{subject}: {error}") from error
        finally:
            del self._replies[token]
        return _body(subject, answer)

    async def ask_all(self, subject: str, payload: bytes, *, seconds: float, quiet: float) -> list[bytes]:
        """Sends, and returns the bodies of all answers, until none has come for `quiet` seconds, or for `seconds`.

        Raises UnavailableError if the link is lost.
        """
        answers: list[bytes] = []
        came = asyncio.Event()

        async def take(message: Msg) -> None:
            if status(message) != NO_RESPONDERS:
                answers.append(message.data)
                came.set()

        self._count += 1
        inbox = f"{self.inbox}.all.{self._count}"
        subscription = await self.subscribe(inbox, take)
        try:
            await self.send(subject, payload, reply=inbox)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await came.wait()
                    while came.is_set():
                        came.clear()
                        with suppress(TimeoutError):
                            async with asyncio.timeout(quiet):
                                await came.wait()
        finally:
            await self.unsubscribe(subscription)
        self._refuse_if_lost()
        return answers

    async def api(self, verb: str, body: Mapping[str, Any] | None = None, *, seconds: float) -> dict[str, Any]:
        """Calls the JetStream API (`$JS.API.<verb>`), and returns its answer. Raises BusError."""
        payload = b"" if body is None else msgspec.json.encode(body)
        data = await self.request(f"{API}.{verb}", payload, seconds=seconds)
        try:
            answer = msgspec.json.decode(data, type=dict[str, Any])
            error = None if "error" not in answer else msgspec.convert(answer["error"], _Error)
        except msgspec.MsgspecError as unreadable:
            raise UnavailableError(f"{verb}: invalid answer {data[:200]!r}") from unreadable
        if error is not None:
            raise _bus_error(verb, error)
        return answer

    async def publish(
        self, subject: str, payload: bytes, *, seconds: float, headers: Mapping[str, str] | None = None
    ) -> int:
        """Publishes into a stream as `request` does, and returns the stream sequence. Raises as `api` does."""
        return _sequence(subject, await self.request(subject, payload, seconds=seconds, headers=headers))

    async def publish_all(self, messages: Sequence[tuple[str, bytes]], *, seconds: float) -> None:
        """Publishes (subject, payload) into streams, and then waits for all answers: half the cost of single calls.

        Raises as `publish` does, for the first message that failed, after all answers: other messages may be stored.
        """
        for outcome in await self.publish_each([(*each, None) for each in messages], seconds=seconds):
            if isinstance(outcome, BusError):
                raise outcome

    async def publish_each(
        self, messages: Sequence[tuple[str, bytes, Mapping[str, str] | None]], *, seconds: float
    ) -> list[int | BusError]:
        """Publishes (subject, payload, headers) as `publish_all` does, and returns a sequence or an error for each.

        Raises UnavailableError without all answers in time: each message may be stored. Raises RefusedError if a
        message is too large; nothing was sent.
        """
        for subject, payload, _ in messages:
            self._refuse(subject, payload)
        expected: dict[str, tuple[str, asyncio.Future[Msg | BusError]]] = {}
        try:
            async with asyncio.timeout(seconds):
                for subject, payload, headers in messages:
                    await self.wait_writable(seconds)
                    self._refuse_if_lost()  # `_lose` ends only the requests that it knows
                    token, reply = self._expect(subject)
                    expected[token] = (subject, reply)
                    await self._client.publish(
                        subject,
                        payload,
                        reply=f"{self.inbox}.reply.{token}",
                        headers=None if headers is None else dict(headers),
                    )
                answers = [(subject, await reply) for subject, reply in expected.values()]
        except TimeoutError as error:
            unanswered = sum(not reply.done() for _, reply in expected.values())
            raise UnavailableError(
                f"no answer within {seconds:g} s to {unanswered} of {counted(len(messages), 'message')}"
            ) from error
        except errors.Error as error:
            raise UnavailableError(f"{counted(len(messages), 'message')}: {error}") from error
        finally:
            for token in expected:
                del self._replies[token]
        outcomes: list[int | BusError] = []
        for subject, answer in answers:
            try:
                outcomes.append(_sequence(subject, _body(subject, answer)))
            except BusError as error:
                outcomes.append(error)
        return outcomes

    async def subscribe(self, subject: str, handle: Callable[[Msg], Coroutine[Any, Any, None]]) -> Subscription:
        """Awaits `handle` for each message in turn; `handle` must not raise. Raises UnavailableError."""
        self._refuse_if_lost()
        try:
            return await self._client.subscribe(subject, cb=handle)
        except errors.Error as error:
            raise UnavailableError(f"{subject}: {error}") from error

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Ends a subscription; one that has ended is fine."""
        with suppress(errors.Error, OSError):
            await subscription.unsubscribe()

    async def drain(self, subscription: Subscription, *, seconds: float) -> None:
        """Ends a subscription, after `handle` was awaited for all messages that the server has already sent to it.

        Waits at most `seconds`; then the remaining messages are lost, as by `unsubscribe`.
        """
        # A task of its own: `drain` waits with `asyncio.wait_for`, which in Python 3.11 can swallow a cancellation.
        draining = asyncio.ensure_future(subscription.drain())  # type: ignore[no-untyped-call]
        try:
            await asyncio.wait([draining], timeout=seconds)
        finally:
            draining.cancel()
            await asyncio.wait([draining])
            with suppress(errors.Error, OSError, asyncio.CancelledError):
                draining.result()

    def next_beat(self) -> asyncio.Future[None]:
        """Done half a beat from now at the earliest, or when the link is lost: one timer for all who wait together.

        Two beats without a message end a subscription, so they must be longer than a heartbeat apart.
        """
        if self._beat.done() and not self.lost.is_set():
            loop = asyncio.get_running_loop()
            self._beat = loop.create_future()
            loop.call_later(until_tick(loop.time(), BEAT_SECONDS, near=0.5), self._end_beat)
        return self._beat

    def _end_beat(self) -> None:
        if not self._beat.done():
            self._beat.set_result(None)

    async def close(self, seconds: float) -> None:
        """Sends pending data within `seconds`, and closes."""
        if not self.lost.is_set():
            with suppress(errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._client.flush()
            self._lose(errors.ConnectionClosedError())
        await self._client.drop()

    def _check_inbox(self, prefix: str) -> None:
        if self._forbidden_inbox:
            raise errors.Error(f"{self.who} may not subscribe to {prefix}.>, and gets no answer without this inbox")

    async def _on_closed(self) -> None:
        """The client has closed itself: so a link also ends if nats-py no longer calls the methods of `OneLife`."""
        self._lose(errors.ConnectionClosedError())

    def _lose(self, error: Exception) -> None:
        if self.lost.is_set():
            return
        self.why_lost = str(error) or type(error).__name__
        log.debug("bus_link_lost", error=self.why_lost)
        self.lost.set()
        self._end_beat()
        for subject, reply in self._replies.values():
            if not reply.done():
                reply.set_result(UnavailableError(f"{subject}: the connection was lost"))

    @property
    def who(self) -> str:
        """The user, for messages."""
        return self.loaded.user or "this user"

    @property
    def _mend(self) -> str:
        """What mends a missing permission."""
        if self.loaded.name:  # of a closed bus: its rights are those of a role
            return (
                "use the credentials of a user whose role may (tas bus init and tas bus user make them; for Kubernetes "
                "tas bus secrets), or compare the rights on the server by tas bus check: docs/how-to/close-the-bus.md"
            )
        return "give it this permission: docs/how-to/bus-credentials.md, Rights"

    def _forbid(self, violation: str) -> None:
        """Fails the requests that the server rejected; its text is `… for publish to "<subject>"`."""
        found = _VIOLATION.search(violation)
        verb, subject = (found[1], found[2]) if found else ("", "")
        if self._reports.admit((verb, tuple(subject.split(".")[:5])), asyncio.get_running_loop().time()) is not None:
            log.warning("bus_permission_missing", user=self.who, subject=subject or None, error=violation)
        if verb == "subscription":
            self._forbidden_inbox = self._forbidden_inbox or subject.startswith(self.inbox.lower())
            return
        for wanted, reply in self._replies.values():
            if wanted.lower() == subject and not reply.done():
                text = f"{wanted}: {self.who} may not publish to this subject: {self._mend}"
                reply.set_result(ForbiddenError(text, subject=wanted))

    def _expect(self, subject: str) -> tuple[str, "asyncio.Future[Msg | BusError]"]:
        """Registers a request to `subject`; returns its token and the future of the answer."""
        self._count += 1
        token = str(self._count)
        reply: asyncio.Future[Msg | BusError] = asyncio.get_running_loop().create_future()
        self._replies[token] = (subject, reply)
        return token, reply

    def _refuse(self, subject: str, payload: bytes) -> None:
        """Raises UnavailableError if the link is lost, RefusedError if the message is too large."""
        self._refuse_if_lost()
        if len(payload) > self.max_payload:
            raise RefusedError(f"{subject}: {len(payload)} bytes; the server allows at most {self.max_payload}")

    def _refuse_if_lost(self) -> None:
        if self.lost.is_set():
            raise UnavailableError("the connection was lost")

    async def _on_reply(self, message: Msg) -> None:
        _, reply = self._replies.get(message.subject.rpartition(".")[2], ("", None))
        if reply is not None and not reply.done():
            reply.set_result(message)


def status(message: Msg) -> str:
    """The status of a message from the server itself, such as `408`; empty for any other message.

    A message of a stream has a reply subject for its acknowledgement; its headers are the publisher's.
    """
    if message.data or not message.headers or message.reply.startswith(_ACKNOWLEDGED):
        return ""
    return message.headers.get("Status", "")


def _body(subject: str, answer: Msg | BusError) -> bytes:
    """The data of an answer. Raises BusError."""
    if isinstance(answer, BusError):
        raise answer
    if status(answer) == NO_RESPONDERS:
        raise NobodyListensError(
            f"{subject}: nobody listens"
            + (" (is nats-server started with --jetstream?)" if subject.startswith("$JS.") else "")
        )
    return answer.data


def _sequence(subject: str, data: bytes) -> int:
    """The sequence in a stream's answer. Raises BusError."""
    try:
        answer = _publish_answer.decode(data)
    except msgspec.MsgspecError as unreadable:
        raise UnavailableError(f"{subject}: invalid answer {data[:200]!r}") from unreadable
    if answer.error is not None:
        raise _bus_error(subject, answer.error)
    return answer.seq


def _bus_error(what: str, error: _Error) -> BusError:
    return jetstream_error(what, status=error.code, code=error.err_code, description=error.description)


async def _quiet(error: Exception) -> None:
    # `Bus` logs a lost connection once; the client's details are for debugging.
    log.debug("bus_client_error", error=str(error) or type(error).__name__)
