"""Played nodes give way to whoever else speaks of a metric."""

import pytest

from tas.quantity import Quantity, parse_quantity
from tas.sample import Scrape
from workers.cli.played import SOURCE, unclaimed

WELL, UNWELL, CPU = map(parse_quantity, ("0", "2", "40"))
OURS = {"health_metric": WELL, "cpu_percent": CPU}


def scrape(source: str, measured: float, **metrics: Quantity) -> Scrape:
    return Scrape(source=source, measured=measured, arrived=measured, sequence=1, metrics=metrics)


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ((), OURS),
        ((scrape("cli", 99.0, health_metric=UNWELL), scrape(SOURCE, 98.0, health_metric=WELL)), {"cpu_percent": CPU}),
        ((scrape("cli", 99.0, health_metric=UNWELL),), {"cpu_percent": CPU}),
        ((scrape("cli", 9.0, health_metric=UNWELL), scrape(SOURCE, 98.0, health_metric=WELL)), OURS),
    ],
    ids=["nobody else spoke", "theirs is newer", "only they spoke", "theirs is stale"],
)
def test_what_others_say_is_left_to_them(samples: tuple[Scrape, ...], said: dict[str, Quantity]) -> None:
    assert unclaimed(OURS, samples, since=10.0) == said


def test_a_value_that_crossed_theirs_on_its_way_is_replaced_by_theirs() -> None:
    samples = (scrape("cli", 99.0, health_metric=UNWELL), scrape(SOURCE, 99.001, health_metric=WELL, cpu_percent=CPU))
    assert unclaimed(OURS, samples, since=10.0) == {"health_metric": UNWELL, "cpu_percent": CPU}
