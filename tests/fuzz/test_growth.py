"""The time of every decoder grows linearly with the bytes of a message, whatever the bytes are.

Up to 256 KiB here, and to the largest message of each decoder by `make fuzz`.
"""

import pytest

from tests.fuzz.cost import grows_linearly
from tests.fuzz.decoders import DECODERS, PAYLOAD, Decoder
from tests.fuzz.hostile import JSON_SHAPES, plain_shapes

pytestmark = [pytest.mark.seeded, pytest.mark.ci]

BYTES = 256 << 10
"""A quarter of the largest message: `.ci/run` has little time for each decoder."""

YAML_BYTES = 64 << 10
"""PyYAML parses 1 MB a second, so a larger input would take too long."""


@pytest.mark.parametrize("decoder", DECODERS, ids=[each.name for each in DECODERS])
def test_the_time_of_a_decoder_grows_linearly(decoder: Decoder) -> None:
    size = min(decoder.largest, YAML_BYTES if decoder.form == "yaml" else BYTES)
    shapes = dict(plain_shapes(decoder))
    if decoder.form == "yaml" and decoder.name != "manifest":
        shapes = {name: shape for name, shape in shapes.items() if name not in JSON_SHAPES}
    grown = [name for name, shape in shapes.items() if not grows_linearly(decoder, shape, size)]
    assert len(shapes) >= 10
    assert grown == []


def test_a_quadratic_decoder_is_detected() -> None:
    def decode(data: bytes) -> None:
        for start in range(0, len(data), 8):
            data.find(b"\xff", start)

    quadratic = Decoder(name="quadratic", decode=decode, allowed=(), largest=PAYLOAD, seeds=(b"1",))
    assert not grows_linearly(quadratic, lambda size: b" " * size, 400 << 10)
