"""Scrapes on SAMPLES: publishers and readers of samples see no bytes and no subjects."""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.records.samples import NewestScrape, SamplesMessage, decode_newest, decode_samples, encode_samples
from bus.subjects import parse_samples_subject, samples_subject
from tas.errors import InvalidInputError
from tas.samples.sample import NodeSamples, Scrape


class ReceivedScrape(NamedTuple):
    """The scrape of a message: None without a valid metric. `refused` has an error for each refused metric."""

    node: str
    scrape: Scrape | None
    refused: tuple[InvalidInputError, ...]


async def publish_scrape(bus: Bus, node: str, scrape: Scrape) -> int:
    """Publishes a scrape of a node, and returns its sequence in SAMPLES. Raises BusError."""
    return await bus.publish(SAMPLES, *_message(node, scrape))


async def publish_scrapes(bus: Bus, scrapes: Sequence[tuple[str, Scrape]]) -> None:
    """Publishes a few hundred scrapes (node, scrape) together. Raises BusError if one was not stored."""
    await bus.publish_all(SAMPLES, [_message(node, scrape) for node, scrape in scrapes])


def received(message: SamplesMessage, only: Container[str] | None = None) -> ReceivedScrape:
    """The scrape of a message, with `only` just of these metrics.

    Raises InvalidInputError if the subject names no node and source.
    """
    return ReceivedScrape(
        *decode_samples(message.subject, message.data, arrived=message.arrived, sequence=message.sequence, only=only)
    )


class SourceMessages(NamedTuple):
    """Messages of one source of a node."""

    node: str
    source: str
    messages: Sequence[SamplesMessage]

    def newest(self, stored: NodeSamples) -> Iterator[NewestScrape]:
        """The scrapes, without metrics of which a message or the stored samples have a newer value.

        The time for one step grows with the bytes of one message.
        """
        return decode_newest(self.node, self.source, self.messages, stored)


def by_source(messages: Iterable[SamplesMessage]) -> tuple[list[SourceMessages], list[InvalidInputError]]:
    """The messages by node and source, and an error for each whose subject names none."""
    subjects: dict[str, list[SamplesMessage]] = {}
    for message in messages:
        subjects.setdefault(message.subject, []).append(message)
    found: list[SourceMessages] = []
    refused: list[InvalidInputError] = []
    for subject, each in subjects.items():
        try:
            found.append(SourceMessages(*parse_samples_subject(subject), each))
        except InvalidInputError as error:
            refused += [error] * len(each)
    return found, refused


def refusals(node: str, scrape: Scrape) -> tuple[InvalidInputError, ...]:
    """What a reader would refuse of a scrape that arrives now, by its `arrived`."""
    return decode_samples(*_message(node, scrape), arrived=scrape.arrived, sequence=0)[2]


async def refused_on_arrival(bus: Bus, node: str, source: str, sequence: int) -> tuple[InvalidInputError, ...]:
    """What a reader refuses of a published message, by the time at which the server stored it.

    Nothing if the message is no longer the last one of its source. Raises UnavailableError, RefusedError.
    """
    last = await bus.last_messages(SAMPLES, samples_subject(node, source))
    return next((received(message).refused for message in last if message.sequence == sequence), ())


def _message(node: str, scrape: Scrape) -> tuple[str, bytes]:
    return samples_subject(node, scrape.source), encode_samples(scrape)
