"""Samples are refused if they have no room, or if they are too old beside the newest ones of the node."""

from tas.samples.capacity import SOURCE_LIMIT
from tas.samples.refusal import refusal
from tas.samples.sample import MAX_SAMPLE_AGE, Scrape, merge
from tas.values.quantity import Quantity


def scrape(source: str, time: float, *metrics: str) -> Scrape:
    values = {metric: Quantity(1) for metric in metrics}
    return Scrape(source=source, measured=time, arrived=time, sequence=1, metrics=values)


def test_a_scrape_that_can_be_stored_is_not_refused() -> None:
    known = (scrape("other", 10_000, "a"),)
    for new in (scrape("mine", 10_000 - MAX_SAMPLE_AGE, "a"), scrape("mine", 20_000, "a", "b")):
        assert refusal("n", known, new) is None
        assert refusal("n", merge(known, [new]), new) is None
    assert refusal("n", (), scrape("mine", 1, "a")) is None


def test_the_refusal_names_the_metric_without_room() -> None:
    known = (scrape("mine", 1, *(f"m{number}" for number in range(SOURCE_LIMIT.pairs))),)
    error = refusal("n", known, scrape("mine", 2, "m5", "new"))
    assert str(error).startswith("samples n/mine: metrics = 'new': and 0 more: source mine has 1000 metrics of ")
    assert refusal("n", known, scrape("mine", 2, "m5", "m6")) is None


def test_the_refusal_names_the_age_beside_the_newest_sample() -> None:
    error = refusal("n", (scrape("other", 10_000, "a"),), scrape("mine", 10_000 - MAX_SAMPLE_AGE - 5, "a"))
    assert str(error) == (
        "sample n/mine: measured = 6395.0: must be at most 3600 s before the newest sample of the node, and is 3605 s "
        "before"
    )
