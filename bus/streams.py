"""Creates missing streams, and compares existing ones with what TAS needs. No stream is ever changed."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import structlog

from bus.buckets import Bucket, Stream, configuration, differences
from bus.errors import (
    STREAM_EXISTS_OTHERWISE,
    STREAM_NOT_FOUND,
    BusError,
    ForbiddenError,
    MisconfiguredError,
    MissingError,
    NoMajorityError,
    RefusedError,
    UnavailableError,
    none_if,
)
from bus.link import Link
from tas.values.nouns import counted

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StreamsState:
    """The result of a check of the streams.

    `usable` is true if a server has answered about at least one stream. `problem` is an UnavailableError if a retry may
    help, and a MisconfiguredError if somebody has to change a stream. `refused` has by name the streams that cannot be
    had, each with the reason: one is missing and cannot be created, or this user may not look at it. That an optional
    bucket cannot be had is no problem.
    """

    usable: bool
    problem: BusError | None
    refused: Mapping[str, str]


async def ensure(link: Link, streams: Sequence[Stream | Bucket], *, replicas: int, seconds: float) -> StreamsState:
    """Creates missing streams; a failure of one stream does not affect the others.

    `seconds` limits each request; a few requests are made one after the other.
    """
    wrong: list[str] = []
    refused: dict[str, str] = {}
    unknown: list[UnavailableError] = []
    stuck: list[str] = []
    # Sources before their copies: the server retries a missing source only after some seconds.
    ordered = sorted(streams, key=_copies)
    found: list[dict[str, Any] | BaseException] = []
    for _, wave in groupby(ordered, key=_copies):
        found += await asyncio.gather(
            *(_ensured(link, of, replicas=replicas, seconds=seconds) for of in wave), return_exceptions=True
        )
    for of, outcome in zip(ordered, found, strict=True):
        if isinstance(of, Bucket) and of.optional and (why := _unusable(of, outcome, replicas=replicas)) is not None:
            refused[of.stream] = why
        elif isinstance(outcome, UnavailableError):
            unknown.append(outcome)
            if isinstance(outcome, MissingError):
                refused[of.stream] = str(outcome)
        elif isinstance(outcome, RefusedError):
            refused[of.stream] = f"{of.stream} cannot be read or created: {outcome}"
            wrong.append(refused[of.stream])
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            if link.server.cluster and not has_majority(outcome):
                stuck.append(of.stream)
            wrong += (f"{of.stream}: {what}" for what in differences(of, outcome["config"], replicas=replicas))
    problem = _problem(unknown, stuck, wrong)
    return StreamsState(usable=len(unknown) < len(streams) or not streams, problem=problem, refused=refused)


def _unusable(of: Bucket, outcome: dict[str, Any] | BaseException, *, replicas: int) -> str | None:
    """Why an optional bucket cannot be had, or None: also if that is not known yet, as without an answer in time."""
    if isinstance(outcome, RefusedError | MissingError):
        return f"{of.stream} cannot be read or created: {outcome}"
    if isinstance(outcome, BaseException):
        return None
    return "; ".join(f"{of.stream}: {what}" for what in differences(of, outcome["config"], replicas=replicas)) or None


def _problem(unknown: Sequence[BusError], stuck: Sequence[str], wrong: Sequence[str]) -> BusError | None:
    if unknown:
        return unknown[0]
    if stuck:
        others = f" and {counted(len(stuck) - 1, 'other stream')}" if len(stuck) > 1 else ""
        return NoMajorityError(f"most servers with copies of {stuck[0]}{others} do not run, or follow no leader")
    return MisconfiguredError("; ".join(wrong)) if wrong else None


def _copies(of: Stream | Bucket) -> bool:
    return isinstance(of, Stream) and bool(of.sources)


async def _ensured(link: Link, of: Stream | Bucket, *, replicas: int, seconds: float) -> dict[str, Any]:
    """What a server says about the stream, which is created if missing. Raises BusError."""
    if of.stream in link.forbidden:  # rights of an open connection do not change, and each refusal is logged
        raise ForbiddenError(link.forbidden[of.stream])
    for _ in range(3):  # another process may create or delete the stream between the two requests
        try:
            answer = await none_if(STREAM_NOT_FOUND, link.api(f"STREAM.INFO.{of.stream}", seconds=seconds))
        except ForbiddenError as error:
            if isinstance(of, Bucket) and of.optional:
                link.forbidden[of.stream] = str(error)
            raise
        if answer is not None:
            return answer
        async with _one_attempt(link):
            await _create(link, of, replicas=replicas, seconds=seconds)
    raise UnavailableError(f"{of.stream} was created and deleted by others several times")


@asynccontextmanager
async def _one_attempt(link: Link) -> AsyncIterator[None]:
    """Until it is known whether this user may create streams, only one attempt at a time: each refusal is logged."""
    if link.may_create is None:
        async with link.creating:
            yield
    else:
        yield


async def _create(link: Link, of: Stream | Bucket, *, replicas: int, seconds: float) -> None:
    """Creates a stream, unless somebody else has just done so. Raises BusError."""
    if link.may_create is False:
        raise MissingError(f"{of.stream} is missing, and {link.who} may not create it: tas run keeper does")
    first_sequence = time.time_ns() // 1000
    config = configuration(of, first_sequence=first_sequence, replicas=replicas)
    try:
        creation = link.api(f"STREAM.CREATE.{of.stream}", config, seconds=seconds)
        answer = await none_if(STREAM_EXISTS_OTHERWISE, creation)
        if answer is not None:
            log.info("bus_stream_created", stream=of.stream, first_sequence=first_sequence)
            link.may_create = True
    except ForbiddenError:
        link.may_create = False


def has_leader(answer: dict[str, Any]) -> bool:
    """Whether the server that answered knows a leader of the stream."""
    return bool(_cluster(answer).get("leader"))


def _cluster(answer: dict[str, Any]) -> dict[str, Any]:
    cluster = answer.get("cluster")
    return cluster if isinstance(cluster, dict) else {}


def copies(answer: dict[str, Any]) -> int:
    """How many copies a stream has by its configuration."""
    wanted = answer["config"].get("num_replicas")
    return wanted if isinstance(wanted, int) else 1


def has_majority(answer: dict[str, Any]) -> bool:
    """Whether a stream in a cluster has a leader that most copies follow.

    For some seconds a server that has lost all others still calls itself the leader. Later it answers as before, and
    names none.
    """
    return has_leader(answer) and 2 * len(late_copies(answer)) <= copies(answer)


def late_copies(answer: dict[str, Any]) -> list[str]:
    """The servers whose copy of a stream is offline or behind."""
    replicas = _cluster(answer).get("replicas") or ()
    return [str(each.get("name")) for each in replicas if each.get("offline") or not each.get("current")]
