"""A connection to the bus: every call ends in time, and only a live connection is written to."""

import asyncio
import base64
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import structlog

from bus.buckets import ALL, Bucket, Stream
from bus.entry import Entry, Epoch, StreamMessage, is_marker
from bus.errors import (
    MESSAGE_NOT_FOUND,
    BusError,
    ExpiredError,
    MisconfiguredError,
    RefusedError,
    UnavailableError,
)
from bus.feed import Feed
from bus.link import CALL_SECONDS, Link
from bus.streams import ensure

__all__ = ["CALL_SECONDS", "ENTRIES_SECONDS", "WRITE_SECONDS", "Bus", "Entry", "Epoch", "StreamMessage"]

log = structlog.get_logger(__name__)

ENTRIES_SECONDS = 10.0
"""How long reading a whole bucket may take."""

WRITE_SECONDS = 2.0
"""How old the reads of a conditional write may be when it is sent (monotonic seconds)."""

RETRY_SECONDS = (0.02, 0.25)
"""The first and the longest wait between two attempts to connect; each is shortened by up to a half at random.

Short, because the few processes of one cluster harm no server by it, and all that they know grows old meanwhile.
"""

STEADY_SECONDS = 1.0
"""A connection that was lost sooner is followed by the longest wait: its server takes nobody in, or not us."""

PROBLEM_SECONDS = 5.0
"""How long until streams that could not be created, or are not as needed, are looked at again."""

CLOSE_SECONDS = 1.0
"""How long acknowledgements and the like may still take to be sent on closing."""

T = TypeVar("T")

_KEY = re.compile(r"[A-Za-z0-9_=/-]+(\.[A-Za-z0-9_=/-]+)*")
_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")


class Bus:
    """One connection. Safe for concurrent use within its event loop."""

    def __init__(self, url: str, *, name: str, streams: Sequence[Stream | Bucket], replicas: int) -> None:
        self.name = name
        self._consumer_prefix = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        self._inbox_prefix = f"_INBOX_{self._consumer_prefix}"
        self._servers = _servers(url)
        self._trouble = "not tried yet"
        self._leaving = False
        self._shown = ",".join(_without_password(server) for server in self._servers)
        self._streams = streams
        self._replicas = replicas
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._look = asyncio.Event()
        self._problems: dict[str, BusError] = {}

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str, *, name: str, streams: Sequence[Stream | Bucket] = ALL, replicas: int = 1
    ) -> AsyncIterator["Bus"]:
        """Connects, and goes on trying in the background for ever; on leaving, closes.

        Returns at once even if no server is there; every connect (the first and each re-connect) creates the missing
        streams and buckets first, as far as that is possible. `url` may name several servers of a cluster, separated
        by commas. `name` is shown by the server, and replies come to inboxes under `_INBOX_<name>` (n40). `replicas`
        counts the copies of each stream that is created: 3 in a cluster of three servers.

        Raises:
            MisconfiguredError: if `url` is no address of a server.
        """
        bus = cls(url, name=name, streams=streams, replicas=replicas)
        task = asyncio.create_task(bus._stay_connected(), name=f"bus {name}")
        try:
            yield bus
        finally:
            bus._leaving = True
            while not task.done():  # `asyncio.wait_for` of Python 3.11 swallows a request to end that meets a result
                task.cancel()
                await asyncio.wait([task], timeout=2 * CLOSE_SECONDS)

    @property
    def address(self) -> str:
        """Where it leads to, as it may be shown: without a password."""
        return self._shown

    @property
    def trouble(self) -> str:
        """Why the last attempt to connect was in vain; empty while connected."""
        return "" if self.connected else self._trouble

    @property
    def connected(self) -> bool:
        """Whether calls have a chance now."""
        return self._up.is_set()

    @property
    def problem(self) -> BusError | None:
        """What is wrong with the streams and consumers as they stand, or None. Everything else goes on working."""
        return next(iter(self._problems.values()), None)

    async def wait_connected(self) -> None:
        """Waits, for ever if need be, until calls have a chance."""
        await self._up.wait()

    async def publish(self, stream: Stream, subject: str, payload: bytes) -> int:
        """Publishes and returns the stream sequence. Raises UnavailableError, RefusedError."""
        _check_message(stream, subject, payload)
        link, seconds = await self._writable()
        return await self._checked(link.publish(subject, payload, seconds=seconds))

    async def publish_all(self, stream: Stream, messages: Sequence[tuple[str, bytes]]) -> None:
        """Publishes a few hundred messages (subject, payload) in one call, all of them on their way together.

        Raises as `publish` does: if one cannot be sent before any is, and if one was not taken after all were sent.
        """
        for subject, payload in messages:
            _check_message(stream, subject, payload)
        link, seconds = await self._writable()
        await self._checked(link.publish_all(messages, seconds=seconds))

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, revision: int, read_at: float, ttl_seconds: int = 0
    ) -> int:
        """Writes if the key's last revision is still `revision` (0: the key never was), and returns the new one.

        `read_at` is the monotonic time of the reads behind the value: after `WRITE_SECONDS` nothing is sent.
        `ttl_seconds` lets the key expire, in a bucket that allows it.

        Raises:
            ConflictError, ExpiredError, UnavailableError, RefusedError.
        """
        headers = {"Nats-TTL": str(ttl_seconds)} if ttl_seconds else {}
        return await self._write(bucket, key, value, headers, revision=revision, read_at=read_at)

    async def delete(self, bucket: Bucket, key: str, *, revision: int, read_at: float) -> int:
        """Deletes on the same condition as `put`, leaving a marker that watchers see."""
        return await self._write(bucket, key, b"", {"KV-Operation": "DEL"}, revision=revision, read_at=read_at)

    async def get(self, bucket: Bucket, key: str) -> Entry | None:
        """The key's last entry from the stream's leader (never a direct get), markers included.

        None if it never was, or nothing is left of it. Raises UnavailableError, RefusedError.
        """
        _check_key(bucket, key)
        try:
            answer = await self.api(f"STREAM.MSG.GET.{bucket.stream}", {"last_by_subj": bucket.subject(key)})
        except RefusedError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            raise
        return _entry(bucket, answer["message"])

    async def last_messages(self, stream: Stream, subject: str) -> list[StreamMessage]:
        """The last message of each subject of a stream that `subject` (wildcards are fine) matches, by subject.

        Raises UnavailableError, RefusedError.
        """
        answer = await self.api(f"STREAM.INFO.{stream.stream}", {"subjects_filter": subject})
        found: list[StreamMessage] = []
        for each in sorted(answer["state"].get("subjects") or ()):
            try:
                last = await self.api(f"STREAM.MSG.GET.{stream.stream}", {"last_by_subj": each})
            except RefusedError as error:
                if error.code == MESSAGE_NOT_FOUND:  # it has grown too old meanwhile
                    continue
                raise
            found.append(_stream_message(last["message"]))
        return found

    async def entries(self, bucket: Bucket) -> list[Entry]:
        """All live entries of a bucket, complete as of some moment of the call, in the order of their revisions.

        Raises UnavailableError, at the latest after `ENTRIES_SECONDS`.
        """
        latest: dict[str, Entry] = {}

        def take(entry: Entry) -> None:
            latest[entry.key] = entry

        try:
            async with asyncio.timeout(ENTRIES_SECONDS):
                feed = await self.feed(bucket)
                try:
                    await feed.release(take)
                    await feed.caught_up()
                finally:
                    await feed.close()
        except TimeoutError as error:
            raise UnavailableError(f"{bucket.name}: not read within {ENTRIES_SECONDS:g} s") from error
        return sorted((entry for entry in latest.values() if entry.value is not None), key=lambda each: each.revision)

    async def epoch(self, of: Stream | Bucket) -> Epoch:
        """The present life of a stream. Raises UnavailableError."""
        answer = await self.api(f"STREAM.INFO.{of.stream}")
        return Epoch(created=answer["created"], last_sequence=answer["state"]["last_seq"])

    @property
    def link(self) -> Link:
        """The present connection, for the modules of this package. Raises UnavailableError if there is none."""
        if self._link is None or not self._up.is_set():
            raise UnavailableError(f"not connected to {self._shown}")
        return self._link

    async def api(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One call of the JetStream API, within `CALL_SECONDS`, for the modules of this package."""
        return await self._checked(self.link.api(verb, body, seconds=CALL_SECONDS))

    def report(self, what: str, problem: BusError | None) -> None:
        """What is wrong with one thing of this bus, or that nothing is any more, for the modules of this package."""
        if problem is None:
            self._problems.pop(what, None)
        elif str(self._problems.get(what)) != str(problem):
            self._problems[what] = problem
            level = logging.WARNING if isinstance(problem, UnavailableError) else logging.ERROR
            log.log(level, "bus_problem", connection=self.name, bus=self._shown, error=str(problem))

    async def feed(
        self, bucket: Bucket, *, keys: str = ">", after: Callable[[Epoch], int | None] | None = None
    ) -> Feed:
        """An attachment to a bucket, as `Feed.open` says, for the modules of this package."""
        return await self._checked(Feed.open(self.link, bucket, name=self._consumer_prefix, keys=keys, after=after))

    async def last_revision(self, bucket: Bucket, keys: str) -> int:
        """The last revision of any key that `keys` (with wildcards) names, 0 if there is none. Raises as `get` does."""
        try:
            answer = await self.api(f"STREAM.MSG.GET.{bucket.stream}", {"last_by_subj": bucket.subject(keys)})
        except RefusedError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return 0
            raise
        revision: int = answer["message"]["seq"]
        return revision

    async def _write(
        self, bucket: Bucket, key: str, value: bytes, headers: dict[str, str], *, revision: int, read_at: float
    ) -> int:
        _check_key(bucket, key)
        link, seconds = await self._writable()
        headers["Nats-Expected-Last-Subject-Sequence"] = str(revision)
        # From here to the sending nothing gives way, so the age that is checked is the age that is sent.
        age = time.monotonic() - read_at
        if age > WRITE_SECONDS:
            raise ExpiredError(f"{bucket.name}/{key}: read {age:.1f} s ago")
        return await self._checked(link.publish(bucket.subject(key), value, headers=headers, seconds=seconds))

    async def _writable(self) -> tuple[Link, float]:
        """A connection that takes data, and the seconds that a call has left. Raises UnavailableError."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        link = self.link
        await link.room(CALL_SECONDS)
        return link, CALL_SECONDS - (loop.time() - began)

    async def _checked(self, call: Coroutine[Any, Any, T]) -> T:
        """The call's result; if it was in vain, perhaps because a stream is gone, the streams are looked at again."""
        try:
            return await call
        except UnavailableError:
            self._look.set()
            raise

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._leaving:
            try:
                link = await self._open()
                began = loop.time()
                await self._use(link)
                if loop.time() - began < STEADY_SECONDS:
                    await asyncio.sleep(RETRY_SECONDS[1])
            except Exception as error:  # a bug here must neither leave everybody without a bus nor stay unseen
                log.exception("bus_bug", connection=self.name, bus=self._shown)
                self.report("connection", MisconfiguredError(f"a bug, see the log: {error!r}"))
                await asyncio.sleep(PROBLEM_SECONDS)

    async def _use(self, link: Link) -> None:
        """Lets everybody use a connection until it is lost."""
        try:
            if not self._leaving:
                await self._serve(link)
            if self._up.is_set():
                log.warning("bus_disconnected", connection=self.name, bus=self._shown)
        finally:
            self._link = None
            self._up.clear()
            await link.close(CLOSE_SECONDS)

    async def _open(self) -> Link:
        """The next connection, however long it takes."""
        wait, longest = RETRY_SECONDS
        told = False
        while True:
            try:
                return await Link.open(self._servers, name=self.name, inbox_prefix=self._inbox_prefix)
            except UnavailableError as error:
                self._trouble = str(error)
                if not told:
                    log.warning("bus_unreachable", connection=self.name, bus=self._shown, error=str(error))
                    told = True
            await asyncio.sleep(wait * random.uniform(0.5, 1))  # noqa: S311 - only spreads the attempts
            wait = min(2 * wait, longest)

    async def _serve(self, link: Link) -> None:
        """Keeps the streams in being until the link is lost."""
        wait, longest = RETRY_SECONDS
        while not link.lost.is_set():
            self._look.clear()
            standing = await ensure(link, self._streams, replicas=self._replicas, seconds=CALL_SECONDS)
            if link.lost.is_set():
                break
            self.report("connection", None)
            self.report("streams", standing.problem)
            if standing.usable and not self._up.is_set():
                self._link = link
                self._up.set()
                log.info("bus_connected", connection=self.name, bus=self._shown)
            if isinstance(standing.problem, UnavailableError):
                wait = min(2 * wait, longest)
                pause: float | None = wait
            else:
                wait, _ = RETRY_SECONDS
                pause = PROBLEM_SECONDS if standing.problem is not None else None
            await _either(link.lost, self._look, seconds=pause)


async def _either(first: asyncio.Event, second: asyncio.Event, *, seconds: float | None) -> None:
    """Waits until one of two events is set, at most so long."""
    tasks = [asyncio.create_task(event.wait()) for event in (first, second)]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _servers(url: str) -> list[str]:
    """The single addresses of `url`."""
    servers = [server.strip() for server in url.split(",")]
    for server in servers:
        try:
            parts = urlsplit(server if "://" in server else f"nats://{server}")
            valid = parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise MisconfiguredError(f"{_without_password(server)!r} is no address such as nats://127.0.0.1:4222")
    return servers


def _without_password(server: str) -> str:
    """The address as it may be shown."""
    scheme, separator, rest = server.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _check_message(stream: Stream, subject: str, payload: bytes) -> None:
    if not _SUBJECT.fullmatch(subject):
        raise RefusedError(f"{subject!r} is no subject to publish to")
    if stream.max_message_bytes and len(payload) > stream.max_message_bytes:
        raise RefusedError(f"{subject}: {len(payload)} bytes, and {stream.name} takes {stream.max_message_bytes}")


def _check_key(bucket: Bucket, key: str) -> None:
    if not _KEY.fullmatch(key):
        raise RefusedError(f"{key!r} is no key of {bucket.name}")


def _stream_message(message: dict[str, Any]) -> StreamMessage:
    """The message in an answer of `STREAM.MSG.GET`."""
    return StreamMessage(
        subject=message["subject"],
        data=base64.b64decode(message.get("data", "")),
        sequence=message["seq"],
        arrived=datetime.fromisoformat(message["time"]).timestamp(),
    )


def _entry(bucket: Bucket, message: dict[str, Any]) -> Entry:
    """The entry in an answer of `STREAM.MSG.GET`."""
    lines = base64.b64decode(message.get("hdrs", "")).decode(errors="replace").split("\r\n")
    headers = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Entry(
        key=bucket.key(message["subject"]),
        value=None if is_marker(headers) else base64.b64decode(message.get("data", "")),
        revision=message["seq"],
        created=datetime.fromisoformat(message["time"]).timestamp(),
    )
