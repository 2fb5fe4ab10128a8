"""Creates missing streams, and compares existing ones with what TAS needs. No stream is ever changed."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import structlog

from bus.buckets import Bucket, Stream, configuration, differences
from bus.errors import (
    STREAM_EXISTS_OTHERWISE,
    STREAM_NOT_FOUND,
    BusError,
    MisconfiguredError,
    RefusedError,
    UnavailableError,
)
from bus.link import Link

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StreamsState:
    """The result of a check of the streams.

    `usable` is true if at least one stream exists. `problem` is an UnavailableError if a retry may help, and a
    MisconfiguredError if somebody has to change a stream.
    """

    usable: bool
    problem: BusError | None


async def ensure(link: Link, streams: Sequence[Stream | Bucket], *, replicas: int, seconds: float) -> StreamsState:
    """Creates missing streams; a failure of one stream does not affect the others.

    `seconds` limits each request; a few requests are made one after the other.
    """
    wrong: list[str] = []
    unknown: list[UnavailableError] = []
    # Sources before their copies: the server retries a missing source only after some seconds.
    ordered = sorted(streams, key=_copies)
    found: list[dict[str, Any] | BaseException] = []
    for _, wave in groupby(ordered, key=_copies):
        found += await asyncio.gather(
            *(_ensured(link, of, replicas=replicas, seconds=seconds) for of in wave), return_exceptions=True
        )
    for of, outcome in zip(ordered, found, strict=True):
        if isinstance(outcome, UnavailableError):
            unknown.append(outcome)
        elif isinstance(outcome, RefusedError):
            wrong.append(f"{of.stream} cannot be created: {outcome}")
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            wrong += (f"{of.stream}: {what}" for what in differences(of, outcome, replicas=replicas))
    problem: BusError | None = None
    if unknown:
        problem = unknown[0]
    elif wrong:
        problem = MisconfiguredError("; ".join(wrong))
    return StreamsState(usable=len(unknown) < len(streams) or not streams, problem=problem)


def _copies(of: Stream | Bucket) -> bool:
    return isinstance(of, Stream) and bool(of.sources)


async def _ensured(link: Link, of: Stream | Bucket, *, replicas: int, seconds: float) -> dict[str, Any]:
    """The configuration of the stream, which is created if missing. Raises BusError."""
    for _ in range(3):  # another process may create or delete the stream between the two requests
        try:
            answer = await link.api(f"STREAM.INFO.{of.stream}", seconds=seconds)
        except UnavailableError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
        else:
            config: dict[str, Any] = answer["config"]
            return config
        with _ignored(STREAM_EXISTS_OTHERWISE):
            first_sequence = time.time_ns() // 1000
            await link.api(
                f"STREAM.CREATE.{of.stream}",
                configuration(of, first_sequence=first_sequence, replicas=replicas),
                seconds=seconds,
            )
            log.info("bus_stream_created", stream=of.stream, first_sequence=first_sequence)
    raise UnavailableError(f"{of.stream} was created and deleted by others several times")


@contextmanager
def _ignored(code: int) -> Iterator[None]:
    """Ignores a BusError with this `err_code` in the body."""
    try:
        yield
    except BusError as error:
        if error.code != code:
            raise
