"""Annotations that `inventory` writes, with a real nats-server and the sandbox."""

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.kinds import NODE_SAMPLES
from bus.records.nodes import StoredSamples
from bus.scrapes import publish_scrape
from lab.sandbox.resources import NODES, PODS
from tas.allocation.node import NodeAllocation
from tas.allocation.node_annotations import WRITTEN
from tas.enforcing.managers import ANNOTATIONS_MANAGER
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tests.integration.servers import answered, eventually
from tests.integration.tables import put_tables
from tests.integration.workers.running import running
from tests.sandbox import Sandbox
from workers.inventory.annotation_writer import AnnotationWriter
from workers.inventory.worker import Inventory
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.resources import annotated_nodes
from workers.materialize.worker import Materialize

pytestmark = pytest.mark.usefixtures("long_limits")

PREFIX = "example.com/"


async def test_defect_a1_known_values_are_written_and_only_what_differs_enough_and_nothing_is_removed(
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
            await publish("test", "cpu:mean:5m", cpu)

        async def publish(source: str, metric: str, value: str) -> None:
            metrics, now = {metric: parse_quantity(value)}, time.time()
            scrape = Scrape(source=source, measured=now, arrived=now, sequence=0, metrics=metrics)
            await publish_scrape(bus, "a", scrape)

        def add_pod(name: str, node: str) -> None:
            resources = {"requests": {"cpu": "100m"}}
            spec = {"nodeName": node, "containers": [{"name": "main", "image": "pause", "resources": resources}]}
            sandbox.cluster.create(PODS, "default", {"metadata": {"name": name}, "spec": spec}, manager="test")

        async with KubernetesClient.connect(sandbox.kubeconfig(tmp_path / "kubeconfig"), worker="inventory") as client:
            part = partial(AnnotationWriter, bus, client, registry, prefix=PREFIX, interval=0.2)

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
                await publish("annotations", "congestion-factor", "3")  # read from an annotation, so not written to one
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
                assert "congestion-factor" not in annotations("a")


async def test_of_tables_what_was_measured_since_the_node_was_created_is_written(bus: Bus, tmp_path: Path) -> None:
    nodes = [f"node-{number}" for number in range(4)]
    async with Sandbox.start(nodes=nodes) as sandbox:

        def free(node: str) -> str | None:
            found: dict[str, str] = sandbox.cluster.get(NODES, "", node)["metadata"].get("annotations", {})
            return found.get(f"{PREFIX}mean-free-cpu")

        def patches_of(node: str) -> int:
            return sum((call.verb, call.name) == ("patch", node) for call in sandbox.calls)

        async with KubernetesClient.connect(sandbox.kubeconfig(tmp_path / "kubeconfig"), worker="inventory") as client:
            registry = CollectorRegistry()
            worker = Inventory(
                bus,
                client,
                registry=registry,
                card_metrics=0,
                cards=False,
                allocations=True,
                more=[partial(AnnotationWriter, bus, client, registry, prefix=PREFIX, interval=0.2)],
                nodes=annotated_nodes(PREFIX + name for name in WRITTEN),
            )
            allocatable = int(sandbox.cluster.get(NODES, "", "node-0")["status"]["allocatable"]["cpu"]) * 1000

            def are_written(used: int) -> bool:
                return [free(node) for node in nodes[1:]] == [str(allocatable - used)] * 3

            async with running(worker):
                measured = {"cpu:mean:5m": "1", "load1": "1"}
                await put_tables(bus, {"node-0": measured}, source="early", ago=90)
                await put_tables(bus, dict.fromkeys(nodes[1:], measured))
                await eventually(lambda: are_written(1000))
                # The newest value counts, also one that is in no table.
                now, metrics = time.time(), {"cpu:mean:5m": parse_quantity("2")}
                own = (Scrape(source="test", measured=now, arrived=now, sequence=1, metrics=metrics),)
                await NODE_SAMPLES.put(bus, "node-1", StoredSamples(own), revision=0, read_at=time.monotonic())
                await eventually(lambda: free("node-1") == str(allocatable - 2000))
                await put_tables(bus, {node: {"cpu:mean:5m": "3"} for node in nodes[1:]})
                await eventually(lambda: are_written(3000))
                assert patches_of("node-0") > 0  # its requests
                assert free("node-0") is None


async def test_a_new_node_gets_nothing_of_what_was_known_of_the_node_before_it(bus: Bus, tmp_path: Path) -> None:
    uid, asked = "before", 0

    def allocation(_: str) -> NodeAllocation:
        nonlocal asked
        asked += 1
        return NodeAllocation(uid=uid, allocatable={"cpu": 1000}, requested={"cpu": 100})

    async with (
        Sandbox.start(nodes=["a"]) as sandbox,
        KubernetesClient.connect(sandbox.kubeconfig(tmp_path / "kubeconfig"), worker="inventory") as client,
    ):
        worker = AnnotationWriter(
            bus, client, CollectorRegistry(), lambda: True, allocation, prefix=PREFIX, interval=0.05
        )
        worker.nodes.begin()
        worker.nodes.read((await client.list(annotated_nodes(()))).items)
        worker.nodes.end("1")
        async with running(worker):
            await eventually(lambda: asked > 2)  # some passes
            assert sandbox.count()["patch", "nodes"] == 0
            uid = sandbox.cluster.get(NODES, "", "a")["metadata"]["uid"]
            await eventually(lambda: sandbox.count()["patch", "nodes"] > 0)


async def test_on_standby_it_follows_nothing_and_active_it_keeps_only_what_it_writes(bus: Bus, tmp_path: Path) -> None:
    active = False

    async def followers() -> int:
        names = await answered(lambda: bus.api(f"CONSUMER.NAMES.{NODE_SAMPLES.bucket.stream}"))
        return int(names["total"])

    async with (
        Sandbox.start(nodes=["a"]) as sandbox,
        KubernetesClient.connect(sandbox.kubeconfig(tmp_path / "kubeconfig"), worker="inventory") as client,
    ):
        asked: list[str] = []
        worker = AnnotationWriter(
            bus, client, CollectorRegistry(), lambda: active, asked.append, prefix=PREFIX, interval=0.05
        )
        worker.nodes.begin()
        worker.nodes.read((await client.list(annotated_nodes(()))).items)
        worker.nodes.end("1")
        async with running(worker):
            await asyncio.sleep(0.2)  # some turns of its loop
            assert (await followers(), asked) == (0, [])
            active = True
            await eventually(lambda: "a" in asked)

            async def follows() -> bool:
                return await followers() == 1

            await eventually(follows)  # a busy server that sends no heartbeat is followed anew
            active = False

            async def has_stopped() -> bool:
                return await followers() == 0

            await eventually(has_stopped)
