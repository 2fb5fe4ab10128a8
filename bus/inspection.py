"""What a server and our streams on it are like, for `tas doctor`."""

import time
from datetime import datetime
from typing import Any

from bus.buckets import ALL, BREAKERS, DEAD_LETTERS, EVENTS, VERDICT_LOG, differences
from bus.connection import Bus
from bus.errors import STREAM_NOT_FOUND, UnavailableError
from bus.server import MINIMUM_VERSION
from tas.diagnosis.bus import BusFacts, WrongStream
from tas.diagnosis.clocks import Offset
from tas.diagnosis.finding import Missing

LOST = {
    BREAKERS.stream: "a pause, and which breakers have tripped,",
    DEAD_LETTERS.stream: "the events that a subscription gave up",
    EVENTS.stream: "the events of seven days",
    VERDICT_LOG.stream: "the verdicts of a day",
}
"""What no worker can build again, by stream."""


async def inspect(bus: Bus) -> tuple[BusFacts, Offset | Missing]:
    """The bus without `sync` and `embedded`, and how far the server's clock is ahead of ours. Raises BusError."""
    server = bus.link.server
    absent: list[str] = []
    wrong: list[WrongStream] = []
    copies: dict[str, int] = {}
    clock: Offset | Missing = Missing("no stream exists, and only an answer about a stream has the time")
    for of in ALL:
        asked = time.time()
        try:
            answer = await bus.api(f"STREAM.INFO.{of.stream}")
        except UnavailableError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            absent.append(of.stream)
            continue
        clock = _offset(answer, asked, time.time())
        config: dict[str, Any] = answer["config"]
        copies[of.stream] = config.get("num_replicas", 1)
        if different := "; ".join(differences(of, config, replicas=1)):
            wrong.append(WrongStream(of.stream, different, LOST.get(of.stream, "")))
    facts = BusFacts(
        address=bus.address,
        server=server.id,
        version=server.version,
        needed=MINIMUM_VERSION,
        cluster=server.cluster,
        copies=copies,
        wrong=wrong,
        absent=absent,
    )
    return facts, clock


def _offset(answer: dict[str, Any], asked: float, answered: float) -> Offset | Missing:
    try:
        theirs = datetime.fromisoformat(str(answer.get("ts"))).timestamp()
    except ValueError:
        return Missing("the server does not give its time")
    return Offset(ahead=theirs - (asked + answered) / 2, doubt=(answered - asked) / 2)
