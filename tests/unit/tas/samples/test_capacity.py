"""How many pairs of source and metric a node may have."""

from tas.samples.capacity import within_capacity
from tas.samples.sample import Scrape
from tas.values.quantity import Quantity


def scrape(source: str, *metrics: str) -> Scrape:
    return Scrape(
        source=source, measured=1.0, arrived=1.0, sequence=1, metrics={metric: Quantity(1) for metric in metrics}
    )


def test_within_the_limit_everything_is_accepted() -> None:
    incoming = [scrape("a", "x"), scrape("b", "x")]
    assert within_capacity("n", (), incoming, limit=2) == (incoming, [])


def test_beyond_the_limit_new_pairs_are_refused_with_an_error() -> None:
    taken, refused = within_capacity("n", (), [scrape("a", "x", "y", "z")], limit=2)
    assert taken == [scrape("a", "x", "y")]
    assert [str(error) for error in refused] == [
        "samples n/a: metrics = 'z': with 0 more beyond the 2 pairs of source and metric a node may have"
    ]


def test_at_the_limit_known_pairs_are_still_accepted() -> None:
    known = (scrape("a", "x", "y"),)
    taken, refused = within_capacity("n", known, [scrape("a", "x", "y"), scrape("b", "x")], limit=2)
    assert taken == [scrape("a", "x", "y")]
    assert len(refused) == 1


def test_a_duplicate_pair_counts_once() -> None:
    incoming = [scrape("a", "x"), scrape("a", "x"), scrape("a", "y")]
    assert within_capacity("n", (), incoming, limit=2) == (incoming, [])
