"""Annotations that `inventory` writes, with a real nats-server and the sandbox."""

import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.scrapes import publish_scrape
from sandbox import Sandbox
from sandbox.resources import NODES, PODS
from tas.allocation.annotations import WRITTEN
from tas.enforcing.managers import ANNOTATIONS_MANAGER
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tests.integration.servers import eventually
from tests.integration.workers.running import running
from workers.enforcing.annotations import AnnotationWriter
from workers.ingest.materialize import Materialize
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.resources import annotated_nodes
from workers.watching.inventory import Inventory

PREFIX = "example.com/"


async def test_known_values_are_written_and_only_what_differs_enough_and_nothing_is_removed(
    bus: Bus, tmp_path: Path
) -> None:
    """Under the prefix, by a field manager of its own, and with the version of the node that was seen."""
    registry = CollectorRegistry()
    async with Sandbox.start(nodes=["a", "b"]) as sandbox:

        def annotations(node: str) -> dict[str, str]:
            found = sandbox.cluster.get(NODES, "", node)["metadata"].get("annotations", {})
            return {key.removeprefix(PREFIX): text for key, text in found.items() if key.startswith(PREFIX)}

        def patches(result: str) -> float:
            return registry.get_sample_value("tas_annotation_patches_total", {"result": result}) or 0.0

        def patches_of_a() -> int:
            return sum((call.verb, call.name) == ("patch", "a") and call.status != 409 for call in sandbox.calls)

        async def measure(cpu: str) -> None:
            metrics, now = {"cpu:mean:5m": parse_quantity(cpu)}, time.time()
            scrape = Scrape(source="test", measured=now, arrived=now, sequence=0, metrics=metrics)
            await publish_scrape(bus, "a", scrape)

        def add_pod(name: str, node: str) -> None:
            resources = {"requests": {"cpu": "100m"}}
            spec = {"nodeName": node, "containers": [{"name": "main", "image": "pause", "resources": resources}]}
            sandbox.cluster.create(PODS, "default", {"metadata": {"name": name}, "spec": spec}, manager="test")

        async with KubernetesClient.connect(sandbox.kubeconfig(tmp_path / "kubeconfig"), worker="inventory") as client:

            def part(is_active: Callable[[], bool]) -> AnnotationWriter:
                return AnnotationWriter(bus, client, registry, is_active, prefix=PREFIX, interval=0.2)

            worker = Inventory(
                bus,
                client,
                registry=registry,
                card_metrics=0,
                cards=False,
                allocations=True,
                more=[part],
                nodes=annotated_nodes(PREFIX + name for name in WRITTEN),
            )
            async with running(Materialize(bus, registry=CollectorRegistry())), running(worker):
                allocatable = int(sandbox.cluster.get(NODES, "", "a")["status"]["allocatable"]["cpu"]) * 1000
                await measure("1")
                await eventually(lambda: annotations("a").get("mean-free-cpu") == str(allocatable - 1000))
                await eventually(lambda: annotations("b").get("requested-cpu") == "0")
                assert "mean-free-cpu" not in annotations("b")
                managers = {
                    each["manager"]
                    for each in sandbox.cluster.get(NODES, "", "a")["metadata"]["managedFields"]
                    if f"f:{PREFIX}mean-free-cpu" in each["fieldsV1"].get("f:metadata", {}).get("f:annotations", {})
                }
                assert managers == {ANNOTATIONS_MANAGER}

                # Half of a hundredth of the node is too little; the pod, which is written, shows that a pass was made.
                await measure(f"{1000 + allocatable // 200}m")
                add_pod("one", "a")
                await eventually(lambda: annotations("a")["requested-cpu"] == "100")
                assert annotations("a")["mean-free-cpu"] == str(allocatable - 1000)
                await measure("2")
                await eventually(lambda: annotations("a")["mean-free-cpu"] == str(allocatable - 2000))

                # What nobody knows any more stays; and there is nothing to write while nothing changes.
                sandbox.cluster.delete(NODES, "", "b")
                sent = patches_of_a()
                add_pod("two", "a")
                await eventually(lambda: annotations("a")["requested-cpu"] == "200")
                assert patches_of_a() == sent + 1
                assert annotations("a")["mean-free-cpu"] == str(allocatable - 2000)

                # A node that has changed since it was seen is not patched; the next pass has seen the change.
                conflicts = patches("conflict")
                released = sandbox.faults.hold(which=lambda call: call.verb == "patch")
                await measure("3")
                await eventually(lambda: sandbox.faults.waiting == 0)
                sandbox.cluster.patch(NODES, "", "a", {"metadata": {"annotations": {"other": "1"}}}, manager="test")
                released.set()
                await eventually(lambda: patches("conflict") > conflicts)
                await eventually(lambda: annotations("a")["mean-free-cpu"] == str(allocatable - 3000))
