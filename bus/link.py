"""One connection to a server: it lives until it is lost, and never comes back.

`bus.connection.Bus` opens the next one. So nothing of an old connection, no pending write and no subscription, ever
reaches a server late or twice.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus.errors import BusError, NobodyListensError, RefusedError, UnavailableError, jetstream_error

log = structlog.get_logger(__name__)

CALL_SECONDS = 2.0
"""How long one call may take before it is Unavailable."""

CONNECT_SECONDS = 3.0
"""How long connecting may take, from the TCP handshake to the first answer."""

PING_SECONDS = 1
UNANSWERED_PINGS = 2
"""A server that leaves this many pings unanswered is lost: one that hangs is noticed within 3 s."""

HEADER_BYTES = 1024
"""Room left for headers in the server's `max_payload`, which counts them too."""

MAX_PENDING_BYTES = 1 << 20
"""Above this much unsent data a writer waits, so that nothing stays behind in memory when a server hangs."""

_ACKNOWLEDGED = "$JS.ACK."

NO_RESPONDERS = "503"
"""The status with which the server answers what nobody listens to."""


class _OneLife(Client):
    """nats-py's client, stripped of what it does by itself after an error.

    nats-py 2.16 re-connects and then sends what was pending, so that a conditional write can go out long after its
    reads; and it closes for good after errors such as a server's shutdown notice. Here every error is just told.
    """

    def __init__(self, on_lost: Callable[[Exception], None], on_forbidden: Callable[[str], None]) -> None:
        super().__init__()
        self._on_lost = on_lost
        self._on_forbidden = on_forbidden

    async def _process_op_err(self, e: Exception) -> None:
        self._on_lost(e)

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg:  # of one subject: the connection goes on
            self._on_forbidden(err_msg)
        else:
            self._on_lost(nats.errors.Error(f"nats: {err_msg}"))

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """What nobody can read is as good as no headers: who publishes may write any bytes there."""
        try:
            return await super()._process_headers(headers)
        except (ValueError, IndexError):  # would end the reading of everything else
            return None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Any:
        """Who publishes may use any bytes as a subject, too: such names nothing of ours, and is refused as a name."""
        try:
            return super()._build_message(sid, subject, reply, data, headers)
        except UnicodeDecodeError:
            return super()._build_message(sid, subject.decode(errors="replace").encode(), reply, data, headers)

    async def drop(self) -> None:
        """Closes at once. What was not sent is thrown away: a server that hangs must not find it later."""
        self._pending.clear()
        self._pending_data_size = 0
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        if self._flush_queue is not None:  # otherwise it never began to connect
            with suppress(OSError, nats.errors.Error):
                await self.close()


class Delivery(NamedTuple):
    """What JetStream says of a message that a consumer delivers, in the subject of its acknowledgement (ADR-15).

    `place` counts this consumer's deliveries without a gap; `pending` is how many more wait for it in the stream.
    """

    deliveries: int
    sequence: int
    place: int
    nanoseconds: int
    pending: int

    @classmethod
    def of(cls, reply: str) -> "Delivery":
        """Reads `$JS.ACK.<stream>.<consumer>.<these five>`, and the longer form with domain and account before."""
        tokens = reply.split(".")
        first = 4 if len(tokens) == 9 else 6
        return cls(*map(int, tokens[first : first + 5]))


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _PublishAnswer(msgspec.Struct):
    seq: int = 0
    error: _Error | None = None


_publish_answer = msgspec.json.Decoder(_PublishAnswer)


class Link:
    """A connection in use. Every call ends within the seconds it is given, and at once when the link is lost."""

    def __init__(self, inbox: str) -> None:
        self.lost = asyncio.Event()
        self.inbox = inbox
        self._client = _OneLife(self._lose, self._forbid)
        # By token: the subject that was asked, and where the answer, or why there is none, is waited for.
        self._replies: dict[str, tuple[str, asyncio.Future[Msg | BusError]]] = {}
        self._count = 0

    @classmethod
    async def open(cls, servers: Sequence[str], *, name: str, inbox_prefix: str) -> "Link":
        """Connects to one of `servers`. Raises UnavailableError within `CONNECT_SECONDS`."""
        link = cls("")
        client = link._client
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.connect(
                    list(servers),
                    name=name,
                    error_cb=_quiet,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    pending_size=0,
                    ping_interval=PING_SECONDS,
                    max_outstanding_pings=UNANSWERED_PINGS,
                    inbox_prefix=inbox_prefix,
                )
                link.inbox = client.new_inbox()
                await link.subscribe(f"{link.inbox}.reply.*", link._on_reply)
        except (OSError, TimeoutError, nats.errors.Error) as error:
            await client.drop()
            raise UnavailableError(f"no connection: {error or type(error).__name__}") from error
        except BaseException:
            await client.drop()
            raise
        return link

    @property
    def max_payload(self) -> int:
        """Bytes that a message may hold on this server, headers aside."""
        return self._client.max_payload - HEADER_BYTES

    async def room(self, seconds: float) -> None:
        """Waits until the link takes more data. Raises UnavailableError."""
        if self._client.pending_data_size <= MAX_PENDING_BYTES:
            return
        try:
            async with asyncio.timeout(seconds):
                while self._client.pending_data_size > MAX_PENDING_BYTES and not self.lost.is_set():  # noqa: ASYNC110
                    # The client tells nobody when it has sent something.
                    await asyncio.sleep(0.001)
        except TimeoutError as error:
            raise UnavailableError("the server takes no more data") from error

    async def send(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        """Sends without waiting for an answer. Raises UnavailableError if the link is known to be lost."""
        self._refuse_if_lost()
        try:
            await self._client.publish(subject, payload, reply)
        except nats.errors.Error as error:
            raise UnavailableError(f"{subject}: {error}") from error

    async def request(
        self, subject: str, payload: bytes, *, seconds: float, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Sends, and returns the answer's body.

        The message is handed over before this coroutine first gives way to others: a condition checked directly before
        awaiting it still holds.

        Raises:
            UnavailableError: if nobody answers in time, or nobody listens.
            RefusedError: if the message is too large, or the right to send it is missing; nothing was sent.
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
        except nats.errors.Error as error:
            raise UnavailableError(f"{subject}: {error}") from error
        finally:
            del self._replies[token]
        return _body(subject, answer)

    async def api(self, verb: str, body: Mapping[str, Any] | None = None, *, seconds: float) -> dict[str, Any]:
        """Asks the JetStream API (`$JS.API.<verb>`), and returns its answer. Raises BusErrors as the answer means."""
        payload = b"" if body is None else msgspec.json.encode(body)
        data = await self.request(f"$JS.API.{verb}", payload, seconds=seconds)
        try:
            answer = msgspec.json.decode(data, type=dict[str, Any])
            error = None if "error" not in answer else msgspec.convert(answer["error"], _Error)
        except msgspec.MsgspecError as unreadable:
            raise UnavailableError(f"{verb}: unreadable answer {data[:200]!r}") from unreadable
        if error is not None:
            raise _meaning(verb, error)
        return answer

    async def publish(
        self, subject: str, payload: bytes, *, seconds: float, headers: Mapping[str, str] | None = None
    ) -> int:
        """Publishes into a stream, and returns the sequence there. Sent as `request` sends; raises as `api` does."""
        return _sequence(subject, await self.request(subject, payload, seconds=seconds, headers=headers))

    async def publish_all(self, messages: Sequence[tuple[str, bytes]], *, seconds: float) -> None:
        """Publishes (subject, payload) into streams, all on their way together: at half the cost of each alone.

        Raises as `publish` does, for the first that was not taken, after all have got their answer: others may have
        been taken.
        """
        for subject, payload in messages:
            self._refuse(subject, payload)
        expected: dict[str, tuple[str, asyncio.Future[Msg | BusError]]] = {}
        try:
            async with asyncio.timeout(seconds):
                for subject, payload in messages:
                    await self.room(seconds)
                    self._refuse_if_lost()  # while it waited: what is expected from now on would wait in vain
                    token, reply = self._expect(subject)
                    expected[token] = (subject, reply)
                    await self._client.publish(subject, payload, reply=f"{self.inbox}.reply.{token}")
                answers = [(subject, await reply) for subject, reply in expected.values()]
        except TimeoutError as error:
            unanswered = sum(not reply.done() for _, reply in expected.values())
            raise UnavailableError(
                f"no answer within {seconds:g} s to {unanswered} of {len(messages)} messages"
            ) from error
        except nats.errors.Error as error:
            raise UnavailableError(f"{len(messages)} messages: {error}") from error
        finally:
            for token in expected:
                del self._replies[token]
        for subject, answer in answers:
            _sequence(subject, _body(subject, answer))

    async def subscribe(self, subject: str, handle: Callable[[Msg], Coroutine[Any, Any, None]]) -> Subscription:
        """Awaits `handle`, which must not raise, for one message after the other. Raises UnavailableError."""
        self._refuse_if_lost()
        try:
            return await self._client.subscribe(subject, cb=handle)
        except nats.errors.Error as error:
            raise UnavailableError(f"{subject}: {error}") from error

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Ends a subscription, if it has not ended already."""
        with suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()

    async def close(self, seconds: float) -> None:
        """Sends what is pending, if that works within `seconds`, and closes."""
        if not self.lost.is_set():
            with suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._client.flush()
            self._lose(nats.errors.ConnectionClosedError())
        await self._client.drop()

    def _lose(self, error: Exception) -> None:
        if self.lost.is_set():
            return
        log.debug("bus_link_lost", error=str(error) or type(error).__name__)
        self.lost.set()
        for subject, reply in self._replies.values():
            if not reply.done():
                reply.set_result(UnavailableError(f"{subject}: the connection was lost"))

    def _forbid(self, violation: str) -> None:
        """Ends the requests that the server says may not be sent; its words are `… for publish to "<subject>"`."""
        log.warning("bus_permission_missing", error=violation)
        for subject, reply in self._replies.values():
            if f'publish to "{subject.lower()}"' in violation and not reply.done():
                reply.set_result(RefusedError(f"{subject}: the right to publish there is missing"))

    def _expect(self, subject: str) -> tuple[str, "asyncio.Future[Msg | BusError]"]:
        """The token under which an answer from `subject` is waited for from now on, and the answer to come."""
        self._count += 1
        token = str(self._count)
        reply: asyncio.Future[Msg | BusError] = asyncio.get_running_loop().create_future()
        self._replies[token] = (subject, reply)
        return token, reply

    def _refuse(self, subject: str, payload: bytes) -> None:
        """Raises as a request does that is not even sent."""
        self._refuse_if_lost()
        if len(payload) > self.max_payload:
            raise RefusedError(f"{subject}: {len(payload)} bytes, and the server takes at most {self.max_payload}")

    def _refuse_if_lost(self) -> None:
        if self.lost.is_set():
            raise UnavailableError("the connection was lost")

    async def _on_reply(self, message: Msg) -> None:
        _, reply = self._replies.get(message.subject.rpartition(".")[2], ("", None))
        if reply is not None and not reply.done():
            reply.set_result(message)


def status(message: Msg) -> str:
    """The status of a message that the server itself sends, such as `408`; empty for any other.

    What a stream holds has a place where it is acknowledged, and says nothing of the server, whatever its headers are.
    """
    if message.data or not message.headers or message.reply.startswith(_ACKNOWLEDGED):
        return ""
    return message.headers.get("Status", "")


def _body(subject: str, answer: Msg | BusError) -> bytes:
    """What an answer holds. Raises the BusError that it is or means."""
    if isinstance(answer, BusError):
        raise answer
    if status(answer) == NO_RESPONDERS:
        raise NobodyListensError(
            f"{subject}: nobody listens"
            + (" (is nats-server started with --jetstream?)" if subject.startswith("$JS.") else "")
        )
    return answer.data


def _sequence(subject: str, data: bytes) -> int:
    """The sequence that a stream's answer tells. Raises BusErrors as the answer means."""
    try:
        answer = _publish_answer.decode(data)
    except msgspec.MsgspecError as unreadable:
        raise UnavailableError(f"{subject}: unreadable answer {data[:200]!r}") from unreadable
    if answer.error is not None:
        raise _meaning(subject, answer.error)
    return answer.seq


def _meaning(what: str, error: _Error) -> BusError:
    return jetstream_error(what, status=error.code, code=error.err_code, description=error.description)


async def _quiet(error: Exception) -> None:
    # Losing a connection is told once, by the Bus; the client's own account of it helps only its developers.
    log.debug("bus_client_error", error=str(error) or type(error).__name__)
