"""Logs: events with stable names and fields, as JSON for machines or lines for a person.

Every event is a `snake_case` name and keyword fields. Log lines of libraries, from the standard module, get the same
form and go to the same stream. Logs go to standard error: standard output is for results.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from tas.errors import line_of, shortened
from tas.values.throttle import Throttle
from workers.process.log_form import LogFormat, LogLevel

_LIBRARIES = ("nats", "aiohttp", "asyncio", "kubernetes_asyncio", "watchfiles")
"""Loggers of libraries: their debug and information lines are not written."""


MAX_LIST = 100
"""The most items of a list in a log line, and the most lines of a traceback at each of its ends."""

MAX_NAMES = 10
"""The most objects that a line about several objects names."""

_SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
)


def configure_logging(form: LogFormat, level: LogLevel, *, stream: TextIO | None = None) -> None:
    """Sends every event of this process to `stream` (standard error by default); may be called again."""
    root = logging.getLogger()
    root.handlers[:] = [_handler(form, stream or sys.stderr)]
    root.setLevel(level.upper())
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


@contextmanager
def logging_to(stream: TextIO) -> Iterator[None]:
    """Within the body every event of this process goes to `stream`, as lines of JSON.

    For a command that itself uses the terminal.
    """
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [_handler(LogFormat.JSON, stream)]
    try:
        yield
    finally:
        root.handlers[:] = before


def _handler(form: LogFormat, stream: TextIO) -> logging.Handler:
    as_json = form is LogFormat.JSON or (form is LogFormat.AUTO and not stream.isatty())
    last: Processor = (
        structlog.processors.JSONRenderer(serializer=_json)
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), timestamp_key="time", exception_formatter=structlog.dev.plain_traceback
        )
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, _library_event],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _within_limits,
                last,
            ],
        )
    )
    return handler


def _json(event: Mapping[str, object], **_: object) -> str:
    first = {key: event[key] for key in ("time", "level", "event", "logger") if key in event}  # easier to read
    return msgspec.json.encode({**first, **event}, enc_hook=str).decode()


def _library_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Gives a library's log line the event name `library_log`, and its text as field `message`."""
    event["message"] = event["event"]
    event["event"] = "library_log"
    return event


def _within_limits(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escapes and cuts all texts of an event: they may come from a stranger, and go to a terminal."""
    for key, value in event.items():
        event[key] = _lines_of(value) if key in ("exception", "stack") else _bounded(value)
    return event


def _bounded(value: object) -> object:
    if isinstance(value, int) and value.bit_length() > 63:  # larger than JSON is written with
        return shortened(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_bounded(each) if not isinstance(each, (list, tuple)) else shortened(each) for each in value[:MAX_LIST]]
    if isinstance(value, dict):
        return {line_of(str(key)): line_of(str(each)) for key, each in islice(value.items(), MAX_LIST)}
    return line_of(str(value))


def _lines_of(traceback: object) -> str:
    lines = str(traceback).splitlines()
    omitted = [f"… {len(lines) - 2 * MAX_LIST} lines …"] if len(lines) > 2 * MAX_LIST else []
    if omitted:
        lines = [*lines[:MAX_LIST], *omitted, *lines[-MAX_LIST:]]
    return "\n".join(map(line_of, lines))


class ThrottledLog:
    """Log lines that `Throttle` admits, each with `suppressed`: how many were suppressed since the last.

    The key is the event and `about`; lines beyond `keys` different keys share one entry, and once a minute
    `log_lines_left_out` says how many of them were not written. All lines have `fields`.
    """

    def __init__(
        self, log: structlog.stdlib.BoundLogger, *, seconds: float = 10.0, keys: int = 256, **fields: object
    ) -> None:
        self._log = log
        self._fields = fields
        self._throttle = Throttle(seconds=seconds, keys=keys)

    def info(self, event: str, about: Hashable = None, /, **fields: object) -> None:
        """Logs at level info, unless suppressed."""
        self._line(self._log.info, event, about, fields)

    def warning(self, event: str, about: Hashable = None, /, **fields: object) -> None:
        """Logs at level warning, unless suppressed."""
        self._line(self._log.warning, event, about, fields)

    def error(self, event: str, about: Hashable = None, /, **fields: object) -> None:
        """Logs at level error, unless suppressed."""
        self._line(self._log.error, event, about, fields)

    def _line(self, log: Callable[..., object], event: str, about: Hashable, fields: Mapping[str, object]) -> None:
        now = time.monotonic()
        suppressed = self._throttle.admit((event, about), now)
        if suppressed is not None:
            log(event, **self._fields, **fields, suppressed=suppressed)
        if left_out := self._throttle.left_out(now):
            self._log.warning("log_lines_left_out", **self._fields, about=event, count=left_out)


class GroupedLog:
    """Warnings about objects of one kind that fail for few causes: not one line for each object, but for each cause.

    The first line of an event and cause is written at once. The objects that follow within `seconds` are written
    together, in one line at the end of that time: with their number (`count`) and some of their names (`names`).
    Causes beyond `causes` share one line. The log needs a running event loop.
    """

    def __init__(
        self, log: structlog.stdlib.BoundLogger, *, kind: str, seconds: float = 10.0, causes: int = 64
    ) -> None:
        """`kind` is the field with the name of the object: `node`."""
        self._log = log
        self._kind = kind
        self._seconds = seconds
        self._causes = causes
        self._names: dict[Hashable, set[str]] = {}
        self._last: dict[Hashable, Mapping[str, object]] = {}

    def warning(self, event: str, cause: Hashable, name: str, /, **fields: object) -> None:
        """Logs at level warning that the object `name` fails for this cause."""
        key = (event, cause)
        if key not in self._names and len(self._names) >= self._causes:
            key = (event, None)
        if key in self._names:
            self._names[key].add(name)
            self._last[key] = fields
        else:
            self._log.warning(event, **{self._kind: name}, **fields, count=1)
            self._wait(key)

    def _wait(self, key: tuple[str, Hashable]) -> None:
        self._names[key] = set()
        asyncio.get_running_loop().call_later(self._seconds, self._end, key)

    def _end(self, key: tuple[str, Hashable]) -> None:
        names, fields = sorted(self._names.pop(key)), self._last.pop(key, {})
        if names:
            line = {self._kind: names[0], **fields, "count": len(names), "names": names[:MAX_NAMES]}
            self._log.warning(key[0], **line)
            self._wait(key)
