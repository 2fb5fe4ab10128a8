"""The worker `resources` with a real API server, scheduler and descheduler, and a real nats-server."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.chain import descheduler, evictions
from tests.e2e.cluster import RESOURCE, Cluster, extender
from tests.e2e.processes import Process, until
from tests.e2e.recorder import FILTER, Request, Response, passing, recording, scoring
from tests.integration.conftest import bus, server
from tests.integration.servers import Server
from tests.kubernetes.fixtures import admin
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.resource_scenarios import ResourceScenarios, resources, resources_running

__all__ = ["admin", "bus", "resources", "server", "world"]

OWN = ("offers-1", "offers-2")
LABEL = "offers-test"
STRICT, LENIENT = "strict", "lenient"
"""The schedulers without and with `ignoredByScheduler`."""


@pytest.fixture(autouse=True)
def nodes_of_all_tests(cluster: Cluster) -> Iterator[None]:
    """Afterwards the nodes of all tests are as before: the worker itself removes nothing."""
    yield
    cluster.remove_resource()


class TestResources(ResourceScenarios):
    pass


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[None]:
    """Nodes of this test, which do not offer the resource."""
    cluster.create_nodes(*OWN)
    yield
    cluster.delete_nodes(*OWN)


def on_own_nodes(*rules: dict[str, object]) -> dict[str, object]:
    """An affinity for nodes of this test that match these rules."""
    expressions = [{"key": "kubernetes.io/hostname", "operator": "In", "values": OWN}, *rules]
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def deployment(namespace: str) -> str:
    """A Deployment of one pod, which must leave a node with the label."""
    labels = {"app": "moves"}
    spec = {
        "schedulerName": LENIENT,
        "affinity": on_own_nodes({"key": LABEL, "operator": "DoesNotExist"}),
        "containers": [{"name": "main", "image": "pause", "resources": {"limits": {RESOURCE: "1"}}}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "moves", "namespace": namespace},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        }
    )


def running_pod(cluster: Cluster, namespace: str) -> tuple[str, str] | None:
    """The name and the node of the Deployment's pod, if it is the only one and runs."""
    found = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector="app=moves")["items"]
    if [pod["status"].get("phase") for pod in found] != ["Running"]:
        return None
    return found[0]["metadata"]["name"], found[0]["spec"]["nodeName"]


@pytest.mark.usefixtures("nodes")
async def test_facts_c34_c35_a_scheduler_that_does_not_ignore_the_resource_and_a_descheduler_wait_for_it(
    cluster: Cluster, namespace: str, kubeconfig: Path, server: Server
) -> None:
    """A scheduler that ignores the resource places the pod at once."""

    def answer(request: Request) -> Response:
        return passing(request, OWN) if request.verb == FILTER else scoring({})

    def scheduler(name: str, url: str, *, ignored: bool) -> AbstractContextManager[Process]:
        managed = [{"name": RESOURCE, "ignoredByScheduler": ignored}]
        entry = extender(url, names_only=True, managedResources=managed)
        return cluster.scheduler(entry, profiles=[{"schedulerName": name}])

    with ExitStack() as stack:
        url = stack.enter_context(recording(answer)).url
        stack.enter_context(scheduler(LENIENT, url, ignored=True))
        stack.enter_context(scheduler(STRICT, url, ignored=False))
        cluster.apply(deployment(namespace))
        old, place = until(
            partial(running_pod, cluster, namespace), "the pod runs although no node offers the resource"
        )
        cluster.create_pod(namespace, "waits", schedulerName=STRICT, affinity=on_own_nodes())
        cluster.rejected(namespace, "waits", containing=f"2 Insufficient {RESOURCE}")

        (other,) = {*OWN} - {place}
        mark = cluster.audit.mark()
        cluster.api.patch(f"/api/v1/nodes/{place}", {"metadata": {"labels": {LABEL: "violating"}}})
        evicting = stack.enter_context(descheduler(cluster))

        def is_kept() -> bool:
            words = (f'pod="{namespace}/{old}"', f'node="{other}"', f'err="insufficient {RESOURCE}"')
            return any(all(word in line for word in words) for line in evicting.tail(1000).splitlines())

        until(is_kept, "the descheduler finds no node for the pod")
        assert running_pod(cluster, namespace) == (old, place)
        assert not any(RESOURCE in cluster.api.get(f"/api/v1/nodes/{node}")["status"]["capacity"] for node in OWN)

        async with resources_running(kubeconfig, server.url):
            await asyncio.to_thread(cluster.placed, namespace, "waits")

            def has_moved() -> bool:
                found = running_pod(cluster, namespace)
                return found is not None and found[0] != old and found[1] == other

            await asyncio.to_thread(until, has_moved, "the descheduler has evicted the pod")
            eviction = f"/api/v1/namespaces/{namespace}/pods/{old}/eviction"
            # Its effect may be visible before its entry in the log.
            await asyncio.to_thread(until, lambda: evictions(cluster, mark) == {eviction}, "only this pod was evicted")
