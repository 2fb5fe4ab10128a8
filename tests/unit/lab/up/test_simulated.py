"""What the simulated nodes publish, and which pods the simulated cluster has."""

import pytest

from lab.sandbox.resources import PODS, TASPOLICIES
from lab.up.simulated import SOURCE, SimulatedPods, unclaimed
from tas.policy.policy import POD_LABEL
from tas.samples.sample import Scrape
from tas.values.quantity import Quantity, parse_quantity
from tests.sandbox import Sandbox

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


async def test_only_pods_of_a_policy_that_labels_nodes_avoid_its_label() -> None:
    """An affinity for a label that no policy sets is a mistake, and `tas doctor` warned a newcomer of it."""
    rules = {"rules": [{"metricname": "m", "operator": "GreaterThan", "target": 1}]}
    async with Sandbox.start() as sandbox:
        for name, strategy in (("labels", "deschedule"), ("filters", "dontschedule")):
            kind = {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy"}
            policy = kind | {"metadata": {"name": name}, "spec": {"strategies": {strategy: rules}}}
            sandbox.cluster.create(TASPOLICIES, "default", policy, manager="test")
        pods = SimulatedPods(sandbox.cluster)
        pods._create_and_delete()
        pods._create_and_delete()
        created = sandbox.cluster.store.items(PODS, "default")
    avoids = {pod["metadata"]["labels"][POD_LABEL]: "affinity" in pod["spec"] for pod in created}
    assert avoids == {"labels": True, "filters": False}


@pytest.mark.parametrize("spec", [None, 5, {}, {"strategies": None}, {"strategies": 5}])
async def test_a_policy_without_strategies_of_any_form_has_pods_too(spec: object) -> None:
    """`tas up` ended three seconds after its start if the file of a policy had no spec."""
    async with Sandbox.start() as sandbox:
        policy = {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy", "metadata": {"name": "p"}}
        sandbox.cluster.create(TASPOLICIES, "default", policy | {"spec": spec}, manager="test")
        SimulatedPods(sandbox.cluster)._create_and_delete()
        (pod,) = sandbox.cluster.store.items(PODS, "default")
    assert "affinity" not in pod["spec"]
