"""The findings of `make fuzz`, replayed: `corpus/DECODER/NAME` is a message that once broke the bounds of a decoder."""

from pathlib import Path

import pytest

from tests.fuzz.cost import cost, is_slow, memory
from tests.fuzz.decoders import DECODERS, Decoder, decoder

pytestmark = pytest.mark.seeded

CORPUS = Path(__file__).parent / "corpus"
FINDINGS = sorted(path for path in CORPUS.rglob("*") if path.is_file())
LEAST_BYTES = 10_000
"""A shorter message has the bounds of one of this size."""


def check(decoder: Decoder, data: bytes) -> None:
    """Asserts that a decoder accepts a message or refuses it with an allowed error, within its bounds."""
    size = max(len(data), LEAST_BYTES)
    assert cost(decoder, data).error is None
    assert not is_slow(decoder, data, size)
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
