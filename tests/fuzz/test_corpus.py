"""The findings of `make fuzz`, replayed: `corpus/DECODER/NAME` is a message that once broke the bounds of a decoder."""

from pathlib import Path

import pytest

from tests.fuzz.cost import cost, memory
from tests.fuzz.decoders import DECODERS, Decoder, decoder

pytestmark = pytest.mark.seeded

CORPUS = Path(__file__).parent / "corpus"
FINDINGS = sorted(path for path in CORPUS.rglob("*") if path.is_file())
LEAST_BYTES = 10_000
"""A shorter message has the bounds of one of this size."""


def check(decoder: Decoder, data: bytes) -> None:
    """Asserts that a decoder accepts a message or refuses it with an allowed error, within its bounds."""
    size = max(len(data), LEAST_BYTES)
    bound = size * decoder.seconds_per_byte
    found = cost(decoder, data)
    assert found.error is None
    assert found.seconds < bound or min(cost(decoder, data).seconds for _ in range(3)) < bound
    peak, kept = memory(decoder, data)
    assert peak < size * decoder.bytes_per_byte
    assert kept < decoder.kept


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: str(path.relative_to(CORPUS)))
def test_a_finding_stays_mended(path: Path) -> None:
    check(decoder(path.parent.name), path.read_bytes())


@pytest.mark.parametrize("each", DECODERS, ids=[each.name for each in DECODERS])
def test_the_seeds_are_within_the_bounds(each: Decoder) -> None:
    for seed in each.seeds:
        check(each, seed)


def test_every_folder_of_the_corpus_has_a_decoder() -> None:
    assert {path.parent.name for path in FINDINGS} <= {each.name for each in DECODERS}
