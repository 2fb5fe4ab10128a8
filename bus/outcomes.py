"""What becomes of pods, as a log on the bus: agents that learn read it in order, each replica for itself."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b

from bus.buckets import OUTCOMES
from bus.connection import Bus
from bus.errors import BusError
from bus.records.outcomes import decode_outcome, encode_outcome
from bus.stream_reader import Lost, Start, StreamReader
from bus.subjects import outcomes_subject
from tas.errors import InvalidInputError
from tas.outcomes.outcome import Outcome, Placed


async def publish_outcomes(bus: Bus, events: Sequence[Placed | Outcome]) -> list[int | BusError]:
    """Publishes up to a few hundred events; a sequence or an error for each.

    The server drops a repetition within two minutes (facts.md n41). Raises UnavailableError if some answers are
    missing: each event may be stored.
    """
    messages = [
        (outcomes_subject(each.node), encode_outcome(each), {"Nats-Msg-Id": outcome_identity(each)}) for each in events
    ]
    return await bus.publish_each(OUTCOMES, messages)


def outcome_identity(event: Placed | Outcome) -> str:
    """What an event and its repetition have in common, as a short word."""
    what = "placed" if isinstance(event, Placed) else f"{event.container}/{event.restart}/{event.result}"
    return blake2b(f"{event.uid}/{what}".encode(), digest_size=12).hexdigest()


async def last_outcome_at(bus: Bus) -> float | None:
    """When the server stored the last message, in seconds since 1970; None if there is none. Raises BusError."""
    state = (await bus.api(f"STREAM.INFO.{OUTCOMES.stream}"))["state"]
    return datetime.fromisoformat(state["last_ts"]).timestamp() if state["messages"] else None


@dataclass(frozen=True, slots=True)
class LoggedOutcome:
    """A message of OUTCOMES. `arrived` is when the server stored it, in seconds since 1970."""

    event: Placed | Outcome | InvalidInputError
    sequence: int
    arrived: float


@dataclass(frozen=True, slots=True)
class LoggedOutcomes:
    """Messages that arrived together, in order, as `bus.stream_reader.Batch`."""

    messages: Sequence[LoggedOutcome]
    lost: Lost | None = None
    behind: int = 0


class OutcomeReader:
    """Reads all events after a sequence (0: all that are stored), in order."""

    def __init__(self, bus: Bus, *, after: int) -> None:
        self._reader = StreamReader(bus, OUTCOMES, Start(after=after))

    async def batches(self) -> AsyncGenerator[LoggedOutcomes, None]:
        """As `StreamReader.batches`."""
        async with aclosing(self._reader.batches()) as batches:
            async for batch in batches:
                messages = [
                    LoggedOutcome(_decoded(message.data), message.sequence, message.arrived)
                    for message in batch.messages
                ]
                yield LoggedOutcomes(messages, batch.lost, batch.behind)


def _decoded(data: bytes) -> Placed | Outcome | InvalidInputError:
    try:
        return decode_outcome(data)
    except InvalidInputError as error:
        return error
