"""Who reads of a bucket, and which invalid keys are reported for it."""

from typing import Any

import pytest

from bus.bucket_feed import Reader
from bus.kinds import NODE_FACTS, NODE_SAMPLES, POLICY_RECORDS
from bus.record_kind import RecordKind


@pytest.mark.parametrize(
    ("keys", "kinds", "key", "reports"),
    [
        (">", (NODE_FACTS, NODE_SAMPLES), "x.y.z", True),
        (">", (NODE_FACTS, NODE_SAMPLES), "node.facts", False),
        ("*.facts", (NODE_FACTS,), "x.y.z", False),  # not sent to it
        ("*.facts", (NODE_FACTS,), "node.metrics", False),
        ("*.facts", (NODE_FACTS,), "..facts", False),
        ("*.facts", (NODE_FACTS,), "-.facts", True),
        (">", (POLICY_RECORDS,), "x", True),
    ],
)
def test_it_reports_an_invalid_key_that_it_gets(
    keys: str, kinds: tuple[RecordKind[Any, Any], ...], key: str, *, reports: bool
) -> None:
    handlers = tuple(kind.to(lambda _: None) for kind in kinds)
    reader = Reader(handlers=handlers, on_epoch=lambda _: None, on_batch=lambda: None, keys=keys, pace=0.0)
    assert reader.reports(key) is reports
