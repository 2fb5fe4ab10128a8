"""Annotations of nodes as samples, from the sandbox to a real nats-server, by `inventory`."""

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.connection import Bus
from lab.sandbox.resources import NODES
from tests.integration.servers import eventually
from tests.integration.workers.collecting import World, polled
from tests.integration.workers.running import running
from tests.sandbox import Sandbox
from workers.inventory.annotation_samples import Annotations
from workers.inventory.worker import Inventory
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.resources import annotated_nodes

SOURCE = "annotations"
LIFETIME = 600.0
KEYS = {f"example.com/{name}": name for name in ("mean-free-cpu", "congestion-factor")}


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start(nodes=["a", "b", "c"]) as sandbox:
        yield sandbox


def annotate(sandbox: Sandbox, node: str, **values: str | None) -> None:
    annotations = {f"example.com/{name.replace('_', '-')}": value for name, value in values.items()}
    sandbox.cluster.patch(NODES, "", node, {"metadata": {"annotations": annotations}}, manager="annotator")


async def test_numbers_become_samples_and_anything_else_is_named_and_costs_nothing_else(
    bus: Bus, tmp_path: Path, sandbox: Sandbox
) -> None:
    """Of a node without annotations there is no sample, and pods are not listed."""
    world, registry = World(bus), CollectorRegistry()
    parts: list[Annotations] = []

    async def refuses(refused: Mapping[str, Mapping[str, str]]) -> None:
        async def is_stored() -> bool:
            state = await world.state(SOURCE)
            return state is not None and state.refused_now == refused

        await polled(is_stored)

    annotate(sandbox, "a", mean_free_cpu="2500.5", congestion_factor="3")
    annotate(sandbox, "b", mean_free_cpu="NaN", congestion_factor="4")
    kubeconfig = sandbox.kubeconfig(tmp_path / "kubeconfig")
    async with KubernetesClient.connect(kubeconfig, worker="inventory") as client:

        def replica(registry: CollectorRegistry) -> Inventory:
            def part(is_active: Callable[[], bool], _: object) -> Annotations:
                parts.append(Annotations(bus, registry, is_active, keys=KEYS, lifetime=LIFETIME))
                return parts[-1]

            nodes = annotated_nodes(KEYS)
            return Inventory(bus, client, registry=registry, card_metrics=0, cards=False, more=[part], nodes=nodes)

        with capture_logs() as logs:
            async with running(worker := replica(registry)):
                await world.has("a", SOURCE, {"mean-free-cpu": 2500.5, "congestion-factor": 3})
                await world.has("b", SOURCE, {"congestion-factor": 4})
                why = "node b: annotation mean-free-cpu = 'NaN': must be a plain decimal number, without a unit"
                await refuses({"b": {"mean-free-cpu": why}})
                assert why in {each.get("example") for each in logs if each["event"] == "source_values_refused"}
                assert registry.get_sample_value(
                    "tas_source_values_refused_total", {"source": SOURCE, "reason": "value"}
                )

                annotate(sandbox, "b", mean_free_cpu="7", congestion_factor=None)
                await world.has("b", SOURCE, {"mean-free-cpu": 7})
                await refuses({})

                assert await world.scrape("c", SOURCE) is None
                assert worker.unready() is None

                # A second replica follows the same, and publishes nothing.
                async with running(standby := replica(other := CollectorRegistry())):
                    await eventually(lambda: standby.unready() is None)
                    for value in (1, 2):  # so the second one has had time to publish the first
                        annotate(sandbox, "a", mean_free_cpu=str(value))
                        await world.has("a", SOURCE, {"mean-free-cpu": value, "congestion-factor": 3})
                    active, waiting = parts
                    assert (set(active.of(SOURCE)), set(waiting.of(SOURCE))) == (set(KEYS.values()), set())
                assert other.get_sample_value("tas_source_messages_total", {"source": SOURCE}) in (None, 0)
    assert [call.resource for call in sandbox.calls if call.verb == "list"] == ["nodes", "nodes"]
