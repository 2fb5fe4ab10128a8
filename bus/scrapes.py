"""Scrapes on SAMPLES: publishers and readers of samples see no bytes and no subjects."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.records.samples import decode_samples, encode_samples
from bus.subjects import samples_subject
from tas.errors import InvalidInputError
from tas.samples.sample import Scrape


class SamplesMessage(Protocol):
    """A message of SAMPLES, from a consumer or from the stream. `arrived` is in seconds since 1970."""

    @property
    def subject(self) -> str: ...  # noqa: D102
    @property
    def data(self) -> bytes: ...  # noqa: D102
    @property
    def arrived(self) -> float: ...  # noqa: D102
    @property
    def sequence(self) -> int: ...  # noqa: D102


class ReceivedScrape(NamedTuple):
    """The scrape of a message: None if all of it was refused. `refused` has an error for each refused metric."""

    node: str
    scrape: Scrape | None
    refused: tuple[InvalidInputError, ...]


async def publish_scrape(bus: Bus, node: str, scrape: Scrape) -> int:
    """Publishes a scrape of a node, and returns its sequence in SAMPLES. Raises BusError."""
    return await bus.publish(SAMPLES, *_message(node, scrape))


async def publish_scrapes(bus: Bus, scrapes: Sequence[tuple[str, Scrape]]) -> None:
    """Publishes a few hundred scrapes (node, scrape) together. Raises BusError if one was not stored."""
    await bus.publish_all(SAMPLES, [_message(node, scrape) for node, scrape in scrapes])


def received(message: SamplesMessage) -> ReceivedScrape:
    """The scrape of a message. Raises InvalidInputError if the subject names no node and source."""
    return ReceivedScrape(
        *decode_samples(message.subject, message.data, arrived=message.arrived, sequence=message.sequence)
    )


def refusals(node: str, scrape: Scrape) -> tuple[InvalidInputError, ...]:
    """What a reader would refuse of a scrape that arrives now, by its `arrived`."""
    return decode_samples(*_message(node, scrape), arrived=scrape.arrived, sequence=0)[2]


def _message(node: str, scrape: Scrape) -> tuple[str, bytes]:
    return samples_subject(node, scrape.source), encode_samples(scrape)
