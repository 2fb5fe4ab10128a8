"""Connections to HTTP servers that may be hostile: what a peer sends costs bounded work before it is believed.

aiohttp bounds a head to 128 lines of 8 KiB, and pauses a connection whose body nobody reads. This module bounds what is
left: informational answers (`100 Continue`) without end, bytes that never become a body (extensions of chunks), an
answer that nobody has asked for, and pieces or chunks of a few bytes, each of which wakes the event loop.
"""

import asyncio
from functools import partial
from math import inf
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

MAX_INFORMATIONAL = 8
"""The most informational answers (status 1xx) before the final one; a server sends one, or none."""

MAX_HEAD_BYTES = 256 << 10
"""The most bytes until the head of the final answer is complete."""

SLICE_BYTES = 2048
"""So much is parsed before the bounds are checked again: 80 informational answers, or 0.2 ms."""

SMALL_BYTES = 1024
"""A piece below this size may be followed by a pause."""

DENSE_BYTES = 16
"""A slice with a line end in fewer bytes than these is one of tiny chunks or header lines, and may have one, too."""

PAUSE_SECONDS = 0.005
"""So long nothing is read after a small piece or a dense slice; meanwhile further ones come together."""

MAX_PAUSES = 4
"""The most pauses at once: so eight queries of a poll together leave a processor to others."""

BURST = 16
"""So many of them in an answer have no pause: an honest one has a few, such as its head and its last chunk."""

BYTES_FOR_ONE = 16 << 10
"""An answer may have one more of them for each of these bytes: what a server writes at once ends with a small piece."""


class BoundedProtocol(ResponseHandler):
    """The side of the client. A connection that exceeds a bound is closed, and its request fails with the text."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._held = b""
        self._parsed = 0
        self._timer_of_pause: asyncio.TimerHandle | None = None
        self._is_parsing = False
        self._has_failed = False
        self._received = 0
        self._most: float = MAX_HEAD_BYTES
        self._informational = 0
        self._small = 0
        self._is_answered = False

    def set_response_params(self, **options: Any) -> None:
        """Begins with the answer to the next request."""
        self._received = 0
        self._most = MAX_HEAD_BYTES
        self._informational = 0
        self._small = 0
        self._is_answered = False
        super().set_response_params(**options)

    def allow_body(self, most: int) -> None:
        """Sets how many bytes the body may have on its way, with sizes and extensions of chunks."""
        self._most = self._received + most

    def data_received(self, data: bytes) -> None:
        """Parses `data` in slices; what comes too fast is held, and nothing more is read meanwhile."""
        if not data:
            super().data_received(data)  # aiohttp resumes its parser
        else:
            self._held, self._parsed = self._held[self._parsed :] + data, 0
            if self._timer_of_pause is None and not self._is_parsing:
                self._parse_held()

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """The head of an answer is complete."""
        code = data[0].code
        if self._has_failed:
            return  # the rest of the slice
        if self._is_answered:
            self._fail("an answer without a request")
        elif 100 <= code < 200 and code != 101:
            self._informational += 1
            if self._informational <= MAX_INFORMATIONAL:
                super().feed_data(data, size)
            else:
                self._fail(f"more than {MAX_INFORMATIONAL} informational answers before the final one")
        else:
            self._is_answered = True
            self._most = inf
            super().feed_data(data, size)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Parses what is held, since the body may be complete with it."""
        if self._timer_of_pause is not None:
            self._timer_of_pause.cancel()
        while self._parsed < len(self._held) and not self._has_failed:
            self._parse_slice()
        super().connection_lost(exc)

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 - as in aiohttp
        """The reader of the body has room again: parses what is held."""
        super().resume_reading(resume_parser)
        if self._timer_of_pause is None and not self._is_parsing:
            self._parse_held()

    def _resume_transport_reading(self) -> None:
        """A reader that has read all, as aiohttp knows it, resumes nothing before its time."""
        if self._timer_of_pause is None:
            super()._resume_transport_reading()

    def _parse_held(self) -> None:
        self._timer_of_pause = None
        self._is_parsing = True
        try:
            self._parse_slices()
        finally:
            self._is_parsing = False

    def _parse_slices(self) -> None:
        while self._parsed < len(self._held):
            if self._reading_paused:
                return  # else each slice of a compressed body would become as large as a reader may have
            part = self._parse_slice()
            if self.transport is None or self.transport.is_closing():
                break
            if not self._is_complete() and (pauses := self._pauses_after(part)):
                self._pause_transport_reading()
                self._timer_of_pause = self._loop.call_later(pauses * PAUSE_SECONDS, self._parse_held)
                return
        self._held, self._parsed = b"", 0
        if not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()

    def _pauses_after(self, part: bytes) -> int:
        """How many pauses are made after `part`, which is parsed: the more, the more small pieces there were."""
        if len(self._held) >= SMALL_BYTES and part.count(b"\n") * DENSE_BYTES <= len(part):
            return 0
        self._small += 1
        return min(max(0, self._small - BURST - self._received // BYTES_FOR_ONE), MAX_PAUSES)

    def _parse_slice(self) -> bytes:
        part = self._held[self._parsed : self._parsed + SLICE_BYTES]
        self._parsed += len(part)
        if self._is_complete():
            self._fail("more bytes than the answer has")
            return part
        self._received += len(part)
        if self._received > self._most:
            what = "the body" if self._is_answered else "the head"
            self._fail(f"more than {self._most:.0f} bytes on the way before {what} was complete")
        else:
            super().data_received(part)
        return part

    def _is_complete(self) -> bool:
        return self._is_answered and (self._payload is None or self._payload.is_eof())

    def _fail(self, text: str) -> None:
        self._has_failed = True
        failure = aiohttp.ClientPayloadError(text)
        if self._payload is not None and not self._payload.is_eof():
            self._payload.set_exception(failure)
        self._payload = None  # else the end of the connection would be its reason
        self.set_exception(failure)
        if self.transport is not None:
            self.transport.close()


class BoundedConnector(aiohttp.TCPConnector):
    """Opens connections with a `BoundedProtocol`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(BoundedProtocol, loop=self._loop))
