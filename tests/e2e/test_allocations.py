"""The allocation of a node counts as kube-scheduler does: what fits exactly is placed, and one unit more is not."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.kinds import NODE_ALLOCATION
from tas.allocation.node import NodeAllocation
from tas.allocation.node_annotations import WRITTEN
from tas.enforcing.managers import ANNOTATIONS_MANAGER
from tests.integration.servers import answered, eventually
from tests.integration.workers.running import running
from workers.inventory.annotation_writer import AnnotationWriter
from workers.inventory.worker import Inventory
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.resources import annotated_nodes

from .cluster import Cluster

NODE = "allocated-1"
PREFIX = "e2e.example.com/"
RUNTIME = "e2e-overhead"


def container(name: str, *, always: bool = False, limits: dict[str, str] | None = None, **requests: str) -> Any:
    found = {"name": name, "image": "pause", "resources": {"requests": requests, "limits": limits or {}}}
    return found | ({"restartPolicy": "Always"} if always else {})


def spec(*containers: Any, before: tuple[Any, ...] = (), **fields: Any) -> Any:
    return {"containers": list(containers), "initContainers": list(before)} | fields


PODS = {
    "sum": (spec(container("a", cpu="250m", memory="1Gi"), container("b", cpu="100m", memory="1Mi")), 350),
    "init": (spec(container("a", cpu="100m"), before=(container("i", cpu="700m"), container("j", cpu="1m"))), 700),
    "sidecar": (
        spec(
            container("a", cpu="300m"),
            before=(container("s", always=True, cpu="200m"), container("i", cpu="500m", memory="64Mi")),
        ),
        700,
    ),
    "whole": (
        spec(container("a", cpu="100m", memory="1Mi"), resources={"requests": {"cpu": "900m", "memory": "128Mi"}}),
        900,
    ),
    "overhead": (spec(container("a", cpu="10m"), runtimeClassName=RUNTIME), 60),
    "fractions": (spec(*(container(name, memory="500m") for name in "abc")), 0),
    "limits": (spec(container("a", limits={"cpu": "200m", "memory": "32Mi"})), 200),  # the request is the limit
}
"""Pods with their requests of cpu, for people who read this."""


@pytest.fixture
def node(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A node of its own, and a runtime class with an overhead."""
    cluster.create_nodes(NODE)
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    overhead = {"podFixed": {"cpu": "50m", "memory": "16Mi"}}
    cluster.api.create(classes, {"metadata": {"name": RUNTIME}, "handler": "pause", "overhead": overhead})
    yield NODE
    cluster.delete_pods(namespace)
    cluster.delete_nodes(NODE)
    cluster.api.delete(f"{classes}/{RUNTIME}")


@pytest.fixture
async def inventory(cluster: Cluster, bus: Bus) -> AsyncIterator[None]:
    async with KubernetesClient.connect(cluster.kubeconfig, worker="inventory") as client:
        registry = CollectorRegistry()
        writer = partial(AnnotationWriter, bus, client, registry, prefix=PREFIX, interval=0.5)
        worker = Inventory(
            bus,
            client,
            registry=registry,
            card_metrics=0,
            new_bus_wait=0.0,
            allocations=True,
            more=[writer],
            nodes=annotated_nodes(PREFIX + name for name in WRITTEN),
        )
        async with running(worker):
            yield


@pytest.mark.usefixtures("inventory")
async def test_a_pod_that_fits_exactly_is_placed_and_one_unit_more_is_not(
    cluster: Cluster, namespace: str, node: str, bus: Bus
) -> None:
    async def allocation(pods: int) -> NodeAllocation:
        found: list[NodeAllocation] = []

        async def has_pods() -> bool:
            record = (await answered(partial(NODE_ALLOCATION.get, bus, node))).readable()
            if record is None or record.requested["pods"] != pods:
                return False
            found[:] = [record]
            return True

        await eventually(has_pods)
        return found[0]

    def add(name: str, body: Any) -> None:
        selector = {"kubernetes.io/hostname": node}
        cluster.create_pod(namespace, name, managed=False, nodeSelector=selector, **body)

    empty = await allocation(0)
    assert (empty.allocatable["cpu"], empty.allocatable["memory"]) == (8000, 32 * 2**30)
    with cluster.scheduler():
        for name, (body, _) in PODS.items():
            await asyncio.to_thread(add, name, body)
        for name in PODS:
            assert await asyncio.to_thread(cluster.placed, namespace, name) == node
        before = await allocation(len(PODS))
        mebi = 2**20
        assert before.requested == {
            "cpu": sum(cpu for _, cpu in PODS.values()),
            "memory": (1024 + 1 + 64 + 128 + 16 + 32) * mebi + 2,
            "pods": len(PODS),
        }
        assert before.unreadable == 0
        assert len(before.recent) == len(PODS)

        free = {name: before.allocatable[name] - before.requested[name] for name in ("cpu", "memory")}
        exact: dict[str, Any] = {"cpu": f"{free['cpu']}m", "memory": str(free["memory"])}
        for name, more, word in (
            ("more-cpu", f"{free['cpu'] + 1}m", "Insufficient cpu"),
            ("more-memory", str(free["memory"] + 1), "Insufficient memory"),
        ):
            await asyncio.to_thread(add, name, spec(container("a", **exact | {name.removeprefix("more-"): more})))
            await asyncio.to_thread(cluster.rejected, namespace, name, containing=word)
        await asyncio.to_thread(add, "exact", spec(container("a", **exact)))
        assert await asyncio.to_thread(cluster.placed, namespace, "exact") == node
        full = await allocation(len(PODS) + 1)
        assert [full.requested[name] for name in free] == [full.allocatable[name] for name in free]

        # The same is written for extenders of other people.
        written = {"requested-cpu": full.requested["cpu"], "free-cpu": 0, "free-memory": 0}
        wanted = {f"{PREFIX}{name}": str(value) for name, value in written.items()}

        def is_annotated() -> bool:
            metadata = cluster.api.get(f"/api/v1/nodes/{node}")["metadata"]
            managers = {
                each["manager"]
                for each in metadata["managedFields"]
                if f"f:{PREFIX}free-cpu" in each["fieldsV1"].get("f:metadata", {}).get("f:annotations", {})
            }
            return wanted.items() <= metadata.get("annotations", {}).items() and managers == {ANNOTATIONS_MANAGER}

        await eventually(is_annotated)
