"""The load: node messages at an even rate, as many sources would send them.

`python -m tests.bench.publisher URL RATE NODES` publishes until SIGTERM, then prints a `Published` as one line of JSON.
With `steady` as a fourth argument, each node's values change a little each time, and none crosses the target of a rule;
the first message of each node is sent at once.

The sources of a cluster run on its nodes. So this one takes little processor time from the processes that are measured
beside it: the bodies are encoded before, and answers are counted, not decoded.
"""

import asyncio
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import cycle
from typing import cast
from urllib.parse import urlsplit

import msgspec
import uvloop

from bus.records.samples import encode_samples
from bus.subjects import samples_subject
from tas.values.quantity import Quantity, parse_quantity
from tests.bench import cluster

VARIANTS = 2000
STEADY_VARIANTS = 3
TICK_SECONDS = 0.001
AT_ONCE = 500
"""Messages that may wait for the server to have stored them."""

ANSWER_SECONDS = 2.0
"""How long the last messages may wait for their answers; without one they count as lost."""

_INBOX = b"_INBOX.bench-publisher"
_ENCODED_AT = 1.5
"""The time in a body before it is sent; its text has as many digits as any other."""


class Published(msgspec.Struct, frozen=True):
    """How many messages were sent, in which time, and how many were refused or lost."""

    messages: int
    seconds: float
    failed: int

    @property
    def rate(self) -> float:
        """Messages that were stored, a second."""
        return (self.messages - self.failed) / self.seconds


class _Body:
    """The body of a message, but for the time of its values."""

    def __init__(self, values: Mapping[str, Quantity]) -> None:
        whole = encode_samples(cluster.scrape(dict(values), _ENCODED_AT))
        self._before, found, self._after = whole.partition(_time_text(_ENCODED_AT))
        assert found, whole

    def measured(self, now: bytes) -> bytes:
        return self._before + now + self._after


def _time_text(now: float) -> bytes:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z").encode()


class _Server(asyncio.Protocol):
    """A connection to nats-server. `stored` and `refused` count the answers of JetStream."""

    def __init__(self) -> None:
        self.stored = self.refused = self.sent = 0
        self.lost = asyncio.get_running_loop().create_future()
        self._transport: asyncio.WriteTransport | None = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's does not inherit from asyncio's
        self._write(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB ' + _INBOX + b" 1\r\n")

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\r\n")
        for line in lines:
            if line.startswith(b'{"stream"'):
                self.stored += 1
            elif line.startswith((b'{"error"', b"-ERR")):
                self.refused += 1
            elif line == b"PING":
                self._write(b"PONG\r\n")

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_exception(error or ConnectionResetError("the server has closed the connection"))

    @property
    def waiting(self) -> int:
        """The messages that have no answer."""
        return self.sent - self.stored - self.refused

    def publish(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """Sends messages: subject and body of each."""
        parts = (b"PUB %b %b %d\r\n%b\r\n" % (subject, _INBOX, len(body), body) for subject, body in messages)
        self._write(b"".join(parts))
        self.sent += len(messages)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _steady(chance: random.Random, nodes: int) -> Iterator[_Body]:
    """Values for each node in turn: `STEADY_VARIANTS` different ones for each."""
    base = [{name: chance.uniform(0, cluster.VALUES) for name in cluster.METRIC_NAMES} for _ in range(nodes)]

    def near(value: float) -> Quantity:
        low, high = (0.0, cluster.VIOLATING) if value <= cluster.VIOLATING else (cluster.VIOLATING, cluster.VALUES)
        found = min(max(value + chance.uniform(-1, 1), low + 0.001), high - 0.001)
        return parse_quantity(f"{found:.3f}")

    return cycle(
        [_Body({name: near(value) for name, value in of.items()}) for _ in range(STEADY_VARIANTS) for of in base]
    )


async def _publish(url: str, rate: float, nodes: int, *, steady: bool) -> Published:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    chance = random.Random(1)
    bodies = _steady(chance, nodes) if steady else cycle([_Body(cluster.metrics(chance)) for _ in range(VARIANTS)])
    subjects = cycle([samples_subject(name, cluster.SOURCE).encode() for name in cluster.node_names(nodes)])
    address = urlsplit(url)
    _, server = await loop.create_connection(_Server, str(address.hostname), address.port or 4222)
    at_once = nodes if steady else 0
    began = time.monotonic()
    while not stop.is_set():
        due = at_once + int((time.monotonic() - began) * rate)
        count = min(due - server.sent, AT_ONCE - server.waiting)
        now = _time_text(time.time())
        server.publish([(next(subjects), next(bodies).measured(now)) for _ in range(count)])
        await asyncio.wait([server.lost], timeout=max(TICK_SECONDS, 1 / rate))
        if server.lost.done():
            server.lost.result()
    seconds = time.monotonic() - began
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            while server.waiting:
                await asyncio.wait([server.lost], timeout=TICK_SECONDS)
                if server.lost.done():
                    break
    return Published(messages=server.sent, seconds=seconds, failed=server.sent - server.stored)


if __name__ == "__main__":
    steady = sys.argv[4:] == ["steady"]
    found = uvloop.run(_publish(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), steady=steady))
    print(msgspec.json.encode(found).decode())
