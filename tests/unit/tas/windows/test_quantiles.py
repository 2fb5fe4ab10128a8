"""Stored digests that were damaged on the bus."""

import struct
from math import inf, nan

import pytest
from fastdigest import TDigest

from tas.values.window import window_of
from tas.windows.quantiles import CENTROIDS, Quantiles

SECONDS = 300.0


def digest() -> bytes:
    found = TDigest(max_centroids=CENTROIDS)
    found.batch_update([float(value) for value in range(200)])
    return bytes(found.to_bytes())


def test_a_digest_with_any_damaged_number_is_refused_or_can_be_used() -> None:
    """The library panics when it uses some of them, and that would end the process."""
    whole = digest()
    window = window_of("cpu:p50:5m")
    assert window is not None
    refused = 0
    for offset in range(len(whole) - 7):
        for number in (nan, inf, -1.0, 1e308):
            damaged = bytearray(whole)
            damaged[offset : offset + 8] = struct.pack("<d", number)
            quantiles = Quantiles(SECONDS)
            try:
                quantiles.restore([(5, 1500.0, [], bytes(damaged))])
            except ValueError:
                refused += 1
                continue
            for value in range(70):
                quantiles.add(1510.0, float(value))
            quantiles.values([window])
    assert refused > 100
    sound = Quantiles(SECONDS)
    sound.restore([(5, 1500.0, [], whole)])
    assert sound.values([window]) == [pytest.approx(99.5)]
