"""A connection to the bus: every call has a time limit, and nothing is queued while the connection is lost.

It carries bytes. Other packages read and write records by their kinds (`bus.kinds`).
"""

import asyncio
import base64
import itertools
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

import structlog

from bus import consumers
from bus.asking import ask_each
from bus.buckets import ALL, HEADER_BYTES, Bucket, Stream
from bus.entry import EXPECTED_REVISION, Epoch, RawEntry, StreamMessage, is_tombstone, replaced_revision
from bus.errors import (
    FULL_MEND,
    MESSAGE_NOT_FOUND,
    STORE_FULL_MEND,
    STREAM_FULL,
    AccessError,
    BusError,
    CrowdedError,
    ExpiredError,
    ForbiddenError,
    FullError,
    MisconfiguredError,
    NoMajorityError,
    NoPlaceError,
    RefusedError,
    SlowError,
    UnavailableError,
    none_if,
)
from bus.feed import Feed
from bus.invalid import InvalidEntries, OnInvalid
from bus.link import CALL_SECONDS, Link
from bus.rights.access import Access, Loaded, refusal
from bus.rights.roles import INBOX
from bus.streams import ensure, has_majority
from tas.values.backoff import Backoff

if TYPE_CHECKING:
    from bus.bucket_feed import BucketFeed

__all__ = ["CALL_SECONDS", "ENTRIES_SECONDS", "WRITE_SECONDS", "Bus", "Epoch", "RawEntry", "StreamMessage"]

log = structlog.get_logger(__name__)

ENTRIES_SECONDS = 10.0
"""How long reading a whole bucket may go on without another entry."""

KEYS_SECONDS = 10.0
"""How long the answer with the keys of a bucket may take: a busy server may need seconds for 90,000 keys."""

KEYS_AT_ONCE = 8
"""So many patterns of keys are asked for together: the answer to one may have 100,000 keys."""

WRITE_SECONDS = 2.0
"""How old the reads of a conditional write may be when it is sent (monotonic seconds)."""

RETRY = Backoff(first=0.02, longest=0.25)
"""The waits between attempts to connect.

Short, because a cluster has few processes, and their data becomes stale without a connection.
"""

STABLE_SECONDS = 1.0
"""If a connection is lost sooner, the next attempt waits the longest time: the server probably rejects connections."""

STREAMS = "streams"
"""The key of the problem that the check of the streams has found."""

FULL_SECONDS = 60.0
"""How long a bucket counts as full after it has refused a write: others may succeed, and a retry may take long.

And a stream as one without a place after it has refused a consumer: who still needs one tries again within seconds.
And so long a stream or bucket counts as one to which this user may not write.
"""

RECHECK_SECONDS = 5.0
"""After this time, streams that could not be created or have wrong settings are checked again."""

LOOK_SECONDS = 5.0
"""How often an idle connection to a cluster asks for one of its streams, each in turn.

A server that has lost the majority of its cluster keeps its connections: only a question shows that no stream answers.
"""

MAJORITY_SECONDS = 1.0
"""How often a process looks whether its streams have a majority of their copies again."""

KEEPER_SECONDS = 1.0
"""How often a process looks whether the keeper has created the missing streams, which it may not create itself."""

REASON_SECONDS = 10.0
"""How often at most the log has another reason why no connection comes about."""

REFUSED_SECONDS = 30.0
"""How often the same changed credentials are tried again: the server may have refused them for a while only."""

CREDENTIALS = "credentials"
"""The name of the problem that changed files of credentials cannot be used."""

FOLLOW_SECONDS = 1.0
"""How often the files of credentials are read. Polling also works for mounted secrets and replaced links."""

CLOSE_SECONDS = 1.0
"""How long closing may take to send pending data, such as acknowledgements."""

T = TypeVar("T")

DEFAULT_VALUE_BYTES = (1 << 20) - HEADER_BYTES
"""The most bytes of a value of a bucket on a server with the default `max_payload`."""

_KEY = re.compile(r"[A-Za-z0-9_=/-]+(\.[A-Za-z0-9_=/-]+)*")
_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")


class Bus:
    """One connection. Safe for concurrent use within its event loop.

    Attributes:
        max_value_bytes: The most bytes of a value of a bucket, by the server of the last connection.
        bucket_feeds: What all watches of a bucket over this connection share, by bucket.
        backlogs: By stream, how many messages wait for a shared consumer, by its last delivery.
        leases: The names of the leases that this connection holds.
        readers: The connection over which watches and readers of whole streams get their bytes: this one, unless the
            process has another one for them.
    """

    def __init__(
        self, url: str, *, name: str, streams: Sequence[Stream | Bucket], replicas: int, access: Access | None = None
    ) -> None:
        self.name = name
        self._access = access or Access()
        self.on_invalid: OnInvalid = InvalidEntries()
        self._consumer_prefix = _token(name)
        self._servers = _servers(url)
        self._last_error = "not tried yet"
        self._is_slow = True
        self._closing = False
        self.max_value_bytes = DEFAULT_VALUE_BYTES
        self.address = ",".join(_without_password(server) for server in self._servers)
        self._streams = streams
        self._replicas = replicas
        self._link: Link | None = None
        self._expires: Mapping[str, float] = {}
        self._next: Link | None = None  # with new credentials, to follow the current one
        self._connected = asyncio.Event()
        self._recheck = asyncio.Event()
        self._problems: dict[str, BusError] = {}
        self._until: dict[str, float] = {}
        self._refused: Mapping[str, str] = {}
        self._checked_again = asyncio.Event()
        self.bucket_feeds: dict[Bucket, BucketFeed] = {}
        self.backlogs: dict[str, int] = {}
        self.leases: set[str] = set()
        self.readers = self

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        name: str,
        streams: Sequence[Stream | Bucket] = ALL,
        replicas: int = 1,
        on_invalid: OnInvalid | None = None,
        access: Access | None = None,
    ) -> AsyncIterator["Bus"]:
        """Gives a connection that connects and reconnects in the background, and closes it on exit.

        Returns at once, even if no server answers. Each connect first creates missing streams and buckets.

        Args:
            url: One or more servers of a cluster, separated by commas.
            name: Shown by the server; replies come to inboxes under `_INBOX_<name>` (facts.md n40), or with
                credentials under `_INBOX.<user>`.
            streams: The streams and buckets to create.
            replicas: The number of copies of each created stream: 3 in a cluster of three servers.
            on_invalid: Called with bucket, key and error of each entry that cannot be decoded. Default: log it.
            access: The files with credentials and certificates. When they change, a new connection is opened with
                them; the old one is closed only when the new one is accepted.
        Raises MisconfiguredError if `url` is not the address of a server.
        """
        bus = cls(url, name=name, streams=streams, replicas=replicas, access=access)
        bus.on_invalid = on_invalid or bus.on_invalid
        task = asyncio.create_task(bus._stay_connected(), name=f"bus {name}")
        try:
            yield bus
        finally:
            bus._closing = True
            while not task.done():  # `asyncio.wait_for` of Python 3.11 can lose a cancellation
                task.cancel()
                await asyncio.wait([task], timeout=2 * CLOSE_SECONDS)
            if bus._next is not None:
                await bus._next.close(CLOSE_SECONDS)

    @property
    def last_error(self) -> str:
        """Why the last attempt to connect failed; empty while connected."""
        return "" if self.connected else self._last_error

    @property
    def is_slow(self) -> bool:
        """Whether nobody has refused a connection yet: the last attempt ran out of time, or the first one goes on."""
        return not self.connected and self._is_slow

    @property
    def connected(self) -> bool:
        """Whether a server is connected now."""
        return self._connected.is_set()

    @property
    def expires(self) -> Mapping[str, float]:
        """When the credentials (`bus`) and the certificate (`bus-cert`) of the connection expire (seconds since 1970).

        Without what never does. Without a connection, those of the last one.
        """
        return self._expires

    @property
    def credentials_expire(self) -> float:
        """When the first of them expires; infinite if none does."""
        return min(self._expires.values(), default=inf)

    @property
    def problem(self) -> BusError | None:
        """What is wrong with a stream, a consumer, a lease or new credentials, or which writes are refused, or None.

        All else continues to work.
        """
        return next(iter(self._standing()), None)

    @property
    def streams_problem(self) -> BusError | None:
        """What was wrong with the streams of this connection at their last check, or None."""
        return self._problems.get(STREAMS)

    @property
    def unavailable(self) -> bool:
        """Whether a stream or a consumer gave no answer: for example, most servers of the cluster do not run."""
        return any(isinstance(problem, UnavailableError) for problem in self._standing())

    @property
    def refusing(self) -> bool:
        """Whether the bus refuses a stream, a consumer, a lease, a write or new credentials.

        Also, whether a stream has other settings.
        """
        return any(not isinstance(problem, UnavailableError) for problem in self._standing())

    @property
    def lag(self) -> dict[str, int]:
        """By how many messages what is read over this connection is behind, by stream or bucket, as far as known."""
        followed = {bucket.name: feed.lag for bucket, feed in self.bucket_feeds.items() if feed.began}
        return self.backlogs | {name: lag for name, lag in followed.items() if lag is not None}

    async def wait_connected(self) -> None:
        """Waits until a server is connected, without a time limit."""
        await self._connected.wait()

    def refused(self, of: Stream | Bucket) -> str | None:
        """Why a stream of this connection cannot be had, by its last check, which is repeated; None if it can.

        It is missing and cannot be created, or this user may not look at it.
        """
        return self._refused.get(of.stream)

    async def wait_usable(self, stream: str) -> None:
        """Waits until a server is connected and does not refuse the stream of this name, without a time limit.

        So who reads a stream that the server refuses asks no more often than the streams are checked.
        """
        await self.wait_connected()
        while stream in self._refused:
            await self._checked_again.wait()
            await self.wait_connected()

    async def publish(self, stream: Stream, subject: str, payload: bytes) -> int:
        """Publishes and returns the stream sequence. Raises UnavailableError, RefusedError."""
        _check_message(stream, subject, payload)
        link, seconds = await self._writable()
        with self._writes_to(stream, (subject,)):
            return await self._checked(link.publish(subject, payload, seconds=seconds))

    async def publish_all(self, stream: Stream, messages: Sequence[tuple[str, bytes]]) -> None:
        """Publishes up to a few hundred messages (subject, payload), without waiting for each answer.

        Raises as `publish` does. An invalid message prevents all; after a rejection by the server all others were sent.
        """
        for subject, payload in messages:
            _check_message(stream, subject, payload)
        link, seconds = await self._writable()
        with self._writes_to(stream, (subject for subject, _ in messages)):
            await self._checked(link.publish_all(messages, seconds=seconds))

    async def publish_each(
        self, stream: Stream, messages: Sequence[tuple[str, bytes, Mapping[str, str]]]
    ) -> list[int | BusError]:
        """Publishes up to a few hundred messages (subject, payload, headers), each with a sequence or an error.

        Raises UnavailableError if some answers are missing: each message may be stored. Raises RefusedError if a
        message is invalid; nothing was sent.
        """
        for subject, payload, _ in messages:
            _check_message(stream, subject, payload)
        link, seconds = await self._writable()
        outcomes = await self._checked(link.publish_each(messages, seconds=seconds))
        for outcome in outcomes:
            if isinstance(outcome, ForbiddenError):
                self._note_forbidden(stream, outcome)
        pairs = zip(messages, outcomes, strict=True)
        self._note_written(stream, (subject for (subject, _, _), outcome in pairs if isinstance(outcome, int)))
        return outcomes

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, revision: int, read_at: float, ttl_seconds: int = 0
    ) -> int:
        """Writes if the key's last revision is still `revision` (0: no such key), and returns the new revision.

        `read_at` is the monotonic time of the oldest read behind the value; older than `WRITE_SECONDS`, nothing is
        sent. `ttl_seconds` lets the key expire, in a bucket that allows it.
        Raises ConflictError, ExpiredError, UnavailableError, RefusedError.
        """
        return await self._write(bucket, key, value, _ttl(ttl_seconds), revision=revision, read_at=read_at)

    async def delete(self, bucket: Bucket, key: str, *, revision: int, read_at: float, ttl_seconds: int = 0) -> int:
        """Deletes on the same condition as `put`, and leaves a tombstone that watches deliver.

        `ttl_seconds` lets the tombstone expire, in a bucket that allows it.
        """
        headers = {"KV-Operation": "DEL"} | _ttl(ttl_seconds)
        return await self._write(bucket, key, b"", headers, revision=revision, read_at=read_at)

    async def get(self, bucket: Bucket, key: str) -> RawEntry | None:
        """The key's last entry or tombstone, from the stream's leader (never a direct get); None without either.

        Raises UnavailableError, RefusedError.
        """
        _check_key(bucket, key)
        message = await self._last_message(bucket, bucket.subject(key))
        return None if message is None else _entry(bucket, message)

    async def last_messages(self, stream: Stream, subject: str) -> list[StreamMessage]:
        """The last message of each subject that matches `subject` (wildcards are allowed), ordered by subject.

        Raises UnavailableError, RefusedError.
        """
        answer = await self.api(f"STREAM.INFO.{stream.stream}", {"subjects_filter": subject})
        subjects = sorted(answer["state"].get("subjects") or ())
        messages = [await self._last_message(stream, subject) for subject in subjects]
        return [_stream_message(message) for message in messages if message is not None]  # None: expired meanwhile

    async def last_message(self, stream: Stream) -> StreamMessage | None:
        """The last message of a stream, by its leader; None if it has none. Raises UnavailableError, RefusedError."""
        message = await self._last_message(stream, ">")
        return None if message is None else _stream_message(message)

    async def keys(self, bucket: Bucket, pattern: str) -> list[str]:
        """The keys that match `pattern` (wildcards are allowed), those of tombstones included, by the stream's leader.

        Raises UnavailableError, RefusedError.
        """
        found: list[str] = []
        while True:  # an answer has at most 100,000 (nats-server, `JSMaxSubjectDetails`): fewer than NODES may have
            body = {"subjects_filter": bucket.subject(pattern), "offset": len(found)}
            answer = await self._info(bucket, body, KEYS_SECONDS)
            page = answer["state"].get("subjects") or ()
            found += page
            if not page or len(found) >= answer.get("total", 0):
                return sorted(set(map(bucket.key, found)))

    async def entries(self, bucket: Bucket, keys: Collection[str] = (">",)) -> list[RawEntry]:
        """All entries of a bucket without tombstones, complete at some time during the call, ordered by revision.

        `keys` are patterns with wildcards, of which no two match the same key.
        Raises UnavailableError if no further entry comes within `ENTRIES_SECONDS`.
        """
        latest: dict[str, RawEntry] = {}
        clock = asyncio.get_running_loop().time

        def take(entry: RawEntry) -> None:
            latest[entry.key] = entry

        def wait_on() -> None:
            if not limit.expired():
                limit.reschedule(clock() + ENTRIES_SECONDS)

        try:
            async with asyncio.timeout(ENTRIES_SECONDS) as limit:
                feed = await self.feed(bucket, keys=keys)
                try:
                    await feed.release(take, wait_on)
                    await feed.caught_up()
                finally:
                    await feed.close()
        except TimeoutError as error:
            raise UnavailableError(f"{bucket.name}: no further entry within {ENTRIES_SECONDS:g} s") from error
        # A key that was written again before its delivery came behind the others, after the feed had caught up.
        # In a large bucket these can be thousands, and the answer to each takes as long as the way to the server.
        stored = await ask_each(partial(self.keys, bucket), tuple(keys), at_once=KEYS_AT_ONCE)
        missing = sorted(set().union(*stored).difference(latest))
        for message in await ask_each(partial(self._last_message, bucket), [*map(bucket.subject, missing)]):
            if message is not None:
                take(_entry(bucket, message))
        return sorted((entry for entry in latest.values() if entry.value is not None), key=lambda each: each.revision)

    async def epoch(self, of: Stream | Bucket) -> Epoch:
        """The current epoch of a stream. Raises UnavailableError, also if most servers with copies do not run."""
        return Epoch.of(await self._info(of))

    async def _info(
        self, of: Stream | Bucket, body: dict[str, Any] | None = None, seconds: float = 0.0
    ) -> dict[str, Any]:
        link = self.link
        answer = await self.api(f"STREAM.INFO.{of.stream}", body, seconds=seconds)
        if link.server.cluster and not has_majority(answer):
            # A server that has lost all others answers with the last sequence, and the keys, that it knows.
            self._recheck.set()
            raise NoMajorityError(f"{of.stream}: most servers with copies do not run, or follow no leader")
        return answer

    @property
    def link(self) -> Link:
        """The current connection, for the modules of this package. Raises UnavailableError if there is none."""
        if self._link is None or not self._connected.is_set():
            raise UnavailableError(f"not connected to {self.address}")
        return self._link

    async def api(self, verb: str, body: dict[str, Any] | None = None, *, seconds: float = 0.0) -> dict[str, Any]:
        """One call of the JetStream API, within `CALL_SECONDS` or longer, for the modules of this package."""
        return await self._checked(self.link.api(verb, body, seconds=max(seconds, CALL_SECONDS)))

    def check_streams(self) -> None:
        """Lets the streams be checked again soon, and created if they are missing."""
        self._recheck.set()

    def report(self, what: str, problem: BusError | None) -> None:
        """Sets or clears the problem of one stream, consumer or lease, for the modules of this package."""
        if problem is None:
            self._problems.pop(what, None)
        elif str(self._problems.get(what)) != str(problem):
            self._problems[what] = problem
            level = logging.WARNING if isinstance(problem, UnavailableError) else logging.ERROR
            log.log(level, "bus_problem", connection=self.name, bus=self.address, error=str(problem))

    async def feed(
        self,
        bucket: Bucket,
        *,
        keys: Collection[str] = (">",),
        after: Callable[[Epoch], int | None] | None = None,
        pace: float = 0.0,
    ) -> Feed:
        """`Feed.open` over the current connection, for the modules of this package."""
        with self._consumers_of(bucket.stream):
            return await self._checked(
                Feed.open(self.link, bucket, name=self._consumer_prefix, keys=keys, after=after, pace=pace)
            )

    async def create_consumer(
        self, stream: str, config: Mapping[str, Any], *, prefix: str, filter_subject: str = ""
    ) -> tuple[str, dict[str, Any]]:
        """`consumers.create` over the current connection, for the modules of this package."""
        with self._consumers_of(stream):
            return await self._checked(
                consumers.create(self.link, stream, config, prefix=prefix, filter_subject=filter_subject)
            )

    async def write_durable(
        self, stream: str, name: str, config: Mapping[str, Any], *, action: Literal["create", "update"]
    ) -> dict[str, Any]:
        """Creates or changes a durable consumer, for the modules of this package. Raises BusError."""
        body = {"stream_name": stream, "config": {**config, "durable_name": name, "name": name}, "action": action}
        with self._consumers_of(stream):
            return await self.api(f"CONSUMER.CREATE.{stream}.{name}", body)

    @contextmanager
    def _consumers_of(self, stream: str) -> Iterator[None]:
        """Reports that there is no place for a consumer, or none for this user, until one is made or nobody tries."""
        what = f"consumers of {stream}"
        try:
            yield
        except (CrowdedError, NoPlaceError) as error:
            self._until[what] = time.monotonic() + FULL_SECONDS
            self.report(what, error)
            raise
        self.report(what, None)

    async def last_revision(self, bucket: Bucket, keys: str) -> int:
        """The last revision of all keys that match `keys` (wildcards are allowed), or 0. Raises as `get` does."""
        return await self.last_sequence(bucket, bucket.subject(keys))

    async def last_sequence(self, of: Stream | Bucket, subject: str) -> int:
        """The sequence of the newest message that the leader has on a subject, also with wildcards; 0 without one.

        Raises UnavailableError, RefusedError.
        """
        message = await self._last_message(of, subject)
        return 0 if message is None else int(message["seq"])

    async def _last_message(self, of: Stream | Bucket, subject: str) -> dict[str, Any] | None:
        verb, body = f"STREAM.MSG.GET.{of.stream}", {"last_by_subj": subject}
        answer = await none_if(MESSAGE_NOT_FOUND, self.api(verb, body))
        return None if answer is None else dict(answer["message"])

    async def _write(
        self, bucket: Bucket, key: str, value: bytes, headers: dict[str, str], *, revision: int, read_at: float
    ) -> int:
        _check_key(bucket, key)
        link, seconds = await self._writable()
        headers[EXPECTED_REVISION] = str(revision)
        # There is no await between this check and the send, so the age is still the same when the write is sent.
        age = time.monotonic() - read_at
        if age > WRITE_SECONDS:
            raise ExpiredError(f"{bucket.name}/{key}: read {age:.1f} s ago")
        subject = bucket.subject(key)
        try:
            with self._writes_to(bucket, (subject,)):
                return await self._checked(link.publish(subject, value, headers=headers, seconds=seconds))
        except FullError as error:
            if bucket.history == 1:  # who fills another one makes room itself
                what = f"room of {bucket.stream}"
                self._until[what] = time.monotonic() + FULL_SECONDS
                whose = f"{bucket.name} has no room" if error.code == STREAM_FULL else f"no room for {bucket.name}"
                mend = FULL_MEND if error.code == STREAM_FULL else STORE_FULL_MEND
                self.report(what, FullError(f"{whose}: {mend}", code=error.code))  # one text, one line of the log
            raise

    @contextmanager
    def _writes_to(self, of: Stream | Bucket, subjects: Iterable[str]) -> Iterator[None]:
        """Reports that this user may not write, until it may write to the same subject, or nobody tries any more."""
        try:
            yield
        except ForbiddenError as error:
            self._note_forbidden(of, error)
            raise
        self._note_written(of, subjects)

    def _note_forbidden(self, of: Stream | Bucket, error: ForbiddenError) -> None:
        if isinstance(of, Bucket) and of.optional:
            return
        what = _writes(of)
        self._until[what] = time.monotonic() + FULL_SECONDS
        self._problems.setdefault(what, error)  # not by `report`, since the link has logged it

    def _note_written(self, of: Stream | Bucket, subjects: Iterable[str]) -> None:
        problem = self._problems.get(_writes(of))
        if isinstance(problem, ForbiddenError) and problem.subject in subjects:
            self.report(_writes(of), None)

    def _standing(self) -> Collection[BusError]:
        """The problems, without those of a bucket or a stream that has refused nothing for a while."""
        now = time.monotonic()
        for what in [what for what, until in self._until.items() if until <= now]:
            del self._until[what]
            self.report(what, None)
        return self._problems.values()

    async def _writable(self) -> tuple[Link, float]:
        """A connection that accepts data, and the rest of the call's time limit. Raises UnavailableError."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        link = self.link
        await link.wait_writable(CALL_SECONDS)
        return link, CALL_SECONDS - (loop.time() - started)

    async def _checked(self, call: Coroutine[Any, Any, T]) -> T:
        """The call's result. If the call fails, the streams are checked again: one may be missing."""
        try:
            return await call
        except UnavailableError:
            self._recheck.set()
            raise

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closing:
            try:
                link, self._next = self._next or await self._open(), None
                started = loop.time()
                await self._use(link)
                if loop.time() - started < STABLE_SECONDS:
                    await asyncio.sleep(RETRY.longest)
            except Exception as error:  # a bug here is reported, and must not end the connection for ever
                log.exception("bus_internal_error", connection=self.name, bus=self.address)
                self.report("connection", MisconfiguredError(f"a bug, see the log: {error!r}"))
                await asyncio.sleep(RECHECK_SECONDS)

    async def _use(self, link: Link) -> None:
        """Offers the connection to callers until it is lost."""
        following = asyncio.create_task(self._follow_files(link)) if self._access.has_files else None
        try:
            if not self._closing:
                await self._serve(link)
            if self._connected.is_set():
                self._last_error, self._is_slow = link.why_lost, False
                log.warning("bus_disconnected", connection=self.name, bus=self.address, error=link.why_lost)
        finally:
            if following is not None:
                following.cancel()
                await asyncio.wait([following])
            self._link = None
            self._connected.clear()
            await link.close(CLOSE_SECONDS)

    async def _open(self) -> Link:
        """The next connection; tries without a time limit, until this one is closed."""
        clock = asyncio.get_running_loop().time
        failures, reported, again_at = 0, "", 0.0
        while not self._closing:  # an attempt can lose a cancellation
            try:
                return await self._open_with(await asyncio.to_thread(self._access.load))
            except (AccessError, UnavailableError) as error:
                self._last_error, self._is_slow = str(error), isinstance(error, SlowError)
                reason = re.sub(r"\d+", "", self._last_error)  # some reasons count seconds
                # A server that has started again may refuse for another reason.
                if not failures or (reason != reported and clock() >= again_at):
                    reported, again_at = reason, clock() + REASON_SECONDS
                    log.warning("bus_unreachable", connection=self.name, bus=self.address, error=self._last_error)
            failures += 1
            if not self._closing:
                await asyncio.sleep(RETRY.after(failures))
        raise asyncio.CancelledError

    async def _open_with(self, loaded: Loaded) -> Link:
        """A connection. Raises UnavailableError with what the server refused, or SlowError."""
        inbox = f"{INBOX}.{_token(loaded.name)}" if loaded.name else f"{INBOX}_{self._consumer_prefix}"
        try:
            return await Link.open(self._servers, name=self.name, inbox_prefix=inbox, loaded=loaded)
        except UnavailableError as error:
            has_user = any("@" in server for server in self._servers)
            raise type(error)(refusal(error, loaded, self._access, address_has_user=has_user)) from error

    async def _follow_files(self, link: Link) -> None:
        """Ends the connection when the files have changed, and a new one with them is open.

        The server reads credentials only when a connection begins. While the new ones are invalid or refused, the
        connection stays.
        """
        clock = asyncio.get_running_loop().time
        settled, refused, reported, again_at = link.loaded.contents, None, "", 0.0
        self.report(CREDENTIALS, None)
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            try:
                contents = await asyncio.to_thread(self._access.read)
                if contents == link.loaded.contents:
                    reported = ""
                    self.report(CREDENTIALS, None)
                if contents != settled:  # a file may still be being written: contents count once read twice
                    settled = contents
                elif contents != link.loaded.contents and (contents != refused or clock() >= again_at):
                    refused, again_at = contents, clock() + REFUSED_SECONDS
                    self._next = await self._open_with(await asyncio.to_thread(self._access.load))
                    log.info("bus_credentials_renewed", connection=self.name, bus=self.address)
                    await link.close(CLOSE_SECONDS)
                    return
            except (AccessError, UnavailableError) as error:
                if str(error) != reported:
                    reported = str(error)
                    log.error(  # noqa: TRY400 - no traceback: it is no bug
                        "bus_credentials_refused",
                        connection=self.name,
                        bus=self.address,
                        error=reported,
                        in_force="the last accepted ones",
                    )
                    # Not by `report`, which would log it again. The next connection will be refused.
                    until = "the last accepted ones are in force until the connection is lost"
                    self._problems[CREDENTIALS] = RefusedError(f"new credentials: {reported}; {until}")

    async def _serve(self, link: Link) -> None:
        """Creates missing streams, and again when needed, until the link is lost."""
        failures = 0
        while not link.lost.is_set():
            self._recheck.clear()
            state = await ensure(link, self._streams, replicas=self._replicas, seconds=CALL_SECONDS)
            if link.lost.is_set():
                break
            self.report("connection", None)
            self.report(STREAMS, state.problem)
            self._refused = state.refused
            self._checked_again.set()
            self._checked_again = asyncio.Event()
            if state.usable and not self._connected.is_set():
                self._link, self._expires = link, link.loaded.dates
                self.max_value_bytes = link.max_payload
                self._connected.set()
                log.info("bus_connected", connection=self.name, bus=self.address)
            if isinstance(state.problem, NoMajorityError):
                failures, pause = 0, MAJORITY_SECONDS
            elif isinstance(state.problem, UnavailableError):
                failures += 1
                pause = KEEPER_SECONDS if link.may_create is False else RETRY.after(failures)
            elif state.problem is not None:
                failures, pause = 0, RECHECK_SECONDS
            elif link.server.cluster and self._streams:
                failures = 0
                await self._look(link)
                continue
            else:
                failures, pause = 0, None
            await _either(link.lost, self._recheck, seconds=pause)

    async def _look(self, link: Link) -> None:
        """Asks for one stream after the other, until one has no majority, a check is wanted, or the link is lost."""
        for of in itertools.cycle(self._streams):
            await _either(link.lost, self._recheck, seconds=LOOK_SECONDS)
            if link.lost.is_set() or self._recheck.is_set():
                return
            with suppress(RefusedError, UnavailableError):  # the latter demands a check
                if not has_majority(await self._checked(link.api(f"STREAM.INFO.{of.stream}", seconds=CALL_SECONDS))):
                    return


def _ttl(seconds: int) -> dict[str, str]:
    return {"Nats-TTL": str(seconds)} if seconds else {}


def _writes(of: Stream | Bucket) -> str:
    """The key of the problem that this user may not write."""
    return f"writes to {of.stream}"


def _token(name: str) -> str:
    """A name as one token of a subject."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


async def _either(first: asyncio.Event, second: asyncio.Event, *, seconds: float | None) -> None:
    """Waits until one of two events is set, at most `seconds`."""
    tasks = [asyncio.create_task(event.wait()) for event in (first, second)]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _servers(url: str) -> list[str]:
    """The addresses in `url`, which is separated by commas."""
    servers = [server.strip() for server in url.split(",")]
    for server in servers:
        try:
            parts = urlsplit(server if "://" in server else f"nats://{server}")
            valid = parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise MisconfiguredError(
                f"{_without_password(server)!r} must be the address of a server, such as nats://127.0.0.1:4222"
            )
    return servers


def _without_password(server: str) -> str:
    """The address to log and to show."""
    scheme, separator, rest = server.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _check_message(stream: Stream, subject: str, payload: bytes) -> None:
    if not _SUBJECT.fullmatch(subject):
        raise RefusedError(f"{subject!r} must be a subject without wildcards")
    if stream.max_message_bytes and len(payload) > stream.max_message_bytes:
        raise RefusedError(f"{subject}: {len(payload)} bytes; {stream.name} allows at most {stream.max_message_bytes}")


def _check_key(bucket: Bucket, key: str) -> None:
    if not _KEY.fullmatch(key):
        raise RefusedError(f"{key!r} is not a valid key of {bucket.name}")


def _stream_message(message: dict[str, Any]) -> StreamMessage:
    return StreamMessage(
        subject=message["subject"],
        data=base64.b64decode(message.get("data", "")),
        sequence=message["seq"],
        arrived=datetime.fromisoformat(message["time"]).timestamp(),
        headers=_headers(message),
    )


def _headers(message: dict[str, Any]) -> dict[str, str]:
    lines = base64.b64decode(message.get("hdrs", "")).decode(errors="replace").split("\r\n")
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _entry(bucket: Bucket, message: dict[str, Any]) -> RawEntry:
    headers = _headers(message)
    return RawEntry(
        key=bucket.key(message["subject"]),
        value=None if is_tombstone(headers) else base64.b64decode(message.get("data", "")),
        revision=message["seq"],
        created=datetime.fromisoformat(message["time"]).timestamp(),
        previous=replaced_revision(headers),
    )
