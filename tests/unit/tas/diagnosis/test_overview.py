"""The screen of `tas status`."""

from tas.diagnosis.finding import Missing
from tas.diagnosis.metrics import MetricFacts
from tas.diagnosis.overview import overview
from tas.diagnosis.policies import PolicyFacts
from tas.samples.sample import Scrape
from tas.sources.state import SourceState
from tas.values.quantity import parse_quantity

NOW = 1_000_000.0


def test_sources_without_a_value_come_first_then_the_one_whose_newest_value_is_oldest() -> None:
    missing = Missing("the bus does not say it")
    metrics = {"m": parse_quantity("1")}
    samples = tuple(
        Scrape(source=source, measured=NOW - age, arrived=NOW - age, sequence=1, metrics=metrics)
        for source, age in (("new", 1.0), ("old", 90.0), ("oldest", 200.0))
    )
    state = SourceState(kind="prometheus", holder="h", since=NOW, time=NOW, period=1.0, polls=1, metrics={})
    found = overview(
        bus=missing,
        policies=PolicyFacts(stored=missing, in_api=missing, strategy_fields=missing),
        metrics=MetricFacts(
            policies=(), samples={"a": samples}, sources={"never": state, "old": state}, now=NOW, stale_after=120.0
        ),
        processes=missing,
        leases={},
        address="",
    )
    assert [each.source for each in found.sources] == ["never", "oldest", "old", "new"]
