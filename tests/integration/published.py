"""Publishers that do all that a publisher may, and by plain comparison what is the newest of what they published.

Nothing here asks the product what a sample means: a place is a node, a metric and a source; of its values the one
that was measured last counts, where nothing counts as measured after it arrived; of equal times the one that came
last into the stream.
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
"""The microsecond since 1970 that counts, and the place in SAMPLES."""

CLOCK = "clock"
"""A metric whose value is when it was measured, in microseconds of the test: so an older one is a smaller one."""

SECOND = 1_000_000
"""Microseconds."""

LATE_SECONDS = 4.0
"""How long after it was measured a sample may be published here."""

REPORT_SECONDS = (0.2, 3.0)
"""How long after it is asked for everything is reported again."""

AHEAD_SECONDS = 5.0
"""How far a source's clock may be ahead here; up to 10 s is tolerated."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now() -> int:
    return time.time_ns() // 1000


def text_of(microseconds: int) -> str:
    return (EPOCH + timedelta(microseconds=microseconds)).isoformat()


def microseconds_of(text: str) -> int:
    """The microsecond of a time as the bus tells it, which may have nine digits."""
    time, _, rest = text.removesuffix("Z").partition(".")
    fraction, _, zone = rest.partition("+")
    assert zone in ("", "00:00"), text
    whole = datetime.fromisoformat(time.removesuffix("+00:00")).replace(tzinfo=UTC) - EPOCH
    return whole // timedelta(microseconds=1) + round(int(fraction.ljust(9, "0")) / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is published. `measured` is None where it says no time, so that its arrival counts."""

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
    """What all publishers published.

    Attributes:
        began: The microsecond that `CLOCK` counts from.
        newest: What counts of what was acknowledged, of each place.
        told: When it was measured, of each place whose newest told so itself, and truly.
        values: When each value of each place was measured; also of what was never acknowledged.
        messages: How many were acknowledged.
        times: What messages told as their time, oldest message first.
    """

    began: int = 0
    newest: dict[Place, tuple[Order, int]] = field(default_factory=dict)
    told: dict[Place, int] = field(default_factory=dict)
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
                self.told.pop(place, None)
                if message.measured == order[0]:
                    self.told[place] = order[0]

    def differences(self, held: Mapping[Place, tuple[Order, int]]) -> dict[Place, tuple[object, object]]:
        """Where what a reader holds is not the newest: what it holds, and what it should."""
        found: dict[Place, tuple[object, object]] = {}
        for place in held.keys() | self.newest.keys():
            has, should = held.get(place), self.newest.get(place)
            if has is None or should is None or _untimed(has) != _untimed(should) or abs(has[0][0] - should[0][0]) > 1:
                found[place] = (has, should)
        return found

    def clocks(self) -> dict[str, int]:
        """Of each node the newest `CLOCK`, whichever source it is from."""
        found: dict[str, tuple[int, int]] = {}
        for (node, metric, _), ((counts, _), value) in self.newest.items():
            if metric == CLOCK:
                found[node] = max(found.get(node, (0, 0)), (counts, value))
        return {node: value for node, (_, value) in found.items()}


def _untimed(value: tuple[Order, int]) -> tuple[int, int]:
    """Which message it is of, and the value: all but the time, whose last digit is rounded."""
    return (value[0][1], value[1])


class Publisher:
    """One source's program. Several may speak for one source."""

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
        """Publishes in bursts for so long, and on until some time after everything has been reported once more.

        It is reported a while after it is asked for.
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
        """All metrics of all nodes as they are now, among samples that come late."""
        messages = [self._message(node, now(), self._metrics) for node in self._nodes]
        messages += [self._some() for _ in self._nodes]
        self._chance.shuffle(messages)
        await self._burst(messages)

    async def _burst(self, messages: Sequence[Message]) -> None:
        await asyncio.gather(*(self._publish(message) for message in messages))

    async def _publish(self, message: Message) -> None:
        """Publishes until it is acknowledged; with a time ahead, until the stream has said when it arrived."""
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
        """When the stream got a message; None if it has lost it since."""
        try:
            answer = await self._bus.api(f"STREAM.MSG.GET.{SAMPLES.stream}", {"seq": sequence})
        except RefusedError as error:
            if error.code != MESSAGE_NOT_FOUND:
                raise
            return None
        return microseconds_of(answer["message"]["time"])

    def _some(self) -> Message:
        """A sample out of order, one that was sent before, one of a time that others have, or of the newest."""
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
        if kind < 0.55 and (told := self._published.told.get((node, metrics[0], self._source))) is not None:
            return self._message(node, told, metrics)
        return self._message(node, now() - round(self._chance.uniform(0, LATE_SECONDS) * SECOND), metrics)

    def _message(self, node: str, measured: int | None, metrics: Sequence[str]) -> Message:
        self._count += 1
        number = 10 * self._count + self._number  # of no other message
        ahead = measured is not None and measured > now()
        values = dict.fromkeys(metrics, number)
        if CLOCK in values:
            if measured is None or ahead:  # when it counts is not known before it has arrived
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
        """A quantity in one of its forms."""
        return self._chance.choice([value, str(value), f"{value}000m", f"{value}.0", f"{value}e0"])
