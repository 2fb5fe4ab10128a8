"""How long a source gathers samples depends on the bytes that `materialize` will write because of them."""

import pytest

from bus.records.tables import encode_stored_table
from tas.sources.result import Sample
from tas.sources.tables import tables_of
from tas.values.quantity import NANO, Quantity
from workers.samples.publisher import stored_bytes

NODES = 200
NOW = 1_800_000_000.0


@pytest.mark.parametrize("metrics", [1, 5, 20])
@pytest.mark.parametrize("has_times", [True, False], ids=["a time of each node", "one time"])
def test_the_bytes_of_stored_tables_are_estimated(metrics: int, *, has_times: bool) -> None:
    samples = [
        Sample(
            node=f"ip-10-0-0-{node}.ec2",
            metric=f"metric_{metric}",
            value=Quantity((node * 7919 + metric * 104729) % 10**6 * NANO // 1000),
            measured=NOW - node / 7 if has_times else None,
        )
        for node in range(NODES)
        for metric in range(metrics)
    ]
    tables = tables_of(samples, source="s", requested_at=NOW).tables
    stored = sum(len(encode_stored_table(table)) for _, table in tables)
    assert stored <= stored_bytes(samples, NODES) <= 1.3 * stored
