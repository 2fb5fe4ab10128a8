"""Tombstones of deleted keys."""

import pytest

from bus.entry import is_tombstone


@pytest.mark.parametrize(
    "headers",
    [
        {"KV-Operation": "DEL"},
        {"KV-Operation": "PURGE"},
        {"Nats-Marker-Reason": "MaxAge"},
        {"Nats-Marker-Reason": "Purge"},
        {"Nats-Marker-Reason": "Remove"},
    ],
)
def test_each_marker_of_a_deleted_key_is_a_tombstone_facts_n13(headers: dict[str, str]) -> None:
    assert is_tombstone(headers)


@pytest.mark.parametrize("headers", [None, {}, {"Nats-TTL": "5"}, {"Nats-Msg-Id": "1"}])
def test_a_value_is_no_tombstone(headers: dict[str, str] | None) -> None:
    assert not is_tombstone(headers)
