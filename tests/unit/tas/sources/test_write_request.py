"""The bytes of remote write: a request is read exactly, and an invalid body gives an error."""

import math
import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.sources.write_request import STALE_MARKER, WriteError, decode_series, decode_write_request, value_of
from tests.sources import writing
from tests.unit.tas.generators import characters

texts = st.text(characters, max_size=20)
all_bits = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
all_series = st.lists(
    st.tuples(st.lists(st.tuples(texts, texts), max_size=5), st.lists(st.tuples(all_bits, times), max_size=4)),
    max_size=8,
)


@given(written=all_series)
def test_a_written_request_is_read_exactly(written: list[writing.Series]) -> None:
    request = decode_write_request(writing.body(written))
    read = [
        (
            [(label.name, label.value) for label in series.labels],
            [(sample.value, sample.timestamp) for sample in series.samples],
        )
        for series in map(decode_series, request)
    ]
    assert read == written


@given(number=st.floats())
def test_a_value_is_the_double_with_its_bits(number: float) -> None:
    read = value_of(struct.unpack("<Q", struct.pack("<d", number))[0])
    assert read == number or (math.isnan(read) and math.isnan(number))


def test_facts_n24_a_stale_marker_is_distinguished_from_every_other_nan() -> None:
    body = writing.body([writing.series("a", (STALE_MARKER, 1), (0x7FF8000000000001, 2), (math.nan, 3))])
    bits = [sample.value for sample in decode_series(decode_write_request(body)[0]).samples]
    assert bits[0] == STALE_MARKER
    assert STALE_MARKER not in bits[1:]


def test_unused_fields_are_skipped() -> None:
    # metadata (3), and fields of later versions of the message
    extra = b"\x1a\x02\x08\x01" + b"\x92\x3f\x03abc" + b"\x98\x3f\x07"
    request = decode_write_request(writing.body([writing.series("a", (1.0, 5))], extra=extra))
    assert [label.value for label in decode_series(request[0]).labels] == ["a"]


def test_histograms_are_counted_but_not_decoded() -> None:
    written = writing.message([writing.series("a")])
    histogram = b"\x22\x04\x08\x01\x10\x02"  # field 4 of a series
    size = written[1] + len(histogram)
    request = decode_write_request(writing.compressed(bytes([written[0], size]) + written[2:] + histogram))
    assert len(decode_series(request[0]).histograms) == 1


def test_an_empty_message_has_no_series() -> None:
    assert decode_write_request(writing.compressed(b"")) == []


GOOD = writing.body([writing.series("a", (1.0, 5), instance="node-1:9100")])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"", "a broken snappy block", id="nothing"),
        pytest.param(b"\xff" * 12, "not a snappy block", id="a length without an end"),
        pytest.param(GOOD[:-3], "a broken snappy block", id="cut off"),
        pytest.param(GOOD[:4] + b"\xff\xff\xff" + GOOD[7:], "message prometheus.TimeSeries", id="changed on the way"),
        pytest.param(b"<html>go away</html>", "body: ", id="no snappy at all"),
        pytest.param(bytes(cramjam.snappy.compress(b"x" * 100)), "body: ", id="framed, as files are"),
        pytest.param(writing.compressed(b"\x0a\x7f"), "not a message prometheus.WriteRequest", id="no protobuf"),
        pytest.param(writing.compressed(b"\x0b"), "WriteRequest: wire type 3", id="a group"),
        pytest.param(writing.compressed(b"\x0a" + b"\xff" * 10), "more than 64 bits", id="a number without an end"),
        pytest.param(writing.compressed(b"\x0a\x00" * 100_001), "more than 100000 series: send", id="too many series"),
    ],
)
def test_an_invalid_body_gives_an_error(body: bytes, message: str) -> None:
    with pytest.raises(WriteError, match=message):
        list(map(decode_series, decode_write_request(body)))


@pytest.mark.parametrize(
    ("series", "message"),
    [
        pytest.param(b"\x0a\x03\x0a\x01\xff", "not a message prometheus.TimeSeries", id="no UTF-8"),
        pytest.param(b"\x0a\x00" * 40_000, "series of 80000 bytes: must be at most 65536", id="too large"),
    ],
)
def test_an_invalid_series_gives_an_error(series: bytes, message: str) -> None:
    with pytest.raises(WriteError, match=message):
        decode_series(series)


def test_a_body_that_is_too_large_when_unpacked_is_not_unpacked() -> None:
    body = writing.compressed(bytes(5 << 20))
    assert len(body) < 300_000
    with pytest.raises(WriteError, match=r"declares 5242880 bytes when unpacked: must be at most 1048576"):
        decode_write_request(body, max_bytes=1 << 20)


def test_a_body_of_the_largest_size_is_accepted() -> None:
    message = writing.message([writing.series("load", (1.0, 1000), node="a")])
    body = writing.compressed(message)
    assert len(decode_write_request(body, max_bytes=len(message))) == 1
    with pytest.raises(WriteError, match=f"must be at most {len(message) - 1}"):
        decode_write_request(body, max_bytes=len(message) - 1)


def test_an_impossible_length_is_refused_before_memory_is_allocated() -> None:
    with pytest.raises(WriteError, match=r"6 bytes declare 30000000 when unpacked: more than a snappy block holds"):
        decode_write_request(writing.varint(30_000_000) + b"ab")


def test_the_most_compressed_block_is_accepted() -> None:
    message = b"\x1a" + writing.varint(2_000_000) + bytes(2_000_000)
    assert decode_write_request(writing.compressed(message)) == []


@given(data=st.data())
def test_any_bytes_give_a_request_or_an_error(data: st.DataObject) -> None:
    message = writing.message([writing.series("a", (1.0, 5), (2.0, 6), instance="x" * 50)])
    spoiled = bytearray(data.draw(st.sampled_from([GOOD, message])))
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(spoiled) - 1), st.integers(0, 255)))):
        spoiled[place] = value
    whole = bytes(spoiled)[: data.draw(st.integers(0, len(spoiled)))]
    for body in (whole, writing.compressed(whole)):
        try:
            for series in decode_write_request(body):
                decode_series(series)
        except WriteError as error:
            assert str(error).startswith(("body: ", "series"))  # noqa: PT017 - either is right
