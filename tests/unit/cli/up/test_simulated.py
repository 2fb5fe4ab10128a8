"""Simulated nodes publish no metric for which another source has a fresh sample."""

import pytest

from cli.up.simulated import SOURCE, unclaimed
from tas.samples.sample import Scrape
from tas.values.quantity import Quantity, parse_quantity

HEALTHY, UNHEALTHY, CPU = map(parse_quantity, ("0", "2", "40"))
OURS = {"health_metric": HEALTHY, "cpu_percent": CPU}


def scrape(source: str, measured: float, **metrics: Quantity) -> Scrape:
    return Scrape(source=source, measured=measured, arrived=measured, sequence=1, metrics=metrics)


@pytest.mark.parametrize(
    ("samples", "published"),
    [
        ((), OURS),
        (
            (scrape("cli", 99.0, health_metric=UNHEALTHY), scrape(SOURCE, 98.0, health_metric=HEALTHY)),
            {"cpu_percent": CPU},
        ),
        ((scrape("cli", 99.0, health_metric=UNHEALTHY),), {"cpu_percent": CPU}),
        ((scrape("cli", 9.0, health_metric=UNHEALTHY), scrape(SOURCE, 98.0, health_metric=HEALTHY)), OURS),
    ],
    ids=["no other source", "other source is newer", "only the other source", "other source is stale"],
)
def test_a_metric_with_a_fresh_sample_of_another_source_is_not_published(
    samples: tuple[Scrape, ...], published: dict[str, Quantity]
) -> None:
    assert unclaimed(OURS, samples, stale_after=120.0, now=130.0) == published


def test_a_newer_sample_of_ours_is_replaced_by_the_value_of_the_other_source() -> None:
    samples = (
        scrape("cli", 99.0, health_metric=UNHEALTHY),
        scrape(SOURCE, 99.001, health_metric=HEALTHY, cpu_percent=CPU),
    )
    assert unclaimed(OURS, samples, stale_after=120.0, now=130.0) == {"health_metric": UNHEALTHY, "cpu_percent": CPU}
