"""Settings of streams of before, and consumers that nobody uses: what an operator may mend, with `tas bus mend`."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from bus.buckets import (
    ALL,
    EVENTS,
    INACTIVE_SECONDS,
    LEASES,
    NANOSECONDS,
    SAMPLES,
    SAMPLES_CONSUMER,
    SINK_CONSUMERS,
    TABLES,
    TABLES_CONSUMER,
    Bucket,
    Stream,
    weaknesses,
)
from bus.connection import Bus
from bus.errors import MESSAGE_NOT_FOUND, STREAM_NOT_FOUND, RefusedError, none_if
from bus.rights.roles import user_of

OURS = frozenset({(SAMPLES.stream, SAMPLES_CONSUMER), (TABLES.stream, TABLES_CONSUMER)})
"""The durable consumers of processes with known names."""

HOLDER_CHARACTERS = 80
"""So much of the free text of a consumer is shown as its holder."""

STALE_LEASE_SECONDS = 2.0 * LEASES.max_age_seconds
"""Twice as long as the bucket keeps a lease that nobody writes."""


class Consumer(NamedTuple):
    """A consumer on a server.

    Attributes:
        lasts: Whether it outlives by far who has made it.
        used: Whether somebody waits for its messages now.
        holder: For whom it is, if its name does not say so: `notify-SINK`.
    """

    stream: str
    name: str
    lasts: bool
    used: bool
    holder: str = ""

    @property
    def title(self) -> str:
        """Its name, for a person."""
        return f"{self.name} ({self.holder})" if self.holder else self.name

    @property
    def is_position(self) -> bool:
        """Whether a sink or a subscription may continue here when it runs again."""
        return self.stream == EVENTS.stream and self.lasts

    def is_left(self, users: Collection[str], gone: Collection[str], *, with_positions: bool = True) -> bool:
        """Whether it is to be removed. `users` are those who may have consumers of their name, `gone` the revoked ones.

        One that lasts, is of no user, and that nobody waits for: anybody could make it before names were limited. Of
        these, positions only `with_positions`.
        """
        if (self.stream, self.name) in OURS:
            return False
        user = user_of(self.name)
        if user in gone:
            return True
        return user not in users and self.lasts and not self.used and (with_positions or not self.is_position)


class _Config(msgspec.Struct):
    durable_name: str = ""
    inactive_threshold: int = 0
    description: str = ""


class _Info(msgspec.Struct):
    name: str
    config: _Config
    num_waiting: int = 0
    push_bound: bool = False


class _Page(msgspec.Struct):
    total: int = 0
    consumers: list[_Info] | None = None


class StreamState(NamedTuple):
    """The configuration of a stream, and how many bytes it has."""

    config: dict[str, Any]
    size: int


async def changes_of(bus: Bus) -> dict[Stream | Bucket, dict[str, tuple[Any, Any]]]:
    """The `weaknesses` of each stream that has some. Raises BusError."""
    found: dict[Stream | Bucket, dict[str, tuple[Any, Any]]] = {}
    for of in ALL:
        if (state := await _state(bus, of)) is not None and (weak := changes(of, state)):
            found[of] = weak
    return found


async def change(bus: Bus, of: Stream | Bucket) -> None:
    """Gives a stream the settings of a new one that it lacks, and changes nothing else. Raises BusError."""
    state = await _state(bus, of)
    if state is not None and (weak := changes(of, state)):
        await bus.api(f"STREAM.UPDATE.{of.stream}", state.config | {field: new for field, (_, new) in weak.items()})


async def resize(bus: Bus, bucket: Bucket, max_bytes: int, *, dry_run: bool = False) -> None:
    """Sets how many bytes a bucket may have. Raises BusError, also if the bucket has more: it would be full.

    With `dry_run` nothing is changed.
    """
    state = await _state(bus, bucket)
    if state is None:
        raise RefusedError(f"{bucket.stream} does not exist")
    if max_bytes < state.size:
        raise RefusedError(f"it has {state.size} bytes, and would be full with {max_bytes}")
    if not dry_run:
        await bus.api(f"STREAM.UPDATE.{bucket.stream}", state.config | {"max_bytes": max_bytes})


def changes(of: Stream | Bucket, state: StreamState) -> dict[str, tuple[Any, Any]]:
    """The weaknesses of a stream. A bucket that has much may have twice as much: else it would be full at once."""
    weak = weaknesses(of, state.config)
    if isinstance(of, Bucket) and "max_bytes" in weak:
        before, most = weak["max_bytes"]
        weak["max_bytes"] = (before, max(most, 2 * state.size))
    return weak


async def remove_leases(bus: Bus, *, seconds: float = STALE_LEASE_SECONDS, dry_run: bool = False) -> int:
    """Removes leases that nobody has written for so long: the bucket keeps none so long, except by `Nats-TTL: never`.

    Returns how many were removed; with `dry_run`, 1 if there are some. Raises BusError.
    """
    if (answer := await _info(bus, LEASES)) is None:
        return 0
    state = answer["state"]
    oldest = _seconds(answer["ts"]) - seconds  # by the clock of the server
    first, end = int(state["first_seq"]), int(state["last_seq"]) + 1
    low = first
    while low < end:  # the messages of a stream are in the order of their times
        middle = (low + end) // 2
        found = await _next_message(bus, LEASES, middle)
        if found is None or _seconds(found["time"]) >= oldest:
            end = middle
        else:
            low = int(found["seq"]) + 1
    if low == first or dry_run:
        return int(low != first)
    return int((await bus.api(f"STREAM.PURGE.{LEASES.stream}", {"seq": low}))["purged"])


async def _next_message(bus: Bus, of: Stream | Bucket, sequence: int) -> dict[str, Any] | None:
    """The first message from a sequence on."""
    verb, body = f"STREAM.MSG.GET.{of.stream}", {"seq": sequence, "next_by_subj": ">"}
    answer = await none_if(MESSAGE_NOT_FOUND, bus.api(verb, body))
    return None if answer is None else dict(answer["message"])


def _seconds(time: str) -> float:
    """Seconds since 1970."""
    return datetime.fromisoformat(time).timestamp()


async def consumers_of(bus: Bus) -> list[Consumer]:
    """All consumers of the streams of the product. Raises BusError."""
    found: list[Consumer] = []
    for of in ALL:
        infos: dict[str, _Info] = {}
        while True:
            verb, body = f"CONSUMER.LIST.{of.stream}", {"offset": len(infos)}
            answer = await none_if(STREAM_NOT_FOUND, bus.api(verb, body))
            if answer is None:
                break
            page = msgspec.convert(answer, _Page)
            infos |= {each.name: each for each in page.consumers or ()}
            if not page.consumers or len(infos) >= page.total:
                break
        found += [_consumer(of, each) for each in infos.values()]
    return found


async def remove(bus: Bus, consumers: Sequence[Consumer]) -> None:
    """Deletes consumers. Raises BusError."""
    for each in consumers:
        await bus.api(f"CONSUMER.DELETE.{each.stream}.{each.name}")


def _consumer(of: Stream | Bucket, info: _Info) -> Consumer:
    threshold = info.config.inactive_threshold
    return Consumer(
        stream=of.stream,
        name=info.name,
        lasts=bool(info.config.durable_name) or not 0 < threshold <= INACTIVE_SECONDS * NANOSECONDS,
        used=info.num_waiting > 0 or info.push_bound,
        holder=info.config.description[:HOLDER_CHARACTERS] if info.name in SINK_CONSUMERS else "",
    )


async def _info(bus: Bus, of: Stream | Bucket) -> dict[str, Any] | None:
    """What a server says about the stream; None if it does not exist. Raises BusError."""
    return await none_if(STREAM_NOT_FOUND, bus.api(f"STREAM.INFO.{of.stream}"))


async def _state(bus: Bus, of: Stream | Bucket) -> StreamState | None:
    """None if the stream does not exist. Raises BusError."""
    answer = await _info(bus, of)
    return None if answer is None else StreamState(answer["config"], int(answer["state"].get("bytes", 0)))
