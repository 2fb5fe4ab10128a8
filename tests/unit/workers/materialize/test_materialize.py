"""What `materialize` remembers of nodes, when a bucket is lost while an answer about it is on its way."""

from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.entry import Epoch
from bus.records.nodes import StoredSamples
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from workers.materialize.worker import Materialize, _KnownSamples


def test_an_answer_about_the_bucket_of_before_counts_as_nothing_in_the_new_one() -> None:
    """Else samples count as stored that the new bucket does not have, and are not written again after a wipe."""
    materialize = Materialize(
        Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1),  # it never connects
        registry=CollectorRegistry(),
    )
    before, after = Epoch("one", 1), Epoch("two", 1)
    scrape = Scrape(source="s", measured=1.0, arrived=1.0, sequence=1, metrics={"m": parse_quantity("1")})
    written = _KnownSamples(7, record=StoredSamples((scrape,), frozenset()))
    materialize._start_epoch(before)
    materialize._start_epoch(after)
    materialize._remember("node-1", written, before)
    assert materialize._stored_samples("node-1") == ()
    materialize._remember("node-1", written, after)
    assert materialize._stored_samples("node-1") == (scrape,)
