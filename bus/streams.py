"""Streams created where they are missing, and looked at where they are not. None is ever changed."""

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
class Standing:
    """How the streams stand.

    `usable` is true if any of them is there; `problem` is an UnavailableError while looking again may help, and a
    MisconfiguredError where somebody has to do something.
    """

    usable: bool
    problem: BusError | None


async def ensure(link: Link, streams: Sequence[Stream | Bucket], *, replicas: int, seconds: float) -> Standing:
    """Creates what is missing, each stream for itself: one without a leader keeps nobody from the others.

    `seconds` bounds each question; together it takes a few of them at most.
    """
    wrong: list[str] = []
    unknown: list[UnavailableError] = []
    # What a new stream copies has to be there already: else the server looks for it again only after seconds.
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
    return Standing(usable=len(unknown) < len(streams) or not streams, problem=problem)


def _copies(of: Stream | Bucket) -> bool:
    return isinstance(of, Stream) and bool(of.sources)


async def _ensured(link: Link, of: Stream | Bucket, *, replicas: int, seconds: float) -> dict[str, Any]:
    """The configuration of the stream, which exists now. Raises BusError."""
    for _ in range(3):  # between looking and creating another process may create, or remove, it
        try:
            answer = await link.api(f"STREAM.INFO.{of.stream}", seconds=seconds)
        except UnavailableError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
        else:
            config: dict[str, Any] = answer["config"]
            return config
        with _going_on_after(STREAM_EXISTS_OTHERWISE):
            first_sequence = time.time_ns() // 1000
            await link.api(
                f"STREAM.CREATE.{of.stream}",
                configuration(of, first_sequence=first_sequence, replicas=replicas),
                seconds=seconds,
            )
            log.info("bus_stream_created", stream=of.stream, first_sequence=first_sequence)
    raise UnavailableError(f"{of.stream} comes and goes")


@contextmanager
def _going_on_after(code: int) -> Iterator[None]:
    """Goes on after a BusError of this `err_code`."""
    try:
        yield
    except BusError as error:
        if error.code != code:
            raise
