"""Logs: events with stable names and fields, as JSON for machines or lines for a person.

Every event is a `snake_case` name and keyword fields. What libraries log through the standard module goes the same
way, so a process has one stream of one form. Logs go to standard error: standard output is for answers.
"""

import logging
import sys
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger


class LogFormat(StrEnum):
    """How log events are written."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """The least severe events that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_LIBRARIES = ("nats", "aiohttp", "asyncio", "kubernetes_asyncio", "watchfiles")
"""Loggers of libraries: their debug and information lines are theirs, not events of the product."""


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
    """Within the body every event of this process goes to `stream`, as lines for a person; then where it went before.

    For whoever has the terminal meanwhile.
    """
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [_handler(LogFormat.CONSOLE, stream)]
    try:
        yield
    finally:
        root.handlers[:] = before


def _handler(form: LogFormat, stream: TextIO) -> logging.Handler:
    as_json = form is LogFormat.JSON or (form is LogFormat.AUTO and not stream.isatty())
    last: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=stream.isatty(), timestamp_key="time")]
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, _library_event],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    return handler


def _json(event: Mapping[str, object], **_: object) -> str:
    first = {key: event[key] for key in ("time", "level", "event", "logger") if key in event}  # for the eye
    return orjson.dumps({**first, **event}, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _library_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A library's line is a message, not an event name: it gets one name, and keeps its text as a field."""
    event["message"] = event["event"]
    event["event"] = "library_log"
    return event


class Throttle:
    """Lets the first of many alike through, then one in `seconds`, and counts what it held back.

    At most `keys` of them are told apart; beyond that all others share one place, so that a flood of different
    offenders is no flood of lines either.
    """

    def __init__(self, *, seconds: float = 10.0, keys: int = 256) -> None:
        self._seconds = seconds
        self._keys = keys
        self._last: dict[Hashable, tuple[float, int]] = {}

    def admit(self, key: Hashable, now: float) -> int | None:
        """How many alike were held back since the last one let through; None: hold this one back as well.

        `now` is in seconds on any clock that does not go back.
        """
        if key not in self._last and len(self._last) >= self._keys:
            self._forget_old(now)
            if len(self._last) >= self._keys:
                key = None
        last = self._last.get(key)
        if last is None:
            self._last[key] = (now, 0)
            return 0
        since, held_back = last
        if now - since < self._seconds:
            self._last[key] = (since, held_back + 1)
            return None
        self._last[key] = (now, 0)
        return held_back

    def _forget_old(self, now: float) -> None:
        self._last = {key: last for key, last in self._last.items() if key is None or now - last[0] < self._seconds}
