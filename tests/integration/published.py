"""Publishers that do all that a publisher may do, and the newest of the values that they published.

Nothing here uses the rules of the product. A place is a node, a metric and a source. The value of a place that was
measured last counts; a time after the arrival counts as the arrival. Of equal times, the last message in the stream
counts.
"""

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.errors import MESSAGE_NOT_FOUND, RefusedError, UnavailableError

Place = tuple[str, str, str]
"""A node, a metric and a source."""

Order = tuple[int, int]
"""The microsecond since 1970 that counts, and the sequence in SAMPLES."""

CLOCK = "clock"
"""A metric whose value is its time, in microseconds since the start of the test: an older value is smaller."""

SECOND = 1_000_000
"""Microseconds."""

LATE_SECONDS = 4.0
"""How long after its measurement a sample is published at the latest."""

REPORT_SECONDS = (0.2, 3.0)
"""The least and the longest time until a requested report of all metrics."""

AHEAD_SECONDS = 5.0
"""How far the clock of a source is ahead at most; the product tolerates 10 s."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now() -> int:
    return time.time_ns() // 1000


def text_of(microseconds: int) -> str:
    return (EPOCH + timedelta(microseconds=microseconds)).isoformat()


def microseconds_of(text: str) -> int:
    """The microseconds of a time of the bus, which may have nine digits."""
    time, _, rest = text.removesuffix("Z").partition(".")
    fraction, _, zone = rest.partition("+")
    assert zone in ("", "00:00"), text
    whole = datetime.fromisoformat(time.removesuffix("+00:00")).replace(tzinfo=UTC) - EPOCH
    return whole // timedelta(microseconds=1) + round(int(fraction.ljust(9, "0")) / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A published message. `measured` is None if it has no time: then its arrival counts."""

    node: str
    source: str
    measured: int | None
    values: dict[str, int]
    body: bytes

    @property
    def subject(self) -> str:
        return f"tas.samples.{self.node.replace('.', '_')}.{self.source}"

    @property
    def places(self) -> dict[Place, int]:
        return {(self.node, metric, self.source): value for metric, value in self.values.items()}


@dataclass
class Published:
    """All published messages.

    Attributes:
        began: The microsecond from which `CLOCK` counts.
        newest: For each place, the order and the value that count, of all acknowledged messages.
        measured: For each place, the time in the message that counts, if it has one that is not ahead.
        values: For each place and value, its time; also of messages that were never acknowledged.
        messages: The number of acknowledged messages.
        times: The times in messages, oldest message first.
    """

    began: int = 0
    newest: dict[Place, tuple[Order, int]] = field(default_factory=dict)
    measured: dict[Place, int] = field(default_factory=dict)
    values: dict[Place, dict[int, int | None]] = field(default_factory=dict)
    messages: int = 0
    times: list[int] = field(default_factory=list)

    def begin(self) -> None:
        self.began = now()

    def sending(self, message: Message) -> None:
        for place, value in message.places.items():
            self.values.setdefault(place, {})[value] = message.measured
        if message.measured is not None:
            self.times.append(message.measured)

    def acknowledged(self, message: Message, order: Order) -> None:
        self.messages += 1
        for place, value in message.places.items():
            if place not in self.newest or order > self.newest[place][0]:
                self.newest[place] = (order, value)
                self.measured.pop(place, None)
                if message.measured == order[0]:
                    self.measured[place] = order[0]

    def differences(self, held: Mapping[Place, tuple[Order, int]]) -> dict[Place, tuple[object, object]]:
        """The places of which a reader has not the newest value: the value it has, and the expected value."""
        found: dict[Place, tuple[object, object]] = {}
        for place in held.keys() | self.newest.keys():
            has, should = held.get(place), self.newest.get(place)
            if has is None or should is None or _untimed(has) != _untimed(should) or abs(has[0][0] - should[0][0]) > 1:
                found[place] = (has, should)
        return found

    def clocks(self) -> dict[str, int]:
        """The newest `CLOCK` of each node, from any source."""
        found: dict[str, tuple[int, int]] = {}
        for (node, metric, _), ((counts, _), value) in self.newest.items():
            if metric == CLOCK:
                found[node] = max(found.get(node, (0, 0)), (counts, value))
        return {node: value for node, (_, value) in found.items()}


def _untimed(value: tuple[Order, int]) -> tuple[int, int]:
    """The sequence and the value, without the time, whose last digit is rounded."""
    return (value[0][1], value[1])


class Publisher:
    """A program that publishes for a source. A source may have several."""

    def __init__(
        self,
        bus: Bus,
        *,
        number: int,
        source: str,
        nodes: Sequence[str],
        metrics: Sequence[str],
        chance: random.Random,
        published: Published,
    ) -> None:
        self._bus = bus
        self._number = number
        self._source = source
        self._nodes = nodes
        self._metrics = metrics
        self._chance = chance
        self._published = published
        self._count = 0
        self._sent: list[Message] = []

    async def run(self, seconds: float, report_again: asyncio.Event) -> None:
        """Publishes in bursts for so many seconds, and until one second after a report of all metrics.

        The report follows some time after `report_again` is set.
        """
        until = time.monotonic() + seconds
        report_at: float | None = None
        reported = False
        while time.monotonic() < until or not reported:
            await self._burst([self._some() for _ in range(self._chance.randint(1, 6))])
            if report_at is None and report_again.is_set():
                report_at = time.monotonic() + self._chance.uniform(*REPORT_SECONDS)
            if report_at is not None and not reported and time.monotonic() > report_at:
                await self.report()
                reported = True
                until = max(until, time.monotonic() + 1)
            await asyncio.sleep(self._chance.uniform(0, 0.1))

    async def report(self) -> None:
        """Publishes all metrics of all nodes with the current time, mixed with late samples."""
        messages = [self._message(node, now(), self._metrics) for node in self._nodes]
        messages += [self._some() for _ in self._nodes]
        self._chance.shuffle(messages)
        await self._burst(messages)

    async def _burst(self, messages: Sequence[Message]) -> None:
        await asyncio.gather(*(self._publish(message) for message in messages))

    async def _publish(self, message: Message) -> None:
        """Publishes until the message is acknowledged, and its arrival is known if that may count."""
        self._published.sending(message)
        while True:
            counts = message.measured
            try:
                ahead = counts is None or counts > now()
                sequence = await self._bus.publish(SAMPLES, message.subject, message.body)
                if ahead:
                    arrived = await self._arrived(sequence)
                    counts = arrived if arrived is None or counts is None else min(counts, arrived)
            except UnavailableError:
                counts = None
            if counts is not None:
                self._published.acknowledged(message, (counts, sequence))
                return
            await asyncio.sleep(0.02)
            await self._bus.wait_connected()

    async def _arrived(self, sequence: int) -> int | None:
        """When a message arrived; None if the stream has lost it since then."""
        try:
            answer = await self._bus.api(f"STREAM.MSG.GET.{SAMPLES.stream}", {"seq": sequence})
        except RefusedError as error:
            if error.code != MESSAGE_NOT_FOUND:
                raise
            return None
        return microseconds_of(answer["message"]["time"])

    def _some(self) -> Message:
        """A late sample, a repeated one, one with an equal time, or one without a time or with a time ahead."""
        kind = self._chance.random()
        if kind < 0.1 and self._sent:
            return self._chance.choice(self._sent[-100:])
        node = self._chance.choice(self._nodes)
        metrics = self._chance.sample(self._metrics, self._chance.randint(1, len(self._metrics)))
        if kind < 0.2:
            return self._message(node, None, metrics)
        if kind < 0.3:
            return self._message(node, now() + round(self._chance.uniform(0.5, AHEAD_SECONDS) * SECOND), metrics)
        if kind < 0.4 and self._published.times:
            return self._message(node, self._chance.choice(self._published.times[-50:]), metrics)
        if kind < 0.55 and (measured := self._published.measured.get((node, metrics[0], self._source))) is not None:
            return self._message(node, measured, metrics)
        return self._message(node, now() - round(self._chance.uniform(0, LATE_SECONDS) * SECOND), metrics)

    def _message(self, node: str, measured: int | None, metrics: Sequence[str]) -> Message:
        self._count += 1
        number = 10 * self._count + self._number  # no other message has it
        ahead = measured is not None and measured > now()
        values = dict.fromkeys(metrics, number)
        if CLOCK in values:
            if measured is None or ahead:  # the time that counts is unknown before the arrival
                del values[CLOCK]
            else:
                values[CLOCK] = measured - self._published.began  # below 0 at first
        values = values or {"other": number}
        body: dict[str, object] = {"metrics": {metric: self._written(value) for metric, value in values.items()}}
        if measured is not None:
            body["measured"] = text_of(measured)
        message = Message(
            node=node, source=self._source, measured=measured, values=values, body=json.dumps(body).encode()
        )
        self._sent.append(message)
        return message

    def _written(self, value: int) -> object:
        """A quantity in one of its notations."""
        return self._chance.choice([value, str(value), f"{value}000m", f"{value}.0", f"{value}e0"])
