"""How many metrics a node may have, and how many of them one source may have."""

from bus.records.nodes import encode_node_samples
from tas.samples.capacity import (
    MAX_PAIR_BYTES,
    NODE_LIMIT,
    PAIR_BYTES,
    SOURCE_LIMIT,
    CapacityLimit,
    refusal_of,
    refusal_of_new_source,
    reserved_bytes,
    within_capacity,
)
from tas.samples.sample import MAX_SAMPLE_AGE, Scrape, merge, metric_count
from tas.values.quantity import MAX_QUANTITY, Quantity

MAX_VALUE_BYTES = (1 << 20) - 1024


def scrape(source: str, *metrics: str) -> Scrape:
    return scrape_at(source, 1.0, *metrics)


def scrape_at(source: str, time: float, *metrics: str) -> Scrape:
    return Scrape(
        source=source, measured=time, arrived=time, sequence=1, metrics={metric: Quantity(1) for metric in metrics}
    )


def test_within_the_limits_everything_is_accepted() -> None:
    incoming = [scrape("a", "x"), scrape("b", "x")]
    assert within_capacity(
        "n", (), incoming, node_limit=CapacityLimit(2, 10_000), source_limit=CapacityLimit(1, 10_000)
    ) == (
        incoming,
        [],
    )


def test_a_source_cannot_take_the_share_of_another() -> None:
    greedy = scrape("greedy", *(f"m{number}" for number in range(2 * SOURCE_LIMIT.pairs)))
    known, refused = within_capacity("n", (), [greedy])
    assert [metric_count((each,)) for each in known] == [SOURCE_LIMIT.pairs]
    assert [str(error) for error in refused] == [
        "samples n/greedy: metrics = 'm1000': and 999 more: source greedy has 1000 metrics of 309890 bytes, at most "
        "1000 of 500000 bytes; the node has 1000 metrics of 309890 bytes, at most 2000 of 1000000 bytes"
    ]
    other = scrape("prometheus", *(f"m{number}" for number in range(SOURCE_LIMIT.pairs)))
    assert within_capacity("n", tuple(known), [other]) == ([other], [])


def test_a_source_cannot_take_the_bytes_of_another() -> None:
    greedy = scrape("greedy", *(f"{number:04}".ljust(253, "x") for number in range(SOURCE_LIMIT.pairs)))
    known, refused = within_capacity("n", (), [greedy])
    count = metric_count(tuple(known))
    assert count == SOURCE_LIMIT.size // reserved_bytes("greedy", "x" * 253) < SOURCE_LIMIT.pairs
    assert len(refused) == 1
    other = scrape("prometheus", *(f"m{number}" for number in range(SOURCE_LIMIT.pairs)))
    assert within_capacity("n", tuple(known), [other]) == ([other], [])


def test_all_sources_together_are_limited() -> None:
    many = [scrape(f"s{number}", *(f"m{metric}" for metric in range(500))) for number in range(5)]
    taken, refused = within_capacity("n", (), many)
    assert metric_count(tuple(taken)) == NODE_LIMIT.pairs
    assert [error.subject for error in refused] == ["samples n/s4"]


def test_a_full_node_has_no_room_for_any_metric_of_a_new_source() -> None:
    full = (scrape("a", "x", "y"), scrape("b", "x"))
    limit = CapacityLimit(3, 10_000)
    assert within_capacity("n", full, [scrape("c", "z")], node_limit=limit, source_limit=limit)[0] == []
    assert str(refusal_of_new_source("n", "c", full, node_limit=limit)) == (
        "samples n/c: metrics = 'all': the node has 3 metrics, at most 3"
    )
    assert refusal_of_new_source("n", "b", full, node_limit=limit) is None  # its pair is known
    assert refusal_of_new_source("n", "c", full[:1], node_limit=limit) is None


def test_at_the_limit_known_pairs_are_still_accepted() -> None:
    known = (scrape("a", "x", "y"),)
    tight = CapacityLimit(2, 700)
    taken, refused = within_capacity(
        "n", known, [scrape("a", "x", "y"), scrape("b", "x")], node_limit=tight, source_limit=tight
    )
    assert taken == [scrape("a", "x", "y")]
    assert len(refused) == 1


def test_a_duplicate_pair_counts_once() -> None:
    incoming = [scrape("a", "x"), scrape("a", "x"), scrape("a", "y")]
    assert within_capacity("n", (), incoming, source_limit=CapacityLimit(2, 10_000)) == (incoming, [])


def test_a_node_within_its_limits_fits_into_one_value_of_a_bucket() -> None:
    def longest(number: int) -> Scrape:
        return Scrape(
            source=f"{number:04}".ljust(63, "s"),
            measured=1_800_000_000.123456,
            arrived=1_800_000_001.123456,
            sequence=(1 << 64) - 1,
            window=86399.99999999999,
            metrics={"m" * 253: Quantity(-MAX_QUANTITY + 1)},
        )

    assert reserved_bytes("s" * 63, "m" * 253) == MAX_PAIR_BYTES == PAIR_BYTES + 63 + 253
    assert len(encode_node_samples((longest(0),))) <= MAX_PAIR_BYTES
    taken, refused = within_capacity("n", (), map(longest, range(NODE_LIMIT.pairs)))
    assert refused
    assert len(encode_node_samples(tuple(taken))) <= MAX_VALUE_BYTES


def test_a_scrape_that_can_be_stored_is_not_refused() -> None:
    known = (scrape_at("other", 10_000, "a"),)
    for new in (scrape_at("mine", 10_000 - MAX_SAMPLE_AGE, "a"), scrape_at("mine", 20_000, "a", "b")):
        assert refusal_of("n", known, new) is None
        assert refusal_of("n", merge(known, [new]), new) is None
    assert refusal_of("n", (), scrape_at("mine", 1, "a")) is None


def test_the_refusal_names_the_metric_without_room() -> None:
    known = (scrape_at("mine", 1, *(f"m{number}" for number in range(SOURCE_LIMIT.pairs))),)
    error = refusal_of("n", known, scrape_at("mine", 2, "m5", "new"))
    assert str(error).startswith("samples n/mine: metrics = 'new': and 0 more: source mine has 1000 metrics of ")
    assert refusal_of("n", known, scrape_at("mine", 2, "m5", "m6")) is None


def test_the_refusal_names_the_age_beside_the_newest_sample() -> None:
    error = refusal_of("n", (scrape_at("other", 10_000, "a"),), scrape_at("mine", 10_000 - MAX_SAMPLE_AGE - 5, "a"))
    assert str(error) == (
        "sample n/mine: measured = 6395.0: must be at most 3600 s before the newest sample of the node, and is 3605 s "
        "before"
    )
